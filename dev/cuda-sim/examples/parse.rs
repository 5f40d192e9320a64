//! Parses PTX files and says what they hold, or what is wrong with them.

#![allow(clippy::print_stdout, reason = "its output is what it is for")]

use fucina_cuda_sim::ptx::Module;

fn main() -> std::process::ExitCode {
    let mut failed = false;
    for path in std::env::args().skip(1) {
        let parsed = std::fs::read_to_string(&path)
            .map_err(|error| error.to_string())
            .and_then(|text| Module::parse(&text).map_err(|error| error.to_string()));
        match parsed {
            Ok(module) => {
                println!("{path}: {} for {}", module.functions().len(), module.target());
            }
            Err(error) => {
                println!("{path}: {error}");
                failed = true;
            }
        }
    }
    u8::from(failed).into()
}
