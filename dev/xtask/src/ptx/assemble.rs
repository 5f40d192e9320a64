//! Assembles the modules for every chip and tabulates what the kernels need.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, bail, ensure};
use sha2::{Digest, Sha256};

use super::modules::Module;
use super::tools::ASSEMBLER_NAME;
use crate::process;
use crate::workspace::root;

/// From Volta to Blackwell.
const CHIPS: &[u32] = &[70, 75, 80, 86, 89, 90, 100, 120];

const TABLE: &str = "docs/perf/0003-kernel-resources.md";

/// What the assembler says about a kernel on one chip.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Resources {
    registers: u32,
    shared_bytes: u32,
    spill_bytes: u32,
}

/// (module, kernel) to resources by chip.
type Table = BTreeMap<(String, String), BTreeMap<u32, Resources>>;

/// Fails on spills and if the committed table is not the one that the assembler gives.
pub(super) fn check(ptxas: &Path, modules: &[Module]) -> Result<()> {
    let text = table(&assemble(ptxas, modules)?);
    let committed = std::fs::read_to_string(root().join(TABLE)).unwrap_or_default();
    ensure!(committed == text, "{TABLE} is out of date: run `cargo xtask ptx`");
    println!("ptx: {} modules assembled for {} chips, no spills", modules.len(), CHIPS.len());
    Ok(())
}

/// Writes the table. Fails on spills.
pub(super) fn write(ptxas: &Path, modules: &[Module]) -> Result<()> {
    std::fs::write(root().join(TABLE), table(&assemble(ptxas, modules)?))?;
    println!("ptx: {TABLE} written");
    Ok(())
}

fn assemble(ptxas: &Path, modules: &[Module]) -> Result<Table> {
    let jobs: Vec<(&Module, u32)> = modules
        .iter()
        .flat_map(|module| CHIPS.iter().map(move |&chip| (module, chip)))
        .filter(|(module, chip)| *chip >= module.chip)
        .collect();
    let (next, table) = (AtomicUsize::new(0), Mutex::new(Table::new()));
    let worker = || -> Result<()> {
        while let Some((module, chip)) = jobs.get(next.fetch_add(1, Ordering::SeqCst)) {
            let kernels = assemble_one(ptxas, module, *chip)?;
            let mut table = table.lock().map_err(|_| anyhow::anyhow!("a worker panicked"))?;
            for (kernel, resources) in kernels {
                table.entry((module.name.clone(), kernel)).or_default().insert(*chip, resources);
            }
        }
        Ok(())
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().try_for_each(|worker| match worker.join() {
            Ok(result) => result,
            Err(_) => bail!("a worker panicked"),
        })
    })?;
    let table = table.into_inner().map_err(|_| anyhow::anyhow!("a worker panicked"))?;
    let mut spills = 0;
    for ((_, kernel), chips) in &table {
        for (chip, _) in chips.iter().filter(|(_, resources)| resources.spill_bytes > 0) {
            eprintln!("ptx: {kernel} spills registers on sm_{chip}");
            spills += 1;
        }
    }
    ensure!(spills == 0, "{spills} kernels spill registers");
    Ok(table)
}

/// What the assembler says is kept beside its output, under the hash of the code: most runs change
/// few modules.
fn assemble_one(ptxas: &Path, module: &Module, chip: u32) -> Result<Vec<(String, Resources)>> {
    let folder = process::target_dir("cuda-tools").join("cubin");
    std::fs::create_dir_all(&folder)?;
    let text = std::fs::read_to_string(module.path())
        .with_context(|| format!("cannot read {}", module.path().display()))?;
    let code = text.split_once('\n').map_or("", |(_, code)| code);
    let hash: String = Sha256::digest(format!("{ASSEMBLER_NAME}\n{code}"))
        .iter()
        .take(8)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let kept = folder.join(format!("{}.{chip}.{hash}.txt", module.name));
    if let Ok(said) = std::fs::read_to_string(&kept) {
        return Ok(parse(&said));
    }
    let output = Command::new(ptxas)
        .arg(format!("-arch=sm_{chip}"))
        .arg("-v")
        .arg(module.path())
        .arg("-o")
        .arg(folder.join(format!("{}.{chip}.cubin", module.name)))
        .output()
        .context("cannot start ptxas")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{} for sm_{chip}: {said}", module.name);
    let kernels = parse(&said);
    ensure!(!kernels.is_empty(), "{} for sm_{chip}: ptxas names no kernel", module.name);
    std::fs::write(kept, &*said)?;
    Ok(kernels)
}

/// Reads what `ptxas -v` says.
fn parse(said: &str) -> Vec<(String, Resources)> {
    let mut kernels: Vec<(String, Resources)> = Vec::new();
    for line in said.lines() {
        if line.contains("Compiling entry function") {
            let name = line.split('\'').nth(1).unwrap_or_default();
            kernels.push((name.to_owned(), Resources::default()));
        }
        let Some((_, resources)) = kernels.last_mut() else { continue };
        if line.contains("spill stores") {
            resources.spill_bytes = number_before(line, " bytes spill stores")
                + number_before(line, " bytes spill loads");
        }
        if line.contains(" registers") {
            resources.registers = number_before(line, " registers");
            resources.shared_bytes = number_before(line, " bytes smem");
        }
    }
    kernels
}

fn number_before(line: &str, word: &str) -> u32 {
    let head = line.split_once(word).map_or("", |(head, _)| head);
    head.rsplit(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

fn table(table: &Table) -> String {
    let mut text = format!(
        "# 0003 · What each kernel needs\n\n\
         Registers of one thread on each chip and bytes of static shared memory of one block, as \
         {ASSEMBLER_NAME}\nreports them for the committed PTX. No kernel spills. `cargo xtask ptx` \
         writes this page and\n`cargo xtask ptx --check` compares it. Evidence: *assembled*.\n\n\
         | module | kernel | shared |"
    );
    for chip in CHIPS {
        text += &format!(" sm_{chip} |");
    }
    text += "\n|---|---|---:|";
    text += &"---:|".repeat(CHIPS.len());
    text.push('\n');
    for ((module, kernel), chips) in table {
        let shared = chips.values().map(|resources| resources.shared_bytes).max().unwrap_or(0);
        let _ = write!(text, "| {module} | {kernel} | {shared} |");
        for chip in CHIPS {
            match chips.get(chip) {
                Some(resources) => text += &format!(" {} |", resources.registers),
                None => text += " – |",
            }
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_the_assembler_are_read() {
        let said = "ptxas info    : 0 bytes gmem\n\
            ptxas info    : Compiling entry function 'a' for 'sm_80'\n\
            ptxas info    : Function properties for a\n    \
            8 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads\n\
            ptxas info    : Used 40 registers, used 1 barriers, 1024 bytes smem, 448 bytes cmem[0]\n\
            ptxas info    : Compiling entry function 'b' for 'sm_80'\n    \
            0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n\
            ptxas info    : Used 8 registers, used 0 barriers, 376 bytes cmem[0]\n";
        let a = Resources { registers: 40, shared_bytes: 1024, spill_bytes: 28 };
        let b = Resources { registers: 8, shared_bytes: 0, spill_bytes: 0 };
        assert_eq!(parse(said), [("a".to_owned(), a), ("b".to_owned(), b)]);
    }
}
