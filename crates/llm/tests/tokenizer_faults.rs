//! Damaged and odd vocabularies, texts and ids: each gives its own error or warning.

#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use fucina_gguf::{File, Value, Writer};
use fucina_llm::tokenizer::{
    Bos, ControlTokens, DecodeError, EncodeError, Error, Special, TokenType, Tokenizer, Vocab,
    Warning,
};

/// Letters a to d, two merges and a control token.
fn vocab() -> Vocab<'static> {
    use TokenType::{Control, Normal, UserDefined};
    Vocab {
        tokens: vec!["a", "b", "c", "d", "ab", "abc", "<|end|>", "<tag>"],
        types: vec![Normal, Normal, Normal, Normal, Normal, Normal, Control, UserDefined],
        merges: vec!["a b", "ab c"],
        pre: Some("gpt-2"),
        ..Vocab::default()
    }
}

fn refused(vocab: &Vocab<'_>) -> Error {
    Tokenizer::new(vocab).map(|_| ()).unwrap_err()
}

fn accepted(vocab: &Vocab<'_>) -> (Tokenizer, Vec<Warning>) {
    let (tokenizer, mut warnings) = Tokenizer::new(vocab).unwrap();
    // Every vocabulary here lacks most bytes; that warning has its own test.
    warnings.retain(|warning| !matches!(warning, Warning::BytesWithoutToken { .. }));
    (tokenizer, warnings)
}

#[test]
fn a_small_vocabulary_works() {
    let (tokenizer, warnings) = accepted(&vocab());
    assert_eq!(warnings, []);
    let encode = |text, special| tokenizer.encode(text, special, Bos::Auto).unwrap();
    assert_eq!(encode("abcabd<|end|>", Special::Parse), [5, 4, 3, 6]);
    assert_eq!(encode("<tag>d<tag>", Special::Plain), [7, 3, 7]);
    assert_eq!(tokenizer.end_of_generation_ids(), [6]);
    assert_eq!(tokenizer.token_id("abc"), Some(5));
    assert_eq!(tokenizer.token_id("<|end|>"), Some(6));
    assert_eq!(tokenizer.token_id("<|end|>a"), None);
    assert_eq!(tokenizer.token_id(""), None);
    assert_eq!(tokenizer.decode(&[5, 6, 7], ControlTokens::Show).unwrap(), "abc<|end|><tag>");
    assert_eq!(tokenizer.decode(&[5, 6, 7], ControlTokens::Skip).unwrap(), "abc<tag>");
}

#[test]
fn an_empty_vocabulary_is_refused() {
    assert_eq!(refused(&Vocab::default()), Error::EmptyVocabulary);
}

#[test]
fn a_type_array_of_another_length_is_refused() {
    let mut vocab = vocab();
    vocab.types.pop();
    assert_eq!(refused(&vocab), Error::TypeCount { tokens: 8, types: 7 });
    vocab.types.clear();
    accepted(&vocab);
}

#[test]
fn duplicate_tokens_are_refused_where_they_are_ambiguous() {
    let mut twice = vocab();
    twice.tokens[3] = "ab";
    let text = "ab".to_owned();
    assert_eq!(refused(&twice), Error::DuplicateToken { first: 3, second: 4, text });

    // Two control tokens with one text are not: the lower id is the one that is found.
    let mut controls = vocab();
    controls.tokens.push("<|end|>");
    controls.types.push(TokenType::Control);
    let (tokenizer, _) = accepted(&controls);
    assert_eq!(tokenizer.encode("<|end|>", Special::Parse, Bos::Auto).unwrap(), [6]);
    assert_eq!(tokenizer.end_of_generation_ids(), [6, 8]);
}

#[test]
fn merges_of_unknown_tokens_are_refused() {
    for (merge, token) in [("x b", "x"), ("a x", "x"), ("b a", "ba")] {
        let mut vocab = vocab();
        vocab.merges.push(merge);
        let token = token.to_owned();
        assert_eq!(refused(&vocab), Error::MergeOfUnknownToken { index: 2, token }, "{merge}");
    }
}

#[test]
fn malformed_merges_are_refused() {
    for merge in ["", " ", "ab", "a ", " b", "é"] {
        let mut vocab = vocab();
        vocab.merges.insert(0, merge);
        let text = merge.to_owned();
        assert_eq!(refused(&vocab), Error::MalformedMerge { index: 0, text }, "{merge:?}");
    }
}

#[test]
fn plain_text_cannot_be_merged_into_a_control_token() {
    let mut vocab = vocab();
    vocab.types[5] = TokenType::Control;
    let (tokenizer, warnings) = accepted(&vocab);
    let first = "ab c".to_owned();
    assert_eq!(warnings, [Warning::MergesOfSpecialTokens { count: 1, first }]);
    assert_eq!(tokenizer.encode("abc", Special::Plain, Bos::Auto).unwrap(), [4, 2]);
    assert_eq!(tokenizer.encode("abc", Special::Parse, Bos::Auto).unwrap(), [5]);
}

#[test]
fn ids_beyond_the_vocabulary_are_refused() {
    type Field = for<'a> fn(&'a mut Vocab<'static>) -> &'a mut Option<u32>;
    let fields: [(&str, Field); 5] = [
        ("tokenizer.ggml.bos_token_id", |v| &mut v.bos),
        ("tokenizer.ggml.eos_token_id", |v| &mut v.eos),
        ("tokenizer.ggml.eot_token_id", |v| &mut v.eot),
        ("tokenizer.ggml.eom_token_id", |v| &mut v.eom),
        ("tokenizer.ggml.padding_token_id", |v| &mut v.pad),
    ];
    for (key, field) in fields {
        for bad in [8, u32::MAX] {
            let mut vocab = vocab();
            *field(&mut vocab) = Some(bad);
            let want = Error::IdOutOfRange { key, id: bad.into(), vocab_size: 8 };
            assert_eq!(refused(&vocab), want);
        }
        let mut vocab = vocab();
        *field(&mut vocab) = Some(7);
        accepted(&vocab);
    }
}

#[test]
fn an_unknown_pre_tokenizer_is_named_and_replaced() {
    let mut vocab = vocab();
    vocab.pre = Some("tomorrow");
    let (tokenizer, warnings) = accepted(&vocab);
    let name = "tomorrow".to_owned();
    assert_eq!(warnings, [Warning::UnknownPreTokenizer { name, used: "gpt-2" }]);
    assert_eq!(tokenizer.pre_tokenizer(), "gpt-2");
    vocab.pre = None;
    assert_eq!(accepted(&vocab).1, [Warning::NoPreTokenizer { used: "gpt-2" }]);
}

#[test]
fn a_byte_without_a_token_is_an_error_with_its_place() {
    let (tokenizer, warnings) = Tokenizer::new(&vocab()).unwrap();
    assert_eq!(warnings, [Warning::BytesWithoutToken { count: 252, first: 0 }]);
    let encode = |text| tokenizer.encode(text, Special::Parse, Bos::Auto);
    assert_eq!(encode("ab c"), Err(EncodeError::NoTokenForByte { byte: b' ', offset: 2 }));
    assert_eq!(encode("a<|end|>é"), Err(EncodeError::NoTokenForByte { byte: 0xc3, offset: 8 }));
}

#[test]
fn the_begin_token_is_added_as_asked() {
    let mut vocab = vocab();
    let encode = |vocab: &Vocab<'_>, bos| accepted(vocab).0.encode("a", Special::Plain, bos);
    assert_eq!(encode(&vocab, Bos::Always), Err(EncodeError::NoBeginToken));
    vocab.add_bos = Some(true);
    assert_eq!(accepted(&vocab).1, [Warning::NoBeginToken]);
    assert_eq!(encode(&vocab, Bos::Auto).unwrap(), [0]);
    vocab.bos = Some(6);
    assert_eq!(accepted(&vocab).1, []);
    assert_eq!(encode(&vocab, Bos::Auto).unwrap(), [6, 0]);
    assert_eq!(encode(&vocab, Bos::Never).unwrap(), [0]);
    vocab.add_bos = None;
    assert_eq!(encode(&vocab, Bos::Auto).unwrap(), [0]);
    assert_eq!(encode(&vocab, Bos::Always).unwrap(), [6, 0]);
    // The family of Llama 3 starts with it unless the file says otherwise.
    vocab.pre = Some("llama-bpe");
    assert_eq!(encode(&vocab, Bos::Auto).unwrap(), [6, 0]);
    vocab.add_bos = Some(false);
    assert_eq!(encode(&vocab, Bos::Auto).unwrap(), [0]);
}

#[test]
fn the_end_token_is_reported_as_asked_and_never_added_to_a_prompt() {
    let mut vocab = vocab();
    assert!(!accepted(&vocab).0.designated_ids().add_eos);
    vocab.add_eos = true;
    let (tokenizer, warnings) = accepted(&vocab);
    assert_eq!(warnings, [Warning::NoEndToken]);
    assert!(!tokenizer.designated_ids().add_eos);
    vocab.eos = Some(6);
    let (tokenizer, warnings) = accepted(&vocab);
    assert_eq!(warnings, []);
    assert!(tokenizer.designated_ids().add_eos);
    assert_eq!(tokenizer.encode("a", Special::Plain, Bos::Auto).unwrap(), [0]);
    let key = "tokenizer.ggml.add_eos_token";
    assert_eq!(from_file(Some((key, true.into()))), Ok(vec![Warning::NoEndToken]));
    assert!(matches!(from_file(Some((key, "yes".into()))), Err(Error::Metadata(_))));
}

#[test]
fn a_whole_word_goes_before_merges_where_the_family_says_so() {
    let mut vocab = vocab();
    vocab.tokens.push("abd");
    vocab.types.push(TokenType::Normal);
    let ids =
        |vocab: &Vocab<'_>| accepted(vocab).0.encode("abd", Special::Plain, Bos::Auto).unwrap();
    assert_eq!(ids(&vocab), [4, 3]);
    vocab.pre = Some("llama-bpe");
    assert_eq!(ids(&vocab), [8]);
}

#[test]
fn decoding_an_unknown_id_is_an_error() {
    let (tokenizer, _) = accepted(&vocab());
    for id in [8, u32::MAX] {
        let want = DecodeError::IdOutOfRange { id, vocab_size: 8 };
        assert_eq!(tokenizer.decode(&[0, id], ControlTokens::Skip), Err(want));
        assert_eq!(tokenizer.token_bytes(id), Err(want));
        assert_eq!(tokenizer.token_type(id), None);
        assert!(!tokenizer.is_control(id) && !tokenizer.is_end_of_generation(id));
        let mut stream = tokenizer.stream(ControlTokens::Show);
        assert_eq!(stream.push(0), Ok("a"));
        assert_eq!(stream.push(id), Err(want));
        assert_eq!(stream.push(1), Ok("b"));
    }
}

#[test]
fn the_longest_of_the_leftmost_literals_is_found() {
    let tokens = vec!["<a>", "<a>b", "b<a", "<", "a", ">", "b"];
    let types = [[TokenType::UserDefined; 3].as_slice(), &[TokenType::Normal; 4]].concat();
    let (tokenizer, _) = accepted(&Vocab { tokens, types, pre: Some("qwen2"), ..Vocab::default() });
    let encode = |text| tokenizer.encode(text, Special::Plain, Bos::Auto).unwrap();
    assert_eq!(encode("<a>b<a>b"), [1, 1]);
    assert_eq!(encode("b<a>"), [2, 5]);
    assert_eq!(encode("<<a>a"), [3, 0, 4]);
}

/// A file with [`vocab`] and the given key set to another value.
fn from_file(change: Option<(&'static str, Value)>) -> Result<Vec<Warning>, Error> {
    let vocab = vocab();
    let strings = |items: &[&str]| Value::from(items.to_vec());
    let mut pairs = std::collections::BTreeMap::from([
        ("tokenizer.ggml.model", Value::from("gpt2")),
        ("tokenizer.ggml.pre", Value::from("gpt-2")),
        ("tokenizer.ggml.tokens", strings(&vocab.tokens)),
        ("tokenizer.ggml.token_type", Value::from(vec![1i32, 1, 1, 1, 1, 1, 3, 4])),
        ("tokenizer.ggml.merges", strings(&vocab.merges)),
    ]);
    pairs.extend(change);
    let mut writer = Writer::new();
    for (key, value) in pairs {
        writer.set(key, value).unwrap();
    }
    let file = File::from_bytes(writer.to_bytes().unwrap()).unwrap();
    let (tokenizer, mut warnings) = Tokenizer::from_gguf(file.metadata())?;
    warnings.retain(|warning| !matches!(warning, Warning::BytesWithoutToken { .. }));
    assert_eq!(tokenizer.encode("abcd", Special::Plain, Bos::Never).unwrap(), [5, 3]);
    Ok(warnings)
}

#[test]
fn a_file_is_read_like_plain_data() {
    assert_eq!(from_file(None), Ok(vec![]));
}

#[test]
fn faults_of_a_file_are_named() {
    fn with(key: &'static str, value: impl Into<Value>) -> Result<Vec<Warning>, Error> {
        from_file(Some((key, value.into())))
    }
    let vocab_size = 8;
    let eos = "tokenizer.ggml.eos_token_id";
    for id in [8, 151_645, i64::from(u32::MAX) - 1, i64::MAX, -2] {
        assert_eq!(with(eos, id), Err(Error::IdOutOfRange { key: eos, id, vocab_size }));
    }
    // Both spellings of "none".
    assert_eq!(with(eos, u32::MAX), Ok(vec![]));
    assert_eq!(with(eos, -1i32), Ok(vec![]));
    assert!(matches!(with(eos, "2"), Err(Error::Metadata(_))));
    assert!(matches!(with(eos, u64::MAX), Err(Error::Metadata(_))));
    // A padding token is not needed, so a wrong one is only worth a warning.
    let key = "tokenizer.ggml.padding_token_id";
    assert_eq!(with(key, 99u32), Ok(vec![Warning::IdIgnored { key, id: 99, vocab_size }]));

    let name = "bert".to_owned();
    assert_eq!(with("tokenizer.ggml.model", "bert"), Err(Error::UnsupportedModel { name }));
    let kinds = "tokenizer.ggml.token_type";
    assert_eq!(with(kinds, vec![1i32; 7]), Err(Error::TypeCount { tokens: 8, types: 7 }));
    assert_eq!(with(kinds, Vec::<i32>::new()), Err(Error::TypeCount { tokens: 8, types: 0 }));
    assert_eq!(with(kinds, vec![7i32; 8]), Err(Error::UnknownType { id: 0, value: 7 }));
    assert_eq!(with(kinds, vec![-1i32; 8]), Err(Error::UnknownType { id: 0, value: -1 }));
    assert!(matches!(with("tokenizer.ggml.tokens", vec![1u32]), Err(Error::Metadata(_))));
    assert!(matches!(with("tokenizer.ggml.merges", "a b"), Err(Error::Metadata(_))));
    assert_eq!(with("tokenizer.ggml.tokens", Vec::<&str>::new()), Err(Error::EmptyVocabulary));
}

#[test]
fn a_file_without_a_tokenizer_is_refused() {
    let mut writer = Writer::new();
    writer.set("general.name", "none").unwrap();
    let file = File::from_bytes(writer.to_bytes().unwrap()).unwrap();
    let error = Tokenizer::from_gguf(file.metadata()).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("tokenizer.ggml.model"), "{error}");
}
