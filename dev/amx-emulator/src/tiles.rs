//! The tiles of one thread, and what instructions do to them.

/// Tiles of palette 1.
pub const TILES: usize = 8;
/// Rows of a tile.
pub const ROWS: usize = 16;
/// Bytes of a row.
pub const ROW_BYTES: usize = 64;
/// Bytes of a configuration.
pub const CONFIG_BYTES: usize = 64;

/// Where a configuration has the bytes of a row of each tile, two bytes for each, and the rows.
const COLSB_AT: usize = 16;
const ROWS_AT: usize = 48;

/// A byte that makes a NaN of any float, and a large number of any integer.
const POISON: u8 = 0xff;

/// Types of the elements of a dot product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dot {
    /// Pairs of bf16 into f32.
    Bf16,
    /// Quads of 8-bit integers into i32.
    I8 {
        /// Whether the left factor is signed.
        a_signed: bool,
        /// Whether the right factor is signed.
        b_signed: bool,
    },
}

/// Why a CPU would refuse an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// No configuration was loaded on this thread.
    NotConfigured,
    /// The configuration is not one of palette 0 or 1.
    Palette,
    /// A byte that must be zero is not.
    Reserved,
    /// A tile with more rows, or more bytes in a row, than there are.
    TooLarge,
    /// A tile without rows or without columns, in an instruction or beside the other.
    Empty,
    /// Two operands of a product are the same tile.
    SameTile,
    /// Shapes of a product that do not fit, or rows that are not whole elements.
    Shapes,
    /// A load or store that would go on in the middle of a tile.
    StartRow,
}

impl Fault {
    /// A message for people.
    pub const fn message(self) -> &'static str {
        match self {
            Self::NotConfigured => "no tile configuration is loaded on this thread",
            Self::Palette => "the palette of the configuration is neither 0 nor 1",
            Self::Reserved => "a reserved byte of the configuration is not zero",
            Self::TooLarge => "a tile of the configuration is larger than 16 rows of 64 bytes",
            Self::Empty => "a tile has no rows or no columns",
            Self::SameTile => "two operands of a product are the same tile",
            Self::Shapes => "the shapes of the tiles of a product do not fit each other",
            Self::StartRow => "the configuration starts in the middle of a tile",
        }
    }
}

type Tile = [[u8; ROW_BYTES]; ROWS];

/// Configuration and tiles.
#[derive(Debug, Clone)]
pub struct Tiles {
    config: [u8; CONFIG_BYTES],
    data: [Tile; TILES],
    /// What tiles hold after a configuration: zeros as documented, or a poison.
    fill: u8,
}

impl Tiles {
    /// Tiles that hold zeros after a configuration or a release, as on a CPU.
    pub const fn documented() -> Self {
        Self::filled(0)
    }

    /// Tiles that hold NaN patterns after a configuration or a release, so that a kernel that reads
    /// what it did not write is found out.
    pub const fn poisoned() -> Self {
        Self::filled(POISON)
    }

    const fn filled(fill: u8) -> Self {
        Self { config: [0; CONFIG_BYTES], data: [[[fill; ROW_BYTES]; ROWS]; TILES], fill }
    }

    /// Whether a configuration is loaded.
    pub const fn is_configured(&self) -> bool {
        self.config[0] != 0
    }

    /// `ldtilecfg`
    ///
    /// # Errors
    ///
    /// Fails where a CPU raises a fault; nothing has changed then.
    pub fn load_config(&mut self, config: &[u8; CONFIG_BYTES]) -> Result<(), Fault> {
        match config[0] {
            0 => {
                self.release();
                return Ok(());
            }
            1 => {}
            _ => return Err(Fault::Palette),
        }
        if config[1] != 0 {
            return Err(Fault::StartRow);
        }
        let reserved = [2..COLSB_AT, COLSB_AT + 2 * TILES..ROWS_AT, ROWS_AT + TILES..CONFIG_BYTES];
        if reserved.into_iter().any(|range| config[range].iter().any(|&byte| byte != 0)) {
            return Err(Fault::Reserved);
        }
        for tile in 0..TILES {
            let (rows, colsb) = shape_in(config, tile);
            if rows > ROWS || colsb > ROW_BYTES {
                return Err(Fault::TooLarge);
            }
            if (rows == 0) != (colsb == 0) {
                return Err(Fault::Empty);
            }
        }
        self.config = *config;
        self.forget();
        Ok(())
    }

    /// `sttilecfg`: zeros if nothing is configured.
    pub const fn store_config(&self) -> [u8; CONFIG_BYTES] {
        self.config
    }

    /// `tilerelease`
    pub fn release(&mut self) {
        self.config = [0; CONFIG_BYTES];
        self.forget();
    }

    fn forget(&mut self) {
        self.data = [[[self.fill; ROW_BYTES]; ROWS]; TILES];
    }

    /// Rows of a tile, and bytes of a row.
    ///
    /// # Errors
    ///
    /// Fails if the tile cannot be used.
    pub fn shape(&self, tile: usize) -> Result<(usize, usize), Fault> {
        if !self.is_configured() {
            return Err(Fault::NotConfigured);
        }
        let shape = shape_in(&self.config, tile);
        if shape.0 == 0 { Err(Fault::Empty) } else { Ok(shape) }
    }

    /// `tilezero`
    ///
    /// # Errors
    ///
    /// Fails if the tile cannot be used.
    pub fn zero(&mut self, tile: usize) -> Result<(), Fault> {
        self.shape(tile)?;
        self.data[tile] = [[0; ROW_BYTES]; ROWS];
        Ok(())
    }

    /// `tileloadd`: `read` fills the bytes of each row. All other bytes of the tile become zero.
    ///
    /// # Errors
    ///
    /// Fails if the tile cannot be used.
    pub fn load(
        &mut self,
        tile: usize,
        mut read: impl FnMut(usize, &mut [u8]),
    ) -> Result<(), Fault> {
        let (rows, colsb) = self.shape(tile)?;
        let mut data = [[0; ROW_BYTES]; ROWS];
        for (row, bytes) in data[..rows].iter_mut().enumerate() {
            read(row, &mut bytes[..colsb]);
        }
        self.data[tile] = data;
        Ok(())
    }

    /// `tilestored`: `write` takes the bytes of each row.
    ///
    /// # Errors
    ///
    /// Fails if the tile cannot be used.
    pub fn store(&self, tile: usize, mut write: impl FnMut(usize, &[u8])) -> Result<(), Fault> {
        let (rows, colsb) = self.shape(tile)?;
        for (row, bytes) in self.data[tile][..rows].iter().enumerate() {
            write(row, &bytes[..colsb]);
        }
        Ok(())
    }

    /// `tdpbf16ps`, `tdpbssd`, `tdpbsud`, `tdpbusd`, `tdpbuud`: `dest += a * b`.
    ///
    /// # Errors
    ///
    /// Fails if a tile cannot be used, or if their shapes do not fit.
    ///
    /// # Panics
    ///
    /// Panics if an x86 CPU has no fused multiply-add.
    pub fn dot(&mut self, kind: Dot, dest: usize, a: usize, b: usize) -> Result<(), Fault> {
        if dest == a || dest == b || a == b {
            return Err(Fault::SameTile);
        }
        let (rows, colsb) = self.shape(dest)?;
        let (a_rows, a_colsb) = self.shape(a)?;
        let (b_rows, b_colsb) = self.shape(b)?;
        let whole = [colsb, a_colsb, b_colsb].iter().all(|bytes| bytes % 4 == 0);
        if !whole || rows != a_rows || a_colsb / 4 != b_rows || colsb != b_colsb {
            return Err(Fault::Shapes);
        }
        let right = words(&self.data[b]);
        for m in 0..rows {
            let left = words_of_row(&self.data[a][m]);
            let mut sums = words_of_row(&self.data[dest][m]);
            match kind {
                Dot::Bf16 => bf16_row(&mut sums, &left[..b_rows], &right),
                Dot::I8 { a_signed, b_signed } => {
                    i8_row(&mut sums, &left[..b_rows], &right, (a_signed, b_signed));
                }
            }
            let row = &mut self.data[dest][m];
            *row = [0; ROW_BYTES];
            for (bytes, sum) in row[..colsb].as_chunks_mut::<4>().0.iter_mut().zip(sums) {
                *bytes = sum.to_le_bytes();
            }
        }
        self.data[dest][rows..].fill([0; ROW_BYTES]);
        Ok(())
    }
}

fn shape_in(config: &[u8; CONFIG_BYTES], tile: usize) -> (usize, usize) {
    let at = COLSB_AT + 2 * tile;
    let colsb = u16::from_le_bytes([config[at], config[at + 1]]);
    (usize::from(config[ROWS_AT + tile]), usize::from(colsb))
}

type Words = [u32; ROW_BYTES / 4];

fn words_of_row(row: &[u8; ROW_BYTES]) -> Words {
    let (chunks, _) = row.as_chunks::<4>();
    std::array::from_fn(|at| u32::from_le_bytes(chunks[at]))
}

fn words(tile: &Tile) -> [Words; ROWS] {
    std::array::from_fn(|row| words_of_row(&tile[row]))
}

/// Sums of four products, modulo 2^32.
fn i8_row(sums: &mut Words, left: &[u32], right: &[Words; ROWS], signed: (bool, bool)) {
    let widen = |byte: u8, signed: bool| {
        if signed { i32::from(byte.cast_signed()) } else { i32::from(byte) }
    };
    for (&a, b) in left.iter().zip(right) {
        let a = a.to_le_bytes().map(|byte| widen(byte, signed.0));
        for (sum, &b) in sums.iter_mut().zip(b) {
            let b = b.to_le_bytes().map(|byte| widen(byte, signed.1));
            let product: i32 = (0..4).map(|i| a[i] * b[i]).sum();
            *sum = sum.wrapping_add_signed(product);
        }
    }
}

/// Even and odd elements have sums of their own, by fused multiply-adds in the order of `k`; these
/// two are added, then added to the destination. Subnormal inputs and results are zero.
#[inline(always)]
fn bf16_row_with(sums: &mut Words, left: &[u32], right: &[Words; ROWS]) {
    let mut even = [0.0_f32; ROW_BYTES / 4];
    let mut odd = [0.0_f32; ROW_BYTES / 4];
    for (&a, b) in left.iter().zip(right) {
        for (sum, &b) in even.iter_mut().zip(b) {
            *sum = flush(low(a).mul_add(low(b), *sum));
        }
        for (sum, &b) in odd.iter_mut().zip(b) {
            *sum = flush(high(a).mul_add(high(b), *sum));
        }
    }
    for (n, sum) in sums.iter_mut().enumerate() {
        let both = flush(even[n] + odd[n]);
        *sum = flush(flush(f32::from_bits(*sum)) + both).to_bits();
    }
}

/// [`bf16_row_with`] the instruction for `mul_add`: without it that is a slow call.
#[cfg(target_arch = "x86_64")]
fn bf16_row(sums: &mut Words, left: &[u32], right: &[Words; ROWS]) {
    #[target_feature(enable = "fma,avx2")]
    fn fused(sums: &mut Words, left: &[u32], right: &[Words; ROWS]) {
        bf16_row_with(sums, left, right);
    }
    use std::arch::is_x86_feature_detected as has;
    assert!(has!("fma") && has!("avx2"), "the emulator needs a CPU with FMA and AVX2");
    // SAFETY: the CPU has FMA and AVX2.
    unsafe { fused(sums, left, right) }
}

#[cfg(not(target_arch = "x86_64"))]
fn bf16_row(sums: &mut Words, left: &[u32], right: &[Words; ROWS]) {
    bf16_row_with(sums, left, right);
}

/// The first bf16 of a pair, as f32.
#[inline(always)]
fn low(pair: u32) -> f32 {
    flush(f32::from_bits(pair << 16))
}

/// The second.
#[inline(always)]
fn high(pair: u32) -> f32 {
    flush(f32::from_bits(pair & 0xffff_0000))
}

#[inline(always)]
fn flush(x: f32) -> f32 {
    if x.abs() < f32::MIN_POSITIVE { f32::from_bits(x.to_bits() & 0x8000_0000) } else { x }
}

#[cfg(test)]
mod tests;
