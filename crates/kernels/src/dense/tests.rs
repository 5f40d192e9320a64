//! Streamed and blocked products against f64, and decoding.

use fucina_testkit::{DotOracle, Rng, assert_bits_equal};

use super::*;

const SCALARS: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// `len` random elements of a scalar type, as bytes after `shift` bytes of padding.
fn random_bytes(dtype: DType, len: usize, rng: &mut Rng, shift: usize) -> Vec<u8> {
    let mut bytes = vec![0xff; shift];
    for x in rng.normals(len, 1.0) {
        match dtype {
            DType::F16 => bytes.extend(half::f16::from_f32(x).to_le_bytes()),
            DType::BF16 => bytes.extend(half::bf16::from_f32(x).to_le_bytes()),
            _ => bytes.extend(x.to_le_bytes()),
        }
    }
    bytes
}

/// Runs the product on poisoned memory.
fn product(isa: Isa, w: Rows<'_>, x: &[f32], m: usize) -> Vec<f32> {
    let nr = w.bytes.len() / w.dtype.row_bytes(w.k).unwrap();
    let mut out = vec![f32::NAN; m * nr];
    let mut scratch = vec![f32::NAN; scratch_len(isa, w.dtype, (m, nr), w.k)];
    matmul_rows(isa, w, x, &mut out, &mut scratch);
    out
}

#[track_caller]
fn check(dtype: DType, (m, nr, k): (usize, usize, usize), rng: &mut Rng) {
    let bytes = random_bytes(dtype, nr * k, rng, 1);
    let w = Rows { dtype, k, bytes: &bytes[1..] };
    let x = rng.normals(m * k, 1.0);
    let mut decoded = vec![f32::NAN; nr * k];
    dtype.decode(w.bytes, &mut decoded).unwrap();
    for isa in Isa::available() {
        let out = product(isa, w, &x, m);
        let label = format!("{} {dtype} [{m}, {nr}, {k}]", isa.name());
        assert_product(&out, &decoded, &x, k, &label);
    }
}

/// `out` is `x * wᵀ`, within the bound of any order of additions.
#[track_caller]
fn assert_product(out: &[f32], w: &[f32], x: &[f32], k: usize, label: &str) {
    let nr = w.len() / k;
    assert_eq!(out.len(), x.len() / k * nr, "{label}");
    for (r, out) in out.chunks_exact(nr).enumerate() {
        for (c, &got) in out.iter().enumerate() {
            let oracle = DotOracle::new(&w[c * k..][..k], &x[r * k..][..k]);
            oracle.assert_close(got, &format!("{label} at [{r}, {c}]"));
        }
    }
}

#[test]
fn every_shape_around_a_tile_is_right() {
    let mut rng = Rng::new(1);
    for dtype in SCALARS {
        for m in (1..=9).chain([15, 16, 17, 24, 31, 32, 33, 44, 63, 64, 65]) {
            check(dtype, (m, 5, 37), &mut rng);
        }
        for nr in (1..=9).chain([15, 16, 17, 31, 32, 33, 40, 65]) {
            for m in [3, 33] {
                check(dtype, (m, nr, 32), &mut rng);
            }
        }
        for k in (1..=17).chain([31, 32, 33, 255, 256, 257]) {
            for m in [5, 33] {
                check(dtype, (m, 3, k), &mut rng);
            }
        }
    }
}

#[test]
fn block_formats_go_through_the_reference_decoding() {
    let mut rng = Rng::new(2);
    let (nr, k) = (2, 512);
    let cases = DType::BLOCK_FORMATS.iter().flat_map(|info| [(info.dtype, 3), (info.dtype, 33)]);
    for (dtype, m) in cases {
        // Words with small exponents, wherever the scales are: finite, and not all zero.
        let mut bytes = vec![0; nr * dtype.row_bytes(k).unwrap()];
        for pair in bytes.chunks_exact_mut(2) {
            pair.copy_from_slice(&[rng.next_i8().cast_unsigned(), 0x20]);
        }
        let mut decoded = vec![f32::NAN; nr * k];
        dtype.decode(&bytes, &mut decoded).unwrap();
        assert!(decoded.iter().any(|&w| w != 0.0), "{dtype}");
        let x = rng.normals(m * k, 1.0);
        for isa in Isa::available() {
            let out = product(isa, Rows { dtype, k, bytes: &bytes }, &x, m);
            assert_product(&out, &decoded, &x, k, &format!("{} {dtype} m={m}", isa.name()));
        }
    }
}

#[test]
fn empty_products_are_zero_or_empty() {
    for dtype in SCALARS {
        for isa in Isa::available() {
            let mut out = [f32::NAN; 6];
            matmul_rows(isa, Rows { dtype, k: 0, bytes: &[] }, &[], &mut out, &mut []);
            assert!(out.iter().all(|x| x.to_bits() == 0));
            matmul_rows(isa, Rows { dtype, k: 4, bytes: &[] }, &[1.0; 8], &mut [], &mut []);
        }
    }
}

/// A sum that leaves f16 far behind, and products beyond f16: everything is f32.
#[test]
fn sums_do_not_overflow_in_half_precision() {
    let k = 16384;
    for dtype in SCALARS {
        let bytes: Vec<u8> = match dtype {
            DType::F32 => 4f32.to_le_bytes().repeat(k),
            DType::F16 => 0x4400u16.to_le_bytes().repeat(k),
            _ => 0x4080u16.to_le_bytes().repeat(k),
        };
        for isa in Isa::available() {
            let w = Rows { dtype, k, bytes: &bytes };
            // Sums of powers of two: exact in f32.
            assert_eq!(product(isa, w, &vec![4.0; k], 1), [262_144.0], "{}", isa.name());
            assert_eq!(product(isa, w, &vec![65536.0; k], 1), [4_294_967_296.0]);
        }
    }
}

/// Weights and activations that are not finite, in a body and in a tail, for both paths.
#[test]
fn not_a_number_reaches_its_outputs_only() {
    let k = 37;
    for (dtype, nan, inf) in [
        (DType::F32, &[0, 0, 0xc0, 0x7f][..], &[0, 0, 0x80, 0x7f][..]),
        (DType::F16, &[1, 0x7c], &[0, 0x7c]),
        (DType::BF16, &[0x81, 0x7f], &[0x80, 0x7f]),
    ] {
        let size = nan.len();
        for (m, at) in [(3, 0), (3, 15), (3, 36), (33, 0), (33, 36)] {
            let mut bytes = random_bytes(dtype, 3 * k, &mut Rng::new(3), 0);
            bytes[at * size..][..size].copy_from_slice(nan);
            bytes[(k + at) * size..][..size].copy_from_slice(inf);
            let mut x = vec![1.0; m * k];
            x[k + at] = f32::NAN;
            for isa in Isa::available() {
                let out = product(isa, Rows { dtype, k, bytes: &bytes }, &x, m);
                let label = format!("{} {dtype} m={m} at {at}: {out:?}", isa.name());
                for (r, out) in out.chunks_exact(3).enumerate() {
                    assert!(out[0].is_nan() && out[2].is_nan() == (r == 1), "{label}");
                    assert!(
                        if r == 1 { out[1].is_nan() } else { out[1] == f32::INFINITY },
                        "{label}"
                    );
                }
            }
        }
    }
}

/// All 65536 values of both 16-bit types, at every alignment of a vector.
#[test]
fn decoding_gives_the_bits_of_the_reference() {
    for dtype in [DType::F16, DType::BF16] {
        let raw: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
        let mut want = vec![0.0; 1 << 16];
        dtype.decode(&raw, &mut want).unwrap();
        for isa in Isa::available() {
            for skip in [0, 1, 7, 15, 31] {
                let mut got = vec![f32::NAN; (1 << 16) - skip];
                decode_row(isa, dtype, &raw[2 * skip..], &mut got);
                // A signalling NaN may come out quiet.
                let quiet = |x: &f32| if x.is_nan() { f32::NAN } else { *x };
                let got: Vec<f32> = got.iter().map(quiet).collect();
                let want: Vec<f32> = want[skip..].iter().map(quiet).collect();
                assert_bits_equal(&got, &want, isa.name());
            }
        }
    }
}
