//! Published chat templates render every conversation as Python's jinja2 does, byte by byte.
//!
//! `golden/make-chat.py` made the file.

#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::collections::HashMap;
use std::fs;
use std::time::{Duration, UNIX_EPOCH};

use fucina_llm::chat::{ChatTemplate, RenderOptions, SpecialTexts, TemplateError};
use fucina_testkit::golden_path;
use serde_json::Value;

fn golden() -> Value {
    let text = fs::read_to_string(golden_path("chat/rendered.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// What is wrong with one row; nothing if all is well.
fn check(row: &Value, golden: &Value, template: &ChatTemplate) -> Option<String> {
    let messages =
        golden["conversations"][row["conversation"].as_str().unwrap()].as_array().unwrap();
    let mut options = RenderOptions::default();
    options.add_generation_prompt = row["options"]["add_generation_prompt"].as_bool().unwrap();
    options.enable_thinking = row["options"].get("enable_thinking").map(|v| v.as_bool().unwrap());
    options.now = Some(UNIX_EPOCH + Duration::from_secs(golden["now"].as_u64().unwrap()));
    if row["options"]["tools"].as_bool().unwrap() {
        options.tools = golden["tools"].as_array().unwrap().clone();
    }
    let name = format!("{} {} {}", row["template"], row["conversation"], row["options"]);
    compare(&name, row, &template.render_json(messages, &options))
}

/// What is wrong with a result; nothing if all is well.
fn compare(name: &str, row: &Value, got: &Result<String, TemplateError>) -> Option<String> {
    let text = |key: &str| row.get(key).and_then(Value::as_str);
    let good = match got {
        Ok(got) => text("text") == Some(got),
        Err(TemplateError::Refused { message, .. }) => text("refused") == Some(message),
        Err(_) => text("fails").is_some(),
    };
    let want = text("text").or(text("refused")).or(text("fails"));
    (!good).then(|| format!("{name}\n got  {got:?}\n want {want:?}"))
}

#[test]
fn published_templates_render_as_jinja_does() {
    let golden = golden();
    let text = |key: &str| golden[key].as_str().unwrap();
    let mut templates: HashMap<&str, ChatTemplate> = HashMap::new();
    let rows = golden["rendered"].as_array().unwrap();
    let mut wrong = Vec::new();
    for row in rows {
        let name = row["template"].as_str().unwrap();
        let template = templates.entry(name).or_insert_with(|| {
            let path = golden_path(&format!("chat/templates/{name}.jinja"));
            let source = fs::read_to_string(path).unwrap();
            ChatTemplate::new(&source, SpecialTexts::new(text("bos"), text("eos"))).unwrap()
        });
        wrong.extend(check(row, &golden, template));
    }
    assert!(wrong.is_empty(), "{} of {} rows:\n{}", wrong.len(), rows.len(), wrong.join("\n"));
    assert!(templates.len() >= 7 && rows.len() > 130, "{} rows", rows.len());
}

#[test]
fn every_piece_of_the_language_renders_as_jinja_does() {
    let golden = golden();
    let mut options = RenderOptions::default();
    options.now = Some(UNIX_EPOCH + Duration::from_secs(golden["now"].as_u64().unwrap()));
    options.extra = golden["variables"].as_object().unwrap().clone();
    let pieces = golden["pieces"].as_array().unwrap();
    let mut wrong = Vec::new();
    for piece in pieces {
        let source = piece["source"].as_str().unwrap();
        let got = ChatTemplate::new(source, SpecialTexts::default())
            .and_then(|template| template.render_json(&[], &options));
        wrong.extend(compare(source, piece, &got));
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), pieces.len(), wrong.join("\n"));
    assert!(pieces.len() > 150, "{} pieces", pieces.len());
}
