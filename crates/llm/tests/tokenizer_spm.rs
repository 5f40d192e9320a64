//! `SentencePiece` vocabularies: ids against the definition, against Hugging Face `tokenizers`, and
//! against golden rows; bytes, spaces, literals, faults and time.

#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::collections::HashMap;
use std::time::{Duration, Instant};

use fucina_gguf::{File, Value, Writer};
use fucina_llm::tokenizer::{
    Algorithm, Bos, ControlTokens, EncodeError, Error, Special, TokenType, Tokenizer, Vocab,
    Warning,
};
use fucina_testkit::{Rng, golden_path, model_path};

/// Far above what the work takes, also unoptimized; far below a quadratic step (hours).
const LIMIT: Duration = Duration::from_secs(30);
const UNK: u32 = 0;
const BOS: u32 = 1;
const EOS: u32 = 2;
const FIRST_BYTE: u32 = 3;

/// A vocabulary that owns its texts.
#[derive(Debug, Clone, Default)]
struct Owned {
    tokens: Vec<String>,
    types: Vec<TokenType>,
    scores: Vec<f32>,
    space_prefix: bool,
}

impl Owned {
    /// The special tokens and all bytes.
    fn base() -> Self {
        let mut base = Self::default();
        base.add("<unk>", TokenType::Unknown, 0.0);
        base.add("<s>", TokenType::Control, 0.0);
        base.add("</s>", TokenType::Control, 0.0);
        for byte in 0..=u8::MAX {
            base.add(&format!("<0x{byte:02X}>"), TokenType::Byte, 0.0);
        }
        base
    }

    fn add(&mut self, text: &str, kind: TokenType, score: f32) -> u32 {
        self.tokens.push(text.to_owned());
        self.types.push(kind);
        self.scores.push(score);
        u32::try_from(self.tokens.len() - 1).unwrap()
    }

    /// Adds normal tokens with falling scores.
    fn with_pieces(mut self, pieces: &[&str]) -> Self {
        for piece in pieces {
            let score = -f32::from(u16::try_from(self.tokens.len()).unwrap());
            self.add(piece, TokenType::Normal, score);
        }
        self
    }

    fn vocab(&self) -> Vocab<'_> {
        Vocab {
            algorithm: Algorithm::SentencePiece,
            tokens: self.tokens.iter().map(String::as_str).collect(),
            types: self.types.clone(),
            scores: self.scores.clone(),
            bos: Some(BOS),
            eos: Some(EOS),
            add_space_prefix: Some(self.space_prefix),
            ..Vocab::default()
        }
    }

    fn build(&self) -> Tokenizer {
        let (tokenizer, warnings) = Tokenizer::new(&self.vocab()).unwrap();
        assert_eq!(warnings, []);
        tokenizer
    }

    fn id(&self, text: &str) -> u32 {
        u32::try_from(self.tokens.iter().position(|token| token == text).unwrap()).unwrap()
    }

    /// The ids of a text without literals, straight from the definition.
    fn by_definition(&self, text: &str) -> Vec<u32> {
        let normal: HashMap<&str, u32> = (0u32..)
            .zip(&self.tokens)
            .filter(|(id, _)| self.types[*id as usize] == TokenType::Normal)
            .map(|(id, token)| (token.as_str(), id))
            .collect();
        let mut symbols: Vec<String> =
            text.replace(' ', "\u{2581}").chars().map(String::from).collect();
        loop {
            let mut best: Option<(f32, usize)> = None;
            for at in 1..symbols.len() {
                let joined = symbols[at - 1].clone() + &symbols[at];
                if let Some(&id) = normal.get(joined.as_str()) {
                    let score = self.scores[id as usize];
                    if best.is_none_or(|(high, _)| score > high) {
                        best = Some((score, at));
                    }
                }
            }
            let Some((_, at)) = best else { break };
            let right = symbols.remove(at);
            symbols[at - 1] += &right;
        }
        let mut ids = Vec::new();
        for symbol in symbols {
            match normal.get(symbol.as_str()) {
                Some(&id) => ids.push(id),
                // The space is `U+2581` in the file only: its byte is that of a space.
                None => ids.extend(
                    symbol
                        .replace('\u{2581}', " ")
                        .bytes()
                        .map(|byte| FIRST_BYTE + u32::from(byte)),
                ),
            }
        }
        ids
    }
}

fn plain(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    tokenizer.encode(text, Special::Plain, Bos::Never).unwrap()
}

fn show(tokenizer: &Tokenizer, ids: &[u32]) -> String {
    let text = tokenizer.decode(ids, ControlTokens::Show).unwrap();
    let mut stream = tokenizer.stream(ControlTokens::Show);
    let mut streamed = String::new();
    for &id in ids {
        streamed.push_str(stream.push(id).unwrap());
    }
    streamed.push_str(stream.finish());
    assert_eq!(streamed, text, "a stream equals the batch");
    text
}

#[test]
fn the_highest_score_goes_first_and_then_the_leftmost() {
    // `bc` has a higher score than `ab`; `bcd` cannot be made from `ab`.
    let owned = Owned::base().with_pieces(&["bc", "ab", "abc", "cd", "a", "b", "c", "d", "aa"]);
    let tokenizer = owned.build();
    let ids = |pieces: &[&str]| pieces.iter().map(|piece| owned.id(piece)).collect::<Vec<_>>();
    assert_eq!(plain(&tokenizer, "abc"), ids(&["abc"]));
    assert_eq!(plain(&tokenizer, "abcd"), ids(&["abc", "d"]));
    assert_eq!(plain(&tokenizer, "abd"), ids(&["ab", "d"]));
    assert_eq!(plain(&tokenizer, "aaa"), ids(&["aa", "a"]));
    assert_eq!(plain(&tokenizer, "acd"), ids(&["a", "cd"]));
}

#[test]
fn a_token_can_be_made_of_characters_that_are_none() {
    let owned = Owned::base().with_pieces(&["éß", "x"]);
    let tokenizer = owned.build();
    assert_eq!(plain(&tokenizer, "xéß"), [owned.id("x"), owned.id("éß")]);
    assert_eq!(plain(&tokenizer, "é"), [FIRST_BYTE + 0xc3, FIRST_BYTE + 0xa9]);
}

/// Characters of one to four bytes; some are tokens and some are not.
const CHARS: [&str; 9] = ["a", "b", "c", " ", "é", "漢", "😀", "<", ">"];

fn random_text(rng: &mut Rng, max: usize) -> String {
    (0..rng.below(max + 1)).map(|_| CHARS[rng.below(CHARS.len())]).collect()
}

#[test]
fn random_vocabularies_give_the_ids_of_the_definition() {
    // Few different scores, so that ties are frequent; both zeros are the same score.
    const SCORES: [f32; 7] = [0.0, -0.0, -1.0, -2.5, 3.0, f32::NEG_INFINITY, -1e30];
    let mut rng = Rng::new(3);
    let mut merged = 0;
    for round in 0..400 {
        let mut owned = Owned::base();
        let mut pieces: Vec<String> = Vec::new();
        for _ in 0..20 + rng.below(40) {
            // Mostly two that are there together, so that merges go deep.
            let draw = |rng: &mut Rng| match pieces.len() {
                0 => CHARS[rng.below(CHARS.len())].to_owned(),
                n if rng.below(3) > 0 => pieces[rng.below(n)].clone(),
                _ => CHARS[rng.below(CHARS.len())].to_owned(),
            };
            let mut piece = draw(&mut rng).replace(' ', "\u{2581}");
            if rng.below(4) > 0 {
                piece += &draw(&mut rng).replace(' ', "\u{2581}");
            }
            if !owned.tokens.contains(&piece) {
                owned.add(&piece, TokenType::Normal, SCORES[rng.below(SCORES.len())]);
                pieces.push(piece);
            }
        }
        let tokenizer = owned.build();
        for length in [3, 10, 40, 40, 200] {
            let text = random_text(&mut rng, length);
            let ids = plain(&tokenizer, &text);
            assert_eq!(ids, owned.by_definition(&text), "round {round}: {text:?} of {pieces:?}");
            assert_eq!(show(&tokenizer, &ids), text);
            let long = |id: &u32| owned.tokens[*id as usize].chars().count() > 1;
            merged += usize::from(ids.iter().any(|id| *id >= FIRST_BYTE + 256 && long(id)));
        }
    }
    assert!(merged > 2000 / 3, "only {merged} of 2000 texts had anything to merge");
}

/// A vocabulary in which every token of several characters has exactly one pair of parts, so that
/// a list of merges in the order of the scores means the same.
fn with_unique_parts(rng: &mut Rng) -> (Owned, Vec<[String; 2]>) {
    let mut owned = Owned::base();
    let mut pieces: Vec<String> = ["a", "b", "c", "d", "\u{2581}", "é", "漢", "<", ">", "s", "/"]
        .into_iter()
        .map(String::from)
        .collect();
    let mut merges: Vec<[String; 2]> = Vec::new();
    let splits = |pieces: &[String], text: &str| {
        let cuts = text.char_indices().skip(1).map(|(at, _)| text.split_at(at));
        let known = |part: &str| pieces.iter().any(|piece| piece == part);
        cuts.filter(|(left, right)| known(left) && known(right)).count()
    };
    for _ in 0..400 {
        let pair = [0; 2].map(|_| pieces[rng.below(pieces.len())].clone());
        let joined = pair.concat();
        let mut more = pieces.clone();
        more.push(joined.clone());
        let long = more.iter().filter(|piece| piece.chars().count() > 1);
        if pieces.contains(&joined) || long.clone().any(|piece| splits(&more, piece) != 1) {
            continue;
        }
        pieces = more;
        merges.push(pair);
    }
    let refs: Vec<&str> = pieces.iter().map(String::as_str).collect();
    // Ids in another order than scores: the score is what counts.
    let first = owned.tokens.len();
    owned = owned.with_pieces(&refs);
    owned.tokens[first..].reverse();
    owned.scores[first..].reverse();
    (owned, merges)
}

/// The same vocabulary for Hugging Face `tokenizers`.
fn hugging_face(owned: &Owned, merges: &[[String; 2]]) -> tokenizers::Tokenizer {
    let of_kind = |wanted: fn(TokenType) -> bool| {
        let all = owned.tokens.iter().zip(&owned.types).zip(0u32..);
        all.filter(move |((_, kind), _)| wanted(**kind)).map(|((text, _), id)| (text.clone(), id))
    };
    let vocab: HashMap<String, u32> = of_kind(|kind| kind != TokenType::UserDefined).collect();
    let added: Vec<_> = of_kind(|kind| !matches!(kind, TokenType::Normal | TokenType::Byte))
        .map(|(content, id)| {
            serde_json::json!({
                "id": id, "content": content, "special": id <= EOS, "normalized": false,
                "single_word": false, "lstrip": false, "rstrip": false,
            })
        })
        .collect();
    let file = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
        "normalizer": { "type": "Replace", "pattern": { "String": " " }, "content": "\u{2581}" },
        "pre_tokenizer": null, "post_processor": null, "decoder": null,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true,
            "vocab": vocab, "merges": merges,
        },
    });
    tokenizers::Tokenizer::from_bytes(file.to_string()).unwrap()
}

#[test]
fn hugging_face_tokenizers_give_the_same_ids() {
    let mut rng = Rng::new(17);
    for _ in 0..20 {
        let (mut owned, merges) = with_unique_parts(&mut rng);
        assert!(merges.len() > 40, "{}", merges.len());
        owned.add("<tag>", TokenType::UserDefined, 0.0);
        owned.add("  ", TokenType::UserDefined, 0.0);
        let (ours, theirs) = (owned.build(), hugging_face(&owned, &merges));
        for _ in 0..200 {
            let bits = ["<s>", "</s>", "<tag>", "abcd", "  ", "ab", "\n", "z", "😀"];
            let text: String = (0..rng.below(12))
                .map(|_| match rng.below(3) {
                    0 => bits[rng.below(bits.len())].to_owned(),
                    _ => random_text(&mut rng, 8),
                })
                .collect();
            let got = ours.encode(&text, Special::Parse, Bos::Never).unwrap();
            let want = theirs.encode(text.as_str(), false).unwrap();
            assert_eq!(got, want.get_ids(), "{text:?}, merges {merges:?}");
            assert_eq!(show(&ours, &got), text);
        }
    }
}

const KINDS: [TokenType; 7] = [
    TokenType::Undefined,
    TokenType::Normal,
    TokenType::Unknown,
    TokenType::Control,
    TokenType::UserDefined,
    TokenType::Unused,
    TokenType::Byte,
];

/// What a text keeps whatever becomes of its spaces.
fn without_spaces(text: &str) -> String {
    text.replace([' ', '\u{2581}'], "")
}

#[test]
fn whatever_is_accepted_loses_nothing_but_the_kind_of_space() {
    const SCORES: [f32; 8] =
        [0.0, -0.0, -1.0, 1e38, f32::INFINITY, f32::NEG_INFINITY, 1e-45, f32::MIN];
    let mut rng = Rng::new(29);
    let (mut built, mut refused, mut encoded) = (0, 0, 0);
    for _ in 0..600 {
        let mut owned = if rng.below(4) > 0 { Owned::base() } else { Owned::default() };
        owned.space_prefix = rng.below(2) > 0;
        for _ in 0..rng.below(14) {
            let text = random_text(&mut rng, 4).replace('c', "\u{2581}");
            // Rarely of the type byte, which few texts fit.
            let kinds = if rng.below(8) > 0 { 6 } else { 7 };
            let kind = KINDS[rng.below(kinds)];
            let score = if rng.below(200) > 0 { SCORES[rng.below(8)] } else { f32::NAN };
            owned.add(&text, kind, score);
        }
        let id = |rng: &mut Rng| (rng.below(3) == 0).then(|| u32::try_from(rng.below(300)).ok())?;
        let bos = id(&mut rng);
        let Ok((tokenizer, _)) = Tokenizer::new(&Vocab { bos, eos: None, ..owned.vocab() }) else {
            refused += 1;
            continue;
        };
        built += 1;
        for _ in 0..8 {
            let text = random_text(&mut rng, 60).replace('b', "\u{2581}");
            for special in [Special::Parse, Special::Plain] {
                let Ok(ids) = tokenizer.encode(&text, special, Bos::Never) else { continue };
                encoded += 1;
                let shown = show(&tokenizer, &ids);
                assert_eq!(without_spaces(&shown), without_spaces(&text), "{text:?}: {owned:?}");
                if !owned.space_prefix && special == Special::Plain {
                    assert_eq!(shown, text.replace('\u{2581}', " "), "{text:?}: {owned:?}");
                }
                if special == Special::Plain {
                    assert!(!ids.iter().any(|&id| tokenizer.is_control(id)), "{text:?}: {owned:?}");
                }
            }
        }
    }
    // The test is worth something only if both ways are taken often.
    assert!(built > 250 && refused > 50 && encoded > 2500, "{built} {refused} {encoded}");
}

#[test]
fn every_byte_has_its_token_both_ways() {
    let owned = Owned::base();
    let tokenizer = owned.build();
    for byte in 0..=u8::MAX {
        let id = FIRST_BYTE + u32::from(byte);
        assert_eq!(tokenizer.token_bytes(id).unwrap(), [byte]);
        assert_eq!(tokenizer.decode_bytes(&[id], ControlTokens::Skip).unwrap(), [byte]);
    }
    // All characters of one and two bytes, and some of three and four, hold every byte of UTF-8.
    let chars = ('\0'..='\u{7ff}').chain(('\u{800}'..=char::MAX).step_by(61));
    let mut seen = [false; 256];
    for char in chars.filter(|&char| char != '\u{2581}') {
        let mut buffer = [0; 4];
        let bytes = char.encode_utf8(&mut buffer).bytes();
        let want: Vec<u32> = bytes.clone().map(|byte| FIRST_BYTE + u32::from(byte)).collect();
        bytes.for_each(|byte| seen[usize::from(byte)] = true);
        assert_eq!(plain(&tokenizer, &char.to_string()), want, "{char:?}");
        assert_eq!(show(&tokenizer, &want), char.to_string());
    }
    for byte in 0..=u8::MAX {
        // C0, C1 and F5 to FF are in no UTF-8 text.
        assert_eq!(seen[usize::from(byte)], !matches!(byte, 0xc0 | 0xc1 | 0xf5..), "{byte:#x}");
    }
}

#[test]
fn bytes_stream_as_whole_characters_and_broken_ones_like_the_batch() {
    let tokenizer = Owned::base().with_pieces(&["é"]).build();
    let mut stream = tokenizer.stream(ControlTokens::Skip);
    let bytes = [0xf0, 0x9f, 0x98, 0x80, b'x', 0xe2, 0x82, b'y', 0xff];
    let got = bytes.map(|byte| stream.push(FIRST_BYTE + u32::from(byte)).unwrap().to_owned());
    assert_eq!(got, ["", "", "", "😀", "x", "", "", "\u{fffd}y", "\u{fffd}"]);
    // A whole token after half a character: the half is replaced, the token is not lost.
    let mut stream = tokenizer.stream(ControlTokens::Skip);
    assert_eq!(stream.push(FIRST_BYTE + 0xc3).unwrap(), "");
    assert_eq!(stream.push(FIRST_BYTE + 256).unwrap(), "\u{fffd}é");
    let mut rng = Rng::new(5);
    for _ in 0..5000 {
        let ids: Vec<u32> = (0..rng.below(10))
            .map(|_| FIRST_BYTE + u32::try_from(rng.below(257)).unwrap())
            .collect();
        let _ = show(&tokenizer, &ids);
    }
}

#[test]
fn literals_are_found_before_merges_and_control_tokens_only_when_parsed() {
    let mut owned = Owned::base().with_pieces(&["<s", "<", "s", ">", "a", "\u{2581}", "▁a"]);
    let tag = owned.add("<tag>", TokenType::UserDefined, 0.0);
    // As files write it, and as its publication writes it.
    let two = owned.add("  ", TokenType::UserDefined, 0.0);
    let three = owned.add("\u{2581}\u{2581}\u{2581}", TokenType::UserDefined, 0.0);
    let tokenizer = owned.build();
    let (left, right, a) = (owned.id("<s"), owned.id(">"), owned.id("a"));
    let encode = |text, special| tokenizer.encode(text, special, Bos::Auto).unwrap();
    assert_eq!(encode("<s>a", Special::Parse), [BOS, BOS, a]);
    // No merge makes the control token from plain text.
    assert_eq!(encode("<s>a", Special::Plain), [BOS, left, right, a]);
    for special in [Special::Parse, Special::Plain] {
        assert_eq!(encode("a<tag>a", special), [BOS, a, tag, a]);
        assert_eq!(encode("a  a", special), [BOS, a, two, a]);
        assert_eq!(encode("a   a", special), [BOS, a, three, a]);
        assert_eq!(encode("a a", special), [BOS, a, owned.id("▁a")]);
    }
    assert_eq!(tokenizer.decode(&[BOS, a, two, tag], ControlTokens::Skip).unwrap(), "a  <tag>");
    assert_eq!(show(&tokenizer, &[BOS, a, three, tag, UNK]), "<s>a   <tag><unk>");
    assert!(tokenizer.is_control(UNK) && tokenizer.is_control(BOS) && !tokenizer.is_control(tag));
    assert_eq!(tokenizer.end_of_generation_ids(), [EOS]);
    let ids = ["<tag>", "</s>", " a", "\n", "zz"].map(|text| tokenizer.token_id(text));
    let newline = FIRST_BYTE + u32::from(b'\n');
    assert_eq!(ids, [Some(tag), Some(EOS), Some(owned.id("▁a")), Some(newline), None]);
    assert_eq!(tokenizer.pre_tokenizer(), "none");
}

#[test]
fn a_space_goes_before_each_text_where_the_file_says_so() {
    let mut owned = Owned::base().with_pieces(&["\u{2581}", "a", "▁a", "▁▁"]);
    let tag = owned.add("<tag>", TokenType::UserDefined, 0.0);
    owned.space_prefix = true;
    let tokenizer = owned.build();
    assert!(tokenizer.adds_space_prefix());
    let (a, spaced, wide) = (owned.id("a"), owned.id("▁a"), owned.id("▁▁"));
    assert!(plain(&tokenizer, "").is_empty());
    assert_eq!(plain(&tokenizer, "a"), [spaced]);
    assert_eq!(plain(&tokenizer, "aa"), [spaced, a]);
    assert_eq!(plain(&tokenizer, " a"), [owned.id("\u{2581}"), spaced]);
    assert_eq!(plain(&tokenizer, "a<tag>a"), [spaced, tag, spaced]);
    assert_eq!(plain(&tokenizer, "<tag><tag> "), [tag, tag, wide]);
    assert_eq!(show(&tokenizer, &[spaced, tag, spaced]), " a<tag> a");
    // The default, when the file does not say.
    let vocab = Vocab { add_space_prefix: None, add_bos: None, ..owned.vocab() };
    let (tokenizer, _) = Tokenizer::new(&vocab).unwrap();
    assert_eq!(tokenizer.encode("a", Special::Plain, Bos::Auto).unwrap(), [BOS, spaced]);
}

#[test]
fn the_character_that_files_write_for_a_space_is_a_space() {
    let owned = Owned::base().with_pieces(&["\u{2581}", "a", "▁a"]);
    let tokenizer = owned.build();
    assert_eq!(plain(&tokenizer, "▁a"), plain(&tokenizer, " a"));
    assert_eq!(show(&tokenizer, &plain(&tokenizer, "▁a")), " a");
}

#[test]
fn a_byte_without_a_token_is_named_with_its_place() {
    let mut owned = Owned::base().with_pieces(&["\u{2581}", "a"]);
    let missing = (FIRST_BYTE + 0xbc) as usize;
    owned.tokens[missing] = "gap".to_owned();
    owned.types[missing] = TokenType::Unused;
    for space_prefix in [false, true] {
        owned.space_prefix = space_prefix;
        let (tokenizer, warnings) = Tokenizer::new(&owned.vocab()).unwrap();
        assert_eq!(warnings, [Warning::BytesWithoutToken { count: 1, first: 0xbc }]);
        let encode = |text| tokenizer.encode(text, Special::Plain, Bos::Never);
        // ü is C3 BC. The first ▁ counts with its three bytes.
        let want = EncodeError::NoTokenForByte { byte: 0xbc, offset: 3 + 2 + 1 + 1 };
        assert_eq!(encode("▁é ü"), Err(want));
        assert_eq!(encode("a\u{c0}").map(|ids| ids.len()), Ok(3 + usize::from(space_prefix)));
    }
}

#[test]
fn faults_of_a_vocabulary_are_named() {
    let good = Owned::base().with_pieces(&["a", "b"]);
    let build = |change: fn(&mut Owned)| {
        let mut owned = good.clone();
        change(&mut owned);
        Tokenizer::new(&owned.vocab()).map(|_| ()).unwrap_err()
    };
    let tokens = 261;
    let counts = |scores| Error::ScoreCount { tokens, scores };
    assert_eq!(build(|owned| owned.scores.truncate(260)), counts(260));
    assert_eq!(build(|owned| owned.scores.clear()), counts(0));
    assert_eq!(build(|owned| owned.scores[7] = f32::NAN), Error::ScoreNotANumber { id: 7 });
    let text = "b".to_owned();
    let twice = Error::DuplicateToken { first: 259, second: 260, text };
    assert_eq!(build(|owned| owned.tokens[259] = "b".to_owned()), twice);
    assert_eq!(build(|owned| owned.types.truncate(9)), Error::TypeCount { tokens, types: 9 });
    for text in ["", "a", "<0x>", "<0x1>", "<0x123>", "<0x+1>", "<0xG0>", "0x41", "<0xé>"] {
        let mut owned = good.clone();
        owned.tokens[9] = text.to_owned();
        let want = Error::ByteToken { id: 9, text: text.to_owned() };
        assert_eq!(Tokenizer::new(&owned.vocab()).map(|_| ()), Err(want));
    }
    let empty = Vocab { algorithm: Algorithm::SentencePiece, ..Vocab::default() };
    assert_eq!(Tokenizer::new(&empty).map(|_| ()), Err(Error::EmptyVocabulary));
}

/// A file with a small vocabulary, and the given key changed or, with `None`, left out.
fn from_file(key: &str, value: Option<Value>) -> Result<(Tokenizer, Vec<Warning>), Error> {
    let owned = Owned::base().with_pieces(&["▁a", "a", "\u{2581}"]);
    let types = owned.types.iter().map(|kind| match kind {
        TokenType::Unknown => 2i32,
        TokenType::Control => 3,
        TokenType::Byte => 6,
        _ => 1,
    });
    let tokens: Vec<&str> = owned.tokens.iter().map(String::as_str).collect();
    let mut pairs = std::collections::BTreeMap::from([
        ("tokenizer.ggml.model", Value::from("llama")),
        ("tokenizer.ggml.pre", Value::from("default")),
        ("tokenizer.ggml.tokens", Value::from(tokens)),
        ("tokenizer.ggml.scores", Value::from(owned.scores.clone())),
        ("tokenizer.ggml.token_type", Value::from(types.collect::<Vec<_>>())),
        ("tokenizer.ggml.bos_token_id", Value::from(BOS)),
        ("tokenizer.ggml.eos_token_id", Value::from(EOS)),
        ("tokenizer.ggml.add_space_prefix", Value::from(false)),
    ]);
    pairs.remove(key);
    let mut writer = Writer::new();
    for (key, value) in pairs {
        writer.set(key, value).unwrap();
    }
    if let Some(value) = value {
        writer.set(key, value).unwrap();
    }
    let file = File::from_bytes(writer.to_bytes().unwrap()).unwrap();
    Tokenizer::from_gguf(file.metadata())
}

#[test]
fn a_file_is_read_like_plain_data_and_its_faults_are_named() {
    let ids = |key: &str, value: Option<Value>| {
        let (tokenizer, warnings) = from_file(key, value).unwrap();
        (tokenizer.encode("a a", Special::Plain, Bos::Auto).unwrap(), warnings)
    };
    let (spaced, a) = (259, 260);
    assert_eq!(ids("none", None), (vec![BOS, a, spaced], vec![]));
    let key = "tokenizer.ggml.add_space_prefix";
    assert_eq!(ids(key, Some(true.into())), (vec![BOS, spaced, spaced], vec![]));
    assert_eq!(ids(key, None), (vec![BOS, spaced, spaced], vec![]));
    let key = "tokenizer.ggml.add_bos_token";
    assert_eq!(ids(key, Some(false.into())), (vec![a, spaced], vec![]));
    let key = "tokenizer.ggml.remove_extra_whitespaces";
    let kept = vec![Warning::ExtraSpacesKept];
    assert_eq!(ids(key, Some(true.into())), (vec![BOS, a, spaced], kept));
    assert_eq!(ids(key, Some(false.into())).1, []);
    let key = "tokenizer.ggml.bos_token_id";
    assert_eq!(ids(key, None), (vec![a, spaced], vec![Warning::NoBeginToken]));

    let error = |key: &str, value: Option<Value>| from_file(key, value).map(|_| ()).unwrap_err();
    let key = "tokenizer.ggml.scores";
    assert!(error(key, None).to_string().contains(key));
    assert!(matches!(error(key, Some("x".into())), Error::Metadata(_)));
    let short = Error::ScoreCount { tokens: 262, scores: 1 };
    assert_eq!(error(key, Some(vec![0f32].into())), short);
    assert!(matches!(
        error("tokenizer.ggml.add_space_prefix", Some(1u32.into())),
        Error::Metadata(_)
    ));
}

/// Ids of a long text; checks time and loss.
fn in_time(tokenizer: &Tokenizer, text: &str, label: &str) -> Duration {
    let start = Instant::now();
    let ids = tokenizer.encode(text, Special::Parse, Bos::Never).unwrap();
    let took = start.elapsed();
    assert_eq!(tokenizer.decode(&ids, ControlTokens::Show).unwrap(), text, "{label}");
    assert!(took < LIMIT, "{label}: {took:?}");
    took
}

const UNITS: [&str; 13] =
    ["a", "(", " ", "\n", "\n ", " a", "1", "é", "漢", "ab", "the ", "<s>", "<ta"];

#[test]
fn a_megabyte_of_anything_takes_linear_time() {
    let mib = 1 << 20;
    let mut owned = Owned::base().with_pieces(&["\u{2581}", "a", "b", "t", "h", "e", "漢", "<"]);
    for text in ["a", "\u{2581}", "ab", "漢"] {
        // Doubling lengths, so that merges go as deep as they can, with the longest first and last.
        for power in 1..12u8 {
            owned.add(&text.repeat(1 << power), TokenType::Normal, f32::from(power % 5));
        }
    }
    owned.add("<tag>", TokenType::UserDefined, 0.0);
    let tokenizer = owned.build();
    for unit in UNITS {
        in_time(&tokenizer, &unit.repeat(mib / unit.len()), unit);
    }
    let mut rng = Rng::new(1);
    in_time(&tokenizer, &random_text(&mut rng, mib / 2), "random");
}

#[derive(serde::Deserialize)]
struct Row {
    vocab: String,
    text: String,
    parse_special: bool,
    ids: Vec<u32>,
}

const GEMMA: &str = "gemma-3-270m-q4_k_m.gguf";

#[test]
fn the_real_gemma3_file_gives_the_golden_ids() {
    let Some(path) = model_path("the_real_gemma3_file_gives_the_golden_ids", GEMMA) else { return };
    let file = File::open(path).unwrap();
    let start = Instant::now();
    let (tokenizer, warnings) = Tokenizer::from_gguf(file.metadata()).unwrap();
    println!("262,144 tokens are loaded in {:?}", start.elapsed());
    assert_eq!(warnings, []);
    assert_eq!(tokenizer.vocab_size(), 262_144);
    // End of text, and end of turn.
    assert_eq!(tokenizer.end_of_generation_ids(), [1, 106]);
    let ids = tokenizer.designated_ids();
    assert_eq!((ids.bos, ids.eos, ids.pad, ids.add_bos), (Some(2), Some(1), Some(0), true));
    let rows: Vec<Row> =
        serde_json::from_slice(&std::fs::read(golden_path("tokens.json")).unwrap()).unwrap();
    let rows: Vec<Row> = rows.into_iter().filter(|row| row.vocab == "gemma3").collect();
    assert_eq!(rows.len(), 62);
    for row in rows {
        let special = if row.parse_special { Special::Parse } else { Special::Plain };
        let ids = tokenizer.encode(&row.text, special, Bos::Never).unwrap();
        assert_eq!(ids, row.ids, "{special:?}: {:?}", row.text);
        assert_eq!(show(&tokenizer, &ids), row.text);
    }
    for byte in 0..=u8::MAX {
        assert_eq!(tokenizer.token_bytes(238 + u32::from(byte)).unwrap(), [byte]);
    }
    let mib = 1 << 20;
    for unit in UNITS {
        let took = in_time(&tokenizer, &unit.repeat(mib / unit.len()), unit);
        println!("1 MiB of {unit:?}: {took:?}");
    }
    let prose = "It is a truth universally acknowledged, that a single man in possession of a good \
        fortune, must be in want of a wife.\n";
    println!(
        "1 MiB of prose: {:?}",
        in_time(&tokenizer, &prose.repeat(mib / prose.len()), "prose")
    );
}
