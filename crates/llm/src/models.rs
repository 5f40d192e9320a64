//! The families. Each file builds one architecture from the shared blocks.

pub(crate) mod blocks;
pub(crate) mod gemma3;
pub(crate) mod llama;
mod plain;
pub(crate) mod qwen2;
pub(crate) mod qwen3;

use fucina_runtime::{KvCache, Runtime, Tensor};

use crate::error::Result;
use blocks::{Token, Vocab};

/// A loaded network.
pub(crate) trait Decoder: Send + Sync {
    /// Runs `tokens` after those in the cache. Returns the logits of the last `rows` of them.
    fn forward(
        &self,
        rt: &Runtime,
        tokens: &[u32],
        cache: &mut KvCache,
        rows: usize,
    ) -> Result<Tensor<(Token, Vocab)>>;
}
