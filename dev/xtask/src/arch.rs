//! The rules of ARCHITECTURE.md that a compiler does not check.
//!
//! Every list of exceptions is a constant at the top of this file: a new exception is one line here,
//! where a reviewer sees it.

use std::collections::BTreeSet;

use anyhow::{Result, bail};

use crate::lexer::{Kind, Token, tokens};
use crate::workspace::{Edge, Metadata, Source, sources};

/// Who may depend on whom. An edge points down, never up or sideways.
const EDGES: &[(&str, &[&str])] = &[
    ("fucina-dtype", &[]),
    ("fucina-gguf", &["fucina-dtype"]),
    ("fucina-hub", &[]),
    ("fucina-kernels", &["fucina-dtype"]),
    ("fucina-accel", &["fucina-dtype"]),
    ("fucina-blas", &[]),
    ("fucina-runtime", &["fucina-kernels", "fucina-blas", "fucina-accel", "fucina-dtype"]),
    ("fucina-llm", &["fucina-runtime", "fucina-gguf", "fucina-dtype"]),
    ("fucina-cuda", &["fucina-accel", "fucina-dtype"]),
    ("fucina", &["fucina-cuda", "fucina-runtime", "fucina-accel", "fucina-llm", "fucina-gguf"]),
    ("fucina-cuda-sim", &[]),
    ("fucina-cli", &["fucina", "fucina-hub"]),
    ("fucina-cuda-driver", &["fucina-cuda-sim"]),
    ("fucina-amx-emulator", &[]),
    ("fucina-blas-double", &[]),
    ("fucina-testkit", &[]),
    ("fucina-models", &[]),
    ("xtask", &["fucina-gguf", "fucina-dtype", "fucina-testkit"]),
];

/// Edges that only tests and benchmarks may have, beside those above. Any crate may use the test kit.
const DEV_EDGES: &[(&str, &str)] = &[
    // Tests of a provider outside the crate see what a provider crate sees.
    ("fucina-accel", "fucina-accel"),
    // Its tests run kernels on weights of every format.
    ("fucina-cuda-sim", "fucina-dtype"),
    // Their tests open the stand-in for the driver.
    ("fucina-cuda", "fucina-cuda-driver"),
    ("fucina-cli", "fucina-cuda-driver"),
    ("fucina", "fucina-cuda-driver"),
    // Their tests run AMX instructions in software.
    ("fucina-kernels", "fucina-amx-emulator"),
    ("fucina-runtime", "fucina-amx-emulator"),
    ("fucina-llm", "fucina-amx-emulator"),
    // Their tests open the stand-in for a BLAS library.
    ("fucina-blas", "fucina-blas-double"),
    ("fucina-runtime", "fucina-blas-double"),
    ("fucina-cli", "fucina-blas-double"),
    // Its tests run a model on the reference provider.
    ("fucina-llm", "fucina-accel"),
];

/// Files that may contain `unsafe`, besides the dispatch files of the kernels (see
/// [`may_be_unsafe`]). A trailing `*` stands for the rest of the path.
const UNSAFE_FILES: &[&str] = &[
    "crates/accel/src/buffer.rs",
    "crates/accel/src/storage.rs",
    "crates/accel/src/submission.rs",
    "crates/accel/src/provider.rs",
    "crates/accel/src/reference*",
    "crates/accel/tests/*",
    "crates/blas/src/sys.rs",
    "crates/blas/src/output.rs",
    "crates/blas/tests/library.rs",
    "crates/cuda/src/sys.rs",
    "crates/cuda/src/cublas.rs",
    "crates/cuda/src/nvrtc.rs",
    "crates/cuda/src/driver.rs",
    "crates/cuda/src/inputs.rs",
    "crates/cuda/src/pages.rs",
    "crates/cuda/src/queue.rs",
    "crates/cuda/src/flight.rs",
    "crates/cuda/src/lib.rs",
    // It forks.
    "crates/cuda/tests/fork.rs",
    "crates/gguf/src/map.rs",
    // An allocator that counts.
    "crates/llm/tests/chat_memory.rs",
    "crates/llm/tests/generations.rs",
    // They promise that AMX instructions run in software.
    "crates/llm/tests/amx.rs",
    "crates/runtime/tests/amx.rs",
    "crates/runtime/src/threads*",
    "dev/amx-emulator/src/signal.rs",
    "dev/amx-emulator/src/guarded.rs",
    // The instruction for a fused multiply-add.
    "dev/amx-emulator/src/tiles.rs",
    "dev/amx-emulator/tests/machine.rs",
    "dev/blas-double/src/*",
    "dev/cuda-driver/src/*",
    // A handler of signals; products of peers that take pointers.
    "dev/peers/src/hide.rs",
    "dev/peers/src/raw.rs",
];

/// File names, inside the kernel crate, of the leaves for one instruction set. They contain no
/// `unsafe`; the file that dispatches to them does.
pub(crate) const LEAVES: &[&str] = &[
    "scalar",
    "avx2",
    "avx2_vnni",
    "avx512",
    "avx512_vnni",
    "amx_int8",
    "amx_bf16",
    "neon",
    "neon_dotprod",
    "neon_i8mm",
];

/// Crates whose root file must say `#![forbid(unsafe_code)]`.
const FORBID_UNSAFE: &[&str] = &[
    "crates/dtype/src/lib.rs",
    "crates/llm/src/lib.rs",
    "crates/fucina/src/lib.rs",
    "crates/hub/src/lib.rs",
    "crates/cli/src/main.rs",
    "dev/testkit/src/lib.rs",
    "dev/xtask/src/main.rs",
];

/// Files and folders that may read environment variables. Tests may, too.
const ENV_FILES: &[&str] = &[
    "crates/cuda/src/config.rs",
    "crates/hub/src/config.rs",
    "crates/runtime/src/config.rs",
    "crates/cli/*",
    "dev/*",
];

/// Longest file, tests apart.
const MAX_LINES: usize = 800;

/// Checks every rule and prints what is wrong.
pub(crate) fn run() -> Result<()> {
    let metadata = Metadata::read()?;
    let sources = sources(&["crates", "dev"])?;
    let mut wrong = wrong_edges(&metadata.packages, &metadata.edges);
    for source in &sources {
        let tokens = tokens(&source.text);
        wrong.extend(wrong_unsafe(source, &tokens));
        wrong.extend(wrong_env(source, &tokens));
        wrong.extend(too_long(source));
    }
    wrong.extend(missing_forbids(&sources));
    for line in &wrong {
        eprintln!("arch: {line}");
    }
    if !wrong.is_empty() {
        bail!("{} breaches of the architecture (rules: dev/xtask/src/arch.rs)", wrong.len());
    }
    println!(
        "arch: {} packages and {} files keep the rules",
        metadata.packages.len(),
        sources.len()
    );
    Ok(())
}

fn wrong_edges(packages: &[String], edges: &[Edge]) -> Vec<String> {
    let ours: BTreeSet<&str> = packages.iter().map(String::as_str).collect();
    let mut wrong = Vec::new();
    for package in packages {
        if !EDGES.iter().any(|(from, _)| from == package) {
            wrong.push(format!("package {package} has no row in the table of edges"));
        }
    }
    for edge in edges.iter().filter(|edge| ours.contains(edge.to.as_str())) {
        if !edge_is_allowed(edge) {
            let kind = if edge.dev { " (tests)" } else { "" };
            wrong.push(format!("{} must not depend on {}{kind}", edge.from, edge.to));
        }
    }
    wrong
}

fn edge_is_allowed(edge: &Edge) -> bool {
    let listed = |(from, to): &(&str, &[&str])| *from == edge.from && to.contains(&&*edge.to);
    let for_tests = || {
        edge.to == "fucina-testkit" || DEV_EDGES.contains(&(edge.from.as_str(), edge.to.as_str()))
    };
    EDGES.iter().any(listed) || (edge.dev && for_tests())
}

/// Whether `path` is on `list`, where an entry may end in `*`.
fn is_listed(list: &[&str], path: &str) -> bool {
    list.iter().any(|entry| match entry.strip_suffix('*') {
        Some(prefix) => path.starts_with(prefix),
        None => *entry == path,
    })
}

/// Kernels: everything but the leaves may hold the one line that enters a leaf.
fn may_be_unsafe(source: &Source) -> bool {
    let kernel = source.path.starts_with("crates/kernels/src/");
    let leaf = LEAVES.contains(&source.stem());
    is_listed(UNSAFE_FILES, &source.path) || (kernel && !leaf)
}

fn wrong_unsafe(source: &Source, tokens: &[Token<'_>]) -> Vec<String> {
    let mut wrong = Vec::new();
    let leaf = source.path.starts_with("crates/kernels/src/") && LEAVES.contains(&source.stem());
    let denied = tokens.windows(3).any(|w| {
        matches!(w[0].text, "deny" | "forbid") && w[1].text == "(" && w[2].text == "unsafe_code"
    });
    if leaf && source.stem() != "scalar" && !denied {
        wrong.push(format!("{} is a leaf and must deny unsafe_code", source.path));
    }
    if !may_be_unsafe(source)
        && let Some(token) = tokens.iter().find(|t| t.kind == Kind::Ident && t.text == "unsafe")
    {
        wrong.push(format!("{}:{}: unsafe is not allowed in this file", source.path, token.line));
    }
    wrong
}

fn missing_forbids(sources: &[Source]) -> Vec<String> {
    let forbids = |source: &Source| {
        tokens(&source.text)
            .windows(3)
            .any(|w| w[0].text == "forbid" && w[1].text == "(" && w[2].text == "unsafe_code")
    };
    FORBID_UNSAFE
        .iter()
        .filter(|path| !sources.iter().any(|source| source.path == **path && forbids(source)))
        .map(|path| format!("{path} must say #![forbid(unsafe_code)]"))
        .collect()
}

/// Reads of the environment above the tests, which come last in a file.
fn wrong_env(source: &Source, tokens: &[Token<'_>]) -> Vec<String> {
    if source.is_test() || is_listed(ENV_FILES, &source.path) {
        return Vec::new();
    }
    let reads = |w: &[Token<'_>]| {
        let path = w[0].text == "env" && w[1].text == ":" && w[2].text == ":";
        path && matches!(w[3].text, "var" | "var_os" | "vars" | "vars_os" | "set_var")
    };
    let tests = tokens
        .windows(5)
        .position(|w| w[0].text == "cfg" && w[2].text == "test" && w[4].text == "]");
    tokens[..tests.unwrap_or(tokens.len())]
        .windows(4)
        .filter(|w| reads(w))
        .map(|w| format!("{}:{}: only config.rs reads the environment", source.path, w[0].line))
        .collect()
}

fn too_long(source: &Source) -> Option<String> {
    let lines = source.text.lines().count();
    let long = lines > MAX_LINES && !source.is_test();
    long.then(|| format!("{} has {lines} lines; split it below {MAX_LINES}", source.path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(path: &str, text: &str) -> Source {
        Source { path: path.to_owned(), text: text.to_owned() }
    }

    fn edge(from: &str, to: &str, dev: bool) -> Edge {
        Edge { from: from.to_owned(), to: to.to_owned(), dev }
    }

    fn unsafe_in(path: &str, text: &str) -> usize {
        wrong_unsafe(&source(path, text), &tokens(text)).len()
    }

    #[test]
    fn an_edge_that_points_up_or_sideways_is_wrong() {
        assert!(edge_is_allowed(&edge("fucina-llm", "fucina-runtime", false)));
        assert!(!edge_is_allowed(&edge("fucina-runtime", "fucina-llm", false)));
        assert!(!edge_is_allowed(&edge("fucina-kernels", "fucina-accel", false)));
        assert!(!edge_is_allowed(&edge("fucina-kernels", "fucina-testkit", false)));
        assert!(edge_is_allowed(&edge("fucina-kernels", "fucina-testkit", true)));
    }

    #[test]
    fn the_table_of_edges_has_no_cycle() {
        // Every crate stands below the crates whose rows name it, so rows can be removed bottom-up.
        let mut left: Vec<_> = EDGES.to_vec();
        while !left.is_empty() {
            let before = left.len();
            let names: Vec<&str> = left.iter().map(|(name, _)| *name).collect();
            left.retain(|(_, to)| to.iter().any(|to| names.contains(to)));
            assert!(left.len() < before, "a cycle among {names:?}");
        }
    }

    #[test]
    fn a_package_without_a_row_is_reported() {
        assert_eq!(wrong_edges(&["fucina-new".to_owned()], &[]).len(), 1);
    }

    #[test]
    fn unsafe_is_found_where_it_is_not_listed() {
        assert_eq!(unsafe_in("crates/llm/src/model.rs", "fn f() { unsafe { g() } }"), 1);
        assert_eq!(
            unsafe_in("crates/llm/src/model.rs", "// unsafe\nconst X: &str = \"unsafe\";"),
            0
        );
        assert_eq!(unsafe_in("crates/gguf/src/map.rs", "unsafe {}"), 0);
    }

    #[test]
    fn a_leaf_denies_unsafe_and_has_none() {
        let leaf = "crates/kernels/src/quant/q8_0/avx2.rs";
        assert_eq!(unsafe_in(leaf, "#![deny(unsafe_code)]"), 0);
        assert_eq!(unsafe_in(leaf, "fn f() {}"), 1);
        assert_eq!(unsafe_in(leaf, "#![deny(unsafe_code)] unsafe {}"), 1);
        assert_eq!(unsafe_in("crates/kernels/src/quant/q8_0.rs", "unsafe {}"), 0);
    }

    #[test]
    fn only_the_configuration_reads_the_environment() {
        let text = "let x = std::env::var(\"X\");";
        let wrong = |path| wrong_env(&source(path, text), &tokens(text)).len();
        assert_eq!(wrong("crates/kernels/src/isa.rs"), 1);
        assert_eq!(wrong("crates/kernels/src/quant/tests.rs"), 0);
        assert_eq!(wrong("crates/runtime/src/config.rs"), 0);
        let text = "#[cfg(test)]\nmod tests { fn f() { std::env::var(\"X\"); } }";
        assert!(wrong_env(&source("crates/kernels/src/isa.rs", text), &tokens(text)).is_empty());
    }

    #[test]
    fn a_long_file_is_wrong_unless_it_is_a_test() {
        let long = "\n".repeat(MAX_LINES + 1);
        assert!(too_long(&source("crates/a/src/b.rs", &long)).is_some());
        assert!(too_long(&source("crates/a/src/b_tests.rs", &long)).is_none());
        assert!(too_long(&source("crates/a/src/b.rs", "\n")).is_none());
    }
}
