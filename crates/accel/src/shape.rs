//! Shapes of up to four axes, kept without allocation so that a submission can name them.

use std::fmt;
use std::ops::{Deref, DerefMut};

/// Largest number of axes of an operand.
pub const MAX_RANK: usize = 4;

/// Sizes of up to [`MAX_RANK`] axes, outermost first. Dereferences to a slice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Shape {
    dims: [usize; MAX_RANK],
    rank: u8,
}

impl Shape {
    /// Copies `dims`. `None` if there are more than [`MAX_RANK`].
    pub fn new(dims: &[usize]) -> Option<Self> {
        let mut shape = Self::default();
        shape.dims.get_mut(..dims.len())?.copy_from_slice(dims);
        shape.rank = u8::try_from(dims.len()).ok()?;
        Some(shape)
    }

    /// Copies `dims`, whose number is checked by the compiler.
    pub const fn of<const N: usize>(dims: [usize; N]) -> Self {
        const { assert!(N <= MAX_RANK, "a shape has at most four axes") };
        let mut shape = Self { dims: [0; MAX_RANK], rank: 0 };
        let mut i = 0;
        while i < N {
            shape.dims[i] = dims[i];
            shape.rank += 1;
            i += 1;
        }
        shape
    }

    /// The shape with one more axis, the new innermost one. `None` if it has [`MAX_RANK`] axes.
    pub fn with(mut self, dim: usize) -> Option<Self> {
        *self.dims.get_mut(usize::from(self.rank))? = dim;
        self.rank += 1;
        Some(self)
    }

    /// Number of elements. `None` if it does not fit `usize`.
    pub fn elems(&self) -> Option<usize> {
        if self.contains(&0) {
            return Some(0);
        }
        self.iter().try_fold(1usize, |product, &dim| product.checked_mul(dim))
    }

    /// Strides in elements of a dense row-major layout. `None` if one does not fit `usize`.
    pub fn dense_strides(&self) -> Option<Self> {
        let mut strides = *self;
        let mut step = 1usize;
        for axis in (0..self.len()).rev() {
            strides.dims[axis] = step;
            step = step.checked_mul(self.dims[axis].max(1))?;
        }
        Some(strides)
    }
}

impl Deref for Shape {
    type Target = [usize];

    fn deref(&self) -> &[usize] {
        &self.dims[..usize::from(self.rank)]
    }
}

impl DerefMut for Shape {
    fn deref_mut(&mut self) -> &mut [usize] {
        &mut self.dims[..usize::from(self.rank)]
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, dim) in self.iter().enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            write!(f, "{comma}{dim}")?;
        }
        f.write_str("]")
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Shapes of the operands of one call, in the order of the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Shapes {
    shapes: [Shape; 3],
    len: u8,
}

impl Shapes {
    /// Collects the shapes. A call has at most three operands; further ones are not kept.
    pub fn new(shapes: impl IntoIterator<Item = Shape>) -> Self {
        let mut all = Self::default();
        for (at, shape) in all.shapes.iter_mut().zip(shapes) {
            *at = shape;
            all.len += 1;
        }
        all
    }
}

impl Deref for Shapes {
    type Target = [Shape];

    fn deref(&self) -> &[Shape] {
        &self.shapes[..usize::from(self.len)]
    }
}

impl fmt::Display for Shapes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, shape) in self.iter().enumerate() {
            let times = if i == 0 { "" } else { " x " };
            write!(f, "{times}{shape}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_that_overflow_are_reported() {
        assert_eq!(Shape::of([usize::MAX, 2]).elems(), None);
        assert_eq!(Shape::of([usize::MAX, 2, 0]).elems(), Some(0));
        assert_eq!(Shape::of([2, usize::MAX, 3]).dense_strides(), None);
        assert_eq!(Shape::new(&[1; 5]), None);
    }

    #[test]
    fn shapes_print_as_in_error_messages() {
        let shapes = Shapes::new([Shape::of([2, 3]), Shape::of([4])]);
        assert_eq!(shapes.to_string(), "[2, 3] x [4]");
        assert_eq!(&*Shape::of([2, 3, 4]).dense_strides().unwrap(), [12, 4, 1]);
    }
}
