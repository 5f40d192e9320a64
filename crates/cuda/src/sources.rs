//! The sources of the kernels, for the run-time compiler. A test compares them with the compiled
//! modules.

use std::ffi::c_int;

use fucina_dtype::DType;

macro_rules! files {
    ($($name:literal)*) => {
        &[$(($name, include_str!(concat!("../kernels/", $name)))),*]
    };
}

/// What sources include, by name.
pub(crate) const HEADERS: &[(&str, &str)] = files! {
    "attention.cuh" "blocks.cuh" "dequant.cuh" "gemm.cuh" "int8.cuh" "intrinsics.cuh" "lanes.cuh"
};

const SOURCES: &[(&str, &str)] = files! {
    "attention.cu" "attention_sm80.cu" "elementwise.cu" "gemm_i8.cu" "gemm_sm70.cu" "gemm_sm80.cu"
    "gemv.cu" "gemv_i8.cu" "matmul.cu" "norm.cu" "pack.cu" "quantize.cu" "rows.cu"
};

/// Modules: the name without format and chip, the oldest chip, the file, macros besides those of
/// the format.
const MODULES: &[(&str, c_int, &str, &[&str])] = &[
    ("attention", 70, "attention.cu", &[]),
    ("attention", 80, "attention_sm80.cu", &[]),
    ("elementwise", 70, "elementwise.cu", &[]),
    ("gemm", 70, "gemm_sm70.cu", &[]),
    ("gemm", 80, "gemm_sm80.cu", &[]),
    ("gemm_f32", 70, "gemm_sm70.cu", &["FORMAT=F32", "FORMAT_NAME=f32", "SCALAR_ONLY"]),
    ("gemm_i8", 70, "gemm_i8.cu", &[]),
    ("gemm_i8", 80, "gemm_i8.cu", &["TENSOR_CORES"]),
    ("gemv", 70, "gemv.cu", &[]),
    ("gemv_i8", 70, "gemv_i8.cu", &[]),
    ("matmul", 70, "matmul.cu", &[]),
    ("norm", 70, "norm.cu", &[]),
    ("pack", 70, "pack.cu", &[]),
    ("quantize", 70, "quantize.cu", &[]),
    ("rows", 70, "rows.cu", &[]),
];

/// What a module is compiled from.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    pub(crate) file: &'static str,
    pub(crate) text: &'static str,
    /// Oldest chip that it is for: 70 for compute capability 7.0.
    pub(crate) chip: c_int,
    defines: Vec<String>,
}

impl Source {
    /// The source of the module `<op>[_<format>].sm<chip>`.
    pub(crate) fn of(module: &str) -> Option<Self> {
        let (name, chip) = module.rsplit_once(".sm")?;
        let chip: c_int = chip.parse().ok()?;
        MODULES.iter().filter(|row| row.1 == chip).find_map(|&(op, _, file, more)| {
            let mut defines = match name.strip_prefix(op)? {
                "" => Vec::new(),
                format => {
                    let lower = format.strip_prefix('_')?;
                    let found = |dtype: &&DType| dtype.name().eq_ignore_ascii_case(lower);
                    let format = DType::ALL.iter().find(found)?;
                    // The name of `gemm_f32` is no format of `gemm`.
                    if *format == DType::F32 {
                        return None;
                    }
                    vec![format!("FORMAT={format}"), format!("FORMAT_NAME={lower}")]
                }
            };
            defines.extend(more.iter().map(|&define| define.to_owned()));
            let &(file, text) = SOURCES.iter().find(|(name, _)| *name == file)?;
            Some(Self { file, text, chip, defines })
        })
    }

    /// What the compiler is told, in the order of `cargo xtask ptx`.
    pub(crate) fn options(&self, arch: c_int) -> Vec<String> {
        let standard = ["--std=c++17".to_owned(), format!("--gpu-architecture=compute_{arch}")];
        let defines = self.defines.iter().map(|define| format!("-D{define}"));
        standard.into_iter().chain(defines).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::path::Path;

    use sha2::{Digest, Sha256};

    use super::*;

    /// A source and what it includes, each once, what was found last first.
    fn files(source: &Source) -> Vec<(&str, &str)> {
        let mut files: Vec<(&str, &str)> = Vec::new();
        let mut pending = vec![source.file];
        while let Some(name) = pending.pop() {
            if files.iter().any(|(seen, _)| *seen == name) {
                continue;
            }
            let header = HEADERS.iter().find(|(header, _)| *header == name);
            let text = header.map_or(source.text, |(_, text)| text);
            let quoted = text.lines().filter_map(|line| line.trim().strip_prefix("#include \""));
            pending.extend(quoted.filter_map(|rest| rest.strip_suffix('"')));
            files.push((name, text));
        }
        files
    }

    /// The run-time compiler gets what `cargo xtask ptx` gave to its own: the hash in the first
    /// line of each module is over the compiler's name, the options, and the sources.
    #[test]
    fn modules_were_compiled_from_these_sources_with_these_options() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("ptx");
        let mut modules = 0;
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_stem().unwrap().to_str().unwrap();
            let source = Source::of(name).unwrap_or_else(|| panic!("{name} has no source"));
            let mut hash = Sha256::new();
            hash.update("NVRTC 12.0.140");
            for option in source.options(source.chip) {
                hash.update(option);
                hash.update("\n");
            }
            for (name, text) in files(&source) {
                hash.update(name);
                hash.update("\n");
                hash.update(text);
            }
            let mut want = String::from("// sources: sha256 ");
            for byte in hash.finalize() {
                write!(want, "{byte:02x}").unwrap();
            }
            let ptx = std::fs::read_to_string(&path).unwrap();
            assert_eq!(ptx.lines().next(), Some(want.as_str()), "{name}");
            modules += 1;
        }
        assert!(modules > 20, "{modules}");
    }

    #[test]
    fn what_is_no_module_has_no_source() {
        for name in ["", "gemm", "gemm.sm70", "gemm_q9_9.sm70", "gemv_q4_0.sm80", "rows.smx"] {
            assert!(Source::of(name).is_none_or(|source| name == "gemm.sm70" && source.chip == 70));
        }
    }
}
