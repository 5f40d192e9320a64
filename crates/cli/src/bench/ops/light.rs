//! What reads each element a few times.

use fucina::{Activation, DType, DynTensor, Pairing, RopeConfig, RopeTable, Runtime, Scaling};

use super::args::Place;
use super::cases::{Light, ROPE_DIM};
use super::linear::{self, Shelf, size};
use super::measure::{Ready, relative_rms};
use crate::bench::operands::{Random, activations};

/// Columns of the product that [`Light::Quantize`] is: one panel.
const PANEL: usize = 16;

const EPS: f32 = 1e-6;
/// Factor of the scores of a softmax.
const SCALE: f32 = 8.0;
const BASE: f32 = 10_000.0;

/// Rows of values.
struct Rows {
    values: Vec<f32>,
    cols: usize,
}

impl Rows {
    fn new(rows: usize, cols: usize, seed: usize) -> Self {
        Self { values: activations(rows, cols, seed), cols }
    }

    fn f64(&self) -> impl Iterator<Item = Vec<f64>> {
        self.values.chunks_exact(self.cols).map(|row| row.iter().map(|x| f64::from(*x)).collect())
    }
}

pub(super) fn ready(
    rt: &Runtime,
    what: Light,
    rows: usize,
    cols: usize,
) -> anyhow::Result<Ready<'static>> {
    match what {
        Light::RmsNorm => rms_norm(rt, rows, cols),
        Light::Rope => rope(rt, rows, cols),
        Light::Softmax => softmax(rt, rows, cols),
        Light::Add | Light::SwiGlu => pair(rt, what, rows, cols),
        Light::Quantize => quantize(rt, rows, cols),
        Light::TopK(k) => top_k(rt, k, rows, cols),
    }
}

/// A call that reads `read` f32 and writes `written`, all of which stay in a cache.
fn moving(
    rt: &Runtime,
    read: usize,
    written: usize,
    error: f64,
    mut call: impl FnMut() -> fucina::Result<DynTensor> + 'static,
) -> Ready<'static> {
    Ready {
        call: Box::new(move || {
            call()?.wait()?;
            Ok(())
        }),
        operations: 0.0,
        bytes: size(4 * (read + written)),
        in_turns: size(4 * (read + written)),
        eight_bits: false,
        kernel: rt.isa().name().to_owned(),
        error,
    }
}

fn error(out: &DynTensor, want: impl Iterator<Item = Vec<f64>>) -> anyhow::Result<f64> {
    Ok(relative_rms(out.to_vec()?.into_iter().zip(want.flatten())))
}

fn rms_norm(rt: &Runtime, rows: usize, cols: usize) -> anyhow::Result<Ready<'static>> {
    let (input, factors) = (Rows::new(rows, cols, 1), Rows::new(1, cols, 2));
    let x = rt.tensor(&[rows, cols], &input.values)?;
    let weight = rt.tensor(&[cols], &factors.values)?;
    let norm = move || x.rms_norm(Some(&weight), EPS);
    let want = input.f64().map(|row| {
        let mean = row.iter().map(|x| x * x).sum::<f64>() / size(cols);
        let root = (mean + f64::from(EPS)).sqrt();
        row.iter().zip(&factors.values).map(|(x, w)| x / root * f64::from(*w)).collect()
    });
    let error = error(&norm()?, want)?;
    Ok(moving(rt, rows * cols + cols, rows * cols, error, norm))
}

/// `rows` tokens with `heads` heads each.
fn rope(rt: &Runtime, rows: usize, heads: usize) -> anyhow::Result<Ready<'static>> {
    let input = Rows::new(rows * heads, ROPE_DIM, 1);
    let x = rt.tensor(&[rows, heads, ROPE_DIM], &input.values)?;
    let positions: Vec<i32> = (0..).take(rows).collect();
    let config =
        RopeConfig { dims: ROPE_DIM, base: BASE, freq_factors: None, scaling: Scaling::None };
    let table = RopeTable::new(rt, &config, &positions)?;
    let turn = move || x.rope(&table, Pairing::Halves);
    let half = ROPE_DIM / 2;
    let want = input.f64().enumerate().map(|(at, row)| {
        let position = size(at / heads);
        let mut out = row.clone();
        for pair in 0..half {
            let angle = position * f64::from(BASE).powf(-2.0 * size(pair) / size(ROPE_DIM));
            let (sin, cos) = angle.sin_cos();
            out[pair] = row[pair] * cos - row[pair + half] * sin;
            out[pair + half] = row[pair] * sin + row[pair + half] * cos;
        }
        out
    });
    let error = error(&turn()?, want)?;
    let elems = rows * heads * ROPE_DIM;
    Ok(moving(rt, elems + rows * ROPE_DIM, elems, error, turn))
}

fn softmax(rt: &Runtime, rows: usize, cols: usize) -> anyhow::Result<Ready<'static>> {
    let input = Rows::new(rows, cols, 1);
    let x = rt.tensor(&[rows, cols], &input.values)?;
    let softmax = move || x.softmax(SCALE);
    let want = input.f64().map(|row| {
        let scaled = row.iter().map(|x| f64::from(SCALE) * x);
        let most = scaled.clone().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scaled.map(|x| (x - most).exp()).collect();
        let sum: f64 = weights.iter().sum();
        weights.into_iter().map(|weight| weight / sum).collect()
    });
    let error = error(&softmax()?, want)?;
    Ok(moving(rt, rows * cols, rows * cols, error, softmax))
}

/// Two tensors of the same shape.
fn pair(rt: &Runtime, what: Light, rows: usize, cols: usize) -> anyhow::Result<Ready<'static>> {
    let (left, right) = (Rows::new(rows, cols, 1), Rows::new(rows, cols, 2));
    let a = rt.tensor(&[rows, cols], &left.values)?;
    let b = rt.tensor(&[rows, cols], &right.values)?;
    let is_sum = what == Light::Add;
    let call = move || if is_sum { a.add(&b) } else { a.glu(Activation::Silu, &b) };
    let one = |(a, b): (&f64, &f64)| if is_sum { a + b } else { a / (1.0 + (-a).exp()) * b };
    let want = left.f64().zip(right.f64()).map(|(a, b)| a.iter().zip(&b).map(one).collect());
    let error = error(&call()?, want)?;
    Ok(moving(rt, 2 * rows * cols, rows * cols, error, call))
}

/// A product with so few columns that the time is that of the activations' way to 8 bits.
fn quantize(rt: &Runtime, rows: usize, cols: usize) -> anyhow::Result<Ready<'static>> {
    let mut shelf = Shelf::new(Place::Cached);
    let shelved = shelf.get(rt, (DType::Q8_0, PANEL, cols))?;
    let product = linear::ready(rt, shelved, rows)?;
    let error = product.error;
    let x = rt.tensor(&[rows, cols], &activations(rows, cols, 1))?;
    let weights = shelved.copy(0);
    Ok(moving(rt, rows * cols, 0, error, move || x.matmul_t(&weights)))
}

fn top_k(rt: &Runtime, k: usize, rows: usize, cols: usize) -> anyhow::Result<Ready<'static>> {
    // Each value once, so that there is one right answer.
    let values = distinct(rows * cols);
    let x = rt.tensor(&[rows, cols], &values)?;
    let select = move || x.top_k(k).map(|(values, _)| values);
    let want = values.chunks_exact(cols).map(|row| {
        let mut sorted: Vec<f64> = row.iter().map(|x| f64::from(*x)).collect();
        sorted.sort_by(|a, b| b.total_cmp(a));
        sorted.truncate(k);
        sorted
    });
    let error = error(&select()?, want)?;
    Ok(moving(rt, rows * cols, 2 * rows * k, error, select))
}

/// The numbers below `count`, shuffled, as fractions of it.
#[expect(clippy::cast_precision_loss, reason = "below 2^24")]
fn distinct(count: usize) -> Vec<f32> {
    let mut values: Vec<f32> = (0..count).map(|at| at as f32 / count as f32).collect();
    let mut random = Random::new(count);
    for at in (1..count).rev() {
        values.swap(at, random.below(at + 1));
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::ops::runtime;

    #[test]
    fn every_call_agrees_with_f64() {
        let rt = runtime(Some(2)).unwrap();
        for (what, most) in [
            // A few roundings of 2^-24 each; sums over 64 elements in several lanes.
            (Light::RmsNorm, 1e-6),
            (Light::Rope, 1e-6),
            (Light::Softmax, 2e-6),
            (Light::Add, 1e-7),
            (Light::SwiGlu, 1e-6),
            // Half a step of 1/127: see the errors of products.
            (Light::Quantize, 8e-3),
            (Light::TopK(1), 1e-30),
            (Light::TopK(5), 1e-30),
        ] {
            let mut ready = ready(&rt, what, 3, 64).unwrap();
            (ready.call)().unwrap();
            assert!(ready.error < most, "{what:?}: {}", ready.error);
        }
    }
}
