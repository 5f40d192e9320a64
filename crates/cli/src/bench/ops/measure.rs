//! The samples of one call, and what they are compared with.

use std::time::{Duration, Instant};

use fucina::{Ceilings, Runtime};

use super::args::OpsArgs;
use super::cases::{Case, Op};
use super::linear::Shelf;
use super::row::{Limit, Row, Samples};
use super::{attention, light, linear};

/// How long samples are taken where their number was not asked for, and how many at least and at
/// most.
const PATIENCE: Duration = Duration::from_millis(200);
const FEWEST: usize = 5;
const MOST: usize = 63;
/// Calls before any that counts.
const WARM_CALLS: usize = 3;

/// What is more than this in turns is read from memory, for all that a caller can know.
const CACHE_BYTES: f64 = (64 << 20) as f64;

/// A call that is ready to be made again and again.
pub(super) struct Ready<'a> {
    pub(super) call: Box<dyn FnMut() -> anyhow::Result<()> + 'a>,
    /// Multiplications and additions of one call. Zero where nobody counts them.
    pub(super) operations: f64,
    /// Bytes that one call must read and write.
    pub(super) bytes: f64,
    /// Bytes that calls read before one meets the same again.
    pub(super) in_turns: f64,
    /// Operations are on bytes.
    pub(super) eight_bits: bool,
    pub(super) kernel: String,
    /// Of some elements of the result against f64: root mean square, relative.
    pub(super) error: f64,
}

impl Ready<'_> {
    /// The shortest time that the ceilings allow, in seconds, and which of them does.
    fn floor(&self, ceilings: &Ceilings) -> (f64, Limit) {
        let is_cached = self.in_turns <= CACHE_BYTES;
        let (bandwidth, from) = if is_cached {
            (ceilings.cache, Limit::Cache)
        } else {
            (ceilings.memory, Limit::Memory)
        };
        let (rate, unit) =
            if self.eight_bits { (ceilings.int8, Limit::Int8) } else { (ceilings.f32, Limit::F32) };
        let (moving, computing) = (self.bytes / bandwidth, self.operations / rate);
        if moving >= computing { (moving, from) } else { (computing, unit) }
    }
}

/// Measures one call.
pub(super) fn row(
    rt: &Runtime,
    ceilings: &Ceilings,
    case: &Case,
    args: &OpsArgs,
    shelf: &mut Shelf,
) -> anyhow::Result<Row> {
    let mut ready = match case.op {
        Op::Linear { dtype, m, n, k } => linear::ready(rt, shelf.get(rt, (dtype, n, k))?, m)?,
        Op::Grouped { dtype, tokens, n, k } => linear::grouped(rt, dtype, tokens, [n, k])?,
        Op::Embed { dtype, tokens, n, k } => {
            linear::embed(rt, shelf.get(rt, (dtype, n, k))?, tokens)?
        }
        Op::Attention { cache, tokens, positions, heads } => {
            attention::attend(rt, cache, (tokens, positions), heads)?
        }
        Op::Append { cache, tokens, heads } => attention::append(rt, cache, tokens, heads)?,
        Op::Light { what, rows, cols } => light::ready(rt, what, rows, cols)?,
    };
    let samples = samples(&mut ready, args.iters)?;
    let (floor, limit) = ready.floor(ceilings);
    let [m, n, k] = case.op.sizes().map_or([None; 3], |sizes| sizes.map(Some));
    let seconds = samples.median() / 1e3;
    let rate = |count: f64| (count > 0.0).then_some(count / seconds / 1e9);
    Ok(Row {
        version: env!("CARGO_PKG_VERSION"),
        section: case.section.name(),
        case: case.name.clone(),
        format: case.op.format().map(fucina::DType::name),
        m,
        n,
        k,
        threads: rt.threads(),
        isa: rt.isa().name(),
        kernel: ready.kernel,
        weights: args.weights.name(),
        iters: samples.len(),
        ms: samples.median(),
        ms_p10: samples.quantile(0.1),
        ms_p90: samples.quantile(0.9),
        ms_min: samples.quantile(0.0),
        gflops: rate(ready.operations),
        gb_s: rate(ready.bytes),
        floor_ms: floor * 1e3,
        limit,
        share: floor / seconds,
        error: ready.error,
        samples_ns: samples.into_nanoseconds(),
    })
}

fn samples(ready: &mut Ready<'_>, iters: Option<usize>) -> anyhow::Result<Samples> {
    for _ in 0..WARM_CALLS {
        (ready.call)()?;
    }
    let (fewest, most) = iters.map_or((FEWEST, MOST), |iters| (iters, iters));
    let (begin, mut taken) = (Instant::now(), Vec::with_capacity(most));
    while taken.len() < fewest || (taken.len() < most && begin.elapsed() < PATIENCE) {
        let start = Instant::now();
        (ready.call)()?;
        taken.push(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX).max(1));
    }
    Ok(Samples::new(taken))
}

/// Root of the mean square difference of pairs of a result and what it should be, over that of
/// what they should be. A NaN is infinitely far.
pub(super) fn relative_rms(pairs: impl IntoIterator<Item = (f32, f64)>) -> f64 {
    let (mut errors, mut squares) = (0.0, 0.0);
    for (got, want) in pairs {
        let error = f64::from(got) - want;
        errors += if error.is_nan() { f64::INFINITY } else { error * error };
        squares += want * want;
    }
    if errors == 0.0 { 0.0 } else { (errors / squares.max(f64::MIN_POSITIVE)).sqrt() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::ops::runtime;

    fn ready(bytes: f64, operations: f64, in_turns: f64) -> Ready<'static> {
        Ready {
            call: Box::new(|| Ok(())),
            operations,
            bytes,
            in_turns,
            eight_bits: true,
            kernel: String::new(),
            error: 0.0,
        }
    }

    #[test]
    fn the_floor_is_that_of_the_ceiling_that_takes_longer() {
        let ceilings = runtime(Some(1)).unwrap().ceilings(1 << 20).unwrap();
        let far = 1e12;
        let cases = [
            (ready(ceilings.memory * 2.0, ceilings.int8, far), 2.0, Limit::Memory),
            (ready(ceilings.cache * 3.0, 0.0, 1.0), 3.0, Limit::Cache),
            (ready(ceilings.memory, ceilings.int8 * 5.0, far), 5.0, Limit::Int8),
            (Ready { eight_bits: false, ..ready(0.0, ceilings.f32 * 7.0, far) }, 7.0, Limit::F32),
        ];
        for (ready, seconds, limit) in cases {
            let (floor, by) = ready.floor(&ceilings);
            assert!((floor - seconds).abs() < 1e-9, "{floor} is not {seconds}");
            assert_eq!(by, limit);
        }
    }

    #[test]
    fn errors_are_relative_and_a_nan_is_infinitely_far() {
        assert_eq!(relative_rms([(1.0, 1.0), (-2.0, -2.0)]), 0.0);
        // By hand: sqrt(1 / (9 + 16)).
        assert_eq!(relative_rms([(3.0, 3.0), (5.0, 4.0)]), 0.2);
        assert_eq!(relative_rms([(f32::NAN, 1.0)]), f64::INFINITY);
        assert_eq!(relative_rms([(0.0, 0.0)]), 0.0);
    }

    #[test]
    fn samples_are_as_many_as_were_asked_for() {
        let mut calls = 0;
        let mut ready = ready(1.0, 1.0, 1.0);
        ready.call = Box::new(|| {
            calls += 1;
            Ok(())
        });
        assert_eq!(samples(&mut ready, Some(7)).unwrap().len(), 7);
        let few = samples(&mut ready, None).unwrap().len();
        assert!((FEWEST..=MOST).contains(&few));
        drop(ready);
        assert_eq!(calls, 7 + few + 2 * WARM_CALLS);
    }
}
