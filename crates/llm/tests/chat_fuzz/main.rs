//! Replays the corpus of the fuzz target `template`, with the code of the target.

mod exercise;

use std::fs;
use std::path::Path;

#[test]
fn the_corpus_of_templates_never_panics() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dev/fuzz/corpus/template");
    let mut count = 0;
    for entry in fs::read_dir(&folder).expect("the corpus is committed") {
        let path = entry.expect("a folder that can be read").path();
        exercise::exercise(&fs::read(&path).expect("a file that can be read"));
        count += 1;
    }
    assert!(count > 10, "{count} seeds");
}
