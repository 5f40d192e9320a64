//! `Q8_0` blocks, as a key/value cache holds them.

use fucina_dtype::BlockQ8_0;

use super::scalar::{f16_bits, f16_value};
use crate::dispatch::recompile;
use crate::isa::Isa;

/// Elements of a block.
pub const Q8_0_ELEMS: usize = 32;
/// Bits of the scale of a block that cannot be held: every element is NaN.
const NAN: u16 = 0x7e00;

/// f32 to blocks: the bytes of [`fucina_dtype`]'s encoder. A block with a NaN, an infinity, or a
/// magnitude beyond what an f16 scale reaches (8.3e6) becomes NaN, all 32 elements of it.
///
/// Every instruction set returns the same bytes.
///
/// # Panics
///
/// Panics if `out` does not hold exactly the elements of `x`.
pub fn f32_to_q8_0(isa: Isa, x: &[f32], out: &mut [BlockQ8_0]) {
    let (blocks, rest) = x.as_chunks::<Q8_0_ELEMS>();
    assert!(rest.is_empty() && blocks.len() == out.len(), "x and out differ in length");
    recompile!(isa => encode, (blocks: &[[f32; Q8_0_ELEMS]], out: &mut [BlockQ8_0]));
}

/// Blocks to f32: `d * q`, exactly.
///
/// # Panics
///
/// Panics if `out` does not hold exactly the elements of `x`.
pub fn q8_0_to_f32(isa: Isa, x: &[BlockQ8_0], out: &mut [f32]) {
    let (blocks, rest) = out.as_chunks_mut::<Q8_0_ELEMS>();
    assert!(rest.is_empty() && blocks.len() == x.len(), "x and out differ in length");
    recompile!(isa => decode, (x: &[BlockQ8_0], blocks: &mut [[f32; Q8_0_ELEMS]]));
}

#[inline(always)]
fn encode(x: &[[f32; Q8_0_ELEMS]], out: &mut [BlockQ8_0]) {
    for (x, out) in x.iter().zip(out) {
        // Compared as integers, so that NaN is the largest.
        let bits = x.iter().map(|x| x.to_bits() & 0x7fff_ffff).fold(0, u32::max);
        let d = f32::from_bits(bits) / 127.0;
        let scale = f16_bits(d);
        // Infinity and NaN.
        if scale >= 0x7c00 {
            *out = BlockQ8_0 { d: NAN.into(), qs: [0; Q8_0_ELEMS] };
            continue;
        }
        let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
        out.d = scale.into();
        for (q, &x) in out.qs.iter_mut().zip(x) {
            #[expect(clippy::cast_possible_truncation, reason = "saturates; NaN becomes 0")]
            let quant = (x * inverse).round() as i8;
            *q = quant;
        }
    }
}

#[inline(always)]
fn decode(x: &[BlockQ8_0], out: &mut [[f32; Q8_0_ELEMS]]) {
    for (x, out) in x.iter().zip(out) {
        let d = f16_value(x.d.get());
        for (out, &q) in out.iter_mut().zip(&x.qs) {
            *out = d * f32::from(q);
        }
    }
}

#[cfg(test)]
mod tests {
    use fucina_dtype::DType;
    use fucina_testkit::Rng;
    use zerocopy::IntoBytes;

    use super::*;

    fn encoded(isa: Isa, x: &[f32]) -> Vec<BlockQ8_0> {
        let mut out = vec![BlockQ8_0 { d: 0x1234.into(), qs: [77; 32] }; x.len() / 32];
        f32_to_q8_0(isa, x, &mut out);
        out
    }

    /// The encoder of the format crate is written apart, and compared with ggml's bytes there.
    #[test]
    fn blocks_have_the_bytes_of_the_reference_encoder() {
        let mut rng = Rng::new(1);
        let mut blocks = vec![vec![0.0; 32], vec![-0.0; 32], vec![f32::MIN_POSITIVE; 32]];
        for scale in [1e-42, 1e-30, 1e-7, 3e-6, 1e-3, 1.0, 100.0, 6e4, 8.3e6 / 5.0] {
            for _ in 0..50 {
                blocks.push(rng.normals(32, scale));
            }
        }
        // Quants that lie halfway, and one element that dwarfs the others.
        blocks.push((0..32u8).map(|i| if i == 0 { 127.0 } else { f32::from(i) - 16.5 }).collect());
        blocks.push((0..32u8).map(|i| if i == 9 { -8.0e6 } else { f32::from(i) }).collect());
        for x in &blocks {
            let mut want = [0; 34];
            DType::Q8_0.encode(x, &mut want).unwrap();
            for isa in Isa::available() {
                assert_eq!(encoded(isa, x).as_bytes(), want, "{} {x:?}", isa.name());
            }
        }
    }

    #[test]
    fn what_no_block_can_hold_is_nan_and_stays_in_its_block() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e7, -3e38] {
            for at in [32, 40, 63] {
                let mut x = vec![1.0; 96];
                x[at] = bad;
                for isa in Isa::available() {
                    let mut back = vec![0.0; 96];
                    q8_0_to_f32(isa, &encoded(isa, &x), &mut back);
                    assert!(back[32..64].iter().all(|x| x.is_nan()), "{}: {bad}", isa.name());
                    assert!(back[..32].iter().chain(&back[64..]).all(|x| x.is_finite()));
                }
            }
        }
    }

    #[test]
    fn decoding_is_exact() {
        let mut rng = Rng::new(2);
        for _ in 0..200 {
            let d = u16::try_from(rng.next_u64() >> 48).unwrap() & 0x7bff;
            let block = BlockQ8_0 { d: d.into(), qs: std::array::from_fn(|_| rng.next_i8()) };
            for isa in Isa::available() {
                let mut out = [f32::NAN; 32];
                q8_0_to_f32(isa, &[block], &mut out);
                for (&got, &q) in out.iter().zip(&block.qs) {
                    let want = half::f16::from_bits(d).to_f64() * f64::from(q);
                    assert_eq!(f64::from(got), want, "{}", isa.name());
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "differ in length")]
    fn a_part_of_a_block_is_refused() {
        encoded(Isa::Scalar, &[1.0; 33]);
    }
}
