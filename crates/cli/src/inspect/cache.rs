//! What keys and values take, by the sizes in the metadata.

use fucina::gguf::File;
use fucina::{CacheType, KvShape};
use serde::Serialize;

/// Bytes for each token of the context. Absent where the model's heads do not fit the type.
#[derive(Serialize)]
pub(super) struct PerToken {
    #[serde(rename = "type")]
    pub(super) kind: &'static str,
    pub(super) bytes: usize,
}

/// For each type of cache. Empty if the metadata do not tell the sizes.
pub(super) fn per_token(file: &File) -> Vec<PerToken> {
    CacheType::ALL.into_iter().filter_map(|cache| of(file, cache)).collect()
}

fn of(file: &File, cache: CacheType) -> Option<PerToken> {
    let metadata = file.metadata();
    let architecture = metadata.str("general.architecture").ok()?;
    let size = |name: &str| metadata.usize(&format!("{architecture}.{name}")).ok();
    let heads = size("attention.head_count")?;
    let k_dim =
        size("attention.key_length").or_else(|| size("embedding_length")?.checked_div(heads))?;
    let shape = KvShape {
        layers: size("block_count")?,
        capacity: 1,
        kv_heads: size("attention.head_count_kv").unwrap_or(heads),
        k_dim,
        v_dim: size("attention.value_length").unwrap_or(k_dim),
        cache,
    };
    Some(PerToken { kind: cache.name(), bytes: shape.bytes()? })
}
