use std::f64::consts::TAU;

use fucina_testkit::{Rng, assert_bits_equal};

use super::*;

const U: f64 = 1.0 / 16_777_216.0;

fn plain(dims: usize) -> RopeConfig<'static> {
    RopeConfig { dims, base: 10_000.0, freq_factors: None, scaling: Scaling::None }
}

fn yarn(factor: f32) -> Scaling {
    Scaling::Yarn {
        factor,
        original_context: 4096,
        ext_factor: 1.0,
        attn_factor: 1.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
    }
}

/// One row of both tables.
fn table(config: &RopeConfig<'_>, position: i32) -> (Vec<f32>, Vec<f32>) {
    let half = config.dims / 2;
    let (mut cos, mut sin) = (vec![f32::NAN; half], vec![f32::NAN; half]);
    angles(config, &[position], &mut cos, &mut sin);
    (cos, sin)
}

/// The angle per position of each pair and the factor of the table, read back from position 1.
fn read_back(config: &RopeConfig<'_>) -> (Vec<f64>, f64) {
    let (cos, sin) = table(config, 1);
    let pairs = cos.iter().zip(&sin).map(|(&c, &s)| (f64::from(c), f64::from(s)));
    let magnitude = pairs.clone().map(|(c, s)| c.hypot(s)).sum::<f64>() / cos.len() as f64;
    (pairs.map(|(c, s)| s.atan2(c)).collect(), magnitude)
}

/// Reading back loses the rounding of cosine and sine, each below u.
#[track_caller]
fn assert_angle(got: f64, want: f64) {
    assert!((got - want).abs() <= 2.0 * U, "angle {got}, want {want}");
}

#[test]
fn rotation_matches_complex_multiplication() {
    let mut rng = Rng::new(1);
    for d in (2..=70).chain([127, 128, 129, 256]) {
        for r in [0, 2, d / 4 * 2, d / 2 * 2] {
            let x = rng.normals(d, 1.0);
            let angles = rng.normals(r / 2, 3.0);
            let cos: Vec<f32> = angles.iter().map(|a| a.cos()).collect();
            let sin: Vec<f32> = angles.iter().map(|a| a.sin()).collect();
            for pairing in [Pairing::Interleaved, Pairing::Halves] {
                for isa in Isa::available() {
                    let mut out = vec![f32::NAN; d];
                    rotate(isa, &x, &cos, &sin, pairing, &mut out);
                    let label = format!("{} {pairing:?} d={d} r={r}", isa.name());
                    assert_bits_equal(&out[r..], &x[r..], &label);
                    for i in 0..r / 2 {
                        let (a, b) = match pairing {
                            Pairing::Interleaved => (2 * i, 2 * i + 1),
                            Pairing::Halves => (i, i + r / 2),
                        };
                        let (xa, xb) = (f64::from(x[a]), f64::from(x[b]));
                        let (c, s) = (f64::from(cos[i]), f64::from(sin[i]));
                        let want = [(a, xa * c - xb * s), (b, xa * s + xb * c)];
                        // Each product and their sum round once.
                        let bound = 2.01 * U * (xa.abs() + xb.abs());
                        for (at, want) in want {
                            let error = (f64::from(out[at]) - want).abs();
                            assert!(error <= bound, "{label}[{at}]: {} {want}", out[at]);
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn every_instruction_set_returns_the_same_bits() {
    let mut rng = Rng::new(2);
    for half in 1..=40 {
        let (x, cos, sin) =
            (rng.normals(2 * half, 1.0), rng.normals(half, 1.0), rng.normals(half, 1.0));
        for pairing in [Pairing::Interleaved, Pairing::Halves] {
            let run = |isa| {
                let mut out = vec![f32::NAN; 2 * half];
                rotate(isa, &x, &cos, &sin, pairing, &mut out);
                out
            };
            for isa in Isa::available() {
                assert_bits_equal(&run(isa), &run(Isa::Scalar), isa.name());
            }
        }
    }
}

#[test]
fn plain_angles_are_a_geometric_sequence() {
    // base^(-2i/8) with base 10^4: 1, 0.1, 0.01, 0.001.
    let (got, magnitude) = read_back(&plain(8));
    for (got, want) in got.iter().zip([1.0, 0.1, 0.01, 0.001]) {
        assert_angle(*got, want);
    }
    assert!((magnitude - 1.0).abs() < U);
}

#[test]
fn far_positions_keep_their_precision() {
    // An f32 product would be off by 1e-2 radians here.
    for position in [1_000_003, 131_071, -5] {
        let (cos, sin) = table(&plain(4), position);
        for (i, frequency) in [1.0, 0.01].into_iter().enumerate() {
            // Reduced by whole turns first, so that this does not repeat what the kernel does.
            let angle = (f64::from(position) * frequency).rem_euclid(TAU);
            // Half a unit of rounding, and the f64 reduction (1e6 * 2^-52).
            assert!((f64::from(cos[i]) - angle.cos()).abs() < U / 2.0 + 1e-9);
            assert!((f64::from(sin[i]) - angle.sin()).abs() < U / 2.0 + 1e-9);
        }
    }
}

#[test]
fn tables_hold_one_row_for_each_position() {
    let config = plain(6);
    let (mut cos, mut sin) = (vec![f32::NAN; 9], vec![f32::NAN; 9]);
    angles(&config, &[7, 0, 3], &mut cos, &mut sin);
    for (row, position) in [7, 0, 3].into_iter().enumerate() {
        let own = table(&config, position);
        assert_bits_equal(&cos[row * 3..][..3], &own.0, "cos");
        assert_bits_equal(&sin[row * 3..][..3], &own.1, "sin");
    }
    assert_eq!((cos[3], sin[3]), (1.0, 0.0));
}

#[test]
fn factors_divide_frequencies() {
    let factors = [1.0, 2.0, 8.0, 32.0];
    let config = RopeConfig { freq_factors: Some(&factors), ..plain(8) };
    for (got, want) in read_back(&config).0.iter().zip([1.0, 0.05, 0.00125, 0.000_031_25]) {
        assert_angle(*got, want);
    }
    let linear = RopeConfig { scaling: Scaling::Linear { factor: 4.0 }, ..plain(8) };
    for (got, want) in read_back(&linear).0.iter().zip([0.25, 0.025, 0.0025, 0.00025]) {
        assert_angle(*got, want);
    }
}

/// By hand for 64 dimensions, base 10^4 and 4096 positions: pair `i` makes
/// `4096 / (2 pi) * 10^(-i / 8)` turns, which is 32 at i = 10.47 and 1 at i = 22.51. So pairs up
/// to 10 are fast, pairs from 23 on are slow, and pair `10 + j` is `j / 13` slow.
#[test]
fn yarn_mixes_between_fast_and_slow_pairs() {
    let config = RopeConfig { scaling: yarn(8.0), ..plain(64) };
    let (got, magnitude) = read_back(&config);
    for (i, got) in got.iter().enumerate() {
        let plain = 10_f64.powf(-(i as f64) / 8.0);
        let slow = (i as f64 - 10.0).clamp(0.0, 13.0) / 13.0;
        assert_angle(*got, plain * (1.0 - slow) + plain / 8.0 * slow);
    }
    assert!((magnitude - 1.207_944_154).abs() < 2.0 * U, "1 + 0.1 ln 8, got {magnitude}");
}

#[test]
fn yarn_without_its_ramp_is_linear_and_its_factor_multiplies() {
    let Scaling::Yarn { factor, original_context, beta_fast, beta_slow, .. } = yarn(8.0) else {
        unreachable!("built above");
    };
    let (ext_factor, attn_factor) = (0.0, 1.5);
    let scaling =
        Scaling::Yarn { factor, original_context, ext_factor, attn_factor, beta_fast, beta_slow };
    let (got, magnitude) = read_back(&RopeConfig { scaling, ..plain(64) });
    let linear = RopeConfig { scaling: Scaling::Linear { factor: 8.0 }, ..plain(64) };
    for (got, want) in got.iter().zip(read_back(&linear).0) {
        assert_angle(*got, want);
    }
    assert!((magnitude - 1.5).abs() < 2.0 * U);
}

#[test]
#[should_panic(expected = "3 angles for a head of 5")]
fn more_angles_than_pairs_are_refused() {
    rotate(Isa::Scalar, &[0.0; 5], &[1.0; 3], &[0.0; 3], Pairing::Halves, &mut [0.0; 5]);
}
