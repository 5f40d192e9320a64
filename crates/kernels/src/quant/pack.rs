//! From rows of a file to panels, and back.

use fucina_dtype::{DType, f16_to_f32};
use zerocopy::FromBytes;

use super::PANEL_COLS;
use super::format::{Packed, with_format};

/// The size and shape of a packed weight matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackLayout {
    dtype: DType,
    n: usize,
    k: usize,
    row_bytes: usize,
    panel_bytes: usize,
    total_bytes: usize,
}

impl PackLayout {
    /// The layout of a weight `[n, k]`. `None` if the format has no panel kernels, if a row is
    /// not whole blocks, or if a size does not fit `usize`.
    pub fn new(dtype: DType, n: usize, k: usize) -> Option<Self> {
        let row_bytes = dtype.row_bytes(k)?;
        let unit_bytes = with_format!(dtype, F => F::UNIT_BYTES, _ => return None);
        let panel_bytes = (k / dtype.unit().0).checked_mul(unit_bytes)?;
        row_bytes.checked_mul(PANEL_COLS)?;
        let total_bytes = n.div_ceil(PANEL_COLS).checked_mul(panel_bytes)?;
        Some(Self { dtype, n, k, row_bytes, panel_bytes, total_bytes })
    }

    /// Format of the weight.
    pub const fn dtype(&self) -> DType {
        self.dtype
    }

    /// Rows of the weight: output columns.
    pub const fn n(&self) -> usize {
        self.n
    }

    /// Elements of a row.
    pub const fn k(&self) -> usize {
        self.k
    }

    /// Number of panels: `n / 16`, rounded up. Missing columns of the last panel are zero.
    pub const fn panels(&self) -> usize {
        self.n.div_ceil(PANEL_COLS)
    }

    /// Size of a panel.
    pub const fn panel_bytes(&self) -> usize {
        self.panel_bytes
    }

    /// Size of all panels.
    pub const fn total_bytes(&self) -> usize {
        self.total_bytes
    }

    /// Bytes of one row in the file.
    pub const fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// Elements of k that share a scale.
    pub(super) fn group(&self) -> usize {
        with_format!(self.dtype, F => F::GROUP, _ => no_layout(self))
    }

    /// Storage for each weight in a panel, in bits, scales included.
    pub fn bits_per_weight(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "a unit has fewer than 2^53 bits")]
        let bits = |bytes: usize, elems: usize| 8.0 * bytes as f64 / (PANEL_COLS * elems) as f64;
        with_format!(self.dtype, F => bits(F::UNIT_BYTES, self.dtype.unit().0), _ => 0.0)
    }
}

/// Packs 1 to 16 consecutive rows of the file into one panel. Every byte of `panel` is written;
/// columns without a row get zero scales.
///
/// # Panics
///
/// Panics if `raw_rows` is not 1 to 16 whole rows, or if `panel` does not have
/// [`PackLayout::panel_bytes`].
pub fn pack_panel(layout: &PackLayout, raw_rows: &[u8], panel: &mut [u8]) {
    assert_eq!(panel.len(), layout.panel_bytes, "size of the panel");
    if layout.k == 0 {
        return;
    }
    let rows = raw_rows.len() / layout.row_bytes;
    assert!((1..=PANEL_COLS).contains(&rows), "{rows} rows do not fill a panel");
    assert_eq!(raw_rows.len(), rows * layout.row_bytes, "rows are not whole");
    with_format!(layout.dtype, F => pack::<F>(raw_rows, rows, panel), _ => no_layout(layout));
}

fn no_layout(layout: &PackLayout) -> ! {
    unreachable!("{} has no panel kernels, so it has no layout", layout.dtype)
}

fn pack<F: Packed>(raw_rows: &[u8], rows: usize, panel: &mut [u8]) {
    let blocks = <[F::Block]>::ref_from_bytes(raw_rows).unwrap_or_default();
    let units = panel.len() / F::UNIT_BYTES;
    assert_eq!(blocks.len(), rows * units, "blocks of the rows");
    let mut quants = [0u8; 256];
    let quants = &mut quants[..F::ELEMS];
    for (u, unit) in panel.chunks_exact_mut(F::UNIT_BYTES).enumerate() {
        unit.fill(0);
        for (c, row) in blocks.chunks_exact(units).enumerate() {
            let block = &row[u];
            let (d, m) = F::header(block);
            unit[2 * c..][..2].copy_from_slice(&d.to_le_bytes());
            if F::MIN {
                unit[2 * (PANEL_COLS + c)..][..2].copy_from_slice(&m.to_le_bytes());
            }
            for g in 0..F::ELEMS / F::GROUP {
                store_sub::<F>(&mut unit[F::SUB_AT + g * F::SUB_BYTES..], c, F::sub(block, g));
            }
            F::quants(block, quants);
            let planes = unit[F::QUANTS_AT..].chunks_exact_mut(F::QUANT_BYTES);
            for (planes, quants) in planes.zip(quants.as_chunks::<32>().0) {
                store_quads::<F>(planes, c, quants);
            }
        }
    }
}

fn store_sub<F: Packed>(sub: &mut [u8], c: usize, (scale, min): (i8, u8)) {
    if F::SUB {
        sub[c] = scale.cast_unsigned();
        if F::MIN {
            sub[PANEL_COLS + c] = min;
        }
    }
}

/// Stores 32 consecutive quants of column `c`. See the module [`quant`](super) for the planes.
fn store_quads<F: Packed>(planes: &mut [u8], c: usize, quants: &[u8; 32]) {
    let mut quads = [0u32; 8];
    for (quad, bytes) in quads.iter_mut().zip(quants.as_chunks().0) {
        *quad = u32::from_le_bytes(*bytes);
    }
    let mut store = |plane: usize, quad: u32| {
        planes[64 * plane + 4 * c..][..4].copy_from_slice(&quad.to_le_bytes());
    };
    if F::BITS == 8 {
        quads.iter().enumerate().for_each(|(j, &quad)| store(j, quad));
        return;
    }
    for p in 0..4 {
        let low = quads[2 * p] & 0x0f0f_0f0f;
        store(p, low | (quads[2 * p + 1] & 0x0f0f_0f0f) << 4);
    }
    if F::BITS == 5 {
        let bits = |j: usize| (quads[j] >> 4 & 0x0101_0101) << j;
        store(4, (0..8).map(bits).fold(0, |all, bits| all | bits));
    }
    if F::BITS == 6 {
        let bits = |j: usize| (quads[j] >> 4 & 0x0303_0303) << (2 * (j % 4));
        store(4, (0..4).map(bits).fold(0, |all, bits| all | bits));
        store(5, (4..8).map(bits).fold(0, |all, bits| all | bits));
    }
}

/// The 64 bytes of quad `j` of all columns: the inverse of [`store_quads`].
pub(super) fn load_quad<F: Packed>(planes: &[u8], j: usize) -> [u8; 64] {
    let plane = |p: usize| &planes[64 * p..][..64];
    if F::BITS == 8 {
        return std::array::from_fn(|i| plane(j)[i]);
    }
    let low = plane(j / 2);
    let mut quad: [u8; 64] = std::array::from_fn(|i| low[i] >> (4 * (j % 2)) & 0x0f);
    if F::BITS == 5 {
        let high = plane(4);
        (0..64).for_each(|i| quad[i] |= (high[i] >> j & 1) << 4);
    }
    if F::BITS == 6 {
        let high = plane(4 + j / 4);
        (0..64).for_each(|i| quad[i] |= (high[i] >> (2 * (j % 4)) & 3) << 4);
    }
    quad
}

/// The scales and minimums of all columns in group `g` of a unit: what multiplies `q - OFFSET`,
/// and what is subtracted.
pub(super) fn load_scales<F: Packed>(
    unit: &[u8],
    g: usize,
) -> ([f32; PANEL_COLS], [f32; PANEL_COLS]) {
    let f16_at = |at: usize| f16_to_f32(u16::from_le_bytes([unit[at], unit[at + 1]]));
    let sub = &unit[F::SUB_AT + g * F::SUB_BYTES..][..F::SUB_BYTES];
    let (mut scales, mut mins) = ([0.0; PANEL_COLS], [0.0; PANEL_COLS]);
    for c in 0..PANEL_COLS {
        scales[c] = f16_at(2 * c);
        if F::SUB {
            scales[c] *= f32::from(sub[c].cast_signed());
        }
        if F::MIN {
            mins[c] = f16_at(2 * (PANEL_COLS + c));
            if F::SUB {
                mins[c] *= f32::from(sub[PANEL_COLS + c]);
            }
        }
    }
    (scales, mins)
}

/// Decodes one column of a panel to f32, bit by bit as [`DType::decode`] decodes the row that
/// was packed there.
///
/// # Panics
///
/// Panics if `panel` does not have [`PackLayout::panel_bytes`], if `column` is not below 16 or if
/// `out` does not have `k` elements.
pub fn unpack_row(layout: &PackLayout, panel: &[u8], column: usize, out: &mut [f32]) {
    assert_eq!(panel.len(), layout.panel_bytes, "size of the panel");
    assert!(column < PANEL_COLS, "column {column} is not in a panel");
    assert_eq!(out.len(), layout.k, "elements of a row");
    with_format!(layout.dtype, F => unpack::<F>(panel, column, out), _ => no_layout(layout));
}

fn unpack<F: Packed>(panel: &[u8], column: usize, out: &mut [f32]) {
    let units = panel.chunks_exact(F::UNIT_BYTES).zip(out.chunks_exact_mut(F::ELEMS));
    for (unit, out) in units {
        for (g, group) in out.chunks_exact_mut(F::GROUP).enumerate() {
            let (scales, mins) = load_scales::<F>(unit, g);
            let (scale, min) = (scales[column], mins[column]);
            for (j, out) in group.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                let quad = g * F::GROUP / 4 + j;
                let planes = &unit[F::QUANTS_AT + quad / 8 * F::QUANT_BYTES..];
                let quants = load_quad::<F>(planes, quad % 8);
                for (out, &q) in out.iter_mut().zip(&quants[4 * column..]) {
                    let q = f32::from(q) - f32::from(F::OFFSET);
                    *out = if F::MIN { scale * q - min } else { scale * q };
                }
            }
        }
    }
}
