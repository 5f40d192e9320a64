//! Operands: nothing outside the storage can be named.

use bytes::Bytes;

use super::*;
use crate::OperandError;

fn bytes(len_bytes: usize) -> Storage {
    poisoned().take(len_bytes).unwrap()
}

#[test]
fn an_operand_reaches_the_last_byte_and_not_further() {
    let x = bytes(48);
    assert!(Operand::dense(&x, DType::F32, 0, &[3, 4]).is_ok());
    assert!(Operand::dense(&x, DType::F32, 4, &[11]).is_ok());
    assert!(Operand::dense(&x, DType::F32, 4, &[12]).is_err());
    // 4 columns of a matrix with 6: the last row is short.
    let narrow = Operand::new(&x, DType::F32, 8, &[2, 4], &[6, 1]).unwrap();
    assert_eq!(narrow.byte_range(), 8..48);
    assert!(Operand::new(&x, DType::F32, 12, &[2, 4], &[6, 1]).is_err());
    // Transposed.
    let transposed = Operand::new(&x, DType::F32, 0, &[4, 3], &[1, 4]).unwrap();
    assert_eq!((transposed.byte_range(), transposed.is_dense()), (0..48, false));
    // Broadcast.
    let repeated = Operand::new(&x, DType::F32, 44, &[1000, 1], &[0, 0]).unwrap();
    assert_eq!((repeated.byte_range(), repeated.elems()), (44..48, 1000));
}

#[test]
fn sizes_that_overflow_are_out_of_bounds() {
    let x = bytes(64);
    let huge = usize::MAX;
    let bad = |offset, shape: &[usize], strides: &[usize]| {
        let error = Operand::new(&x, DType::F32, offset, shape, strides).unwrap_err();
        assert!(matches!(error, OperandError::OutOfBounds { .. }), "{shape:?}: {error}");
    };
    bad(0, &[2, 2], &[huge, 1]);
    bad(0, &[huge, 1], &[1, 1]);
    bad(0, &[3, 3], &[huge / 2, huge / 2]);
    bad(0, &[huge / 4 + 2], &[1]);
    bad(huge - 3, &[1], &[1]);
    bad(68, &[0], &[1]);
    // A product that does not fit, although every element is inside.
    bad(0, &[huge, 2], &[0, 0]);
    assert!(Operand::dense(&x, DType::F32, 0, &[huge, huge]).is_err());
    // An axis of size 0 or 1 makes its stride meaningless.
    assert!(Operand::new(&x, DType::F32, 64, &[0, huge], &[huge, huge]).is_ok());
    assert!(Operand::new(&x, DType::F32, 0, &[1, 4], &[huge, 1]).is_ok());
}

#[test]
fn blocks_stay_whole() {
    let x = bytes(34 * 6);
    let row = Operand::dense(&x, DType::Q8_0, 0, &[3, 64]).unwrap();
    assert_eq!((row.byte_range(), row.is_dense()), (0..34 * 6, true));
    let blocks =
        |shape: &[usize], strides: &[usize]| Operand::new(&x, DType::Q8_0, 0, shape, strides);
    assert!(blocks(&[2, 32], &[64, 1]).is_ok());
    for (shape, strides) in [
        (&[3, 33][..], &[33, 1][..]),
        (&[64, 3], &[1, 64]),
        (&[2, 32], &[48, 1]),
        (&[2, 32], &[32, 2]),
        (&[], &[]),
    ] {
        let error = blocks(shape, strides).unwrap_err();
        assert!(matches!(error, OperandError::Blocks { .. }), "{shape:?} {strides:?}: {error}");
    }
    assert!(blocks(&[4, 64], &[64, 1]).is_err());
    // Blocks have no alignment of their own.
    assert!(Operand::dense(&x, DType::Q8_0, 1, &[1, 32]).is_ok());
}

#[test]
fn scalars_are_aligned() {
    let x = Storage::from_bytes(Bytes::from(vec![0u8; 64]).slice(1..));
    let start = x.as_ptr().addr().get();
    for (dtype, size) in [(DType::F32, 4), (DType::F16, 2), (DType::U8, 1), (DType::I32, 4)] {
        for offset in 0..8 {
            let aligned = (start + offset).is_multiple_of(size);
            assert_eq!(
                Operand::dense(&x, dtype, offset, &[2]).is_ok(),
                aligned,
                "{dtype} {offset}"
            );
        }
    }
}

#[test]
fn ranks_are_checked() {
    let x = bytes(64);
    for (shape, strides) in [(&[1; 5][..], &[1; 5][..]), (&[2, 2], &[1]), (&[], &[1])] {
        let error = Operand::new(&x, DType::F32, 0, shape, strides).unwrap_err();
        assert!(matches!(error, OperandError::Rank { .. }), "{error}");
    }
    let scalar = Operand::new(&x, DType::F32, 60, &[], &[]).unwrap();
    assert_eq!((scalar.elems(), scalar.byte_range(), scalar.is_dense()), (1, 60..64, true));
}

#[test]
fn dense_rows_are_recognized() {
    let x = bytes(256);
    let view = |shape: &[usize], strides: &[usize]| {
        let operand = Operand::new(&x, DType::F32, 0, shape, strides).unwrap();
        (operand.is_dense(), operand.has_dense_rows())
    };
    assert_eq!(view(&[4, 4], &[4, 1]), (true, true));
    assert_eq!(view(&[4, 4], &[5, 1]), (false, true));
    assert_eq!(view(&[4, 4], &[1, 4]), (false, false));
    assert_eq!(view(&[1, 4], &[9, 1]), (true, true));
    assert_eq!(view(&[4, 1], &[1, 7]), (true, true));
    assert_eq!(view(&[4, 4], &[0, 1]), (false, true));
    assert_eq!(view(&[0, 4], &[9, 9]), (true, false));
}
