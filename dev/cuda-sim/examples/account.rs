//! Prints the account of the shipped kernels: what a block executes for each step of its main loop,
//! what that costs at the rates of two devices, and what bounds it. The text is a page of `docs/perf`.
//!
//! Steps are counted by running a block twice, with few steps and with more, so that what happens
//! before and after the loop cancels.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "a tool for the repository itself"
)]

use std::collections::BTreeMap;

use fucina_cuda_sim::exec::{DeviceMemory, Launch, Options, Stats, launch};
use fucina_cuda_sim::ptx::Module;
use fucina_dtype::DType;
use fucina_testkit::repository_root;

/// What a device can do in a clock of one multiprocessor.
struct Device {
    name: &'static str,
    /// Column of the table of registers.
    chip: &'static str,
    multiprocessors: f64,
    clock_ghz: f64,
    /// Multiply-adds of f16 tensor cores.
    tensor: f64,
    bandwidth_gb: f64,
    shared_bytes: u32,
}

/// From the vendor's data sheets: 125 Tflop/s and 900 GB/s; 989 Tflop/s and 4.8 TB/s.
const DEVICES: [Device; 2] = [
    Device {
        name: "V100, 80",
        chip: "sm_70",
        multiprocessors: 80.0,
        clock_ghz: 1.53,
        tensor: 512.0,
        bandwidth_gb: 900.0,
        shared_bytes: 96 << 10,
    },
    Device {
        name: "H200, 132",
        chip: "sm_90",
        multiprocessors: 132.0,
        clock_ghz: 1.83,
        tensor: 2048.0,
        bandwidth_gb: 4800.0,
        shared_bytes: 227 << 10,
    },
];

/// Every multiprocessor since Volta issues four instructions of warps in a clock.
const ISSUES: f64 = 4.0;
const REGISTERS: u32 = 65_536;
const WARPS: u32 = 64;

/// One row of the page.
struct Row {
    module: String,
    kernel: String,
    threads: u32,
    dynamic_shared: u32,
    /// What a step is.
    step: String,
    /// Bytes that a step reads from the device's memory, if nothing is in a cache.
    bytes: f64,
    stats: Stats,
    steps: f64,
}

struct Params(Vec<u8>);

impl Params {
    fn long(mut self, value: u64) -> Self {
        self.0.resize(self.0.len().next_multiple_of(8), 0);
        self.0.extend(value.to_le_bytes());
        self
    }

    fn int(mut self, value: usize) -> Self {
        self.0.extend(i32::try_from(value).unwrap().to_le_bytes());
        self
    }
}

fn run(
    module: &str,
    kernel: &str,
    (grid, threads, shared): ([u32; 3], u32, u32),
    sizes: &[usize],
    params: impl Fn(&[u64]) -> Params,
) -> Stats {
    let path = repository_root().join("crates/cuda/ptx").join(format!("{module}.ptx"));
    let module = Module::parse(&std::fs::read_to_string(path).unwrap()).unwrap();
    let memory = DeviceMemory::new(1 << 30);
    let mut held = Vec::new();
    for &size in sizes {
        let region = memory.allocate(size as u64).unwrap();
        region.write(region.base(), &vec![0; size]);
        held.push(region);
    }
    let addresses: Vec<u64> = held.iter().map(|region| region.base()).collect();
    let function = module.function(kernel).unwrap();
    let mut params = params(&addresses).0;
    params.resize(function.params()[0].size as usize, 0);
    let block = [threads, 1, 1];
    let launched =
        Launch { function, grid, block, dynamic_shared: shared, params: &params, variables: &[] };
    launch(&launched, &Options::default(), &memory).unwrap()
}

/// Stats of the second run that the first does not have.
fn minus(more: Stats, few: Stats) -> Stats {
    let mut stats = Stats::default();
    stats.warp_instructions = more.warp_instructions - few.warp_instructions;
    stats.mma = more.mma - few.mma;
    stats.products = more.products - few.products;
    stats.loads = more.loads - few.loads;
    stats.stores = more.stores - few.stores;
    stats.copies = more.copies - few.copies;
    stats.barriers = more.barriers - few.barriers;
    stats
}

fn gemm(dtype: DType, chip: u32, height: usize) -> Row {
    let name = dtype.name().to_lowercase();
    let (module, kernel) = (format!("gemm_{name}.sm{chip}"), format!("gemm_{name}_m{height}"));
    let dynamic_shared = match (chip, height) {
        (70, _) => 0,
        (_, 16) => 24_576,
        (_, 32) => 32_768,
        (_, 64) => 40_960,
        _ => 65_536,
    };
    let stats = |k: usize| {
        let row = dtype.row_bytes(k).unwrap();
        let sizes = [2 * height * k, 4 * height, 64 * row, 4 * height * 64];
        run(&module, &kernel, ([1, 1, 1], 128, dynamic_shared), &sizes, |at| {
            Params(Vec::new())
                .long(at[0])
                .long(at[1])
                .long(at[2])
                .long(0)
                .long(at[3])
                .long(0)
                .long(0)
                .long(row as u64)
                .long(0)
                .long((height * 64) as u64)
                .int(height)
                .int(64)
                .int(k)
                .int(k)
        })
    };
    let stats = minus(stats(1536), stats(1024));
    Row {
        module: module.clone(),
        kernel: kernel.clone(),
        threads: 128,
        dynamic_shared,
        step: format!("{height} x 64 x 64"),
        bytes: 64.0 * dtype.row_bytes(256).unwrap() as f64 / 4.0,
        stats,
        steps: 8.0,
    }
}

fn gemv(dtype: DType, rows: usize) -> Row {
    let name = dtype.name().to_lowercase();
    let (module, kernel) = (format!("gemv_{name}.sm70"), format!("gemv_{name}_r{rows}"));
    let columns = if rows <= 2 { 8 } else { 4 };
    let stats = |k: usize| {
        let row = dtype.row_bytes(k).unwrap();
        let sizes = [4 * rows * k, columns * row, 4 * rows * columns];
        run(&module, &kernel, ([1, 1, 1], 128, 0), &sizes, |at| {
            Params(Vec::new())
                .long(at[0])
                .long(at[1])
                .long(at[2])
                .long(0)
                .long(0)
                .long(k as u64)
                .long(row as u64)
                .long(0)
                .int(rows)
                .int(columns)
                .int(k)
        })
    };
    let stats = minus(stats(3072), stats(1024));
    Row {
        module: module.clone(),
        kernel: kernel.clone(),
        threads: 128,
        dynamic_shared: 0,
        step: format!("{rows} x {columns} x 256"),
        bytes: columns as f64 * dtype.row_bytes(256).unwrap() as f64,
        stats,
        steps: 8.0,
    }
}

/// Keys of 128 elements in f16, one head, no mask.
fn attention(
    module: &str,
    kernel: &str,
    rows: usize,
    keys: usize,
    threads: u32,
    shared: u32,
) -> Row {
    let d = 128;
    let stats = |s: usize| {
        let sizes = [4 * rows * d, 2 * s * d, 2 * s * d, 4 * rows * d];
        run(module, kernel, ([1, 1, 1], threads, shared), &sizes, |at| {
            let params = at.iter().fold(Params(Vec::new()), |params, &at| params.long(at)).long(0);
            let params = (0..6).fold(params, |params, _| params.long(d as u64)).long(0).long(0);
            let params = params.int(rows).int(s).int(1).int(1).int(d).int(d);
            let mut params = params;
            params.0.extend(0.1f32.to_le_bytes());
            params.0.extend(0f32.to_le_bytes());
            params.int(0)
        })
    };
    Row {
        module: module.to_owned(),
        kernel: kernel.to_owned(),
        threads,
        dynamic_shared: shared,
        step: format!("{rows} rows, {keys} keys"),
        bytes: (2 * 2 * keys * d) as f64,
        stats: minus(stats(12 * keys), stats(4 * keys)),
        steps: 8.0,
    }
}

/// (module, kernel) to shared memory and registers by chip.
type Table = BTreeMap<(String, String), (u32, BTreeMap<String, u32>)>;

/// From the page that `cargo xtask ptx` writes.
fn resources() -> Table {
    let path = repository_root().join("docs/perf/0003-kernel-resources.md");
    let text = std::fs::read_to_string(path).unwrap();
    let mut rows = text.lines().filter(|line| line.starts_with('|')).map(|line| {
        line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>()
    });
    let head = rows.next().unwrap();
    let mut table = BTreeMap::new();
    for row in rows.skip(1) {
        let chips = head.iter().zip(&row).skip(3);
        let chips = chips.filter_map(|(chip, n)| Some((chip.clone(), n.parse().ok()?))).collect();
        table.insert((row[0].clone(), row[1].clone()), (row[2].parse().unwrap(), chips));
    }
    table
}

fn warps(row: &Row, registers: u32, shared: u32, device: &Device) -> u32 {
    let per_warp = (registers * 32).next_multiple_of(256);
    let warps = row.threads / 32;
    let by_registers = REGISTERS / per_warp / warps;
    let shared = shared + row.dynamic_shared + 1024;
    let by_shared = device.shared_bytes / shared.max(1);
    by_registers.min(by_shared).min(WARPS / warps) * warps
}

fn line(row: &Row, table: &Table) -> String {
    let (shared, chips) = &table[&(row.module.clone(), row.kernel.clone())];
    let instructions = row.stats.warp_instructions as f64 / row.steps;
    let mma = row.stats.mma as f64 / row.steps;
    let products = row.stats.products as f64 / row.steps;
    let per_mma = if mma > 0.0 { format!("{:.1}", instructions / mma) } else { "–".to_owned() };
    let mut text = format!(
        "| {} | {} | {} | {:.0} | {:.0} | {:.0} | {per_mma} | {:.0} |",
        row.kernel,
        row.module.rsplit('.').next().unwrap_or_default(),
        row.step,
        row.bytes,
        mma,
        instructions,
        row.stats.barriers as f64 / row.steps,
    );
    for device in &DEVICES {
        let Some(registers) = chips.get(device.chip) else {
            text += " – | – | – |";
            continue;
        };
        let warps = warps(row, *registers, *shared, device);
        let issue = instructions / ISSUES;
        let tensor = products / device.tensor;
        let bytes = device.bandwidth_gb / device.multiprocessors / device.clock_ghz;
        let memory = row.bytes / bytes;
        let most = issue.max(tensor).max(memory);
        let (bound, ideal) = if tensor > memory { ("tensor", tensor) } else { ("memory", memory) };
        let bound = if most > ideal { "issue" } else { bound };
        text += &format!(" {warps} | {bound} | {:.0} % |", 100.0 * ideal / most);
    }
    text
}

const TEXT: &str = "\
# 0004 · What the kernels should reach

A prediction to compare a run on hardware with; nothing here was measured on a device. Evidence:
*simulated* (instructions) and *assembled* (registers). `cargo run --release -p fucina-cuda-sim
--example account` prints this page.

A step is one turn of a kernel's main loop in one block: rows x columns x elements of k, or rows and keys.
*bytes* is what it reads of weights (or keys and values), if no other block has brought them into a cache;
activations come from the caches. *instructions* are PTX instructions of warps, counted by the simulator:
the assembler merges some (address arithmetic, above all) and splits others, so they are a guide. *mma* are
instructions on tensor cores, *barriers* arrivals of warps.

For each device: warps on a multiprocessor, by registers and shared memory; what the step waits for, if
everything overlaps: tensor cores, memory, or the issue of four instructions in a clock; and the share of
the nobler limit (the larger of tensor cores and memory) that this leaves. Clocks: 1.53 and 1.83 GHz.
Tensor cores: 512 and 2048 multiply-adds of f16 in a clock of a multiprocessor. On the H200, instructions
of sm_80 reach about two thirds of that rate at best, so no share above that will be seen of `tensor`.

";

const CONCLUSIONS: &str = "
What follows from it:

- Tiles of 128 rows spend 6 to 8 instructions on each use of the tensor cores, most of them on decoding;
  decoding is paid once for each 64 columns of weights whatever the height, so taller tiles are the way to
  a larger share, and a dense product should take the tallest tile that fills the device.
- Few rows wait for issue, not for memory, where memory is as fast as the H200's: decoding to f32 and
  multiplying take four instructions for each weight, places and factors as many again or more, for a lane
  has only eight weights of a block: more of them at a time would help. With the 2.5 bytes in a clock of
  a multiprocessor that cards for work stations have, one and two rows wait for memory. Kernels with
  activations in 8 bits are not in the table.
- Attention without tensor cores is a fallback, no more.
";

fn main() {
    let table = resources();
    let formats = [
        DType::Q4_0,
        DType::Q5_0,
        DType::Q8_0,
        DType::Q4_K,
        DType::Q5_K,
        DType::Q6_K,
        DType::TQ2_0,
    ];
    let mut rows = Vec::new();
    for dtype in formats.into_iter().chain([DType::F16, DType::BF16]) {
        for (chip, height) in [(70, 32), (70, 64), (80, 16), (80, 32), (80, 64), (80, 128)] {
            rows.push(gemm(dtype, chip, height));
        }
    }
    for dtype in formats {
        rows.extend([1, 2, 4, 8].map(|count| gemv(dtype, count)));
    }
    rows.push(attention("attention.sm70", "attention_f16_d128", 32, 32, 256, 0));
    rows.push(attention("attention.sm70", "attention_decode_f16_d128_r1", 1, 16, 128, 0));
    rows.push(attention("attention.sm70", "attention_decode_f16_d128_r4", 4, 16, 128, 0));
    rows.push(attention("attention.sm80", "attention_mma_f16_d128", 64, 64, 128, 49_152));
    print!("{TEXT}| kernel | module | step | bytes | mma | instructions | per mma | barriers |");
    for device in &DEVICES {
        print!(" {}: warps | waits for | share |", device.name);
    }
    println!("\n|---|---|---|---:|---:|---:|---:|---:|---:|---|---:|---:|---|---:|");
    for row in &rows {
        println!("{}", line(row, &table));
    }
    print!("{CONCLUSIONS}");
}
