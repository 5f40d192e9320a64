use super::*;

/// Groups of many shapes: even, heavy-tailed, one-sided, constant, with an outlier, tiny.
fn groups<const N: usize>() -> Vec<[f32; N]> {
    let mut state = 0x9e37_79b9_u32;
    let mut uniform = move || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        f64::from(state) / f64::from(u32::MAX) * 2.0 - 1.0
    };
    #[expect(clippy::cast_possible_truncation, reason = "test values")]
    let mut shape = |kind: usize| {
        let mut x: [f32; N] = std::array::from_fn(|_| {
            let u = uniform();
            let value = match kind {
                0 => u,
                1 => u * u * u * 50.0,
                2 => u.abs() + 0.3,
                3 => -u.abs() - 0.3,
                4 => u * 1e-5,
                _ => 0.7,
            };
            value as f32
        });
        if kind == 1 {
            x[N / 2] = -77.0;
        }
        x
    };
    (0..60).map(|at| shape(at % 6)).collect()
}

#[test]
fn the_nearest_integer_is_even_at_ties() {
    for quarter in -4_000..=4_000_i16 {
        let value = f32::from(quarter) / 4.0;
        assert_eq!(real(nearest_int(value)), value.round_ties_even(), "{value}");
    }
    for value in [4_194_303.0_f32, -4_194_303.0, 4_194_302.0, 0.499_999_97, -0.0] {
        assert_eq!(real(nearest_int(value)), value.round_ties_even(), "{value}");
    }
    // No panic, whatever comes out.
    for value in [f32::MAX, f32::MIN, f32::INFINITY, f32::NAN] {
        let _ = nearest_int(value);
    }
}

/// `sum of w * (scale * l - x)^2` in f64, with `w = x^2`.
fn symmetric_error(x: &[f32], scale: f64, quant: impl Fn(usize) -> f64) -> f64 {
    let terms = x.iter().enumerate().map(|(i, &x)| {
        let x = f64::from(x);
        x * x * (scale * quant(i) - x).powi(2)
    });
    terms.sum()
}

/// The search starts at the scale that puts the extreme on the last quant: it must not lose.
#[test]
fn symmetric_searches_are_no_worse_than_where_they_start() {
    for (half, search) in [
        (32, symmetric_grid::<16> as fn(&[f32; 16], i32) -> Scaled<16>),
        (4, symmetric_descent::<16>),
    ] {
        let mut better = 0;
        for x in groups::<16>() {
            let found = search(&x, half);
            let quant = |i: usize| f64::from(found.quants[i]) - f64::from(half);
            let error = symmetric_error(&x, found.scale.into(), quant);
            let step = f64::from(crate::encode::extreme(&x)) / -f64::from(half);
            let start = symmetric_error(&x, step, |i| {
                let nearest = (f64::from(x[i]) / step).round();
                nearest.clamp(-f64::from(half), f64::from(half - 1))
            });
            // Sums of 16 f32 products: 2^-20 of the squares that cancel in them.
            let rounding = symmetric_error(&x, 0.0, |_| 0.0) * 2f64.powi(-20);
            assert!(error <= start + rounding, "{error} > {start}: {x:?}");
            better += usize::from(error < 0.99 * start);
            let most = u8::try_from(2 * half - 1).unwrap();
            assert!(found.quants.iter().all(|&l| l <= most));
        }
        assert!(better > 20, "{better}: the search finds better scales for most groups");
    }
}

#[test]
fn the_affine_search_is_no_worse_than_the_range() {
    for score in [Score::Absolute, Score::Squared] {
        let candidates = Candidates { most: 15, first: -1.0, steps: 20, score };
        let mut better = 0;
        for x in groups::<32>() {
            let weights = x.map(|x| 0.1 + x.abs());
            let found = affine(&x, &weights, candidates);
            let error = |scale: f64, offset: f64, quants: &[f64]| -> f64 {
                let terms = x.iter().zip(&weights).zip(quants).map(|((&x, &w), l)| {
                    let difference = (scale * l - offset - f64::from(x)).abs();
                    let power = if matches!(score, Score::Absolute) { 1 } else { 2 };
                    f64::from(w) * difference.powi(power)
                });
                terms.sum()
            };
            let (min, max) = crate::encode::range(&x);
            let (min, max) = (f64::from(min.min(0.0)), f64::from(max));
            let step = (max - min) / 15.0;
            let plain = x.map(|x| {
                let l = (f64::from(x) - min) / step;
                if step == 0.0 { 0.0 } else { l.round().clamp(0.0, 15.0) }
            });
            let start = error(step, -min, &plain);
            let got = error(found.scale.into(), found.offset.into(), &found.quants.map(f64::from));
            // Errors are sums of 32 f32 terms, each with a few roundings of the largest value.
            let weight: f64 = weights.iter().map(|&w| f64::from(w)).sum();
            let rounding = weight * (max - min).max(1.0) * 2f64.powi(-20);
            assert!(got <= start + rounding, "{got} > {start}: {x:?}");
            assert!(found.offset >= 0.0 && found.scale >= 0.0);
            assert!(found.quants.iter().all(|&l| l <= 15));
            better += usize::from(got < 0.99 * start);
        }
        assert!(better > 20, "{better}: the search finds better lines for most groups");
    }
}

#[test]
fn requantizing_keeps_the_quants_of_a_group_without_scale() {
    let mut quants = [3, 1, 2];
    requantize(&[1.0, 2.0, 9.0], 0.0, 0.5, (0, 3), &mut quants);
    assert_eq!(quants, [3, 1, 2]);
    requantize(&[1.0, 2.0, 9.0], 1.0, 0.5, (0, 3), &mut quants);
    assert_eq!(quants, [2, 2, 3], "1.5 and 2.5 are ties and go to the even 2");
    requantize(&[-1.0, 2.0, -9.0], -1.0, 0.0, (-4, 3), &mut quants);
    assert_eq!(quants, [5, 2, 7]);
}
