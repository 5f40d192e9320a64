//! The compiled kernels, which the driver translates for the device when they are first used.

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{Arc, Mutex, OnceLock};

use fucina_accel::Decline;
use fucina_dtype::DType;

use crate::config::{CudaConfig, Kernels, OptionalLibrary};
use crate::driver::{CuError, Entered, Function, Module, held};
use crate::nvrtc::{self, Compiler};
use crate::retry::Retry;
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

/// The image of an op for a block format: the one table of the formats that have kernels.
macro_rules! block_image {
    ($dtype:expr, $op:literal, $chip:literal) => {
        match $dtype {
            DType::Q4_0 => Ok(image!(concat!($op, "_q4_0.", $chip))),
            DType::Q5_0 => Ok(image!(concat!($op, "_q5_0.", $chip))),
            DType::Q8_0 => Ok(image!(concat!($op, "_q8_0.", $chip))),
            DType::Q4_K => Ok(image!(concat!($op, "_q4_k.", $chip))),
            DType::Q5_K => Ok(image!(concat!($op, "_q5_k.", $chip))),
            DType::Q6_K => Ok(image!(concat!($op, "_q6_k.", $chip))),
            DType::TQ2_0 => Ok(image!(concat!($op, "_tq2_0.", $chip))),
            _ => Err(Decline::UnsupportedFormat),
        }
    };
}

/// Products of few rows with a block format.
pub(crate) fn gemv(dtype: DType) -> Result<Image, Decline> {
    block_image!(dtype, "gemv", "sm70")
}

/// Tiled products with a format, for the oldest devices or for those from 8.0 on.
pub(crate) fn gemm(dtype: DType, is_sm80: bool) -> Result<Image, Decline> {
    match (dtype, is_sm80) {
        // For the fallback only: tensor cores have no f32.
        (DType::F32, false) => Ok(image!("gemm_f32.sm70")),
        (DType::F16, false) => Ok(image!("gemm_f16.sm70")),
        (DType::F16, true) => Ok(image!("gemm_f16.sm80")),
        (DType::BF16, false) => Ok(image!("gemm_bf16.sm70")),
        (DType::BF16, true) => Ok(image!("gemm_bf16.sm80")),
        (block, false) => block_image!(block, "gemm", "sm70"),
        (block, true) => block_image!(block, "gemm", "sm80"),
    }
}

/// Products of few rows of activations in 8 bits.
pub(crate) fn gemv_i8(dtype: DType) -> Result<Image, Decline> {
    block_image!(dtype, "gemv_i8", "sm70")
}

/// Tiled products of activations in 8 bits.
pub(crate) fn gemm_i8(dtype: DType, is_sm80: bool) -> Result<Image, Decline> {
    if is_sm80 {
        block_image!(dtype, "gemm_i8", "sm80")
    } else {
        block_image!(dtype, "gemm_i8", "sm70")
    }
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
    /// Memory was short. It is asked again, now and then.
    Waiting(Retry),
}

/// Why there is no module.
enum NoModule {
    /// Memory was short.
    Memory,
    /// The driver cannot have it, and the compiler does not help.
    Refused(String),
}

impl NoModule {
    fn of(error: &CuError, refused: impl FnOnce() -> String) -> Self {
        if error.is_out_of_memory() { Self::Memory } else { Self::Refused(refused()) }
    }
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
        let entry = loaded.entry(image.name).or_insert_with(|| Loaded::Waiting(Retry::default()));
        if let Loaded::Waiting(retry) = entry
            && retry.is_due()
        {
            match self.load(entered, image) {
                Some(result) => *entry = result,
                None => retry.failed(),
            }
        }
        let (module, functions) = match entry {
            Loaded::Module { module, functions } => (module, functions),
            Loaded::Refused => return Err(Decline::Refused),
            Loaded::Waiting(_) => return Err(Decline::OutOfDeviceMemory),
        };
        if let Some(function) = functions.get(name) {
            return Ok(Arc::clone(function));
        }
        // Some drivers load the code of a kernel only now.
        let missing = |error: CuError| {
            if error.is_out_of_memory() {
                Decline::OutOfDeviceMemory
            } else {
                Decline::UnsupportedOp
            }
        };
        let function = module.function(entered, name).map_err(missing)?;
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
        let small = self.function(entered, PACK, "reduce_splits", 0);
        let mut lines = held(&self.troubles).clone();
        if matches!(small, Err(Decline::OutOfDeviceMemory)) {
            lines.push("no memory is left for kernels at the moment".to_owned());
        }
        let compiler = self.compiler.get().and_then(|compiler| compiler.as_ref().ok());
        lines.push(match compiler {
            Some(compiler) => format!("kernels from their sources, by {}", compiler.about()),
            None if self.kernels == Kernels::Compiled => "kernels as shipped, in PTX".to_owned(),
            None => return lines,
        });
        lines
    }

    /// The module, or that there is none. `None` if memory was short.
    fn load(&self, entered: &Entered<'_>, image: Image) -> Option<Loaded> {
        let module = match self.kernels {
            Kernels::Sources => self.compile(entered, image),
            Kernels::Compiled => shipped(entered, image).or_else(|refused| match refused {
                NoModule::Memory => Err(NoModule::Memory),
                NoModule::Refused(refused) => {
                    self.compile(entered, image).map_err(|no_module| match no_module {
                        NoModule::Memory => NoModule::Memory,
                        NoModule::Refused(why) => NoModule::Refused(format!(
                            "the driver refuses it ({refused}), and {why}"
                        )),
                    })
                }
            }),
        };
        Some(match module {
            Ok(module) => Loaded::Module { module: Arc::new(module), functions: HashMap::new() },
            Err(NoModule::Memory) => return None,
            Err(NoModule::Refused(why)) => {
                let mut troubles = held(&self.troubles);
                if troubles.len() < MAX_TROUBLES {
                    troubles.push(format!("no kernels of {}: {why}", image.name));
                }
                Loaded::Refused
            }
        })
    }

    /// The module from its source.
    fn compile(&self, entered: &Entered<'_>, image: Image) -> Result<Module, NoModule> {
        let refused = |why: &str| NoModule::Refused(why.to_owned());
        let compiler = self.compiler.get_or_init(|| Compiler::open(&self.nvrtc));
        let compiler = compiler.as_ref().map_err(|why| refused(why))?;
        let source = Source::of(image.name).ok_or_else(|| refused("it has no source"))?;
        let ptx = compiler.compile(&source, self.capability).map_err(|failure| match failure {
            nvrtc::Failure::Memory => NoModule::Memory,
            nvrtc::Failure::Other(why) => NoModule::Refused(why),
        })?;
        entered.module(&ptx).map_err(|error| {
            NoModule::of(&error, || {
                format!("the driver refuses the code of {}: {error}", compiler.about())
            })
        })
    }
}

/// The module from the compiled kernels.
fn shipped(entered: &Entered<'_>, image: Image) -> Result<Module, NoModule> {
    let ptx = CString::new(image.ptx).map_err(|_| NoModule::Refused("a zero byte".to_owned()))?;
    entered.module(&ptx).map_err(|error| NoModule::of(&error, || error.to_string()))
}
