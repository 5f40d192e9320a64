//! Every format, every instruction set, against f64 arithmetic on the reference decoding.

use fucina_dtype::{DType, f16_to_f32};
use fucina_testkit::{Rng, golden_path};

use super::{
    PANEL_COLS, PackLayout, activation_len, matmul_panels, pack_panel, quantize_row, scratch_words,
    unpack_row,
};
use crate::dense::MatrixMut;
use crate::isa::Isa;

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod amx;
mod arrange;
mod edges;
mod layout;
mod plan;
mod quantize;

/// Where the quants are in a block of the file, and the f16 scales.
fn fields(dtype: DType) -> (std::ops::Range<usize>, &'static [usize]) {
    match dtype {
        DType::Q4_0 => (2..18, &[0]),
        DType::Q4_1 => (4..20, &[0, 2]),
        DType::Q5_0 => (2..22, &[0]),
        DType::Q5_1 => (4..24, &[0, 2]),
        DType::Q8_0 => (2..34, &[0]),
        DType::Q2_K => (16..80, &[80, 82]),
        DType::Q3_K => (0..96, &[108]),
        DType::Q4_K => (16..144, &[0, 2]),
        DType::Q5_K => (16..176, &[0, 2]),
        DType::Q6_K => (0..192, &[208]),
        DType::TQ2_0 => (0..64, &[64]),
        _ => unreachable!("{dtype} is not a block format"),
    }
}

fn has_minimums(dtype: DType) -> bool {
    matches!(dtype, DType::Q4_1 | DType::Q5_1 | DType::Q2_K | DType::Q4_K | DType::Q5_K)
}

/// A weight `[n, k]` of random bits, with finite scales of either sign.
struct Weight {
    layout: PackLayout,
    raw: Vec<u8>,
    packed: Vec<u8>,
    /// The reference decoding, `[n, k]`.
    decoded: Vec<f32>,
    /// The part of each element that does not depend on its quant: minus the minimum.
    constant: Vec<f32>,
}

impl Weight {
    fn random(dtype: DType, n: usize, k: usize, rng: &mut Rng) -> Self {
        let (_, bytes) = dtype.unit();
        let mut raw: Vec<u8> = Vec::new();
        raw.resize_with(n * dtype.row_bytes(k).unwrap(), || rng.next_i8().cast_unsigned());
        for block in raw.chunks_exact_mut(bytes) {
            for &at in fields(dtype).1 {
                // Exponents from subnormal to 2^-2, so that no sum overflows.
                let bits = u16::try_from(rng.below(13 << 10)).unwrap();
                let sign = u16::from(rng.next_i8() < 0) << 15;
                block[at..][..2].copy_from_slice(&(bits | sign).to_le_bytes());
            }
        }
        Self::new(dtype, n, k, raw)
    }

    fn new(dtype: DType, n: usize, k: usize, raw: Vec<u8>) -> Self {
        let layout = PackLayout::new(dtype, n, k).unwrap();
        let mut without_quants = raw.clone();
        for block in without_quants.chunks_exact_mut(dtype.unit().1) {
            block[fields(dtype).0].fill(0);
        }
        let decode = |raw: &[u8]| {
            let mut out = vec![f32::NAN; n * k];
            dtype.decode(raw, &mut out).unwrap();
            out
        };
        let constant = if has_minimums(dtype) { decode(&without_quants) } else { vec![0.0; n * k] };
        let packed = pack(&layout, &raw);
        Self { layout, decoded: decode(&raw), constant, raw, packed }
    }
}

/// Packs all rows into poisoned memory.
fn pack(layout: &PackLayout, raw: &[u8]) -> Vec<u8> {
    let mut packed = vec![0xff; layout.total_bytes()];
    if layout.k() == 0 {
        return packed;
    }
    let panels = packed.chunks_exact_mut(layout.panel_bytes());
    for (rows, panel) in raw.chunks(PANEL_COLS * layout.row_bytes()).zip(panels) {
        pack_panel(layout, rows, panel);
    }
    packed
}

/// Quantizes `[m, k]` into poisoned memory.
fn quantize(isa: Isa, x: &[f32], k: usize) -> Vec<u32> {
    let len = activation_len(k);
    let mut out = vec![u32::MAX; x.len() / k * len];
    for (x, out) in x.chunks_exact(k).zip(out.chunks_exact_mut(len)) {
        quantize_row(isa, x, out);
    }
    out
}

/// All panels; returns `[m, n]`.
fn matmul(isa: Isa, w: &Weight, x: &[u32], m: usize) -> Vec<f32> {
    run(isa, &w.layout, &w.packed, x, m)
}

/// The kernel as it is, with poisoned output and scratch. Returns `[m, n]`.
fn run(isa: Isa, layout: &PackLayout, panels: &[u8], x: &[u32], m: usize) -> Vec<f32> {
    let mut out = vec![f32::NAN; m * layout.n()];
    let mut scratch = vec![u32::MAX; scratch_words(layout.k())];
    let mut matrix = MatrixMut::new(&mut out, m, layout.n());
    matmul_panels(isa, layout, panels, x, &mut matrix, &mut scratch);
    out
}

/// A quantized row in f64, from scale and quants as [`super::quantize`] documents them.
fn dequantize(x: &[u32], k: usize) -> Vec<f64> {
    let mut out = Vec::new();
    for block in x.chunks_exact(16).take(k / 32) {
        let scale = f64::from(f32::from_bits(block[8]));
        let quants = block[..8].iter().flat_map(|word| word.to_le_bytes());
        out.extend(quants.map(|q| scale * f64::from(q.cast_signed())));
    }
    out
}

/// What the matrix product of `w` with rows `x` must be, and how far off it may be.
struct Oracle {
    value: f64,
    bound: f64,
}

/// f64 arithmetic on the reference decoding and the quantized activations.
///
/// The kernel adds `terms = k / group * (1 or 2)` products of an exact integer with factors
/// `scale * scale(x)`, or of a minimum with `scale(x) * sum(x)`. Each term carries at most 3
/// roundings of relative size `u = 2^-24` (one factor product, one product, none in the group
/// scale: 11 by 8 bits fit 24) and passes at most `terms` additions. So the error is at most
/// `(terms + 3) * u * sum |term|` to first order, and the reference decoding is itself rounded
/// once; second order is below 1 % of that here. A factor that underflows loses at most half of
/// the smallest subnormal, 2^-150, and the integer sum that it multiplies is below 2^20.
fn oracle(w: &Weight, row: usize, x: &[f64]) -> Oracle {
    let k = w.layout.k();
    let (mut value, mut magnitude) = (0.0, 0.0);
    for (i, &x) in x.iter().enumerate() {
        let (weight, constant) = (w.decoded[row * k + i], w.constant[row * k + i]);
        let (weight, constant) = (f64::from(weight), f64::from(constant));
        value += weight * x;
        magnitude += ((weight - constant).abs() + constant.abs()) * x.abs();
    }
    #[expect(clippy::cast_precision_loss, reason = "small")]
    let terms = (k / 16 * 2) as f64;
    let u = 2f64.powi(-24);
    Oracle { value, bound: 1.01 * (terms + 4.0) * u * magnitude + terms * 2f64.powi(-130) }
}

#[track_caller]
fn check(w: &Weight, m: usize, x: &[f32], label: &str) {
    let k = w.layout.k();
    let quantized = quantize(Isa::Scalar, x, k);
    for isa in Isa::available() {
        let label =
            format!("{label} {} {} [{m}, {}, {k}]", isa.name(), w.layout.dtype(), w.layout.n());
        assert_eq!(quantize(isa, x, k), quantized, "{label}: quantized activations");
        let out = matmul(isa, w, &quantized, m);
        for (r, out) in out.chunks_exact(w.layout.n()).enumerate() {
            let record = &quantized[r * activation_len(k)..][..activation_len(k)];
            let x_hat = dequantize(record, k);
            let x = &x[r * k..][..k];
            for (c, &got) in out.iter().enumerate() {
                let want = oracle(w, c, &x_hat);
                let error = (f64::from(got) - want.value).abs();
                assert!(error <= want.bound, "{label} at [{r}, {c}]: {got}, want {}", want.value);
                let (exact, slack) = against_exact(&w.decoded[c * k..][..k], x, record);
                let error = (f64::from(got) - exact).abs();
                assert!(error <= slack + want.bound, "{label} at [{r}, {c}]: {got}, exact {exact}");
            }
        }
    }
}

/// The product with the unquantized activations, and what quantizing them may change.
///
/// An activation moves by at most half a step. The step, `max / 127`, and the factor that maps to
/// quants, `127 / max`, are each rounded once, and so is their product with `x`, of at most 127:
/// `127 * 3 * 2^-24 < 1e-4` of a step on top. A block whose step would be subnormal becomes zero:
/// `127 * f32::MIN_POSITIVE` for each element.
fn against_exact(w: &[f32], x: &[f32], record: &[u32]) -> (f64, f64) {
    let (mut exact, mut slack) = (0.0, 0.0);
    for (i, (&w, &x)) in w.iter().zip(x).enumerate() {
        let step = f64::from(f32::from_bits(record[i / 32 * 16 + 8]));
        let w = f64::from(w);
        exact += w * f64::from(x);
        let flushed = if step == 0.0 { 127.0 * f64::from(f32::MIN_POSITIVE) } else { 0.0 };
        slack += w.abs() * ((0.5 + 1e-4) * step + flushed);
    }
    (exact, slack)
}

fn block_formats() -> impl Iterator<Item = DType> {
    DType::BLOCK_FORMATS.iter().map(|info| info.dtype)
}
