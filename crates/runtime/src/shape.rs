//! The arithmetic of views.

use fucina_accel::{MAX_RANK, Shape};

/// Strides with which the elements of a view appear under `shape`, if that needs no copy.
///
/// Axes of the old shape are merged into runs that are contiguous in memory; the new axes must
/// then split these runs.
pub(crate) fn reshape_strides(old: &Shape, strides: &Shape, shape: &Shape) -> Option<Shape> {
    if old.contains(&0) {
        return shape.dense_strides();
    }
    // Runs of (size, stride of the innermost element), without axes of size one.
    let mut runs: [(usize, usize); MAX_RANK] = [(1, 0); MAX_RANK];
    let mut count = 0;
    for (&dim, &stride) in old.iter().zip(strides.iter()).filter(|&(&dim, _)| dim != 1) {
        match runs[..count].last_mut() {
            Some((size, inner)) if *inner == stride * dim => {
                *size *= dim;
                *inner = stride;
            }
            _ => {
                runs[count] = (dim, stride);
                count += 1;
            }
        }
    }
    let mut result = *shape;
    let mut run = count;
    let (mut left, mut stride) = (1, 1);
    for axis in (0..shape.len()).rev() {
        if shape[axis] == 1 {
            result[axis] = if left == 1 { 1 } else { stride };
            continue;
        }
        if left == 1 {
            run = run.checked_sub(1)?;
            (left, stride) = runs[run];
        }
        if !left.is_multiple_of(shape[axis]) {
            return None;
        }
        result[axis] = stride;
        stride *= shape[axis];
        left /= shape[axis];
    }
    (left == 1 && run == 0).then_some(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strides(old: &[usize], from: &[usize], to: &[usize]) -> Option<Vec<usize>> {
        let shape = |dims| Shape::new(dims).unwrap();
        reshape_strides(&shape(old), &shape(from), &shape(to)).map(|s| s.to_vec())
    }

    #[test]
    fn a_contiguous_view_takes_every_shape() {
        assert_eq!(strides(&[2, 3, 4], &[12, 4, 1], &[6, 4]), Some(vec![4, 1]));
        assert_eq!(strides(&[6, 4], &[4, 1], &[2, 3, 2, 2]), Some(vec![12, 4, 2, 1]));
        assert_eq!(strides(&[1, 4], &[99, 1], &[4]), Some(vec![1]));
        assert_eq!(strides(&[], &[], &[1, 1]), Some(vec![1, 1]));
    }

    #[test]
    fn a_strided_view_splits_but_does_not_merge() {
        // Rows of four inside rows of eight.
        assert_eq!(strides(&[3, 4], &[8, 1], &[3, 2, 2]), Some(vec![8, 2, 1]));
        assert_eq!(strides(&[3, 4], &[8, 1], &[12]), None);
        // Transposed.
        assert_eq!(strides(&[4, 3], &[1, 4], &[12]), None);
        assert_eq!(strides(&[4, 3], &[1, 4], &[2, 2, 3]), Some(vec![2, 1, 4]));
    }

    #[test]
    fn a_broadcast_axis_merges_only_with_broadcast_axes() {
        assert_eq!(strides(&[2, 3], &[0, 0], &[6]), Some(vec![0]));
        assert_eq!(strides(&[2, 3], &[0, 1], &[6]), None);
    }

    #[test]
    fn an_empty_view_takes_every_empty_shape() {
        assert_eq!(strides(&[0, 3], &[3, 1], &[3, 0]), Some(vec![1, 1]));
    }
}
