//! Views, accessors and conversions, against plain index arithmetic.

#![allow(
    clippy::unwrap_used,
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    reason = "a test: small numbers, and a panic is a failure"
)]

use fucina_runtime::{
    CacheType, DType, DynTensor, Error, KvCache, KvShape, RopeConfig, RopeTable, Runtime, Scaling,
};
use half::f16;

fn rt() -> Runtime {
    Runtime::builder().threads(2).build().unwrap()
}

fn iota(rt: &Runtime, shape: &[usize]) -> DynTensor {
    let len: usize = shape.iter().product();
    rt.tensor(shape, &(0..len).map(|i| i as f32).collect::<Vec<_>>()).unwrap()
}

#[test]
fn views_share_storage_and_read_the_right_elements() {
    let rt = rt();
    let x = iota(&rt, &[2, 3, 4]);
    let y = x.permute(&[2, 0, 1]).unwrap();
    assert!(std::ptr::eq(&**x.storage(), &**y.storage()));
    assert_eq!(y.shape(), [4, 2, 3]);
    let want: Vec<f32> = (0..4)
        .flat_map(|c| (0..2).flat_map(move |a| (0..3).map(move |b| (a * 12 + b * 4 + c) as f32)))
        .collect();
    assert_eq!(y.to_vec().unwrap(), want);
    let z = y.narrow(0, 1, 2).unwrap().narrow(2, 2, 1).unwrap();
    assert_eq!(z.to_vec().unwrap(), [9.0, 21.0, 10.0, 22.0]);
    let b = iota(&rt, &[3, 1]).broadcast(&[2, 3, 2]).unwrap();
    let row = [0.0, 0.0, 1.0, 1.0, 2.0, 2.0];
    assert_eq!(b.to_vec().unwrap(), [row, row].concat());
    assert_eq!(x.reshape(&[4, 6]).unwrap().to_vec().unwrap(), x.to_vec().unwrap());
    assert_eq!(y.reshape(&[24]).unwrap().to_vec().unwrap(), want);
}

#[test]
fn a_tensor_is_written_only_while_nobody_else_sees_it() {
    let rt = rt();
    let mut x = iota(&rt, &[4]);
    let view = x.narrow(0, 0, 2).unwrap();
    assert_eq!(x.data_mut::<f32>().unwrap_err(), Error::Shared { op: "data_mut" });
    drop(view);
    x.data_mut::<f32>().unwrap()[0] = 7.0;
    assert_eq!(x.to_vec().unwrap(), [7.0, 1.0, 2.0, 3.0]);
    let bytes = bytes::Bytes::from(vec![0; 8]);
    let mut mapped = rt.tensor_from_bytes(DType::U8, &[8], bytes).unwrap();
    assert_eq!(mapped.data_mut::<u8>().unwrap_err(), Error::ReadOnly { op: "data_mut" });
    mapped.copy().unwrap().data_mut::<u8>().unwrap()[0] = 1;
}

#[test]
fn accessors_say_what_is_wrong() {
    let rt = rt();
    let x = iota(&rt, &[2, 3]);
    assert!(matches!(x.data::<i32>(), Err(Error::DType { found: DType::F32, .. })));
    let t = x.permute(&[1, 0]).unwrap();
    assert!(matches!(t.data::<f32>(), Err(Error::NotContiguous { .. })));
    assert!(matches!(x.item(), Err(Error::Shape { op: "item", .. })));
    assert!(matches!(x.narrow(1, 2, 2), Err(Error::OutOfRange { index: 4, limit: 3, .. })));
    assert!(matches!(x.narrow(1, usize::MAX, 2), Err(Error::OutOfRange { .. })));
    assert!(matches!(x.narrow(2, 0, 0), Err(Error::OutOfRange { .. })));
    assert!(x.permute(&[0, 0]).is_err());
    let error = x.reshape(&[4, 2]).unwrap_err().to_string();
    assert!(error.contains("reshape") && error.contains("[2, 3]") && error.contains("[4, 2]"));
    assert!(x.reshape(&[1, 1, 2, 3, 1]).is_err());
    assert!(x.broadcast(&[2, 6]).is_err());
    assert!(x.broadcast(&[usize::MAX, 2, 3]).is_err());
    let error = rt.tensor(&[3], &[1.0f32; 4]).unwrap_err();
    assert!(matches!(error, Error::Size { expected: Some(12), found: 16, .. }));
    assert!(rt.zeros(DType::F32, &[usize::MAX, 2]).is_err());
    assert!(rt.zeros(DType::Q4_K, &[1, 300]).is_err());
    assert!(rt.zeros(DType::F32, &[1; 5]).is_err());
    // More than any machine has: an error, not an abort.
    assert!(rt.zeros(DType::F32, &[usize::MAX / 8]).is_err());
}

#[test]
fn conversions_are_exact_or_errors() {
    let rt = rt();
    let halves: Vec<f16> = [0.5, -0.0, 65504.0, 6e-8].map(f16::from_f32).to_vec();
    let x = rt.tensor(&[2, 2], &halves).unwrap();
    let want: Vec<f32> = halves.iter().map(|x| x.to_f32()).collect();
    assert_eq!(x.to_vec().unwrap(), want);
    let t = x.permute(&[1, 0]).unwrap().to_vec().unwrap();
    assert_eq!(t, [want[0], want[2], want[1], want[3]]);
    let ints = rt.tensor(&[2], &[1 << 24, -3]).unwrap();
    assert_eq!(ints.to_vec().unwrap(), [16_777_216.0, -3.0]);
    let lost = rt.tensor(&[1], &[(1 << 24) + 1]).unwrap();
    assert!(matches!(lost.to_vec(), Err(Error::OutOfRange { .. })));
}

#[test]
fn empty_tensors_go_through_every_view() {
    let rt = rt();
    let x = rt.zeros(DType::F32, &[0, 3]).unwrap();
    assert_eq!(x.to_vec().unwrap(), []);
    assert_eq!(x.permute(&[1, 0]).unwrap().shape(), [3, 0]);
    assert_eq!(x.reshape(&[3, 0]).unwrap().to_vec().unwrap(), []);
    assert_eq!(x.narrow(1, 3, 0).unwrap().copy().unwrap().len(), 0);
    assert_eq!(x.broadcast(&[2, 0, 3]).unwrap().to_vec().unwrap(), []);
    assert_eq!(x.data::<f32>().unwrap(), []);
}

#[test]
fn mapped_bytes_of_any_alignment_can_be_used() {
    let rt = rt();
    let mut raw = vec![0u8];
    raw.extend([1.0f32, 2.0, 3.0].iter().flat_map(|x| x.to_le_bytes()));
    let bytes = bytes::Bytes::from(raw);
    for at in 0..2 {
        let padded = bytes::Bytes::from([&vec![0u8; at][..], &bytes[1..]].concat()).slice(at..);
        let x = rt.tensor_from_bytes(DType::F32, &[3], padded).unwrap();
        assert_eq!(x.scale(2.0).unwrap().to_vec().unwrap(), [2.0, 4.0, 6.0]);
        assert_eq!(x.matmul_t(&x).unwrap().item().unwrap(), 14.0);
    }
}

/// Found by reading: each of these left its storage, panicked or looped.
#[test]
fn views_without_elements_stay_inside_their_storage() {
    let rt = rt();
    let empty = rt.zeros(DType::F32, &[0, 5]).unwrap();
    let part = empty.narrow(1, 3, 2).unwrap();
    assert_eq!(part.data::<f32>().unwrap(), []);
    assert_eq!(part.copy().unwrap().shape(), [0, 2]);
    assert_eq!(part.scale(2.0).unwrap().shape(), [0, 2]);
    assert_eq!(part.softmax(1.0).unwrap().shape(), [0, 2]);
    assert_eq!(part.top_k(1).unwrap().0.shape(), [0, 1]);
    assert_eq!(part.matmul_t(&part).unwrap().shape(), [0, 0]);
    let none = rt.zeros(DType::F32, &[0]).unwrap();
    assert!(none.reshape(&[usize::MAX, 2, 0]).is_err());
    let wide = rt.zeros(DType::F32, &[0, 1 << 59]).unwrap();
    assert_eq!(wide.top_k(1 << 59).unwrap().0.shape(), [0, 1 << 59]);
    let tall = rt.zeros(DType::F32, &[1 << 62, 0]).unwrap();
    assert_eq!(DynTensor::concat(&[&tall, &tall], 1).unwrap().shape(), [1 << 62, 0]);
    let blocks = rt.zeros(DType::Q4_K, &[5, 0]).unwrap();
    let product = rt.zeros(DType::F32, &[2, 0]).unwrap().matmul_t(&blocks).unwrap();
    assert_eq!(product.to_vec().unwrap(), [0.0; 10]);
    let config =
        RopeConfig { dims: 1 << 40, base: 1e4, freq_factors: None, scaling: Scaling::None };
    RopeTable::new(&rt, &config, &[]).unwrap();
    let cache = CacheType::F16;
    let shape = KvShape { layers: usize::MAX, capacity: 0, kv_heads: 1, k_dim: 1, v_dim: 1, cache };
    for capacity in [0, 1 << 62, usize::MAX] {
        let shape = KvShape { capacity, ..shape };
        assert!(matches!(KvCache::new(&rt, shape), Err(Error::CacheFull { .. })));
    }
    // Keys and values apart: 40 elements are no whole blocks.
    for (k_dim, v_dim) in [(40, 32), (32, 40)] {
        let cache = CacheType::Q8_0;
        let shape = KvShape { layers: 1, capacity: 4, kv_heads: 1, k_dim, v_dim, cache };
        let error = KvCache::new(&rt, shape).unwrap_err();
        assert_eq!(error, Error::CacheHead { cache, dim: 40 });
        assert!(error.to_string().contains("blocks of 32, this one has 40; use f16"), "{error}");
        assert_eq!(shape.bytes(), None);
    }
}
