//! What computes a product on the CPU: a BLAS library where there is one and it can, else our own
//! kernels; for 16-bit weights perhaps on their f32 copy.
//!
//! The library runs on one thread. A task of the team owns a rectangle of the output, whose size
//! does not depend on the number of threads, so that neither do the results.

use fucina_blas::{Blas, Matrix, Misfit};
use fucina_dtype::DType;

use super::matmul::cpu;
use crate::blas::BlasState;
use crate::error::Result;
use crate::runtime::Runtime;
use crate::shadow::{self, Shadow};
use crate::tensor::DynTensor;
use crate::threads_matrix::blas_output;
use crate::weight::Packed;

const OP: &str = "dot";

/// Least size of each axis for which a call of a library pays, and of rows: below, our own kernels
/// for few rows are ahead (docs/perf/0011).
const MIN_SIZE: usize = 16;
const MIN_ROWS: usize = 64;

/// Multiply-adds of a task of a large product: a millisecond or two.
const TASK_WORK: usize = 1 << 28;
/// Tasks of a smaller one, so that a few threads share it, and what each of them has at least.
const FEW_TASKS: usize = 8;
const LEAST_WORK: usize = 1 << 21;
/// Rows and columns of a task, at least.
const LEAST_SIDE: usize = 64;

/// `lhs: [b, m, k]` in f32 times `rhs: [b or 1, n, k]`, which is a view or a copy of the caller's
/// `weight`. Returns what computed it, where that was a choice.
pub(super) fn product(
    rt: &Runtime,
    lhs: &DynTensor,
    (rhs, weight): (&DynTensor, &DynTensor),
    packed: Option<&Packed>,
    out: &mut [f32],
) -> Result<Option<&'static str>> {
    let &[batches, m, _] = lhs.shape() else { unreachable!("rank three by construction") };
    let rows = if rhs.shape()[0] == 1 { batches.saturating_mul(m) } else { m };
    match shadow::of(rt, rhs, weight, rows)? {
        Shadow::Unwanted => floats(rt, lhs, rhs, packed, out),
        Shadow::Declined(why) => {
            cpu(rt, lhs, rhs, packed, out)?;
            Ok(Some(why))
        }
        Shadow::Ready(rhs) => {
            let kernel = floats(rt, lhs, &rhs, None, out)?;
            Ok(Some(match kernel {
                Some("accelerate") => "accelerate on an f32 shadow",
                Some("mkl") => "mkl on an f32 shadow",
                Some("openblas") => "openblas on an f32 shadow",
                _ => "own kernel on an f32 shadow",
            }))
        }
    }
}

fn floats(
    rt: &Runtime,
    lhs: &DynTensor,
    rhs: &DynTensor,
    packed: Option<&Packed>,
    out: &mut [f32],
) -> Result<Option<&'static str>> {
    if rhs.dtype() != DType::F32 || out.is_empty() {
        cpu(rt, lhs, rhs, packed, out)?;
        return Ok(None);
    }
    let why = match rt.blas() {
        BlasState::Off => None,
        BlasState::Absent(_) => Some("own kernel: no BLAS library is usable"),
        BlasState::Ready(blas) => match multiply(rt, blas, lhs, rhs, out)? {
            Ok(()) => return Ok(Some(blas.kind().name())),
            Err(why) => Some(why),
        },
    };
    cpu(rt, lhs, rhs, packed, out)?;
    Ok(why)
}

/// The inner result says why the library cannot, or why it does not pay; nothing is written then.
fn multiply(
    rt: &Runtime,
    blas: &Blas,
    lhs: &DynTensor,
    rhs: &DynTensor,
    out: &mut [f32],
) -> Result<std::result::Result<(), &'static str>> {
    let &[batches, m, k] = lhs.shape() else { unreachable!("rank three by construction") };
    let &[own, n, _] = rhs.shape() else { unreachable!("rank three by construction") };
    if m < MIN_ROWS || n < MIN_SIZE || k < MIN_SIZE {
        return Ok(Err("own kernel: too small for a BLAS library"));
    }
    let (&[of_batch, of_m, of_k], &[rhs_batch, of_n, rhs_k]) = (lhs.strides(), rhs.strides())
    else {
        unreachable!("rank three by construction")
    };
    let rhs_batch = if own == 1 { 0 } else { rhs_batch };
    let (left, right) = (lhs.elems_f32(OP)?, rhs.elems_f32(OP)?);
    let a = |batch: usize| Matrix::new(&left[batch * of_batch..], [m, k], [of_m, of_k]);
    let b = |batch: usize| Matrix::new(&right[batch * rhs_batch..], [k, n], [rhs_k, of_n]);
    if let Err(misfit) = a(0).and(b(0)) {
        return Ok(Err(match misfit {
            Misfit::Strides => "own kernel: strides that BLAS does not have",
            _ => "own kernel: a size that BLAS does not have",
        }));
    }
    let (rows, cols) = task(m, n, k);
    let bands = (0..batches).flat_map(|batch| {
        let (first, end) = (batch * m, batch * m + m);
        (first..end).step_by(rows).map(move |at| at..end.min(at + rows))
    });
    let bands: Vec<_> = bands.collect();
    rt.team().for_each_band(out, n, (&bands, cols), |band, mut tile| {
        let (batch, first) = (bands[band].start / m, bands[band].start % m);
        let expected = "the strides of every batch are those of the first";
        let a = a(batch).expect(expected).narrow_rows(first..first + tile.rows.len());
        let b = b(batch).expect(expected).narrow_cols(tile.cols.clone());
        blas.multiply(a, b, &mut blas_output(&mut tile));
    });
    Ok(Ok(()))
}

/// Rows and columns of a task. For each task the library packs its rows of the left operand and its
/// columns of the right one, so the longer side is split more often.
fn task(m: usize, n: usize, k: usize) -> (usize, usize) {
    let work = m.saturating_mul(n).saturating_mul(k);
    let tasks = (work / LEAST_WORK).min(FEW_TASKS).max(work / TASK_WORK).max(1);
    let most = |size: usize| (size / LEAST_SIDE).max(1);
    // `down * n + across * m` is what is packed, and least where `down` is this.
    let down = (tasks.saturating_mul(m) / n.max(1)).isqrt().max(1);
    let down = (1 << down.ilog2()).min(most(m));
    let across = tasks.div_ceil(down).min(most(n));
    let side = |size: usize, parts: usize| size.div_ceil(parts).next_multiple_of(16);
    (side(m, down), side(n, across))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_cover_the_output_and_are_worth_a_call() {
        let cases = [
            ([16, 16, 16], [16, 16]),
            ([256, 256, 256], [128, 64]),
            ([1024, 1024, 1024], [512, 256]),
            ([2048, 2048, 2048], [512, 256]),
            ([128, 4096, 4096], [128, 512]),
            ([512, 4096, 4096], [256, 256]),
            ([4096, 64, 128], [256, 64]),
            // Nothing is narrower than a task is worth.
            ([16, 70, 1 << 20], [16, 80]),
        ];
        for ([m, n, k], want) in cases {
            assert_eq!(<[usize; 2]>::from(task(m, n, k)), want, "{m} {n} {k}");
        }
        // The largest sizes that an operand of a library has.
        let most = usize::try_from(i32::MAX).unwrap();
        assert!(task(most, most, most).0 > 0);
    }
}
