//! A program that uses every kind of wait, with results that are exact: small integers.

use fucina_accel::{
    Binary, BinaryOp, Call, Decline, DeviceError, GroupedMatMul, MatMul, Operand, Pool, PoolConfig,
    Provider, Storage, submit,
};
use fucina_dtype::DType;

/// How a program ended that was not right.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// A call was declined that the device can do.
    Declined(Decline),
    /// A result is an error.
    Fault(DeviceError),
    /// A result is not what it should be.
    Wrong(String),
}

impl From<DeviceError> for Trouble {
    fn from(error: DeviceError) -> Self {
        Self::Fault(error)
    }
}

type Outcome<T> = Result<T, Trouble>;

/// Memory that is poisoned where nobody wrote.
pub(crate) fn pool() -> Pool {
    Pool::new(PoolConfig { poison: true, ..PoolConfig::default() })
}

/// A matrix of small integers on the host.
pub(crate) struct Matrix {
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) values: Vec<f32>,
}

impl Matrix {
    /// From -2 to 2, by a seed: two seeds have nothing in common.
    pub(crate) fn integers(rows: usize, cols: usize, seed: usize) -> Self {
        let value = |at: usize| {
            let mixed = (at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let mixed = (mixed ^ (seed as u64 + 1).wrapping_mul(0xbf58_476d_1ce4_e5b9)) >> 32;
            ((mixed.wrapping_mul(0x94d0_49bb) >> 16) % 5) as f32 - 2.0
        };
        Self { rows, cols, values: (0..rows * cols).map(value).collect() }
    }

    /// `self * otherᵀ`.
    pub(crate) fn dot_t(&self, other: &Self) -> Self {
        let cell = |row: usize, col: usize| -> f32 {
            let (a, b) = (&self.values[row * self.cols..], &other.values[col * other.cols..]);
            a.iter().zip(b).take(self.cols).map(|(x, y)| x * y).sum()
        };
        let cells = (0..self.rows).flat_map(|row| (0..other.rows).map(move |col| (row, col)));
        let values = cells.map(|(row, col)| cell(row, col)).collect();
        Self { rows: self.rows, cols: other.rows, values }
    }

    pub(crate) fn storage(&self, pool: &Pool) -> Storage {
        let mut storage = pool.take(4 * self.values.len()).expect("memory");
        write(&mut storage, &self.values);
        storage
    }
}

pub(crate) fn write(storage: &mut Storage, values: &[f32]) {
    let bytes = storage.host_mut().expect("host memory");
    for (to, value) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(values) {
        *to = value.to_le_bytes();
    }
}

/// Compares a result. Reading it is a host boundary.
pub(crate) fn expect(storage: &Storage, want: &Matrix, what: &str) -> Outcome<()> {
    let bytes = storage.host()?;
    let got: Vec<f32> = bytes.as_chunks::<4>().0.iter().map(|&b| f32::from_le_bytes(b)).collect();
    let wrong = got.iter().zip(&want.values).position(|(got, want)| got != want);
    match wrong {
        None => Ok(()),
        Some(at) => {
            let (got, want) = (got[at], want.values[at]);
            Err(Trouble::Wrong(format!("{what}: element {at} is {got}, not {want}")))
        }
    }
}

fn f32_view<'a>(storage: &'a Storage, shape: &[usize]) -> Operand<'a> {
    Operand::dense(storage, DType::F32, 0, shape).expect("a view")
}

fn run(provider: &dyn Provider, pool: &Pool, call: &Call<'_>) -> Outcome<Storage> {
    let out = pool.take(call.out_bytes().expect("a valid call")).expect("memory");
    submit(provider, call, out).map_err(|(why, _)| Trouble::Declined(why))
}

fn product(
    provider: &dyn Provider,
    pool: &Pool,
    lhs: (&Storage, [usize; 2]),
    rhs: (&Storage, [usize; 2]),
) -> Outcome<Storage> {
    let lhs = f32_view(lhs.0, &[1, lhs.1[0], lhs.1[1]]);
    let rhs = f32_view(rhs.0, &[1, rhs.1[0], rhs.1[1]]);
    run(provider, pool, &Call::MatMul(MatMul { lhs, rhs }))
}

/// Runs the whole program. Operands are staged or locked as `side` decides: 136 and more lock pages.
pub(crate) fn program(provider: &dyn Provider, seed: usize, side: usize) -> Outcome<()> {
    let pool = pool();
    chain(provider, &pool, seed, side)?;
    mutation(provider, &pool, seed, side)?;
    shared_input(provider, &pool, seed, side)?;
    reuse(provider, &pool, seed, side)?;
    grouped(provider, &pool, seed)
}

/// Two products with an edge tile, and no host read between.
fn chain(provider: &dyn Provider, pool: &Pool, seed: usize, side: usize) -> Outcome<()> {
    let a = Matrix::integers(side + 1, side, seed);
    let b = Matrix::integers(33, side, seed + 1);
    let c = Matrix::integers(17, 33, seed + 2);
    let (sa, sb, sc) = (a.storage(pool), b.storage(pool), c.storage(pool));
    let ab = product(provider, pool, (&sa, [side + 1, side]), (&sb, [33, side]))?;
    let abc = product(provider, pool, (&ab, [side + 1, 33]), (&sc, [17, 33]))?;
    drop(ab);
    expect(&abc, &a.dot_t(&b).dot_t(&c), "a chain")
}

/// An operand is written after the call that reads it.
fn mutation(provider: &dyn Provider, pool: &Pool, seed: usize, side: usize) -> Outcome<()> {
    let a = Matrix::integers(9, side, seed + 3);
    let b = Matrix::integers(side, side, seed + 4);
    let (sa, mut sb) = (a.storage(pool), b.storage(pool));
    let first = product(provider, pool, (&sa, [9, side]), (&sb, [side, side]))?;
    let other = Matrix::integers(side, side, seed + 5);
    write(&mut sb, &other.values);
    let second = product(provider, pool, (&sa, [9, side]), (&sb, [side, side]))?;
    expect(&first, &a.dot_t(&b), "a product whose operand was written afterwards")?;
    expect(&second, &a.dot_t(&other), "a product of an operand that was written before")
}

/// Several calls with one input, which is there once.
fn shared_input(provider: &dyn Provider, pool: &Pool, seed: usize, side: usize) -> Outcome<()> {
    let x = Matrix::integers(12, side, seed + 6);
    let sx = x.storage(pool);
    let weights: Vec<_> = (0..3).map(|w| Matrix::integers(20, side, seed + 7 + w)).collect();
    let stored: Vec<_> = weights.iter().map(|w| w.storage(pool)).collect();
    let mut results = Vec::new();
    for weight in &stored {
        results.push(product(provider, pool, (&sx, [12, side]), (weight, [20, side]))?);
    }
    for (result, weight) in results.iter().zip(&weights) {
        expect(result, &x.dot_t(weight), "one of three products of one input")?;
    }
    Ok(())
}

/// Operands that are dropped at once: their device memory serves uploads of the next calls while
/// the command that reads them is in flight.
fn reuse(provider: &dyn Provider, pool: &Pool, seed: usize, side: usize) -> Outcome<()> {
    let mut results = Vec::new();
    for round in 0..3 {
        let a = Matrix::integers(side, side, seed + 20 + round);
        let b = Matrix::integers(side, side, seed + 30 + round);
        let (sa, sb) = (a.storage(pool), b.storage(pool));
        results.push((product(provider, pool, (&sa, [side, side]), (&sb, [side, side]))?, a, b));
    }
    let c = Matrix::integers(side, side, seed + 40);
    let d = Matrix::integers(side, side, seed + 41);
    let (sc, sd) = (c.storage(pool), d.storage(pool));
    let (c_view, d_view) = (f32_view(&sc, &[side, side]), f32_view(&sd, &[side, side]));
    let add = Binary { op: BinaryOp::Add, a: c_view, b: d_view };
    let sum = run(provider, pool, &Call::Binary(add))?;
    for (result, a, b) in &results {
        expect(result, &a.dot_t(b), "a product whose operands are gone")?;
    }
    let values = c.values.iter().zip(&d.values).map(|(x, y)| x + y).collect();
    expect(&sum, &Matrix { rows: side, cols: side, values }, "a sum in memory used before")
}

/// Rows that go to experts, some of which get none. The weights are f16.
fn grouped(provider: &dyn Provider, pool: &Pool, seed: usize) -> Outcome<()> {
    const COUNTS: [i32; 5] = [0, 1, 7, 33, 40];
    const N: usize = 20;
    const K: usize = 72;
    let mut offsets = vec![0];
    for count in COUNTS {
        offsets.push(offsets[offsets.len() - 1] + count);
    }
    let rows = usize::try_from(offsets[COUNTS.len()]).expect("positive");
    let x = Matrix::integers(rows, K, seed + 50);
    let experts: Vec<_> = (0..5).map(|e| Matrix::integers(N, K, seed + 60 + e)).collect();
    let mut weights = pool.take(5 * N * K * 2).expect("memory");
    let halves = experts.iter().flat_map(|expert| &expert.values);
    let bytes = weights.host_mut().expect("host memory");
    for (to, &value) in bytes.as_chunks_mut::<2>().0.iter_mut().zip(halves) {
        *to = half_bits(value).to_le_bytes();
    }
    let sx = x.storage(pool);
    let weights = Operand::dense(&weights, DType::F16, 0, &[5, N, K]).expect("a view");
    let x_view = f32_view(&sx, &[rows, K]);
    let call = GroupedMatMul { x: x_view, weights, offsets: &offsets, row_ids: None };
    let result = run(provider, pool, &Call::GroupedMatMul(call))?;
    let mut values = Vec::new();
    for (expert, ends) in experts.iter().zip(offsets.windows(2)) {
        let row = |end: i32| K * usize::try_from(end).expect("positive");
        let range = row(ends[0])..row(ends[1]);
        let group = Matrix { rows: range.len() / K, cols: K, values: x.values[range].to_vec() };
        values.extend(group.dot_t(expert).values);
    }
    expect(&result, &Matrix { rows, cols: N, values }, "rows of experts")
}

/// Bits of an integer from -2 to 2 as f16: sign, and the exponent of 1 or 2.
fn half_bits(value: f32) -> u16 {
    let sign = if value < 0.0 { 0x8000 } else { 0 };
    let magnitude = value.abs();
    let exponent = if magnitude > 1.5 { 0x4000 } else { 0x3c00 };
    if magnitude < 0.5 { 0 } else { sign | exponent }
}
