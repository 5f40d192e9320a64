//! Tests and files of tests that pages cite are there.

use std::collections::HashSet;
use std::path::Path;

use anyhow::{Context, Result, bail};

/// Pages that say which test shows what they say.
const PAGES: &[&str] = &["docs/robustness.md"];

/// Checks every citation.
pub(crate) fn run(root: &Path) -> Result<()> {
    let mut functions = HashSet::new();
    collect(&root.join("crates"), &mut functions)?;
    let (mut cited, mut missing) = (0, 0);
    for page in PAGES {
        let path = root.join(page);
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        for span in spans(&text) {
            let found = match kind(span) {
                Kind::Test => functions.contains(span),
                Kind::Path => root.join("crates").join(span).exists(),
                Kind::Other => continue,
            };
            cited += 1;
            if !found {
                eprintln!("links: {page} cites {span}, which is not there");
                missing += 1;
            }
        }
    }
    if missing > 0 {
        bail!("{missing} cited tests are not there");
    }
    println!("links: {cited} citations of tests");
    Ok(())
}

/// What a piece of code in a text is.
#[derive(Debug, PartialEq)]
enum Kind {
    /// The name of a test: a sentence.
    Test,
    /// A file or folder of a crate.
    Path,
    Other,
}

fn kind(span: &str) -> Kind {
    let of_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    if span.contains("/src/") || span.contains("/tests/") {
        Kind::Path
    } else if span.chars().all(of_name) && span.matches('_').count() >= 2 {
        Kind::Test
    } else {
        Kind::Other
    }
}

/// What stands between backticks.
fn spans(page: &str) -> impl Iterator<Item = &str> {
    page.lines().flat_map(|line| line.split('`').skip(1).step_by(2))
}

/// The names of all functions without parameters in the sources under `folder`.
fn collect(folder: &Path, functions: &mut HashSet<String>) -> Result<()> {
    let entries =
        std::fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() && path.file_name().is_some_and(|name| name != "target") {
            collect(&path, functions)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path)
                .with_context(|| format!("cannot read {}", path.display()))?;
            let names =
                text.split("fn ").skip(1).filter_map(|after| Some(after.split_once("()")?.0));
            functions.extend(names.map(str::to_owned));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_and_paths_are_citations() {
        let page = "`a_b_c` and `a_b` in `x/tests/y.rs`,\n`x/src/z`: `--json`, `Err`";
        let found: Vec<_> = spans(page).map(|span| (span, kind(span))).collect();
        let want = [
            ("a_b_c", Kind::Test),
            ("a_b", Kind::Other),
            ("x/tests/y.rs", Kind::Path),
            ("x/src/z", Kind::Path),
            ("--json", Kind::Other),
            ("Err", Kind::Other),
        ];
        assert_eq!(found, want);
    }
}
