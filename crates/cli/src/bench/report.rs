//! Rows as they come: a Markdown table, CSV, or JSON at the end.

use super::record::Row;
use super::table::{Format, Table};
use crate::args::BenchArgs;
use crate::output;

const TABLE: Table<7> = Table {
    head: ["model", "size", "params", "backend", "threads", "test", "t/s"],
    widths: [16, 10, 8, 10, 7, 14, 20],
    left: |column| matches!(column, 0 | 3),
};

const CSV_HEAD: &str = "version,model,architecture,main_type,size_bytes,parameters,backend,isa,\
    threads,test,n_prompt,n_gen,depth,tokens_per_second,stddev,median,min,max,cache_type";

pub(super) struct Report {
    format: Format,
    rows: Vec<Row>,
}

impl Report {
    pub(super) fn new(args: &BenchArgs) -> Self {
        let format = Format::of(args.json, args.csv);
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
                let head = if first { TABLE.head() } else { String::new() };
                output::print(&format!("{head}{}", TABLE.line(&row.cells())))?;
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
