//! Where the repository is, which Rust files it has, and what its manifests say.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// The folder of the workspace.
pub(crate) fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.ancestors().nth(2).unwrap_or(manifest).to_path_buf()
}

/// A Rust file: its path from the root with `/`, and its text.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) path: String,
    pub(crate) text: String,
}

impl Source {
    /// The name without folder and extension.
    pub(crate) fn stem(&self) -> &str {
        let name = self.path.rsplit('/').next().unwrap_or_default();
        name.strip_suffix(".rs").unwrap_or(name)
    }

    /// Whether the file holds tests only.
    pub(crate) fn is_test(&self) -> bool {
        let stem = self.stem();
        let apart = self.path.contains("/tests/") || self.path.contains("/benches/");
        apart || stem == "tests" || stem.ends_with("_tests")
    }
}

/// Every Rust file under `folders`, in order of path.
pub(crate) fn sources(folders: &[&str]) -> Result<Vec<Source>> {
    let root = root();
    let mut sources = Vec::new();
    let mut pending: Vec<PathBuf> = folders.iter().map(|folder| root.join(folder)).collect();
    while let Some(folder) = pending.pop() {
        let entries = std::fs::read_dir(&folder)
            .with_context(|| format!("cannot list {}", folder.display()))?;
        for entry in entries {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_dir() {
                if name != "target" && !name.starts_with('.') {
                    pending.push(path);
                }
            } else if name.ends_with(".rs") {
                let text = std::fs::read_to_string(&path)
                    .with_context(|| format!("cannot read {}", path.display()))?;
                let path = path.strip_prefix(&root)?.to_string_lossy().replace('\\', "/");
                sources.push(Source { path, text });
            }
        }
    }
    sources.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(sources)
}

/// A dependency of one workspace package on another, or on a package from outside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Edge {
    pub(crate) from: String,
    pub(crate) to: String,
    /// Only its tests and benchmarks use it.
    pub(crate) dev: bool,
}

/// A target that a smoke run starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) package: String,
    pub(crate) name: String,
    pub(crate) kind: String,
}

/// What `cargo metadata` says about the packages of the workspace.
#[derive(Debug)]
pub(crate) struct Metadata {
    pub(crate) packages: Vec<String>,
    pub(crate) edges: Vec<Edge>,
    pub(crate) targets: Vec<Target>,
}

impl Metadata {
    /// Runs `cargo metadata`.
    pub(crate) fn read() -> Result<Self> {
        let output = Command::new("cargo")
            .args(["metadata", "--no-deps", "--format-version", "1"])
            .current_dir(root())
            .output()
            .context("cannot start cargo")?;
        ensure!(
            output.status.success(),
            "cargo metadata failed: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Self::parse(&output.stdout)
    }

    fn parse(json: &[u8]) -> Result<Self> {
        let json: Value = serde_json::from_slice(json).context("cargo metadata is not JSON")?;
        let mut metadata = Self { packages: Vec::new(), edges: Vec::new(), targets: Vec::new() };
        for package in list(&json, "packages") {
            let name = text(package, "name");
            for dependency in list(package, "dependencies") {
                metadata.edges.push(Edge {
                    from: name.clone(),
                    to: text(dependency, "name"),
                    dev: dependency["kind"] == "dev",
                });
            }
            for target in list(package, "targets") {
                let kind = target["kind"][0].as_str().unwrap_or_default().to_owned();
                metadata.targets.push(Target {
                    package: name.clone(),
                    name: text(target, "name"),
                    kind,
                });
            }
            metadata.packages.push(name);
        }
        Ok(metadata)
    }
}

fn list<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    value[key].as_array().into_iter().flatten()
}

fn text(value: &Value, key: &str) -> String {
    value[key].as_str().unwrap_or_default().to_owned()
}
