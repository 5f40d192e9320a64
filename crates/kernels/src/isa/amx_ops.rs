//! Tile products, so that kernels need no `unsafe`. Slices carry the lengths.
//!
//! A configuration belongs to a thread and costs a few hundred cycles. It is loaded at the start of
//! a kernel call, of thousands of cycles and more, and released at its end: no state leaks into
//! other code, and a thread that stops multiplying saves no tiles. All state that one block of
//! instructions leaves to the next is the configuration; tile data never crosses a block.
//!
//! ```text
//! tile of A     16 rows of 64 bytes, at any distance      32 bf16 of one row
//! tile of B     16 rows of 64 bytes, one after the other  2 consecutive k of 16 columns
//! tile of C     16 rows of 64 bytes                       16 columns in f32 or i32
//! ```

use std::arch::asm;
use std::cell::Cell;
use std::marker::PhantomData;

use super::Amx;

/// Rows and columns of a tile of results.
pub(crate) const TILE: usize = 16;
/// Columns of a block of results, two tiles.
pub(crate) const BLOCK_COLS: usize = 2 * TILE;
/// Words of a tile of B of bf16.
pub(crate) const B_TILE: usize = 256;
/// Words from the B of one step to that of the next: two tiles.
pub(crate) const B_STEP: usize = 2 * B_TILE;

#[repr(C, align(64))]
struct Config([u8; 64]);

impl Config {
    /// Palette 1: tiles 0 to 3 are of C, 4 and 5 of A with rows of `a_bytes`, 6 and 7 of B with the
    /// rows that fit.
    const fn new(a_bytes: u8) -> Self {
        let mut config = [0; 64];
        config[0] = 1;
        let mut tile = 0;
        while tile < 8 {
            config[16 + 2 * tile] = if tile == 4 || tile == 5 { a_bytes } else { 64 };
            config[48 + tile] = if tile >= 6 { a_bytes / 4 } else { 16 };
            tile += 1;
        }
        Self(config)
    }
}

thread_local! {
    static CONFIGURED: Cell<bool> = const { Cell::new(false) };
}

/// The tiles of this thread, configured until this is dropped. Does not leave its thread.
struct Tiles(PhantomData<*const ()>);

impl Tiles {
    /// # Panics
    ///
    /// Panics if this thread has a configuration already.
    fn configure(_proof: Amx, config: &'static Config) -> Self {
        assert!(!CONFIGURED.replace(true), "one tile configuration at a time");
        // SAFETY: AMX is there; `config` is 64 bytes of a valid configuration. The instruction reads
        // them, so the block may not be `nomem`. No other code of this thread relies on tiles.
        unsafe {
            asm!(
                "ldtilecfg [{config}]", config = in(reg) &raw const *config,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack, readonly),
            );
        }
        Self(PhantomData)
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: AMX is there, or there were no tiles. Forgets the configuration and the data.
        unsafe {
            asm!(
                "tilerelease",
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
        CONFIGURED.set(false);
    }
}

/// Addresses of the factors of a product: first and second tile of A, first and second of B.
type Table<const N: usize> = [[*const u32; 4]; N];

/// Factors of a product: `steps` times 32 of k.
#[derive(Clone, Copy)]
pub(crate) struct Factors<'a> {
    /// The left factor: pairs of bf16, row after row.
    pub(crate) a: &'a [u32],
    /// For each tile of columns, a tile for each step, [`B_STEP`] words apart.
    pub(crate) b: [&'a [u32]; 2],
}

/// The shape of a product.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    /// Whether there are 32 rows, not 16.
    pub(crate) two_rows: bool,
    /// Whether there are 32 columns, not 16.
    pub(crate) two_cols: bool,
    /// Steps of 32 of k, not zero.
    pub(crate) steps: usize,
    /// Words from row to row of A.
    pub(crate) a_stride: usize,
}

impl Shape {
    /// Addresses of the factors.
    ///
    /// # Panics
    ///
    /// Panics if a tile is not inside its slice.
    fn table<const N: usize>(&self, factors: &[Factors<'_>; N]) -> Table<N> {
        const { assert!(N > 0) };
        assert!(self.steps > 0, "a product has steps");
        // The last row begins `rows - 1` strides in; a step takes 16 words of it.
        let (last, second) = if self.two_rows { (2 * TILE - 1, TILE) } else { (TILE - 1, 0) };
        let a_end = self.a_stride.checked_mul(last).zip(self.steps.checked_mul(TILE));
        let a_end = a_end.and_then(|(at, words)| at.checked_add(words));
        let b_end = self.steps.checked_mul(B_STEP).map(|end| end - (B_STEP - B_TILE));
        factors.map(|Factors { a, b }| {
            assert!(a_end.is_some_and(|end| end <= a.len()), "words of the left factor");
            let b = if self.two_cols { b } else { [b[0], b[0]] };
            let fits = b_end.is_some_and(|end| b.iter().all(|b| end <= b.len()));
            assert!(fits, "words of the right factor");
            let first = a.as_ptr();
            let second = first.wrapping_add(second * self.a_stride);
            [first, second, b[0].as_ptr(), b[1].as_ptr()]
        })
    }
}

/// A block of results: zeroed or loaded, then all factors in turn, step by step, then stored.
macro_rules! block {
    ($table:ident, $shape:ident, $c:ident, $add:ident;
     zero: [$($zero:literal),+], load: [$($load:literal),+],
     step: [$($step:literal),+], store: [$($store:literal),+]) => {
        // SAFETY: the guard proves AMX and a configuration with tiles of 16 rows of 64 bytes. The
        // table holds, for each of its factors, addresses from which the rows of `steps` steps
        // can be read, as `Shape::table` checked; `c` has two tiles, 32 rows of 128 bytes, all of
        // which may be written. All registers that change are listed.
        unsafe {
            asm!(
                "test {add:e}, {add:e}",
                "jnz 2f",
                $($zero,)+
                "jmp 3f",
                "2:",
                "lea {k}, [{c} + 2048]",
                $($load,)+
                "3:",
                "mov {a}, [{table}]",
                "mov {a2}, [{table} + 8]",
                "mov {b}, [{table} + 16]",
                "mov {b2}, [{table} + 24]",
                "mov {k}, {steps}",
                "4:",
                $($step,)+
                "add {a}, 64",
                "add {a2}, 64",
                "add {b}, 2048",
                "add {b2}, 2048",
                "dec {k}",
                "jnz 4b",
                "add {table}, 32",
                "dec {count}",
                "jnz 3b",
                "lea {k}, [{c} + 2048]",
                $($store,)+
                table = inout(reg) $table.as_ptr() => _,
                count = inout(reg) $table.len() => _,
                steps = in(reg) $shape.steps,
                stride = in(reg) 4 * $shape.a_stride,
                c = in(reg) $c.as_mut_ptr(),
                add = in(reg) u32::from($add),
                // Bytes of a row of B; half of a row of C.
                s = in(reg) 64usize,
                a = out(reg) _, a2 = out(reg) _, b = out(reg) _, b2 = out(reg) _, k = out(reg) _,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    };
}

/// Tiles for products of bf16.
pub(crate) struct Bf16Tiles(Tiles);

impl Bf16Tiles {
    /// # Panics
    ///
    /// Panics if this thread has a configuration already.
    pub(crate) fn configure(proof: Amx) -> Self {
        static CONFIG: Config = Config::new(64);
        Self(Tiles::configure(proof, &CONFIG))
    }

    /// The sum of `N` products, into the block `c`, 32 rows of 32. It is added to what `c` holds, or
    /// overwrites it. Rows and columns that the shape leaves out are not touched.
    ///
    /// # Panics
    ///
    /// Panics if a tile is not inside its slice.
    #[inline]
    pub(crate) fn multiply<const N: usize>(
        &self,
        shape: Shape,
        factors: &[Factors<'_>; N],
        add: bool,
        c: &mut [f32; BLOCK_COLS * BLOCK_COLS],
    ) {
        let table = shape.table(factors);
        match (shape.two_rows, shape.two_cols) {
            (true, true) => block!(table, shape, c, add;
            zero: ["tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3"],
            load: [
                "tileloadd tmm0, [{c} + {s}*2]", "tileloadd tmm1, [{c} + {s}*2 + 64]",
                "tileloadd tmm2, [{k} + {s}*2]", "tileloadd tmm3, [{k} + {s}*2 + 64]"
            ],
            step: [
                "tileloadd tmm4, [{a} + {stride}*1]", "tileloadd tmm6, [{b} + {s}*1]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{b2} + {s}*1]", "tdpbf16ps tmm1, tmm4, tmm7",
                "tileloadd tmm5, [{a2} + {stride}*1]", "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7"
            ],
            store: [
                "tilestored [{c} + {s}*2], tmm0", "tilestored [{c} + {s}*2 + 64], tmm1",
                "tilestored [{k} + {s}*2], tmm2", "tilestored [{k} + {s}*2 + 64], tmm3"
            ]),
            (false, true) => block!(table, shape, c, add;
                zero: ["tilezero tmm0", "tilezero tmm1"],
                load: ["tileloadd tmm0, [{c} + {s}*2]", "tileloadd tmm1, [{c} + {s}*2 + 64]"],
                step: [
                    "tileloadd tmm4, [{a} + {stride}*1]", "tileloadd tmm6, [{b} + {s}*1]",
                    "tdpbf16ps tmm0, tmm4, tmm6",
                    "tileloadd tmm7, [{b2} + {s}*1]", "tdpbf16ps tmm1, tmm4, tmm7"
                ],
                store: ["tilestored [{c} + {s}*2], tmm0", "tilestored [{c} + {s}*2 + 64], tmm1"]),
            (true, false) => block!(table, shape, c, add;
                zero: ["tilezero tmm0", "tilezero tmm2"],
                load: ["tileloadd tmm0, [{c} + {s}*2]", "tileloadd tmm2, [{k} + {s}*2]"],
                step: [
                    "tileloadd tmm4, [{a} + {stride}*1]", "tileloadd tmm6, [{b} + {s}*1]",
                    "tdpbf16ps tmm0, tmm4, tmm6",
                    "tileloadd tmm5, [{a2} + {stride}*1]", "tdpbf16ps tmm2, tmm5, tmm6"
                ],
                store: ["tilestored [{c} + {s}*2], tmm0", "tilestored [{k} + {s}*2], tmm2"]),
            (false, false) => block!(table, shape, c, add;
                zero: ["tilezero tmm0"],
                load: ["tileloadd tmm0, [{c} + {s}*2]"],
                step: [
                    "tileloadd tmm4, [{a} + {stride}*1]", "tileloadd tmm6, [{b} + {s}*1]",
                    "tdpbf16ps tmm0, tmm4, tmm6"
                ],
                store: ["tilestored [{c} + {s}*2], tmm0"]),
        }
    }
}

/// Tiles for products of `K` 8-bit integers, 32 or 16.
pub(crate) struct Int8Tiles<const K: usize>(Tiles);

impl<const K: usize> Int8Tiles<K> {
    /// # Panics
    ///
    /// Panics if this thread has a configuration already.
    pub(crate) fn configure(proof: Amx) -> Self {
        const { assert!(K == 16 || K == 32) };
        static CONFIGS: [Config; 2] = [Config::new(16), Config::new(32)];
        Self(Tiles::configure(proof, &CONFIGS[usize::from(K == 32)]))
    }

    /// `c = a * b`, exact: 16 rows of `K` signed bytes, `a_stride` words apart, and `K` by 16 columns of
    /// signed bytes in quads of k.
    ///
    /// # Panics
    ///
    /// Panics if a row of `a` or a quad of `b` is not inside its slice.
    #[inline]
    pub(crate) fn multiply(&self, a: &[u32], a_stride: usize, b: &[[u8; 64]], c: &mut [i32; 256]) {
        let end = a_stride.checked_mul(TILE - 1).and_then(|at| at.checked_add(K / 4));
        assert!(end.is_some_and(|end| end <= a.len()), "words of the left factor");
        assert!(K / 4 <= b.len(), "quads of the right factor");
        // SAFETY: the guard proves AMX and a configuration with rows of `K` bytes for A and `K / 4`
        // rows for B. Those lie in their slices, as was checked; `c` is 16 rows of 64 bytes.
        unsafe {
            asm!(
                "tilezero tmm0",
                "tileloadd tmm4, [{a} + {stride}*1]",
                "tileloadd tmm6, [{b} + {s}*1]",
                "tdpbssd tmm0, tmm4, tmm6",
                "tilestored [{c} + {s}*1], tmm0",
                a = in(reg) a.as_ptr(), stride = in(reg) 4 * a_stride,
                b = in(reg) b.as_ptr(), c = in(reg) c.as_mut_ptr(), s = in(reg) 64usize,
                out("tmm0") _, out("tmm4") _, out("tmm6") _,
                options(nostack),
            );
        }
    }
}
