//! The rounds of one shape.
//!
//! Activations are written anew before every round, so that the device's copy of them is stale and
//! each call brings them over, as in a program. Weights stay where the first call has put them.

use std::time::Instant;

use fucina::route::{Kind, Query, Route, decide};
use fucina::{DynTensor, Memory, Offload};

use super::data::{Exactness, max_abs};
use super::row::{Moved, Row, Samples};
use super::shapes::Case;
use super::site::Site;
use crate::bench::operands::{Weights, activations};

/// Rounds of both sides before any that counts, after one of each kind.
const WARM_ROUNDS: usize = 4;

/// Most rows of weights that a second matrix is made for, which brings a chain back to `k`.
const MAX_CHAIN_COLS: usize = 65_536;

/// Operands on both sides.
struct Bench<'a> {
    site: &'a Site,
    case: &'a Case,
    weights: Weights,
    cpu_weights: DynTensor,
    gpu_weights: DynTensor,
    /// `[k, n]`: brings a result back to the size of the activations. The weights themselves if
    /// they are square; `None` if no format holds it.
    back: Option<DynTensor>,
    cpu_x: DynTensor,
    /// One for each call of the queue.
    xs: Vec<DynTensor>,
}

impl<'a> Bench<'a> {
    fn new(site: &'a Site, case: &'a Case, queue: usize) -> anyhow::Result<Self> {
        let Case { dtype, m, n, k, .. } = *case;
        let weights = Weights::random(dtype, n, k)?;
        let mut cpu_weights = weights.tensor(&site.cpu)?;
        cpu_weights.pack()?;
        let gpu_weights = weights.tensor(&site.gpu)?;
        let back = if n == k {
            Some(gpu_weights.clone())
        } else if n.is_multiple_of(dtype.unit().0) && n <= MAX_CHAIN_COLS {
            Some(Weights::random(dtype, k, n)?.tensor(&site.gpu)?)
        } else {
            None
        };
        let x = activations(m, k, 1);
        let xs = (0..queue).map(|at| site.gpu.tensor(&[m, k], &activations(m, k, at + 1)));
        let xs = xs.collect::<Result<_, _>>()?;
        let cpu_x = site.cpu.tensor(&[m, k], &x)?;
        Ok(Self { site, case, weights, cpu_weights, gpu_weights, back, cpu_x, xs })
    }

    /// Makes the device's copies of the activations stale, and of weights that are to be brought
    /// over for each call.
    fn renew(&mut self) -> anyhow::Result<()> {
        for x in &mut self.xs {
            x.data_mut::<f32>()?;
        }
        if self.case.transient {
            self.gpu_weights = self.weights.tensor(&self.site.gpu)?;
        }
        Ok(())
    }

    fn cpu(&self) -> anyhow::Result<u64> {
        let start = Instant::now();
        self.cpu_x.matmul_t(&self.cpu_weights)?.data::<f32>()?;
        Ok(since(start))
    }

    /// Submits, lets the device finish, and then reads.
    fn sync(&mut self) -> anyhow::Result<u64> {
        self.renew()?;
        let start = Instant::now();
        let out = self.xs[0].matmul_t(&self.gpu_weights)?;
        self.site.provider.synchronize();
        out.data::<f32>()?;
        Ok(since(start))
    }

    fn host_visible(&mut self) -> anyhow::Result<u64> {
        self.renew()?;
        let start = Instant::now();
        self.xs[0].matmul_t(&self.gpu_weights)?.data::<f32>()?;
        Ok(since(start))
    }

    /// Stops before the result is there.
    fn submit(&mut self) -> anyhow::Result<u64> {
        self.renew()?;
        let start = Instant::now();
        let out = self.xs[0].matmul_t(&self.gpu_weights)?;
        let time = since(start);
        out.data::<f32>()?;
        Ok(time)
    }

    /// All at once, then reads all.
    fn queue(&mut self) -> anyhow::Result<u64> {
        self.renew()?;
        let start = Instant::now();
        let outs = self.xs.iter().map(|x| x.matmul_t(&self.gpu_weights));
        let outs: Vec<_> = outs.collect::<Result<_, _>>()?;
        for out in outs {
            out.data::<f32>()?;
        }
        Ok(since(start))
    }

    /// As many calls as the queue has, each with the result of the one before, and their last
    /// result. With `stops` the host reads every one.
    fn chain(&mut self, stops: bool) -> anyhow::Result<Option<(u64, Vec<f32>)>> {
        self.renew()?;
        let Some(back) = &self.back else { return Ok(None) };
        let start = Instant::now();
        let mut x = self.xs[0].clone();
        for call in 0..self.xs.len() {
            x = x.matmul_t(if call % 2 == 0 { &self.gpu_weights } else { back })?;
            if stops {
                // A host write makes the device's copy stale: the next call brings it anew.
                x.data_mut::<f32>()?;
            }
        }
        x.data::<f32>()?;
        Ok(Some((since(start), x.to_vec()?)))
    }

    /// Bytes that one call moves, and a chain.
    fn moved(&mut self) -> anyhow::Result<Moved> {
        let provider = &self.site.provider;
        let before = provider.counters();
        self.host_visible()?;
        let between = provider.counters();
        let has_chain = self.chain(false)?.is_some();
        let after = provider.counters();
        let uploaded = after.uploaded_bytes - between.uploaded_bytes;
        let downloaded = after.downloaded_bytes - between.downloaded_bytes;
        Ok(Moved {
            uploaded_bytes: between.uploaded_bytes - before.uploaded_bytes,
            downloaded_bytes: between.downloaded_bytes - before.downloaded_bytes,
            chain_uploaded_bytes: has_chain.then_some(uploaded),
            chain_downloaded_bytes: has_chain.then_some(downloaded),
        })
    }

    fn warm_up(&mut self) -> anyhow::Result<()> {
        self.sync()?;
        self.queue()?;
        self.chain(false)?;
        for _ in 0..WARM_ROUNDS {
            self.cpu()?;
            self.host_visible()?;
        }
        Ok(())
    }

    fn samples(&mut self) -> anyhow::Result<Samples> {
        let mut samples = Samples::default();
        for round in 0..self.case.iters {
            if round % 2 == 0 {
                samples.cpu.push(self.cpu()?);
                samples.host_visible.push(self.host_visible()?);
            } else {
                samples.host_visible.push(self.host_visible()?);
                samples.cpu.push(self.cpu()?);
            }
            samples.sync.push(self.sync()?);
            samples.submit.push(self.submit()?);
            samples.queue.push(self.queue()?);
            samples.chain.extend(self.chain(false)?.map(|(time, _)| time));
        }
        Ok(samples)
    }

    fn gate(&self) -> &'static str {
        let Case { dtype, m, n, k, transient, .. } = *self.case;
        let unified = self.site.device.is_unified;
        let query = Query {
            kind: Kind::MatMul { m, n, k, rhs: dtype, resident: !transient },
            memory: if unified { Memory::Unified } else { Memory::Discrete },
            pending_input: false,
        };
        match decide(&query, Offload::Auto, self.site.gpu.gates()) {
            Route::Offload => "device",
            Route::Cpu(_) => "cpu",
        }
    }
}

fn since(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX).max(1)
}

/// Measures and compares one shape.
pub(super) fn row(
    bench: &'static str,
    site: &Site,
    case: &Case,
    queue: usize,
) -> anyhow::Result<Row> {
    let mut seen = 0;
    // What was declined before belongs to an earlier row.
    site.declined(&mut seen);
    let mut at = Bench::new(site, case, queue)?;
    let samples = if site.simulated {
        Samples::default()
    } else {
        at.warm_up()?;
        at.samples()?
    };
    let judged = judge(&mut at)?;
    let moved = at.moved()?;
    let notes: Vec<String> = judged.notes.into_iter().chain(site.declined(&mut seen)).collect();
    Ok(Row {
        version: env!("CARGO_PKG_VERSION"),
        bench,
        provider: site.provider.name(),
        device: site.device.name.clone(),
        simulated: site.simulated,
        isa: site.cpu.isa().name(),
        threads: site.cpu.threads(),
        shape: case.name.clone(),
        format: case.dtype.name(),
        m: case.m,
        n: case.n,
        k: case.k,
        iters: samples.cpu.len(),
        queue,
        resident: !case.transient,
        gate: at.gate(),
        times: samples.times(case.flops(), queue),
        moved,
        max_abs: judged.max_abs,
        tolerance: case.tolerance,
        cpu_error: judged.cpu.relative_rms,
        device_error: judged.gpu.relative_rms,
        device_error_of_bound: judged.gpu.of_bound,
        ok: notes.is_empty(),
        note: notes.join("; "),
        samples,
    })
}

/// How the results compare, and what is wrong with them.
struct Judged {
    max_abs: f64,
    cpu: Exactness,
    gpu: Exactness,
    notes: Vec<String>,
}

fn judge(at: &mut Bench<'_>) -> anyhow::Result<Judged> {
    let (case, mut notes) = (at.case, Vec::new());
    at.renew()?;
    let cpu = at.cpu_x.matmul_t(&at.cpu_weights)?.to_vec()?;
    let gpu = at.xs[0].matmul_t(&at.gpu_weights)?.to_vec()?;
    let x = at.cpu_x.data::<f32>()?;
    let max_abs = max_abs(&gpu, &cpu);
    if max_abs > case.tolerance {
        notes.push(format!("differs from the CPU by {max_abs:.1e}"));
    }
    let exactness = |out: &[f32]| Exactness::of(case, &at.weights, x, out);
    let (cpu, gpu) = (exactness(&cpu)?, exactness(&gpu)?);
    if gpu.of_bound > 1.0 {
        notes.push(format!("{:.1} times the bound from the sums in f64", gpu.of_bound));
    }
    let (stops, straight) = (at.chain(true)?, at.chain(false)?);
    if let (Some((_, stops)), Some((_, straight))) = (stops, straight) {
        let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() && a.is_finite();
        if !stops.iter().zip(&straight).all(same) {
            notes.push("a chain is not what its calls give one by one".to_owned());
        }
    }
    Ok(Judged { max_abs, cpu, gpu, notes })
}
