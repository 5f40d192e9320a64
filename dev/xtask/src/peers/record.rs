//! The record: a CSV file of bench/record, or nothing for a try.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use super::Args;
use crate::workspace::root;

const HEAD: &str = "commit,bench,case,threads,unit,median,min,max,rounds,note";

/// Benches of the record.
pub(super) const PRODUCT: &str = "product";
pub(super) const MODEL: &str = "whole-model";
pub(super) const MISSING: &str = "missing";

/// A figure.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Row {
    pub(super) commit: String,
    pub(super) bench: String,
    pub(super) case: String,
    pub(super) threads: usize,
    pub(super) unit: String,
    pub(super) median: f64,
    pub(super) min: f64,
    pub(super) max: f64,
    pub(super) rounds: usize,
    /// The contender, and its kernel after a colon.
    pub(super) note: String,
}

impl Row {
    fn line(&self) -> String {
        let Self { commit, bench, case, threads, unit, median, min, max, rounds, note } = self;
        // No field has a comma: it would be two.
        let plain = |text: &str| text.replace([',', '\n', '"'], " ");
        let (case, note) = (plain(case), plain(note));
        format!(
            "{commit},{bench},{case},{threads},{unit},{median:.5e},{min:.5e},{max:.5e},{rounds},{note}\n"
        )
    }

    fn parse(line: &str) -> Option<Self> {
        let fields: Vec<&str> = line.splitn(10, ',').collect();
        let &[commit, bench, case, threads, unit, median, min, max, rounds, note] = &fields[..]
        else {
            return None;
        };
        Some(Self {
            commit: commit.to_owned(),
            bench: bench.to_owned(),
            case: case.to_owned(),
            threads: threads.parse().ok()?,
            unit: unit.to_owned(),
            median: median.parse().ok()?,
            min: min.parse().ok()?,
            max: max.parse().ok()?,
            rounds: rounds.parse().ok()?,
            note: note.to_owned(),
        })
    }

    /// The contender.
    pub(super) fn who(&self) -> &str {
        self.note.split(": ").next().unwrap_or_default()
    }

    /// Its kernel.
    pub(super) fn kernel(&self) -> &str {
        self.note.split_once(": ").map_or("", |(_, kernel)| kernel)
    }
}

/// Median, smallest and largest. `values` are not empty.
pub(super) fn spread(values: &[f64]) -> (f64, f64, f64) {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |index: usize| sorted.get(index).copied().unwrap_or(f64::NAN);
    let last = sorted.len().saturating_sub(1);
    (f64::midpoint(at(last / 2), at(sorted.len() / 2)), at(0), at(last))
}

pub(super) struct Record {
    path: Option<PathBuf>,
    commit: String,
    rows: Vec<Row>,
}

impl Record {
    /// The record of the machine and the day. Rows that are there are read.
    pub(super) fn open(args: &Args) -> Result<Self> {
        let commit = commit()?;
        let Some(machine) = &args.machine else {
            return Ok(Self { path: None, commit, rows: Vec::new() });
        };
        let date = match &args.date {
            Some(date) => date.clone(),
            None => said("date", &["+%F"])?,
        };
        let named = |text: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
        ensure!(
            named(machine) && named(&date),
            "names of records have letters, digits and hyphens"
        );
        let folder = root().join("bench/record").join(machine);
        fs::create_dir_all(&folder)?;
        Self::at(folder.join(format!("{date}-peers.csv")), commit)
    }

    fn at(path: PathBuf, commit: String) -> Result<Self> {
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(_) => {
                fs::write(&path, format!("{HEAD}\n"))?;
                String::new()
            }
        };
        let mut rows = Vec::new();
        for line in text.lines().skip(1) {
            rows.push(Row::parse(line).with_context(|| format!("no row of a record: {line}"))?);
        }
        Ok(Self { path: Some(path), commit, rows })
    }

    pub(super) fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    pub(super) fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Adds a figure of `who`.
    pub(super) fn add(
        &mut self,
        (bench, case, threads): (&str, &str, usize),
        unit: &str,
        values: &[f64],
        who: &str,
    ) -> Result<()> {
        let (median, min, max) = spread(values);
        self.push(Row {
            commit: self.commit.clone(),
            bench: bench.to_owned(),
            case: case.to_owned(),
            threads,
            unit: unit.to_owned(),
            median,
            min,
            max,
            rounds: values.len(),
            note: who.to_owned(),
        })
    }

    /// Says why there are no figures of `who`.
    pub(super) fn missing(&mut self, who: &str, why: &str) -> Result<()> {
        let why = why.replace('\n', " ");
        let is_known = |row: &Row| row.bench == MISSING && row.case == who && row.note == why;
        if self.rows.iter().any(is_known) {
            return Ok(());
        }
        self.add((MISSING, who, 0), "none", &[0.0], &why)
    }

    fn push(&mut self, row: Row) -> Result<()> {
        if let Some(path) = &self.path {
            fs::OpenOptions::new().append(true).open(path)?.write_all(row.line().as_bytes())?;
        }
        self.rows.push(row);
        Ok(())
    }
}

fn commit() -> Result<String> {
    said("git", &["describe", "--always", "--dirty", "--exclude=*"])
}

/// What a program prints, in the root of the repository.
fn said(program: &str, args: &[&str]) -> Result<String> {
    let output = Command::new(program).args(args).current_dir(root()).output();
    let output = output.with_context(|| format!("cannot start {program}"))?;
    ensure!(output.status.success(), "{program} fails: {}", output.status);
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_read_as_they_were_written() {
        let path = std::env::temp_dir().join(format!("fucina-record-{}.csv", std::process::id()));
        let mut record = Record::at(path.clone(), "abc".to_owned()).unwrap();
        record.add((PRODUCT, "Q4_K 1x2x3", 2), "ms", &[3.0, 1.0, 2.5], "us: a,b").unwrap();
        record.missing("them", "no\ncompiler").unwrap();
        let again = Record::at(path.clone(), "abc".to_owned()).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        fs::remove_file(&path).unwrap();
        assert!(text.starts_with(HEAD), "{text}");
        assert_eq!(again.rows().len(), 2);
        let row = &again.rows()[0];
        assert_eq!((row.median, row.min, row.max, row.rounds), (2.5, 1.0, 3.0, 3));
        assert_eq!((row.who(), row.kernel()), ("us", "a b"));
        assert_eq!(again.rows()[1].note, "no compiler");
    }

    #[test]
    fn the_median_of_two_is_between_them() {
        assert_eq!(spread(&[1.0, 3.0]), (2.0, 1.0, 3.0));
        assert_eq!(spread(&[7.0]), (7.0, 7.0, 7.0));
    }
}
