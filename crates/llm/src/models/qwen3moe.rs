//! Qwen3 with experts: the attention of Qwen3, and a mixture of experts in place of the
//! feed-forward block.
//!
//! The published models divide the weights of the chosen experts by their sum (`norm_topk_prob`);
//! their files do not say so.

use fucina_runtime::{Pairing, Tensor};

use crate::error::Result;
use crate::loader::Loader;
use crate::models::Decoder;
use crate::models::blocks::{FeedsForward, Hidden, Sizes, Stack, Token};
use crate::models::moe::{Experts, Routing};
use crate::models::qwen3::Block;

const ROUTING: Routing = Routing { normalized: true };

pub(crate) fn load(loader: &Loader<'_>, sizes: &Sizes) -> Result<Box<dyn Decoder>> {
    Ok(Box::new(Stack::<Block<Mixture>>::load(loader, sizes, Pairing::Halves)?))
}

struct Mixture(Experts);

impl FeedsForward for Mixture {
    fn load(loader: &Loader<'_>, sizes: &Sizes, block: &str) -> Result<Self> {
        Experts::load(loader, sizes, block, ROUTING).map(Self)
    }

    fn forward(&self, x: &Tensor<(Token, Hidden)>) -> Result<Tensor<(Token, Hidden)>> {
        self.0.forward(x)
    }
}
