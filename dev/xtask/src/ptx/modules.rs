//! Which modules there are: a source, the oldest chip it is for, and what it is compiled with.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::PathBuf;

use anyhow::{Context, Result};
use fucina_dtype::DType;
use sha2::{Digest, Sha256};

use crate::workspace::root;

const KERNELS: &str = "crates/cuda/kernels";
const PTX: &str = "crates/cuda/ptx";

/// The generated header.
pub(super) const BLOCKS: &str = "crates/cuda/kernels/blocks.cuh";

/// Block formats with kernels.
const BLOCK_FORMATS: &[DType] =
    &[DType::Q4_0, DType::Q5_0, DType::Q8_0, DType::Q4_K, DType::Q5_K, DType::Q6_K, DType::TQ2_0];

/// What the compiler is told for every module.
const OPTIONS: &[&str] = &["--std=c++17"];

/// Modules without a format: name, source, oldest chip.
const PLAIN: &[(&str, &str, u32)] = &[
    ("attention", "attention", 70),
    ("attention", "attention_sm80", 80),
    ("elementwise", "elementwise", 70),
    ("matmul", "matmul", 70),
    ("norm", "norm", 70),
    ("pack", "pack", 70),
    ("quantize", "quantize", 70),
    ("rows", "rows", 70),
];

/// Modules that there are for each block format.
const PER_FORMAT: &[PerFormat] = &[
    PerFormat { name: "gemm", source: "gemm_sm70", chip: 70, floats: true, define: None },
    PerFormat { name: "gemm", source: "gemm_sm80", chip: 80, floats: true, define: None },
    PerFormat { name: "gemv", source: "gemv", chip: 70, floats: false, define: None },
    PerFormat { name: "gemm_i8", source: "gemm_i8", chip: 70, floats: false, define: None },
    PerFormat {
        name: "gemm_i8",
        source: "gemm_i8",
        chip: 80,
        floats: false,
        define: Some("TENSOR_CORES"),
    },
    PerFormat { name: "gemv_i8", source: "gemv_i8", chip: 70, floats: false, define: None },
];

struct PerFormat {
    name: &'static str,
    source: &'static str,
    /// The oldest chip.
    chip: u32,
    /// There is one for f16 and bf16, too.
    floats: bool,
    define: Option<&'static str>,
}

/// One committed file.
pub(super) struct Module {
    /// `<op>[_<format>].sm<chip>`
    pub(super) name: String,
    source: String,
    pub(super) chip: u32,
    defines: Vec<String>,
}

impl Module {
    fn new(name: &str, source: &str, chip: u32, defines: Vec<String>) -> Self {
        Self { name: format!("{name}.sm{chip}"), source: format!("{source}.cu"), chip, defines }
    }

    pub(super) fn source(&self) -> PathBuf {
        root().join(KERNELS).join(&self.source)
    }

    pub(super) fn path(&self) -> PathBuf {
        root().join(PTX).join(format!("{}.ptx", self.name))
    }

    /// Options that belong to the module, without those that name folders.
    fn options(&self) -> Vec<String> {
        let mut options: Vec<String> = OPTIONS.iter().map(|&option| option.to_owned()).collect();
        options.push(format!("--gpu-architecture=compute_{}", self.chip));
        options.extend(self.defines.iter().map(|define| format!("-D{define}")));
        options
    }

    /// Everything that the compiler is told.
    pub(super) fn compiler_options(&self) -> Vec<String> {
        let mut options = self.options();
        options.push(format!("-I{}", root().join(KERNELS).display()));
        options
    }

    /// First line of the committed file: a hash of the sources, the options and the compiler.
    pub(super) fn first_line(&self, compiler: &str) -> Result<String> {
        let mut hash = Sha256::new();
        hash.update(compiler);
        for option in self.options() {
            hash.update(option);
            hash.update("\n");
        }
        for (name, text) in files(&self.source)? {
            hash.update(name);
            hash.update("\n");
            hash.update(text);
        }
        let mut line = String::from("// sources: sha256 ");
        for byte in hash.finalize() {
            write!(line, "{byte:02x}")?;
        }
        Ok(line)
    }
}

/// Every module, in order of name.
pub(super) fn modules() -> Vec<Module> {
    let mut modules: Vec<Module> = PLAIN
        .iter()
        .map(|&(name, source, chip)| Module::new(name, source, chip, Vec::new()))
        .collect();
    for PerFormat { name, source, chip, floats, define } in PER_FORMAT {
        let floats: &[DType] = if *floats { &[DType::F16, DType::BF16] } else { &[] };
        for dtype in BLOCK_FORMATS.iter().chain(floats) {
            let lower = dtype.name().to_lowercase();
            let mut defines = vec![format!("FORMAT={dtype}"), format!("FORMAT_NAME={lower}")];
            defines.extend(define.map(str::to_owned));
            modules.push(Module::new(&format!("{name}_{lower}"), source, *chip, defines));
        }
    }
    // Tensor cores have no f32: only the fallback is compiled for it.
    let scalar = ["FORMAT=F32", "FORMAT_NAME=f32", "SCALAR_ONLY"].map(str::to_owned);
    modules.push(Module::new("gemm_f32", "gemm_sm70", 70, scalar.to_vec()));
    modules.sort_by(|a, b| a.name.cmp(&b.name));
    modules
}

/// Committed files that are no module's.
pub(super) fn strays(modules: &[Module]) -> Result<Vec<PathBuf>> {
    let ours: BTreeSet<PathBuf> = modules.iter().map(Module::path).collect();
    let folder = root().join(PTX);
    let entries =
        std::fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))?;
    let mut strays = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if !ours.contains(&path) {
            strays.push(path);
        }
    }
    Ok(strays)
}

/// A source and what it includes, each once, with its name.
fn files(source: &str) -> Result<Vec<(String, String)>> {
    let mut files: Vec<(String, String)> = Vec::new();
    let mut pending = vec![source.to_owned()];
    while let Some(name) = pending.pop() {
        if files.iter().any(|(seen, _)| *seen == name) {
            continue;
        }
        let path = root().join(KERNELS).join(&name);
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        pending.extend(includes(&text).map(str::to_owned));
        files.push((name, text));
    }
    Ok(files)
}

fn includes(text: &str) -> impl Iterator<Item = &str> {
    let named = text.lines().filter_map(|line| line.trim().strip_prefix("#include \""));
    named.filter_map(|rest| rest.strip_suffix('"'))
}

/// The header with the sizes of the block formats, printed from their registry.
pub(super) fn blocks_header() -> String {
    let mut text = String::from(
        "// Elements and bytes of one block of each format. `cargo xtask ptx` writes this file.\n\
         #ifndef BLOCKS_CUH\n#define BLOCKS_CUH\n\n",
    );
    for block in DType::BLOCK_FORMATS {
        let (name, elems, bytes) = (block.dtype.name(), block.elems, block.bytes);
        text += &format!("#define {name}_ELEMS {elems}\n#define {name}_BYTES {bytes}\n");
    }
    text + "\n#endif\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn includes_are_the_quoted_names() {
        let text = "#include \"a.cuh\"\n// #include \"b.cuh\"\n#include <c.h>\n";
        assert_eq!(includes(text).collect::<Vec<_>>(), ["a.cuh"]);
    }

    #[test]
    fn a_module_is_hashed_with_what_it_includes_and_with_its_options() {
        let names: Vec<String> =
            files("gemm_sm80.cu").unwrap().into_iter().map(|(name, _)| name).collect();
        for name in ["gemm_sm80.cu", "gemm.cuh", "dequant.cuh", "blocks.cuh", "intrinsics.cuh"] {
            assert!(names.iter().any(|n| n == name), "{name} is not among {names:?}");
        }
        let lines: BTreeSet<String> =
            modules().iter().map(|module| module.first_line("x").unwrap()).collect();
        assert_eq!(lines.len(), modules().len());
    }

    #[test]
    fn names_of_modules_are_distinct() {
        let names: BTreeSet<String> = modules().into_iter().map(|module| module.name).collect();
        assert_eq!(names.len(), modules().len());
    }
}
