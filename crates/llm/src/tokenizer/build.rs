//! From plain data to a tokenizer: every reference is resolved and checked here, once.

use super::error::{Error, Warning};
use super::gguf;
use super::merges::Merges;
use super::pieces::Pieces;
use super::special::LiteralTokens;
use super::split::{FALLBACK, Rule, Splitter};
use super::vocab::{Algorithm, TextIndex, TokenType, Tokens, Vocab};
use super::{BytePairs, DesignatedIds, Scheme, Tokenizer};

/// Texts of literal tokens that end generation, whether or not a file designates them.
const END_TEXTS: [&str; 14] = [
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "<EOT>",
    "<｜end▁of▁sentence｜>",
    "<|return|>",
    "<|call|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
];

impl Tokenizer {
    /// Makes a tokenizer from plain data. The warnings tell what was odd about it.
    ///
    /// # Errors
    ///
    /// Returns an [`Error`] if the parts of `vocab` contradict each other.
    pub fn new(vocab: &Vocab<'_>) -> Result<(Self, Vec<Warning>), Error> {
        let mut warnings = Vec::new();
        let tokens = Tokens::new(vocab)?;
        let (scheme, add_bos) = match vocab.algorithm {
            Algorithm::ByteLevelBpe => {
                let pairs = BytePairs::new(vocab, &tokens, &mut warnings)?;
                let add_bos = pairs.splitter.rule().add_bos;
                (Scheme::BytePairs(pairs), add_bos)
            }
            Algorithm::SentencePiece => {
                (Scheme::Pieces(Pieces::new(vocab, &tokens, &mut warnings)?), true)
            }
        };
        let ids = designated_ids(vocab, add_bos, &mut warnings)?;
        let eog = end_ids(&tokens, &ids);
        let all_literals = LiteralTokens::new(&tokens, true)?;
        let plain_literals = LiteralTokens::new(&tokens, false)?;
        Ok((Self { tokens, scheme, all_literals, plain_literals, ids, eog }, warnings))
    }
}

impl BytePairs {
    fn new(vocab: &Vocab<'_>, tokens: &Tokens, warnings: &mut Vec<Warning>) -> Result<Self, Error> {
        let by_text = index_texts(vocab, tokens)?;
        let merges = resolve_merges(vocab, tokens, &by_text, warnings)?;
        drop(by_text);
        let by_bytes = index_bytes(tokens);
        let byte_tokens = byte_tokens(tokens, &by_bytes, warnings);
        let splitter = Splitter::new(choose_rule(vocab.pre, warnings))?;
        Ok(Self { by_bytes, byte_tokens, merges, splitter })
    }
}

/// Indexes the tokens that merges can make by their texts as written.
fn index_texts(vocab: &Vocab<'_>, tokens: &Tokens) -> Result<TextIndex, Error> {
    let text_of = |id: u32| vocab.tokens[id as usize].as_bytes();
    let mut index = TextIndex::with_capacity(tokens.len());
    for (id, _, kind) in tokens.iter() {
        let text = text_of(id);
        // Literal tokens are found in the text itself, and gaps may all be called the same.
        if kind.is_literal() || text.is_empty() {
            continue;
        }
        if let Some(first) = index.insert(id, text, text_of)
            && kind != TokenType::Unused
        {
            let text = vocab.tokens[id as usize].to_owned();
            return Err(Error::DuplicateToken { first, second: id, text });
        }
    }
    Ok(index)
}

/// Indexes the same tokens by the bytes they stand for. The lowest id counts where a text outside
/// the byte alphabet happens to have the bytes of another.
fn index_bytes(tokens: &Tokens) -> TextIndex {
    let text_of = |id: u32| tokens.get(id).unwrap_or_default();
    let mut index = TextIndex::with_capacity(tokens.len());
    for (id, bytes, kind) in tokens.iter() {
        if !kind.is_literal() && !bytes.is_empty() {
            index.insert(id, bytes, text_of);
        }
    }
    index
}

/// Turns the texts of merges into ids.
///
/// A merge of a literal token cannot apply: where its text occurs the token was found before, and
/// where a control token's text is plain text it must not become the token. It is left out.
fn resolve_merges(
    vocab: &Vocab<'_>,
    tokens: &Tokens,
    by_text: &TextIndex,
    warnings: &mut Vec<Warning>,
) -> Result<Merges, Error> {
    let text_of = |id: u32| vocab.tokens[id as usize].as_bytes();
    let literals: std::collections::HashSet<&str> = tokens
        .iter()
        .filter(|(_, _, kind)| kind.is_literal())
        .map(|(id, _, _)| vocab.tokens[id as usize])
        .collect();
    let mut merges = Merges::with_capacity(vocab.merges.len());
    let mut left_out: Option<(usize, &str)> = None;
    let mut joined = String::new();
    for (index, (&text, rank)) in vocab.merges.iter().zip(0u32..u32::MAX).enumerate() {
        let (left, right) = merge_parts(text)
            .ok_or_else(|| Error::MalformedMerge { index, text: text.to_owned() })?;
        joined.clear();
        joined.push_str(left);
        joined.push_str(right);
        let mut ids = [0; 3];
        let mut literal = false;
        for (slot, part) in ids.iter_mut().zip([left, right, &joined]) {
            match by_text.find(part.as_bytes(), text_of) {
                Some(id) => *slot = id,
                None if literals.contains(part) => literal = true,
                None => return Err(Error::MergeOfUnknownToken { index, token: part.to_owned() }),
            }
        }
        if literal {
            left_out.get_or_insert((0, text)).0 += 1;
        } else {
            merges.push(rank, ids[0], ids[1], ids[2]);
        }
    }
    if let Some((count, first)) = left_out {
        warnings.push(Warning::MergesOfSpecialTokens { count, first: first.to_owned() });
    }
    Ok(merges)
}

/// The two parts of a merge, both not empty. The first part may begin with a space.
fn merge_parts(text: &str) -> Option<(&str, &str)> {
    let (at, _) = text.bytes().enumerate().skip(1).find(|&(_, byte)| byte == b' ')?;
    let (left, right) = (&text[..at], &text[at + 1..]);
    (!right.is_empty()).then_some((left, right))
}

fn byte_tokens(
    tokens: &Tokens,
    by_bytes: &TextIndex,
    warnings: &mut Vec<Warning>,
) -> [Option<u32>; 256] {
    let text_of = |id: u32| tokens.get(id).unwrap_or_default();
    let mut table = [None; 256];
    for (byte, slot) in (0u8..=u8::MAX).zip(&mut table) {
        *slot = by_bytes.find(&[byte], text_of);
    }
    let mut missing = (0u8..=u8::MAX).zip(&table).filter(|(_, slot)| slot.is_none());
    if let Some((first, _)) = missing.next() {
        warnings.push(Warning::BytesWithoutToken { count: 1 + missing.count(), first });
    }
    table
}

fn choose_rule(pre: Option<&str>, warnings: &mut Vec<Warning>) -> &'static Rule {
    let used = FALLBACK.name();
    let Some(name) = pre else {
        warnings.push(Warning::NoPreTokenizer { used });
        return FALLBACK;
    };
    Rule::by_name(name).unwrap_or_else(|| {
        warnings.push(Warning::UnknownPreTokenizer { name: name.to_owned(), used });
        FALLBACK
    })
}

fn designated_ids(
    vocab: &Vocab<'_>,
    add_bos: bool,
    warnings: &mut Vec<Warning>,
) -> Result<DesignatedIds, Error> {
    let vocab_size = vocab.tokens.len();
    let check = |key: &'static str, id: Option<u32>| match id {
        Some(id) if id as usize >= vocab_size => {
            Err(Error::IdOutOfRange { key, id: id.into(), vocab_size })
        }
        id => Ok(id),
    };
    let bos = check(gguf::BOS, vocab.bos)?;
    let wanted = vocab.add_bos.unwrap_or(add_bos);
    if wanted && bos.is_none() {
        warnings.push(Warning::NoBeginToken);
    }
    let eos = check(gguf::EOS, vocab.eos)?;
    if vocab.add_eos && eos.is_none() {
        warnings.push(Warning::NoEndToken);
    }
    Ok(DesignatedIds {
        bos,
        eos,
        eot: check(gguf::EOT, vocab.eot)?,
        eom: check(gguf::EOM, vocab.eom)?,
        pad: check(gguf::PAD, vocab.pad)?,
        add_bos: wanted && bos.is_some(),
        add_eos: vocab.add_eos && eos.is_some(),
    })
}

fn end_ids(tokens: &Tokens, ids: &DesignatedIds) -> Vec<u32> {
    let named = tokens
        .iter()
        .filter(|(_, text, kind)| {
            kind.is_literal() && END_TEXTS.iter().any(|end| end.as_bytes() == *text)
        })
        .map(|(id, _, _)| id);
    let mut ends: Vec<u32> =
        [ids.eos, ids.eot, ids.eom].into_iter().flatten().chain(named).collect();
    ends.sort_unstable();
    ends.dedup();
    ends
}
