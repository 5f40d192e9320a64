//! `SentencePiece` vocabularies of the BPE kind: tokens with scores.
//!
//! A text starts as one symbol for each character. Of all neighbours whose texts together are a
//! token, those with the highest score become that token, the leftmost first, until none are
//! left. A character that is no token becomes the tokens of its bytes.
//!
//! Files write the space as `U+2581`. Here that character is a space, in tokens and in texts, so
//! a text with `U+2581` of its own decodes with spaces.
//!
//! A text of `n` characters takes O(n log n) time and O(n) memory, times the longest token.

use super::error::{EncodeError, Error, Warning};
use super::merges::{NONE, Word, merge_by_queue};
use super::vocab::{SPACE, TextIndex, TokenType, Tokens, Vocab};

/// Which texts are tokens, and which go first.
#[derive(Debug)]
pub(super) struct Pieces {
    /// Tokens that merges can make, by their bytes.
    index: TextIndex,
    /// For each id, the place of its score: 0 is the highest.
    ranks: Vec<u32>,
    longest_bytes: usize,
    byte_tokens: [Option<u32>; 256],
    /// Whether a text starts with a space that is not in it, also after a literal token.
    pub(super) space_prefix: bool,
}

/// Working memory that is reused from part to part.
#[derive(Debug, Default)]
pub(super) struct PieceWork {
    text: String,
    /// Where each character starts, and the end.
    starts: Vec<u32>,
    word: Word,
}

impl Pieces {
    pub(super) fn new(
        vocab: &Vocab<'_>,
        tokens: &Tokens,
        warnings: &mut Vec<Warning>,
    ) -> Result<Self, Error> {
        if vocab.scores.len() != tokens.len() {
            let (tokens, scores) = (tokens.len(), vocab.scores.len());
            return Err(Error::ScoreCount { tokens, scores });
        }
        if let Some((id, _)) = (0u32..).zip(&vocab.scores).find(|(_, score)| score.is_nan()) {
            return Err(Error::ScoreNotANumber { id });
        }
        let text_of = |id: u32| tokens.get(id).unwrap_or_default();
        let mut index = TextIndex::with_capacity(tokens.len());
        let mut byte_tokens = [None; 256];
        let mut longest_bytes = 0;
        for (id, bytes, kind) in tokens.iter() {
            if let (TokenType::Byte, [byte]) = (kind, bytes) {
                byte_tokens[usize::from(*byte)].get_or_insert(id);
            }
            if kind.is_literal() || kind == TokenType::Byte || bytes.is_empty() {
                continue;
            }
            let written = vocab.tokens[id as usize];
            // Texts are written with `U+2581`, so nothing in them is this token.
            if written.contains(' ') {
                continue;
            }
            if let Some(first) = index.insert(id, bytes, text_of)
                && kind != TokenType::Unused
            {
                return Err(Error::DuplicateToken { first, second: id, text: written.to_owned() });
            }
            longest_bytes = longest_bytes.max(bytes.len());
        }
        let mut missing = (0u8..=u8::MAX).zip(&byte_tokens).filter(|(_, id)| id.is_none());
        if let Some((first, _)) = missing.next() {
            warnings.push(Warning::BytesWithoutToken { count: 1 + missing.count(), first });
        }
        let space_prefix = vocab.add_space_prefix.unwrap_or(true);
        Ok(Self { index, ranks: ranks(&vocab.scores), longest_bytes, byte_tokens, space_prefix })
    }

    /// The id of a normal token or of a single byte.
    pub(super) fn find(&self, tokens: &Tokens, bytes: &[u8]) -> Option<u32> {
        let found = self.index.find(bytes, |id| tokens.get(id).unwrap_or_default());
        found.or_else(|| match bytes {
            [byte] => self.byte_tokens[usize::from(*byte)],
            _ => None,
        })
    }

    /// Appends the ids of `text`, which is a part of a text and starts at `offset` there.
    pub(super) fn encode(
        &self,
        tokens: &Tokens,
        (text, offset): (&str, usize),
        after_literal: bool,
        work: &mut PieceWork,
        ids: &mut Vec<u32>,
    ) -> Result<(), EncodeError> {
        let prefix = self.space_prefix && after_literal;
        self.start(tokens, text, prefix, work);
        let PieceWork { text: spaced, starts, word } = work;
        let bytes = |from: u32, to: u32| {
            &spaced.as_bytes()[starts[from as usize] as usize..starts[to as usize] as usize]
        };
        merge_by_queue(word, |_, [left, _, after]| self.pair(tokens, bytes(left, after)));
        for (at, after, id) in word.symbols() {
            if id != NONE {
                ids.push(id);
                continue;
            }
            for (place, &byte) in bytes(at, after).iter().enumerate() {
                let Some(id) = self.byte_tokens[usize::from(byte)] else {
                    // Characters map one to one, but for the space in front.
                    let char = (at as usize).saturating_sub(usize::from(prefix));
                    let start = text.char_indices().nth(char).map_or(0, |(start, _)| start);
                    return Err(EncodeError::NoTokenForByte {
                        byte,
                        offset: offset + start + place,
                    });
                };
                ids.push(id);
            }
        }
        Ok(())
    }

    /// Sets up one symbol for each character.
    fn start(&self, tokens: &Tokens, text: &str, prefix: bool, work: &mut PieceWork) {
        let PieceWork { text: spaced, starts, word } = work;
        spaced.clear();
        if prefix {
            spaced.push(' ');
        }
        for (number, part) in text.split(SPACE).enumerate() {
            if number > 0 {
                spaced.push(' ');
            }
            spaced.push_str(part);
        }
        starts.clear();
        word.ids.clear();
        for (start, char) in spaced.char_indices() {
            starts.push(position(start));
            let bytes = &spaced.as_bytes()[start..start + char.len_utf8()];
            let found = self.index.find(bytes, |id| tokens.get(id).unwrap_or_default());
            word.ids.push(found.unwrap_or(NONE));
        }
        starts.push(position(spaced.len()));
    }

    /// Rank and token of two neighbours with these bytes together.
    fn pair(&self, tokens: &Tokens, bytes: &[u8]) -> (u32, u32) {
        if bytes.len() > self.longest_bytes {
            return (NONE, NONE);
        }
        let found = self.index.find(bytes, |id| tokens.get(id).unwrap_or_default());
        found.map_or((NONE, NONE), |id| (self.ranks[id as usize], id))
    }
}

fn position(at: usize) -> u32 {
    u32::try_from(at).expect("the length of a text is checked")
}

/// For each score, how many different ones are higher.
fn ranks(scores: &[f32]) -> Vec<u32> {
    // The sum makes -0.0 equal to 0.0 in the total order too.
    let scores: Vec<f32> = scores.iter().map(|score| score + 0.0).collect();
    let mut sorted = scores.clone();
    sorted.sort_unstable_by(|a, b| b.total_cmp(a));
    sorted.dedup();
    let rank = |score: &f32| sorted.partition_point(|other| other > score);
    scores.iter().map(|score| position(rank(score))).collect()
}

#[cfg(test)]
mod tests {
    use super::ranks;

    #[test]
    fn the_highest_score_has_the_first_rank_and_equal_scores_share_one() {
        let scores = [-1.0, 0.0, -0.0, f32::NEG_INFINITY, 2.5, -1.0, f32::INFINITY];
        assert_eq!(ranks(&scores), [3, 2, 2, 4, 1, 3, 0]);
    }
}
