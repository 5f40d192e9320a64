//! `fucina tokenize`: what a model's vocabulary makes of a text, and back. No weights are loaded.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::Path;

use clap::Args;
use fucina::llm;
use fucina::llm::tokenizer::{Bos, ControlTokens, Special, Tokenizer, Warning};
use serde::Serialize;

use crate::exit::{Exit, Failure};
use crate::output;
use crate::run::read_text;
use crate::source::Source;

/// Show the tokens of a text
///
/// One line for each token: its id and the text that it stands for. The begin token stands in front
/// and the end token behind where the file asks for them.
#[derive(Args)]
#[command(override_usage = "fucina tokenize [OPTIONS] [MODEL] TEXT")]
#[command(after_help = "\
Examples:
  fucina tokenize \"It is a truth\"
  fucina tokenize model.gguf - --count < book.txt
  fucina tokenize model.gguf \"<|im_end|>\" --special --json
  fucina tokenize model.gguf --decode \"785 3974 13876\"")]
pub(crate) struct TokenizeArgs {
    /// The text, in quotes; before it the path or name of a model, if there are two. A text of `-`
    /// reads standard input, without its last line break
    #[arg(required = true, num_args = 1.., value_name = "TEXT")]
    words: Vec<OsString>,
    /// Read control tokens such as `<|im_end|>` in the text as what they stand for, not as text
    #[arg(long, conflicts_with = "decode")]
    special: bool,
    /// Leave out the begin and the end token that the file asks for
    #[arg(long, conflicts_with = "decode")]
    no_bos: bool,
    /// TEXT is a list of ids: write the text that they stand for
    #[arg(long)]
    decode: bool,
    /// Write only the number of tokens
    #[arg(long, conflicts_with_all = ["json", "decode"])]
    count: bool,
    /// Write one JSON object
    #[arg(long)]
    json: bool,
    /// Write nothing but errors to standard error
    #[arg(short, long)]
    quiet: bool,
}

/// The object of `--json`; `docs/cli.md` describes it.
#[derive(Serialize)]
struct Report {
    model: String,
    text: String,
    count: usize,
    ids: Vec<u32>,
    /// As in the table: bytes that are no character of their own are escapes.
    pieces: Vec<String>,
}

pub(crate) fn run(args: &TokenizeArgs) -> anyhow::Result<Exit> {
    let (source, text) = model_and_text(&args.words, "tokenize")?;
    let text = read_text(text, "text")?;
    let (tokenizer, warnings) = load(&source)?;
    if !args.quiet {
        warnings.iter().for_each(|warning| output::warning(&warning.to_string()));
    }
    let (ids, text) = if args.decode {
        let ids = parse_ids(&text, tokenizer.vocab_size())?;
        let text = tokenizer.decode(&ids, ControlTokens::Show).map_err(llm::Error::from)?;
        (ids, text)
    } else {
        (encode(args, &tokenizer, &text)?, text)
    };
    if args.json {
        let pieces = ids.iter().map(|&id| piece(&tokenizer, id)).collect();
        let (model, count) = (source.short_name(), ids.len());
        output::print_json(&Report { model, text, count, ids, pieces })?;
    } else if args.decode {
        output::print(&format!("{text}\n"))?;
    } else if args.count {
        output::print(&format!("{}\n", ids.len()))?;
    } else {
        output::print(&table(&tokenizer, &ids))?;
    }
    Ok(Exit::Ok)
}

/// The model and the text of a command that takes one or two words.
pub(crate) fn model_and_text<'a>(
    words: &'a [OsString],
    command: &str,
) -> anyhow::Result<(Source, &'a OsString)> {
    match words {
        [text] => Ok((Source::Embedded, text)),
        [model, text] => Ok((Source::named(Path::new(model))?, text)),
        _ => {
            let message =
                format!("a text of several words goes into quotes: fucina {command} \"a text\"");
            Err(Failure::usage(message).into())
        }
    }
}

fn load(source: &Source) -> anyhow::Result<(Tokenizer, Vec<Warning>)> {
    let file = source.open()?;
    Ok(Tokenizer::from_gguf(file.metadata()).map_err(llm::Error::from)?)
}

fn encode(args: &TokenizeArgs, tokenizer: &Tokenizer, text: &str) -> anyhow::Result<Vec<u32>> {
    let special = if args.special { Special::Parse } else { Special::Plain };
    let bos = if args.no_bos { Bos::Never } else { Bos::Auto };
    let mut ids = tokenizer.encode(text, special, bos)?;
    let designated = tokenizer.designated_ids();
    ids.extend(designated.eos.filter(|_| designated.add_eos && !args.no_bos));
    Ok(ids)
}

/// Ids between spaces, commas and brackets, as people copy them.
fn parse_ids(text: &str, vocab_size: usize) -> anyhow::Result<Vec<u32>> {
    let separates = |c: char| c.is_whitespace() || matches!(c, ',' | '[' | ']');
    let ids = text.split(separates).filter(|word| !word.is_empty()).map(|word| {
        let id = word.parse().ok().filter(|&id: &u32| (id as usize) < vocab_size);
        id.ok_or_else(|| {
            let word: String = word.chars().take(40).collect();
            let last = vocab_size - 1;
            Failure::input(format!("`{word}` is no token; ids from 0 to {last} are expected"))
        })
    });
    Ok(ids.collect::<Result<_, _>>()?)
}

/// The text of a token, with escapes for what is not printed and for bytes that are no character.
fn piece(tokenizer: &Tokenizer, id: u32) -> String {
    let bytes = tokenizer.token_bytes(id).unwrap_or_default();
    let mut piece = String::new();
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\n' => piece.push_str("\\n"),
                '\r' => piece.push_str("\\r"),
                '\t' => piece.push_str("\\t"),
                '\\' | '"' => piece.extend(['\\', c]),
                c => piece.push_str(&output::plain(c.encode_utf8(&mut [0; 4]))),
            }
        }
        for byte in chunk.invalid() {
            // Writing to a string does not fail.
            let _ = write!(piece, "\\x{byte:02x}");
        }
    }
    piece
}

fn table(tokenizer: &Tokenizer, ids: &[u32]) -> String {
    let width = ids.iter().max().map_or(0, |id| id.to_string().len());
    let mut table = String::new();
    for &id in ids {
        let _ = writeln!(table, "{id:width$}  \"{}\"", piece(tokenizer, id));
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_as_people_copy_them() {
        assert_eq!(parse_ids("[1, 2,3]\n\t4  5", 6).unwrap(), [1, 2, 3, 4, 5]);
        assert_eq!(parse_ids(" ", 6).unwrap(), [0; 0]);
        for bad in ["6", "-1", "1.5", "x", "99999999999"] {
            let error = parse_ids(&format!("1 {bad}"), 6).unwrap_err().to_string();
            assert!(error.contains(bad) && error.contains("0 to 5"), "{error}");
        }
    }
}
