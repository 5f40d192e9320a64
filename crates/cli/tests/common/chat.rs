//! Chats with small models that got a template.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use fucina::gguf::{File, Value, Writer};

use super::{Done, asset, file, fucina};

/// The template that many models share, in short.
pub(crate) const CHATML: &str = "\
{%- for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor -%}\
{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif -%}";

/// What [`CHATML`] makes of these messages.
pub(crate) fn rendered(turns: &[(&str, String)]) -> String {
    let turn = |(role, text): &(&str, String)| format!("<|im_start|>{role}\n{text}<|im_end|>\n");
    turns.iter().map(turn).collect::<String>() + "<|im_start|>assistant\n"
}

/// Writes a copy of a model with a template, and returns its path.
pub(crate) fn with_template(source: &Path, name: &str, template: &str) -> String {
    changed(
        source,
        name,
        &mut |key, value| match key {
            "tokenizer.chat_template" => None,
            _ => Some(value.clone()),
        },
        Some(template),
    )
}

/// Writes a copy of a model whose metadata went through `change`.
pub(crate) fn changed(
    source: &Path,
    name: &str,
    change: &mut dyn FnMut(&str, &Value) -> Option<Value>,
    template: Option<&str>,
) -> String {
    let source = File::open(source).unwrap();
    let mut writer = Writer::new();
    for (key, value) in source.metadata().iter() {
        if let Some(value) = change(key, value) {
            writer.set(key, value).unwrap();
        }
    }
    if let Some(template) = template {
        writer.set("tokenizer.chat_template", template).unwrap();
    }
    for info in source.tensors() {
        let data = source.tensor_data(info).unwrap();
        writer.tensor(info.name(), info.dtype().unwrap(), info.shape(), data).unwrap();
    }
    // Tests run side by side, and some want the same model.
    let id = format!("{:?}", std::thread::current().id());
    let id: String = id.chars().filter(char::is_ascii_digit).collect();
    file(&format!("{name}-{}-{id}.gguf", std::process::id()), &writer.to_bytes().unwrap())
}

/// The embedded model with a template.
pub(crate) fn embedded_with(name: &str, template: &str) -> String {
    with_template(&asset(), name, template)
}

/// Runs a command with this standard input.
pub(crate) fn talk(args: &[&str], input: &str) -> Done {
    talk_with(&mut fucina(), args, input.as_bytes())
}

/// As [`talk`], with a command that was prepared.
pub(crate) fn talk_with(command: &mut Command, args: &[&str], input: &[u8]) -> Done {
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // An error may end the process before it has read everything.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap().into()
}

/// The objects on standard output, one a line.
pub(crate) fn json_lines(done: &Done) -> Vec<serde_json::Value> {
    done.stdout.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
}
