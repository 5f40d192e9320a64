//! Calls: what is well-formed, and what the errors say.

use super::*;
use crate::reference::ManualProvider;
use crate::{
    Activation, Attention, CallError, Combine, Decline, Glu, GroupedMatMul, Outcome, Pairing,
    RmsNorm, Rope, Rows, Shape, Softmax, Trace,
};
use crate::{CpuReason, Decision, Event};

fn view<'a>(storage: &'a Storage, dtype: DType, shape: &[usize]) -> Operand<'a> {
    Operand::dense(storage, dtype, 0, shape).unwrap()
}

fn f32s<'a>(storage: &'a Storage, shape: &[usize]) -> Operand<'a> {
    view(storage, DType::F32, shape)
}

fn shape_error(call: &Call<'_>) -> String {
    match call.validate().unwrap_err() {
        error @ CallError::Shapes { .. } => error.to_string(),
        other => panic!("{other}"),
    }
}

#[test]
fn matmul_takes_one_matrix_for_the_batch() {
    let x = poisoned().take(4096).unwrap();
    let shape =
        |lhs: &[usize], rhs: &[usize]| matmul(f32s(&x, lhs), f32s(&x, rhs)).out_shape().ok();
    assert_eq!(shape(&[2, 3, 4], &[2, 5, 4]), Some(Shape::of([2, 3, 5])));
    assert_eq!(shape(&[2, 3, 4], &[1, 5, 4]), Some(Shape::of([2, 3, 5])));
    assert_eq!(shape(&[0, 3, 4], &[1, 5, 4]), Some(Shape::of([0, 3, 5])));
    assert_eq!(shape(&[2, 3, 0], &[2, 5, 0]), Some(Shape::of([2, 3, 5])));
    assert_eq!(shape(&[2, 3, 4], &[3, 5, 4]), None);
    assert_eq!(shape(&[1, 3, 4], &[2, 5, 4]), None);
    assert_eq!(shape(&[2, 3, 4], &[2, 5, 3]), None);
    assert_eq!(shape(&[3, 4], &[5, 4]), None);
    let blocks = matmul(f32s(&x, &[1, 2, 64]), view(&x, DType::Q8_0, &[1, 3, 64]));
    assert_eq!(blocks.out_shape(), Ok(Shape::of([1, 2, 3])));
    assert_eq!((blocks.format(), blocks.work()), (DType::Q8_0, 2 * 3 * 64));
}

#[test]
fn errors_name_the_op_and_both_shapes() {
    let x = poisoned().take(4096).unwrap();
    assert_eq!(
        shape_error(&matmul(f32s(&x, &[1, 2, 3]), f32s(&x, &[1, 5, 4]))),
        "matmul: shapes [1, 2, 3] x [1, 5, 4] do not go together: \
         [b, m, k] x [b or 1, n, k] give [b, m, n]"
    );
    let lhs = matmul(view(&x, DType::I32, &[1, 2, 3]), f32s(&x, &[1, 5, 3]));
    assert_eq!(
        lhs.validate().unwrap_err().to_string(),
        "matmul: operand 0 of shapes [1, 2, 3] x [1, 5, 3] cannot be I32: it is f32, f16 or bf16"
    );
    let softmax = Call::Softmax(Softmax { x: f32s(&x, &[2, 3]), scale: f32::NAN });
    let error = softmax.validate().unwrap_err().to_string();
    assert_eq!(error, "softmax: scale is out of range: it is finite");
}

#[test]
fn an_output_that_cannot_exist_is_too_large() {
    let x = poisoned().take(64).unwrap();
    let wide = Operand::new(&x, DType::F32, 0, &[1, 1 << 40, 0], &[0, 0, 0]).unwrap();
    let call = matmul(wide, wide);
    let error = call.validate().unwrap_err();
    assert!(matches!(error, CallError::TooLarge { op: "matmul", .. }), "{error}");
    assert_eq!(call.out_bytes(), Err(error));
}

#[test]
fn row_ops_check_their_axes() {
    let x = poisoned().take(4096).unwrap();
    let norm = |x_shape: &[usize], weight: &[usize], eps| {
        let weight = Some(f32s(&x, weight));
        Call::RmsNorm(RmsNorm { x: f32s(&x, x_shape), weight, eps }).out_shape().ok()
    };
    assert_eq!(norm(&[2, 3], &[3], 1e-6), Some(Shape::of([2, 3])));
    assert_eq!(norm(&[2, 3], &[2], 1e-6), None);
    assert_eq!(norm(&[3], &[3], 1e-6), None);
    assert_eq!(norm(&[2, 3], &[3], -1.0), None);
    assert_eq!(norm(&[2, 3], &[3], f32::INFINITY), None);
    let rows = |table, ids| Call::Rows(Rows { table, ids }).out_shape().ok();
    let ids = view(&x, DType::I32, &[5]);
    assert_eq!(rows(view(&x, DType::Q8_0, &[2, 32]), ids), Some(Shape::of([5, 32])));
    assert_eq!(rows(f32s(&x, &[2, 3]), f32s(&x, &[5])), None);
    assert_eq!(rows(view(&x, DType::U8, &[2, 3]), ids), None);
}

/// `[m, k] x [experts, n, k]` with tables, on a storage of zeros.
fn grouped(x: [&[usize]; 2], offsets: &[i32], row_ids: Option<&[i32]>) -> Result<Shape, CallError> {
    let storage = poisoned().take(4096).unwrap();
    let (lhs, weights) = (f32s(&storage, x[0]), f32s(&storage, x[1]));
    Call::GroupedMatMul(GroupedMatMul { x: lhs, weights, offsets, row_ids }).out_shape()
}

#[test]
fn a_grouped_product_checks_its_tables() {
    let shapes: [&[usize]; 2] = [&[4, 3], &[2, 5, 3]];
    let good = |offsets: &[i32], ids: Option<&[i32]>| grouped(shapes, offsets, ids);
    assert_eq!(good(&[0, 1, 4], None), Ok(Shape::of([4, 5])));
    assert_eq!(good(&[0, 0, 4], None), Ok(Shape::of([4, 5])));
    assert_eq!(good(&[0, 4, 4], None), Ok(Shape::of([4, 5])));
    assert_eq!(good(&[0, 3, 6], Some(&[0, 3, 3, 1, 0, 2])), Ok(Shape::of([6, 5])));
    assert_eq!(good(&[0, 0, 0], Some(&[])), Ok(Shape::of([0, 5])));
    assert_eq!(grouped([&[0, 3], &[0, 5, 3]], &[0], None), Ok(Shape::of([0, 5])));
    assert_eq!(grouped([&[2, 0], &[1, 5, 0]], &[0, 2], None), Ok(Shape::of([2, 5])));
    // Offsets: too few or many, not from zero, backwards, negative, beyond the rows.
    let bad: [&[i32]; 8] = [
        &[],
        &[0, 4],
        &[0, 1, 2, 4],
        &[1, 2, 4],
        &[0, 5, 4],
        &[0, -1, 4],
        &[-1, 2, 4],
        &[0, i32::MIN, 4],
    ];
    for offsets in bad {
        let error = good(offsets, None).unwrap_err();
        let CallError::Argument { op: "grouped_matmul", argument: "offsets", .. } = error else {
            panic!("{offsets:?}: {error}")
        };
    }
    for end in [0, 3, 5, i32::MAX] {
        let error = good(&[0, 0, end], None).unwrap_err();
        assert!(matches!(error, CallError::Shapes { .. }), "{error}");
    }
    // Ids: too few or many, negative, outside.
    let bad: [&[i32]; 5] = [&[], &[0, 1, 2], &[0, 1, 2, 3, 3], &[0, 1, 2, -1], &[0, 1, 2, 4]];
    for ids in bad {
        let error = good(&[0, 1, 4], Some(ids)).unwrap_err();
        let CallError::Argument { op: "grouped_matmul", argument: "row_ids", .. } = error else {
            panic!("{ids:?}: {error}")
        };
    }
}

#[test]
fn a_grouped_product_checks_its_shapes_and_types() {
    for shapes in [
        [&[4, 3][..], &[2, 5, 4][..]],
        [&[4, 3], &[5, 3]],
        [&[4], &[2, 5, 3]],
        [&[1, 4, 3], &[2, 5, 3]],
    ] {
        let error = grouped(shapes, &[0, 1, 4], None).unwrap_err();
        assert!(matches!(error, CallError::Shapes { .. }), "{shapes:?}: {error}");
    }
    let x = poisoned().take(4096).unwrap();
    let of = |x, weights| {
        let call = GroupedMatMul { x, weights, offsets: &[0, 1, 2], row_ids: Some(&[0, 0]) };
        Call::GroupedMatMul(call)
    };
    let (rows, blocks) = (f32s(&x, &[1, 64]), view(&x, DType::Q8_0, &[2, 3, 64]));
    let call = of(rows, blocks);
    assert_eq!(call.out_shape(), Ok(Shape::of([2, 3])));
    assert_eq!((call.op_name(), call.format()), ("grouped_matmul", DType::Q8_0));
    assert_eq!(call.work(), 2 * 3 * 64);
    let error = of(view(&x, DType::F16, &[1, 64]), blocks).validate().unwrap_err();
    assert!(matches!(error, CallError::DType { index: 0, .. }), "{error}");
    let error = of(rows, view(&x, DType::I32, &[2, 3, 64])).validate().unwrap_err();
    assert!(matches!(error, CallError::DType { index: 1, .. }), "{error}");
}

#[test]
fn a_grouped_product_counts_its_tiles() {
    let x = poisoned().take(4096).unwrap();
    let (rows, weights) = (f32s(&x, &[81, 1]), f32s(&x, &[5, 2, 1]));
    let offsets = [0, 0, 1, 8, 41, 81];
    let op = GroupedMatMul { x: rows, weights, offsets: &offsets, row_ids: None };
    assert_eq!(Call::GroupedMatMul(op).out_shape(), Ok(Shape::of([81, 2])));
    assert_eq!(op.sizes(), [81, 5, 2, 1]);
    assert_eq!((0..5).map(|e| op.group(e).len()).collect::<Vec<_>>(), [0, 1, 7, 33, 40]);
    // One, one, two and two of 32 rows.
    assert_eq!((op.tiles(32), op.tiles(1), op.tiles(100)), (6, 81, 4));
    assert_eq!(op.source(80), 80);
}

#[test]
fn combining_checks_its_ids() {
    let x = poisoned().take(4096).unwrap();
    let shape = |rows: &[usize], weights: &[usize], ids: &[i32]| {
        let (x, weights) = (f32s(&x, rows), f32s(&x, weights));
        Call::Combine(Combine { x, weights, ids }).out_shape().ok()
    };
    assert_eq!(shape(&[4, 3], &[2, 2], &[0, 3, 3, 1]), Some(Shape::of([2, 3])));
    assert_eq!(shape(&[4, 3], &[2, 0], &[]), Some(Shape::of([2, 3])));
    assert_eq!(shape(&[0, 3], &[0, 2], &[]), Some(Shape::of([0, 3])));
    for ids in [&[0, 3, 3][..], &[0, 3, 3, 4], &[0, 3, 3, -1], &[0, 3, 3, 1, 0]] {
        assert_eq!(shape(&[4, 3], &[2, 2], ids), None, "{ids:?}");
    }
    assert_eq!(shape(&[4], &[2, 2], &[0, 0, 0, 0]), None);
    assert_eq!(shape(&[4, 3], &[4], &[0, 0, 0, 0]), None);
}

#[test]
fn rope_rotates_part_of_a_head() {
    let x = poisoned().take(4096).unwrap();
    let rope = |cos: &[usize], sin: &[usize]| {
        let (cos, sin) = (f32s(&x, cos), f32s(&x, sin));
        let x = f32s(&x, &[2, 3, 8]);
        Call::Rope(Rope { x, cos, sin, pairing: Pairing::Halves }).out_shape().ok()
    };
    assert_eq!(rope(&[2, 4], &[2, 4]), Some(Shape::of([2, 3, 8])));
    assert_eq!(rope(&[2, 3], &[2, 3]), Some(Shape::of([2, 3, 8])));
    assert_eq!(rope(&[2, 5], &[2, 5]), None);
    assert_eq!(rope(&[2, 4], &[2, 3]), None);
    assert_eq!(rope(&[3, 4], &[3, 4]), None);
}

fn attend<'a>(x: &'a Storage, q: &[usize], k: &[usize], v: &[usize]) -> Attention<'a> {
    Attention {
        q: f32s(x, q),
        k: view(x, DType::F16, k),
        v: view(x, DType::F16, v),
        scale: 1.0,
        causal: true,
        q_offset: 0,
        window: None,
        soft_cap: None,
    }
}

#[test]
fn attention_groups_heads() {
    let x = poisoned().take(4096).unwrap();
    let shape = |q: &[usize], k: &[usize], v: &[usize]| {
        Call::Attention(attend(&x, q, k, v)).out_shape().ok()
    };
    assert_eq!(shape(&[2, 4, 8], &[5, 2, 8], &[5, 2, 6]), Some(Shape::of([2, 4, 6])));
    assert_eq!(shape(&[2, 4, 8], &[0, 2, 8], &[0, 2, 6]), Some(Shape::of([2, 4, 6])));
    assert_eq!(shape(&[2, 4, 8], &[5, 3, 8], &[5, 3, 6]), None);
    assert_eq!(shape(&[2, 4, 8], &[5, 0, 8], &[5, 0, 6]), None);
    assert_eq!(shape(&[2, 4, 8], &[5, 2, 7], &[5, 2, 6]), None);
    assert_eq!(shape(&[2, 4, 8], &[5, 2, 8], &[4, 2, 6]), None);
    let blocks = view(&x, DType::Q8_0, &[3, 2, 32]);
    let mixed = Attention { k: blocks, ..attend(&x, &[2, 4, 32], &[3, 2, 32], &[3, 2, 6]) };
    assert_eq!(Call::Attention(mixed).out_shape().ok(), Some(Shape::of([2, 4, 6])));
    let other = Attention { k: view(&x, DType::Q4_0, &[3, 2, 32]), ..mixed };
    let error = Call::Attention(other).validate().unwrap_err();
    assert!(matches!(error, CallError::DType { index: 1, .. }), "{error}");
    let bad = attend(&x, &[1, 1, 1], &[1, 1, 1], &[1, 1, 1]);
    for bad in [
        Attention { window: Some(0), ..bad },
        Attention { soft_cap: Some(0.0), ..bad },
        Attention { soft_cap: Some(f32::NAN), ..bad },
        Attention { scale: f32::INFINITY, ..bad },
    ] {
        let error = Call::Attention(bad).validate().unwrap_err();
        assert!(matches!(error, CallError::Argument { op: "attention", .. }), "{error}");
    }
}

#[test]
fn a_query_sees_the_keys_of_its_window() {
    let x = poisoned().take(64).unwrap();
    let causal = attend(&x, &[1, 1, 1], &[1, 1, 1], &[1, 1, 1]);
    let seen = |q_offset, window, causal, i| {
        Attention { q_offset, window, causal, ..causal_of(&x) }.visible(i, 10)
    };
    assert_eq!(causal.visible(0, 10), 0..1);
    assert_eq!(seen(4, None, true, 2), 0..7);
    assert_eq!(seen(4, Some(3), true, 2), 4..7);
    assert_eq!(seen(4, Some(3), false, 2), 4..10);
    assert_eq!(seen(20, Some(3), true, 0), 10..10);
    assert_eq!(seen(usize::MAX, Some(1), true, usize::MAX), 10..10);
    assert_eq!(seen(usize::MAX, None, true, 5), 0..10);
}

fn causal_of(x: &Storage) -> Attention<'_> {
    attend(x, &[1, 1, 1], &[1, 1, 1], &[1, 1, 1])
}

#[test]
fn elementwise_ops_want_equal_shapes() {
    let x = poisoned().take(4096).unwrap();
    let glu = |up: &[usize]| {
        let (gate, up) = (f32s(&x, &[2, 3]), f32s(&x, up));
        Call::Glu(Glu { gate, up, activation: Activation::Silu }).validate()
    };
    assert_eq!(glu(&[2, 3]), Ok(()));
    assert!(glu(&[3, 2]).is_err() && glu(&[6]).is_err());
    let column = Operand::new(&x, DType::F32, 0, &[2, 3], &[1, 0]).unwrap();
    let add = Call::Binary(Binary { op: BinaryOp::Add, a: f32s(&x, &[2, 3]), b: column });
    assert_eq!(add.out_shape(), Ok(Shape::of([2, 3])));
    let cap = Call::Unary(Unary { op: UnaryOp::SoftCap(-1.0), x: column });
    assert!(cap.validate().is_err());
}

/// `submit` is the gate: what is not well-formed reaches no provider.
#[test]
fn an_invalid_call_reaches_no_provider() {
    let (pool, provider) = (poisoned(), ManualProvider::default());
    let x = storage(&pool, &[1.0; 6]);
    let bad = matmul(matrix(&x, 2, 3), matrix(&x, 3, 2));
    let (why, out) = submit(&provider, &bad, pool.take(64).unwrap()).unwrap_err();
    assert_eq!(why, Decline::InvalidCall);
    // An output that is too small.
    let good = matmul(matrix(&x, 2, 3), matrix(&x, 2, 3));
    let (why, _) = submit(&provider, &good, pool.take(15).unwrap()).unwrap_err();
    assert_eq!(why, Decline::InvalidCall);
    // A larger one is fine.
    assert!(submit(&provider, &good, out).is_ok());
    provider.finish(0);
}

#[test]
fn the_trace_counts_and_keeps_the_last_events() {
    let (trace, x) = (Trace::with_log(2), storage(&poisoned(), &[1.0; 6]));
    let call = matmul(matrix(&x, 2, 3), matrix(&x, 2, 3));
    let outcomes = [
        Outcome::Cpu { reason: CpuReason::NotResident },
        Outcome::Declined { provider: "manual", reason: Decline::Busy },
        Outcome::Offloaded { provider: "manual" },
        Outcome::Offloaded { provider: "manual" },
    ];
    for outcome in outcomes {
        trace.record(Decision::new(&call, outcome));
    }
    let counters = trace.counters();
    assert_eq!(counters.decisions.len(), 3);
    assert_eq!(counters.decisions[&("matmul", outcomes[2])], 2);
    assert_eq!((counters.offloaded(), counters.dropped_events), (2, 2));
    let last = Event::Decision(Decision::new(&call, outcomes[3]));
    assert_eq!(trace.take_log(), [last.clone(), last]);
    assert!(trace.take_log().is_empty());
}
