//! A block of experts, phase by phase: what goes up, what comes down, and how often the host waits.

use fucina::accel::{CpuReason, Decline, Outcome};
use fucina::{Activation, Config as Knobs, DType, DynTensor, GroupRows, Groups, Offload, Runtime};
use fucina_cuda_driver::control::{Config, Fail, Schedule};
use fucina_testkit::{DotOracle, Rng};

use crate::Rig;

const TOKENS: usize = 40;
const USED: usize = 2;
const EXPERTS: usize = 5;
const HIDDEN: usize = 256;
const INNER: usize = 256;
const ROWS: usize = TOKENS * USED;

/// The gates of experts open, and those of everything else as they are.
fn open_gates() -> Knobs {
    let mut knobs = Knobs::default();
    (knobs.offload, knobs.threads) = (Offload::Auto, Some(2));
    knobs.gates = [("FUCINA_GPU_MIN_WORK_QMOE", 1), ("FUCINA_GPU_QMOE_MIN_FILL", 0)].into();
    knobs
}

/// The weights of one layer, and what they decode to.
struct Block {
    gate: Weights,
    up: Weights,
    down: Weights,
    groups: Groups,
    choices: DynTensor,
}

struct Weights {
    tensor: DynTensor,
    values: Vec<f32>,
}

impl Weights {
    fn new(rt: &Runtime, dtype: DType, shape: [usize; 3], rng: &mut Rng) -> Self {
        let len = shape.iter().product();
        let mut bytes = vec![0; dtype.row_bytes(len).unwrap()];
        dtype.encode(&rng.normals(len, 0.1), &mut bytes).unwrap();
        let mut values = vec![0.0; len];
        dtype.decode(&bytes, &mut values).unwrap();
        let mut tensor = rt.tensor_from_bytes(dtype, &shape, bytes.into()).unwrap();
        tensor.pack().unwrap();
        Self { tensor, values }
    }
}

/// What a block computes on its way.
struct Phases {
    gate: DynTensor,
    up: DynTensor,
    inner: DynTensor,
    down: DynTensor,
    out: DynTensor,
}

impl Block {
    fn new(rt: &Runtime, [gate_up, down]: [DType; 2]) -> Self {
        let mut rng = Rng::new(3);
        let [up_shape, down_shape] = [[EXPERTS, INNER, HIDDEN], [EXPERTS, HIDDEN, INNER]];
        // One expert gets nothing, another one row.
        let chosen = |at: usize| match at {
            0 => 0,
            at => 1 + (at + at / USED) % (EXPERTS - 2),
        };
        let ids: Vec<i32> = (0..ROWS).map(|at| i32::try_from(chosen(at)).unwrap()).collect();
        let ids = rt.tensor(&[TOKENS, USED], &ids).unwrap();
        Self {
            gate: Weights::new(rt, gate_up, up_shape, &mut rng),
            up: Weights::new(rt, gate_up, up_shape, &mut rng),
            down: Weights::new(rt, down, down_shape, &mut rng),
            groups: Groups::new(&ids, EXPERTS).unwrap(),
            choices: rt.tensor(&[TOKENS, USED], &rng.normals(ROWS, 1.0)).unwrap(),
        }
    }

    /// Runs the products alone, so that their kernels and weights are on the device.
    fn warm(&self, rt: &Runtime) {
        let x = activation(rt, 9);
        for weights in [&self.gate, &self.up] {
            let out = x.grouped_matmul_t(&weights.tensor, &self.groups, GroupRows::Tokens);
            out.unwrap().wait().unwrap();
        }
        let inner = rt.tensor(&[ROWS, INNER], &Rng::new(8).normals(ROWS * INNER, 1.0)).unwrap();
        let out = inner.grouped_matmul_t(&self.down.tensor, &self.groups, GroupRows::Sorted);
        out.unwrap().wait().unwrap();
    }

    /// Runs the block; `look` is called between its phases.
    fn run(&self, x: &DynTensor, look: &mut dyn FnMut(&str)) -> Phases {
        let first = |w: &Weights| x.grouped_matmul_t(&w.tensor, &self.groups, GroupRows::Tokens);
        look("start");
        let (gate, up) = (first(&self.gate).unwrap(), first(&self.up).unwrap());
        look("gate and up");
        let inner = gate.glu(Activation::Silu, &up).unwrap();
        look("inner");
        let down = inner.grouped_matmul_t(&self.down.tensor, &self.groups, GroupRows::Sorted);
        let down = down.unwrap();
        look("down");
        let out = down.combine(&self.choices, &self.groups).unwrap();
        look("out");
        Phases { gate, up, inner, down, out }
    }

    /// Compares each product with f64, from the operands that it had.
    fn check(&self, x: &DynTensor, phases: &Phases, label: &str) {
        let x = x.to_vec().unwrap();
        let inner = phases.inner.to_vec().unwrap();
        let [gate, up, down] =
            [&phases.gate, &phases.up, &phases.down].map(|t| t.to_vec().unwrap());
        let mut sorted: Vec<(usize, usize)> = Vec::new();
        for expert in 0..EXPERTS {
            sorted.extend(self.groups.group(expert).map(|row| (expert, row)));
        }
        let tokens = self.tokens();
        for (expert, row) in sorted {
            let token = &x[tokens[row] * HIDDEN..][..HIDDEN];
            close(token, &self.gate, expert, &gate[row * INNER..][..INNER], label);
            close(token, &self.up, expert, &up[row * INNER..][..INNER], label);
            let inner = &inner[row * INNER..][..INNER];
            close(inner, &self.down, expert, &down[row * HIDDEN..][..HIDDEN], label);
        }
        self.check_elements(&tokens, phases, (&gate, &up), (&inner, &down));
    }

    /// The gated unit and the sum of each token's rows.
    fn check_elements(
        &self,
        tokens: &[usize],
        phases: &Phases,
        (gate, up): (&[f32], &[f32]),
        (inner, down): (&[f32], &[f32]),
    ) {
        for ((&gate, &up), &got) in gate.iter().zip(up).zip(inner) {
            let gate = f64::from(gate);
            let want = gate / (1.0 + (-gate).exp()) * f64::from(up);
            // A handful of operations, each off by one unit or, for the exponential, a few.
            assert!((f64::from(got) - want).abs() <= 1e-5 * want.abs() + 1e-30, "{got} {want}");
        }
        let weights = self.choices.to_vec().unwrap();
        let ids = self.choice_of_rows(tokens);
        let mut want = vec![0.0; TOKENS * HIDDEN];
        let mut magnitude = vec![0.0; TOKENS * HIDDEN];
        for (row, &token) in tokens.iter().enumerate() {
            for d in 0..HIDDEN {
                let term = f64::from(weights[ids[row]]) * f64::from(down[row * HIDDEN + d]);
                want[token * HIDDEN + d] += term;
                magnitude[token * HIDDEN + d] += term.abs();
            }
        }
        for (at, got) in phases.out.to_vec().unwrap().into_iter().enumerate() {
            // Two products and a sum.
            let bound = 3.0 * f64::from(f32::EPSILON) * magnitude[at];
            assert!((f64::from(got) - want[at]).abs() <= bound, "{got} {}", want[at]);
        }
    }

    /// The token of each sorted row: what `Groups` promises, written down again.
    fn tokens(&self) -> Vec<usize> {
        let chosen = |at: usize| if at == 0 { 0 } else { 1 + (at + at / USED) % (EXPERTS - 2) };
        let mut rows: Vec<usize> = (0..ROWS).collect();
        rows.sort_by_key(|&at| (chosen(at), at));
        rows.into_iter().map(|at| at / USED).collect()
    }

    /// The choice that each sorted row is.
    fn choice_of_rows(&self, tokens: &[usize]) -> Vec<usize> {
        let chosen = |at: usize| if at == 0 { 0 } else { 1 + (at + at / USED) % (EXPERTS - 2) };
        let mut rows: Vec<usize> = (0..ROWS).collect();
        rows.sort_by_key(|&at| (chosen(at), at));
        assert!(rows.iter().zip(tokens).all(|(at, token)| at / USED == *token));
        rows
    }
}

/// Operands of tensor cores are rounded to f16, and the decoding of a block may take three f32
/// operations in another order than the codec does.
fn close(x: &[f32], weights: &Weights, expert: usize, got: &[f32], label: &str) {
    let (k, n) = (x.len(), got.len());
    for (column, &got) in got.iter().enumerate() {
        let w = &weights.values[(expert * n + column) * k..][..k];
        let oracle = DotOracle::new(x, w);
        let largest = w.iter().fold(0f32, |max, w| max.max(w.abs()));
        let sum: f64 = x.iter().map(|x| f64::from(x.abs())).sum();
        let decode = 1.5 * f64::from(f32::EPSILON) * f64::from(largest) * sum;
        let rounding = 2.1 * 2f64.powi(-11) * oracle.magnitude();
        let error = (f64::from(got) - oracle.value()).abs();
        assert!(error <= 2.0 * oracle.bound() + rounding + decode, "{label}: {got} {error}");
    }
}

fn activation(rt: &Runtime, seed: u64) -> DynTensor {
    rt.tensor(&[TOKENS, HIDDEN], &Rng::new(seed).normals(TOKENS * HIDDEN, 1.0)).unwrap()
}

/// The formats that experts come in: of gate and up, and of down.
const FORMATS: [[DType; 2]; 5] = [
    [DType::Q4_K, DType::Q6_K],
    [DType::Q5_K, DType::Q5_K],
    [DType::Q6_K, DType::Q8_0],
    [DType::Q4_K, DType::Q8_0],
    [DType::Q8_0, DType::Q4_K],
];

/// With the gates as they are but for the amount of work, a block stays on the device from its
/// activation to its result: the gated unit and the sum follow their operands.
#[test]
fn experts_of_every_format_stay_on_the_device_and_nothing_bounces() {
    // One that is done before anybody looks, and one that does nothing before it has to.
    let schedules = [Schedule::Eager, Schedule::Lazy];
    for (formats, schedule) in FORMATS.into_iter().zip(schedules.into_iter().cycle()) {
        let label = format!("{formats:?}, {schedule:?}");
        let is_lazy = u64::from(schedule == Schedule::Lazy);
        let rig = Rig::new(Config { schedule, ..Config::default() }, open_gates(), None);
        let block = Block::new(&rig.rt, formats);
        for pass in 0..2 {
            let x = activation(&rig.rt, pass);
            let before = rig.counters();
            let phases = block.run(&x, &mut |_| ());
            let after = rig.counters();
            // The activation once for gate and up, and the weights of the choices once at all.
            let (first, found) = (after.activations.first, after.activations.found.copies);
            assert_eq!(
                first.copies - before.activations.first.copies,
                if pass == 0 { 2 } else { 1 }
            );
            // Up, both inputs of the unit, down's and the sum's; then the weights of the choices.
            assert_eq!(found - before.activations.found.copies, if pass == 0 { 5 } else { 6 });
            assert_eq!(after.weights.first.copies, 3, "{label}: weights go up once and stay");
            let bytes: usize = [&block.gate, &block.up, &block.down]
                .map(|w| w.tensor.dtype().row_bytes(w.values.len()).unwrap())
                .iter()
                .sum();
            assert_eq!(after.weights.first.bytes, bytes as u64, "{label}");
            assert_eq!((after.weights.again.copies, after.activations.again.copies), (0, 0));
            assert_eq!(after.weights.found.copies, 3 * pass, "{label}");
            assert_eq!(after.downloads, before.downloads, "{label}: nothing has come back");
            let waits = rig.driver.calls("cuEventSynchronize");
            assert_eq!(waits, is_lazy * pass * 5, "nothing has waited");
            block.check(&x, &phases, &label);
        }
        let decisions = rig.rt.trace().counters().decisions;
        let taken = Outcome::Offloaded { provider: "cuda" };
        assert!(decisions.keys().all(|(_, outcome)| *outcome == taken), "{decisions:?}");
        assert_eq!(decisions[&("grouped_matmul", taken)], 6);
        drop(block);
        rig.finish();
    }
}

/// The activation of the block on the CPU, because the driver refuses the code for it: panels go
/// up, products run, and panels come down with one wait at each of the two boundaries.
#[test]
fn a_block_with_its_activation_on_the_cpu_waits_once_at_each_boundary() {
    for formats in FORMATS {
        let label = format!("{formats:?}");
        let lazy = Config { schedule: Schedule::Lazy, ..Config::default() };
        // How many modules the products take: what comes after them is refused.
        let rig = Rig::new(lazy, open_gates(), None);
        let block = Block::new(&rig.rt, formats);
        block.warm(&rig.rt);
        let modules = rig.driver.calls("cuModuleLoadData");
        drop(block);
        rig.finish();
        let fail = Fail::from("cuModuleLoadData", modules, 218);
        let rig = Rig::new(Config { fail, ..lazy }, open_gates(), None);
        let block = Block::new(&rig.rt, formats);
        block.warm(&rig.rt);
        for pass in 0..2 {
            let x = activation(&rig.rt, pass);
            let mut seen = Vec::new();
            let phases = block.run(&x, &mut |_| {
                let counters = rig.counters();
                let waits = rig.driver.calls("cuEventSynchronize");
                seen.push((waits, counters.downloads, counters.activations.first.copies));
            });
            let [start, gate_up, inner, down, out] = seen[..] else { panic!("{seen:?}") };
            let since = |(waits, downloads, uploads): (u64, u64, u64)| {
                (waits - start.0, downloads - start.1, uploads - start.2)
            };
            assert_eq!(since(gate_up), (0, 0, 1), "{label}: submitted, with one activation");
            assert_eq!(since(inner), (1, 2, 1), "{label}: both panels came with one wait");
            assert_eq!(since(down), (1, 2, 2), "{label}: one panel up, and no wait");
            assert_eq!(since(out), (2, 3, 2), "{label}: one panel down");
            let weights = rig.counters().weights;
            assert_eq!((weights.first.copies, weights.found.copies), (3, 3 * pass + 3), "{label}");
            assert_eq!(weights.again.copies, 0);
            block.check(&x, &phases, &label);
        }
        let decisions = rig.rt.trace().counters().decisions;
        let refused = Outcome::Declined { provider: "cuda", reason: Decline::Refused };
        for op in ["swiglu", "combine"] {
            assert_eq!(decisions.get(&(op, refused)), Some(&2), "{decisions:?}");
        }
        drop(block);
        rig.finish();
    }
}

/// A few rows for many experts are for the CPU, and the reason is told.
#[test]
fn experts_below_their_gate_stay_on_the_cpu() {
    let mut knobs = Knobs::default();
    (knobs.offload, knobs.threads) = (Offload::Auto, Some(2));
    let rig = Rig::new(Config::default(), knobs, None);
    let block = Block::new(&rig.rt, FORMATS[1]);
    let x = activation(&rig.rt, 1);
    let phases = block.run(&x, &mut |_| ());
    assert_eq!(phases.out.shape(), [TOKENS, HIDDEN]);
    let decisions = rig.rt.trace().counters().decisions;
    let threshold = "FUCINA_GPU_MIN_WORK_QMOE";
    let below = Outcome::Cpu { reason: CpuReason::BelowGate { threshold } };
    assert_eq!(decisions[&("grouped_matmul", below)], 3, "{decisions:?}");
    assert_eq!(rig.counters().uploads, 0);
    drop((phases, block, x));
    rig.finish();
}
