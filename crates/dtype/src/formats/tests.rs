use super::*;

/// Bits of ggml's own decoding of the same bytes: see `golden/README.md`.
#[test]
fn every_format_decodes_the_golden_blocks_bit_exactly() {
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/../../golden/blocks/");
    for info in DType::BLOCK_FORMATS {
        let name = match info.dtype.name().strip_suffix("_K") {
            Some(stem) => format!("{}_K", stem.to_lowercase()),
            None => info.dtype.name().to_lowercase(),
        };
        let blocks = std::fs::read(format!("{golden}{name}.blocks")).unwrap();
        let decoded = std::fs::read(format!("{golden}{name}.dec.f32")).unwrap();
        assert_eq!(blocks.len(), 96 * info.bytes, "{name}");
        let want: Vec<u32> = decoded.as_chunks().0.iter().map(|b| u32::from_le_bytes(*b)).collect();
        let mut out = vec![f32::NAN; 96 * info.elems];
        info.dtype.decode(&blocks, &mut out).unwrap();
        assert_eq!(out.len(), want.len(), "{name}");
        for (i, (got, want)) in out.iter().zip(want).enumerate() {
            let block = i / info.elems;
            assert_eq!(got.to_bits(), want, "{name} block {block} element {}", i % info.elems);
        }
    }
}

#[test]
fn ggml_ids_and_names_identify_a_type() {
    for &dtype in DType::ALL {
        assert_eq!(DType::from_name(dtype.name()), Some(dtype));
        assert_eq!(DType::from_name(&dtype.name().to_lowercase()), Some(dtype));
        if let Some(id) = dtype.ggml_id() {
            assert_eq!(DType::from_ggml_id(id), Some(dtype), "{dtype}");
        }
    }
    for info in DType::BLOCK_FORMATS {
        assert_eq!(info.dtype.ggml_id(), Some(info.ggml_id));
        assert_eq!(info.dtype.unit(), (info.elems, info.bytes));
        assert!(info.dtype.is_block());
    }
}

/// 4 and 5 were removed from ggml, 9 and 15 are activation formats, 24 is a signed byte.
#[test]
fn foreign_ids_and_names_are_unknown() {
    for id in [4, 5, 9, 15, 16, 24, 25, 27, 28, 34, 36, u32::MAX] {
        assert_eq!(DType::from_ggml_id(id), None, "{id}");
    }
    assert_eq!(DType::from_name("Q4_K_M"), None);
    assert_eq!(DType::from_name(""), None);
}

#[test]
fn the_ids_are_those_of_ggml() {
    let ids = |names: &[&str]| -> Vec<Option<u32>> {
        names.iter().map(|name| DType::from_name(name).unwrap().ggml_id()).collect()
    };
    assert_eq!(
        ids(&["F32", "F16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "I32", "BF16", "TQ2_0", "U8"]),
        [
            Some(0),
            Some(1),
            Some(2),
            Some(3),
            Some(6),
            Some(7),
            Some(8),
            Some(26),
            Some(30),
            Some(35),
            None
        ],
    );
    assert_eq!(
        ids(&["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"]),
        [Some(10), Some(11), Some(12), Some(13), Some(14)],
    );
}

#[test]
fn a_row_is_whole_blocks() {
    assert_eq!(DType::Q4_K.row_bytes(512), Some(288));
    assert_eq!(DType::Q4_K.row_bytes(300), None);
    assert_eq!(DType::Q4_0.row_bytes(96), Some(54));
    assert_eq!(DType::F32.row_bytes(usize::MAX), None);
    assert_eq!(DType::U8.row_bytes(usize::MAX), Some(usize::MAX));
}

#[test]
fn decode_rejects_lengths_that_do_not_match() {
    for &dtype in DType::ALL {
        let (elems, bytes) = dtype.unit();
        for (src, out) in [(bytes - 1, elems), (bytes + 1, elems), (bytes, elems - 1), (bytes, 0)] {
            if (src, out) == (0, 0) {
                continue;
            }
            let err = dtype.decode(&vec![0; src], &mut vec![0.0; out]).unwrap_err();
            assert_eq!(err, DecodeError { dtype, bytes: src, elems: out });
        }
        assert_eq!(dtype.decode(&[], &mut []), Ok(()));
    }
}

#[test]
fn scalars_decode_to_their_values() {
    let mut out = [f32::NAN; 2];
    DType::F32.decode(&[0, 0, 0x80, 0x3f, 0, 0, 0, 0xc0], &mut out).unwrap();
    assert_eq!(out, [1.0, -2.0]);
    DType::F16.decode(&[0, 0x3c, 1, 0], &mut out).unwrap();
    assert_eq!(out, [1.0, 2f32.powi(-24)]);
    DType::BF16.decode(&[0x80, 0x3f, 0x80, 0xff], &mut out).unwrap();
    assert_eq!(out, [1.0, f32::NEG_INFINITY]);
    DType::I32.decode(&[0xff, 0xff, 0xff, 0xff, 7, 0, 0, 0], &mut out).unwrap();
    assert_eq!(out, [-1.0, 7.0]);
    DType::U8.decode(&[0, 255], &mut out).unwrap();
    assert_eq!(out, [0.0, 255.0]);
}
