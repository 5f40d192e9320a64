//! A session in a file: its tokens with their keys and values, so that they need not run again.
//!
//! ```text
//! offset  bytes  field, little-endian
//!      0      8  "fucinaKV"
//!      8      4  version, 1
//!     12      4  type of the keys and values: GGML's number, 1 is f16 and 8 is Q8_0
//!     16     16  fingerprint of the model
//!     32      4  layers
//!     36      4  key heads of each layer
//!     40      4  elements of a key head
//!     44      4  elements of a value head
//!     48      8  tokens, n
//!     56     16  XXH3-128 of the 56 bytes before
//!     72     4n  the tokens
//!                for each layer: the keys of n tokens, then the values of n tokens, as stored
//!    end     16  XXH3-128 of everything before
//! ```
//!
//! A file is read twice: once to check all of it, and only then into the session. So whatever is
//! wrong with a file, the session stays as it was; and memory is taken for the tokens only, after
//! the size of the file has confirmed their number.

use std::io::{self, Read, Seek, SeekFrom, Write};

use fucina_gguf::File;
use fucina_runtime::{CacheType, KvShape};
use twox_hash::xxhash3_128::Hasher;

use crate::error::Result;
use crate::model::Session;

const MAGIC: [u8; 8] = *b"fucinaKV";
const VERSION: u32 = 1;
/// Bytes of the header, and of the part of it that has a checksum.
const HEADER_BYTES: usize = 72;
const CHECKED_BYTES: usize = 56;
const HASH_BYTES: usize = 16;
/// Bytes read at a time.
const CHUNK_BYTES: usize = 1 << 16;
/// Bytes of each of the three places of a tensor that the fingerprint looks at.
const SAMPLE_BYTES: usize = 64;

/// A saved session cannot be written or used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SavedError {
    /// It begins with other bytes.
    #[error("it is not a saved session")]
    NotASession,
    /// Another version of this program wrote it.
    #[error("it has version {found} of the format, {VERSION} is supported")]
    Version {
        /// The version.
        found: u32,
    },
    /// It ends too early.
    #[error("it is cut short: {found} of {expected} bytes")]
    Truncated {
        /// Bytes that it should have.
        expected: u64,
        /// Bytes that it has.
        found: u64,
    },
    /// Its bytes are not those that were written.
    #[error("it is damaged: {what}")]
    Damaged {
        /// What does not hold.
        what: &'static str,
    },
    /// Another model made it.
    #[error("it was made with another model")]
    OtherModel,
    /// Its keys and values have another type than those of the session.
    #[error("its keys and values are {found}, those of the session are {wanted}")]
    OtherType {
        /// Type in the file.
        found: CacheType,
        /// Type of the session.
        wanted: CacheType,
    },
    /// It holds more tokens than the context.
    #[error("it has {tokens} tokens, the context holds {context}; raise the context size")]
    TooLong {
        /// Tokens to restore.
        tokens: usize,
        /// Size of the context.
        context: usize,
    },
    /// The system refused.
    #[error("{message}")]
    Io {
        /// Kind of the error.
        kind: io::ErrorKind,
        /// In the system's words.
        message: String,
    },
}

impl From<io::Error> for SavedError {
    fn from(error: io::Error) -> Self {
        Self::Io { kind: error.kind(), message: error.to_string() }
    }
}

/// The result of looking at a file.
type Found<T> = std::result::Result<T, SavedError>;

/// Tells a model from others: everything before the tensors, and samples of each tensor.
pub(crate) fn fingerprint(file: &File) -> Result<u128> {
    let mut hasher = Hasher::new();
    for part in 0..file.parts() {
        hasher.write(file.header_bytes(part).unwrap_or_default());
    }
    for info in file.tensors() {
        let bytes = file.tensor_data(info)?;
        let len = bytes.len().min(SAMPLE_BYTES);
        for at in [0, (bytes.len() - len) / 2, bytes.len() - len] {
            hasher.write(&bytes[at..at + len]);
        }
    }
    Ok(hasher.finish_128())
}

impl Session<'_> {
    /// Writes the tokens held, with their keys and values. The bytes come in large pieces.
    ///
    /// # Errors
    ///
    /// Fails as the writer does, or with a device's fault.
    pub fn save(&self, to: &mut dyn Write) -> Result<()> {
        let mut hasher = Hasher::new();
        let mut put = |bytes: &[u8]| {
            hasher.write(bytes);
            to.write_all(bytes).map_err(SavedError::from)
        };
        let header = Header::of(self);
        put(&header.to_bytes())?;
        put(&self.tokens.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<_>>())?;
        for layer in 0..self.cache.shape().layers {
            for rows in self.cache.stored(layer)? {
                put(rows)?;
            }
        }
        let hash = hasher.finish_128().to_le_bytes();
        Ok(to.write_all(&hash).and_then(|()| to.flush()).map_err(SavedError::from)?)
    }

    /// Holds the tokens of a saved session instead of those held, bit for bit: all of them, or
    /// those that `prompt` begins with too. Returns how many.
    ///
    /// After an error the session holds what it held before; only a file that changes while it is
    /// read, or a disk that fails then, leaves it empty.
    ///
    /// # Errors
    ///
    /// Fails if the bytes are no saved session of this model and type, are damaged or cut short,
    /// if the tokens do not fit the context, or with a device's fault.
    pub fn restore(
        &mut self,
        from: &mut (impl Read + Seek),
        prompt: Option<&[u32]>,
    ) -> Result<usize> {
        let (mut tokens, start) = Checked::read(self, from)?;
        let held = tokens.len();
        if let Some(prompt) = prompt {
            let same = tokens.iter().zip(prompt).take_while(|(a, b)| a == b).count();
            tokens.truncate(same);
        }
        if tokens.len() > self.context() {
            let (tokens, context) = (tokens.len(), self.context());
            return Err(SavedError::TooLong { tokens, context }.into());
        }
        from.seek(SeekFrom::Start(start)).map_err(SavedError::from)?;
        let forgotten = held - tokens.len();
        self.tokens.clear();
        self.cache.restore(tokens.len(), &mut |bytes| -> Result<()> {
            // They are the rows of the tokens that stay; those of the others follow.
            let skip = bytes.len().checked_div(tokens.len()).unwrap_or(0) * forgotten;
            let skip = i64::try_from(skip).unwrap_or(i64::MAX);
            let read = from.read_exact(bytes).and_then(|()| from.seek_relative(skip));
            Ok(read.map_err(SavedError::from)?)
        })?;
        self.tokens = tokens;
        Ok(self.tokens.len())
    }
}

/// The first bytes of a file.
struct Header {
    cache: u32,
    fingerprint: u128,
    sizes: [u32; 4],
    tokens: u64,
}

impl Header {
    fn of(session: &Session<'_>) -> Self {
        let KvShape { layers, kv_heads, k_dim, v_dim, cache, .. } = session.cache.shape();
        // Sizes beyond u32 do not fit any memory; two models that differ there only are told
        // apart by the fingerprint.
        let sizes = [layers, kv_heads, k_dim, v_dim].map(|n| u32::try_from(n).unwrap_or(u32::MAX));
        Self {
            cache: cache.dtype().ggml_id().unwrap_or(u32::MAX),
            fingerprint: session.model().fingerprint(),
            sizes,
            tokens: session.tokens.len() as u64,
        }
    }

    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES);
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(self.cache.to_le_bytes());
        bytes.extend(self.fingerprint.to_le_bytes());
        bytes.extend(self.sizes.into_iter().flat_map(u32::to_le_bytes));
        bytes.extend(self.tokens.to_le_bytes());
        bytes.extend(Hasher::oneshot(&bytes).to_le_bytes());
        bytes
    }

    /// The header of a file of this session's model and type.
    fn parse(bytes: &[u8; HEADER_BYTES], session: &Session<'_>) -> Found<Self> {
        if !bytes.starts_with(&MAGIC) {
            return Err(SavedError::NotASession);
        }
        let version = u32::from_le_bytes(array(bytes, 8));
        if version != VERSION {
            return Err(SavedError::Version { found: version });
        }
        let (checked, sum) = bytes.split_at(CHECKED_BYTES);
        if !matches(Hasher::oneshot(checked), array(sum, 0)) {
            return Err(SavedError::Damaged { what: "the checksum of the header" });
        }
        let found = Self {
            cache: u32::from_le_bytes(array(bytes, 12)),
            fingerprint: u128::from_le_bytes(array(bytes, 16)),
            sizes: [32, 36, 40, 44].map(|at| u32::from_le_bytes(array(bytes, at))),
            tokens: u64::from_le_bytes(array(bytes, 48)),
        };
        let own = Self::of(session);
        if found.fingerprint != own.fingerprint || found.sizes != own.sizes {
            return Err(SavedError::OtherModel);
        }
        if found.cache != own.cache {
            let is_it = |cache: &CacheType| cache.dtype().ggml_id() == Some(found.cache);
            let wanted = session.cache_type();
            return Err(match CacheType::ALL.into_iter().find(is_it) {
                Some(found) => SavedError::OtherType { found, wanted },
                None => SavedError::Damaged { what: "the type of the keys and values" },
            });
        }
        Ok(found)
    }
}

/// Reads a file from end to end.
struct Checked<'a, R> {
    from: &'a mut R,
    hasher: Hasher,
}

impl<R: Read + Seek> Checked<'_, R> {
    /// The tokens of a file in which everything is right, and where the first keys begin.
    fn read(session: &Session<'_>, from: &mut R) -> Found<(Vec<u32>, u64)> {
        let found = from.seek(SeekFrom::End(0))?;
        from.rewind()?;
        if found < HEADER_BYTES as u64 {
            return Err(short(from, found)?);
        }
        let mut file = Checked { from, hasher: Hasher::new() };
        let mut bytes = [0; HEADER_BYTES];
        file.next(&mut bytes)?;
        let header = Header::parse(&bytes, session)?;
        let expected = expected_bytes(session, header.tokens)
            .ok_or(SavedError::Damaged { what: "the number of tokens" })?;
        if found < expected {
            return Err(SavedError::Truncated { expected, found });
        }
        if found > expected {
            return Err(SavedError::Damaged { what: "bytes after its end" });
        }
        let tokens = file.tokens(header.tokens, session.model().info().vocab)?;
        let start = HEADER_BYTES as u64 + 4 * tokens.len() as u64;
        file.rows(expected - start - HASH_BYTES as u64)?;
        let hash = file.hasher.finish_128();
        let mut sum = [0; HASH_BYTES];
        file.from.read_exact(&mut sum)?;
        if matches(hash, sum) {
            return Ok((tokens, start));
        }
        Err(SavedError::Damaged { what: "the checksum" })
    }

    fn next(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        self.from.read_exact(bytes)?;
        self.hasher.write(bytes);
        Ok(())
    }

    /// The size of the file has room for so many.
    fn tokens(&mut self, count: u64, vocab: usize) -> Found<Vec<u32>> {
        let count = usize::try_from(count)
            .map_err(|_| SavedError::Damaged { what: "the number of tokens" })?;
        let mut tokens = Vec::new();
        let mut chunk = [0; CHUNK_BYTES];
        while tokens.len() < count {
            let bytes = &mut chunk[..(4 * (count - tokens.len())).min(CHUNK_BYTES)];
            self.next(bytes)?;
            tokens.extend(bytes.as_chunks().0.iter().map(|&id| u32::from_le_bytes(id)));
        }
        if tokens.iter().any(|&id| id as usize >= vocab) {
            return Err(SavedError::Damaged { what: "a token outside the vocabulary" });
        }
        Ok(tokens)
    }

    fn rows(&mut self, mut left: u64) -> io::Result<()> {
        let mut chunk = [0; CHUNK_BYTES];
        while left > 0 {
            let len = usize::try_from(left).unwrap_or(usize::MAX).min(CHUNK_BYTES);
            self.next(&mut chunk[..len])?;
            left -= len as u64;
        }
        Ok(())
    }
}

/// What is wrong with a file that is shorter than a header.
fn short(from: &mut impl Read, found: u64) -> io::Result<SavedError> {
    let mut start = Vec::new();
    from.take(MAGIC.len() as u64).read_to_end(&mut start)?;
    if MAGIC.starts_with(&start) {
        return Ok(SavedError::Truncated { expected: HEADER_BYTES as u64, found });
    }
    Ok(SavedError::NotASession)
}

/// Size of a file with so many tokens. `None` if it overflows.
fn expected_bytes(session: &Session<'_>, tokens: u64) -> Option<u64> {
    let shape = session.cache.shape();
    let [keys, values] = shape.row_bytes()?;
    let rows = (keys as u64).checked_add(values as u64)?.checked_mul(shape.layers as u64)?;
    let body = tokens.checked_mul(rows.checked_add(4)?)?;
    body.checked_add((HEADER_BYTES + HASH_BYTES) as u64)
}

/// Whether a checksum is right. While fuzzing all are, to get past them.
fn matches(hash: u128, stored: [u8; HASH_BYTES]) -> bool {
    cfg!(fuzzing) || hash == u128::from_le_bytes(stored)
}

/// `N` bytes from `at` on.
fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[at..at + N]);
    array
}
