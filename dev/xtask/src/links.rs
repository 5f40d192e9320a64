//! Links between the pages of this repository lead somewhere.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::workspace::root;

/// Folders with pages; the root itself is searched without its folders.
const FOLDERS: &[&str] = &["docs", "bench", "golden", "crates", "dev"];

/// Checks every relative link of every Markdown page, and the tests that pages cite.
pub(crate) fn run() -> Result<()> {
    let root = root();
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
}
