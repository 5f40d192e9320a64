//! How a command loads a model.

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use fucina::Runtime;
use fucina::llm::{LoadOptions, Model, Pack};

use crate::output;
use crate::progress::Progress;
use crate::source::Source;

/// The flag that all commands share which load a model, and `inspect`.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(crate) struct LoadArgs {
    /// Repack weights for the CPU kernels: as far as the free memory goes, none, or all. What is not
    /// packed stays in the file, which takes no memory of its own, and is slow
    #[arg(long, value_name = "WHEN", default_value = "auto", value_parser = parser())]
    pub(crate) pack: Pack,
}

impl LoadArgs {
    /// Loads a model, with a progress bar, and says what is odd about it.
    pub(crate) fn model(self, rt: &Runtime, source: &Source, quiet: bool) -> anyhow::Result<Model> {
        let file = source.open()?;
        let progress = Progress::new("loading", true, quiet);
        let options = LoadOptions::default().pack(self.pack);
        let model =
            Model::load_with(rt, &file, &options, &|done, total| progress.set(done, total))?;
        progress.finish();
        if !quiet {
            warn(&model);
        }
        Ok(model)
    }
}

fn warn(model: &Model) {
    let info = model.info();
    for warning in &info.tokenizer_warnings {
        output::warning(&warning.to_string());
    }
    if let [first, ..] = &*info.unused_tensors {
        let count = output::plural(info.unused_tensors.len(), "tensor");
        output::warning(&format!("the model does not use {count} of its file, first `{first}`"));
    }
    if info.not_packed > 0 {
        let (count, packed) = (info.not_packed, output::bytes(info.memory.packed));
        output::warning(&format!(
            "the free memory holds {packed} of packed weights; {count} matrices stay in the file and are slow \
             (`--pack always` packs them all the same)"
        ));
    }
}

fn parser() -> impl TypedValueParser<Value = Pack> {
    PossibleValuesParser::new(Pack::ALL.map(Pack::name)).map(|name| {
        let found = Pack::ALL.into_iter().find(|pack| pack.name() == name);
        found.expect("the parser takes these names only")
    })
}
