//! Attention over a cache of keys and values, as a model's layer has it.

use fucina::{AttentionParams, CacheType, DynTensor, KvCache, KvShape, Runtime};

use super::cases::Heads;
use super::linear::size;
use super::measure::{Ready, relative_rms};
use crate::bench::operands::{Random, activations};

/// Rows of queries that are computed again in f64.
const SAMPLES: usize = 12;

fn shape(cache: CacheType, capacity: usize, heads: Heads) -> KvShape {
    let Heads { keys: kv_heads, dim, .. } = heads;
    KvShape { layers: 1, capacity, kv_heads, k_dim: dim, v_dim: dim, cache }
}

fn filled(
    rt: &Runtime,
    cache: CacheType,
    positions: usize,
    heads: Heads,
) -> anyhow::Result<KvCache> {
    let mut kv = KvCache::new(rt, shape(cache, positions, heads))?;
    let (keys, values) = keys_values(rt, positions, heads)?;
    kv.append(0, &keys, &values)?;
    kv.advance(positions)?;
    Ok(kv)
}

fn keys_values(
    rt: &Runtime,
    tokens: usize,
    Heads { keys, dim, .. }: Heads,
) -> anyhow::Result<(DynTensor, DynTensor)> {
    let tensor = |seed| rt.tensor(&[tokens, keys, dim], &activations(tokens, keys * dim, seed));
    Ok((tensor(2)?, tensor(3)?))
}

/// Queries of the last tokens.
pub(super) fn attend(
    rt: &Runtime,
    cache: CacheType,
    (tokens, positions): (usize, usize),
    heads: Heads,
) -> anyhow::Result<Ready<'static>> {
    let Heads { queries, keys, dim } = heads;
    let mut kv = filled(rt, cache, positions, heads)?;
    // Scores of about -3 to 3: neither one key alone nor all of them alike.
    let values: Vec<f32> = activations(tokens, queries * dim, 1).iter().map(|x| x * 16.0).collect();
    let q = rt.tensor(&[tokens, queries, dim], &values)?;
    let q_offset = positions - tokens;
    #[expect(clippy::cast_precision_loss, reason = "the size of a head")]
    let scale = 1.0 / (dim as f32).sqrt();
    let params = AttentionParams { scale, causal: true, q_offset, window: None, soft_cap: None };
    let [k, v] = kv.stored(0)?;
    let mut decoded = (vec![0.0; positions * keys * dim], vec![0.0; positions * keys * dim]);
    cache.dtype().decode(k, &mut decoded.0)?;
    cache.dtype().decode(v, &mut decoded.1)?;
    // Those of the queries' own tokens are written and not held yet.
    kv.truncate(q_offset);
    let out = kv.attend(0, &q, &params)?.to_vec()?;
    let mut pairs = Vec::new();
    let mut random = Random::new(positions);
    for _ in 0..SAMPLES {
        let (token, head) = (random.below(tokens), random.below(queries));
        let at = (token * queries + head) * dim;
        let kv_head = head / (queries / keys);
        let visible = q_offset + token + 1;
        let rows = |of: &[f32]| -> Vec<Vec<f32>> {
            of.chunks_exact(dim).skip(kv_head).step_by(keys).take(visible).map(Vec::from).collect()
        };
        let want = one_query(&values[at..at + dim], &rows(&decoded.0), &rows(&decoded.1), scale);
        pairs.extend(out[at..at + dim].iter().copied().zip(want));
    }
    let row_bytes: usize = kv.shape().row_bytes().unwrap_or_default().iter().sum();
    // A query sees the positions up to its own.
    let seen = tokens * q_offset + tokens * (tokens + 1) / 2;
    Ok(Ready {
        call: Box::new(move || {
            kv.attend(0, &q, &params)?.data::<f32>()?;
            Ok(())
        }),
        operations: 4.0 * size(seen * queries * dim),
        bytes: size(positions * row_bytes + 8 * tokens * queries * dim),
        in_turns: size(positions * row_bytes),
        eight_bits: false,
        kernel: rt.isa().name().to_owned(),
        error: relative_rms(pairs),
    })
}

/// In f64, for keys and values of one head.
fn one_query(q: &[f32], keys: &[Vec<f32>], values: &[Vec<f32>], scale: f32) -> Vec<f64> {
    let dot = |key: &Vec<f32>| -> f64 {
        q.iter().zip(key).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum()
    };
    let scores: Vec<f64> = keys.iter().map(|key| f64::from(scale) * dot(key)).collect();
    let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|score| (score - most).exp()).collect();
    let sum: f64 = weights.iter().sum();
    let mut out = vec![0.0; q.len()];
    for (weight, value) in weights.iter().zip(values) {
        for (out, value) in out.iter_mut().zip(value) {
            *out += weight / sum * f64::from(*value);
        }
    }
    out
}

/// Keys and values of some tokens into a cache.
pub(super) fn append(
    rt: &Runtime,
    cache: CacheType,
    tokens: usize,
    heads: Heads,
) -> anyhow::Result<Ready<'static>> {
    let mut kv = KvCache::new(rt, shape(cache, tokens, heads))?;
    let (keys, values) = keys_values(rt, tokens, heads)?;
    kv.append(0, &keys, &values)?;
    kv.advance(tokens)?;
    let mut pairs = Vec::new();
    for (stored, of) in kv.stored(0)?.into_iter().zip([&keys, &values]) {
        let mut decoded = vec![0.0; of.len()];
        cache.dtype().decode(stored, &mut decoded)?;
        pairs.extend(decoded.into_iter().zip(of.data::<f32>()?.iter().map(|x| f64::from(*x))));
    }
    let stored: usize = kv.shape().row_bytes().unwrap_or_default().iter().sum();
    let bytes = tokens * stored + 4 * (keys.len() + values.len());
    Ok(Ready {
        call: Box::new(move || {
            kv.truncate(0);
            Ok(kv.append(0, &keys, &values)?)
        }),
        operations: 0.0,
        bytes: size(bytes),
        in_turns: size(bytes),
        eight_bits: false,
        kernel: rt.isa().name().to_owned(),
        error: relative_rms(pairs),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::ops::runtime;

    #[test]
    fn attention_agrees_with_f64_and_a_cache_with_its_format() {
        let rt = runtime(Some(2)).unwrap();
        let heads = Heads { queries: 4, keys: 2, dim: 32 };
        for cache in [CacheType::F16, CacheType::Q8_0] {
            let mut ready = attend(&rt, cache, (3, 40), heads).unwrap();
            (ready.call)().unwrap();
            // The sums are over 40 positions in f32, and the exponential is good to a few units
            // in the last place: 40 times 2^-24 and some.
            assert!(ready.error < 2e-5, "{cache}: {}", ready.error);
            // Three queries see 38, 39 and 40 positions.
            assert_eq!(ready.operations, 4.0 * 117.0 * 4.0 * 32.0);
            let mut append = append(&rt, cache, 5, heads).unwrap();
            (append.call)().unwrap();
            // Half a unit in the last of 11 bits, and half a step of 1/127 of the largest.
            let most = if cache == CacheType::F16 { 1.0 / 2048.0 } else { 1.0 / 127.0 };
            assert!(append.error > 0.0 && append.error < most, "{cache}: {}", append.error);
        }
    }

    #[test]
    fn a_query_with_two_keys_by_hand() {
        // Scores 0 and ln 3: weights 1/4 and 3/4.
        let keys = [vec![0.0], vec![3f32.ln()]];
        let out = one_query(&[1.0], &keys, &[vec![4.0], vec![8.0]], 1.0);
        assert!((out[0] - 7.0).abs() < 1e-6, "{out:?}");
    }
}
