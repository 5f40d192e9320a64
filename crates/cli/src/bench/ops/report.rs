//! Rows as they come: a Markdown table, CSV, or JSON at the end.

use super::args::{OpsArgs, Section};
use super::row::Row;
use crate::bench::table::{Format, Table, csv};
use crate::output;

const COLUMNS: usize = 10;

const TABLE: Table<COLUMNS> = Table {
    head: [
        "call",
        "threads",
        "ms",
        "p10 to p90",
        "GFLOP/s",
        "GB/s",
        "share",
        "of",
        "kernel",
        "error",
    ],
    widths: [42, 7, 9, 18, 8, 7, 6, 6, 26, 8],
    left: |column| matches!(column, 0 | 7 | 8),
};

impl Section {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Linear => "linear",
            Self::Source => "source",
            Self::Attention => "attention",
            Self::Moe => "moe",
            Self::Light => "light",
        }
    }
}

pub(super) struct Report {
    format: Format,
    rows: Vec<Row>,
}

impl Report {
    pub(super) fn new(args: &OpsArgs) -> Self {
        Self { format: Format::of(args.json, args.csv), rows: Vec::new() }
    }

    /// Adds a row, and prints it unless the format wants all of them at once.
    pub(super) fn add(&mut self, row: Row) -> anyhow::Result<()> {
        let first = self.rows.is_empty();
        match self.format {
            Format::Json => {}
            Format::Csv => output::print(&csv(&row, first)?)?,
            Format::Table => {
                let head = if first { TABLE.head() } else { String::new() };
                output::print(&format!("{head}{}", TABLE.line(&cells(&row))))?;
            }
        }
        self.rows.push(row);
        Ok(())
    }

    pub(super) fn finish(self) -> anyhow::Result<()> {
        match self.format {
            Format::Json => output::print_json(&self.rows),
            Format::Csv | Format::Table => Ok(()),
        }
    }
}

fn cells(row: &Row) -> [String; COLUMNS] {
    let rate = |value: Option<f64>| value.map_or(String::new(), |value| format!("{value:.1}"));
    // Why it is this kernel takes a sentence, for which the other formats have room.
    let kernel = row.kernel.split(": ").next().unwrap_or_default();
    [
        row.case.clone(),
        row.threads.to_string(),
        format!("{:.4}", row.ms),
        format!("{:.4} to {:.4}", row.ms_p10, row.ms_p90),
        rate(row.gflops),
        rate(row.gb_s),
        format!("{:.0} %", 100.0 * row.share),
        row.limit.name().to_owned(),
        kernel.to_owned(),
        format!("{:.1e}", row.error),
    ]
}
