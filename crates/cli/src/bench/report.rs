//! Rows as they come: a Markdown table, CSV, or JSON at the end.

use super::record::Row;
use crate::args::BenchArgs;
use crate::output;

const HEAD: [&str; 7] = ["model", "size", "params", "backend", "threads", "test", "t/s"];
/// Columns have room for the usual cells, because a row is printed before the next is known.
const WIDTHS: [usize; 7] = [16, 10, 8, 10, 7, 14, 20];

const CSV_HEAD: &str = "version,model,architecture,main_type,size_bytes,parameters,backend,isa,\
    threads,test,n_prompt,n_gen,depth,tokens_per_second,stddev,median,min,max,cache_type";

enum Format {
    Table,
    Csv,
    Json,
}

pub(super) struct Report {
    format: Format,
    rows: Vec<Row>,
}

impl Report {
    pub(super) fn new(args: &BenchArgs) -> Self {
        let format = match (args.json, args.csv) {
            (true, _) => Format::Json,
            (_, true) => Format::Csv,
            _ => Format::Table,
        };
        Self { format, rows: Vec::new() }
    }

    pub(super) fn has_rows(&self) -> bool {
        !self.rows.is_empty()
    }

    /// Adds a row, and prints it unless the format wants all of them at once.
    pub(super) fn add(&mut self, row: Row) -> anyhow::Result<()> {
        let first = self.rows.is_empty();
        match self.format {
            Format::Json => {}
            Format::Csv => {
                let head = if first { format!("{CSV_HEAD}\n") } else { String::new() };
                output::print(&format!("{head}{}\n", csv(&row)))?;
            }
            Format::Table => {
                let head = if first { head() } else { String::new() };
                output::print(&format!("{head}{}", table_line(&row.cells())))?;
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

fn head() -> String {
    let rule: Vec<String> = WIDTHS
        .iter()
        .enumerate()
        .map(|(at, &width)| {
            let dashes = "-".repeat(width - 1);
            if left(at) { format!("{dashes}-") } else { format!("{dashes}:") }
        })
        .collect();
    format!("{}| {} |\n", table_line(&HEAD.map(str::to_owned)), rule.join(" | "))
}

/// Whether a column is aligned to the left.
const fn left(column: usize) -> bool {
    matches!(column, 0 | 3)
}

fn table_line(cells: &[String; 7]) -> String {
    let padded: Vec<String> = cells
        .iter()
        .zip(WIDTHS)
        .enumerate()
        .map(|(at, (cell, width))| {
            // A bar inside a cell would end it.
            let cell = output::plain(cell).replace('|', "\\|");
            if left(at) { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        })
        .collect();
    format!("| {} |\n", padded.join(" | "))
}

fn csv(row: &Row) -> String {
    let quoted = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
    [
        quoted(row.version),
        quoted(&row.model),
        quoted(&row.architecture),
        quoted(row.main_type),
        row.size_bytes.to_string(),
        row.parameters.to_string(),
        quoted(&row.backend),
        quoted(row.isa),
        row.threads.to_string(),
        quoted(&row.test),
        row.n_prompt.to_string(),
        row.n_gen.to_string(),
        row.depth.to_string(),
        row.tokens_per_second.to_string(),
        row.stddev.to_string(),
        row.median.to_string(),
        row.min.to_string(),
        row.max.to_string(),
        quoted(row.cache_type),
    ]
    .join(",")
}
