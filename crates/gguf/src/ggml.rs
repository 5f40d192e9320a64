//! GGML's tensor types: id, name, elements and bytes of a block.
//!
//! The table holds every type that has a size, also those for which the workspace has no codec:
//! a file with such a tensor opens, and its other tensors are checked and usable. The numbers are
//! facts of the file format. Ids that GGML has withdrawn (4, 5, 31..=33, 36..=38) are absent.

/// One tensor type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GgmlType {
    pub(crate) id: u32,
    pub(crate) name: &'static str,
    /// Elements in a block; 1 for scalar types.
    pub(crate) elems: u64,
    /// Bytes of a block.
    pub(crate) bytes: u64,
}

const fn row(id: u32, name: &'static str, elems: u64, bytes: u64) -> GgmlType {
    GgmlType { id, name, elems, bytes }
}

const TYPES: &[GgmlType] = &[
    row(0, "F32", 1, 4),
    row(1, "F16", 1, 2),
    row(2, "Q4_0", 32, 18),
    row(3, "Q4_1", 32, 20),
    row(6, "Q5_0", 32, 22),
    row(7, "Q5_1", 32, 24),
    row(8, "Q8_0", 32, 34),
    row(9, "Q8_1", 32, 36),
    row(10, "Q2_K", 256, 84),
    row(11, "Q3_K", 256, 110),
    row(12, "Q4_K", 256, 144),
    row(13, "Q5_K", 256, 176),
    row(14, "Q6_K", 256, 210),
    row(15, "Q8_K", 256, 292),
    row(16, "IQ2_XXS", 256, 66),
    row(17, "IQ2_XS", 256, 74),
    row(18, "IQ3_XXS", 256, 98),
    row(19, "IQ1_S", 256, 50),
    row(20, "IQ4_NL", 32, 18),
    row(21, "IQ3_S", 256, 110),
    row(22, "IQ2_S", 256, 82),
    row(23, "IQ4_XS", 256, 136),
    row(24, "I8", 1, 1),
    row(25, "I16", 1, 2),
    row(26, "I32", 1, 4),
    row(27, "I64", 1, 8),
    row(28, "F64", 1, 8),
    row(29, "IQ1_M", 256, 56),
    row(30, "BF16", 1, 2),
    row(34, "TQ1_0", 256, 54),
    row(35, "TQ2_0", 256, 66),
    row(39, "MXFP4", 32, 17),
];

/// The type with this id, if GGML defines one.
pub(crate) fn lookup(id: u32) -> Option<&'static GgmlType> {
    TYPES.binary_search_by_key(&id, |t| t.id).ok().map(|at| &TYPES[at])
}

#[cfg(test)]
mod tests {
    use fucina_dtype::DType;

    use super::*;

    #[test]
    fn the_table_is_sorted_so_that_it_can_be_searched() {
        assert!(TYPES.is_sorted_by(|a, b| a.id < b.id));
    }

    #[test]
    fn the_table_agrees_with_every_dtype() {
        for dtype in DType::ALL {
            let Some(id) = dtype.ggml_id() else { continue };
            let (elems, bytes) = dtype.unit();
            let expected =
                GgmlType { id, name: dtype.name(), elems: elems as u64, bytes: bytes as u64 };
            assert_eq!(lookup(id), Some(&expected));
        }
    }
}
