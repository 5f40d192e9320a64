//! What the loader does with a tensor, by its name, shape and type.

use fucina::gguf::{File, TensorInfo};
use fucina::{DType, Isa, cpu_kernel, packed_bytes};

use super::Memory;

/// Which kernel reads a tensor, and where its bytes will be.
pub(super) struct Plan {
    pub(super) kernel: String,
    pub(super) memory: Memory,
}

/// GGML's name of the type; its number if GGML has none.
pub(super) fn type_name(info: &TensorInfo) -> String {
    match info.type_name() {
        "unknown" => format!("unknown ({})", info.ggml_type()),
        name => name.to_owned(),
    }
}

pub(super) fn plan(info: &TensorInfo, file: &File, isa: Isa) -> Plan {
    let bytes = info.len_bytes() as u64;
    let in_file =
        |kernel: String| Plan { kernel, memory: Memory { in_file: bytes, ..Memory::default() } };
    let Ok(dtype) = info.dtype() else {
        return in_file("none: the type is not supported".to_owned());
    };
    let shape = info.shape_row_major();
    match *shape {
        [] | [_] => vector(info, dtype).unwrap_or_else(in_file),
        // A table of rows only; the product with the vocabulary has weights of its own.
        [_, _] if info.name() == EMBEDDING && file.tensor_opt(OUTPUT).is_some() => {
            in_file("decoded: its rows are looked up".to_owned())
        }
        [n, k] => matrices(1, packed_bytes(dtype, n, k), cpu_kernel(dtype, isa), bytes),
        [count, n, k] => {
            let kernel = format!("{} for each of {count} experts", cpu_kernel(dtype, isa));
            matrices(count as u64, packed_bytes(dtype, n, k), kernel, bytes)
        }
        _ => in_file("none: more than three axes".to_owned()),
    }
}

/// So many matrices, each with a packed form or without.
fn matrices(count: u64, packed: Option<usize>, kernel: String, bytes: u64) -> Plan {
    let memory = match packed {
        Some(packed) => Memory { packed: count.saturating_mul(packed as u64), ..Memory::default() },
        None => Memory { in_file: bytes, ..Memory::default() },
    };
    Plan { kernel, memory }
}

const EMBEDDING: &str = "token_embd.weight";
const OUTPUT: &str = "output.weight";

/// A vector becomes f32 in memory. `Err` says why it does not.
fn vector(info: &TensorInfo, dtype: DType) -> Result<Plan, String> {
    match dtype {
        DType::F32 | DType::F16 | DType::BF16 => Ok(Plan {
            kernel: "copied as f32".to_owned(),
            memory: Memory { copied: 4 * info.len_elems() as u64, ..Memory::default() },
        }),
        _ => Err("none: a vector of this type".to_owned()),
    }
}
