//! SHA-256, as bytes come.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use ring::digest::{Context, SHA256};

/// A SHA-256.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Sha256([u8; 32]);

impl Sha256 {
    /// 64 hexadecimal digits, or `None`.
    #[must_use]
    pub fn from_hex(text: &str) -> Option<Self> {
        let mut bytes = [0; 32];
        if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        for (byte, at) in bytes.iter_mut().zip((0..64).step_by(2)) {
            *byte = u8::from_str_radix(&text[at..at + 2], 16).ok()?;
        }
        Some(Self(bytes))
    }

    /// Reads a file to its end.
    ///
    /// # Errors
    ///
    /// Fails if it cannot be read.
    pub fn of_file(path: &Path) -> io::Result<Self> {
        let mut hasher = Hasher::default();
        hasher.read(&mut File::open(path)?, &mut |_| {})?;
        Ok(hasher.finish())
    }
}

impl fmt::Display for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sha256({self})")
    }
}

/// A sum that is being made.
#[derive(Clone)]
pub(crate) struct Hasher {
    context: Context,
    len_bytes: u64,
}

impl Default for Hasher {
    fn default() -> Self {
        Self { context: Context::new(&SHA256), len_bytes: 0 }
    }
}

impl Hasher {
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.context.update(bytes);
        self.len_bytes += bytes.len() as u64;
    }

    /// How many bytes went in.
    pub(crate) const fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Everything that is left in `from`. `on_bytes` hears how many bytes went in, in all.
    pub(crate) fn read(
        &mut self,
        from: &mut impl Read,
        on_bytes: &mut dyn FnMut(u64),
    ) -> io::Result<()> {
        let mut buffer = vec![0; 1 << 18];
        loop {
            match from.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(len) => self.update(&buffer[..len]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            on_bytes(self.len_bytes);
        }
    }

    pub(crate) fn finish(self) -> Sha256 {
        let digest = self.context.finish();
        let mut bytes = [0; 32];
        // SHA-256 has 32 bytes.
        bytes.copy_from_slice(digest.as_ref());
        Sha256(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_is_that_of_the_standard() {
        // The example of FIPS 180-2, appendix B.1, in two pieces.
        let mut hasher = Hasher::default();
        hasher.update(b"a");
        hasher.read(&mut &b"bc"[..], &mut |_| {}).unwrap();
        assert_eq!(hasher.len_bytes(), 3);
        let want = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(hasher.finish().to_string(), want);
        assert_eq!(Sha256::from_hex(want).unwrap().to_string(), want);
        assert_eq!(Sha256::from_hex(&want[1..]), None);
        assert_eq!(Sha256::from_hex(&want.replace('b', "g")), None);
        assert_eq!(Sha256::from_hex(&"é".repeat(32)), None);
    }
}
