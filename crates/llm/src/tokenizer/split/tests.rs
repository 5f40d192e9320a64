use super::{RULES, Rule, Splitter};

fn words(name: &str, text: &str) -> Vec<String> {
    let splitter = Splitter::new(Rule::by_name(name).unwrap()).unwrap();
    splitter.words(text).map(str::to_owned).collect()
}

#[test]
fn no_name_means_two_rules() {
    let mut names: Vec<&str> = RULES.iter().flat_map(|rule| rule.names).copied().collect();
    let len = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), len);
}

#[test]
fn white_space_leaves_its_last_character_to_the_word() {
    assert_eq!(words("gpt-2", "a   b"), ["a", "  ", " b"]);
    assert_eq!(words("gpt-2", "a \n b"), ["a", " \n", " b"]);
    assert_eq!(words("gpt-2", "a \n"), ["a", " \n"]);
    assert_eq!(words("gpt-2", "a \t!"), ["a", " ", "\t", "!"]);
    assert_eq!(words("qwen2", "a   b"), ["a", "  ", " b"]);
    assert_eq!(words("qwen2", "a \n\n  b"), ["a", " \n\n", " ", " b"]);
    assert_eq!(words("qwen2", "a\t\tb"), ["a", "\t", "\tb"]);
    assert_eq!(words("qwen2", "a\u{a0}\u{3000}1"), ["a", "\u{a0}", "\u{3000}", "1"]);
    assert_eq!(words("qwen2", "  "), ["  "]);
}

#[test]
fn digits_are_cut_as_the_rule_says() {
    assert_eq!(words("gpt-2", "ab 1234"), ["ab", " 1234"]);
    assert_eq!(words("qwen2", "ab 1234"), ["ab", " ", "1", "2", "3", "4"]);
    assert_eq!(words("llama-bpe", "ab 1234"), ["ab", " ", "123", "4"]);
    // Before a digit that was cut out first, white space is at the end of its part and whole.
    assert_eq!(words("smollm", "ab  12 c"), ["ab", "  ", "1", "2", " c"]);
    assert_eq!(words("smollm", "½x"), ["½", "x"]);
    assert_eq!(words("tekken", "12"), ["1", "2"]);
}

#[test]
fn digits_go_together_by_three_before_or_after_letters() {
    assert_eq!(words("minicpm5", "a 1234b"), ["a", " ", "123", "4", "b"]);
    assert_eq!(words("gpt-4o", "helloWorld's 1234"), ["hello", "World's", " ", "123", "4"]);
}

#[test]
fn letters_marks_and_case_are_cut_as_the_rule_says() {
    assert_eq!(words("qwen2", "e\u{301}s"), ["e", "\u{301}s"]);
    assert_eq!(words("qwen35", "e\u{301}s"), ["e\u{301}s"]);
    assert_eq!(words("qwen2", "I'LL it's"), ["I", "'LL", " it", "'s"]);
    assert_eq!(words("gpt-2", "I'LL it's"), ["I", "'", "LL", " it", "'s"]);
    assert_eq!(words("tekken", "helloWorld HTTPServer"), ["hello", "World", " HTTPServer"]);
    assert_eq!(words("tekken", "ABCdef GHI"), ["ABCdef", " GHI"]);
    assert_eq!(words("tekken", "a //\nb"), ["a", " //\n", "b"]);
}

#[test]
fn words_join_to_the_text_under_every_rule() {
    let texts = [
        "",
        " ",
        "\n",
        "\r\n \r\n\t x",
        "naïve café — 1234½ \u{200b}\u{1f469}\u{200d}\u{1f467}!!\r\n\r\n  end  ",
        "e\u{301}\u{301} \u{0928}\u{092e}\u{0938}\u{094d}\u{0924}\u{0947} '\u{17f} 'S '",
        "\0\u{7f}\u{85}\u{2028}\u{e000}\u{10ffff}",
    ];
    for rule in &RULES {
        let splitter = Splitter::new(rule).unwrap();
        for text in texts {
            let words: Vec<&str> = splitter.words(text).collect();
            assert_eq!(words.concat(), text, "{}", rule.name());
            assert!(words.iter().all(|word| !word.is_empty()), "{}: {words:?}", rule.name());
        }
    }
}

#[test]
fn some_alternative_matches_at_every_character() {
    // Every character is white space, a letter, a number or something else; one of each, and
    // the marks and format characters that are easily forgotten.
    for rule in &RULES {
        let splitter = Splitter::new(rule).unwrap();
        for char in ('\0'..=char::MAX).step_by(7).chain("\r\n\u{301}\u{200d}½Ⅷ一".chars()) {
            let mut text = [0; 4];
            let text = char.encode_utf8(&mut text);
            assert!(splitter.pattern.is_match(text), "{}: {char:?}", rule.name());
        }
    }
}

/// The pattern as it is published, with its look-ahead, for another implementation.
fn published(name: &str) -> &'static str {
    match name {
        "gpt-2" | "smollm" => {
            r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
        }
        "qwen2" => {
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        }
        "qwen35" => {
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        }
        "llama-bpe" | "dbrx" | "glm4" | "minicpm5" => {
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        }
        "tekken" => {
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        }
        "gpt-4o" => {
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        }
        "seed-coder" => {
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
        }
        other => panic!("the rule {other} has no published pattern here"),
    }
}

#[test]
fn words_equal_those_of_a_backtracking_engine_on_the_published_pattern() {
    use tokenizers::SplitDelimiterBehavior::Isolated;
    use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
    use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer};

    const PIECES: &[&str] = &[
        " ", " ", "  ", "\n", "\r\n", "\t", "\r", "\u{a0}", "\u{3000}", "\u{85}", "\u{b}", "'s",
        "'LL", "'", "’t", "the", "The", "ABC", "aB", "Ω", "漢", "é", "e\u{301}", "\u{301}",
        "\u{200d}", "😀", "0", "42", "1234", "½", "٣", "Ⅷ", "!", "--", "//", "/", "(", "_", "\0",
        "\u{e000}", "ſ", "ǅ", "ʰ",
    ];
    let mut rng = fucina_testkit::Rng::new(4);
    for rule in &RULES {
        let splitter = Splitter::new(rule).unwrap();
        let splits: Vec<Split> = rule
            .first
            .iter()
            .copied()
            .chain([published(rule.name())])
            .map(|pattern| Split::new(SplitPattern::Regex(pattern.to_owned()), Isolated, false))
            .collect::<Result<_, _>>()
            .unwrap();
        for _ in 0..3000 {
            let text: String =
                (0..rng.below(14)).map(|_| PIECES[rng.below(PIECES.len())]).collect();
            let mut theirs = PreTokenizedString::from(text.as_str());
            for split in &splits {
                split.pre_tokenize(&mut theirs).unwrap();
            }
            let want: Vec<&str> = theirs
                .get_splits(OffsetReferential::Original, OffsetType::Byte)
                .into_iter()
                .map(|(word, _, _)| word)
                .filter(|word| !word.is_empty())
                .collect();
            let got: Vec<&str> = splitter.words(&text).collect();
            assert_eq!(got, want, "{}: {text:?}", rule.name());
        }
    }
}
