//! Which matrices are repacked for the CPU kernels, and which stay as the file has them.

use std::collections::HashMap;

use fucina_gguf::{File, TensorInfo};
use fucina_runtime::packed_bytes;

/// Part of the free memory, in eighths, that packed weights may take under [`Pack::Auto`]. The rest
/// is for keys and values, results and others.
const AUTO_EIGHTHS: u64 = 7;

const EMBEDDING: &str = "token_embd.weight";
const OUTPUT: &str = "output.weight";

/// Whether matrices are repacked at load. Packed products are several times faster; a matrix that
/// is not packed takes no memory but the file's own pages, which the system can drop and read again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Pack {
    /// In the order of the file, as far as seven eighths of the free memory go.
    #[default]
    Auto,
    /// None.
    Never,
    /// All that have packed kernels.
    Always,
}

impl Pack {
    /// Every choice.
    pub const ALL: [Self; 3] = [Self::Auto, Self::Never, Self::Always];

    /// Its name in commands and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Never => "never",
            Self::Always => "always",
        }
    }
}

/// What becomes of each matrix of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackPlan {
    /// Bytes of the packed form, by tensor.
    packed: HashMap<String, u64>,
    left_out: usize,
    /// Whether the rest of the file fits into the free memory as well.
    fits: bool,
}

impl PackPlan {
    /// Decides for every tensor. `free_bytes` is what [`Pack::Auto`] may use a part of; `None`, not
    /// known, is enough for everything.
    pub fn new(file: &File, pack: Pack, free_bytes: Option<u64>) -> Self {
        let room = free_bytes.map_or(u64::MAX, |free| free / 8 * AUTO_EIGHTHS);
        let fits = file.tensor_bytes() <= room;
        let mut plan = Self { packed: HashMap::new(), left_out: 0, fits };
        let limit = match pack {
            Pack::Never => return plan,
            Pack::Auto => room,
            Pack::Always => u64::MAX,
        };
        let mut sum = 0u64;
        for info in file.tensors() {
            let Some(bytes) = size(info).filter(|_| !is_table(file, info.name())) else { continue };
            match sum.checked_add(bytes).filter(|&sum| sum <= limit) {
                Some(next) => {
                    sum = next;
                    plan.packed.insert(info.name().to_owned(), bytes);
                }
                None => plan.left_out += 1,
            }
        }
        plan
    }

    /// Bytes of the packed form of a tensor. `None` if it stays as the file has it.
    pub fn packed_bytes(&self, tensor: &str) -> Option<u64> {
        self.packed.get(tensor).copied()
    }

    /// Whether the free memory holds the tensors of the file, packed or not: what stays in the file
    /// can be read ahead then.
    pub(crate) fn fits(&self) -> bool {
        self.fits && self.left_out == 0
    }

    /// Number of matrices that would be packed if there were memory for them.
    pub fn left_out(&self) -> usize {
        self.left_out
    }
}

/// Whether a tensor is a table whose rows are looked up and nothing else: an embedding, if the
/// product with the vocabulary has weights of its own.
pub fn is_table(file: &File, tensor: &str) -> bool {
    tensor == EMBEDDING && file.tensor_opt(OUTPUT).is_some()
}

/// Bytes of the packed form of a matrix, or of one for each expert.
fn size(info: &TensorInfo) -> Option<u64> {
    let dtype = info.dtype().ok()?;
    let (count, n, k) = match *info.shape_row_major() {
        [n, k] => (1, n, k),
        [count, n, k] => (count, n, k),
        _ => return None,
    };
    (packed_bytes(dtype, n, k)? as u64).checked_mul(count as u64)
}
