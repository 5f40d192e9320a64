//! Every dependency has a licence that `deny.toml` accepts.
//!
//! This is the part of `cargo deny` that must never be skipped, so it needs no other tool.

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::workspace::root;

const POLICY: &str = "deny.toml";

/// Compares the licence of every package in the lock file, for all targets, with the policy.
pub(crate) fn run() -> Result<()> {
    let policy = std::fs::read_to_string(root().join(POLICY))
        .with_context(|| format!("cannot read {POLICY}"))?;
    let allowed = allowed(&policy);
    ensure!(!allowed.is_empty(), "{POLICY} has no line `allow = [..]`");
    let output = Command::new("cargo")
        .args(["metadata", "--format-version", "1", "--all-features"])
        .current_dir(root())
        .output()
        .context("cannot start cargo")?;
    ensure!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let json: Value =
        serde_json::from_slice(&output.stdout).context("cargo metadata is not JSON")?;
    let packages = json["packages"].as_array().context("cargo metadata names no packages")?;
    let mut refused = 0;
    for package in packages {
        let (name, licence) = (&package["name"], package["license"].as_str().unwrap_or("none"));
        if !is_allowed(licence, &allowed) {
            eprintln!("licences: {name} has {licence}, which {POLICY} does not accept");
            refused += 1;
        }
    }
    if refused > 0 {
        bail!("{refused} packages with a licence that is not accepted");
    }
    println!("licences: {} packages, all accepted", packages.len());
    Ok(())
}

/// The names between the brackets of `allow = [..]`.
fn allowed(policy: &str) -> BTreeSet<&str> {
    let list = policy.split("\nallow = [").nth(1).and_then(|rest| rest.split(']').next());
    let names = list.unwrap_or_default().split(',');
    names.map(|name| name.trim().trim_matches('"')).filter(|name| !name.is_empty()).collect()
}

/// Whether an SPDX expression can be satisfied. `AND` binds tighter than `OR`; an old `/` is `OR`;
/// brackets around alternatives are read.
fn is_allowed(expression: &str, allowed: &BTreeSet<&str>) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut words = words.into_iter().peekable();
    let result = alternatives(&mut words, allowed);
    result && words.peek().is_none()
}

type Words<'a> = std::iter::Peekable<std::vec::IntoIter<&'a str>>;

fn alternatives(words: &mut Words<'_>, allowed: &BTreeSet<&str>) -> bool {
    let mut any = conjunction(words, allowed);
    while words.next_if_eq(&"OR").is_some() {
        any |= conjunction(words, allowed);
    }
    any
}

fn conjunction(words: &mut Words<'_>, allowed: &BTreeSet<&str>) -> bool {
    let mut all = term(words, allowed);
    while words.next_if_eq(&"AND").is_some() {
        all &= term(words, allowed);
    }
    all
}

fn term(words: &mut Words<'_>, allowed: &BTreeSet<&str>) -> bool {
    if words.next_if_eq(&"(").is_some() {
        let inner = alternatives(words, allowed);
        return words.next() == Some(")") && inner;
    }
    let Some(name) = words.next() else { return false };
    let exception = words.next_if_eq(&"WITH").and_then(|_| words.next());
    let full =
        exception.map_or_else(|| name.to_owned(), |exception| format!("{name} WITH {exception}"));
    allowed.contains(full.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_read_as_spdx_means_them() {
        let allowed = allowed("[licenses]\nallow = [\"MIT\", \"Unicode-3.0\"]\n");
        let yes = ["MIT", "GPL-3.0 OR MIT", "MIT/Apache-2.0", "(MIT OR GPL-3.0) AND Unicode-3.0"];
        let no = ["GPL-3.0", "MIT AND GPL-3.0", "none", "", "MIT WITH x", "(MIT", "MIT MIT"];
        for expression in yes {
            assert!(is_allowed(expression, &allowed), "{expression}");
        }
        for expression in no {
            assert!(!is_allowed(expression, &allowed), "{expression}");
        }
    }
}
