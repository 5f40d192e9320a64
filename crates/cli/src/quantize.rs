//! `fucina quantize`: a file with its matrices in another format.
//!
//! The new file is written tensor by tensor, a batch of blocks at a time, so memory does not grow
//! with the model. It replaces OUT when it is complete, and not before.

mod convert;
pub(crate) mod recipe;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use fucina::gguf::{self, Data};
use fucina::gguf::{File, Writer};
use fucina::{Config, DType, Runtime};
use serde::Serialize;

use crate::args::QuantizeArgs;
use crate::exit::{Exit, Failure};
use crate::output;
use crate::signals;
use crate::source::Source;
use convert::{Stop, Tensor, Work};
use recipe::Plan;

/// Version of the block formats, which GGML has left alone since they have numbers.
const QUANTIZATION_VERSION: u32 = 2;

/// What was done. The fields are those of `--json`; `docs/cli.md` describes them.
#[derive(Serialize)]
struct Report {
    input: String,
    output: String,
    format: String,
    file_type: u32,
    tensors: usize,
    converted: usize,
    parameters: u64,
    input_tensor_bytes: u64,
    output_tensor_bytes: u64,
    bits_per_weight: f64,
    /// Tensors whose rows are no whole blocks of the format that they should have had.
    fallbacks: Vec<Fallback>,
    seconds: f64,
}

#[derive(Serialize)]
struct Fallback {
    tensor: String,
    wanted: &'static str,
    used: &'static str,
}

pub(crate) fn run(args: &QuantizeArgs) -> anyhow::Result<Exit> {
    signals::install()?;
    let start = Instant::now();
    let mut builder = Runtime::builder().config(Config::from_env()?);
    if let Some(threads) = args.threads {
        builder = builder.threads(threads);
    }
    let threads = builder.build()?.threads();
    let source = Source::named(&args.input)?;
    let file = source.open()?;
    check_output(&args.output, source.path().unwrap_or(&args.input), file.parts())?;
    let plans = recipe::plan(&file, args.to, args.pure);
    check_requantize(&plans, args)?;
    let work = Work::new(threads, file.tensor_bytes(), args.quiet);
    signals::begin();
    let saved = writer(&file, &plans, args, &work)?.save(&args.output);
    match (work.stopped(), saved) {
        (Some(Stop::Failed(failure)), _) => return Err(failure.into()),
        (Some(Stop::Interrupted), _) => {
            let output = args.output.display();
            output::error(&format!("interrupted; `{output}` was not written"));
            return Ok(Exit::Interrupted);
        }
        // Reading is done: what is left is the disk's fault, not the model's.
        (None, Err(error @ gguf::Error::Io { .. })) => {
            return Err(Failure::new(Exit::Failed, error.to_string()).into());
        }
        (None, saved) => saved?,
    }
    let report = Report::new(args, &file, &plans, start);
    if args.json {
        output::print_json(&report)?;
    }
    if !args.quiet {
        report.warn();
        output::line(&report.summary());
    }
    Ok(Exit::Ok)
}

/// The new file: metadata and, when it is written, tensors.
fn writer<'a>(
    file: &File,
    plans: &[Plan<'_>],
    args: &QuantizeArgs,
    work: &'a Work,
) -> anyhow::Result<Writer<'a>> {
    /// Written anew, or of a file in several parts, which the new one is not.
    const LEFT_OUT: [&str; 5] = [
        "general.quantization_version",
        "general.file_type",
        "split.no",
        "split.count",
        "split.tensors.count",
    ];
    let mut writer = Writer::new();
    for (key, value) in file.metadata().iter().filter(|(key, _)| !LEFT_OUT.contains(key)) {
        writer.set(key, value.clone())?;
    }
    writer.set("general.quantization_version", QUANTIZATION_VERSION)?;
    writer.set("general.file_type", args.to.file_type())?;
    for plan in plans {
        let info = plan.info;
        let (ggml_type, conversion) = match plan.target {
            Some(to) => (to.ggml_id().unwrap_or_default(), Some((info.dtype()?, to))),
            None => (info.ggml_type(), None),
        };
        let tensor =
            Tensor { name: info.name().to_owned(), data: file.tensor_data(info)?, conversion };
        let data = Data::from_fn(move |out| work.write(&tensor, out));
        writer.tensor_ggml(info.name(), ggml_type, info.shape(), data)?;
    }
    Ok(writer)
}

/// Refuses, before the work begins, to write where nothing can or should be written.
fn check_output(output: &Path, input: &Path, parts: usize) -> Result<(), Failure> {
    let shown = output.display();
    let is_same = |path: &Path| match (fs::canonicalize(path), fs::canonicalize(output)) {
        (Ok(path), Ok(output)) => path == output,
        _ => false,
    };
    if part_paths(input, parts).iter().any(|path| is_same(path)) {
        return Err(Failure::usage(format!("`{shown}` is the input; give OUT another name")));
    }
    if fs::metadata(output).is_ok_and(|found| !found.is_file()) {
        return Err(Failure::usage(format!("`{shown}` is not a file; give OUT another name")));
    }
    if output.file_name().is_none() {
        return Err(Failure::usage(format!("`{shown}` does not name a file; give OUT a name")));
    }
    let folder = output.parent().filter(|folder| !folder.as_os_str().is_empty());
    if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
        let folder = folder.display();
        return Err(Failure::usage(format!("there is no folder `{folder}`; create it first")));
    }
    Ok(())
}

/// The files of the input.
fn part_paths(input: &Path, parts: usize) -> Vec<PathBuf> {
    let mut paths = vec![input.to_owned()];
    let name = input.file_name().unwrap_or_default().to_string_lossy();
    for part in 2..=parts {
        let (first, later) = (format!("-00001-of-{parts:05}"), format!("-{part:05}-of-{parts:05}"));
        paths.push(input.with_file_name(name.replace(&first, &later)));
    }
    paths
}

/// Refuses to quantize what is quantized, unless asked to.
fn check_requantize(plans: &[Plan<'_>], args: &QuantizeArgs) -> Result<(), Failure> {
    let quantized = |plan: &&Plan<'_>| {
        plan.target.is_some() && !args.requantize && plan.info.dtype().is_ok_and(DType::is_block)
    };
    let Some(plan) = plans.iter().find(quantized) else { return Ok(()) };
    Err(Failure::usage(format!(
        "tensor `{}` is quantized already, as {}, and doing it again costs quality; start from an \
        f16, bf16 or f32 file, or add --requantize",
        plan.info.name(),
        plan.info.type_name(),
    )))
}

impl Report {
    #[expect(clippy::cast_precision_loss, reason = "shown with three digits")]
    fn new(args: &QuantizeArgs, file: &File, plans: &[Plan<'_>], start: Instant) -> Self {
        let bytes = |plan: &Plan<'_>| match plan.target {
            Some(to) => to.row_bytes(plan.info.len_elems()).unwrap_or(0) as u64,
            None => plan.info.len_bytes() as u64,
        };
        let output_tensor_bytes: u64 = plans.iter().map(bytes).sum();
        let parameters: u64 = plans.iter().map(|plan| plan.info.len_elems() as u64).sum();
        let fallbacks = plans.iter().filter_map(|plan| {
            let used = plan.target.map_or(plan.info.type_name(), DType::name);
            let tensor = plan.info.name().to_owned();
            Some(Fallback { tensor, wanted: plan.unfit?.name(), used })
        });
        Self {
            input: args.input.to_string_lossy().into_owned(),
            output: args.output.to_string_lossy().into_owned(),
            format: args.to.name(),
            file_type: args.to.file_type(),
            tensors: plans.len(),
            converted: plans.iter().filter(|plan| plan.target.is_some()).count(),
            parameters,
            input_tensor_bytes: file.tensor_bytes(),
            output_tensor_bytes,
            bits_per_weight: output_tensor_bytes as f64 * 8.0 / parameters.max(1) as f64,
            fallbacks: fallbacks.collect(),
            seconds: start.elapsed().as_secs_f64(),
        }
    }

    fn warn(&self) {
        let Some(first) = self.fallbacks.first() else { return };
        let count = output::plural(self.fallbacks.len(), "tensor");
        output::warning(&format!(
            "rows of {count} are no whole blocks of the format and got a wider one, first `{}`: \
            {} instead of {}",
            first.tensor, first.used, first.wanted
        ));
    }

    /// `model-q4_k_m.gguf · Q4_K_M · 2.21 MiB from 7.01 MiB · 5.05 bits per weight · 37 of 46 …`
    fn summary(&self) -> String {
        format!(
            "{} · {} · {} from {} · {:.2} bits per weight · {} of {} converted · {:.1} s",
            output::plain(&self.output),
            self.format.to_uppercase(),
            output::bytes(self.output_tensor_bytes),
            output::bytes(self.input_tensor_bytes),
            self.bits_per_weight,
            self.converted,
            output::plural(self.tensors, "tensor"),
            self.seconds,
        )
    }
}
