//! Products through our own kernels and through BLAS libraries, in turns, in one process.
//!
//! `cargo bench -p fucina-runtime --bench blas -- [--quick] [--threads N] [--shadow] [--isa NAME]
//! [--shape TEXT] [LIBRARY]..`
//!
//! Each library is a path. `--shadow` takes 16-bit weights instead, with and without their f32 copy.
//! Weights go through copies of 256 MiB, so that no call meets those of the call before in a cache.

#![expect(clippy::print_stdout, reason = "a benchmark prints its results")]

use std::path::PathBuf;
use std::time::Instant;

use bytes::Bytes;
use fucina_runtime::{BlasChoice, BlasState, Config, DType, DynTensor, Isa, Runtime};
use fucina_testkit::Rng;

/// `[m, n, k]` and whether the right operand is transposed, as weights are.
const SHAPES: &[([usize; 3], bool)] = &[
    ([256, 256, 256], false),
    ([512, 512, 512], false),
    ([1024, 1024, 1024], false),
    ([2048, 2048, 2048], false),
    ([256, 256, 256], true),
    ([512, 512, 512], true),
    ([1024, 1024, 1024], true),
    ([2048, 2048, 2048], true),
    ([16, 4096, 4096], true),
    ([32, 4096, 4096], true),
    ([128, 4096, 4096], true),
    ([512, 4096, 4096], true),
];

/// Bytes of weights that calls go through.
const CYCLE_BYTES: usize = 256 << 20;
/// Seconds of one case.
const SECONDS: f64 = 2.0;

struct Args {
    quick: bool,
    shadow: bool,
    threads: usize,
    isa: Option<Isa>,
    shape: String,
    libraries: Vec<PathBuf>,
}

fn args() -> Args {
    let mut args = std::env::args().skip(1).filter(|arg| arg != "--bench");
    let (quick, shadow, threads, isa) = (false, false, 2, None);
    let (shape, libraries) = (String::new(), Vec::new());
    let mut all = Args { quick, shadow, threads, isa, shape, libraries };
    while let Some(arg) = args.next() {
        let mut value = || args.next().expect("a value after the flag");
        match arg.as_str() {
            "--quick" => all.quick = true,
            "--shadow" => all.shadow = true,
            "--threads" => all.threads = value().parse().expect("a number of threads"),
            "--isa" => all.isa = Some(Isa::from_name(&value()).expect("an instruction set")),
            "--shape" => all.shape = value(),
            path => all.libraries.push(path.into()),
        }
    }
    all
}

/// A contender.
struct Contender {
    name: String,
    rt: Runtime,
}

fn contenders(args: &Args) -> Vec<Contender> {
    let build = |library: Option<&PathBuf>, shadow: bool| {
        let mut config = Config::default();
        config.blas = if library.is_some() { BlasChoice::Auto } else { BlasChoice::Off };
        config.blas_library = library.cloned();
        config.f32_shadow = shadow;
        config.f32_shadow_min_m = Some(1);
        let mut builder = Runtime::builder().config(config).threads(args.threads);
        if let Some(isa) = args.isa {
            builder = builder.isa(isa);
        }
        builder.build().expect("a runtime")
    };
    let mut all = vec![Contender { name: "own".to_owned(), rt: build(None, false) }];
    if args.shadow {
        all.push(Contender { name: "own+copy".to_owned(), rt: build(None, true) });
    }
    for library in &args.libraries {
        let rt = build(Some(library), args.shadow);
        let name = match rt.blas() {
            BlasState::Ready(blas) => {
                println!("{}: {}", blas.kind(), blas.version());
                blas.kind().name().to_owned()
            }
            state => panic!("{}: {state:?}", library.display()),
        };
        all.push(Contender { name: if args.shadow { name + "+copy" } else { name }, rt });
    }
    all
}

fn main() {
    let args = args();
    let all = contenders(&args);
    let names: Vec<_> = all.iter().map(|one| format!("{:>22}", one.name)).collect();
    println!("{:24} {} GFLOP/s, median (p10 to p90)", "m x n x k", names.join(" "));
    let quick = [([20, 40, 60], true), ([20, 40, 60], false)];
    let shapes = if args.quick { &quick[..] } else { SHAPES };
    let formats: &[DType] = if args.shadow { &[DType::F16, DType::BF16] } else { &[DType::F32] };
    for &dtype in formats {
        for &([m, n, k], transposed) in shapes {
            let layout = if transposed { "NT" } else { "NN" };
            let label = format!("{m}x{n}x{k} {layout} {dtype}");
            let wanted = label.contains(&args.shape) && (transposed || !args.shadow);
            if wanted {
                run(&all, &label, ([m, n, k], transposed, dtype), args.quick);
            }
        }
    }
}

/// The bytes of random weights.
fn random(len: usize, dtype: DType) -> Vec<u8> {
    let values = Rng::new(5).normals(len, 1.0);
    let bytes = |x: &f32| match dtype {
        DType::F32 => x.to_le_bytes().to_vec(),
        DType::F16 => half::f16::from_f32(*x).to_le_bytes().to_vec(),
        _ => half::bf16::from_f32(*x).to_le_bytes().to_vec(),
    };
    values.iter().flat_map(bytes).collect()
}

/// A copy of the weights: `[n, k]`, or `[k, n]` with its axes changed.
fn weights(rt: &Runtime, bytes: &[u8], ([n, k], dtype): ([usize; 2], DType), t: bool) -> DynTensor {
    let shape = if t { [n, k] } else { [k, n] };
    let bytes = Bytes::copy_from_slice(bytes);
    let tensor = rt.tensor_from_bytes(dtype, &shape, bytes).expect("memory");
    if t { tensor } else { tensor.permute(&[1, 0]).expect("a transposition") }
}

#[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^53")]
fn run(
    all: &[Contender],
    label: &str,
    ([m, n, k], transposed, dtype): ([usize; 3], bool, DType),
    quick: bool,
) {
    let elem = if dtype == DType::F32 { 4 } else { 2 };
    let copies = if quick { 1 } else { CYCLE_BYTES.div_ceil(n * k * elem).min(64) };
    let bytes = random(n * k, dtype);
    let operands: Vec<_> = all
        .iter()
        .map(|one| {
            let x = one.rt.tensor(&[m, k], &Rng::new(3).normals(m * k, 1.0)).expect("memory");
            let w: Vec<_> = (0..copies)
                .map(|_| weights(&one.rt, &bytes, ([n, k], dtype), transposed))
                .collect();
            // The copies in f32 are made here.
            for w in &w {
                x.matmul_t(w).expect("a product");
            }
            (x, w)
        })
        .collect();
    let mut times = vec![Vec::new(); all.len()];
    let start = Instant::now();
    for turn in 0.. {
        for ((x, w), times) in operands.iter().zip(&mut times) {
            let w = &w[turn % w.len()];
            let begin = Instant::now();
            x.matmul_t(w).expect("a product").data::<f32>().expect("floats");
            times.push(begin.elapsed().as_secs_f64());
        }
        if quick || start.elapsed().as_secs_f64() > SECONDS && turn > 6 {
            break;
        }
    }
    let work = 2.0 * m as f64 * n as f64 * k as f64 / 1e9;
    let cells = times.iter_mut().map(|times| {
        times.sort_by(f64::total_cmp);
        let rate = |percent: usize| work / times[(times.len() - 1) * percent / 100];
        format!("{:7.1} ({:5.0} to {:5.0})", rate(50), rate(90), rate(10))
    });
    println!("{label:24} {}", cells.collect::<Vec<_>>().join(" "));
}
