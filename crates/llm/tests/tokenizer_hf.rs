//! Token ids against Hugging Face `tokenizers` on texts that tend to be cut wrongly, and on random
//! ones: the embedded vocabulary in both formats.

#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use fucina_gguf::File;
use fucina_llm::tokenizer::{Bos, ControlTokens, Special, Tokenizer};
use fucina_testkit::{Rng, golden_path, repository_root};

/// Texts that tend to be cut wrongly.
const NASTY: &[&str] = &[
    "",
    " ",
    "  ",
    "\n",
    "\r\n",
    "\t",
    "a",
    "a ",
    " a",
    "  a  ",
    "a\n",
    "\na",
    "a \n b",
    "a  \n\n  b",
    "a\r\nb\rc\nd\n\re",
    "\r\n\r\n\r\n  x\r\n",
    "tabs\tand\t\ttabs\t\t\tend\t",
    "trailing spaces   ",
    "trailing newlines\n\n\n",
    "trailing mix \t\n \t",
    "   \n   \n   x",
    "I'll can't we've they're it's I'd I'm",
    "I'LL CAN'T WE'VE THEY'RE IT'S I'D I'M",
    "'S 'LL 'Ll 'lL 'vE 'Re",
    "it'\u{17f} don'T",
    "it’s don’t we’ll “quoted” ‘so’",
    "''s '''ll ' s 'sll",
    "x's123 'd'd'd",
    "\u{a0}nbsp\u{a0}\u{a0}two",
    "thin\u{2009}hair\u{200a}figure\u{2007}ideographic\u{3000}\u{3000}x",
    "ogham\u{1680}line\u{2028}para\u{2029}nel\u{85}end",
    "vertical\u{b}form\u{c}feed \u{b}\u{c} x",
    "zero\u{200b}width\u{200c}non\u{200d}joiner\u{2060}word",
    "\u{feff}bom at start and\u{feff}inside",
    "soft\u{ad}hyphen",
    "\u{0}\u{1}\u{2}\u{1f} control \u{7f}\u{80}\u{9f}",
    "nul\u{0}nul\u{0}\u{0}",
    "你好，世界！这是一个测试。",
    "日本語のテキストとカタカナ、ｶﾀｶﾅ",
    "한국어 문장입니다. 한글",
    "漢字かな交じり文 with English 混在 123",
    "مرحبا بالعالم، كيف حالك؟ ١٢٣",
    "שלום עולם \u{202b}rtl\u{202c} \u{200f}mark\u{200e}",
    "नमस्ते दुनिया ०१२३",
    "ภาษาไทยไม่มีช่องว่าง ๑๒๓",
    "বাংলা తెలుగు ಕನ್ನಡ മലയാളം",
    "Ωμέγα ΣΊΣΥΦΟΣ ς Привет МИР ё",
    "e\u{301}\u{301}\u{302} n\u{303}o \u{301}start",
    "Z\u{351}\u{36b}\u{343}a\u{302}\u{34c}l\u{356}g\u{344}o\u{35e}",
    "नि\u{200d}क्\u{200c}ष",
    "👍🏽 👩‍👩‍👧‍👦 🏳️‍🌈 ❤️ 🇮🇹🇯🇵",
    "🧑🏿‍🚀🧑🏿‍🚀x🧑🏿‍🚀 y",
    "a😀b😀😀c 😀 😀😀",
    "𝒳𝓎 𝕬𝖇 𐍈𐍉 𠀀𠮷 😂𝄞",
    "\u{e000}private\u{f8ff} \u{f0000}\u{10fffd}",
    "\u{fffd}\u{fffe}\u{ffff}\u{10ffff} noncharacters",
    "ｆｕｌｌｗｉｄｔｈ １２３ ﬁgure ﬀ ½ ² Ⅷ ⅷ ㊿ 〇",
    "1234567890 3.14 1,000,000 0x1F 1e-5",
    "१२३ ۱۲۳ ١٢٣ 𝟏𝟐𝟑 ௧௨௩",
    "1a2b3c a1b2c3 1 a 2 b",
    "...!!!???---___***###",
    " ... ,,,  ;;; !\n!\r\n?",
    "((((((((((((((((((((((((((((((((",
    "()[]{}<>/\\|`~@#$%^&*-+=",
    "if(x){y=z[0];}//comment\n\t\treturn -1;\n",
    "http://example.org/a?b=c&d=%20e#f user@mail.example",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "theThetheTHEthe",
    "supercalifragilisticexpialidociousantidisestablishmentarianism",
    "It is a truth universally acknowledged, that a single man in possession of a good fortune,",
    "\"My dear Mr. Bennet,\" said his lady to him one day, \"have you heard--",
    "<|endoftext|>",
    "before<|im_start|>user\nhi<|im_end|>after",
    "<|im_start|><|im_start|><|im_end|>",
    "<|im_start <|im_|> <|im_end|",
    " <|im_end|> \n<|im_end|>\n ",
    "Ġ Ċ ĉ Ń are letters here",
    "ÀÉÎõü ÿ ð þ ß ŒœŠšŸ",
    "İstanbul ıI ǅ ǆ ŉ",
    "№ ™ © ® ℃ Å K",
    "x\u{300}1\u{300}!\u{300} \u{300}",
    "\u{1f1e6}\u{1f1e7} flags \u{1f3f4}\u{e0067}\u{e0062}\u{e007f}",
];

struct Pair {
    ours: Tokenizer,
    theirs: tokenizers::Tokenizer,
}

impl Pair {
    fn load() -> Self {
        let file =
            File::open(repository_root().join("crates/cli/assets/austen-q8_0.gguf")).unwrap();
        let (ours, warnings) = Tokenizer::from_gguf(file.metadata()).unwrap();
        assert_eq!(warnings, []);
        let theirs = golden_path("austen-tokenizer.json");
        Self { ours, theirs: tokenizers::Tokenizer::from_file(theirs).unwrap() }
    }

    #[track_caller]
    fn check(&self, text: &str) {
        let ids = self.ours.encode(text, Special::Parse, Bos::Auto).unwrap();
        let want = self.theirs.encode(text, false).unwrap();
        assert_eq!(ids, want.get_ids(), "{text:?}");
        assert_eq!(self.ours.decode(&ids, ControlTokens::Show).unwrap(), text);
        let shown = self.theirs.decode(&ids, true).unwrap();
        assert_eq!(self.ours.decode(&ids, ControlTokens::Skip).unwrap(), shown, "{text:?}");
    }
}

#[test]
fn nasty_texts_give_the_same_ids() {
    assert!(NASTY.len() >= 60);
    let pair = Pair::load();
    for text in NASTY {
        pair.check(text);
    }
    // And each against each neighbour, because words are cut by what follows them.
    for two in NASTY.windows(2) {
        pair.check(&format!("{}{}", two[0], two[1]));
        pair.check(&format!("{} {}", two[1], two[0]));
    }
}

#[test]
fn f01_accents_digits_and_emoji_in_one_line() {
    Pair::load().check("Hello world! Café déjà vu — 123 😊");
}

#[test]
fn long_words_give_the_same_ids() {
    let pair = Pair::load();
    for unit in ["a", "the", "é", "漢字", "😀", "(", " ", "\n", "\r\n \t", "1", "Qz", "e\u{301}"]
    {
        for len in [31, 32, 33, 64, 1000, 5000] {
            pair.check(&unit.repeat(len));
            pair.check(&format!("x{}y", unit.repeat(len)));
        }
    }
}

/// A random text: pieces of several kinds, so that every kind meets every other.
fn random_text(rng: &mut Rng) -> String {
    const WHITE: &[&str] = &[" ", "  ", "\n", "\r\n", "\t", "\r", "\u{a0}", "\u{3000}", "\u{2028}"];
    const BITS: &[&str] = &[
        "'s",
        "'LL",
        "'",
        "’",
        "the",
        "The",
        "ing",
        "Ω",
        "漢",
        "é",
        "e\u{301}",
        "\u{200d}",
        "😀",
        "0",
        "42",
        "½",
        "٣",
        "!",
        "--",
        "(",
        "<|im_end|>",
        "<|",
        "|>",
        "_",
        "\0",
        "\u{e000}",
        "ſ",
    ];
    let mut text = String::new();
    for _ in 0..rng.below(24) {
        match rng.below(8) {
            0..=2 => text.push_str(WHITE[rng.below(WHITE.len())]),
            3..=5 => text.push_str(BITS[rng.below(BITS.len())]),
            6 => text.extend((0..rng.below(12)).map(|_| char::from(b' ' + draw_u8(rng, 95)))),
            _ => {
                let code = u32::try_from(rng.below(0x11_0000)).unwrap();
                text.extend(char::from_u32(code));
            }
        }
    }
    text
}

fn draw_u8(rng: &mut Rng, below: usize) -> u8 {
    u8::try_from(rng.below(below)).unwrap()
}

#[test]
fn random_texts_give_the_same_ids() {
    let pair = Pair::load();
    let mut rng = Rng::new(2026);
    for _ in 0..5000 {
        pair.check(&random_text(&mut rng));
    }
}

#[test]
fn every_character_gives_the_same_ids() {
    let pair = Pair::load();
    // All of the first two planes' scripts by sample, between letters and after a space.
    for char in ('\0'..='\u{32ff}').chain(('\u{3300}'..=char::MAX).step_by(97)) {
        pair.check(&format!("a{char}b {char}1{char}\n"));
    }
}
