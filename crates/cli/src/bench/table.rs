//! How the rows of a benchmark are shown: the formats, and Markdown tables.

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
