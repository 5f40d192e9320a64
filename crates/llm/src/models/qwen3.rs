//! Qwen3: a Llama-like block with a norm on each query and key head, and no biases.
//!
//! ```text
//! h = rms_norm(x);  q, k, v = Wq h, Wk h, Wv h
//! q, k = rope(rms_norm(q)), rope(rms_norm(k))         halves pair up
//! x = x + Wo attention(q, k, v)
//! x = x + Wdown (silu(Wgate h') * Wup h'),  h' = rms_norm(x)
//! ```

use fucina_runtime::{Pairing, Tensor};

use crate::error::Result;
use crate::loader::Loader;
use crate::models::Decoder;
use crate::models::blocks::{
    FeedForward, FeedsForward, HeadDim, Hidden, Layer, Place, Projections, Sizes, Stack, Token,
    last,
};

pub(crate) fn load(loader: &Loader<'_>, sizes: &Sizes) -> Result<Box<dyn Decoder>> {
    Ok(Box::new(Stack::<Block<FeedForward>>::load(loader, sizes, Pairing::Halves)?))
}

/// A layer. The families differ in what follows attention.
pub(crate) struct Block<F> {
    attn_norm: Tensor<(Hidden,)>,
    attention: Projections,
    q_norm: Tensor<(HeadDim,)>,
    k_norm: Tensor<(HeadDim,)>,
    ff_norm: Tensor<(Hidden,)>,
    ff: F,
}

impl<F: FeedsForward> Layer for Block<F> {
    fn load(loader: &Loader<'_>, sizes: &Sizes, block: &str) -> Result<Self> {
        Ok(Self {
            attn_norm: loader.vector(&format!("{block}.attn_norm.weight"), sizes.hidden)?,
            attention: Projections::load(loader, sizes, block)?,
            q_norm: loader.vector(&format!("{block}.attn_q_norm.weight"), sizes.head_dim)?,
            k_norm: loader.vector(&format!("{block}.attn_k_norm.weight"), sizes.head_dim)?,
            ff_norm: loader.vector(&format!("{block}.ffn_norm.weight"), sizes.hidden)?,
            ff: F::load(loader, sizes, block)?,
        })
    }

    fn forward(
        &self,
        x: Tensor<(Token, Hidden)>,
        at: &mut Place<'_>,
    ) -> Result<Tensor<(Token, Hidden)>> {
        let mut qkv = self.attention.forward(&x.rms_norm(&self.attn_norm, at.eps)?, at.rows)?;
        qkv.q = qkv.q.rms_norm(&self.q_norm, at.eps)?.rope(&at.query_rope()?, at.pairing)?;
        qkv.k = qkv.k.rms_norm(&self.k_norm, at.eps)?.rope(at.rope, at.pairing)?;
        let x = last(&x, at.rows)?.add(&self.attention.attend(at.cache, at.layer, &qkv)?)?;
        Ok(x.add(&self.ff.forward(&x.rms_norm(&self.ff_norm, at.eps)?)?)?)
    }
}
