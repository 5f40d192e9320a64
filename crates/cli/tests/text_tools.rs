//! `tokenize` and `perplexity` as a user meets them.

#![cfg(test)]

mod common;

use std::io::Write as _;
use std::process::Stdio;

use common::{Done, asset, call, file, fucina};
use fucina::gguf::{File, Value, Writer};
use fucina_testkit::golden_path;

/// Calls with `input` on standard input.
fn call_on(args: &[&str], input: &[u8]) -> Done {
    let mut child = fucina()
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    child.stdin.take().expect("a pipe").write_all(input).expect("the command reads it");
    child.wait_with_output().expect("the command ends").into()
}

/// Ids of a golden row of the embedded model.
fn golden(text: &str, special: bool) -> Vec<u64> {
    let rows = std::fs::read(golden_path("tokens.json")).expect("a golden file");
    let rows: serde_json::Value = serde_json::from_slice(&rows).expect("JSON");
    let rows = rows.as_array().expect("rows").iter();
    let mut rows = rows.filter(|row| {
        row["vocab"] == "austen" && row["text"] == text && row["parse_special"] == special
    });
    let ids = rows.next().expect("a row of this text")["ids"].as_array().expect("ids").iter();
    ids.map(|id| id.as_u64().expect("an id")).collect()
}

#[test]
fn tokens_are_those_of_another_runner() {
    let rows = std::fs::read(golden_path("tokens.json")).expect("a golden file");
    let rows: serde_json::Value = serde_json::from_slice(&rows).expect("JSON");
    let texts = rows.as_array().expect("rows").iter().filter(|row| row["vocab"] == "austen");
    let mut checked = 0;
    for text in texts.map(|row| row["text"].as_str().expect("a text")) {
        // An argument cannot be empty here, and a final line break of input is dropped.
        if text.is_empty() || text.contains('\0') || text.starts_with('-') {
            continue;
        }
        let done = call(&["tokenize", text, "--json"]).ok().json();
        assert_eq!(done["ids"], serde_json::json!(golden(text, false)), "{text:?}");
        assert_eq!(done["text"], text);
        assert_eq!(done["count"], golden(text, false).len());
        let ids = done["ids"].to_string();
        assert_eq!(call(&["tokenize", "--decode", &ids]).ok().stdout, format!("{text}\n"));
        checked += 1;
    }
    assert!(checked > 40, "{checked} texts");
}

#[test]
fn a_table_shows_each_token_with_its_text() {
    let done = call(&["tokenize", "It is, é\u{1b}\n\"漢"]).ok();
    let lines: Vec<&str> = done.stdout.lines().collect();
    assert!(lines[0].ends_with("\"It\"") && lines[1].ends_with("\" is\""), "{done:?}");
    assert!(done.stdout.contains("\\u{1b}") && done.stdout.contains("\\n"), "{done:?}");
    assert!(done.stdout.contains("\"\\\"\"") && done.stdout.contains("\"\\xe6"), "{done:?}");
    assert!(!done.stdout.contains('\u{1b}'), "nothing steers the terminal: {done:?}");
    let count = call(&["tokenize", "It is, é\u{1b}\n\"漢", "--count"]).ok();
    assert_eq!(count.stdout, format!("{}\n", lines.len()));
    let input =
        call_on(&["tokenize", asset().to_str().expect("UTF-8"), "-", "--count"], b"It is\n");
    assert_eq!(input.ok().stdout, "2\n");
}

#[test]
fn control_tokens_are_text_unless_asked_for() {
    let plain = call(&["tokenize", "<|im_end|>", "--json"]).ok().json();
    let special = call(&["tokenize", "<|im_end|>", "--json", "--special"]).ok().json();
    assert!(plain["count"].as_u64() > Some(1));
    assert_eq!(special["pieces"], serde_json::json!(["<|im_end|>"]));
}

#[test]
fn begin_and_end_tokens_stand_where_the_file_asks_for_them() {
    let embedded = File::open(asset()).expect("the asset");
    let mut writer = Writer::new();
    // The tokenizer is all that is needed: the file has no tensors.
    let set = [
        ("tokenizer.ggml.bos_token_id", 2047u32.into()),
        ("tokenizer.ggml.eos_token_id", 2045u32.into()),
        ("tokenizer.ggml.add_bos_token", true.into()),
        ("tokenizer.ggml.add_eos_token", Value::from(true)),
    ];
    for (key, value) in embedded.metadata().iter() {
        if set.iter().all(|(other, _)| *other != key) {
            writer.set(key, value.clone()).expect("a key");
        }
    }
    for (key, value) in set {
        writer.set(key, value).expect("a key");
    }
    let path = file("begin-and-end.gguf", &writer.to_bytes().expect("a file"));
    let ids = |more: &[&str]| {
        let mut args = vec!["tokenize", path.as_str(), "It", "--json"];
        args.extend(more);
        call(&args).ok().json()["ids"].clone()
    };
    let word = ids(&["--no-bos"]);
    assert_eq!(word.as_array().expect("ids").len(), 1);
    assert_eq!(ids(&[]), serde_json::json!([2047, word[0], 2045]));
}

#[test]
fn what_cannot_be_tokenized_is_one_sentence() {
    call(&["tokenize", "--decode", "1 2048"]).failed(4, &["2048", "0 to 2047"]);
    call(&["tokenize", "--decode", "one"]).failed(4, &["one"]);
    call(&["tokenize", ""]).failed(4, &["the text is empty"]);
    call(&["tokenize", "a", "b", "c"]).failed(2, &["quotes"]);
    call(&["tokenize", "no-such.gguf", "b"]).failed(3, &["no-such.gguf"]);
    call(&["tokenize", "a", "--decode", "--special"]).failed(2, &["--decode", "--special"]);
    call_on(&["tokenize", "-"], b"a\xff").failed(4, &["UTF-8"]);
}

fn chapter() -> String {
    let path = golden_path("texts/pride-and-prejudice-1.txt");
    path.to_str().expect("UTF-8").to_owned()
}

#[test]
fn perplexity_is_shown_with_its_error_and_as_json() {
    let done = call(&["perplexity", &chapter(), "--ctx", "256"]).ok();
    assert!(done.stdout.starts_with("perplexity ") && done.stdout.contains(" ± "), "{done:?}");
    let json = call(&["perplexity", &chapter(), "--ctx", "256", "--json"]).ok().json();
    let number = |key: &str| json[key].as_f64().expect("a number");
    assert!((number("mean_nll").exp() - number("perplexity")).abs() < 1e-9);
    assert!(
        number("mean_nll_error") > 0.0 && number("perplexity_error") > number("mean_nll_error")
    );
    assert_eq!(json["scored_tokens"], json["chunks"].as_u64().expect("a count") * 127);
    assert!(json["against"].is_null() && json["interrupted"] == false);
    let shown: f64 = done.stdout.split(' ').nth(1).expect("a number").parse().expect("a number");
    assert!((shown - number("perplexity")).abs() <= 5e-5);
    let text = std::fs::read(chapter()).expect("a golden file");
    let piped = call_on(&["perplexity", "-", "--ctx", "256", "--chunks", "1", "--json"], &text);
    assert_eq!(piped.ok().json()["chunks"], 1);
}

#[test]
fn a_coarser_format_costs_something() {
    let out = file("coarse.gguf", b"");
    let asset = asset();
    let asset = asset.to_str().expect("UTF-8");
    call(&["quantize", asset, &out, "--to", "q4_0", "--requantize", "-q"]).ok();
    let args = ["perplexity", &out, &chapter(), "--against", asset, "--ctx", "256", "--json"];
    let json = call(&args).ok().json();
    let against = &json["against"];
    let number = |value: &serde_json::Value| value.as_f64().expect("a number");
    // 4-bit weights are off by some 7 %: it shows, and most tokens stay as they are.
    let divergence = number(&against["divergence"]);
    assert!((0.001..0.2).contains(&divergence), "{json}");
    assert!((0.7..1.0).contains(&number(&against["same_best"])), "{json}");
    let alone = call(&["perplexity", &chapter(), "--ctx", "256", "--json"]).ok().json();
    assert_eq!(against["perplexity"], alone["perplexity"]);
}

#[test]
fn what_cannot_be_scored_is_one_sentence() {
    let short = file("short.txt", b"It is a truth universally acknowledged");
    call(&["perplexity", &short]).failed(4, &["512", "context size"]);
    call(&["perplexity", "no-such.txt"]).failed(4, &["no-such.txt"]);
    call(&["perplexity", &file("bytes.txt", b"a\xff")]).failed(4, &["UTF-8"]);
    call(&["perplexity", &short, "--ctx", "3"]).failed(2, &["--ctx"]);
    call(&["perplexity", &short, "--ctx", "513"]).failed(2, &["513", "512"]);
    call(&["perplexity", &short, "--chunks", "0"]).failed(2, &["--chunks"]);
    let other = golden_path("qwen2-vocab.gguf");
    let other = other.to_str().expect("UTF-8");
    call(&["perplexity", &short, "--against", other, "--ctx", "4"]).failed(3, &["token_embd"]);
}
