//! The rules of the contract, with one op that the provider offers.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use fucina_dtype::DType;

use super::{Check, PATIENCE, Report, Stop, ensure, offload, pool, threads};
use crate::call::{Binary, BinaryOp, Call, MatMul, Unary, UnaryOp};
use crate::error::OperandError;
use crate::operand::Operand;
use crate::pool::Pool;
use crate::provider::{Decline, Provider, submit};
use crate::storage::Storage;

/// Makes fresh providers.
pub(super) type Make<'m> = &'m dyn Fn() -> Arc<dyn Provider>;

/// An op of one operand of 64 f32 that is exact for small integers, in any order of additions and
/// with rounded operands.
#[derive(Debug, Clone, Copy)]
pub(super) enum Probe {
    /// Times a matrix that moves every column one to the left.
    MatMul,
    /// Plus one.
    Add,
    /// Times minus one.
    Neg,
}

/// Elements of an operand of a probe: an 8 by 8 matrix.
pub(super) const ELEMS: usize = 64;
const SIDE: usize = 8;
/// Bytes of an operand of a probe.
pub(super) const LEN_BYTES: usize = 4 * ELEMS;

impl From<OperandError> for Stop {
    fn from(error: OperandError) -> Self {
        Self::Fail(error.to_string())
    }
}

impl Probe {
    /// The other operand, which is constant.
    pub(super) fn constant(self) -> Storage {
        let value = |at: usize| match self {
            Self::MatMul => f32::from(u8::from(at % SIDE == (at / SIDE + 1) % SIDE)),
            Self::Add | Self::Neg => 1.0,
        };
        let bytes: Vec<u8> = (0..ELEMS).flat_map(|at| value(at).to_le_bytes()).collect();
        Storage::from_bytes(Bytes::from(bytes))
    }

    pub(super) fn call<'a>(self, x: &'a Storage, constant: &'a Storage) -> Result<Call<'a>, Stop> {
        let view = |storage| Operand::dense(storage, DType::F32, 0, &[1, SIDE, SIDE]);
        Ok(match self {
            Self::MatMul => Call::MatMul(MatMul { lhs: view(x)?, rhs: view(constant)? }),
            Self::Add => {
                Call::Binary(Binary { op: BinaryOp::Add, a: view(x)?, b: view(constant)? })
            }
            Self::Neg => Call::Unary(Unary { op: UnaryOp::Neg, x: view(x)? }),
        })
    }

    /// What the call computes.
    pub(super) fn host(self, x: &[f32]) -> Vec<f32> {
        let value = |at: usize| match self {
            Self::MatMul => x[at / SIDE * SIDE + (at + 1) % SIDE],
            Self::Add => x[at] + 1.0,
            Self::Neg => -x[at],
        };
        (0..ELEMS).map(value).collect()
    }

    /// Applies the op `times` times.
    pub(super) fn repeat(self, x: &[f32], times: usize) -> Vec<f32> {
        (0..times).fold(x.to_vec(), |x, _| self.host(&x))
    }
}

/// Small integers that depend on `seed`.
pub(super) fn integers(seed: usize) -> Vec<f32> {
    let value = |at: usize| u8::try_from((at * 7 + seed * 13) % 16).unwrap_or(0);
    (0..ELEMS).map(|at| f32::from(value(at)) - 8.0).collect()
}

pub(super) fn fill(storage: &mut Storage, values: &[f32]) -> Check {
    for (at, value) in storage.host_mut()?.as_chunks_mut::<4>().0.iter_mut().zip(values) {
        *at = value.to_le_bytes();
    }
    Ok(())
}

pub(super) fn filled(pool: &Pool, values: &[f32]) -> Result<Storage, Stop> {
    let mut storage = pool.take(4 * values.len())?;
    fill(&mut storage, values)?;
    Ok(storage)
}

/// Checks the bytes of a storage.
pub(super) fn expect(storage: &Storage, want: &[f32], what: &str) -> Check {
    let (chunks, _) = storage.host()?.as_chunks::<4>();
    let got: Vec<f32> = chunks.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
    ensure(got == want, || format!("{what}: {got:?}, not {want:?}"))
}

/// One check: a provider, a pool, and the op to use.
pub(super) type Rule = fn(&Arc<dyn Provider>, &Pool, Probe) -> Check;

const RULES: [(&str, Rule); 14] = [
    ("a result is there without a further call", result_arrives),
    ("a chain needs no host read", chain),
    ("calls share an input", shared_input),
    ("a write after the submission does not reach the command", mutation),
    ("a range write after the submission does not reach the command", range_mutation),
    ("a write to a result makes device copies stale", stale_copy),
    ("a consumer of more than was produced sees all bytes", range_rule),
    ("a decline leaves the output untouched", decline),
    ("many unread results", unread_results),
    ("operands and results are dropped at once and their memory reused", threads::drop_at_once),
    ("threads submit, read and drop", threads::many_threads),
    ("an output that was written before is written again", output_again),
    ("synchronize finishes what was submitted", synchronize),
    ("borrowed memory outlives the command, not longer", borrowed),
];

pub(super) fn check(make: Make<'_>, report: &mut Report) {
    let probe = match find_probe(make) {
        Ok(probe) => probe,
        Err(why) => return report.record("protocol", Err(why)),
    };
    for (name, rule) in RULES {
        let (provider, pool) = (make(), pool());
        let mut result = rule(&provider, &pool, probe);
        if result.is_ok() {
            drop(provider);
            result = nothing_left(&pool);
        }
        report.record(name, result);
    }
    report.record("results outlive the provider", outlives(make, probe));
    report.record("providers come and go", come_and_go(make, probe));
}

fn find_probe(make: Make<'_>) -> Result<Probe, Stop> {
    let mut last = Decline::UnsupportedOp;
    for probe in [Probe::MatMul, Probe::Add, Probe::Neg] {
        let (provider, pool, constant) = (make(), pool(), probe.constant());
        let x = filled(&pool, &integers(0))?;
        match offload(&*provider, &pool, &probe.call(&x, &constant)?) {
            Ok(_) => return Ok(probe),
            Err(Stop::Skip(why)) => last = why,
            Err(fail) => return Err(fail),
        }
    }
    Err(Stop::Skip(last))
}

/// Every storage is gone: nothing may be live, parked or leaked.
fn nothing_left(pool: &Pool) -> Check {
    let stats = pool.stats();
    ensure((stats.live, stats.parked, stats.leaked) == (0, 0, 0), || format!("left: {stats:?}"))
}

fn result_arrives(provider: &Arc<dyn Provider>, pool: &Pool, probe: Probe) -> Check {
    let (constant, x) = (probe.constant(), filled(pool, &integers(1))?);
    let out = offload(&**provider, pool, &probe.call(&x, &constant)?)?;
    let deadline = Instant::now() + PATIENCE;
    while !out.is_ready() {
        ensure(Instant::now() < deadline, || "it never became ready".to_owned())?;
        std::thread::yield_now();
    }
    out.wait()?;
    // Twice: the second read finds the bytes on the host.
    for _ in 0..2 {
        expect(&out, &probe.host(&integers(1)), "result")?;
    }
    expect(&x, &integers(1), "operand")
}

fn chain(provider: &Arc<dyn Provider>, pool: &Pool, probe: Probe) -> Check {
    let (constant, mut x) = (probe.constant(), filled(pool, &integers(2))?);
    for _ in 0..20 {
        x = offload(&**provider, pool, &probe.call(&x, &constant)?)?;
    }
    expect(&x, &probe.repeat(&integers(2), 20), "end of the chain")
}

fn shared_input(provider: &Arc<dyn Provider>, pool: &Pool, probe: Probe) -> Check {
    let (constant, x) = (probe.constant(), filled(pool, &integers(3))?);
    let call = probe.call(&x, &constant)?;
    let outs = [(); 3].map(|()| offload(&**provider, pool, &call));
    for out in outs {
        let out = out?;
        let next = offload(&**provider, pool, &probe.call(&out, &constant)?)?;
        expect(&out, &probe.host(&integers(3)), "result")?;
        expect(&next, &probe.repeat(&integers(3), 2), "result of the result")?;
    }
    Ok(())
}

fn mutation(provider: &Arc<dyn Provider>, pool: &Pool, probe: Probe) -> Check {
    let (constant, mut x) = (probe.constant(), filled(pool, &integers(0))?);
    for round in 0..50 {
        let out = offload(&**provider, pool, &probe.call(&x, &constant)?)?;
        fill(&mut x, &integers(round + 1))?;
        expect(&out, &probe.host(&integers(round)), "result")?;
    }
    Ok(())
}

fn range_mutation(provider: &Arc<dyn Provider>, pool: &Pool, probe: Probe) -> Check {
    let (constant, mut x) = (probe.constant(), filled(pool, &integers(0))?);
    let mut values = integers(0);
    for at in 0..ELEMS {
        let before = values.clone();
        let out = offload(&**provider, pool, &probe.call(&x, &constant)?)?;
        values[at] = 9.0;
        x.host_range_mut(4 * at..4 * at + 4)?.copy_from_slice(&9f32.to_le_bytes());
        expect(&out, &probe.host(&before), "result")?;
    }
    Ok(())
}

fn stale_copy(provider: &Arc<dyn Provider>, pool: &Pool, probe: Probe) -> Check {
    let (constant, x) = (probe.constant(), filled(pool, &integers(4))?);
    let mut y = offload(&**provider, pool, &probe.call(&x, &constant)?)?;
    fill(&mut y, &integers(5))?;
    let z = offload(&**provider, pool, &probe.call(&y, &constant)?)?;
    expect(&z, &probe.host(&integers(5)), "result")
}

fn range_rule(provider: &Arc<dyn Provider>, pool: &Pool, probe: Probe) -> Check {
    let (constant, x) = (probe.constant(), filled(pool, &integers(6))?);
    // The output is the front of twice as many elements.
    let old = [integers(7), integers(8)].concat();
    let (mut out, call) = (filled(pool, &old)?, probe.call(&x, &constant)?);
    out = submit(&**provider, &call, out).map_err(|(why, _)| Stop::Skip(why))?;
    let second = Operand::dense(&out, DType::F32, LEN_BYTES, &[1, SIDE, SIDE])?;
    let view = Operand::dense(&constant, DType::F32, 0, &[1, SIDE, SIDE])?;
    let call = match probe {
        Probe::MatMul => Call::MatMul(MatMul { lhs: second, rhs: view }),
        Probe::Add => Call::Binary(Binary { op: BinaryOp::Add, a: second, b: view }),
        Probe::Neg => Call::Unary(Unary { op: UnaryOp::Neg, x: second }),
    };
    let next = offload(&**provider, pool, &call)?;
    expect(&next, &probe.host(&integers(8)), "result of the untouched half")?;
    expect(&out, &[probe.host(&integers(6)), integers(8)].concat(), "both halves")
}

/// Fills the provider to its bound, if it has one that can be seen.
fn decline(provider: &Arc<dyn Provider>, pool: &Pool, probe: Probe) -> Check {
    let (constant, x) = (probe.constant(), filled(pool, &integers(9))?);
    let call = probe.call(&x, &constant)?;
    let mut outs = Vec::new();
    let mut declined = None;
    for _ in 0..10_000 {
        match submit(&**provider, &call, filled(pool, &integers(1))?) {
            Ok(out) => outs.push(out),
            Err(why) => {
                declined = Some(why);
                break;
            }
        }
    }
    for out in &outs {
        expect(out, &probe.host(&integers(9)), "result")?;
    }
    let Some((_, out)) = declined else { return Ok(()) };
    ensure(out.writer().is_none() && out.is_on_host(), || "a writer was installed".to_owned())?;
    expect(&out, &integers(1), "output after a decline")
}

fn unread_results(provider: &Arc<dyn Provider>, pool: &Pool, probe: Probe) -> Check {
    let constant = probe.constant();
    let mut outs = Vec::new();
    for i in 0..100 {
        let x = filled(pool, &integers(i))?;
        outs.push(offload(&**provider, pool, &probe.call(&x, &constant)?)?);
    }
    for (i, out) in outs.iter().enumerate().rev() {
        expect(out, &probe.host(&integers(i)), "result")?;
    }
    Ok(())
}

fn output_again(provider: &Arc<dyn Provider>, pool: &Pool, probe: Probe) -> Check {
    let constant = probe.constant();
    let (x, y) = (filled(pool, &integers(1))?, filled(pool, &integers(2))?);
    for _ in 0..20 {
        let out = offload(&**provider, pool, &probe.call(&x, &constant)?)?;
        let reader = offload(&**provider, pool, &probe.call(&out, &constant)?)?;
        let out = match submit(&**provider, &probe.call(&y, &constant)?, out) {
            Ok(out) => out,
            Err((_, back)) => {
                expect(&back, &probe.host(&integers(1)), "output after a decline")?;
                continue;
            }
        };
        expect(&out, &probe.host(&integers(2)), "second result")?;
        expect(&reader, &probe.repeat(&integers(1), 2), "reader of the first result")?;
    }
    Ok(())
}

fn synchronize(provider: &Arc<dyn Provider>, pool: &Pool, probe: Probe) -> Check {
    let (constant, x) = (probe.constant(), filled(pool, &integers(3))?);
    let call = probe.call(&x, &constant)?;
    let outs = [(); 4].map(|()| offload(&**provider, pool, &call));
    provider.synchronize();
    for out in outs {
        let out = out?;
        expect(&out, &probe.host(&integers(3)), "result")?;
    }
    let in_flight = provider.counters().in_flight;
    ensure(in_flight == 0, || format!("{in_flight} commands in flight"))
}

fn borrowed(provider: &Arc<dyn Provider>, pool: &Pool, probe: Probe) -> Check {
    let owner = Arc::new(());
    struct Owned(Vec<u8>, #[expect(dead_code, reason = "counts owners")] Arc<()>);
    impl AsRef<[u8]> for Owned {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    let bytes = integers(5).iter().flat_map(|x| x.to_le_bytes()).collect();
    let x = Storage::from_bytes(Bytes::from_owner(Owned(bytes, Arc::clone(&owner))));
    let constant = probe.constant();
    let out = offload(&**provider, pool, &probe.call(&x, &constant)?)?;
    drop(x);
    expect(&out, &probe.host(&integers(5)), "result")?;
    // What nobody's pool owns is freed by whoever looks at it next. Another thread of the process, such
    // as another suite, may be doing that right now, and has it in hand.
    let deadline = Instant::now() + PATIENCE;
    loop {
        pool.trim();
        if Arc::strong_count(&owner) == 1 {
            return Ok(());
        }
        ensure(Instant::now() < deadline, || "the memory is still held".to_owned())?;
        std::thread::yield_now();
    }
}

fn outlives(make: Make<'_>, probe: Probe) -> Check {
    let pool = pool();
    let (provider, constant) = (make(), probe.constant());
    let x = filled(&pool, &integers(4))?;
    let out = offload(&*provider, &pool, &probe.call(&x, &constant)?)?;
    drop(provider);
    expect(&out, &probe.host(&integers(4)), "result")?;
    drop((x, out));
    nothing_left(&pool)
}

fn come_and_go(make: Make<'_>, probe: Probe) -> Check {
    let (pool, constant) = (pool(), probe.constant());
    for round in 0..20 {
        let (provider, x) = (make(), filled(&pool, &integers(round))?);
        let out = offload(&*provider, &pool, &probe.call(&x, &constant)?)?;
        if round % 2 == 0 {
            expect(&out, &probe.host(&integers(round)), "result")?;
        }
    }
    nothing_left(&pool)
}
