//! Pre-tokenizers: how a text is cut into words before any merge, as data.
//!
//! The published patterns end in `\s+(?!\S)|\s+`: white space before a word leaves its last
//! character to that word. A look-ahead needs a backtracking engine, so the patterns here end in
//! `\s+` and [`Splitter::words`] gives the last character back. Everything else is a regular
//! expression, matched in time linear in the text. Above each rule is the model that made it known.

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
pub(super) const RULES: [Rule; 11] = [
    // GPT-2.
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
    // SmolLM and StarCoder: single digits, then GPT-2.
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
    // Qwen2.
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
    // Qwen3.5: Qwen2 with marks beside letters.
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
    // Llama 3, whose words that are tokens ignore the merges.
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
    // DBRX: the pattern of Llama 3, and the merges always count.
    Rule {
        names: &["dbrx", "smaug-bpe", "chatglm-bpe"],
        pattern: LLAMA3,
        first: &[],
        line_breaks_end_runs: true,
        whole_words_first: false,
        add_bos: false,
    },
    // Mistral Nemo.
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
    // GLM-4: Llama 3 without a begin token.
    Rule {
        names: &["glm4", "glm5"],
        pattern: LLAMA3,
        first: &[],
        line_breaks_end_runs: true,
        whole_words_first: true,
        add_bos: false,
    },
    // GPT-4o: the encoding that tiktoken calls `o200k_base`.
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
    // Seed-Coder: Qwen2, but other characters leave line breaks alone.
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
    // MiniCPM5: up to three digits, then Llama 3.
    Rule {
        names: &["minicpm5"],
        pattern: LLAMA3,
        first: &[r"\p{N}{1,3}"],
        line_breaks_end_runs: true,
        whole_words_first: true,
        add_bos: false,
    },
];

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
