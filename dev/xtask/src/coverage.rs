//! The table of kernels: the path says the op, the file name says the instruction set.
//!
//! `x` is a file of its own, `c` is a body shared by several instruction sets and compiled for each.

use std::collections::BTreeMap;

use anyhow::{Result, bail};

use crate::arch::LEAVES;
use crate::workspace::{Source, sources};

const KERNELS: &str = "crates/kernels/src/";

/// What the macro `recompile!` of the kernel crate compiles a body for.
const COMPILED: &[&str] = &["scalar", "avx2", "avx512", "neon"];

/// Other ways to what an op with a `scalar.rs` computes, for some instruction sets only.
const SPECIFIED_BY: &[(&str, &str)] = &[("dense/few", "dense/dot"), ("dense/wide", "dense/gemm")];

/// Prints the table; an op with a fast arm and no scalar one breaks the rule that `scalar.rs` is the
/// specification.
pub(crate) fn run() -> Result<()> {
    let sources = sources(&["crates/kernels/src"])?;
    let table = table(&sources);
    let width = table.keys().map(|op| op.len()).max().unwrap_or(0).max(8);
    println!("{:width$}  {}", "op", LEAVES.join("  "));
    for (op, arms) in &table {
        let cells = LEAVES.iter().map(|leaf| {
            let mark = arms.get(leaf).copied().unwrap_or('-');
            format!("{mark:<width$}", width = leaf.len())
        });
        println!("{op:width$}  {}", cells.collect::<Vec<_>>().join("  "));
    }
    let specified = |op: &str| table.get(op).is_some_and(|arms| arms.contains_key("scalar"));
    let other = |op: &str| SPECIFIED_BY.iter().find(|(way, _)| *way == op).map(|(_, of)| *of);
    let unspecified: Vec<&str> =
        table.keys().filter(|op| !specified(other(op).unwrap_or(op))).copied().collect();
    if table.is_empty() || !unspecified.is_empty() {
        bail!("coverage: ops without scalar.rs, the specification: {unspecified:?}");
    }
    Ok(())
}

/// Op to the instruction sets that it is written or compiled for.
fn table(sources: &[Source]) -> BTreeMap<&str, BTreeMap<&str, char>> {
    let mut table: BTreeMap<_, BTreeMap<_, _>> = BTreeMap::new();
    for source in sources {
        let Some(path) = source.path.strip_prefix(KERNELS).and_then(|p| p.strip_suffix(".rs"))
        else {
            continue;
        };
        if let Some((op, isa)) = path.rsplit_once('/').filter(|(_, isa)| LEAVES.contains(isa)) {
            table.entry(op).or_default().insert(isa, 'x');
        }
        if source.text.contains("recompile!(isa") {
            let arms = table.entry(path).or_default();
            COMPILED.iter().for_each(|isa| _ = arms.entry(isa).or_insert('c'));
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_comes_from_the_paths() {
        let sources = [
            ("crates/kernels/src/quant/q8_0/scalar.rs", ""),
            ("crates/kernels/src/quant/q8_0/avx2.rs", ""),
            ("crates/kernels/src/quant/q8_0/tests.rs", ""),
            ("crates/kernels/src/isa/x86.rs", ""),
            ("crates/kernels/src/norm.rs", "recompile!(isa => scalar::norm, (x: f32))"),
            ("crates/kernels/src/norm/scalar.rs", ""),
            ("crates/kernels/src/norm/avx2.rs", ""),
        ]
        .map(|(path, text)| Source { path: path.to_owned(), text: text.to_owned() });
        let table = table(&sources);
        assert_eq!(table.len(), 2);
        assert_eq!(table["quant/q8_0"], [("avx2", 'x'), ("scalar", 'x')].into());
        assert_eq!(
            table["norm"],
            [("avx2", 'x'), ("avx512", 'c'), ("neon", 'c'), ("scalar", 'x')].into()
        );
    }
}
