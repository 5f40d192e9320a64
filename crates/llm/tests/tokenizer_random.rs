//! Random vocabularies: whatever is accepted loses nothing, and nothing panics.

use fucina_llm::tokenizer::{Bos, ControlTokens, Special, TokenType, Tokenizer, Vocab};
use fucina_testkit::Rng;

const TYPES: [TokenType; 7] = [
    TokenType::Undefined,
    TokenType::Normal,
    TokenType::Unknown,
    TokenType::Control,
    TokenType::UserDefined,
    TokenType::Unused,
    TokenType::Byte,
];

const PRE: [&str; 8] =
    ["gpt-2", "smollm", "qwen2", "qwen35", "llama-bpe", "glm4", "tekken", "no such rule"];

/// Characters that texts and tokens share: of one to four bytes, in and out of the alphabet.
const CHARS: [char; 12] = ['a', 'b', 'A', ' ', '1', '\n', 'é', 'Ġ', '漢', '😀', '\u{301}', 'Ã'];

fn random_string(rng: &mut Rng, max_chars: usize) -> String {
    (0..rng.below(max_chars + 1)).map(|_| CHARS[rng.below(CHARS.len())]).collect()
}

/// The character that stands for `byte` in a vocabulary.
fn byte_text(byte: u8) -> String {
    let itself = matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let rank = (0..byte).filter(|b| !matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff)).count();
    let code = if itself { u32::from(byte) } else { 0x100 + u32::try_from(rank).unwrap_or(0) };
    char::from_u32(code).into_iter().collect()
}

#[test]
fn whatever_is_accepted_loses_nothing() {
    let mut rng = Rng::new(11);
    let (mut built, mut refused, mut encoded) = (0, 0, 0);
    for _ in 0..600 {
        let mut tokens: Vec<String> = Vec::new();
        if rng.below(4) > 0 {
            tokens.extend((0..=u8::MAX).map(byte_text));
        }
        let base = tokens.len();
        tokens.extend((0..rng.below(12)).map(|_| random_string(&mut rng, 4)));
        let mut types = vec![TokenType::Normal; base];
        types.extend((base..tokens.len()).map(|_| TYPES[rng.below(TYPES.len())]));
        // Mostly merges whose result exists, because others refuse the vocabulary.
        let mut merges: Vec<String> = Vec::new();
        for _ in 0..rng.below(6) {
            if tokens.is_empty() {
                break;
            }
            let (left, right) = (rng.below(tokens.len()), rng.below(tokens.len()));
            let merged = format!("{}{}", tokens[left], tokens[right]);
            merges.push(format!("{} {}", tokens[left], tokens[right]));
            if rng.below(50) > 0 && !tokens.contains(&merged) {
                tokens.push(merged);
                types.push(TYPES[rng.below(TYPES.len())]);
            }
        }
        let id = |rng: &mut Rng| (rng.below(3) == 0).then(|| u32::try_from(rng.below(300)).ok())?;
        let vocab = Vocab {
            tokens: tokens.iter().map(String::as_str).collect(),
            types,
            merges: merges.iter().map(String::as_str).collect(),
            pre: Some(PRE[rng.below(PRE.len())]),
            bos: id(&mut rng),
            ..Vocab::default()
        };
        let Ok((tokenizer, _)) = Tokenizer::new(&vocab) else {
            refused += 1;
            continue;
        };
        built += 1;
        for _ in 0..8 {
            let text = random_string(&mut rng, 60);
            for special in [Special::Parse, Special::Plain] {
                let Ok(ids) = tokenizer.encode(&text, special, Bos::Never) else { continue };
                encoded += 1;
                assert_eq!(
                    tokenizer.decode(&ids, ControlTokens::Show).as_deref(),
                    Ok(text.as_str()),
                    "{special:?} of {vocab:?}"
                );
                if special == Special::Plain {
                    assert!(!ids.iter().any(|&id| tokenizer.is_control(id)), "{text:?}: {vocab:?}");
                }
            }
        }
    }
    // The test is worth something only if both ways are taken often.
    assert!(built > 250 && refused > 50 && encoded > 2500, "{built} {refused} {encoded}");
}
