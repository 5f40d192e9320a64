//! What the command writes on each emulated processor.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

use super::Cpu;
use super::toolchain::{TARGET, build};
use crate::process::{self, target_dir};
use crate::workspace::root;

/// Holds the greedy continuation of an exact forward pass, made by neither this nor that kernel.
const GOLDEN: &str = "golden/models/models.json";
/// The model inside the command.
const MODEL: &str = "austen-q8_0.gguf";

/// Lets the command write, and compares with the exact text: no best token is close to another.
/// The first processor is forced to each of its instruction sets, the others choose.
pub(super) fn compare(cpus: &[Cpu]) -> Result<String> {
    let golden = Golden::read()?;
    process::run(&mut build("build", "-p fucina-cli"))?;
    let program = target_dir("neon").join(TARGET).join("debug/fucina");
    let mut runs = 0;
    for (at, cpu) in cpus.iter().enumerate() {
        let isas = cpu.isas();
        let forced = if at == 0 { isas } else { &[] };
        let best = isas.last().copied().unwrap_or_default();
        for isa in forced.iter().copied().map(Some).chain([None]) {
            let text = write(*cpu, &program, &golden, (isa, isa.unwrap_or(best)))?;
            ensure!(
                text == golden.text,
                "{}, {}: {text:?} is not {:?}",
                cpu.name(),
                isa.unwrap_or(best),
                golden.text
            );
            runs += 1;
        }
    }
    Ok(format!("{runs} emulated runs write the exact text"))
}

/// A prompt and its text, prompt included.
struct Golden {
    prompt: String,
    tokens: String,
    text: String,
}

impl Golden {
    fn read() -> Result<Self> {
        let json = std::fs::read(root().join(GOLDEN)).context(GOLDEN)?;
        let json: serde_json::Value = serde_json::from_slice(&json).context(GOLDEN)?;
        let model = &json["models"][MODEL];
        let tokens = model["exact_greedy"].as_array().map_or(0, Vec::len);
        // The other program's text is that of the exact tokens where its tokens are the same.
        ensure!(
            tokens > 0 && model["exact_greedy"] == model["llama_cpp_greedy"],
            "{GOLDEN} has no exact text of {MODEL}"
        );
        let string = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
        let prompt = string(&json["prompt"]);
        let text = format!("{prompt}{}", string(&model["llama_cpp_text"]));
        Ok(Self { prompt, tokens: tokens.to_string(), text })
    }
}

/// Runs the command, forced to an instruction set or not. It must say that it uses the second.
fn write(
    cpu: Cpu,
    program: &Path,
    golden: &Golden,
    (forced, expected): (Option<&str>, &str),
) -> Result<String> {
    let [emulator, arguments @ ..] = cpu.emulator();
    let output = Command::new(emulator)
        .args(arguments)
        .arg(program)
        .args(["run", &golden.prompt, "-n", &golden.tokens, "--greedy"])
        .env_remove("FUCINA_CPU_ISA")
        .envs(forced.map(|isa| ("FUCINA_CPU_ISA", isa)))
        .output()
        .context("cannot start the emulator")?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() || !said.contains(&format!("cpu {expected},")) {
        bail!("{}, {expected}: {}: {}", cpu.name(), output.status, said.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exact_text_is_read() {
        let golden = Golden::read().unwrap();
        assert_eq!(golden.tokens, "24");
        let text = golden.text.strip_prefix(&golden.prompt).unwrap();
        assert!(text.starts_with(" and a very good-humoured"), "{text}");
    }
}
