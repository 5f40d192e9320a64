//! Where a model comes from, and what it runs on.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Once};

use bytes::Bytes;
use fucina::accel::Timeline;
use fucina::gguf::{self, AccessUsed, File};
use fucina::{BlasChoice, BlasState, Config, Isa, Runtime, default_providers};
use fucina_hub::{Error, Reference, catalogue};

use crate::exit::{Exit, Failure};
use crate::trace::Tracing;
use crate::{models, output};

/// The model that is part of the program.
static EMBEDDED: &[u8] = include_bytes!("../assets/austen-q8_0.gguf");

const EMBEDDED_NAME: &str = "austen-q8_0";

/// A model that was named, or the embedded one.
pub(crate) enum Source {
    Embedded,
    Path(PathBuf),
}

impl Source {
    /// The model of an argument, or the embedded one. What exists as a path is a path; otherwise it
    /// may be the name of a model that was pulled.
    pub(crate) fn of(model: Option<&Path>) -> anyhow::Result<Self> {
        model.map_or(Ok(Self::Embedded), Self::named)
    }

    /// The model of an argument that must be there. See [`Source::of`].
    pub(crate) fn named(model: &Path) -> anyhow::Result<Self> {
        if model.exists() {
            return Ok(Self::Path(model.to_owned()));
        }
        let Some(reference) = model.to_str().and_then(|name| Reference::parse(name).ok()) else {
            return Ok(Self::Path(model.to_owned()));
        };
        // Without a folder, there is no model in it.
        let found = models::store().map_or(Ok(None), |store| store.find(&reference));
        match (found, not_pulled(&reference, model)) {
            (Ok(Some(model)), _) => Ok(Self::Path(model.path)),
            (Err(error @ Error::Ambiguous { .. }), _) | (Err(error), Some(_)) => Err(error.into()),
            (Ok(None), Some(failure)) => Err(failure.into()),
            // It may as well be a path that does not exist.
            (Ok(None) | Err(_), None) => Ok(Self::Path(model.to_owned())),
        }
    }

    pub(crate) fn open(&self) -> anyhow::Result<File> {
        match self {
            Self::Embedded => Ok(File::from_bytes(Bytes::from_static(EMBEDDED))?),
            Self::Path(path) => File::open(path).map_err(|error| {
                let missing = matches!(&error, gguf::Error::Io { kind, .. }
                    if *kind == io::ErrorKind::NotFound);
                let error = anyhow::Error::new(error);
                if !missing {
                    return error;
                }
                error.context("check the path of the model, or see `fucina list` for names")
            }),
        }
    }

    pub(crate) const fn is_embedded(&self) -> bool {
        matches!(self, Self::Embedded)
    }

    /// The path, if it is a file.
    pub(crate) fn path(&self) -> Option<&Path> {
        match self {
            Self::Embedded => None,
            Self::Path(path) => Some(path),
        }
    }

    /// A short name: that of the file, without its folder and ending.
    pub(crate) fn short_name(&self) -> String {
        match self {
            Self::Embedded => EMBEDDED_NAME.to_owned(),
            Self::Path(path) => path.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
        }
    }

    /// How the bytes were got, for people.
    pub(crate) fn access(&self, used: &AccessUsed) -> String {
        match self {
            Self::Embedded => "embedded in the program".to_owned(),
            Self::Path(_) => used.to_string(),
        }
    }
}

/// Whether a word can only be meant as a model.
pub(crate) fn is_model_name(word: &str) -> bool {
    catalogue::entry(word).is_some() || word.starts_with("hf:")
}

/// What to do if a name is known and its model is not here.
fn not_pulled(reference: &Reference, name: &Path) -> Option<Failure> {
    let name = output::plain(name.to_str()?).into_owned();
    let what = match reference {
        Reference::Short(short) => {
            let entry = catalogue::entry(short)?;
            format!(" ({}, {})", output::bytes(entry.size_bytes), entry.licence().name)
        }
        _ => String::new(),
    };
    let message = format!("`{name}` is not pulled yet; run `fucina pull {name}`{what}");
    Some(Failure::new(Exit::Model, message))
}

/// A runtime with the knobs of the environment; a flag for the threads wins over them.
pub(crate) fn runtime(threads: Option<usize>) -> anyhow::Result<Runtime> {
    let config = Config::from_env()?;
    with_config(config, threads)
}

/// As [`runtime`]; with a trace, if there is one.
pub(crate) fn traced(threads: Option<usize>, tracing: &Tracing) -> anyhow::Result<Runtime> {
    build(Config::from_env()?, threads, tracing.timeline())
}

/// As [`runtime`], with the times of all calls.
pub(crate) fn timed(threads: Option<usize>, timeline: &Arc<Timeline>) -> anyhow::Result<Runtime> {
    build(Config::from_env()?, threads, Some(timeline))
}

/// A runtime with these knobs and every provider of this machine.
pub(crate) fn with_config(config: Config, threads: Option<usize>) -> anyhow::Result<Runtime> {
    build(config, threads, None)
}

fn build(
    config: Config,
    threads: Option<usize>,
    timeline: Option<&Arc<Timeline>>,
) -> anyhow::Result<Runtime> {
    let found = default_providers(&config)?;
    let mut builder = Runtime::builder().config(config);
    if let Some(timeline) = timeline {
        builder = builder.timeline(Arc::clone(timeline));
    }
    if let Some(threads) = threads {
        builder = builder.threads(threads);
    }
    for provider in found.into_iter().filter_map(|found| found.provider.ok()) {
        builder = builder.provider(provider);
    }
    let rt = builder.build()?;
    warn_of_blas(&rt);
    Ok(rt)
}

/// Says once that a library that was asked for by name is not used. What is only looked for opens
/// with the first product that wants it; `fucina doctor` tells.
fn warn_of_blas(rt: &Runtime) {
    static ONCE: Once = Once::new();
    let config = rt.config();
    let asked = matches!(config.blas, BlasChoice::Kind(_)) || config.blas_library.is_some();
    if asked && let BlasState::Absent(error) = rt.blas() {
        ONCE.call_once(|| {
            output::warning(&format!("{error}; large f32 products run on kernels of our own"));
        });
    }
}

/// The instruction set that a runtime with these knobs has.
pub(crate) fn isa(config: &Config) -> anyhow::Result<Isa> {
    // One thread is the one that runs: nothing is started.
    let builder = Runtime::builder().config(config.clone()).threads(1);
    Ok(builder.build()?.isa())
}
