//! Activations to 8 bits: the record against its documentation, written apart from the codec.

use super::*;

/// Rows of many kinds, of lengths that do and do not fill blocks.
fn rows() -> Vec<Vec<f32>> {
    let mut rng = Rng::new(20);
    let mut rows: Vec<_> = [1, 31, 32, 33, 64, 100].map(|k| rng.normals(k, 1.0)).into();
    rows.extend([1e-44, 1e-38, 1.5e-36, 1e-30, 1e5, 1e38].map(|s| rng.normals(64, s)));
    rows.push(vec![0.0; 64]);
    rows.push(vec![-0.0; 32]);
    rows.push(vec![f32::MAX; 32]);
    rows.push((0..64u8).map(|i| f32::from(i) - 31.5).collect());
    rows.push((0..=254u8).map(|i| (f32::from(i) - 127.0) / 2.0).collect());
    rows
}

#[test]
fn every_version_gives_the_same_bits() {
    for row in rows() {
        let mut want = vec![u32::MAX; activation_len(row.len())];
        quantize_row(Isa::Scalar, &row, &mut want);
        for isa in Isa::available() {
            let mut got = vec![u32::MAX; want.len()];
            quantize_row(isa, &row, &mut got);
            assert_eq!(got, want, "{} {row:?}", isa.name());
        }
    }
}

/// An odd number of cache lines, so that rows do not compete for the same set of a cache.
#[test]
fn a_record_is_an_odd_number_of_blocks() {
    let blocks = [0, 1, 32, 33, 64, 65, 96, 4096].map(|k| activation_len(k) / 16);
    assert_eq!(blocks, [0, 1, 1, 3, 3, 3, 3, 129]);
    assert_eq!(activation_len(4096) % 16, 0);
}

#[test]
fn a_block_is_what_its_words_say() {
    for row in rows() {
        let mut record = vec![u32::MAX; activation_len(row.len())];
        quantize_row(Isa::best(), &row, &mut record);
        for (block, x) in record.chunks_exact(16).zip(row.chunks(32)) {
            let max = x.iter().fold(0f32, |max, x| max.max(x.abs()));
            let scale = f32::from_bits(block[8]);
            let flushed = max / 127.0 < f32::MIN_POSITIVE;
            assert_eq!(scale, if flushed { 0.0 } else { max / 127.0 });
            let quants: Vec<i32> = block[..8]
                .iter()
                .flat_map(|word| word.to_le_bytes())
                .map(|q| i32::from(q.cast_signed()))
                .collect();
            for (i, &q) in quants.iter().enumerate() {
                assert!(q.abs() <= 127);
                let x = f64::from(x.get(i).copied().unwrap_or(0.0));
                let error = (f64::from(scale) * f64::from(q) - x).abs();
                // Half a step, and the roundings of the step and its inverse.
                let step =
                    if flushed { 127.0 * f64::from(f32::MIN_POSITIVE) } else { f64::from(scale) };
                assert!(
                    error <= (0.5 + 1e-4) * step || (flushed && x.abs() <= step),
                    "{x}: {q} * {scale}"
                );
            }
            assert!(flushed || quants.iter().any(|q| q.abs() == 127), "the largest is not 127");
            let sums = [&quants[..], &quants[..16], &quants[16..]].map(|q| q.iter().sum::<i32>());
            for (i, sum) in sums.into_iter().enumerate() {
                assert_eq!(block[12 + i].cast_signed(), sum * [-16, -32, -32][i]);
                #[expect(clippy::cast_precision_loss, reason = "small")]
                let scaled = scale * sum as f32;
                assert_eq!(block[9 + i], scaled.to_bits());
            }
            assert_eq!(block[15].cast_signed(), -128 * sums[0]);
        }
        assert!(record[row.len().div_ceil(32) * 16..].iter().all(|&word| word == 0));
    }
}

/// Ties go to even, by hand: with a largest magnitude of 127 the step is 1.
#[test]
fn rounding_is_to_nearest_even() {
    let mut x = [0.0; 32];
    x[..8].copy_from_slice(&[127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0.499_999_97]);
    for isa in Isa::available() {
        let mut record = [u32::MAX; 16];
        quantize_row(isa, &x, &mut record);
        let quants = [record[0].to_le_bytes(), record[1].to_le_bytes()].concat();
        let quants: Vec<i8> = quants.into_iter().map(u8::cast_signed).collect();
        assert_eq!(quants, [127, 0, 2, 2, 0, -2, -2, 0], "{}", isa.name());
    }
}

#[test]
fn not_a_number_marks_its_block_only() {
    for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for at in 32..64 {
            let mut x = [1.0; 96];
            x[at] = bad;
            for isa in Isa::available() {
                let mut record = [u32::MAX; 48];
                quantize_row(isa, &x, &mut record);
                let nan = |word: usize| f32::from_bits(record[word]).is_nan();
                assert!((8..12).all(|word| !nan(word) && nan(16 + word) && !nan(32 + word)));
            }
        }
    }
}
