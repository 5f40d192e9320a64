//! Products and look-ups: everything with weights.

use anyhow::ensure;
use fucina::{DType, DynTensor, GroupRows, Groups, Runtime, cpu_kernel};

use super::CYCLE_BYTES;
use super::args::Place;
use super::cases::{EXPERTS, USED};
use super::measure::{Ready, relative_rms};
use crate::bench::operands::{Random, Weights, activations};

/// Most copies of a matrix. Those of a small one stay in a cache all the same.
const MAX_COPIES: usize = 128;
/// Elements of a result that are computed again in f64.
const SAMPLES: usize = 256;
/// Lists of rows that look-ups go through in turns.
const LISTS: usize = 64;

type Key = (DType, usize, usize);

/// The matrix of the last call, which the next one often has as well.
pub(super) struct Shelf {
    place: Place,
    last: Option<(Key, usize, Shelved)>,
}

/// A matrix `[n, k]`, and copies of it as calls use it.
pub(super) struct Shelved {
    weights: Weights,
    copies: Vec<DynTensor>,
}

impl Shelf {
    pub(super) const fn new(place: Place) -> Self {
        Self { place, last: None }
    }

    pub(super) fn get(&mut self, rt: &Runtime, key: Key) -> anyhow::Result<&Shelved> {
        // The copies belong to a runtime; a shelf serves one.
        let found =
            self.last.take().filter(|(of, threads, _)| (*of, *threads) == (key, rt.threads()));
        let (.., shelved) = self.last.insert(match found {
            Some(found) => found,
            None => (key, rt.threads(), Shelved::new(rt, key, self.place)?),
        });
        Ok(shelved)
    }
}

impl Shelved {
    fn new(rt: &Runtime, (dtype, n, k): Key, place: Place) -> anyhow::Result<Self> {
        let weights = Weights::random(dtype, n, k)?;
        let mut copies = vec![packed(weights.tensor(rt)?)?];
        let count = match place {
            Place::Cached => 1,
            Place::Cycled => CYCLE_BYTES.div_ceil(read_bytes(&copies[0]).max(1)).min(MAX_COPIES),
        };
        while copies.len() < count {
            // Packing makes bytes of its own; what is not packed is used where it lies.
            let is_packed = copies[0].packed_bytes() > 0;
            let more = if is_packed { weights.clone() } else { weights.copy()? };
            copies.push(packed(more.tensor(rt)?)?);
        }
        Ok(Self { weights, copies })
    }

    pub(super) fn copy(&self, at: usize) -> DynTensor {
        self.copies[at % self.copies.len()].clone()
    }

    fn in_turns(&self) -> f64 {
        size(read_bytes(&self.copies[0]) * self.copies.len())
    }
}

fn packed(mut weights: DynTensor) -> anyhow::Result<DynTensor> {
    weights.pack()?;
    Ok(weights)
}

/// Bytes that the kernel of a product reads.
fn read_bytes(weights: &DynTensor) -> usize {
    match weights.packed_bytes() {
        0 => weights.dtype().row_bytes(weights.len()).unwrap_or(0),
        packed => packed,
    }
}

#[expect(clippy::cast_precision_loss, reason = "a count far below 2^53")]
pub(super) fn size(count: usize) -> f64 {
    count as f64
}

/// `x[m, k]` times the matrix.
pub(super) fn ready<'a>(rt: &Runtime, shelved: &'a Shelved, m: usize) -> anyhow::Result<Ready<'a>> {
    let Weights { dtype, n, k, .. } = shelved.weights;
    let values = activations(m, k, 1);
    let x = rt.tensor(&[m, k], &values)?;
    let before = rt.trace().counters().kernels;
    let out = x.matmul_t(&shelved.copies[0])?.to_vec()?;
    let after = rt.trace().counters().kernels;
    // What ran where there was a choice, and why; else the kernel for the format.
    let chosen = after.iter().find(|&(key, calls)| before.get(key) != Some(calls));
    let own = cpu_kernel(dtype, rt.isa(), shelved.copies[0].packed_bytes() > 0);
    let kernel = match chosen {
        Some((&(_, kernel), _)) => kernel.replace("own kernel", &own),
        None => own,
    };
    let mut random = Random::new(out.len());
    let mut pairs = Vec::new();
    for _ in 0..SAMPLES.min(out.len()) {
        let (row, column) = (random.below(m), random.below(n));
        let want = dot(&values[row * k..][..k], &shelved.weights.row(column)?);
        pairs.push((out[row * n + column], want));
    }
    let mut copies = shelved.copies.iter().cycle();
    Ok(Ready {
        call: Box::new(move || {
            if let Some(weights) = copies.next() {
                x.matmul_t(weights)?.data::<f32>()?;
            }
            Ok(())
        }),
        operations: 2.0 * size(m) * size(n * k),
        bytes: size(read_bytes(&shelved.copies[0]) + 4 * (m * k + m * n)),
        in_turns: shelved.in_turns(),
        eight_bits: dtype.is_block(),
        kernel,
        error: relative_rms(pairs),
    })
}

fn dot(x: &[f32], weights: &[f32]) -> f64 {
    x.iter().zip(weights).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum()
}

/// Each token times the matrices of the experts that it chose.
pub(super) fn grouped(
    rt: &Runtime,
    dtype: DType,
    tokens: usize,
    [n, k]: [usize; 2],
) -> anyhow::Result<Ready<'static>> {
    let weights = Weights::random(dtype, EXPERTS * n, k)?;
    let experts = rt.tensor_from_bytes(dtype, &[EXPERTS, n, k], weights.bytes.clone())?;
    let experts = packed(experts)?;
    let choices = choices(tokens);
    let groups = Groups::new(&rt.tensor(&[tokens, USED], &choices)?, EXPERTS)?;
    let values = activations(tokens, k, 1);
    let x = rt.tensor(&[tokens, k], &values)?;
    let out = x.grouped_matmul_t(&experts, &groups, GroupRows::Tokens)?.to_vec()?;
    let (mut pairs, mut chosen) = (Vec::new(), 0);
    let mut random = Random::new(tokens);
    for expert in 0..EXPERTS {
        let is_chosen = |choice: &&i32| usize::try_from(**choice).is_ok_and(|id| id == expert);
        // The rows of an expert are those of the tokens that chose it, in their order.
        let callers: Vec<_> = (0..tokens)
            .filter(|t| choices[t * USED..][..USED].iter().any(|c| is_chosen(&c)))
            .collect();
        chosen += usize::from(!callers.is_empty());
        for (row, token) in groups.group(expert).zip(callers) {
            let column = random.below(n);
            let want = dot(&values[token * k..][..k], &weights.row(expert * n + column)?);
            pairs.push((out[row * n + column], want));
        }
    }
    ensure!(pairs.len() == tokens * USED, "every choice has a row");
    let rows = tokens * USED;
    let bytes = read_bytes(&experts) / EXPERTS * chosen;
    let is_packed = experts.packed_bytes() > 0;
    Ok(Ready {
        call: Box::new(move || {
            x.grouped_matmul_t(&experts, &groups, GroupRows::Tokens)?.data::<f32>()?;
            Ok(())
        }),
        operations: 2.0 * size(rows) * size(n * k),
        bytes: size(bytes + 4 * (tokens * k + rows * n)),
        in_turns: size(bytes),
        eight_bits: dtype.is_block(),
        kernel: cpu_kernel(dtype, rt.isa(), is_packed),
        error: relative_rms(pairs),
    })
}

/// [`USED`] different experts for each token.
fn choices(tokens: usize) -> Vec<i32> {
    let mut random = Random::new(tokens);
    let mut all = Vec::with_capacity(tokens * USED);
    for _ in 0..tokens {
        let first = all.len();
        while all.len() < first + USED {
            let expert = i32::try_from(random.below(EXPERTS)).unwrap_or(0);
            if !all[first..].contains(&expert) {
                all.push(expert);
            }
        }
    }
    all
}

/// Rows of the matrix that are looked up.
pub(super) fn embed<'a>(
    rt: &Runtime,
    shelved: &'a Shelved,
    tokens: usize,
) -> anyhow::Result<Ready<'a>> {
    let Weights { dtype, n, k, .. } = shelved.weights;
    let table = shelved.weights.tensor(rt)?;
    let mut random = Random::new(tokens);
    let mut lists = Vec::with_capacity(LISTS);
    for _ in 0..LISTS {
        let ids = (0..tokens).map(|_| i32::try_from(random.below(n)).unwrap_or(0));
        let ids: Vec<i32> = ids.collect();
        lists.push((rt.tensor(&[tokens], &ids)?, ids));
    }
    let out = table.rows(&lists[0].0)?.to_vec()?;
    let mut pairs = Vec::new();
    for (id, out) in lists[0].1.iter().zip(out.chunks_exact(k)) {
        let want = shelved.weights.row(usize::try_from(*id)?)?;
        pairs.extend(out.iter().copied().zip(want.into_iter().map(f64::from)));
    }
    let row_bytes = dtype.row_bytes(k).unwrap_or(0);
    let mut turns = lists.into_iter().map(|(ids, _)| ids).cycle();
    Ok(Ready {
        call: Box::new(move || {
            if let Some(ids) = turns.next() {
                table.rows(&ids)?.data::<f32>()?;
            }
            Ok(())
        }),
        operations: 0.0,
        bytes: size(tokens * (row_bytes + 4 * k)),
        in_turns: size(LISTS * tokens * row_bytes),
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
    fn copies_are_distinct_memory_and_a_shelf_keeps_the_last() {
        let rt = runtime(Some(1)).unwrap();
        let mut shelf = Shelf::new(Place::Cycled);
        for dtype in [DType::Q8_0, DType::F16] {
            let shelved = shelf.get(&rt, (dtype, 64, 64)).unwrap();
            // The cap: both are far below 256 MiB.
            assert_eq!(shelved.copies.len(), MAX_COPIES);
            let of = |at: usize| shelved.copies[at].storage().host().unwrap().as_ptr();
            let packed = shelved.copies[0].packed_bytes() > 0;
            assert_eq!(packed, dtype == DType::Q8_0);
            assert_eq!(of(0) == of(1), packed, "raw bytes are shared where panels are read");
            let first =
                std::ptr::from_ref(shelf.get(&rt, (dtype, 64, 64)).unwrap().weights.bytes.as_ref());
            assert_eq!(
                first,
                std::ptr::from_ref(shelf.get(&rt, (dtype, 64, 64)).unwrap().weights.bytes.as_ref())
            );
        }
        let one = Shelved::new(&rt, (DType::Q8_0, 64, 64), Place::Cached).unwrap();
        assert_eq!(one.copies.len(), 1);
    }

    #[test]
    fn errors_against_f64_are_those_of_the_format() {
        let rt = runtime(Some(2)).unwrap();
        let mut shelf = Shelf::new(Place::Cached);
        // Sums in f32 are off by less than (k + 1) 2^-24 of the magnitudes, which are about
        // sqrt(k) times the values; activations in 8 bits by half a step of 1/127 of the largest,
        // for values whose root mean square is 1/sqrt(3) of it: 1/127/sqrt(12)*sqrt(3) = 0.4 %.
        for (dtype, most) in [(DType::F32, 1e-4), (DType::F16, 1e-4), (DType::Q8_0, 8e-3)] {
            let shelved = shelf.get(&rt, (dtype, 96, 256)).unwrap();
            let mut ready = ready(&rt, shelved, 5).unwrap();
            (ready.call)().unwrap();
            assert!(ready.error < most, "{dtype}: {}", ready.error);
            assert!(ready.error > 0.0, "{dtype}: the sums differ in rounding");
        }
        let table = shelf.get(&rt, (DType::Q6_K, 96, 256)).unwrap();
        let mut embed = embed(&rt, table, 3).unwrap();
        (embed.call)().unwrap();
        assert!(embed.error < 1e-6, "{}", embed.error);
        let mut grouped = grouped(&rt, DType::Q8_0, 3, [32, 64]).unwrap();
        (grouped.call)().unwrap();
        assert!(grouped.error > 0.0 && grouped.error < 8e-3, "{}", grouped.error);
    }

    #[test]
    fn a_token_chooses_an_expert_once() {
        let all = choices(40);
        for choices in all.chunks(USED) {
            let mut sorted = choices.to_vec();
            sorted.sort_unstable();
            sorted.dedup();
            assert_eq!(sorted.len(), USED);
            assert!(sorted.iter().all(|id| usize::try_from(*id).is_ok_and(|id| id < EXPERTS)));
        }
    }
}
