//! Every knob has a row in `docs/env.md`, and every row has a knob.

use std::collections::BTreeSet;

use anyhow::{Context, Result, bail};

use crate::lexer::{Kind, tokens};
use crate::workspace::{root, sources};

const PREFIX: &str = "FUCINA_";
const TABLE: &str = "docs/env.md";

/// Compares the string literals in the code with the rows of the table.
pub(crate) fn run() -> Result<()> {
    let mut in_code = BTreeSet::new();
    for source in sources(&["crates", "dev"])? {
        // This file's tests invent names.
        if !source.path.ends_with("xtask/src/knobs.rs") {
            in_code.extend(names_in_code(&source.text));
        }
    }
    let table = std::fs::read_to_string(root().join(TABLE))
        .with_context(|| format!("cannot read {TABLE}"))?;
    let in_table = names_in_table(&table);
    for name in in_code.difference(&in_table) {
        eprintln!("knobs: {name} is used in the code and has no row in {TABLE}");
    }
    for name in in_table.difference(&in_code) {
        eprintln!("knobs: {name} has a row in {TABLE} and no use in the code");
    }
    if in_code != in_table {
        bail!("{TABLE} and the code name different knobs");
    }
    println!("knobs: {} knobs, each with its row", in_code.len());
    Ok(())
}

/// The knobs that string literals of `source` name. A name that ends in `_` is a prefix, not a knob.
fn names_in_code(source: &str) -> BTreeSet<String> {
    let literals = tokens(source).into_iter().filter(|token| token.kind == Kind::Str);
    literals.flat_map(|token| names(token.text)).collect()
}

/// The knobs in the first cell of the rows of a Markdown table.
fn names_in_table(table: &str) -> BTreeSet<String> {
    let rows = table.lines().filter_map(|line| line.strip_prefix('|'));
    rows.filter_map(|row| row.split('|').next()).flat_map(names).collect()
}

fn names(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (at, _) in text.match_indices(PREFIX) {
        let inside_word = text[..at].ends_with(|c: char| c == '_' || c.is_ascii_alphanumeric());
        let tail = &text[at..];
        let len = tail.find(|c: char| c != '_' && !c.is_ascii_alphanumeric());
        let name = &tail[..len.unwrap_or(tail.len())];
        if !inside_word && !name.ends_with('_') {
            found.push(name.to_owned());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_from_literals_and_not_from_comments() {
        let source = "// FUCINA_OLD\nread(\"FUCINA_THREADS\", \"set FUCINA_A or FUCINA_B=1\")";
        let want = ["FUCINA_A", "FUCINA_B", "FUCINA_THREADS"];
        assert_eq!(names_in_code(source), want.map(str::to_owned).into());
    }

    #[test]
    fn prefixes_and_parts_of_words_are_not_names() {
        assert!(names_in_code("f(\"FUCINA_\", \"FUCINA_GPU_\", \"XFUCINA_Y\")").is_empty());
    }

    #[test]
    fn only_the_first_cell_of_a_row_counts() {
        let table = "FUCINA_TEXT\n| `FUCINA_ONE` | see FUCINA_OTHER |\n|---|---|\n";
        assert_eq!(names_in_table(table), ["FUCINA_ONE".to_owned()].into());
    }
}
