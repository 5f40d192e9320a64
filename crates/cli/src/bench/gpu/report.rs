//! Rows as they come: a Markdown table, CSV, or JSON at the end.

use super::args::CommonArgs;
use super::row::{Row, micros, quantile};
use crate::bench::table::{Format, Table, csv};
use crate::output;

const COLUMNS: usize = 12;

const TABLE: Table<COLUMNS> = Table {
    head: [
        "shape",
        "gate",
        "cpu µs",
        "sync µs",
        "async µs",
        "submit µs",
        "queue GF/s",
        "chain µs",
        "up",
        "down",
        "max abs",
        "result",
    ],
    widths: [30, 6, 9, 9, 9, 9, 10, 9, 10, 10, 8, 6],
    left: |column| column <= 1 || column + 1 == COLUMNS,
};

pub(super) struct Report {
    format: Format,
    detail: bool,
    crossover: bool,
    rows: Vec<Row>,
}

impl Report {
    pub(super) fn new(args: &CommonArgs) -> Self {
        let format = Format::of(args.json, args.csv);
        Self { format, detail: args.detail, crossover: args.crossover, rows: Vec::new() }
    }

    /// Adds a row, and prints it unless the format wants all of them at once.
    pub(super) fn add(&mut self, row: Row) -> anyhow::Result<()> {
        let first = self.rows.is_empty();
        match self.format {
            Format::Json => {}
            Format::Csv => output::print(&csv(&row, first)?)?,
            Format::Table => {
                let mut text = if first { TABLE.head() } else { String::new() };
                text += &TABLE.line(&cells(&row));
                if self.detail {
                    text += &TABLE.line(&note(&detail(&row)));
                }
                if self.crossover {
                    text += &TABLE.line(&note(&crossover(&row)));
                }
                output::print(&text)?;
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
    let number = |value: Option<f64>| value.map_or(String::new(), |value| format!("{value:.1}"));
    let times = &row.times;
    [
        row.shape.clone(),
        row.gate.to_owned(),
        number(times.cpu_us),
        number(times.sync_us),
        number(times.async_us),
        number(times.submit_us),
        number(times.queue_gflops),
        number(times.chain_us),
        output::bytes(row.moved.uploaded_bytes),
        output::bytes(row.moved.downloaded_bytes),
        format!("{:.2e}", row.max_abs),
        if row.ok { "ok".to_owned() } else { format!("WRONG: {}", row.note) },
    ]
}

/// A line below a row: text in the first column.
fn note(text: &str) -> [String; COLUMNS] {
    let mut cells = std::array::from_fn(|_| String::new());
    text.clone_into(&mut cells[0]);
    cells
}

fn spread(values: &[f64]) -> String {
    let at = |part| quantile(values, part).map_or("-".to_owned(), |value| format!("{value:.2}"));
    [0.1, 0.5, 0.9].map(at).join(" ")
}

/// p10, p50 and p90 in microseconds.
fn detail(row: &Row) -> String {
    if row.simulated {
        return "simulated: no times".to_owned();
    }
    let samples = &row.samples;
    let [cpu, host_visible, submit] = [&samples.cpu, &samples.host_visible, &samples.submit]
        .map(|samples| spread(&micros(samples)));
    format!("p10 p50 p90: cpu {cpu}, async {host_visible}, submit {submit}")
}

/// Pair by pair, so that a machine that slows down does so for both.
fn crossover(row: &Row) -> String {
    if row.simulated {
        return "simulated: no times".to_owned();
    }
    let ratios = row.samples.ratios();
    let wins = ratios.iter().filter(|&&ratio| ratio > 1.0).count();
    format!("cpu / async p10 p50 p90: {}, device wins {wins} of {}", spread(&ratios), ratios.len())
}
