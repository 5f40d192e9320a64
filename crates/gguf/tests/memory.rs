//! What a file may cost in memory. One test only, because it watches the whole process.

mod common;

use std::time::Instant;

use common::raw::{self, Raw};
use fucina_gguf::File;

/// Most address space this process has had, in bytes. Reservations count even if never touched.
fn peak_bytes() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmPeak:"))?;
    line.split_whitespace().nth(1)?.parse::<usize>().ok().map(|kib| kib * 1024)
}

/// As large as the largest vocabularies: tokens, scores, types, and merges.
fn vocabulary() -> Vec<u8> {
    const TOKENS: u32 = 262_144;
    let mut raw = Raw::header(0, 3).key("tokenizer.ggml.tokens", raw::ARRAY).u32(raw::STR);
    raw = raw.u64(TOKENS.into());
    for token in 0..TOKENS {
        raw = raw.str(format!("Ġtoken{token}").as_bytes());
    }
    raw = raw.key("tokenizer.ggml.merges", raw::ARRAY).u32(raw::STR).u64((2 * TOKENS).into());
    for merge in 0..2 * TOKENS {
        raw = raw.str(format!("Ġtok en{merge}").as_bytes());
    }
    raw = raw.key("tokenizer.ggml.token_type", raw::ARRAY).u32(5).u64(TOKENS.into());
    (0..TOKENS).fold(raw, Raw::u32).0
}

#[test]
fn e08_and_e17_memory_is_bounded_by_the_file() {
    let Some(before) = peak_bytes() else {
        eprintln!("SKIPPED: this system does not report the peak of the address space");
        return;
    };
    for case in common::cases::all() {
        let _ = File::from_bytes(case.bytes.into());
    }
    let grown = peak_bytes().unwrap() - before;
    // The largest claim is 2^58 items; the allocator itself grows by steps of a few MiB.
    assert!(grown < 64 << 20, "small files made the process grow by {grown} bytes");

    let contents = bytes::Bytes::from(vocabulary());
    let len = contents.len();
    let before = peak_bytes().unwrap();
    let start = Instant::now();
    let file = File::from_bytes(contents).unwrap();
    eprintln!("{len} bytes of metadata parsed in {:?}", start.elapsed());
    let grown = peak_bytes().unwrap() - before;
    // Each byte of text is kept once and each length once. A buffer that doubles holds up to
    // twice that, and its old half while it moves.
    assert!(grown < 4 * len, "{len} bytes of metadata made the process grow by {grown}");
    let tokens = file.metadata().str_array("tokenizer.ggml.tokens").unwrap();
    assert_eq!(tokens.get(262_143), Some("Ġtoken262143"));
    let merges = file.metadata().str_array("tokenizer.ggml.merges").unwrap();
    assert_eq!((merges.len(), merges.get(524_287)), (524_288, Some("Ġtok en524287")));
}
