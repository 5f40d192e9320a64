//! The compiled kernels, which the driver translates for the device when they are first used.

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{Arc, Mutex};

use fucina_accel::Decline;

use crate::driver::{Entered, Function, Module, held};

/// A source of kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Image {
    pub(crate) name: &'static str,
    pub(crate) ptx: &'static str,
}

/// The kernels of one device.
#[derive(Default)]
pub(crate) struct Modules {
    loaded: Mutex<HashMap<&'static str, Loaded>>,
}

enum Loaded {
    Module { module: Arc<Module>, functions: HashMap<&'static str, Arc<Function>> },
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
        name: &'static str,
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
        functions.insert(name, Arc::clone(&function));
        Ok(function)
    }

    fn load(entered: &Entered<'_>, image: Image) -> Loaded {
        let module = CString::new(image.ptx).ok().and_then(|ptx| entered.module(&ptx).ok());
        match module {
            Some(module) => {
                Loaded::Module { module: Arc::new(module), functions: HashMap::new() }
            }
            None => Loaded::Refused,
        }
    }
}
