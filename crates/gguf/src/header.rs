//! Parses and checks the header of one file.
//!
//! ```text
//! magic "GGUF" | version u32 | n_tensors u64 | n_entries u64
//! entry:   key str | type u32 | value          str:   len u64 | bytes
//! tensor:  name str | n_dims u32 | dims u64 .. | type u32 | offset u64
//! padding to the alignment, then the data section
//! ```
//!
//! The invariant of what comes out: every tensor lies inside the file, aligned, and no two overlap.

use std::sync::Arc;

use crate::cursor::Cursor;
use crate::error::Error;
use crate::metadata::Metadata;
use crate::strings::Strings;
use crate::tensors::{Described, TensorInfo};
use crate::value::{Array, Value};

/// What the header holds.
#[derive(Debug)]
pub(crate) struct Header {
    pub(crate) version: u32,
    pub(crate) alignment: usize,
    pub(crate) metadata: Metadata,
    pub(crate) tensors: Vec<TensorInfo>,
}

/// Key and type of the smallest value: a length, one letter, a type id, one byte.
const MIN_ENTRY_BYTES: usize = 8 + 1 + 4 + 1;
/// A length, one letter, no dimensions, a type id, an offset.
const MIN_TENSOR_BYTES: usize = 8 + 1 + 4 + 4 + 8;

/// Parses the header at the start of `bytes`; `part` is the number to give its tensors.
pub(crate) fn parse(bytes: &[u8], file: &Arc<str>, part: usize) -> Result<Header, Error> {
    let mut cursor = Cursor::new(bytes, file);
    let version = preamble(&mut cursor)?;
    let n_tensors = cursor.u64("the tensor count")?;
    let n_entries = cursor.count(MIN_ENTRY_BYTES, "the metadata count")?;
    cursor.check_count(n_tensors, MIN_TENSOR_BYTES, "the tensor count")?;
    let mut metadata = Metadata::new(Arc::clone(file));
    for index in 0..n_entries {
        let key = cursor.name(format_args!("the key of metadata entry {index}"))?;
        let value = entry_value(&mut cursor, &key)?;
        metadata.push(key.into(), value)?;
    }
    let alignment = alignment(&metadata, file)?;
    let n_tensors = cursor.check_count(n_tensors, MIN_TENSOR_BYTES, "the tensor count")?;
    let mut raw = Vec::with_capacity(n_tensors);
    for index in 0..n_tensors {
        raw.push(raw_tensor(&mut cursor, index)?);
    }
    let section = DataSection::new(bytes.len(), cursor.position(), alignment, file);
    let tensors = section.place(raw, part)?;
    Ok(Header { version, alignment, metadata, tensors })
}

/// Magic and version.
fn preamble(cursor: &mut Cursor<'_>) -> Result<u32, Error> {
    let file = cursor.file();
    let not_gguf = |hint| Err(Error::NotGguf { file: Arc::clone(file), hint });
    let magic: [u8; 4] = match cursor.array("the magic") {
        Ok(magic) => magic,
        Err(_) => return not_gguf("it has fewer than four bytes"),
    };
    match &magic {
        b"GGUF" => {}
        b"FUGG" => return Err(Error::BigEndian { file: Arc::clone(file) }),
        b"lmgg" | b"fmgg" | b"tjgg" | b"algg" => {
            return not_gguf("it is in a format older than GGUF; convert it again");
        }
        b"vers" => {
            return not_gguf("it looks like a Git LFS pointer; fetch it with `git lfs pull`");
        }
        b"PK\x03\x04" => return not_gguf("it is a zip archive"),
        b"<!do" | b"<!DO" | b"<htm" => return not_gguf("it is a web page; check the download"),
        _ => return not_gguf("it does not start with `GGUF`"),
    }
    match cursor.u32("the version")? {
        version @ (2 | 3) => Ok(version),
        version if matches!(version.swap_bytes(), 1..=0xffff) => {
            Err(Error::BigEndian { file: Arc::clone(file) })
        }
        version => Err(Error::UnsupportedVersion { file: Arc::clone(file), version }),
    }
}

pub(crate) fn alignment(metadata: &Metadata, file: &Arc<str>) -> Result<usize, Error> {
    let alignment = metadata.u64_or("general.alignment", crate::DEFAULT_ALIGNMENT as u64)?;
    match usize::try_from(alignment) {
        Ok(fits) if fits.is_power_of_two() && fits <= crate::MAX_ALIGNMENT => Ok(fits),
        _ => Err(Error::BadAlignment { file: Arc::clone(file), alignment }),
    }
}

fn entry_value(cursor: &mut Cursor<'_>, key: &str) -> Result<Value, Error> {
    let what = format_args!("the value of key `{key}`");
    let id = cursor.u32(format_args!("the type of key `{key}`"))?;
    Ok(match id {
        0 => Value::U8(u8::from_le_bytes(cursor.array(what)?)),
        1 => Value::I8(i8::from_le_bytes(cursor.array(what)?)),
        2 => Value::U16(u16::from_le_bytes(cursor.array(what)?)),
        3 => Value::I16(i16::from_le_bytes(cursor.array(what)?)),
        4 => Value::U32(u32::from_le_bytes(cursor.array(what)?)),
        5 => Value::I32(i32::from_le_bytes(cursor.array(what)?)),
        6 => Value::F32(f32::from_le_bytes(cursor.array(what)?)),
        7 => {
            let [byte] = cursor.array(what)?;
            Value::Bool(truth(byte, cursor.file(), key)?)
        }
        8 => Value::Str(cursor.str(what)?.into()),
        9 => Value::Array(array(cursor, key, 1)?),
        10 => Value::U64(u64::from_le_bytes(cursor.array(what)?)),
        11 => Value::I64(i64::from_le_bytes(cursor.array(what)?)),
        12 => Value::F64(f64::from_le_bytes(cursor.array(what)?)),
        id => return Err(unknown_type(cursor.file(), key, id)),
    })
}

fn unknown_type(file: &Arc<str>, key: &str, id: u32) -> Error {
    Error::UnknownValueType { file: Arc::clone(file), key: key.into(), id }
}

fn truth(byte: u8, file: &Arc<str>, key: &str) -> Result<bool, Error> {
    match byte {
        0 => Ok(false),
        1 => Ok(true),
        value => Err(Error::InvalidBool { file: Arc::clone(file), key: key.into(), value }),
    }
}

fn array(cursor: &mut Cursor<'_>, key: &str, depth: usize) -> Result<Array, Error> {
    let file = cursor.file();
    let limit = crate::MAX_ARRAY_DEPTH;
    if depth > limit {
        return Err(Error::NestedTooDeep { file: Arc::clone(file), key: key.into(), limit });
    }
    let id = cursor.u32(format_args!("the element type of key `{key}`"))?;
    Ok(match id {
        0 => Array::U8(numbers(cursor, key, u8::from_le_bytes)?),
        1 => Array::I8(numbers(cursor, key, i8::from_le_bytes)?),
        2 => Array::U16(numbers(cursor, key, u16::from_le_bytes)?),
        3 => Array::I16(numbers(cursor, key, i16::from_le_bytes)?),
        4 => Array::U32(numbers(cursor, key, u32::from_le_bytes)?),
        5 => Array::I32(numbers(cursor, key, i32::from_le_bytes)?),
        6 => Array::F32(numbers(cursor, key, f32::from_le_bytes)?),
        7 => {
            let bytes = numbers(cursor, key, u8::from_le_bytes)?;
            let truths = bytes.into_iter().map(|byte| truth(byte, file, key));
            Array::Bool(truths.collect::<Result<_, _>>()?)
        }
        8 => Array::Str(strings(cursor, key)?),
        9 => {
            // An element type and a count.
            let count = cursor.count(4 + 8, format_args!("the array of key `{key}`"))?;
            let inner = (0..count).map(|_| array(cursor, key, depth + 1));
            Array::Array(inner.collect::<Result<_, _>>()?)
        }
        10 => Array::U64(numbers(cursor, key, u64::from_le_bytes)?),
        11 => Array::I64(numbers(cursor, key, i64::from_le_bytes)?),
        12 => Array::F64(numbers(cursor, key, f64::from_le_bytes)?),
        id => return Err(unknown_type(file, key, id)),
    })
}

fn numbers<const N: usize, T>(
    cursor: &mut Cursor<'_>,
    key: &str,
    from_le_bytes: fn([u8; N]) -> T,
) -> Result<Vec<T>, Error> {
    let what = format_args!("the array of key `{key}`");
    let count = cursor.count(N, what)?;
    // Fits: `count` items of `N` bytes are left.
    let bytes = cursor.take((count * N) as u64, what)?;
    let (items, _) = bytes.as_chunks::<N>();
    Ok(items.iter().map(|&item| from_le_bytes(item)).collect())
}

fn strings(cursor: &mut Cursor<'_>, key: &str) -> Result<Strings, Error> {
    let count = cursor.count(8, format_args!("the array of key `{key}`"))?;
    let mut ends = Vec::with_capacity(count);
    let mut text = Vec::new();
    for index in 0..count {
        let len = cursor.u64(format_args!("the length of string {index} of key `{key}`"))?;
        text.extend_from_slice(cursor.take(len, format_args!("string {index} of key `{key}`"))?);
        ends.push(text.len());
    }
    text.shrink_to_fit();
    Strings::from_parts(text, ends).map_err(|index| Error::InvalidUtf8 {
        file: Arc::clone(cursor.file()),
        what: format!("string {index} of key `{key}`").into(),
    })
}

/// A tensor description as it stands in the file.
struct RawTensor {
    name: Arc<str>,
    n_dims: usize,
    dims: [u64; crate::MAX_DIMS],
    ggml_type: u32,
    offset: u64,
}

fn raw_tensor(cursor: &mut Cursor<'_>, index: usize) -> Result<RawTensor, Error> {
    let name = cursor.name(format_args!("the name of tensor {index}"))?;
    let n_dims = cursor.u32(format_args!("the dimension count of tensor `{name}`"))?;
    let mut dims = [1; crate::MAX_DIMS];
    let Some(used) = dims.get_mut(..n_dims as usize) else {
        let (file, tensor) = (Arc::clone(cursor.file()), name.into());
        return Err(Error::TooManyDims { file, tensor, n_dims: n_dims.into() });
    };
    for dim in used {
        *dim = cursor.u64(format_args!("a dimension of tensor `{name}`"))?;
    }
    let ggml_type = cursor.u32(format_args!("the type of tensor `{name}`"))?;
    let offset = cursor.u64(format_args!("the offset of tensor `{name}`"))?;
    Ok(RawTensor { name: name.into(), n_dims: n_dims as usize, dims, ggml_type, offset })
}

/// The part of a file that holds tensor data.
struct DataSection<'a> {
    start: u64,
    len: u64,
    alignment: u64,
    file: &'a Arc<str>,
}

impl<'a> DataSection<'a> {
    fn new(file_len: usize, header_len: usize, alignment: usize, file: &'a Arc<str>) -> Self {
        // A file without tensors may end before the padding does, and `usize` may end too: then
        // the section is empty.
        let start = header_len
            .checked_next_multiple_of(alignment)
            .map_or(file_len, |start| start.min(file_len));
        let (start, len) = (start as u64, (file_len - start) as u64);
        Self { start, len, alignment: alignment as u64, file }
    }

    /// Checks that each tensor lies inside the section and shares no byte with another.
    fn place(&self, raw: Vec<RawTensor>, part: usize) -> Result<Vec<TensorInfo>, Error> {
        let mut sizes = Vec::with_capacity(raw.len());
        for tensor in &raw {
            sizes.push(self.size(tensor)?);
        }
        let mut order: Vec<usize> = (0..raw.len()).collect();
        order.sort_by_key(|&at| (raw[at].offset, sizes[at]));
        for pair in order.windows(2) {
            let (first, second) = (&raw[pair[0]], &raw[pair[1]]);
            match sizes[pair[0]] {
                // Does not overflow: the tensor lies inside the section.
                Some(len) if first.offset + len > second.offset => {
                    return Err(Error::Overlap {
                        file: Arc::clone(self.file),
                        first: (&*first.name).into(),
                        second: (&*second.name).into(),
                    });
                }
                Some(_) => {}
                None => sizes[pair[0]] = Some(second.offset - first.offset),
            }
        }
        let place = |(tensor, len): (RawTensor, Option<u64>)| {
            let len = len.unwrap_or(self.len - tensor.offset);
            self.info(tensor, len, part)
        };
        raw.into_iter().zip(sizes).map(place).collect()
    }

    fn size(&self, tensor: &RawTensor) -> Result<Option<u64>, Error> {
        let file = || Arc::clone(self.file);
        let (name, offset) = (&*tensor.name, tensor.offset);
        let shape = &tensor.dims[..tensor.n_dims];
        let described = Described { file: self.file, name, shape, ggml_type: tensor.ggml_type };
        let len = described.len_bytes()?;
        if !offset.is_multiple_of(self.alignment) {
            let alignment = self.alignment;
            return Err(Error::Misaligned { file: file(), tensor: name.into(), offset, alignment });
        }
        let len_bytes = len.unwrap_or(0);
        if offset.checked_add(len_bytes).is_none_or(|end| end > self.len) {
            let available = self.len;
            let tensor = name.into();
            return Err(Error::OutOfBounds { file: file(), tensor, offset, len_bytes, available });
        }
        Ok(len)
    }

    fn info(&self, tensor: RawTensor, len: u64, part: usize) -> Result<TensorInfo, Error> {
        let overflow = |_| Error::SizeOverflow {
            file: Arc::clone(self.file),
            tensor: (&*tensor.name).into(),
            shape: tensor.dims[..tensor.n_dims].into(),
        };
        let mut dims = [1; crate::MAX_DIMS];
        for (dim, &raw) in dims.iter_mut().zip(&tensor.dims) {
            *dim = usize::try_from(raw).map_err(overflow)?;
        }
        let start = usize::try_from(self.start + tensor.offset).map_err(overflow)?;
        let len_bytes = usize::try_from(len).map_err(overflow)?;
        let (file, ggml_type, n_dims) = (Arc::clone(self.file), tensor.ggml_type, tensor.n_dims);
        let name = tensor.name;
        Ok(TensorInfo { file, name, n_dims, dims, ggml_type, part, start, len_bytes })
    }
}
