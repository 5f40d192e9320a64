//! Products with one of several matrices for each row, and what a router of such rows needs.
//!
//! [`Groups`] sorts the choices of a router by expert. A first product reads the activation of
//! each token where it is, however many experts chose it; its rows come out sorted. A product of
//! sorted rows stays sorted, and [`DynTensor::combine`] adds the rows of each token up again.

use std::ops::Range;

use fucina_accel::{self as accel, Call};
use fucina_dtype::DType;
use fucina_kernels::dense::{self, Route};
use fucina_kernels::quant::{PANEL_COLS, Plan, activation_len};
use fucina_kernels::{elementwise, reduce};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::light::for_rows;
use super::matmul::copy_tile;
use super::panels::{Activations, multiply_tile, panels_a_task};
use crate::error::{Error, Result};
use crate::ops;
use crate::runtime::Runtime;
use crate::scratch;
use crate::tensor::DynTensor;
use crate::weight::Packed;

/// Bytes below which a second thread copies no faster.
const SERIAL_BYTES: usize = 1 << 16;

const OP: &str = "grouped_matmul";
const COMBINE: &str = "combine";

/// Which expert each row goes to. The rows are sorted by expert, those of one expert by token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Groups {
    tokens: usize,
    /// Where the rows of each expert begin, and the end.
    offsets: Vec<i32>,
    /// Token of each sorted row.
    sources: Vec<i32>,
    /// Sorted row of each choice, token by token.
    places: Vec<i32>,
}

impl Groups {
    /// Sorts the experts that each token chose, `[tokens, used]` of i32. Experts that nobody chose
    /// have no rows.
    ///
    /// # Errors
    ///
    /// Fails if there are other axes, an expert that does not exist, or more choices than i32
    /// counts, or with the fault of a device.
    pub fn new(choices: &DynTensor, experts: usize) -> Result<Self> {
        let op = "groups";
        let &[tokens, used] = choices.shape() else {
            let why = "the choices of the tokens are rows";
            return Err(Error::Shape { op, shape: choices.dims(), why });
        };
        let countable = |count: usize| i32::try_from(count).is_ok();
        if !countable(choices.len()) || !countable(experts) {
            let why = "there are more choices or experts than i32 counts";
            return Err(Error::Shape { op, shape: choices.dims(), why });
        }
        let choices = choices.contiguous()?;
        let choices = choices.data::<i32>()?;
        let mut offsets = vec![0i32; experts + 1];
        for &id in choices {
            let expert = usize::try_from(id).ok().filter(|&expert| expert < experts);
            let outside = Error::OutOfRange { op, index: id.into(), limit: experts };
            offsets[expert.ok_or(outside)? + 1] += 1;
        }
        for expert in 0..experts {
            offsets[expert + 1] += offsets[expert];
        }
        let mut next = offsets.clone();
        let (mut sources, mut places) = (vec![0; choices.len()], Vec::with_capacity(choices.len()));
        for (at, &id) in choices.iter().enumerate() {
            let place = &mut next[index(id)];
            sources[index(*place)] = number(at / used);
            places.push(*place);
            *place += 1;
        }
        Ok(Self { tokens, offsets, sources, places })
    }

    /// Number of experts.
    pub fn experts(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Number of tokens.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Number of sorted rows: the choices of all tokens.
    pub fn rows(&self) -> usize {
        self.sources.len()
    }

    /// Sorted rows of one expert.
    ///
    /// # Panics
    ///
    /// Panics if there is no such expert.
    pub fn group(&self, expert: usize) -> Range<usize> {
        index(self.offsets[expert])..index(self.offsets[expert + 1])
    }
}

/// A number of a table that was checked when the table was made.
fn index(value: i32) -> usize {
    usize::try_from(value).expect("tables hold no negative numbers")
}

fn number(value: usize) -> i32 {
    i32::try_from(value).expect("the choices were counted")
}

/// What the rows of the activations of a grouped product are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupRows {
    /// One for each token, for all experts that it chose.
    Tokens,
    /// One for each choice, sorted by expert: the result of another grouped product.
    Sorted,
}

impl DynTensor {
    /// `out[r] = self[r or its token] * weights[expert of r]ᵀ`, for the sorted rows `r` of `groups`:
    /// `[m, k]` and `[experts, n, k]` give `[rows, n]`, in f32. The weights may be of any type.
    ///
    /// # Errors
    ///
    /// Fails if the shapes do not fit each other and the groups, or with the fault of a device.
    pub fn grouped_matmul_t(
        &self,
        weights: &Self,
        groups: &Groups,
        rows: GroupRows,
    ) -> Result<Self> {
        let misfit = |why| Error::Shapes { op: OP, lhs: self.dims(), rhs: weights.dims(), why };
        let (&[m, _], &[experts, ..]) = (self.shape(), weights.shape()) else {
            return Err(misfit("[m, k] and [experts, n, k] are expected"));
        };
        let (row_ids, want) = match rows {
            GroupRows::Tokens => (Some(&*groups.sources), groups.tokens()),
            GroupRows::Sorted => (None, groups.rows()),
        };
        if experts != groups.experts() || m != want {
            return Err(misfit("the groups have other experts or rows"));
        }
        let (x, weights) = (self.to_f32()?.contiguous()?, weights.contiguous()?);
        let rt = x.runtime();
        let op = accel::GroupedMatMul {
            x: x.operand(OP)?,
            weights: weights.operand(OP)?,
            offsets: &groups.offsets,
            row_ids,
        };
        ops::run(rt, &Call::GroupedMatMul(op), |out| {
            let product = Product { rt, x: x.data()?, op: &op };
            match weights.packed() {
                Some(packed) => product.packed(packed, out),
                None => product.rows(&weights, out),
            }
        })
    }

    /// Adds up the sorted rows of each token, `self: [rows, d]`, by the weights of its choices,
    /// `[tokens, used]`: `[tokens, d]`. The order of the sum is that of the choices.
    ///
    /// # Errors
    ///
    /// Fails if the shapes do not fit the groups, or with the fault of a device.
    pub fn combine(&self, weights: &Self, groups: &Groups) -> Result<Self> {
        let misfit =
            |why| Error::Shapes { op: COMBINE, lhs: self.dims(), rhs: weights.dims(), why };
        let (&[rows, d], &[tokens, used]) = (self.shape(), weights.shape()) else {
            return Err(misfit("[rows, d] and [tokens, used] are expected"));
        };
        if rows != groups.rows() || tokens != groups.tokens() {
            return Err(misfit("the groups have other rows or tokens"));
        }
        let (x, weights) = (self.to_f32()?.contiguous()?, weights.to_f32()?.contiguous()?);
        let rt = x.runtime();
        let call = Call::Combine(accel::Combine {
            x: x.operand(COMBINE)?,
            weights: weights.operand(COMBINE)?,
            ids: &groups.places,
        });
        ops::run(rt, &call, |out| {
            let (isa, x, weights) = (rt.isa(), x.data::<f32>()?, weights.data::<f32>()?);
            for_rows(rt, out, (tokens, d), |token, out| {
                out.fill(0.0);
                let pairs = token * used..(token + 1) * used;
                for (&weight, &row) in weights[pairs.clone()].iter().zip(&groups.places[pairs]) {
                    elementwise::axpy(isa, weight, &x[index(row) * d..][..d], out);
                }
            });
            Ok(())
        })
    }

    /// Each row of the innermost axis divided by its sum. A row whose sum is zero becomes NaN.
    ///
    /// # Errors
    ///
    /// Fails if the tensor does not hold floats, or with the fault of a device.
    pub fn divide_by_sum(&self) -> Result<Self> {
        let mut out = self.to_f32()?.copy()?;
        let isa = out.runtime().isa();
        let cols = out.shape().last().copied().unwrap_or(1);
        for row in out.data_mut::<f32>()?.chunks_exact_mut(cols.max(1)) {
            let sum = reduce::sum(isa, row);
            // Not a product with the reciprocal, which rounds twice.
            row.iter_mut().for_each(|value| *value /= sum);
        }
        Ok(out)
    }
}

/// Rows of one expert that a task takes.
struct Band {
    expert: usize,
    rows: Range<usize>,
}

/// A product on the CPU.
struct Product<'a> {
    rt: &'a Runtime,
    x: &'a [f32],
    op: &'a accel::GroupedMatMul<'a>,
}

impl Product<'_> {
    /// The groups, cut into bands of at most `limit` rows.
    fn bands(&self, limit: usize) -> Vec<Band> {
        let [_, experts, ..] = self.op.sizes();
        let mut bands = Vec::new();
        for expert in 0..experts {
            let group = self.op.group(expert);
            let starts = group.clone().step_by(limit);
            bands.extend(
                starts.map(|at| Band { expert, rows: at..group.end.min(at.saturating_add(limit)) }),
            );
        }
        bands
    }

    /// Units of columns for one task, so that there are several tasks for each thread.
    fn units_a_task(&self, units: usize, bands: usize, most: usize) -> usize {
        (units.saturating_mul(bands) / (8 * self.rt.threads())).clamp(1, most)
    }

    /// Packed experts: each activation is brought once into the form that the plan asks for, then
    /// one task for each tile of panels.
    fn packed(&self, packed: &Packed, out: &mut [f32]) -> Result<()> {
        let [rows, _, n, k] = self.op.sizes();
        if out.is_empty() || k == 0 {
            out.fill(0.0);
            return Ok(());
        }
        let (layout, len) = (packed.layout(), activation_len(k));
        // One form for all experts, as they share rows: that for the usual number of rows.
        let plan = Plan::new(self.rt.isa(), layout, rows / self.bands(rows).len().max(1)).by_rows();
        let activations = Activations::new(self.rt, plan, self.x, k)?;
        let sorted = self.sorted(activations.words()?, len, (rows, plan.rows_behind()))?;
        let x = match &sorted {
            Some(sorted) => elems(sorted)?,
            None => activations.words()?,
        };
        let panels = packed.panels()?;
        let bands = self.bands(plan.row_block(k));
        let ranges: Vec<_> = bands.iter().map(|band| band.rows.clone()).collect();
        let group = panels_a_task(plan, layout, (8 * self.rt.threads()).div_ceil(bands.len()));
        let tiles = (&*ranges, group * PANEL_COLS);
        self.rt.team().for_each_band(out, n, tiles, |band, mut tile| {
            let matrix = &panels[bands[band].expert * layout.total_bytes()..];
            let plan = plan.with_rows(tile.rows.len());
            multiply_tile(plan, (layout, matrix), &x[tile.rows.start * len..], &mut tile);
        });
        Ok(())
    }

    /// Experts as rows of any format, each streamed once for a band.
    fn rows(&self, weights: &DynTensor, out: &mut [f32]) -> Result<()> {
        let [rows, _, n, k] = self.op.sizes();
        if out.is_empty() || k == 0 {
            out.fill(0.0);
            return Ok(());
        }
        let (isa, dtype) = (self.rt.isa(), weights.dtype());
        let sorted = self.sorted(self.x, k, (rows, 0))?;
        let x = match &sorted {
            Some(sorted) => elems(sorted)?,
            None => self.x,
        };
        let raw = weights.bytes(OP)?;
        let row_bytes = dtype.row_bytes(k).expect("a row is whole blocks");
        let bands = self.bands(256);
        let ranges: Vec<_> = bands.iter().map(|band| band.rows.clone()).collect();
        // Tiles want many columns for each time that a task packs its rows.
        let tiles = matches!(Route::new(isa, dtype, rows / bands.len().max(1)), Route::Split(_));
        let cols = self.units_a_task(n, bands.len(), if tiles { 512 } else { 64 });
        self.rt.team().for_each_band(out, n, (&ranges, cols), |band, mut tile| {
            let (rows, cols, first) = (tile.rows.len(), tile.cols.len(), tile.cols.start);
            let x = &x[tile.rows.start * k..tile.rows.end * k];
            let bytes = &raw[(bands[band].expert * n + first) * row_bytes..][..cols * row_bytes];
            scratch::with(
                rows * cols + dense::scratch_len(isa, dtype, (rows, cols), k),
                |scratch| {
                    let (result, scratch) = scratch.split_at_mut(rows * cols);
                    dense::matmul_rows(isa, dense::Rows { dtype, k, bytes }, x, result, scratch);
                    copy_tile(&mut tile, first, result, cols);
                },
            );
        });
        Ok(())
    }

    /// The records of the activations, `len` elements of 4 bytes each, in the order of the sorted
    /// rows, and room for some rows behind them. `None` if they are in that order already.
    fn sorted<T>(
        &self,
        x: &[T],
        len: usize,
        (rows, behind): (usize, usize),
    ) -> Result<Option<accel::Storage>>
    where
        T: Sync + IntoBytes + Immutable,
    {
        const { assert!(size_of::<T>() == 4, "f32 and the words of quantized rows") };
        if self.op.row_ids.is_none() {
            return Ok(None);
        }
        let len_bytes = rows * len * 4;
        let mut sorted = self.rt.pool().take(len_bytes + behind * len * 4)?;
        let bytes = sorted.host_mut().map_err(|error| ops::storage_error(error, OP))?;
        let serial = len_bytes < SERIAL_BYTES;
        let rows_a_task = if serial { rows } else { rows.div_ceil(4 * self.rt.threads()) };
        let bytes = &mut bytes[..len_bytes];
        self.rt.team().for_each_chunk(bytes, rows_a_task * len * 4, |index, chunk| {
            for (at, to) in chunk.chunks_exact_mut(len * 4).enumerate() {
                let source = self.op.source(index * rows_a_task + at);
                to.copy_from_slice(x[source * len..][..len].as_bytes());
            }
        });
        Ok(Some(sorted))
    }
}

/// The elements of a storage that the pool has given.
fn elems<T: FromBytes + Immutable>(storage: &accel::Storage) -> Result<&[T]> {
    let bytes = storage.host()?;
    let whole = bytes.len() / size_of::<T>() * size_of::<T>();
    let unaligned = |_| Error::Unaligned { op: OP, dtype: DType::F32 };
    <[T]>::ref_from_bytes(&bytes[..whole]).map_err(unaligned)
}
