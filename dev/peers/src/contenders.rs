//! The contenders: each makes its weights once, and then multiplies.

use anyhow::{Result, bail};

use crate::case::Weights;

#[cfg(feature = "candle")]
mod candle;
#[cfg(feature = "dense")]
mod dense;
#[cfg(feature = "ours")]
mod ours;

/// A product with one copy of the weights, which the argument chooses.
pub(crate) type Call = Box<dyn FnMut(usize) -> Result<Out>>;

/// Weights as a contender wants them.
pub(crate) trait Product {
    /// How many copies there are.
    fn copies(&self) -> usize;
    /// What multiplies.
    fn kernel(&self) -> String;
    /// A product with `x`, `[m, k]`.
    fn bind(&self, x: &[f32], m: usize) -> Result<Call>;
}

/// A result, in whatever its owner gives it.
pub(crate) enum Out {
    #[cfg(feature = "ours")]
    Ours(fucina_runtime::DynTensor),
    #[cfg(feature = "candle")]
    Candle(candle_core::Tensor),
    #[cfg(feature = "dense")]
    F32(Vec<f32>),
    #[cfg(feature = "dense")]
    F16(Vec<half::f16>),
}

impl Out {
    pub(crate) fn values(&self) -> Result<Vec<f32>> {
        Ok(match self {
            #[cfg(feature = "ours")]
            Self::Ours(out) => out.to_vec()?,
            #[cfg(feature = "candle")]
            Self::Candle(out) => out.to_dtype(candle_core::DType::F32)?.flatten_all()?.to_vec1()?,
            #[cfg(feature = "dense")]
            Self::F32(out) => out.clone(),
            #[cfg(feature = "dense")]
            Self::F16(out) => out.iter().map(|x| x.to_f32()).collect(),
        })
    }
}

pub(crate) enum Contender {
    #[cfg(feature = "ours")]
    Ours(fucina_runtime::Runtime),
    /// Its threads are those of `RAYON_NUM_THREADS`.
    #[cfg(feature = "candle")]
    Candle,
    #[cfg(feature = "dense")]
    Gemm(usize),
    /// Its threads are those of the library's own variable.
    #[cfg(feature = "dense")]
    Blas(std::sync::Arc<crate::raw::Blas>),
}

impl Contender {
    #[allow(unused_variables, reason = "which are used depends on the features")]
    pub(crate) fn new(name: &str, threads: usize, library: Option<&str>) -> Result<Self> {
        Ok(match name {
            #[cfg(feature = "ours")]
            "fucina" => {
                let mut config = fucina_runtime::Config::from_env()?;
                config.offload = fucina_runtime::Offload::Off;
                Self::Ours(
                    fucina_runtime::Runtime::builder().config(config).threads(threads).build()?,
                )
            }
            #[cfg(feature = "candle")]
            "candle" => Self::Candle,
            #[cfg(feature = "dense")]
            "gemm" => Self::Gemm(threads),
            #[cfg(feature = "dense")]
            "blas" => {
                let library = anyhow::Context::context(library, "which library?")?;
                Self::Blas(std::sync::Arc::new(crate::raw::Blas::open(library)?))
            }
            _ => bail!("there is no contender {name} in this build"),
        })
    }

    pub(crate) fn take(&self, weights: &Weights) -> Result<Box<dyn Product>> {
        match self {
            #[cfg(feature = "ours")]
            Self::Ours(rt) => ours::take(rt, weights),
            #[cfg(feature = "candle")]
            Self::Candle => candle::take(weights),
            #[cfg(feature = "dense")]
            Self::Gemm(threads) => dense::gemm(*threads, weights),
            #[cfg(feature = "dense")]
            Self::Blas(blas) => dense::blas(weights, std::sync::Arc::clone(blas)),
        }
    }
}
