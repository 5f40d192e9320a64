//! Links between the pages of this repository lead somewhere, and no merge was left half done.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::workspace::root;

/// Folders with pages; the root itself is searched without its folders.
const FOLDERS: &[&str] = &["docs", "bench", "golden", "crates", "dev"];

/// Checks every relative link of every Markdown page, the tests that pages cite, and that no
/// tracked text holds conflict markers.
pub(crate) fn run() -> Result<()> {
    let root = root();
    conflicts(&root)?;
    let mut pages = Vec::new();
    for folder in FOLDERS {
        collect(&root.join(folder), true, &mut pages)?;
    }
    collect(&root, false, &mut pages)?;
    let (mut links, mut broken) = (0, 0);
    for page in &pages {
        let text = std::fs::read_to_string(page)
            .with_context(|| format!("cannot read {}", page.display()))?;
        let folder = page.parent().unwrap_or(&root);
        for target in targets(&text) {
            links += 1;
            if !folder.join(target).exists() {
                let page = page.strip_prefix(&root).unwrap_or(page);
                eprintln!("links: {} points to {target}, which is not there", page.display());
                broken += 1;
            }
        }
    }
    if broken > 0 {
        bail!("{broken} links lead nowhere");
    }
    println!("links: {links} links in {} pages", pages.len());
    crate::cited::run(&root)
}

/// Fails if a tracked text still has both sides of a merge.
fn conflicts(root: &Path) -> Result<()> {
    let output = Command::new("git")
        .args(["ls-files", "-z"])
        .current_dir(root)
        .output()
        .context("cannot start git")?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "git ls-files failed: {stderr}");
    let names = String::from_utf8(output.stdout).context("a tracked name is not UTF-8")?;
    let (mut texts, mut found) = (0, 0);
    for name in names.split_terminator('\0') {
        let path = root.join(name);
        // Deleted but not committed yet, or a link to a folder.
        if !path.is_file() {
            continue;
        }
        let bytes = std::fs::read(&path).with_context(|| format!("cannot read {name}"))?;
        let Ok(text) = String::from_utf8(bytes) else { continue };
        texts += 1;
        for line in markers(&text) {
            eprintln!("links: {name}:{line} is a conflict marker; finish the merge");
            found += 1;
        }
    }
    ensure!(found == 0, "{found} conflict markers");
    println!("links: no conflict markers in {texts} texts");
    Ok(())
}

/// The numbers of the lines that a merge tool left.
fn markers(text: &str) -> Vec<usize> {
    let is_marker = |line: &str| line.starts_with("<<<<<<< ") || line.starts_with(">>>>>>> ");
    text.lines().zip(1..).filter(|(line, _)| is_marker(line)).map(|(_, number)| number).collect()
}

fn collect(folder: &Path, deep: bool, pages: &mut Vec<PathBuf>) -> Result<()> {
    let entries =
        std::fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        let is_target = path.file_name().is_some_and(|name| name == "target");
        if path.is_dir() && deep && !is_target {
            collect(&path, deep, pages)?;
        } else if path.extension().is_some_and(|extension| extension == "md") {
            pages.push(path);
        }
    }
    Ok(())
}

/// The files that inline links of a page name, without anchors. Code blocks and addresses are left
/// out.
fn targets(page: &str) -> Vec<&str> {
    let mut in_code = false;
    let mut targets = Vec::new();
    for line in page.lines() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        }
        if in_code {
            continue;
        }
        for after in line.split("](").skip(1) {
            let target = after.split(')').next().unwrap_or_default();
            let file = target.split('#').next().unwrap_or_default();
            if !file.is_empty() && !target.contains("://") && !target.starts_with("mailto:") {
                targets.push(file);
            }
        }
    }
    targets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_links_to_files_count() {
        let page = "[a](b.md) [c](../d.md#e), [f](#g) [h](https://i/j)\n```\n[k](l)\n```\n[m](n/)";
        assert_eq!(targets(page), ["b.md", "../d.md", "n/"]);
    }

    #[test]
    fn both_ends_of_a_conflict_are_found() {
        let text = "a\n<<<<<<< HEAD\nb\n=======\nc\n>>>>>>> d (e)\r\nf\n";
        assert_eq!(markers(text), [2, 6]);
        // A heading that is underlined, a shift and a quoted reply.
        assert_eq!(markers("Title\n=======\n <<<<<<< x\n<<<<<<<\n>>>>>>>> y\n"), [0; 0]);
    }
}
