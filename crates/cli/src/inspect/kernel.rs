//! What the loader does with a tensor, by its name, shape and type.

use fucina::gguf::{File, TensorInfo};
use fucina::llm::{PackPlan, is_table};
use fucina::{DType, Isa, cpu_kernel};

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

pub(super) fn plan(info: &TensorInfo, file: &File, packed: &PackPlan, isa: Isa) -> Plan {
    let bytes = info.len_bytes() as u64;
    let in_file =
        |kernel: String| Plan { kernel, memory: Memory { in_file: bytes, ..Memory::default() } };
    let Ok(dtype) = info.dtype() else {
        return in_file("none: the type is not supported".to_owned());
    };
    let packed = packed.packed_bytes(info.name());
    let kernel = match *info.shape_row_major() {
        [] | [_] => return vector(info, dtype).unwrap_or_else(in_file),
        [_, _] if is_table(file, info.name()) => "decoded: its rows are looked up".to_owned(),
        [_, _] => cpu_kernel(dtype, isa, packed.is_some()),
        [count, _, _] => {
            format!("{} for each of {count} experts", cpu_kernel(dtype, isa, packed.is_some()))
        }
        _ => return in_file("none: more than three axes".to_owned()),
    };
    match packed {
        Some(packed) => Plan { kernel, memory: Memory { packed, ..Memory::default() } },
        None => in_file(kernel),
    }
}

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
