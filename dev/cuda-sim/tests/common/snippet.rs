//! Runs a few instructions on 32 lanes.

use fucina_cuda_sim::exec::{Fault, FaultKind};
use fucina_cuda_sim::ptx::Module;
use fucina_testkit::Rng;

use super::{Arg, Device};

/// Three operands of a lane.
pub(crate) type In = [u64; 3];

/// A kernel around `body`. Lane by lane, inputs are in `%d0..2` (64 bits), `%a0..2` (32), `%h0..2`
/// (16), `%f0..2` and `%g0..2` (floats); the result goes to `%o` (32 bits) or `%od` (64).
pub(crate) fn kernel(body: &str) -> String {
    let mut loads = String::new();
    for i in 0..3 {
        loads += &format!(
            "ld.global.b64 %d{i}, [%base+{}]; cvt.u32.u64 %a{i}, %d{i}; cvt.u16.u32 %h{i}, %a{i};
             mov.b32 %f{i}, %a{i}; mov.b64 %g{i}, %d{i};\n",
            256 * i
        );
    }
    let widen = if body.contains("%od") { "" } else { "cvt.u64.u32 %od, %o;" };
    format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n
        .visible .entry k(.param .u64 in, .param .u64 out) {{
        .reg .b64 %base, %dst, %off, %od, %d<8>, %x<8>; .reg .b32 %lane, %o, %a<8>, %t<16>;
        .reg .b16 %h<16>; .reg .f32 %f<16>; .reg .f64 %g<16>; .reg .pred %p<8>;
        ld.param.u64 %base, [in]; ld.param.u64 %dst, [out];
        mov.u32 %lane, %tid.x; mul.wide.u32 %off, %lane, 8;
        add.s64 %base, %base, %off; add.s64 %dst, %dst, %off;
        {loads} {body}\n {widen} st.global.b64 [%dst], %od; ret; }}"
    )
}

/// Runs `body` on 32 lanes of inputs.
pub(crate) fn try_run(body: &str, inputs: &[In; 32]) -> Result<[u64; 32], Box<Fault>> {
    try_run_text(&kernel(body), inputs)
}

/// Runs the kernel `k` of a whole text, which takes its operands like [`kernel`]'s.
pub(crate) fn run_text(text: &str, inputs: &[In; 32]) -> [u64; 32] {
    try_run_text(text, inputs).unwrap_or_else(|fault| panic!("{fault}"))
}

fn try_run_text(text: &str, inputs: &[In; 32]) -> Result<[u64; 32], Box<Fault>> {
    let module = Module::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    let device = Device::new();
    let mut bytes = Vec::new();
    for operand in 0..3 {
        for lane in inputs {
            bytes.extend(lane[operand].to_le_bytes());
        }
    }
    let (input, out) = (device.bytes(&bytes), device.poisoned(256));
    let args = [Arg::Buffer(&input), Arg::Buffer(&out)];
    device.launch(&module, "k", ([1; 3], [32, 1, 1], 0), &args)?;
    let mut bytes = [0; 256];
    out.read(out.base(), &mut bytes);
    let mut words = bytes.chunks_exact(8).map(|b| u64::from_le_bytes(b.try_into().unwrap()));
    Ok(std::array::from_fn(|_| words.next().unwrap()))
}

pub(crate) fn run(body: &str, inputs: &[In; 32]) -> [u64; 32] {
    try_run(body, inputs).unwrap_or_else(|fault| panic!("{body}: {fault}"))
}

pub(crate) fn fault(body: &str) -> FaultKind {
    let inputs = std::array::from_fn(|lane| [lane as u64, 1, 2]);
    try_run(body, &inputs).map(|_| ()).expect_err("a fault was planted").kind
}

const EDGES: [u64; 24] = [
    0,
    1,
    2,
    7,
    8,
    15,
    16,
    31,
    32,
    33,
    63,
    64,
    127,
    128,
    255,
    0x7fff,
    0x8000,
    0xffff,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    u64::MAX,
];

/// Operands at the edges of integer types, and any others.
pub(crate) fn integers(rng: &mut Rng) -> [In; 32] {
    std::array::from_fn(|_| {
        std::array::from_fn(|_| {
            let bits = rng.next_u64();
            let edge = EDGES[(bits >> 8) as usize % EDGES.len()];
            match bits & 3 {
                0 => bits.rotate_left(23),
                1 => edge.wrapping_neg(),
                _ => edge,
            }
        })
    })
}

/// Bits of `f32`: edges, neighbours of one, and any others.
pub(crate) fn floats(rng: &mut Rng) -> [In; 32] {
    const EDGES: [f32; 14] = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        1.5,
        2.5,
        65504.0,
        65520.0,
        1e-40,
        f32::MIN_POSITIVE,
        f32::MAX,
        f32::INFINITY,
        f32::NAN,
    ];
    std::array::from_fn(|_| {
        std::array::from_fn(|_| {
            let bits = rng.next_u64();
            u64::from(match bits & 3 {
                0 => (bits >> 32) as u32,
                1 => EDGES[(bits >> 8) as usize % EDGES.len()].to_bits(),
                2 => (rng.normal() * 100.0).to_bits(),
                _ => rng.uniform(-2.0, 2.0).to_bits(),
            })
        })
    })
}

/// Compares `body` with `expected`, lane by lane, on many inputs.
pub(crate) fn check(
    body: &str,
    inputs: impl Fn(&mut Rng) -> [In; 32],
    expected: impl Fn(In) -> u64,
) {
    let mut rng = Rng::new(body.len() as u64);
    for _ in 0..8 {
        let inputs = inputs(&mut rng);
        let out = run(body, &inputs);
        for (input, out) in inputs.iter().zip(out) {
            let want = expected(*input);
            assert_eq!(out, want, "{body} of {input:x?}: {out:#x}, not {want:#x}");
        }
    }
}

/// [`check`] for functions of 32-bit integers.
pub(crate) fn words(body: &str, expected: impl Fn(u32, u32, u32) -> u32) {
    check(body, integers, |[a, b, c]| u64::from(expected(a as u32, b as u32, c as u32)));
}

/// [`check`] for functions of 64-bit integers.
pub(crate) fn longs(body: &str, expected: impl Fn(u64, u64, u64) -> u64) {
    check(body, integers, |[a, b, c]| expected(a, b, c));
}

/// [`check`] for functions of `f32`; any NaN is as good as any other.
pub(crate) fn singles(body: &str, expected: impl Fn(f32, f32, f32) -> f32) {
    let mut rng = Rng::new(body.len() as u64);
    for _ in 0..16 {
        let inputs = floats(&mut rng);
        for (input, out) in inputs.iter().zip(run(body, &inputs)) {
            let [a, b, c] = input.map(|bits| f32::from_bits(bits as u32));
            let (out, want) = (f32::from_bits(out as u32), expected(a, b, c));
            let same = out.to_bits() == want.to_bits() || (out.is_nan() && want.is_nan());
            assert!(same, "{body} of {a:e}, {b:e}, {c:e}: {out:e}, not {want:e}");
        }
    }
}

/// [`check`] for functions of `f32` that are approximate: relative error, or absolute.
pub(crate) fn near(body: &str, bound: (f64, f64), expected: impl Fn(f64, f64) -> f64) {
    let mut rng = Rng::new(body.len() as u64);
    for _ in 0..16 {
        let inputs: [In; 32] = std::array::from_fn(|_| {
            [rng.uniform(0.01, 30.0), rng.uniform(-3.0, 3.0), 0.0].map(|v| u64::from(v.to_bits()))
        });
        for (input, out) in inputs.iter().zip(run(body, &inputs)) {
            let [a, b, _] = input.map(|bits| f64::from(f32::from_bits(bits as u32)));
            let (out, want) = (f64::from(f32::from_bits(out as u32)), expected(a, b));
            let allowed = bound.0 * want.abs() + bound.1;
            assert!((out - want).abs() <= allowed, "{body} of {a}, {b}: {out}, not {want}");
        }
    }
}
