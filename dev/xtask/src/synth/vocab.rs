//! A made-up vocabulary for byte-level BPE: complete for any text, and of any size.
//!
//! Its order: the 256 bytes, the results of a few hundred merges, filler words that no merge
//! reaches, and at the end the special tokens.

/// Letters that the merges combine.
const LETTERS: &str = "etaoinshrdlu";
/// The space of byte-level BPE.
const SPACE: char = 'Ġ';
/// Special tokens, the last ids of the vocabulary.
pub(crate) const SPECIAL: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];

/// Tokens, their kinds, and merges in order of rank.
#[derive(Debug)]
pub(crate) struct Vocab {
    pub(crate) tokens: Vec<String>,
    /// GGUF's `tokenizer.ggml.token_type`: 1 is normal, 3 is control.
    pub(crate) types: Vec<i32>,
    pub(crate) merges: Vec<String>,
}

/// Makes a vocabulary of `len` tokens.
///
/// # Panics
///
/// Panics if `len` does not hold the bytes, merges and special tokens, or is more than 400,000.
pub(crate) fn make(len: usize) -> Vocab {
    let pairs = LETTERS.chars().flat_map(|a| LETTERS.chars().map(move |b| (a, b)));
    let starts = ('a'..='z').map(|letter| (SPACE, letter));
    let pairs: Vec<(char, char)> = pairs.chain(starts).collect();
    let merges = pairs.iter().map(|(a, b)| format!("{a} {b}")).collect();
    let mut tokens: Vec<String> = (0..=255).map(|byte| char_of(byte).to_string()).collect();
    tokens.extend(pairs.iter().map(|(a, b)| format!("{a}{b}")));
    let fillers = len.checked_sub(tokens.len() + SPECIAL.len()).expect("a vocabulary of this size");
    assert!(fillers <= 400_000, "four letters make less than {fillers} words");
    tokens.extend((0..fillers).map(filler));
    tokens.extend(SPECIAL.map(str::to_owned));
    let mut types = vec![1; len];
    types[len - SPECIAL.len()..].fill(3);
    Vocab { tokens, types, merges }
}

/// The character that stands for a byte in byte-level BPE: itself if it is printable, else the next
/// free one from U+0100 on.
fn char_of(byte: u8) -> char {
    let printable = |b: u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if printable(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|&b| !printable(b)).count();
    u32::try_from(before).ok().and_then(|n| char::from_u32(0x100 + n)).expect("68 bytes at most")
}

/// A word of four letters after a space, different for each index below 26^4.
fn filler(index: usize) -> String {
    let letter =
        |place: u32| char::from(b"abcdefghijklmnopqrstuvwxyz"[index / 26_usize.pow(place) % 26]);
    [SPACE, letter(3), letter(2), letter(1), letter(0)].iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_token_is_different_and_every_merge_makes_a_token() {
        let vocab = make(151_936);
        let distinct: HashSet<&str> = vocab.tokens.iter().map(String::as_str).collect();
        assert_eq!((vocab.tokens.len(), distinct.len()), (151_936, 151_936));
        assert_eq!(vocab.types.len(), vocab.tokens.len());
        assert!(vocab.merges.len() >= 150);
        for merge in &vocab.merges {
            let (left, right) = merge.split_once(' ').unwrap();
            assert!(distinct.contains(left) && distinct.contains(right), "{merge}");
            assert!(distinct.contains(merge.replace(' ', "").as_str()), "{merge}");
        }
    }

    #[test]
    fn bytes_have_the_characters_of_byte_level_bpe() {
        // Known ones: space, newline, the delete character, and the soft hyphen.
        let known = [(b' ', 'Ġ'), (b'\n', 'Ċ'), (b'A', 'A'), (0x7f, 'ġ'), (0xad, 'Ń'), (0, 'Ā')];
        for (byte, character) in known {
            assert_eq!(char_of(byte), character, "byte {byte}");
        }
    }

    #[test]
    fn special_tokens_come_last() {
        let vocab = make(512);
        assert_eq!(vocab.tokens[509..], SPECIAL.map(str::to_owned));
        assert_eq!(vocab.types[508..], [1, 3, 3, 3]);
    }
}
