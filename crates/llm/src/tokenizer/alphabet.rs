//! The byte alphabet of GPT-2: each of the 256 bytes has one printable character, so a
//! vocabulary of byte strings can be written as text.
//!
//! Printable Latin-1 bytes stand for themselves. The other 68 are numbered in order and stand at
//! `U+0100 + number`: the space is `U+0120`, the line feed `U+010A`.

/// The first code point of the bytes that do not stand for themselves.
const SHIFTED: u32 = 0x100;

/// Whether `byte` is written as the character with its own number.
const fn stands_for_itself(byte: u8) -> bool {
    matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff)
}

/// The shifted bytes in the order of their characters.
const SHIFTED_BYTES: [u8; 68] = {
    let mut table = [0; 68];
    let mut number = 0;
    let mut byte = 0u8;
    loop {
        if !stands_for_itself(byte) {
            table[number] = byte;
            number += 1;
        }
        if byte == u8::MAX {
            break table;
        }
        byte += 1;
    }
};

/// The byte that `char` stands for, if it is in the alphabet.
pub(super) fn byte_of(char: char) -> Option<u8> {
    let code = u32::from(char);
    match u8::try_from(code) {
        Ok(byte) => stands_for_itself(byte).then_some(byte),
        Err(_) => SHIFTED_BYTES.get(usize::try_from(code - SHIFTED).ok()?).copied(),
    }
}

/// Appends the bytes that `text` stands for. Returns `false`, with `out` as it was, if some
/// character of `text` is not in the alphabet.
pub(super) fn decode_into(text: &str, out: &mut Vec<u8>) -> bool {
    let start = out.len();
    for char in text.chars() {
        let Some(byte) = byte_of(char) else {
            out.truncate(start);
            return false;
        };
        out.push(byte);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::{byte_of, decode_into};

    #[test]
    fn every_byte_has_exactly_one_character() {
        let mut seen = [0; 256];
        for char in '\0'..=char::MAX {
            if let Some(byte) = byte_of(char) {
                seen[usize::from(byte)] += 1;
            }
        }
        assert_eq!(seen, [1; 256]);
    }

    #[test]
    fn known_characters_stand_for_known_bytes() {
        for (char, byte) in [('a', b'a'), ('Ġ', b' '), ('Ċ', b'\n'), ('ĉ', b'\t'), ('Ń', 0xad)]
        {
            assert_eq!(byte_of(char), Some(byte), "{char}");
        }
        for char in [' ', '\n', '\u{ad}', '\u{144}', '中'] {
            assert_eq!(byte_of(char), None, "{char:?}");
        }
    }

    #[test]
    fn a_foreign_character_leaves_the_output_alone() {
        let mut out = b"x".to_vec();
        assert!(!decode_into("ab中", &mut out));
        assert_eq!(out, b"x");
        assert!(decode_into("Ġa", &mut out));
        assert_eq!(out, b"x a");
    }
}
