//! Where queries, keys and values lie.

#![deny(unsafe_code)]

use std::ops::Range;

use fucina_dtype::BlockQ8_0;

use crate::convert::Q8_0_ELEMS;

/// Elements of a KV cache.
#[derive(Debug, Clone, Copy)]
pub enum KvData<'a> {
    /// f16 bits.
    F16(&'a [u16]),
    /// f32.
    F32(&'a [f32]),
    /// Blocks of [`Q8_0_ELEMS`]. Heads and strides are whole blocks.
    Q8_0(&'a [BlockQ8_0]),
}

impl KvData<'_> {
    const fn len(&self) -> usize {
        match self {
            Self::F16(data) => data.len(),
            Self::F32(data) => data.len(),
            Self::Q8_0(data) => data.len() * Q8_0_ELEMS,
        }
    }

    const fn unit(&self) -> usize {
        match self {
            Self::F16(_) | Self::F32(_) => 1,
            Self::Q8_0(_) => Q8_0_ELEMS,
        }
    }
}

/// The keys or the values of one KV head, `[len, dim]`.
#[derive(Debug, Clone, Copy)]
pub struct KvView<'a> {
    /// From the first element of the head at the first position on.
    pub data: KvData<'a>,
    /// Elements between consecutive positions.
    pub row_stride: usize,
    /// Positions. Nothing beyond them is read.
    pub len: usize,
    /// Elements of the head.
    pub dim: usize,
}

/// Whether `len` rows fit into `data_len` elements.
fn fits(len: usize, row_stride: usize, dim: usize, data_len: usize) -> bool {
    let needed = match len {
        0 => Some(0),
        len => (len - 1).checked_mul(row_stride).and_then(|n| n.checked_add(dim)),
    };
    needed.is_some_and(|needed| needed <= data_len)
}

impl KvView<'_> {
    pub(super) fn assert_valid(&self) {
        let unit = self.data.unit();
        assert!(
            self.dim.is_multiple_of(unit) && self.row_stride.is_multiple_of(unit),
            "heads of {} with stride {} are not whole blocks of {unit}",
            self.dim,
            self.row_stride
        );
        assert!(
            fits(self.len, self.row_stride, self.dim, self.data.len()),
            "{} rows of {} with stride {} reach beyond {} elements",
            self.len,
            self.dim,
            self.row_stride,
            self.data.len()
        );
    }
}

/// Keys and values of one KV head over the same positions.
#[derive(Debug, Clone, Copy)]
pub struct Kv<'a> {
    /// Keys.
    pub k: KvView<'a>,
    /// Values; `dim` may differ from that of the keys.
    pub v: KvView<'a>,
    /// Position of the first row of the views: zero unless they were narrowed.
    pub start: usize,
}

/// The queries of one head.
#[derive(Debug, Clone, PartialEq)]
pub struct Queries<'a> {
    /// From the first element of the head in row 0 on. Rows have the length of a key.
    pub data: &'a [f32],
    /// Elements between consecutive rows.
    pub row_stride: usize,
    /// Which rows to compute. Row `i` is the query at position `q_offset + i`.
    pub rows: Range<usize>,
}

impl Queries<'_> {
    pub(super) fn assert_valid(&self, dim: usize) {
        assert!(
            self.rows.is_empty() || fits(self.rows.end, self.row_stride, dim, self.data.len()),
            "query rows {:?} of {dim} with stride {} reach beyond {} elements",
            self.rows,
            self.row_stride,
            self.data.len()
        );
    }
}
