//! The families. Each file builds one architecture from the shared blocks.

pub(crate) mod blocks;
pub(crate) mod gemma3;
pub(crate) mod llama;
mod moe;
mod plain;
pub(crate) mod qwen2;
pub(crate) mod qwen3;
pub(crate) mod qwen3moe;

use fucina_runtime::{KvCache, Runtime, Tensor};

use crate::error::{Error, Result, Stage};
use blocks::{Hidden, Token, Vocab};

/// A loaded network.
pub(crate) trait Decoder: Send + Sync {
    /// Runs the tokens of a pass after those in its cache.
    fn forward(&self, pass: Pass<'_>) -> Result<Tensor<(Token, Vocab)>>;
}

/// One run of a network.
pub(crate) struct Pass<'a> {
    pub(crate) rt: &'a Runtime,
    pub(crate) tokens: &'a [u32],
    pub(crate) cache: &'a mut KvCache,
    /// The logits of so many last tokens are wanted.
    pub(crate) rows: usize,
    /// Look at the values after each stage, which waits for each: to find where they went wrong.
    pub(crate) checked: bool,
}

impl Pass<'_> {
    /// Last tokens whose values somebody reads after a layer.
    pub(crate) fn rows_after(&self, layer: usize, layers: usize) -> usize {
        let tokens = self.tokens.len();
        if layer + 1 == layers { self.rows.min(tokens) } else { tokens }
    }

    /// A decoder calls this with the values that leave a stage.
    pub(crate) fn check(&self, stage: Stage, x: &Tensor<(Token, Hidden)>) -> Result<()> {
        if !self.checked || x.as_dyn().is_finite()? {
            return Ok(());
        }
        Err(Error::NotFinite { stage })
    }
}
