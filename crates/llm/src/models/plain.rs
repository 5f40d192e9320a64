//! The plain pre-norm block that `llama` and `qwen2` share: grouped attention and SwiGLU.
//!
//! ```text
//! h = rms_norm(x);  q, k, v = Wq h + bq, Wk h + bk, Wv h + bv      biases where the file has them
//! q, k = rope(q), rope(k)
//! x = x + Wo attention(q, k, v)
//! x = x + Wdown (silu(Wgate h') * Wup h'),  h' = rms_norm(x)
//! ```

use fucina_runtime::Tensor;

use crate::error::Result;
use crate::loader::Loader;
use crate::models::blocks::{
    FeedForward, FeedsForward, Hidden, Layer, Place, Projections, Sizes, Token, last,
};

pub(crate) struct Block {
    attn_norm: Tensor<(Hidden,)>,
    attention: Projections,
    ff_norm: Tensor<(Hidden,)>,
    ff: FeedForward,
}

impl Layer for Block {
    fn load(loader: &Loader<'_>, sizes: &Sizes, block: &str) -> Result<Self> {
        Ok(Self {
            attn_norm: loader.vector(&format!("{block}.attn_norm.weight"), sizes.hidden)?,
            attention: Projections::load(loader, sizes, block)?,
            ff_norm: loader.vector(&format!("{block}.ffn_norm.weight"), sizes.hidden)?,
            ff: FeedForward::load(loader, sizes, block)?,
        })
    }

    fn forward(
        &self,
        x: Tensor<(Token, Hidden)>,
        at: &mut Place<'_>,
    ) -> Result<Tensor<(Token, Hidden)>> {
        let mut qkv = self.attention.forward(&x.rms_norm(&self.attn_norm, at.eps)?, at.rows)?;
        qkv.q = qkv.q.rope(&at.query_rope()?, at.pairing)?;
        qkv.k = qkv.k.rope(at.rope, at.pairing)?;
        let x = last(&x, at.rows)?.add(&self.attention.attend(at.cache, at.layer, &qkv)?)?;
        Ok(x.add(&self.ff.forward(&x.rms_norm(&self.ff_norm, at.eps)?)?)?)
    }
}
