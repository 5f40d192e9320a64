//! Writes the committed seeds of the fuzz target: `cargo run -p fucina-gguf --example fuzz_corpus`.

use std::path::Path;

#[path = "../tests/common/mod.rs"]
mod common;

fn main() -> std::io::Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dev/fuzz/corpus/gguf");
    std::fs::create_dir_all(&folder)?;
    for case in common::cases::all() {
        std::fs::write(folder.join(case.name), case.bytes)?;
    }
    Ok(())
}
