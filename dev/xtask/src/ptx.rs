//! `cargo xtask ptx`: the PTX that the CUDA provider ships, from its sources.
//!
//! The committed files name the hash of their sources, so that a check needs no compiler.

mod assemble;
mod modules;
mod tools;

use std::io::Write;
use std::process::Stdio;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::workspace::root;
use modules::{BLOCKS, Module, blocks_header, modules, strays};

const NVRTC: &str = include_str!("ptx/nvrtc.py");

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Write nothing: compare the committed files with their sources, and assemble them for every
    /// chip where the assembler can be had
    #[arg(long)]
    check: bool,
    /// Compile only the modules whose sources changed, and do not assemble
    #[arg(long, conflicts_with = "check")]
    quick: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    if args.check {
        check()?;
        return match tools::assembler() {
            Ok(ptxas) => assemble::check(&ptxas, &modules()),
            Err(error) => {
                println!("SKIPPED assembling: {error:#}");
                Ok(())
            }
        };
    }
    build(args.quick)?;
    if args.quick {
        return Ok(());
    }
    assemble::write(&tools::assembler()?, &modules())
}

/// Fails unless every committed file was made from the sources as they are.
pub(crate) fn check() -> Result<()> {
    let modules = modules();
    let mut wrong = Vec::new();
    if std::fs::read_to_string(root().join(BLOCKS)).ok() != Some(blocks_header()) {
        wrong.push(format!("{BLOCKS} differs from the registry of formats"));
    }
    for module in &modules {
        if !is_current(module)? {
            wrong.push(format!("{}.ptx was not made from its sources as they are", module.name));
        }
    }
    wrong.extend(strays(&modules)?.iter().map(|path| format!("{} is no module", path.display())));
    for line in &wrong {
        eprintln!("ptx: {line}");
    }
    ensure!(wrong.is_empty(), "run `cargo xtask ptx`: {} files are wrong", wrong.len());
    println!("ptx: {} modules, made from their sources", modules.len());
    Ok(())
}

fn is_current(module: &Module) -> Result<bool> {
    let line = module.first_line(tools::COMPILER_NAME)?;
    let text = std::fs::read_to_string(module.path()).unwrap_or_default();
    Ok(text.lines().next() == Some(line.as_str()))
}

fn build(quick: bool) -> Result<()> {
    std::fs::write(root().join(BLOCKS), blocks_header())?;
    let mut modules = modules();
    for stray in strays(&modules)? {
        println!("ptx: removing {}", stray.display());
        std::fs::remove_file(stray)?;
    }
    if quick {
        let mut old = Vec::new();
        for module in modules {
            if !is_current(&module)? {
                old.push(module);
            }
        }
        modules = old;
    }
    // Before the compiler reads them: a source that is edited meanwhile makes the file outdated.
    let lines: Vec<String> = modules
        .iter()
        .map(|module| module.first_line(tools::COMPILER_NAME))
        .collect::<Result<_>>()?;
    let results = compile(&modules)?;
    ensure!(results.len() == modules.len(), "the compiler answered {} jobs", results.len());
    let mut failed = 0;
    for ((module, line), result) in modules.iter().zip(lines).zip(&results) {
        let log = result["log"].as_str().unwrap_or_default().trim();
        let Some(ptx) = result["ptx"].as_str() else {
            eprintln!("ptx: {}:\n{log}", module.name);
            failed += 1;
            continue;
        };
        // A warning is not a failure: new compilers warn about old chips.
        if !log.is_empty() {
            println!("ptx: {}: {log}", module.name);
        }
        std::fs::write(module.path(), format!("{line}\n{}", shorten(ptx)))?;
    }
    if failed > 0 {
        bail!("{failed} modules do not compile");
    }
    println!("ptx: {} modules written", modules.len());
    Ok(())
}

/// Compiles each module in a process of its own: what the compiler writes depends on what it has
/// compiled before.
fn compile(modules: &[Module]) -> Result<Vec<Value>> {
    let library = tools::compiler()?;
    let compile_one = |module: &Module| -> Result<Value> {
        let job = json!([{
            "name": module.name,
            "source": module.source(),
            "options": module.compiler_options(),
        }]);
        let mut child = tools::python()
            .args(["-c", NVRTC])
            .arg(&library)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start python3")?;
        let mut stdin = child.stdin.take().context("the input of python3 is not piped")?;
        stdin.write_all(serde_json::to_string(&job)?.as_bytes())?;
        drop(stdin);
        let output = child.wait_with_output()?;
        ensure!(output.status.success(), "the compiler's script failed ({})", output.status);
        let mut results: Value = serde_json::from_slice(&output.stdout).context("not JSON")?;
        Ok(results[0].take())
    };
    modules.iter().map(compile_one).collect()
}

/// Drops what says nothing: comments, empty lines, indentation, and variables that no code names
/// (the compiler writes out every constant).
fn shorten(ptx: &str) -> String {
    let lines: Vec<&str> = ptx
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with("//"))
        .collect();
    let is_used = |name: &str| {
        let uses = lines.iter().filter(|line| line.split(|c| !is_word(c)).any(|word| word == name));
        uses.count() > 1
    };
    let mut text = String::with_capacity(ptx.len());
    for line in &lines {
        if line.starts_with(".global") && variable(line).is_some_and(|name| !is_used(name)) {
            continue;
        }
        text.push_str(line);
        text.push('\n');
    }
    text
}

fn is_word(c: char) -> bool {
    c == '_' || c == '$' || c == '%' || c.is_ascii_alphanumeric()
}

/// The name in `.global .align 4 .u32 name = 1;`.
fn variable(line: &str) -> Option<&str> {
    let end = line.find(['=', '[', ';'])?;
    line[..end].split_whitespace().last()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shortening_keeps_code_and_the_variables_it_uses() {
        let ptx = "//\n// Generated\n\n.version 8.0\n.global .align 4 .u32 USED = 3;\n\
                   .global .align 4 .b8 UNUSED[2] = {1, 0};\n\tld.global.u32 %r1, [USED];\n\
                   \t// begin inline asm\n";
        let want = ".version 8.0\n.global .align 4 .u32 USED = 3;\nld.global.u32 %r1, [USED];\n";
        assert_eq!(shorten(ptx), want);
    }
}
