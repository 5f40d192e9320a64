//! How the rows of a benchmark are shown: the formats, and Markdown tables.

use serde::Serialize;
use serde_json::Value;

use crate::output;

/// What rows are written as.
#[derive(Clone, Copy)]
pub(super) enum Format {
    Table,
    Csv,
    /// All at the end.
    Json,
}

impl Format {
    /// By the flags of a benchmark.
    pub(super) const fn of(json: bool, csv: bool) -> Self {
        match (json, csv) {
            (true, _) => Self::Json,
            (_, true) => Self::Csv,
            _ => Self::Table,
        }
    }
}

/// A Markdown table. Columns have room for the usual cells, because a row is printed before the
/// next is known.
pub(super) struct Table<const N: usize> {
    pub(super) head: [&'static str; N],
    pub(super) widths: [usize; N],
    /// Whether a column is aligned to the left.
    pub(super) left: fn(usize) -> bool,
}

impl<const N: usize> Table<N> {
    /// The names of the columns, and the line below them.
    pub(super) fn head(&self) -> String {
        let rule: Vec<String> = self
            .widths
            .iter()
            .enumerate()
            .map(|(at, &width)| {
                let dashes = "-".repeat(width - 1);
                if (self.left)(at) { format!("{dashes}-") } else { format!("{dashes}:") }
            })
            .collect();
        format!("{}| {} |\n", self.line(&self.head.map(str::to_owned)), rule.join(" | "))
    }

    pub(super) fn line(&self, cells: &[String; N]) -> String {
        let padded: Vec<String> = cells
            .iter()
            .zip(self.widths)
            .enumerate()
            .map(|(at, (cell, width))| {
                // A bar inside a cell would end it.
                let cell = output::plain(cell).replace('|', "\\|");
                if (self.left)(at) { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
            })
            .collect();
        format!("| {} |\n", padded.join(" | "))
    }
}

/// The fields of the JSON but lists and objects, with a line of names before the first row.
pub(super) fn csv(row: &impl Serialize, first: bool) -> anyhow::Result<String> {
    let Value::Object(fields) = serde_json::to_value(row)? else { return Ok(String::new()) };
    let fields: Vec<_> =
        fields.iter().filter(|(_, value)| !value.is_object() && !value.is_array()).collect();
    let names: Vec<_> = fields.iter().map(|(name, _)| name.as_str()).collect();
    let values = fields.iter().map(|(_, value)| match value {
        Value::Null => String::new(),
        Value::String(text) => format!("\"{}\"", text.replace('"', "\"\"")),
        other => other.to_string(),
    });
    let values: Vec<_> = values.collect();
    let head = if first { format!("{}\n", names.join(",")) } else { String::new() };
    Ok(format!("{head}{}\n", values.join(",")))
}
