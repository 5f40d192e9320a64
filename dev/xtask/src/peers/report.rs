//! Tables from the rows of a record: ours, the best peer of each row, and how they compare.

use std::fmt::Write as _;

use super::cases::Case;
use super::contender::Class;
use super::record::{MISSING, MODEL, PRODUCT, Row};

/// Formats whose products have a target of their own.
const QUANTIZED: [&str; 5] = ["Q4_K", "Q5_K", "Q6_K", "Q8_0", "Q5_0"];

/// What one contender did in one case.
#[derive(Debug, Clone, PartialEq)]
struct Figure<'a> {
    who: &'a str,
    kernel: &'a str,
    /// More is better.
    rate: f64,
    lowest: f64,
    highest: f64,
    error: Option<f64>,
}

/// One line of a table.
struct Pair<'a> {
    ours: Figure<'a>,
    best: Option<Figure<'a>>,
}

impl Pair<'_> {
    fn ratio(&self) -> Option<f64> {
        self.best.as_ref().map(|best| self.ours.rate / best.rate)
    }
}

/// The class that a contender's name says.
fn class(who: &str) -> Class {
    if who.contains("AVX2") { Class::Avx2 } else { Class::Best }
}

/// The latest figures of a case.
fn figures<'a>(rows: &'a [Row], bench: &str, case: &str, threads: usize) -> Vec<Figure<'a>> {
    let mut figures: Vec<Figure<'a>> = Vec::new();
    for row in rows.iter().filter(|row| row.bench == bench && row.case == case) {
        if row.threads != threads {
            continue;
        }
        let who = row.who();
        if row.unit == "error" {
            let of = figures.iter_mut().find(|figure| figure.who == who);
            if let Some(figure) = of {
                figure.error = Some(row.median);
            }
            continue;
        }
        let operations = Case::parse(case).map(|case| case.operations());
        // Milliseconds to GFLOP/s; the shortest time is the highest rate.
        let rate = |value: f64| operations.map_or(value, |count| count / value / 1e6);
        let (a, b) = (rate(row.min), rate(row.max));
        let figure = Figure {
            who,
            kernel: row.kernel(),
            rate: rate(row.median),
            lowest: a.min(b),
            highest: a.max(b),
            error: None,
        };
        figures.retain(|figure| figure.who != who);
        figures.push(figure);
    }
    figures
}

fn pair<'a>(figures: &[Figure<'a>], of: Class) -> Option<Pair<'a>> {
    let mut in_class = figures.iter().filter(|figure| class(figure.who) == of);
    let ours = in_class.clone().find(|figure| figure.who.starts_with("fucina"))?.clone();
    let peers = in_class.by_ref().filter(|figure| !figure.who.starts_with("fucina"));
    let best = peers.max_by(|a, b| a.rate.total_cmp(&b.rate)).cloned();
    Some(Pair { ours, best })
}

/// The least ratio that is aimed at. It depends on whether the kernel of ours is one for AMX.
fn at_least(of: Class, case: &Case, kernel: &str) -> Option<f64> {
    let &Case { format, m, n, .. } = case;
    if of == Class::Avx2 || format == "F32" || m <= 8 {
        return Some(1.0);
    }
    let is_amx = kernel.contains("amx");
    if QUANTIZED.contains(&format) {
        return match (is_amx, m) {
            (true, 512) => Some(4.0),
            (true, 128) => Some(3.0),
            (true, 32) => Some(2.0),
            _ => Some(1.2),
        };
    }
    let is_half = matches!(format, "F16" | "BF16") && m == 128 && n == 4096;
    is_half.then_some(if is_amx { 8.0 } else { 1.2 })
}

/// The same for whole models.
fn model_at_least(case: &str) -> Option<f64> {
    let test = case.rsplit(' ').next()?;
    match test {
        "pp128" | "pp512" => Some(2.5),
        "tg128" => Some(1.1),
        _ => None,
    }
}

/// One line about a case, for whoever waits.
pub(super) fn line(rows: &[Row], case: &str, threads: usize) -> String {
    let figures = figures(rows, PRODUCT, case, threads);
    let mut line = format!("{case}, {threads} threads:");
    for Figure { who, rate, .. } in &figures {
        let _ = write!(line, " {who} {rate:.1};");
    }
    line
}

/// Every table, and who is missing.
pub(super) fn tables(rows: &[Row]) -> String {
    let mut text = String::new();
    let mut threads: Vec<usize> = rows.iter().map(|row| row.threads).filter(|t| *t > 0).collect();
    threads.sort_unstable_by(|a, b| b.cmp(a));
    threads.dedup();
    for &threads in &threads {
        for (of, title) in [(Class::Best, "all that the machine has"), (Class::Avx2, "AVX2 alone")]
        {
            text += &products(rows, threads, of, title);
        }
        text += &models(rows, threads);
    }
    for row in rows.iter().filter(|row| row.bench == MISSING) {
        let line = format!("Missing: {}: {}\n", row.case, row.note);
        if !text.contains(&line) {
            text += &line;
        }
    }
    text
}

/// Names of the cases of a bench, in the order of the record.
fn cases<'a>(rows: &'a [Row], bench: &str, threads: usize) -> Vec<&'a str> {
    let mut cases: Vec<&str> = Vec::new();
    for row in rows.iter().filter(|row| row.bench == bench && row.threads == threads) {
        if !cases.contains(&row.case.as_str()) {
            cases.push(&row.case);
        }
    }
    cases
}

fn products(rows: &[Row], threads: usize, of: Class, title: &str) -> String {
    let mut lines = String::new();
    for name in cases(rows, PRODUCT, threads) {
        let figures = figures(rows, PRODUCT, name, threads);
        let (Some(case), Some(pair)) = (Case::parse(name), pair(&figures, of)) else { continue };
        let aim = at_least(of, &case, pair.ours.kernel);
        let error =
            |figure: &Figure<'_>| figure.error.map_or("".to_owned(), |e| format!("{e:.1e}"));
        let theirs = pair.best.as_ref().map_or(String::new(), error);
        let _ = writeln!(
            lines,
            "| {name} | {} | {} | {} | {} |",
            compared(&pair),
            aimed(pair.ratio(), aim),
            error(&pair.ours),
            theirs
        );
    }
    if lines.is_empty() {
        return lines;
    }
    let head = "| product | fucina, GFLOP/s | best peer | its GFLOP/s | ratio | at least | error | its error |";
    let rule = "|---|---:|---|---:|---:|---|---:|---:|";
    format!("### Products, {threads} threads, {title}\n\n{head}\n{rule}\n{lines}\n")
}

fn models(rows: &[Row], threads: usize) -> String {
    let mut lines = String::new();
    for name in cases(rows, MODEL, threads) {
        let figures = figures(rows, MODEL, name, threads);
        let Some(pair) = pair(&figures, Class::Best) else { continue };
        let aim = aimed(pair.ratio(), model_at_least(name));
        let _ = writeln!(lines, "| {name} | {} | {aim} |", compared(&pair));
    }
    if lines.is_empty() {
        return lines;
    }
    let head = "| model and test | fucina, t/s | best peer | its t/s | ratio | at least |";
    let rule = "|---|---:|---|---:|---:|---|";
    format!("### Whole models, {threads} threads\n\n{head}\n{rule}\n{lines}\n")
}

/// The cells from ours to the ratio.
fn compared(pair: &Pair<'_>) -> String {
    let rate = |of: &Figure<'_>| {
        let digits = if of.rate < 10.0 { 2 } else { usize::from(of.rate < 100.0) };
        let Figure { rate, lowest, highest, .. } = of;
        format!("{rate:.digits$} ({lowest:.digits$} to {highest:.digits$})")
    };
    let (who, theirs) = match &pair.best {
        Some(best) => (best.who, rate(best)),
        None => ("none", String::new()),
    };
    let ratio = pair.ratio().map_or(String::new(), |ratio| format!("{ratio:.2}"));
    format!("{} | {who} | {theirs} | {ratio}", rate(&pair.ours))
}

/// The cell that says whether an aim is reached.
fn aimed(ratio: Option<f64>, aim: Option<f64>) -> String {
    match (ratio, aim) {
        (Some(ratio), Some(aim)) if ratio >= aim => format!("{aim:.1}"),
        (Some(ratio), Some(aim)) => {
            format!("{aim:.1}: missed by {:.0} %", 100.0 * (1.0 - ratio / aim))
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(bench: &str, case: &str, unit: &str, median: f64, note: &str) -> Row {
        Row {
            commit: "c".to_owned(),
            bench: bench.to_owned(),
            case: case.to_owned(),
            threads: 2,
            unit: unit.to_owned(),
            median,
            min: median / 2.0,
            max: median * 2.0,
            rounds: 3,
            note: note.to_owned(),
        }
    }

    #[test]
    fn a_product_is_compared_with_the_best_peer_of_its_class() {
        // 2 * 10 * 100 * 1000 operations: 2 GFLOP/s in a millisecond.
        let name = "F32 10x100x1000";
        let rows = [
            row(PRODUCT, name, "ms", 9.0, "fucina: k"),
            row(PRODUCT, name, "ms", 2.0, "fucina: k"),
            row(PRODUCT, name, "error", 1e-7, "fucina: k"),
            row(PRODUCT, name, "ms", 4.0, "gemm: sgemm"),
            row(PRODUCT, name, "ms", 1.0, "blas: sgemm"),
            row(PRODUCT, name, "ms", 0.1, "llama.cpp AVX2: CPU"),
            row(MISSING, "candle", "none", 0.0, "no compiler"),
            row(MISSING, "candle", "none", 0.0, "no compiler"),
        ];
        let text = tables(&rows);
        let line = "| F32 10x100x1000 | 1.00 (0.50 to 2.00) | blas | 2.00 (1.00 to 4.00) | 0.50 | \
                    1.0: missed by 50 % | 1.0e-7 |  |";
        assert!(text.contains(line), "{text}");
        assert_eq!(text.matches("Missing: candle: no compiler").count(), 1, "{text}");
        assert!(!text.contains("AVX2 alone"), "ours is not in that class: {text}");
    }

    #[test]
    fn models_are_compared_by_their_rates() {
        let rows = [
            row(MODEL, "m pp128", "t/s", 300.0, "fucina"),
            row(MODEL, "m pp128", "t/s", 100.0, "llama.cpp native"),
        ];
        let text = tables(&rows);
        let line =
            "| m pp128 | 300 (150 to 600) | llama.cpp native | 100 (50 to 200) | 3.00 | 2.5 |";
        assert!(text.contains(line), "{text}");
    }

    #[test]
    fn aims_are_those_of_the_arm_that_ran() {
        let case = |format, m| Case { format, m, n: 4096, k: 4096 };
        let aim = |format, m, kernel| at_least(Class::Best, &case(format, m), kernel);
        assert_eq!(aim("Q4_K", 512, "panel16/amx"), Some(4.0));
        assert_eq!(aim("Q4_K", 512, "panel16/avx512-vnni"), Some(1.2));
        assert_eq!(aim("Q4_K", 8, "panel16/amx"), Some(1.0));
        assert_eq!(aim("F16", 128, "rows/amx"), Some(8.0));
        assert_eq!(aim("TQ2_0", 128, "panel16/amx"), None);
        assert_eq!(at_least(Class::Avx2, &case("Q4_K", 512), "x"), Some(1.0));
        assert_eq!(model_at_least("m tg128"), Some(1.1));
        assert_eq!(model_at_least("m tg1"), None);
    }
}
