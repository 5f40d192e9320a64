//! The compiled kernels, which the driver translates for the device when they are first used.

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{Arc, Mutex, OnceLock};

use fucina_accel::Decline;
use fucina_dtype::DType;

use crate::config::{CudaConfig, Kernels, OptionalLibrary};
use crate::driver::{Entered, Function, Module, held};
use crate::nvrtc::Compiler;
use crate::sources::Source;

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
pub(crate) struct Modules {
    kernels: Kernels,
    nvrtc: OptionalLibrary,
    capability: (i32, i32),
    loaded: Mutex<HashMap<&'static str, Loaded>>,
    compiler: OnceLock<Result<Compiler, String>>,
    /// Why modules could not be loaded.
    troubles: Mutex<Vec<String>>,
}

/// Reasons that are kept.
const MAX_TROUBLES: usize = 4;

enum Loaded {
    Module {
        module: Arc<Module>,
        functions: HashMap<String, Arc<Function>>,
    },
    /// The driver refused it. It is not asked again.
    Refused,
}

impl Modules {
    pub(crate) fn new(config: &CudaConfig, capability: (i32, i32)) -> Self {
        Self {
            kernels: config.kernels,
            nvrtc: config.nvrtc.clone(),
            capability,
            loaded: Mutex::default(),
            compiler: OnceLock::new(),
            troubles: Mutex::default(),
        }
    }

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
        let entry = loaded.entry(image.name).or_insert_with(|| self.load(entered, image));
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

    /// One line on where kernels come from, and one for each of the first modules without any.
    pub(crate) fn about(&self, entered: &Entered<'_>) -> Vec<String> {
        // Something small, to see whether it works.
        let _ = self.function(entered, PACK, "reduce_splits", 0);
        let mut lines = held(&self.troubles).clone();
        let compiler = self.compiler.get().and_then(|compiler| compiler.as_ref().ok());
        lines.push(match compiler {
            Some(compiler) => format!("kernels from their sources, by {}", compiler.about()),
            None if self.kernels == Kernels::Compiled => "kernels as shipped, in PTX".to_owned(),
            None => return lines,
        });
        lines
    }

    fn load(&self, entered: &Entered<'_>, image: Image) -> Loaded {
        let module = match self.kernels {
            Kernels::Sources => self.compile(entered, image),
            Kernels::Compiled => shipped(entered, image).or_else(|refused| {
                let compiled = self.compile(entered, image);
                compiled.map_err(|why| format!("the driver refuses it ({refused}), and {why}"))
            }),
        };
        match module {
            Ok(module) => Loaded::Module { module: Arc::new(module), functions: HashMap::new() },
            Err(why) => {
                let mut troubles = held(&self.troubles);
                if troubles.len() < MAX_TROUBLES {
                    troubles.push(format!("no kernels of {}: {why}", image.name));
                }
                Loaded::Refused
            }
        }
    }

    /// The module from its source.
    fn compile(&self, entered: &Entered<'_>, image: Image) -> Result<Module, String> {
        let compiler = self.compiler.get_or_init(|| Compiler::open(&self.nvrtc));
        let compiler = compiler.as_ref().map_err(Clone::clone)?;
        let source = Source::of(image.name).ok_or("it has no source")?;
        let ptx = compiler.compile(&source, self.capability)?;
        let refused =
            |error| format!("the driver refuses the code of {}: {error}", compiler.about());
        entered.module(&ptx).map_err(refused)
    }
}

/// The module from the compiled kernels.
fn shipped(entered: &Entered<'_>, image: Image) -> Result<Module, String> {
    let ptx = CString::new(image.ptx).map_err(|_| "a zero byte".to_owned())?;
    entered.module(&ptx).map_err(|error| error.to_string())
}
