//! Time of each kernel on each instruction set: the minimum of many runs.
//!
//! `cargo bench -p fucina-kernels --bench ops -- [--quick] [FILTER]`. `--quick` runs everything
//! once, to show that it runs. Rates count each byte that a kernel must read or write, and for
//! attention the multiplications and additions of the visible scores.

#![expect(clippy::print_stdout, reason = "a benchmark reports on stdout")]
#![expect(clippy::cast_precision_loss, reason = "sizes are small")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use fucina_kernels::attention::{self, Kv, KvData, KvView, Params, Queries};
use fucina_kernels::elementwise::{self, BinaryOp, UnaryOp};
use fucina_kernels::glu::{self, Activation};
use fucina_kernels::isa::Isa;
use fucina_kernels::rope::{self, Pairing};
use fucina_kernels::{convert, norm, reduce, softmax};
use fucina_testkit::Rng;

/// Elements of a row, the width of a middling model.
const ROW: usize = 4096;
/// Elements of a row of logits, the largest vocabulary in use.
const VOCABULARY: usize = 262_144;

/// What one run of a kernel does.
enum Work {
    Bytes(usize),
    Flops(usize),
}

struct Bench {
    quick: bool,
    filter: Option<String>,
}

impl Bench {
    fn run(&self, name: &str, work: &Work, mut kernel: impl FnMut(Isa)) {
        if self.filter.as_ref().is_some_and(|filter| !name.contains(filter.as_str())) {
            return;
        }
        for isa in Isa::available() {
            let seconds = self.minimum(|| kernel(black_box(isa)));
            let rate = match work {
                Work::Bytes(bytes) => format!("{:8.2} GB/s", *bytes as f64 / seconds / 1e9),
                Work::Flops(flops) => format!("{:8.2} GFLOP/s", *flops as f64 / seconds / 1e9),
            };
            println!("{name:<28} {:<12} {:>12.0} ns {rate}", isa.name(), seconds * 1e9);
        }
    }

    /// Shortest time of one run, in seconds.
    fn minimum(&self, mut run: impl FnMut()) -> f64 {
        let timed = |run: &mut dyn FnMut(), times: u32| {
            let start = Instant::now();
            for _ in 0..times {
                run();
            }
            start.elapsed() / times
        };
        let first = timed(&mut run, 1);
        if self.quick {
            return first.as_secs_f64();
        }
        // About 200 microseconds per sample, so that the clock does not matter.
        let per_sample = Duration::from_micros(200).as_nanos() / first.as_nanos().max(1);
        let times = u32::try_from(per_sample).unwrap_or(1).clamp(1, 10_000);
        let end = Instant::now() + Duration::from_millis(200);
        let mut best = timed(&mut run, times);
        while Instant::now() < end {
            best = best.min(timed(&mut run, times));
        }
        best.as_secs_f64()
    }
}

fn main() {
    let mut bench = Bench { quick: false, filter: None };
    for arg in std::env::args().skip(1) {
        match arg.as_str() {
            "--quick" => bench.quick = true,
            "--bench" => {}
            _ => bench.filter = Some(arg),
        }
    }
    rows(&bench);
    unary(&bench);
    conversions(&bench);
    reductions(&bench);
    for (tokens, keys) in [(128, 128), (128, 1024), (512, 512)] {
        for dim in [64, 128, 256] {
            attend(&bench, tokens, keys, dim);
        }
    }
    for (tokens, keys) in [(1, 1024), (1, 4096), (1, 8192), (3, 4096), (4, 4096), (8, 4096)] {
        attend(&bench, tokens, keys, 128);
    }
}

fn rows(bench: &Bench) {
    let mut rng = Rng::new(1);
    let (x, y) = (rng.normals(ROW, 1.0), rng.normals(ROW, 1.0));
    let mut out = vec![0.0; ROW];
    let bytes = |streams: usize| Work::Bytes(streams * ROW * size_of::<f32>());
    bench.run("rms_norm 4096", &bytes(3), |isa| {
        norm::rms_norm(isa, black_box(&x), Some(&y), 1e-6, &mut out);
    });
    bench.run("softmax 4096", &bytes(2), |isa| {
        out.copy_from_slice(&x);
        softmax::softmax(isa, black_box(&mut out), 0.5);
    });
    bench.run("add 4096", &bytes(3), |isa| {
        elementwise::binary(isa, BinaryOp::Add, black_box(&x), &y, &mut out);
    });
    bench.run("axpy 4096", &bytes(3), |isa| {
        elementwise::axpy(isa, 0.5, black_box(&x), &mut out);
    });
    for (name, act) in [
        ("silu_glu 4096", Activation::Silu),
        ("gelu_tanh_glu 4096", Activation::GeluTanh),
        ("gelu_erf_glu 4096", Activation::GeluErf),
    ] {
        bench.run(name, &bytes(3), |isa| glu::glu(isa, act, black_box(&x), &y, &mut out));
    }
    let (cos, sin) = (vec![0.6; 64], vec![0.8; 64]);
    for (name, pairing) in
        [("rope_interleaved 128", Pairing::Interleaved), ("rope_halves 128", Pairing::Halves)]
    {
        bench.run(name, &Work::Bytes(3 * 128 * size_of::<f32>()), |isa| {
            rope::rotate(isa, black_box(&x[..128]), &cos, &sin, pairing, &mut out[..128]);
        });
    }
}

fn unary(bench: &Bench) {
    let x = Rng::new(2).normals(ROW, 3.0);
    let mut out = vec![0.0; ROW];
    for (name, op) in [
        ("exp 4096", UnaryOp::Exp),
        ("tanh 4096", UnaryOp::Tanh),
        ("sigmoid 4096", UnaryOp::Sigmoid),
        ("sqrt 4096", UnaryOp::Sqrt),
        ("soft_cap 4096", UnaryOp::SoftCap(30.0)),
    ] {
        bench.run(name, &Work::Bytes(2 * ROW * size_of::<f32>()), |isa| {
            elementwise::unary(isa, op, black_box(&x), &mut out);
        });
    }
}

fn conversions(bench: &Bench) {
    let x = Rng::new(3).normals(ROW, 1.0);
    let (mut half, mut back) = (vec![0_u16; ROW], vec![0.0; ROW]);
    let work = Work::Bytes(ROW * (size_of::<f32>() + size_of::<u16>()));
    bench.run("f32_to_f16 4096", &work, |isa| convert::f32_to_f16(isa, black_box(&x), &mut half));
    bench.run("f16_to_f32 4096", &work, |isa| {
        convert::f16_to_f32(isa, black_box(&half), &mut back);
    });
    bench.run("f32_to_bf16 4096", &work, |isa| convert::f32_to_bf16(isa, black_box(&x), &mut half));
    bench.run("bf16_to_f32 4096", &work, |isa| {
        convert::bf16_to_f32(isa, black_box(&half), &mut back);
    });
}

fn reductions(bench: &Bench) {
    let mut rng = Rng::new(4);
    let (x, y) = (rng.normals(VOCABULARY, 1.0), rng.normals(ROW, 1.0));
    let work = Work::Bytes(VOCABULARY * size_of::<f32>());
    bench.run("argmax 262144", &work, |isa| {
        black_box(reduce::argmax(isa, black_box(&x)));
    });
    for k in [40, 1000] {
        let mut best = vec![(0, 0.0); k];
        bench.run(&format!("top_k {k} of 262144"), &work, |isa| {
            black_box(reduce::top_k(isa, black_box(&x), &mut best));
        });
    }
    let mut rising = x.clone();
    rising.sort_by(f32::total_cmp);
    let mut best = vec![(0, 0.0); 40];
    bench.run("top_k 40 of 262144 rising", &work, |isa| {
        black_box(reduce::top_k(isa, black_box(&rising), &mut best));
    });
    bench.run("sum 262144", &work, |isa| {
        black_box(reduce::sum(isa, black_box(&x)));
    });
    let pair = Work::Bytes(2 * ROW * size_of::<f32>());
    bench.run("dot_f32 4096", &pair, |isa| {
        black_box(reduce::dot_f32(isa, black_box(&x[..ROW]), &y));
    });
    bench.run("has_non_finite 262144", &work, |isa| {
        black_box(reduce::has_non_finite(isa, black_box(&x)));
    });
}

/// One head of `dim` elements; the queries are the last `tokens` of `keys` positions.
fn attend(bench: &Bench, tokens: usize, keys: usize, dim: usize) {
    let mut rng = Rng::new(5);
    let q = rng.normals(tokens * dim, 1.0);
    let mut k = vec![0_u16; keys * dim];
    convert::f32_to_f16(Isa::Scalar, &rng.normals(keys * dim, 1.0), &mut k);
    let v = k.clone();
    let view = |data| KvView { data: KvData::F16(data), row_stride: dim, len: keys, dim };
    let kv = Kv { k: view(&k), v: view(&v), start: 0 };
    let params = Params {
        scale: 0.088,
        causal: true,
        q_offset: keys - tokens,
        window: None,
        soft_cap: None,
    };
    let queries = Queries { data: &q, row_stride: dim, rows: 0..tokens };
    let mut out = vec![0.0; tokens * dim];
    let mut scratch = vec![0.0; attention::scratch_len(dim, dim)];
    let visible: usize = (0..tokens).map(|row| keys - tokens + row + 1).sum();
    let work = if tokens == 1 {
        Work::Bytes(2 * keys * dim * size_of::<u16>())
    } else {
        Work::Flops(visible * dim * 4)
    };
    bench.run(&format!("attend {tokens} on {keys} x {dim}"), &work, |isa| {
        attention::attend(isa, &params, black_box(&queries), &kv, &mut out, &mut scratch);
    });
}
