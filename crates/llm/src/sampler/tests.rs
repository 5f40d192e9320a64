use fucina_testkit::Rng;

use super::{ConfigError, SampleError, Sampler, SamplerConfig};

fn sampler(config: SamplerConfig) -> Sampler {
    Sampler::new(config).unwrap()
}

/// Everything on its neutral setting, at temperature 1.
const NEUTRAL: SamplerConfig = SamplerConfig { temperature: 1.0, ..SamplerConfig::GREEDY };

/// The documented stages, written for clearness: sort everything, then cut.
fn exact(config: &SamplerConfig, history: &[u32], logits: &[f32]) -> Vec<(u32, f64)> {
    let start = history.len() - history.len().min(config.penalty_last_n);
    let mut ranked: Vec<(u32, f64)> = Vec::new();
    for (id, &logit) in (0u32..).zip(logits) {
        let count = history[start..].iter().filter(|&&token| token == id).count();
        let mut logit = logit;
        if count > 0 {
            if logit > 0.0 {
                logit /= config.repeat_penalty;
            } else {
                logit *= config.repeat_penalty;
            }
            logit -= count as f32 * config.frequency_penalty + config.presence_penalty;
        }
        ranked.push((id, f64::from(logit)));
    }
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    if config.temperature == 0.0 {
        return vec![(ranked[0].0, 1.0)];
    }
    if config.top_k > 0 {
        ranked.truncate(config.top_k);
    }
    let total: f64 = ranked.iter().map(|(_, logit)| logit.exp()).sum();
    let best = ranked[0].1.exp() / total;
    let mut sum = 0.0;
    let mut kept = Vec::new();
    for &(id, logit) in &ranked {
        let probability = logit.exp() / total;
        let before = sum;
        sum += probability;
        let in_top_p = kept.is_empty() || before < f64::from(config.top_p) || config.top_p == 1.0;
        if !in_top_p {
            break;
        }
        if probability >= f64::from(config.min_p) * best {
            kept.push((id, logit));
        }
    }
    let heat = |logit: f64| (logit / f64::from(config.temperature)).exp();
    let total: f64 = kept.iter().map(|&(_, logit)| heat(logit)).sum();
    kept.into_iter().map(|(id, logit)| (id, heat(logit) / total)).collect()
}

#[track_caller]
fn assert_same(mut got: Vec<(u32, f64)>, mut want: Vec<(u32, f64)>, label: &str) {
    got.sort_by_key(|&(id, _)| id);
    want.sort_by_key(|&(id, _)| id);
    let ids = |list: &[(u32, f64)]| list.iter().map(|&(id, _)| id).collect::<Vec<_>>();
    assert_eq!(ids(&got), ids(&want), "{label}");
    for (&(id, got), (_, want)) in got.iter().zip(want) {
        // Both sides round exp, a quotient and a sum in f64; logits are below 20, so exp carries
        // a relative error of some 20 units. 1e-12 is 4,500 units.
        assert!((got - want).abs() <= 1e-12, "{label}: token {id}: {got} and {want}");
    }
}

#[test]
fn every_combination_of_edge_settings_gives_the_exact_distribution() {
    let mut rng = Rng::new(3);
    let mut combinations = 0;
    for temperature in [0.0, 0.1, 1.0, 3.0] {
        for top_k in [0, 1, 3, 50, 1000] {
            for top_p in [0.0, 0.3, 0.9, 1.0] {
                for min_p in [0.0, 0.2, 1.0] {
                    for (repeat, frequency, presence) in
                        [(1.0, 0.0, 0.0), (1.5, 0.0, 0.0), (0.7, -0.5, 0.25), (1.0, 0.5, -0.5)]
                    {
                        let config = SamplerConfig {
                            temperature,
                            top_k,
                            top_p,
                            min_p,
                            repeat_penalty: repeat,
                            frequency_penalty: frequency,
                            presence_penalty: presence,
                            penalty_last_n: [0, 1, 5, usize::MAX][rng.below(4)],
                            seed: 1,
                        };
                        let len = [1, 2, 60, 700][rng.below(4)];
                        let logits = rng.normals(len, 3.0);
                        let history: Vec<u32> =
                            (0..8).map(|_| u32::try_from(rng.below(len + 2)).unwrap()).collect();
                        let mut sampler = sampler(config);
                        history.iter().for_each(|&token| sampler.accept(token));
                        let label = format!("{config:?}, {len} logits");
                        let want = exact(&config, &history, &logits);
                        assert_same(sampler.distribution(&logits).unwrap(), want.clone(), &label);
                        let token = sampler.sample(&logits).unwrap();
                        assert!(want.iter().any(|&(id, _)| id == token), "{label}");
                        combinations += 1;
                    }
                }
            }
        }
    }
    assert_eq!(combinations, 4 * 5 * 4 * 3 * 4);
}

/// Draws often and compares the counts with the distribution by Pearson's chi-square.
fn assert_drawn_as_distributed(config: SamplerConfig, logits: &[f32]) {
    let want = exact(&config, &[], logits);
    let draws = 40_000;
    let mut counts = vec![0u32; logits.len()];
    let mut sampler = sampler(config);
    for _ in 0..draws {
        counts[sampler.sample(logits).unwrap() as usize] += 1;
    }
    // The approximation needs at least five expected hits in a cell; the rest share one cell.
    let (mut statistic, mut cells) = (0.0, 0);
    let (mut rest, mut rest_hits) = (0.0, 0.0);
    let mut seen = 0;
    for &(id, probability) in &want {
        let expected = probability * f64::from(draws);
        let hits = f64::from(counts[id as usize]);
        seen += counts[id as usize];
        if expected < 5.0 {
            rest += expected;
            rest_hits += hits;
        } else {
            statistic += (hits - expected).powi(2) / expected;
            cells += 1;
        }
    }
    if rest >= 5.0 {
        statistic += (rest_hits - rest).powi(2) / rest;
        cells += 1;
    }
    assert_eq!(seen, draws, "a token outside the distribution was drawn");
    // Wilson and Hilferty's approximation of the quantile at 5 standard deviations, which a
    // right sampler exceeds once in 3.5 million seeds.
    let freedom = f64::from(cells - 1);
    let spread = 2.0 / (9.0 * freedom);
    let bound = freedom * (1.0 - spread + 5.0 * spread.sqrt()).powi(3);
    assert!(cells > 2 && statistic < bound, "{config:?}: {statistic} of {bound}, {cells} cells");
}

#[test]
fn draws_follow_the_distribution() {
    let logits = Rng::new(5).normals(100, 2.0);
    for seed in [1, 2] {
        let base = SamplerConfig { seed, ..NEUTRAL };
        for config in [
            base,
            SamplerConfig { temperature: 0.7, top_k: 10, ..base },
            SamplerConfig { temperature: 2.0, top_p: 0.8, ..base },
            SamplerConfig { temperature: 1.5, min_p: 0.1, ..base },
            SamplerConfig { seed, ..SamplerConfig::default() },
        ] {
            assert_drawn_as_distributed(config, &logits);
        }
    }
}

#[test]
fn a_seed_gives_one_sequence_and_reset_repeats_it() {
    let logits = Rng::new(9).normals(1000, 2.0);
    let run = |sampler: &mut Sampler| -> Vec<u32> {
        (0..50)
            .map(|_| {
                let token = sampler.sample(&logits).unwrap();
                sampler.accept(token);
                token
            })
            .collect()
    };
    let config = SamplerConfig { seed: 42, repeat_penalty: 1.1, ..SamplerConfig::default() };
    let mut first = sampler(config);
    let tokens = run(&mut first);
    assert_eq!(run(&mut sampler(config)), tokens);
    assert_ne!(run(&mut sampler(SamplerConfig { seed: 43, ..config })), tokens);
    assert_ne!(run(&mut first), tokens);
    first.reset();
    assert_eq!(run(&mut first), tokens);
}

#[test]
fn greedy_top_k_1_and_top_p_0_take_the_lowest_of_the_best() {
    let logits = [-1.0, 3.0, 0.0, 3.0, 3.0, 2.9];
    let config = NEUTRAL;
    for config in [
        SamplerConfig::GREEDY,
        SamplerConfig { temperature: 0.0, ..SamplerConfig::default() },
        SamplerConfig { top_k: 1, ..config },
        SamplerConfig { top_p: 0.0, ..config },
        SamplerConfig { top_p: 0.0, top_k: 4, ..config },
        SamplerConfig { temperature: f32::MAX, top_k: 1, ..config },
    ] {
        for seed in 0..20 {
            let config = SamplerConfig { seed, ..config };
            assert_eq!(sampler(config).sample(&logits), Ok(1), "{config:?}");
        }
    }
    // Equal zeros of either sign rank by id too.
    assert_eq!(sampler(SamplerConfig::GREEDY).sample(&[-0.0, 0.0]), Ok(0));
    assert_eq!(sampler(SamplerConfig { top_k: 1, ..config }).sample(&[-0.0, 0.0]), Ok(0));
}

#[test]
fn min_p_1_keeps_what_equals_the_best() {
    let logits = [1.0, 4.0, 4.0, 3.999, 4.0];
    let got = sampler(SamplerConfig { min_p: 1.0, ..NEUTRAL }).distribution(&logits).unwrap();
    assert_eq!(got, [(1, 1.0 / 3.0), (2, 1.0 / 3.0), (4, 1.0 / 3.0)]);
}

#[test]
fn extreme_temperatures_and_logits_are_harmless() {
    let logits = [f32::MAX, f32::MIN, 0.0, f32::MIN_POSITIVE];
    for temperature in [f32::MIN_POSITIVE, f32::from_bits(1), 1.0, f32::MAX] {
        for top_k in [0, 2] {
            let config = SamplerConfig { temperature, top_k, ..NEUTRAL };
            let got = sampler(config).distribution(&logits).unwrap();
            let total: f64 = got.iter().map(|&(_, probability)| probability).sum();
            assert!((total - 1.0).abs() < 1e-12, "{config:?}: {got:?}");
            sampler(config).sample(&logits).unwrap();
        }
    }
}

#[test]
fn penalties_that_overflow_leave_finite_logits() {
    let config = SamplerConfig {
        repeat_penalty: f32::MIN_POSITIVE,
        frequency_penalty: f32::MAX,
        presence_penalty: f32::MAX,
        penalty_last_n: 4,
        ..NEUTRAL
    };
    for config in [
        config,
        SamplerConfig { repeat_penalty: f32::MAX, ..config },
        SamplerConfig { frequency_penalty: f32::MIN, presence_penalty: f32::MIN, ..config },
        SamplerConfig { frequency_penalty: f32::MIN, presence_penalty: f32::MAX, ..config },
    ] {
        let mut sampler = sampler(config);
        for token in [0, 1, 1, 9] {
            sampler.accept(token);
        }
        let got = sampler.distribution(&[f32::MAX, f32::MIN, 0.5]).unwrap();
        assert!(got.iter().all(|&(_, probability)| probability.is_finite()), "{got:?}");
    }
}

#[test]
fn the_history_forgets_what_is_too_old() {
    let config =
        SamplerConfig { presence_penalty: 10.0, penalty_last_n: 2, ..SamplerConfig::GREEDY };
    let mut sampler = sampler(config);
    let logits = [3.0, 2.0, 1.0];
    let chosen = [(); 5].map(|()| {
        let token = sampler.sample(&logits).unwrap();
        sampler.accept(token);
        token
    });
    assert_eq!(chosen, [0, 1, 2, 0, 1]);
}

#[test]
fn logits_that_are_not_numbers_are_refused() {
    let mut sampler = sampler(SamplerConfig::default());
    assert_eq!(sampler.sample(&[]), Err(SampleError::Empty));
    for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for at in [0, 5, 99] {
            let mut logits = [0.5; 100];
            logits[at] = bad;
            let id = u32::try_from(at).unwrap();
            assert_eq!(sampler.sample(&logits), Err(SampleError::NotFinite { id }));
            assert_eq!(sampler.distribution(&logits), Err(SampleError::NotFinite { id }));
        }
    }
    sampler.sample(&[0.5; 100]).unwrap();
}

#[test]
fn settings_that_are_not_allowed_are_named() {
    type Field = fn(&mut SamplerConfig) -> &mut f32;
    let fields: [(&str, Field, &[f32], &[f32]); 6] = [
        ("temperature", |c| &mut c.temperature, &[0.0, 5.0, f32::MAX], &[-0.1]),
        ("top_p", |c| &mut c.top_p, &[0.0, 1.0], &[-0.1, 1.1]),
        ("min_p", |c| &mut c.min_p, &[0.0, 1.0], &[-0.1, 1.1]),
        ("repeat_penalty", |c| &mut c.repeat_penalty, &[0.1, 2.0], &[0.0, -1.0]),
        ("frequency_penalty", |c| &mut c.frequency_penalty, &[-2.0, 0.0, 2.0], &[]),
        ("presence_penalty", |c| &mut c.presence_penalty, &[-2.0, 0.0, 2.0], &[]),
    ];
    let never = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
    for (name, field, good, bad) in fields {
        let with = |value: f32| {
            let mut config = SamplerConfig::default();
            *field(&mut config) = value;
            Sampler::new(config).map(|_| ())
        };
        for &value in good {
            assert_eq!(with(value), Ok(()), "{name} {value}");
        }
        for &value in bad.iter().chain(&never) {
            let Err(ConfigError::NotAllowed { field, value: shown, .. }) = with(value) else {
                panic!("{name} {value} was accepted");
            };
            assert_eq!((field, shown), (name, value.to_string()));
        }
    }
}

#[test]
fn the_kth_best_is_found_in_any_order() {
    // Ascending, descending and all equal logits, and sizes around the buffer of the selection.
    for len in [2usize, 65, 66, 67, 68, 500, 5000] {
        let ascending: Vec<f32> = (0..len).map(|i| i as f32 / 100.0).collect();
        let descending: Vec<f32> = ascending.iter().rev().copied().collect();
        for logits in [ascending, descending, vec![1.0; len], Rng::new(1).normals(len, 1.0)] {
            for top_k in [1, 2, 64, len - 1, len] {
                let config = SamplerConfig { top_k, ..NEUTRAL };
                let label = format!("{top_k} of {len}");
                let got = sampler(config).distribution(&logits).unwrap();
                assert_same(got, exact(&config, &[], &logits), &label);
            }
        }
    }
}

#[test]
fn top_p_over_a_large_vocabulary_sorts_as_far_as_needed() {
    let logits = Rng::new(8).normals(20_000, 1.0);
    for top_p in [0.001, 0.1, 0.5, 0.99, 0.999_999] {
        let config = SamplerConfig { top_p, ..NEUTRAL };
        let got = sampler(config).distribution(&logits).unwrap();
        let want = exact(&config, &[], &logits);
        // Sums of many terms in another order may differ by a token where the goal falls.
        assert!(got.len().abs_diff(want.len()) <= 1, "{top_p}: {} {}", got.len(), want.len());
    }
}
