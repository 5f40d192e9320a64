//! Against exponentials of the standard library, and the candidates against the stages that look at
//! every token.

use fucina_testkit::Rng;

use super::*;
use crate::sampler::SamplerConfig;
use crate::sampler::select::{self, Candidate};

fn highest(logits: &[f32]) -> f32 {
    logits.iter().copied().fold(f32::MIN, f32::max)
}

/// Vocabularies of many sizes: peaked, flat, with ties, and with logits far apart.
fn vocabularies(rng: &mut Rng) -> Vec<Vec<f32>> {
    let mut all = Vec::new();
    for len in [1, 2, 7, 8, 9, 255, 256, 257, 1023, 1024, 1025, 5000, 20_001] {
        for spread in [0.0, 0.01, 1.0, 4.0, 1e3, 1e37] {
            all.push(rng.normals(len, spread));
        }
        all.push(rng.normals(len, 3.0).into_iter().map(f32::round).collect());
    }
    all
}

#[test]
fn an_exponential_is_as_near_as_it_says() {
    for step in 0..=700_000 {
        let x = -f64::from(step) / 1000.0;
        let error = (exp(x) / x.exp() - 1.0).abs();
        assert!(error < 7.6e-9, "{x}: {error:e}");
    }
}

#[test]
fn a_sum_is_as_near_as_it_says() {
    let mut rng = Rng::new(1);
    for logits in vocabularies(&mut rng) {
        let best = highest(&logits);
        for temperature in [f32::from_bits(1), 1e-3, 0.7, 1.0, 30.0, f32::MAX] {
            let exact = |&logit: &f32| {
                ((f64::from(logit) - f64::from(best)) / f64::from(temperature)).exp()
            };
            let want: f64 = logits.iter().map(exact).sum();
            let got = total(Scale::new(best, temperature), &logits, &mut Vec::new()).unwrap();
            assert!((got - want).abs() <= ERROR * want, "{} {temperature}: {got}", logits.len());
        }
    }
    assert_eq!(total(Scale::new(0.0, 1.0), &vec![0.0; MOST + 1], &mut Vec::new()), None);
}

/// As [`crate::sampler::Sampler::sample`] draws among candidates.
fn drawn(logits: &[f32], best: f32, temperature: f32, part: f64) -> Option<usize> {
    let weight =
        |&logit: &f32| ((f64::from(logit) - f64::from(best)) / f64::from(temperature)).exp();
    let weights: Vec<f64> = logits.iter().map(weight).collect();
    let mut left = weights.iter().sum::<f64>() * part;
    weights.iter().position(|weight| {
        left -= weight;
        left < 0.0
    })
}

#[test]
fn what_is_found_is_what_is_drawn() {
    let mut rng = Rng::new(2);
    let (mut found, mut all) = (0, 0);
    for logits in vocabularies(&mut rng) {
        let best = highest(&logits);
        for temperature in [0.05, 1.0, 5.0] {
            for step in 0..24 {
                let part = f64::from(step) / 24.0 + f64::from(rng.normals(1, 1e-3)[0]).abs();
                let part = part.min(1.0 - f64::EPSILON);
                let scale = Scale::new(best, temperature);
                all += 1;
                let Some(id) = find(scale, &logits, part, &mut Vec::new()) else { continue };
                found += 1;
                let want = drawn(&logits, best, temperature, part);
                assert_eq!(Some(id as usize), want, "{} {temperature} {part}", logits.len());
            }
        }
    }
    assert!(found * 100 > all * 99, "{found} of {all}");
}

/// Both halves of a sum of equal weights: nobody can tell on which side a half is.
#[test]
fn what_is_not_certain_is_not_answered() {
    let scale = Scale::new(1.0, 1.0);
    assert_eq!(find(scale, &[1.0, 1.0], 0.5, &mut Vec::new()), None);
    assert_eq!(find(scale, &[1.0, 1.0], 0.5 - 1e-6, &mut Vec::new()), Some(0));
    assert_eq!(find(scale, &[1.0, 1.0], 0.5 + 1e-6, &mut Vec::new()), Some(1));
}

/// The stages as they are for a list of candidates.
fn slow(config: &SamplerConfig, logits: &[f32], best: f32) -> Vec<Candidate> {
    let mut kept: Vec<_> = select::all(logits).collect();
    if config.top_p < 1.0 {
        select::top_p(&mut kept, best, config.top_p, false);
    }
    if config.min_p > 0.0 {
        select::min_p(&mut kept, best, config.min_p);
    }
    kept
}

#[test]
fn the_fast_stages_keep_what_the_slow_ones_keep_in_the_same_order() {
    let mut rng = Rng::new(3);
    for logits in vocabularies(&mut rng) {
        let best = highest(&logits);
        for top_p in [0.0, 1e-6, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 1.0 - f32::EPSILON, 1.0] {
            for min_p in [0.0, 1e-6, 0.05, 0.5, 1.0] {
                let config = SamplerConfig { top_p, min_p, ..SamplerConfig::GREEDY };
                let (mut kept, mut work) = (Vec::new(), Vec::new());
                select::from_all(&config, &logits, best, &mut kept, &mut work);
                let want = slow(&config, &logits, best);
                assert!(kept == want, "{} tokens, {top_p} {min_p}", logits.len());
            }
        }
    }
}
