//! Lists what a model file holds: `cargo run -p fucina-gguf --example list -- MODEL.gguf`.

#![expect(clippy::print_stdout, reason = "it is what the program is for")]

use std::process::ExitCode;

fn main() -> Result<ExitCode, fucina_gguf::Error> {
    let Some(path) = std::env::args_os().nth(1) else {
        println!("usage: list MODEL.gguf");
        return Ok(ExitCode::FAILURE);
    };
    let file = fucina_gguf::File::open(path)?;
    println!("GGUF version {}, {}", file.version(), file.access());
    for (key, value) in file.metadata().iter() {
        println!("{key} = {value}");
    }
    for info in file.tensors() {
        let (name, shape) = (info.name(), info.shape_row_major());
        println!("{name} {} {shape:?}, {} bytes", info.type_name(), info.len_bytes());
    }
    Ok(ExitCode::SUCCESS)
}
