//! Axis names in the type: `Tensor<(Token, Hidden)>`.
//!
//! The layer is thin. Names are checked here, at compile time; everything else happens once, in
//! the tensor of run-time rank below. Axis types are empty and vanish at run time.

use std::fmt;
use std::marker::PhantomData;

use fucina_kernels::glu::Activation;
use fucina_kernels::rope::Pairing;

use crate::error::{Error, Result};
use crate::ops::{GroupRows, Groups, RopeTable};
use crate::tensor::{DynTensor, Element};

/// The name of an axis. Declare some with [`axes!`](crate::axes).
pub trait Axis: Copy + 'static {
    /// The name in messages.
    const NAME: &'static str;
}

/// Declares axis types: `axes! { Batch, In, Out }`.
#[macro_export]
macro_rules! axes {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {
        $($(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct $name;
        impl $crate::Axis for $name {
            const NAME: &'static str = stringify!($name);
        })+
    };
}

/// The axes of a tensor: a tuple of up to four [`Axis`] types.
#[diagnostic::on_unimplemented(message = "`{Self}` is not a tuple of up to four axes")]
pub trait Axes: 'static {
    /// One size for each axis.
    type Sizes: AsRef<[usize]> + Copy;
    /// Their names.
    const NAMES: &'static [&'static str];
}

/// The axes without one of them. `At` is inferred.
#[diagnostic::on_unimplemented(
    message = "a tensor with the axes `{Self}` has no axis `{X}`, or has it twice",
    label = "this axis is not among `{Self}`"
)]
pub trait Without<X, At>: Axes {
    /// The axes that are left.
    type Rest: Axes;
    /// Place of the axis.
    const POS: usize;
}

/// The axes followed by other axes.
#[diagnostic::on_unimplemented(
    message = "the result would have the axes `{Self}` and `{Other}`: more than four"
)]
pub trait Join<Other>: Axes {
    /// All of them.
    type All: Axes;
}

/// The innermost axis is `X`.
#[diagnostic::on_unimplemented(message = "the innermost axis of `{Self}` is not `{X}`")]
pub trait EndsWith<X>: Axes {}

/// A place in a tuple, for inference.
#[derive(Debug)]
pub enum At<const N: usize> {}

macro_rules! tuples {
    ($($rank:literal: [$($a:ident),*];)+) => {$(
        impl<$($a: Axis),*> Axes for ($($a,)*) {
            type Sizes = [usize; $rank];
            const NAMES: &'static [&'static str] = &[$($a::NAME),*];
        }
    )+};
}
tuples! { 0: []; 1: [A]; 2: [A, B]; 3: [A, B, C]; 4: [A, B, C, D]; }

macro_rules! without {
    ($([$($a:ident),*] - $x:ident @ $pos:literal = ($($rest:ident),*);)+) => {$(
        impl<$($a: Axis),*> Without<$x, At<$pos>> for ($($a,)*) {
            type Rest = ($($rest,)*);
            const POS: usize = $pos;
        }
    )+};
}
without! {
    [A] - A @ 0 = ();
    [A, B] - A @ 0 = (B);
    [A, B] - B @ 1 = (A);
    [A, B, C] - A @ 0 = (B, C);
    [A, B, C] - B @ 1 = (A, C);
    [A, B, C] - C @ 2 = (A, B);
    [A, B, C, D] - A @ 0 = (B, C, D);
    [A, B, C, D] - B @ 1 = (A, C, D);
    [A, B, C, D] - C @ 2 = (A, B, D);
    [A, B, C, D] - D @ 3 = (A, B, C);
}

impl<A: Axis> EndsWith<A> for (A,) {}
impl<A: Axis, B: Axis> EndsWith<B> for (A, B) {}
impl<A: Axis, B: Axis, C: Axis> EndsWith<C> for (A, B, C) {}
impl<A: Axis, B: Axis, C: Axis, D: Axis> EndsWith<D> for (A, B, C, D) {}

macro_rules! joins {
    ($(($($a:ident),*) + ($($b:ident),*);)+) => {$(
        impl<$($a: Axis,)* $($b: Axis),*> Join<($($b,)*)> for ($($a,)*) {
            type All = ($($a,)* $($b,)*);
        }
    )+};
}
joins! {
    () + (); () + (A); () + (A, B); () + (A, B, C); () + (A, B, C, D);
    (A) + (); (A) + (B); (A) + (B, C); (A) + (B, C, D);
    (A, B) + (); (A, B) + (C); (A, B) + (C, D);
    (A, B, C) + (); (A, B, C) + (D);
    (A, B, C, D) + ();
}

/// Where each name of `to` stands in `from`. Evaluated at compile time.
const fn order(from: &[&str], to: &[&str]) -> [usize; 4] {
    assert!(from.len() == to.len(), "the axes are not a permutation: their number differs");
    let mut order = [0; 4];
    let mut i = 0;
    while i < to.len() {
        let (mut found, mut j) = (0, 0);
        while j < from.len() {
            if same(to[i].as_bytes(), from[j].as_bytes()) {
                order[i] = j;
                found += 1;
            }
            j += 1;
        }
        assert!(found == 1, "the axes are not a permutation: one is missing or stands twice");
        i += 1;
    }
    order
}

const fn same(a: &[u8], b: &[u8]) -> bool {
    if a.len() != b.len() {
        return false;
    }
    let mut i = 0;
    while i < a.len() {
        if a[i] != b[i] {
            return false;
        }
        i += 1;
    }
    true
}

/// A tensor whose axes are named in its type.
///
/// ```
/// use fucina_runtime::{Runtime, Tensor, axes};
/// axes! { Batch, In, Out }
///
/// let rt = Runtime::builder().threads(1).build()?;
/// let x: Tensor<(Batch, In)> = Tensor::from_slice(&rt, [1, 3], &[1.0f32, 2.0, 3.0])?;
/// let w: Tensor<(Out, In)> =
///     Tensor::from_slice(&rt, [2, 3], &[1.0f32, 0.0, 0.0, 0.0, 1.0, 1.0])?;
/// let y: Tensor<(Batch, Out)> = x.dot(&w, In)?;
/// assert_eq!(y.to_vec()?, [1.0, 5.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A contraction over an axis that one side lacks does not compile:
///
/// ```compile_fail
/// # use fucina_runtime::{Runtime, Tensor, axes};
/// # axes! { Batch, In, Out, Hidden }
/// # fn f(x: Tensor<(Batch, In)>, w: Tensor<(Out, Hidden)>) {
/// let _ = x.dot(&w, In);
/// # }
/// ```
pub struct Tensor<A> {
    inner: DynTensor,
    axes: PhantomData<fn() -> A>,
}

impl<A> Clone for Tensor<A> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), axes: PhantomData }
    }
}

impl<A: Axes> fmt::Debug for Tensor<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {:?}", A::NAMES, self.inner)
    }
}

impl<A: Axes> Tensor<A> {
    /// Names the axes of a tensor of run-time rank.
    ///
    /// # Errors
    ///
    /// Fails if the rank is not the number of axes.
    pub fn from_dyn(inner: DynTensor) -> Result<Self> {
        if inner.shape().len() == A::NAMES.len() {
            return Ok(Self { inner, axes: PhantomData });
        }
        let why = "the rank is not the number of axis names";
        Err(Error::Shape { op: "from_dyn", shape: inner.dims(), why })
    }

    /// A tensor that holds a copy of `data`, in row-major order.
    ///
    /// # Errors
    ///
    /// As [`Runtime::tensor`](crate::Runtime::tensor).
    pub fn from_slice<T: Element>(
        rt: &crate::Runtime,
        sizes: A::Sizes,
        data: &[T],
    ) -> Result<Self> {
        Self::from_dyn(rt.tensor(sizes.as_ref(), data)?)
    }

    /// The tensor below, without names.
    pub fn as_dyn(&self) -> &DynTensor {
        &self.inner
    }

    /// The tensor below, for writing through [`DynTensor::data_mut`].
    pub fn as_dyn_mut(&mut self) -> &mut DynTensor {
        &mut self.inner
    }

    /// Gives up the names.
    pub fn into_dyn(self) -> DynTensor {
        self.inner
    }

    /// Sizes, in the order of the axes.
    pub fn sizes(&self) -> &[usize] {
        self.inner.shape()
    }

    /// Size of one axis.
    pub fn size<X: Axis, I>(&self, _axis: X) -> usize
    where
        A: Without<X, I>,
    {
        self.inner.shape()[A::POS]
    }

    fn wrap<B: Axes>(inner: DynTensor) -> Tensor<B> {
        debug_assert_eq!(inner.shape().len(), B::NAMES.len());
        Tensor { inner, axes: PhantomData }
    }

    /// See [`DynTensor::data`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn data<T: Element>(&self) -> Result<&[T]> {
        self.inner.data()
    }

    /// See [`DynTensor::data_mut`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn data_mut<T: Element>(&mut self) -> Result<&mut [T]> {
        self.inner.data_mut()
    }

    /// See [`DynTensor::to_vec`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn to_vec(&self) -> Result<Vec<f32>> {
        self.inner.to_vec()
    }

    /// See [`DynTensor::item`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn item(&self) -> Result<f32> {
        self.inner.item()
    }

    /// See [`DynTensor::is_ready`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn is_ready(&self) -> Result<bool> {
        self.inner.is_ready()
    }

    /// See [`DynTensor::wait`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn wait(&self) -> Result<()> {
        self.inner.wait()
    }

    /// The same elements under other axes. See [`DynTensor::reshape`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn reshape<B: Axes>(&self, sizes: B::Sizes) -> Result<Tensor<B>> {
        Ok(Self::wrap(self.inner.reshape(sizes.as_ref())?))
    }

    /// The axes in the order of `B`. Shares the storage. That `B` is a permutation is checked at
    /// compile time.
    ///
    /// # Errors
    ///
    /// As [`DynTensor::permute`].
    pub fn permute<B: Axes>(&self) -> Result<Tensor<B>> {
        let order = const { order(A::NAMES, B::NAMES) };
        Ok(Self::wrap(self.inner.permute(&order[..A::NAMES.len()])?))
    }

    /// A range of one axis. Shares the storage. See [`DynTensor::narrow`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn narrow<X: Axis, I>(&self, _axis: X, start: usize, len: usize) -> Result<Self>
    where
        A: Without<X, I>,
    {
        Ok(Self::wrap(self.inner.narrow(A::POS, start, len)?))
    }

    /// Repeats axes of size one and adds axes in front. See [`DynTensor::broadcast`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn broadcast<B: Axes>(&self, sizes: B::Sizes) -> Result<Tensor<B>> {
        Ok(Self::wrap(self.inner.broadcast(sizes.as_ref())?))
    }

    /// See [`DynTensor::contiguous`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn contiguous(&self) -> Result<Self> {
        Ok(Self::wrap(self.inner.contiguous()?))
    }

    /// Contracts one axis: `out[a.., b..] = Σ_x self[a.., x] * rhs[b.., x]`.
    ///
    /// `rhs` may be of any element type; the result is f32.
    ///
    /// # Errors
    ///
    /// Fails if the sizes of the axis differ, or with the fault of an operand's device.
    pub fn dot<B, X, I, J>(
        &self,
        rhs: &Tensor<B>,
        _axis: X,
    ) -> Result<Tensor<<A::Rest as Join<B::Rest>>::All>>
    where
        X: Axis,
        B: Without<X, J>,
        A: Without<X, I>,
        A::Rest: Join<B::Rest>,
    {
        Ok(Self::wrap(self.inner.contract(&rhs.inner, (A::POS, B::POS))?))
    }

    /// Contracts one axis for each index of a shared batch axis, which comes first in the result:
    /// `out[y, a.., b..] = Σ_x self[y, a.., x] * rhs[y, b.., x]`.
    ///
    /// # Errors
    ///
    /// As [`dot`](Self::dot).
    #[expect(clippy::type_complexity, reason = "the result type is the contract")]
    pub fn batch_dot<B, Y, X, I, J, K, L>(
        &self,
        rhs: &Tensor<B>,
        _batch: Y,
        _axis: X,
    ) -> Result<
        Tensor<
            <<(Y,) as Join<<A::Rest as Without<X, K>>::Rest>>::All as Join<
                <B::Rest as Without<X, L>>::Rest,
            >>::All,
        >,
    >
    where
        Y: Axis,
        X: Axis,
        A: Without<Y, I>,
        B: Without<Y, J>,
        A::Rest: Without<X, K>,
        B::Rest: Without<X, L>,
        (Y,): Join<<A::Rest as Without<X, K>>::Rest>,
        <(Y,) as Join<<A::Rest as Without<X, K>>::Rest>>::All:
            Join<<B::Rest as Without<X, L>>::Rest>,
    {
        // The position of X once Y is gone, put back into the full tuple.
        let lhs = <A::Rest as Without<X, K>>::POS;
        let right = <B::Rest as Without<X, L>>::POS;
        let axes = (lhs + usize::from(lhs >= A::POS), right + usize::from(right >= B::POS));
        Ok(Self::wrap(self.inner.batch_contract(&rhs.inner, (A::POS, B::POS), axes)?))
    }

    /// See [`DynTensor::rms_norm`]; over the innermost axis.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn rms_norm<X: Axis>(&self, weight: &Tensor<(X,)>, eps: f32) -> Result<Self>
    where
        A: EndsWith<X>,
    {
        Ok(Self::wrap(self.inner.rms_norm(Some(&weight.inner), eps)?))
    }

    /// See [`DynTensor::softmax`]; over the innermost axis, which is named for the reader.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn softmax<X: Axis>(&self, _axis: X, scale: f32) -> Result<Self>
    where
        A: EndsWith<X>,
    {
        Ok(Self::wrap(self.inner.softmax(scale)?))
    }

    /// `self + rhs`.
    ///
    /// # Errors
    ///
    /// Fails if the sizes differ.
    pub fn add(&self, rhs: &Self) -> Result<Self> {
        Ok(Self::wrap(self.inner.add(&rhs.inner)?))
    }

    /// `self - rhs`.
    ///
    /// # Errors
    ///
    /// Fails if the sizes differ.
    pub fn sub(&self, rhs: &Self) -> Result<Self> {
        Ok(Self::wrap(self.inner.sub(&rhs.inner)?))
    }

    /// `self * rhs`, element by element.
    ///
    /// # Errors
    ///
    /// Fails if the sizes differ.
    pub fn mul(&self, rhs: &Self) -> Result<Self> {
        Ok(Self::wrap(self.inner.mul(&rhs.inner)?))
    }

    /// Adds a vector to each row.
    ///
    /// # Errors
    ///
    /// Fails if the sizes of the innermost axis differ.
    pub fn add_row<X: Axis>(&self, row: &Tensor<(X,)>) -> Result<Self>
    where
        A: EndsWith<X>,
    {
        Ok(Self::wrap(self.inner.add(&row.inner)?))
    }

    /// `factor * self`.
    ///
    /// # Errors
    ///
    /// As [`DynTensor::unary`].
    pub fn scale(&self, factor: f32) -> Result<Self> {
        Ok(Self::wrap(self.inner.scale(factor)?))
    }

    /// See [`DynTensor::glu`]; `self` is the gate.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn glu(&self, activation: Activation, up: &Self) -> Result<Self> {
        Ok(Self::wrap(self.inner.glu(activation, &up.inner)?))
    }

    /// Joins tensors along one axis.
    ///
    /// # Errors
    ///
    /// As [`DynTensor::concat`].
    pub fn concat<X: Axis, I>(parts: &[&Self], _axis: X) -> Result<Self>
    where
        A: Without<X, I>,
    {
        let parts: Vec<_> = parts.iter().map(|part| &part.inner).collect();
        Ok(Self::wrap(DynTensor::concat(&parts, A::POS)?))
    }

    /// The largest `k` of each row and their places: see [`DynTensor::top_k`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn top_k(&self, k: usize) -> Result<(Self, Self)> {
        let (values, indices) = self.inner.top_k(k)?;
        Ok((Self::wrap(values), Self::wrap(indices)))
    }
}

impl<V: Axis, D: Axis> Tensor<(V, D)> {
    /// Looks up rows: `out[t] = self[ids[t]]`, decoded to f32.
    ///
    /// # Errors
    ///
    /// Fails if an id is out of range.
    pub fn rows<T: Axis>(&self, ids: &Tensor<(T,)>) -> Result<Tensor<(T, D)>> {
        Ok(Self::wrap(self.inner.rows(&ids.inner)?))
    }
}

impl<R: Axis, K: Axis> Tensor<(R, K)> {
    /// Rows times the matrices of the experts that they go to: see
    /// [`DynTensor::grouped_matmul_t`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn dot_grouped<E: Axis, N: Axis, S: Axis>(
        &self,
        weights: &Tensor<(E, N, K)>,
        groups: &Groups,
        rows: GroupRows,
    ) -> Result<Tensor<(S, N)>> {
        Ok(Self::wrap(self.inner.grouped_matmul_t(&weights.inner, groups, rows)?))
    }

    /// Weighted sums of the sorted rows of each token: see [`DynTensor::combine`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn combine<T: Axis, U: Axis>(
        &self,
        weights: &Tensor<(T, U)>,
        groups: &Groups,
    ) -> Result<Tensor<(T, K)>> {
        Ok(Self::wrap(self.inner.combine(&weights.inner, groups)?))
    }
}

impl<T: Axis, H: Axis, D: Axis> Tensor<(T, H, D)> {
    /// Rotates the heads by the position of their token: see [`DynTensor::rope`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn rope(&self, table: &RopeTable, pairing: Pairing) -> Result<Self> {
        Ok(Self::wrap(self.inner.rope(table, pairing)?))
    }
}
