//! The compiled kernels, which the driver translates for the device when they are first used.

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{Arc, Mutex};

use fucina_accel::Decline;
use fucina_dtype::DType;

use crate::driver::{Entered, Function, Module, held};

/// A source of kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Image {
    pub(crate) name: &'static str,
    pub(crate) ptx: &'static str,
}

macro_rules! image {
    ($name:expr) => {
        Image { name: $name, ptx: include_str!(concat!("../ptx/", $name, ".ptx")) }
    };
}

pub(crate) const ATTENTION: Image = image!("attention.sm70");
pub(crate) const ATTENTION_SM80: Image = image!("attention.sm80");
pub(crate) const ELEMENTWISE: Image = image!("elementwise.sm70");
pub(crate) const MATMUL: Image = image!("matmul.sm70");
pub(crate) const NORM: Image = image!("norm.sm70");
pub(crate) const PACK: Image = image!("pack.sm70");
pub(crate) const QUANTIZE: Image = image!("quantize.sm70");
pub(crate) const ROWS: Image = image!("rows.sm70");

/// Products of few rows with a block format.
pub(crate) fn gemv(dtype: DType) -> Result<Image, Decline> {
    Ok(match dtype {
        DType::Q4_0 => image!("gemv_q4_0.sm70"),
        DType::Q5_0 => image!("gemv_q5_0.sm70"),
        DType::Q8_0 => image!("gemv_q8_0.sm70"),
        DType::Q4_K => image!("gemv_q4_k.sm70"),
        DType::Q5_K => image!("gemv_q5_k.sm70"),
        DType::Q6_K => image!("gemv_q6_k.sm70"),
        DType::TQ2_0 => image!("gemv_tq2_0.sm70"),
        _ => return Err(Decline::UnsupportedFormat),
    })
}

/// Tiled products with a format, for the oldest devices or for those from 8.0 on.
pub(crate) fn gemm(dtype: DType, is_sm80: bool) -> Result<Image, Decline> {
    macro_rules! either {
        ($name:literal) => {
            if is_sm80 {
                image!(concat!("gemm_", $name, ".sm80"))
            } else {
                image!(concat!("gemm_", $name, ".sm70"))
            }
        };
    }
    Ok(match dtype {
        // For the fallback only: tensor cores have no f32.
        DType::F32 if !is_sm80 => image!("gemm_f32.sm70"),
        DType::F16 => either!("f16"),
        DType::BF16 => either!("bf16"),
        DType::Q4_0 => either!("q4_0"),
        DType::Q5_0 => either!("q5_0"),
        DType::Q8_0 => either!("q8_0"),
        DType::Q4_K => either!("q4_k"),
        DType::Q5_K => either!("q5_k"),
        DType::Q6_K => either!("q6_k"),
        DType::TQ2_0 => either!("tq2_0"),
        _ => return Err(Decline::UnsupportedFormat),
    })
}

/// Products of few rows of activations in 8 bits.
pub(crate) fn gemv_i8(dtype: DType) -> Result<Image, Decline> {
    Ok(match dtype {
        DType::Q4_0 => image!("gemv_i8_q4_0.sm70"),
        DType::Q5_0 => image!("gemv_i8_q5_0.sm70"),
        DType::Q8_0 => image!("gemv_i8_q8_0.sm70"),
        DType::Q4_K => image!("gemv_i8_q4_k.sm70"),
        DType::Q5_K => image!("gemv_i8_q5_k.sm70"),
        DType::Q6_K => image!("gemv_i8_q6_k.sm70"),
        DType::TQ2_0 => image!("gemv_i8_tq2_0.sm70"),
        _ => return Err(Decline::UnsupportedFormat),
    })
}

/// Tiled products of activations in 8 bits.
pub(crate) fn gemm_i8(dtype: DType, is_sm80: bool) -> Result<Image, Decline> {
    macro_rules! either {
        ($name:literal) => {
            if is_sm80 {
                image!(concat!("gemm_i8_", $name, ".sm80"))
            } else {
                image!(concat!("gemm_i8_", $name, ".sm70"))
            }
        };
    }
    Ok(match dtype {
        DType::Q4_0 => either!("q4_0"),
        DType::Q5_0 => either!("q5_0"),
        DType::Q8_0 => either!("q8_0"),
        DType::Q4_K => either!("q4_k"),
        DType::Q5_K => either!("q5_k"),
        DType::Q6_K => either!("q6_k"),
        DType::TQ2_0 => either!("tq2_0"),
        _ => return Err(Decline::UnsupportedFormat),
    })
}

/// The kernels of one device.
#[derive(Default)]
pub(crate) struct Modules {
    loaded: Mutex<HashMap<&'static str, Loaded>>,
}

enum Loaded {
    Module {
        module: Arc<Module>,
        functions: HashMap<String, Arc<Function>>,
    },
    /// The driver refused it. It is not asked again.
    Refused,
}

impl Modules {
    /// The kernel `name` of an image. The first call for an image takes the driver's compiler some
    /// time.
    pub(crate) fn function(
        &self,
        entered: &Entered<'_>,
        image: Image,
        name: &str,
        shared_bytes: u32,
    ) -> Result<Arc<Function>, Decline> {
        let mut loaded = held(&self.loaded);
        let entry = loaded.entry(image.name).or_insert_with(|| Self::load(entered, image));
        let Loaded::Module { module, functions } = entry else { return Err(Decline::Refused) };
        if let Some(function) = functions.get(name) {
            return Ok(Arc::clone(function));
        }
        let function = module.function(entered, name).map_err(|_| Decline::UnsupportedOp)?;
        if shared_bytes > 48 << 10 {
            let bytes = i32::try_from(shared_bytes).map_err(|_| Decline::UnsupportedShape)?;
            function.allow_shared(entered, bytes).map_err(|_| Decline::UnsupportedShape)?;
        }
        let function = Arc::new(function);
        functions.insert(name.to_owned(), Arc::clone(&function));
        Ok(function)
    }

    fn load(entered: &Entered<'_>, image: Image) -> Loaded {
        let module = CString::new(image.ptx).ok().and_then(|ptx| entered.module(&ptx).ok());
        match module {
            Some(module) => Loaded::Module { module: Arc::new(module), functions: HashMap::new() },
            None => Loaded::Refused,
        }
    }
}
