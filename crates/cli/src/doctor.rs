//! `fucina doctor`: what this machine offers, what will be used, and why.

mod machine;
mod variables;

use std::fmt::Write as _;

use fucina::{
    AmxState, BlasChoice, BlasState, Config, ConfigError, DType, F32_SHADOW_MIN_M, Isa, Offload,
    RowKernel, Runtime, cpu_kernel, cpu_row_kernels, default_devices, default_providers,
    packed_bytes,
};
use serde::Serialize;

use crate::args::DoctorArgs;
use crate::exit::Exit;
use crate::output::{self, bytes, columns};
use crate::source;
use machine::Machine;
use variables::Variable;

/// What was found. The fields are those of `--json`; `docs/cli.md` describes them.
#[derive(Serialize)]
struct Report {
    version: &'static str,
    machine: Machine,
    threads: usize,
    threads_why: &'static str,
    isa: &'static str,
    isa_why: &'static str,
    /// Instruction sets with kernels of their own that this CPU has, slowest first.
    isa_available: Vec<&'static str>,
    /// Whether this process may use AMX, and why not.
    amx: String,
    blas: Library,
    /// Rows from which 16-bit weights get an f32 copy. Null: they get none.
    f32_shadow_min_m: Option<usize>,
    kernels: Vec<Kernel>,
    pool: Pool,
    offload: String,
    providers: Vec<Provider>,
    devices: Vec<Device>,
    variables: Vec<Variable>,
}

/// The BLAS library, or why there is none.
#[derive(Serialize)]
struct Library {
    /// Null: none is used.
    kind: Option<&'static str>,
    file: Option<String>,
    /// What it says of itself, or why there is none.
    detail: String,
}

#[derive(Serialize)]
struct Kernel {
    format: &'static str,
    kernel: String,
    /// What runs for how many rows of activations.
    rows: Vec<RowRange>,
    /// Bits of a packed weight, its share of the scales included. Absent if it is not packed.
    packed_bits: Option<f64>,
}

/// A number of rows, and the kernel for it. No last row means any number.
#[derive(Serialize)]
struct RowRange {
    first: usize,
    last: Option<usize>,
    kernel: &'static str,
}

#[derive(Serialize)]
struct Pool {
    retention_bytes: usize,
    max_waste_percent: usize,
}

#[derive(Serialize)]
struct Provider {
    name: String,
    usable: bool,
    /// The device, or why there is none.
    detail: String,
    /// What serves it, and what it does without.
    notes: Vec<String>,
}

/// A device that a driver shows.
#[derive(Serialize)]
struct Device {
    provider: &'static str,
    index: u32,
    chosen: bool,
    name: String,
    memory_bytes: u64,
    detail: String,
}

pub(crate) fn run(args: &DoctorArgs) -> anyhow::Result<Exit> {
    // A wrong variable is reported, and what follows holds for a machine without it.
    let (config, wrong) = match Config::from_env() {
        Ok(config) => (config, None),
        Err(error) => (Config::default(), Some(error)),
    };
    let (rt, wrong) = match source::with_config(config.clone(), None) {
        Ok(rt) => (rt, wrong),
        Err(error) => {
            let mut config = config;
            (config.isa, config.offload) = (None, Offload::Off);
            let rt = source::with_config(config, None)?;
            (rt, wrong.or(Some(error.downcast::<ConfigError>()?)))
        }
    };
    let report = Report::new(&rt, wrong.as_ref());
    if args.json {
        output::print_json(&report)?;
    } else {
        output::print(&report.text())?;
    }
    match wrong {
        Some(error) => Err(error.into()),
        None => Ok(Exit::Ok),
    }
}

impl Report {
    fn new(rt: &Runtime, wrong: Option<&ConfigError>) -> Self {
        let config = rt.config();
        let pool = fucina::accel::PoolConfig::default();
        let retention_mb = config.pool_retention_mb.map(|mb| mb.saturating_mul(1 << 20));
        Self {
            version: env!("CARGO_PKG_VERSION"),
            machine: Machine::look(),
            threads: rt.threads(),
            threads_why: match config.threads {
                Some(_) => "FUCINA_THREADS asks for it",
                None => "the cores that affinity and quota leave to this process",
            },
            isa: rt.isa().name(),
            isa_why: match config.isa {
                Some(_) => "FUCINA_CPU_ISA asks for it",
                None => "the best that this CPU has",
            },
            isa_available: Isa::available().into_iter().map(Isa::name).collect(),
            amx: AmxState::get().to_string(),
            blas: Library::of(rt),
            f32_shadow_min_m: config
                .f32_shadow
                .then(|| config.f32_shadow_min_m.unwrap_or(F32_SHADOW_MIN_M)),
            kernels: DType::ALL.iter().map(|&dtype| Kernel::of(dtype, rt.isa())).collect(),
            pool: Pool {
                retention_bytes: retention_mb.unwrap_or(pool.retention_bytes),
                max_waste_percent: pool.max_waste_percent,
            },
            offload: format!("{:?}", config.offload).to_lowercase(),
            providers: providers(config),
            devices: devices(config),
            variables: variables::set(wrong),
        }
    }

    fn text(&self) -> String {
        let machine = &self.machine;
        let quota = machine
            .quota_cpus
            .map_or("no quota".to_owned(), |cpus| format!("quota {cpus:.2} CPUs"));
        let pool = format!(
            "keeps up to {} for reuse, reuses memory up to {} % larger than asked",
            bytes(self.pool.retention_bytes as u64),
            self.pool.max_waste_percent
        );
        let shadow = self.f32_shadow_min_m.map_or("off".to_owned(), |rows| {
            format!("of 16-bit weights, from {rows} rows on, where no kernel for 16 bits is better")
        });
        let rows = [
            ("fucina", self.version.to_owned()),
            ("system", format!("{} {}", machine.os, machine.arch)),
            ("CPU", machine.cpu.clone()),
            ("features", machine.features.join(" ")),
            ("free memory", machine.free_memory_bytes.map_or("unknown".to_owned(), bytes)),
            ("CPUs", format!("{} online, affinity {}, {quota}", machine.online, machine.affinity)),
            ("threads", format!("{}: {}", self.threads, self.threads_why)),
            ("ISA", format!("{}: {}", self.isa, self.isa_why)),
            ("available", self.isa_available.join(" ")),
            ("AMX", self.amx.clone()),
            ("BLAS", self.blas.text()),
            ("f32 copies", shadow),
            ("pool", pool),
            ("offload", self.offload.clone()),
        ];
        let rows: Vec<_> = rows
            .map(|(name, value)| vec![name.to_owned(), output::plain(&value).into_owned()])
            .into();
        let mut out = columns(&rows, &[false, false]);
        section(&mut out, "kernels", &self.kernels, |kernel| {
            let bits = kernel.packed_bits.map(|bits| format!("packed, {bits:.2} bits a weight"));
            vec![
                kernel.format.to_owned(),
                kernel.with_rows(),
                bits.unwrap_or_else(|| "as in the file".to_owned()),
            ]
        });
        let rows: Vec<_> = self.providers.iter().flat_map(Provider::rows).collect();
        section(&mut out, "providers", &rows, |row| row.map(str::to_owned).to_vec());
        section(&mut out, "devices", &self.devices, |device| {
            let state = if device.chosen { "chosen" } else { "" };
            let memory = bytes(device.memory_bytes);
            vec![
                format!("{} {}", device.provider, device.index),
                state.to_owned(),
                format!("{}, {memory}, {}", device.name, device.detail),
            ]
        });
        section(&mut out, "variables", &self.variables, |variable| {
            vec![variable.name.clone(), variable.value.clone(), variable.effect.clone()]
        });
        out
    }
}

impl Library {
    fn of(rt: &Runtime) -> Self {
        let none = |detail| Self { kind: None, file: None, detail };
        match rt.blas() {
            BlasState::Off if rt.config().blas == BlasChoice::Off => {
                none("switched off; f32 products by own kernels".to_owned())
            }
            BlasState::Absent(error) => none(format!("{error}; f32 products by own kernels")),
            BlasState::Ready(blas) => Self {
                kind: Some(blas.kind().name()),
                file: Some(blas.file().to_string_lossy().into_owned()),
                detail: blas.version().to_owned(),
            },
            _ => none("not looked for; f32 products by own kernels".to_owned()),
        }
    }

    fn text(&self) -> String {
        match (self.kind, &self.file) {
            (Some(kind), Some(file)) => {
                format!("{kind} for large f32 products, from {file}: {}", self.detail)
            }
            _ => self.detail.clone(),
        }
    }
}

impl Kernel {
    #[expect(clippy::cast_precision_loss, reason = "a few hundred bits")]
    fn of(dtype: DType, isa: Isa) -> Self {
        // One panel: as many rows as any layout puts together, of one block each.
        let (rows, cols) = (16, dtype.unit().0);
        let packed = packed_bytes(dtype, rows, cols);
        Self {
            format: dtype.name(),
            kernel: cpu_kernel(dtype, isa, packed.is_some()),
            rows: cpu_row_kernels(dtype, isa).into_iter().map(RowRange::from).collect(),
            packed_bits: packed.map(|bytes| 8.0 * bytes as f64 / (rows * cols) as f64),
        }
    }
}

impl From<RowKernel> for RowRange {
    fn from(RowKernel { first, last, kernel }: RowKernel) -> Self {
        Self { first, last, kernel }
    }
}

impl Kernel {
    /// The kernel; where it depends on the number of rows, all of them.
    fn with_rows(&self) -> String {
        if self.rows.len() < 2 {
            return self.kernel.clone();
        }
        let range = |row: &RowRange| {
            let last = row.last.map_or(String::new(), |last| last.to_string());
            format!("{}\u{2013}{last} rows {}", row.first, row.kernel)
        };
        let ranges = self.rows.iter().map(range).collect::<Vec<_>>();
        format!("{}: {}", self.kernel, ranges.join(", "))
    }
}

impl Provider {
    /// Its row, and one for each note.
    fn rows(&self) -> Vec<[&str; 3]> {
        let state = if self.usable { "usable" } else { "not usable" };
        let mut rows = vec![[self.name.as_str(), state, self.detail.as_str()]];
        rows.extend(self.notes.iter().map(|note| ["", "", note.as_str()]));
        rows
    }
}

fn providers(config: &Config) -> Vec<Provider> {
    // A wrong variable is reported where the variables are.
    let found = default_providers(config).unwrap_or_default().into_iter().map(|found| {
        let (usable, detail, notes) = match &found.provider {
            Ok(provider) => {
                let info = provider.device();
                let memory = if info.is_unified { "shared memory" } else { "own memory" };
                let detail = format!("{}, {memory}, {}", info.name, bytes(info.memory_bytes));
                (true, detail, provider.notes())
            }
            Err(why) => (false, why.clone(), Vec::new()),
        };
        Provider { name: found.name.to_owned(), usable, detail, notes }
    });
    let found: Vec<_> = found.collect();
    if !found.is_empty() {
        return found;
    }
    let detail = "none was looked for; everything runs on the CPU".to_owned();
    vec![Provider { name: "none".to_owned(), usable: false, detail, notes: Vec::new() }]
}

fn devices(config: &Config) -> Vec<Device> {
    let found = default_devices(config).unwrap_or_default().into_iter().map(|found| Device {
        provider: found.provider,
        index: found.index,
        chosen: found.chosen,
        name: found.name,
        memory_bytes: found.memory_bytes,
        detail: found.detail,
    });
    found.collect()
}

fn section<T>(out: &mut String, title: &str, items: &[T], cells: impl Fn(&T) -> Vec<String>) {
    if items.is_empty() {
        return;
    }
    let rows: Vec<_> = items
        .iter()
        .map(|item| cells(item).iter().map(|cell| output::plain(cell).into_owned()).collect())
        .collect();
    // Writing to a string does not fail.
    let _ = write!(out, "\n{title}\n");
    for line in columns(&rows, &[false, false, false]).lines() {
        let _ = writeln!(out, "  {line}");
    }
}
