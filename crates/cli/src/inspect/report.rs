//! The report as text.

use std::fmt::Write as _;

use super::{Report, Tensor};
use crate::output::{bytes, columns, count, plain, plural};

/// Longest value of a key that is shown whole, in characters.
const SHOWN: usize = 96;

/// The beginning of a long text.
pub(super) fn abbreviated(text: &str) -> String {
    match text.char_indices().nth(SHOWN) {
        None => text.to_owned(),
        Some((at, _)) => format!("{} ..", &text[..at]),
    }
}

pub(super) fn text(report: &Report) -> String {
    let mut out = String::new();
    head(&mut out, report);
    section(
        &mut out,
        "metadata",
        report.metadata.iter().map(|entry| {
            vec![
                plain(&entry.key).into_owned(),
                entry.kind.to_owned(),
                plain(&entry.value).into_owned(),
            ]
        }),
        &[false, false, false],
    );
    tensors(&mut out, report);
    section(
        &mut out,
        "types",
        report.types.iter().map(|sum| {
            vec![
                sum.name.clone(),
                plural(sum.tensors, "tensor"),
                format!("{} weights", count(sum.elements)),
                bytes(sum.bytes),
            ]
        }),
        &[false, true, true, true],
    );
    if let Some(damaged) = &report.damaged {
        if damaged.is_empty() {
            out.push_str("\nno damaged values\n");
        }
        section(
            &mut out,
            "damaged values",
            damaged
                .iter()
                .map(|damage| vec![plain(&damage.tensor).into_owned(), damage.what.clone()]),
            &[false, false],
        );
    }
    out
}

fn head(out: &mut String, report: &Report) {
    let architecture = match &report.architecture {
        None => "not named; `fucina run` needs it".to_owned(),
        Some(name) if report.supported => plain(name).into_owned(),
        Some(name) => {
            let known: Vec<_> = fucina::llm::architectures().collect();
            let known = known.join(", ");
            format!("{}, not supported by `fucina run`; supported are {known}", plain(name))
        }
    };
    let parts = plural(report.parts, "file");
    let memory = &report.memory;
    let rows = [
        ("model", plain(report.path.as_deref().unwrap_or(&report.name)).into_owned()),
        ("format", format!("GGUF version {}, alignment {}", report.version, report.alignment)),
        ("size", format!("{}, {parts}, {}", bytes(report.file_bytes), report.access)),
        ("architecture", architecture),
        ("parameters", count(report.parameters)),
        (
            "memory",
            format!(
                "{} used in the file, {} packed for {}, {} copied{}",
                bytes(memory.in_file),
                bytes(memory.packed),
                report.isa,
                bytes(memory.copied),
                match report.not_packed {
                    0 => String::new(),
                    count => format!("; no free memory to pack {count} more matrices"),
                }
            ),
        ),
    ];
    let mut rows: Vec<_> = rows.map(|(name, value)| vec![name.to_owned(), value]).into();
    let cache: Vec<_> = report
        .cache_per_token
        .iter()
        .map(|cache| format!("{} as {}", bytes(cache.bytes as u64), cache.kind))
        .collect();
    if !cache.is_empty() {
        let value = format!("{} for each token of the context", cache.join(", "));
        rows.push(vec!["cache".to_owned(), value]);
    }
    out.push_str(&columns(&rows, &[false, false]));
}

fn tensors(out: &mut String, report: &Report) {
    let checked = report.damaged.is_some();
    let mut head = vec!["name", "shape", "type", "bytes", "CPU kernel"];
    let mut right = vec![false, true, false, true, false];
    if checked {
        head.extend(["min", "max", "mean", "NaN", "inf"]);
        right.extend([true; 5]);
    }
    let head = std::iter::once(head.into_iter().map(str::to_owned).collect());
    let rows = head.chain(report.tensors.iter().map(|tensor| row(tensor, checked)));
    section(out, &format!("tensors ({})", report.tensors.len()), rows, &right);
}

fn row(tensor: &Tensor, checked: bool) -> Vec<String> {
    let shape: Vec<String> = tensor.shape.iter().map(usize::to_string).collect();
    let mut cells = vec![
        plain(&tensor.name).into_owned(),
        shape.join(" x "),
        tensor.kind.clone(),
        tensor.bytes.to_string(),
        tensor.kernel.clone(),
    ];
    match &tensor.values {
        Some(values) => cells.extend([
            format!("{:.4}", values.min),
            format!("{:.4}", values.max),
            format!("{:.6}", values.mean),
            values.nan.to_string(),
            values.infinite.to_string(),
        ]),
        None if checked => cells.extend(["-"; 5].map(str::to_owned)),
        None => {}
    }
    cells
}

/// A heading and a table under it, unless the table is empty.
fn section(out: &mut String, title: &str, rows: impl Iterator<Item = Vec<String>>, right: &[bool]) {
    let rows: Vec<_> = rows.collect();
    if rows.is_empty() {
        return;
    }
    // Writing to a string does not fail.
    let _ = write!(out, "\n{title}\n");
    for line in columns(&rows, right).lines() {
        let _ = writeln!(out, "  {line}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_value_is_cut_between_characters() {
        assert_eq!(abbreviated("short"), "short");
        let long = "é".repeat(SHOWN + 1);
        assert_eq!(abbreviated(&long), format!("{} ..", "é".repeat(SHOWN)));
    }
}
