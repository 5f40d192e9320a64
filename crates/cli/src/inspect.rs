//! `fucina inspect`: what a file holds, and what this version will do with it. Nothing is loaded;
//! `--check` decodes every tensor.

mod cache;
mod check;
mod kernel;
mod report;

use fucina::gguf::File;
use fucina::llm::{self, Pack, PackPlan};
use fucina::{Config, Isa, free_memory_bytes};
use serde::Serialize;

use crate::args::InspectArgs;
use crate::exit::{Exit, Failure};
use crate::output;
use crate::progress::Progress;
use crate::source::{self, Source};
use cache::PerToken;
use check::Values;

/// What was found. The fields are those of `--json`; `docs/cli.md` describes them.
#[derive(Serialize)]
struct Report {
    name: String,
    path: Option<String>,
    version: u32,
    parts: usize,
    alignment: usize,
    access: String,
    file_bytes: u64,
    architecture: Option<String>,
    /// Whether `run` knows the architecture.
    supported: bool,
    parameters: u64,
    memory: Memory,
    /// Matrices that there is no memory to pack.
    not_packed: usize,
    /// What keys and values take.
    cache_per_token: Vec<PerToken>,
    types: Vec<TypeSum>,
    isa: &'static str,
    metadata: Vec<Entry>,
    tensors: Vec<Tensor>,
    /// Damaged tensors and what is wrong with them. Absent unless values were checked.
    #[serde(skip_serializing_if = "Option::is_none")]
    damaged: Option<Vec<Damage>>,
}

/// Where the weights will be. In bytes.
#[derive(Serialize, Default)]
struct Memory {
    in_file: u64,
    packed: u64,
    copied: u64,
}

#[derive(Serialize)]
struct TypeSum {
    name: String,
    tensors: usize,
    elements: u64,
    bytes: u64,
}

#[derive(Serialize)]
struct Entry {
    key: String,
    #[serde(rename = "type")]
    kind: &'static str,
    /// Long arrays are abbreviated.
    value: String,
}

#[derive(Serialize)]
struct Tensor {
    name: String,
    /// Rows first.
    shape: Vec<usize>,
    #[serde(rename = "type")]
    kind: String,
    bytes: usize,
    part: usize,
    offset: usize,
    kernel: String,
    #[serde(flatten)]
    values: Option<Values>,
}

#[derive(Serialize)]
struct Damage {
    tensor: String,
    what: String,
}

pub(crate) fn run(args: &InspectArgs) -> anyhow::Result<Exit> {
    let source = Source::of(args.model.as_deref())?;
    let isa = source::isa(&Config::from_env()?)?;
    let file = source.open()?;
    let mut report = Report::new(&source, &file, isa, args.load.pack);
    if args.check {
        report.check(&file, args.quiet)?;
    }
    if args.json {
        output::print_json(&report)?;
    } else {
        output::print(&report::text(&report))?;
    }
    let count = report.damaged.as_ref().map_or(0, Vec::len);
    if count > 0 {
        let message = format!(
            "`{}` has damaged values in {}; fetch or convert the file again",
            report.name,
            output::plural(count, "tensor")
        );
        return Err(Failure::new(Exit::Model, message).into());
    }
    Ok(Exit::Ok)
}

impl Report {
    fn new(source: &Source, file: &File, isa: Isa, pack: Pack) -> Self {
        let packed = PackPlan::new(file, pack, free_memory_bytes());
        let architecture = file.metadata().str("general.architecture").ok();
        let supported = architecture.is_some_and(|name| llm::architectures().any(|a| a == name));
        let plans: Vec<_> =
            file.tensors().iter().map(|info| kernel::plan(info, file, &packed, isa)).collect();
        let memory = plans.iter().fold(Memory::default(), |sum, plan| Memory {
            in_file: sum.in_file + plan.memory.in_file,
            packed: sum.packed + plan.memory.packed,
            copied: sum.copied + plan.memory.copied,
        });
        let tensors = file.tensors().iter().zip(plans).map(|(info, plan)| Tensor {
            name: info.name().to_owned(),
            shape: info.shape_row_major(),
            kind: kernel::type_name(info),
            bytes: info.len_bytes(),
            part: info.part(),
            offset: info.file_offset(),
            kernel: plan.kernel,
            values: None,
        });
        let metadata = file.metadata().iter().map(|(key, value)| Entry {
            key: key.to_owned(),
            kind: value.type_name(),
            value: report::abbreviated(&value.to_string()),
        });
        Self {
            name: source.short_name(),
            path: source.path().map(|path| path.to_string_lossy().into_owned()),
            version: file.version(),
            parts: file.parts(),
            alignment: file.alignment(),
            access: source.access(file.access()),
            file_bytes: file.total_bytes(),
            architecture: architecture.map(str::to_owned),
            supported,
            parameters: file.tensors().iter().map(|info| info.len_elems() as u64).sum(),
            memory,
            not_packed: packed.left_out(),
            cache_per_token: cache::per_token(file),
            types: type_sums(file),
            isa: isa.name(),
            metadata: metadata.collect(),
            tensors: tensors.collect(),
            damaged: None,
        }
    }

    /// Decodes every tensor.
    fn check(&mut self, file: &File, quiet: bool) -> anyhow::Result<()> {
        let progress = Progress::new("checking", true, quiet);
        let mut done = 0;
        let mut damaged = Vec::new();
        for (info, tensor) in file.tensors().iter().zip(&mut self.tensors) {
            let Some(values) = check::values(info, &file.tensor_data(info)?) else { continue };
            let what = values.faults(info);
            if !what.is_empty() {
                damaged.push(Damage { tensor: tensor.name.clone(), what: what.join(", ") });
            }
            tensor.values = Some(values);
            done += info.len_bytes() as u64;
            progress.set(done, file.tensor_bytes());
        }
        self.damaged = Some(damaged);
        Ok(())
    }
}

/// Sums for each type, the largest first.
fn type_sums(file: &File) -> Vec<TypeSum> {
    let mut sums: Vec<TypeSum> = Vec::new();
    for info in file.tensors() {
        let name = kernel::type_name(info);
        let at = sums.iter().position(|sum| sum.name == name).unwrap_or_else(|| {
            sums.push(TypeSum { name, tensors: 0, elements: 0, bytes: 0 });
            sums.len() - 1
        });
        sums[at].tensors += 1;
        sums[at].elements += info.len_elems() as u64;
        sums[at].bytes += info.len_bytes() as u64;
    }
    sums.sort_by_key(|sum| std::cmp::Reverse(sum.bytes));
    sums
}
