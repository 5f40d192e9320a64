//! `fucina list`: what the folder of models holds, and what can be pulled.

use clap::Args;
use fucina_hub::catalogue::{CATALOGUE, Entry};
use fucina_hub::{Leftover, Licence, Store, Stored};
use serde::Serialize;

use super::{store, terms};
use crate::exit::Exit;
use crate::output;

/// Show the models that were pulled
#[derive(Args)]
pub(crate) struct ListArgs {
    /// Show what the catalogue has besides
    #[arg(long)]
    pub(crate) available: bool,
    /// Write one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Serialize)]
struct Report {
    folder: String,
    models: Vec<Model>,
    leftovers: Vec<Broken>,
    /// Folders that were not looked into, and why.
    skipped: Vec<String>,
    available: Vec<Available>,
}

/// A model of the folder. What nobody pulled has no more than a name and a size.
#[derive(Serialize)]
struct Model {
    name: String,
    path: String,
    bytes: u64,
    missing_files: usize,
    title: Option<String>,
    licence: Option<Licence>,
    architecture: Option<String>,
    source: Option<String>,
    sha256: Vec<String>,
}

#[derive(Serialize)]
struct Broken {
    name: String,
    path: String,
    bytes: u64,
    /// A pull is at work.
    busy: bool,
}

#[derive(Serialize)]
struct Available {
    name: &'static str,
    title: &'static str,
    bytes: u64,
    licence: Licence,
    architecture: &'static str,
}

pub(crate) fn run(args: &ListArgs) -> anyhow::Result<Exit> {
    let report = Report::new(&store()?)?;
    if args.json {
        output::print_json(&report)?;
    } else {
        for reason in &report.skipped {
            output::warning(&output::plain(reason));
        }
        output::print(&report.text(args.available))?;
    }
    Ok(Exit::Ok)
}

impl Report {
    fn new(store: &Store) -> anyhow::Result<Self> {
        let contents = store.contents()?;
        let missing = |entry: &&Entry<'_>| contents.models.iter().all(|m| m.name != entry.name);
        let available = CATALOGUE.iter().filter(missing).map(|entry| Available {
            name: entry.name,
            title: entry.title,
            bytes: entry.size_bytes,
            licence: entry.licence(),
            architecture: entry.architecture,
        });
        Ok(Self {
            folder: store.folder().display().to_string(),
            available: available.collect(),
            models: contents.models.into_iter().map(Model::from).collect(),
            skipped: contents.skipped.iter().map(ToString::to_string).collect(),
            leftovers: contents.leftovers.into_iter().map(Broken::from).collect(),
        })
    }

    fn text(&self, available: bool) -> String {
        let mut text = format!("{}\n", output::plain(&self.folder));
        if self.models.is_empty() {
            text.push_str("no models yet; `fucina list --available` shows what can be pulled\n");
        }
        let rows: Vec<_> = self.models.iter().map(Model::row).collect();
        text.push_str(&table(&rows));
        if !self.leftovers.is_empty() {
            text.push_str("\nnot complete; `fucina pull` goes on, `fucina rm` deletes:\n");
            let rows: Vec<_> = self.leftovers.iter().map(Broken::row).collect();
            text.push_str(&table(&rows));
        }
        if available {
            text.push_str("\nto be pulled by name:\n");
            let rows: Vec<_> = self.available.iter().map(Available::row).collect();
            text.push_str(&table(&rows));
        }
        let restricted = |licence: &Licence| !licence.open;
        let marked = self.models.iter().filter_map(|m| m.licence.as_ref()).any(restricted)
            || (available && self.available.iter().any(|entry| restricted(&entry.licence)));
        if marked {
            text.push_str(
                "\n* not an open licence: `fucina list --json` has the address of the terms\n",
            );
        }
        text
    }
}

fn table(rows: &[Vec<String>]) -> String {
    output::columns(rows, &[false, true, false, false])
}

impl Model {
    fn row(&self) -> Vec<String> {
        let title = match (&self.title, self.missing_files) {
            (_, 1..) => format!("{} missing", output::plural(self.missing_files, "file")),
            (Some(title), 0) => output::plain(title).into_owned(),
            (None, 0) => "put here by hand".to_owned(),
        };
        let licence = self.licence.as_ref().map_or_else(|| "unknown".to_owned(), terms);
        vec![output::plain(&self.name).into_owned(), output::bytes(self.bytes), licence, title]
    }
}

impl Broken {
    fn row(&self) -> Vec<String> {
        let name = output::plain(&self.name).into_owned();
        let what = if self.busy { "is being pulled" } else { "" };
        vec![name, output::bytes(self.bytes), what.to_owned(), String::new()]
    }
}

impl Available {
    fn row(&self) -> Vec<String> {
        let size = output::bytes(self.bytes);
        vec![self.name.to_owned(), size, terms(&self.licence), self.title.to_owned()]
    }
}

impl From<Stored> for Model {
    fn from(model: Stored) -> Self {
        let mut shown = Self {
            name: model.name,
            path: model.path.display().to_string(),
            bytes: model.bytes,
            missing_files: model.missing_files,
            title: None,
            licence: None,
            architecture: None,
            source: None,
            sha256: Vec::new(),
        };
        if let Some(record) = model.record {
            shown.title = Some(record.title);
            shown.licence = Some(record.licence);
            shown.architecture = record.architecture;
            shown.source = Some(record.source);
            shown.sha256 = record.sha256;
        }
        shown
    }
}

impl From<Leftover> for Broken {
    fn from(left: Leftover) -> Self {
        let path = left.target.display().to_string();
        Self { name: left.name, path, bytes: left.bytes, busy: left.busy }
    }
}
