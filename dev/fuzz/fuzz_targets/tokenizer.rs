//! Arbitrary text through the embedded vocabulary, and through arbitrary vocabularies. What is
//! encoded must decode to the same text, at once and token by token, and text that is plain must
//! give no control token.

#![no_main]

use std::sync::OnceLock;

use fucina_gguf::File;
use fucina_llm::tokenizer::{Algorithm, Bos, ControlTokens, Special, TokenType, Tokenizer, Vocab};
use libfuzzer_sys::arbitrary::{Arbitrary, Result, Unstructured};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    // Input that ends early is no failure.
    let _ = run(&mut Unstructured::new(input));
});

fn run(input: &mut Unstructured<'_>) -> Result<()> {
    if input.ratio(3, 4)? {
        let ids: Vec<u16> = Vec::arbitrary(input)?;
        let ids: Vec<u32> = ids.iter().map(|&id| u32::from(id) % 2100).collect();
        stream_equals_batch(embedded(), &ids);
        round_trip(embedded(), <&str>::arbitrary(input)?);
        return Ok(());
    }
    arbitrary_vocabulary(input)
}

fn embedded() -> &'static Tokenizer {
    static TOKENIZER: OnceLock<Tokenizer> = OnceLock::new();
    TOKENIZER.get_or_init(|| {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../crates/cli/assets/austen-q8_0.gguf");
        let file = File::open(path).expect("the embedded model is in the repository");
        Tokenizer::from_gguf(file.metadata()).expect("its tokenizer is good").0
    })
}

fn round_trip(tokenizer: &Tokenizer, text: &str) {
    for special in [Special::Parse, Special::Plain] {
        // Only a vocabulary that lacks a byte refuses a text.
        let Ok(ids) = tokenizer.encode(text, special, Bos::Never) else { continue };
        let decoded = tokenizer.decode(&ids, ControlTokens::Show);
        match tokenizer.pre_tokenizer() {
            "none" => assert_eq!(decoded.as_deref().map(without_spaces), Ok(without_spaces(text))),
            _ => assert_eq!(decoded.as_deref(), Ok(text)),
        }
        if special == Special::Plain {
            assert!(!ids.iter().any(|&id| tokenizer.is_control(id)), "{text:?}");
        }
        stream_equals_batch(tokenizer, &ids);
    }
}

/// `SentencePiece` vocabularies add spaces and write them as `U+2581`; nothing else may change.
fn without_spaces(text: &str) -> String {
    text.replace([' ', '\u{2581}'], "")
}

/// Also for ids that are not a text, and ids that do not exist.
fn stream_equals_batch(tokenizer: &Tokenizer, ids: &[u32]) {
    for control in [ControlTokens::Show, ControlTokens::Skip] {
        let mut stream = tokenizer.stream(control);
        let mut text = String::new();
        let mut known = Vec::new();
        for &id in ids {
            match stream.push(id) {
                Ok(piece) => {
                    text.push_str(piece);
                    known.push(id);
                }
                Err(_) => assert!(id as usize >= tokenizer.vocab_size()),
            }
        }
        text.push_str(stream.finish());
        assert_eq!(tokenizer.decode(&known, control), Ok(text));
    }
}

fn arbitrary_vocabulary(input: &mut Unstructured<'_>) -> Result<()> {
    const PRE: [Option<&str>; 7] = [
        None,
        Some("smollm"),
        Some("qwen2"),
        Some("qwen35"),
        Some("llama-bpe"),
        Some("tekken"),
        Some("no such rule"),
    ];
    let tokens: Vec<&str> = strings(input)?;
    let merges: Vec<&str> = strings(input)?;
    let mut types = Vec::new();
    for id in 0..input.int_in_range(0..=tokens.len())? {
        let number = input.int_in_range(0..=7)?;
        match TokenType::from_number(u32::try_from(id).unwrap_or(u32::MAX), number) {
            Ok(kind) => types.push(kind),
            Err(_) => assert_eq!(number, 7),
        }
    }
    let algorithm = *input.choose(&[Algorithm::ByteLevelBpe, Algorithm::SentencePiece])?;
    let scores = match algorithm {
        Algorithm::SentencePiece => {
            (0..tokens.len()).map(|_| f32::arbitrary(input)).collect::<Result<_>>()?
        }
        _ => Vec::new(),
    };
    let vocab = Vocab {
        algorithm,
        scores,
        add_space_prefix: Option::arbitrary(input)?,
        tokens,
        types,
        merges,
        pre: *input.choose(&PRE)?,
        bos: Option::arbitrary(input)?,
        eos: Option::arbitrary(input)?,
        add_bos: Option::arbitrary(input)?,
        ..Vocab::default()
    };
    if let Ok((tokenizer, _)) = Tokenizer::new(&vocab) {
        let text = <&str>::arbitrary(input)?;
        round_trip(&tokenizer, text);
        let _ = tokenizer.encode(text, Special::Parse, Bos::Always);
    }
    Ok(())
}

fn strings<'a>(input: &mut Unstructured<'a>) -> Result<Vec<&'a str>> {
    (0..input.int_in_range(0..=40)?).map(|_| <&str>::arbitrary(input)).collect()
}
