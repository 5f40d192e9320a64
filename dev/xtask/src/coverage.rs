//! The table of kernels: the path says the op, the file name says the instruction set.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, bail};

use crate::arch::LEAVES;
use crate::workspace::sources;

const KERNELS: &str = "crates/kernels/src/";

/// Prints the table; an op with a fast arm and no scalar one breaks the rule that `scalar.rs` is the
/// specification.
pub(crate) fn run() -> Result<()> {
    let sources = sources(&["crates/kernels/src"])?;
    let table = table(sources.iter().map(|source| source.path.as_str()));
    let width = table.keys().map(|op| op.len()).max().unwrap_or(0).max(8);
    println!("{:width$}  {}", "op", LEAVES.join("  "));
    for (op, arms) in &table {
        let cells = LEAVES.iter().map(|leaf| {
            let mark = if arms.contains(leaf) { "x" } else { "-" };
            format!("{mark:<width$}", width = leaf.len())
        });
        println!("{op:width$}  {}", cells.collect::<Vec<_>>().join("  "));
    }
    let unspecified: Vec<&str> =
        table.iter().filter(|(_, arms)| !arms.contains("scalar")).map(|(op, _)| *op).collect();
    if table.is_empty() || !unspecified.is_empty() {
        bail!("coverage: ops without scalar.rs, the specification: {unspecified:?}");
    }
    Ok(())
}

/// Op to the instruction sets that have a file for it.
fn table<'a>(paths: impl Iterator<Item = &'a str>) -> BTreeMap<&'a str, BTreeSet<&'a str>> {
    let mut table: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for path in paths {
        let leaf = path
            .strip_prefix(KERNELS)
            .and_then(|path| path.strip_suffix(".rs"))
            .and_then(|path| path.rsplit_once('/'))
            .filter(|(_, isa)| LEAVES.contains(isa));
        if let Some((op, isa)) = leaf {
            table.entry(op).or_default().insert(isa);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_comes_from_the_paths() {
        let paths = [
            "crates/kernels/src/quant/q8_0/scalar.rs",
            "crates/kernels/src/quant/q8_0/avx2.rs",
            "crates/kernels/src/quant/q8_0/tests.rs",
            "crates/kernels/src/isa/x86.rs",
            "crates/kernels/src/norm.rs",
        ];
        let table = table(paths.into_iter());
        assert_eq!(table.len(), 1);
        assert_eq!(table["quant/q8_0"], ["avx2", "scalar"].into());
    }
}
