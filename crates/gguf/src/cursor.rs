//! A reader over the header that cannot leave the file.
//!
//! Every count is compared with the bytes that are left before memory is reserved for it, so what
//! the parser allocates is bounded by a small multiple of the file's length.

use std::fmt;
use std::sync::Arc;

use crate::error::Error;

pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
    file: &'a Arc<str>,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(bytes: &'a [u8], file: &'a Arc<str>) -> Self {
        // What a header may cost in memory stays bounded for files of any length.
        let bytes = &bytes[..bytes.len().min(crate::MAX_HEADER_BYTES)];
        Self { bytes, at: 0, file }
    }

    pub(crate) fn position(&self) -> usize {
        self.at
    }

    pub(crate) fn file(&self) -> &'a Arc<str> {
        self.file
    }

    fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// The next `len` bytes. `what` is formatted only for an error.
    pub(crate) fn take(&mut self, len: u64, what: impl fmt::Display) -> Result<&'a [u8], Error> {
        let end = usize::try_from(len).ok().and_then(|len| self.at.checked_add(len));
        match end.and_then(|end| self.bytes.get(self.at..end)) {
            Some(taken) => {
                self.at += taken.len();
                Ok(taken)
            }
            None => Err(Error::Truncated {
                file: Arc::clone(self.file),
                what: what.to_string().into(),
                offset: self.at as u64,
                needed: len,
                available: self.left() as u64,
            }),
        }
    }

    pub(crate) fn array<const N: usize>(
        &mut self,
        what: impl fmt::Display,
    ) -> Result<[u8; N], Error> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N as u64, what)?);
        Ok(out)
    }

    pub(crate) fn u32(&mut self, what: impl fmt::Display) -> Result<u32, Error> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    pub(crate) fn u64(&mut self, what: impl fmt::Display) -> Result<u64, Error> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// A count of items that take at least `min_bytes` each, none of which have been read yet.
    pub(crate) fn count(
        &mut self,
        min_bytes: usize,
        what: impl fmt::Display,
    ) -> Result<usize, Error> {
        let count = self.u64(&what)?;
        self.check_count(count, min_bytes, what)
    }

    /// Compares a count with the bytes that are left.
    pub(crate) fn check_count(
        &self,
        count: u64,
        min_bytes: usize,
        what: impl fmt::Display,
    ) -> Result<usize, Error> {
        let most = self.left() / min_bytes;
        match usize::try_from(count) {
            Ok(count) if count <= most => Ok(count),
            _ => Err(Error::CountTooLarge {
                file: Arc::clone(self.file),
                what: what.to_string().into(),
                count,
                most: most as u64,
            }),
        }
    }

    /// A string with its length in front.
    pub(crate) fn str(&mut self, what: impl fmt::Display) -> Result<String, Error> {
        let len = self.u64(format_args!("the length of {what}"))?;
        self.text(len, what)
    }

    /// The name of something: a string that is neither empty nor absurdly long.
    pub(crate) fn name(&mut self, what: impl fmt::Display) -> Result<String, Error> {
        let len = self.u64(format_args!("the length of {what}"))?;
        if len == 0 || len > crate::MAX_NAME_BYTES as u64 {
            let what = what.to_string().into();
            return Err(Error::BadName { file: Arc::clone(self.file), what, len_bytes: len });
        }
        self.text(len, what)
    }

    fn text(&mut self, len: u64, what: impl fmt::Display) -> Result<String, Error> {
        // Copied first and checked then: a mapped file may change between the two.
        let copy = self.take(len, &what)?.to_vec();
        String::from_utf8(copy).map_err(|_| Error::InvalidUtf8 {
            file: Arc::clone(self.file),
            what: what.to_string().into(),
        })
    }
}
