//! Pre-tokenizers: how a text is cut into words before any merge, as data.
//!
//! The published patterns end in `\s+(?!\S)|\s+`: white space before a word leaves its last
//! character to that word. A look-ahead needs a backtracking engine, so the patterns here end in
//! `\s+` and [`Splitter::words`] gives the last character back. Everything else is a regular
//! expression, matched in time linear in the text. Each rule names where its patterns are published.

use regex::Regex;

use super::error::Error;

/// One family of pre-tokenizers.
#[derive(Debug)]
pub(super) struct Rule {
    /// The values of `tokenizer.ggml.pre` that mean this rule. The first names it.
    pub(super) names: &'static [&'static str],
    /// What a word is; alternatives in order of preference. Matches at every position.
    pattern: &'static str,
    /// What is cut out, one after the other, before the pattern sees each part.
    first: &'static [&'static str],
    /// A run of white space that contains a line break ends after the last one and is whole.
    line_breaks_end_runs: bool,
    /// A word that is a token is that token, whatever the merges say.
    pub(super) whole_words_first: bool,
    /// Whether a text starts with the begin token when the file does not say.
    pub(super) add_bos: bool,
}

/// The pattern of GPT-2.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+";

/// What a file gets that names an unknown rule.
pub(super) const FALLBACK: &Rule = &RULES[0];

/// Every known rule.
pub(super) const RULES: [Rule; 13] = [
    // `pat` of GPT-2's encoder.py.
    Rule {
        names: &[
            "gpt-2",
            "gpt2",
            "phi-2",
            "jina-es",
            "jina-de",
            "jina-v2-es",
            "jina-v2-de",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "modern-bert",
            "olmo",
            "mpt",
            "jais",
            "exaone4",
            "trillion",
            "granite-docling",
        ],
        pattern: GPT2,
        first: &[],
        line_breaks_end_runs: false,
        whole_words_first: false,
        add_bos: false,
    },
    // tokenizer.json of SmolLM and StarCoder: single digits, then GPT-2.
    Rule {
        names: &[
            "smollm",
            "starcoder",
            "refact",
            "command-r",
            "codeshell",
            "exaone",
            "minerva-7b",
            "mellum2",
        ],
        pattern: GPT2,
        first: &[r"\p{N}"],
        line_breaks_end_runs: false,
        whole_words_first: false,
        add_bos: false,
    },
    // tokenizer.json of Qwen2.
    Rule {
        names: &[
            "qwen2",
            "deepseek-r1-qwen",
            "kormo",
            "f2llmv2",
            "megrez",
            "stablelm2",
            "hunyuan",
            "solar-open",
        ],
        pattern: concat!(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}",
            r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+",
        ),
        first: &[],
        line_breaks_end_runs: true,
        whole_words_first: false,
        add_bos: false,
    },
    // tokenizer.json of Qwen3.5: Qwen2 with marks beside letters.
    Rule {
        names: &["qwen35"],
        pattern: concat!(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}",
            r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+",
        ),
        first: &[],
        line_breaks_end_runs: true,
        whole_words_first: false,
        add_bos: false,
    },
    // `pat_str` of Llama 3's tokenizer.py; its tokenizer.json sets `ignore_merges`.
    Rule {
        names: &[
            "llama-bpe",
            "llama3",
            "llama-v3",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
            "jina-v5-nano",
        ],
        pattern: LLAMA3,
        first: &[],
        line_breaks_end_runs: true,
        whole_words_first: true,
        add_bos: true,
    },
    // tokenizer.json of DBRX: the pattern of Llama 3, without `ignore_merges`.
    Rule {
        names: &["dbrx", "smaug-bpe", "chatglm-bpe"],
        pattern: LLAMA3,
        first: &[],
        line_breaks_end_runs: true,
        whole_words_first: false,
        add_bos: false,
    },
    // tokenizer.json of Mistral Nemo.
    Rule {
        names: &["tekken"],
        pattern: concat!(
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
            r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
            r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+",
        ),
        first: &[],
        line_breaks_end_runs: true,
        whole_words_first: true,
        add_bos: true,
    },
    // tokenizer.json of GLM-4: the pattern of Llama 3 with `ignore_merges`, and no begin token.
    Rule {
        names: &["glm4", "glm5"],
        pattern: LLAMA3,
        first: &[],
        line_breaks_end_runs: true,
        whole_words_first: true,
        add_bos: false,
    },
    // `o200k_base` of tiktoken, which Llama 4 and Phi-4-mini took over.
    Rule {
        names: &["gpt-4o", "llama4", "kanana2", "talkie"],
        pattern: concat!(
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
            r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
            r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+",
        ),
        first: &[],
        line_breaks_end_runs: true,
        whole_words_first: false,
        add_bos: false,
    },
    // tokenizer.json of Seed-Coder: Qwen2, but other characters leave line breaks alone.
    Rule {
        names: &["seed-coder"],
        pattern: concat!(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}",
            r"| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+",
        ),
        first: &[],
        line_breaks_end_runs: true,
        whole_words_first: false,
        add_bos: false,
    },
    // tokenizer.json of MiniCPM5: up to three digits, then Llama 3.
    Rule {
        names: &["minicpm5"],
        pattern: LLAMA3,
        first: &[r"\p{N}{1,3}"],
        line_breaks_end_runs: true,
        whole_words_first: true,
        add_bos: false,
    },
    // tokenizer.json of DeepSeek-Coder.
    Rule {
        names: &["deepseek-coder"],
        pattern: REST,
        first: &[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK, r"\p{N}"],
        line_breaks_end_runs: false,
        whole_words_first: false,
        add_bos: false,
    },
    // tokenizer.json of DeepSeek-LLM.
    Rule {
        names: &["deepseek-llm"],
        pattern: REST,
        first: &[r"[\r\n]", CASED, PUNCTUATION, r"\s+$", CJK, r"\p{N}"],
        line_breaks_end_runs: false,
        whole_words_first: false,
        add_bos: false,
    },
];

/// What earlier cuts left is one word.
const REST: &str = "(?s:.+)";

/// Chinese, Japanese and Korean as the files of `DeepSeek` cut them.
const CJK: &str = r"[\x{4e00}-\x{9fa5}\x{800}-\x{4e00}\x{ac00}-\x{d7ff}]+";

/// ASCII, full-width and other punctuation that the file of `DeepSeek-LLM` lists.
const PUNCTUATION: &str =
    r"\s?[!-/:-~\x{ff01}-\x{ff0f}\x{ff1a}-\x{ff5e}\x{2018}-\x{201f}\x{3000}-\x{3002}]+";

/// The letters with case that the file of `DeepSeek-LLM` lists.
const CASED: &str = concat!(
    r"\s?[A-Za-z\x{b5}\x{c0}-\x{d6}\x{d8}-\x{f6}\x{f8}-\x{1ba}\x{1bc}-\x{1bf}\x{1c4}-\x{293}",
    r"\x{295}-\x{2af}\x{370}-\x{373}\x{376}\x{377}\x{37b}-\x{37d}\x{37f}\x{386}\x{388}-\x{38a}",
    r"\x{38c}\x{38e}-\x{3a1}\x{3a3}-\x{3f5}\x{3f7}-\x{481}\x{48a}-\x{52f}\x{531}-\x{556}",
    r"\x{10a0}-\x{10c5}\x{13a0}-\x{13f5}\x{13f8}-\x{13fd}\x{1c90}-\x{1cba}\x{1cbd}-\x{1cbf}",
    r"\x{1d00}-\x{1d2b}\x{1d6b}-\x{1d77}\x{1d79}-\x{1d9a}\x{1e00}-\x{1f15}\x{1f18}-\x{1f1d}",
    r"\x{1f20}-\x{1f45}\x{1f48}-\x{1f4d}\x{1f50}-\x{1f57}\x{1f59}\x{1f5b}\x{1f5d}",
    r"\x{1f5f}-\x{1f7d}\x{1f80}-\x{1fb4}\x{1fb6}-\x{1fbc}\x{1fbe}\x{1fc2}-\x{1fc4}",
    r"\x{1fc6}-\x{1fcc}\x{1fd0}-\x{1fd3}\x{1fd6}-\x{1fdb}\x{1fe0}-\x{1fec}\x{1ff2}-\x{1ff4}",
    r"\x{1ff6}-\x{1ffc}\x{2102}\x{2107}\x{210a}-\x{2113}\x{2115}\x{2119}-\x{211d}\x{2124}",
    r"\x{2126}\x{2128}\x{212a}-\x{212d}\x{212f}-\x{2134}\x{2139}\x{213c}-\x{213f}",
    r"\x{2145}-\x{2149}\x{214e}\x{2183}\x{2184}\x{2c00}-\x{2c7b}\x{2c7e}-\x{2ce4}",
    r"\x{2ceb}-\x{2cee}\x{2cf2}\x{2cf3}\x{a640}-\x{a66d}\x{a680}-\x{a69b}\x{a722}-\x{a76f}",
    r"\x{a771}-\x{a787}\x{a78b}-\x{a78e}\x{ab70}-\x{abbf}\x{fb00}-\x{fb06}\x{fb13}-\x{fb17}",
    r"\x{ff21}-\x{ff3a}\x{ff41}-\x{ff5a}\x{10400}-\x{1044f}\x{104b0}-\x{104d3}",
    r"\x{104d8}-\x{104fb}\x{10c80}-\x{10cb2}\x{10cc0}-\x{10cf2}\x{118a0}-\x{118df}",
    r"\x{1e900}-\x{1e943}]+",
);

/// The pattern of Llama 3: that of Qwen 2 with up to three digits together.
const LLAMA3: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+",
);

impl Rule {
    /// The rule that a file means by `name`.
    pub(super) fn by_name(name: &str) -> Option<&'static Self> {
        RULES.iter().find(|rule| rule.names.contains(&name))
    }

    /// The name of the rule.
    pub(super) const fn name(&self) -> &'static str {
        self.names[0]
    }
}

/// A rule, ready to run.
#[derive(Debug)]
pub(super) struct Splitter {
    rule: &'static Rule,
    first: Vec<Regex>,
    pattern: Regex,
}

impl Splitter {
    /// Compiles the patterns of `rule`.
    pub(super) fn new(rule: &'static Rule) -> Result<Self, Error> {
        let compile = |pattern: &str| {
            Regex::new(pattern)
                .map_err(|e| Error::Pattern { name: rule.name(), detail: e.to_string() })
        };
        let first = rule.first.iter().map(|pattern| compile(pattern)).collect::<Result<_, _>>()?;
        let pattern = compile(&format!(r"\A(?:{})", rule.pattern))?;
        Ok(Self { rule, first, pattern })
    }

    /// The rule.
    pub(super) const fn rule(&self) -> &'static Rule {
        self.rule
    }

    /// Cuts `text` into words, in order and without gaps.
    pub(super) fn words<'t>(&self, text: &'t str) -> impl Iterator<Item = &'t str> {
        // The part that the pattern sees, and what comes after it: the last goes first, and each
        // has its number of cuts done. At most two more for each cut.
        let mut part = "";
        let mut rest = vec![(text, 0)];
        std::iter::from_fn(move || {
            while part.is_empty() {
                part = self.next_part(&mut rest)?;
            }
            let (word, after) = part.split_at(self.word_len(part));
            part = after;
            Some(word)
        })
    }

    /// The next part on which all cuts are done; `None` at the end.
    fn next_part<'t>(&self, rest: &mut Vec<(&'t str, usize)>) -> Option<&'t str> {
        loop {
            let (text, done) = rest.pop()?;
            let Some(cut) = self.first.get(done) else { return Some(text) };
            match cut.find(text).filter(|found| !found.is_empty()) {
                None => rest.push((text, done + 1)),
                Some(found) => rest.extend([
                    (&text[found.end()..], done),
                    (found.as_str(), done + 1),
                    (&text[..found.start()], done + 1),
                ]),
            }
        }
    }

    /// Bytes of the first word of `text`, which is not empty.
    fn word_len(&self, text: &str) -> usize {
        let Some(found) = self.pattern.find(text).filter(|found| !found.is_empty()) else {
            // No pattern of the table comes here; a word of one character is always right to
            // make progress with.
            return text.chars().next().map_or(0, char::len_utf8);
        };
        let word = found.as_str();
        if word.len() == text.len() {
            return word.len();
        }
        match word.char_indices().next_back() {
            // The alternative `\s+`, before something that is not white space.
            Some((last, char)) if last > 0 && char.is_whitespace() && !self.ends_run(char) => last,
            _ => word.len(),
        }
    }

    /// Whether white space that ends in `char` was matched by another alternative than `\s+`.
    fn ends_run(&self, char: char) -> bool {
        self.rule.line_breaks_end_runs && matches!(char, '\r' | '\n')
    }
}

#[cfg(test)]
mod tests;
