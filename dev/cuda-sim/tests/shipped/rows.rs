//! Rows of tables, largest weights, packing.

use fucina_dtype::DType;
use fucina_testkit::{Rng, assert_bits_equal};

use crate::gpu::{Gpu, Kernels, Params, Shape, read_bytes, read_f32};
use crate::weights::{GEMM_FORMATS, Weights, lengths};

fn look_up(gpu: &Gpu, weights: &Weights, rows: usize, ids: &[i32]) -> Vec<f32> {
    let (table, device_ids) = (gpu.upload(&weights.bytes), gpu.upload_i32(ids));
    let out = gpu.floats(ids.len() * weights.k);
    let params = Params::new().buffer(&table).buffer(&device_ids).buffer(&out);
    let params = params.long(weights.row_bytes()).ints(&[rows, weights.k]);
    let shape: Shape = ([weights.k.div_ceil(4096), ids.len(), 1], 128, 0);
    let name = format!("rows_{}", weights.name());
    gpu.launch(&Kernels::load("rows.sm70"), &name, shape, &params);
    read_f32(&out, ids.len() * weights.k)
}

#[test]
fn rows_have_the_bits_of_the_reference_decoder() {
    let mut rng = Rng::new(1);
    for &dtype in GEMM_FORMATS.iter().chain(&[DType::F32]) {
        for &k in lengths(dtype).iter().chain(&[4352]) {
            let weights = Weights::random(dtype, 5, k, &mut rng);
            let ids = [4, 0, 2, 4];
            let want: Vec<f32> =
                ids.iter().flat_map(|&id| weights.row(id as usize).to_vec()).collect();
            let got = look_up(&Gpu::new(2), &weights, 5, &ids);
            assert_bits_equal(&got, &want, &format!("{dtype} of {k}"));
        }
    }
}

/// Scales of every bit pattern: subnormals, infinities, NaN.
#[test]
fn every_scale_decodes_to_the_bits_of_the_reference() {
    let mut rng = Rng::new(2);
    for (dtype, unit, at) in [
        (DType::Q4_0, 18, 0),
        (DType::Q5_0, 22, 0),
        (DType::Q8_0, 34, 0),
        (DType::Q4_K, 144, 0),
        (DType::Q5_K, 176, 2),
        (DType::Q6_K, 210, 208),
        (DType::TQ2_0, 66, 64),
    ] {
        // Every 13th pattern meets every exponent and, over the formats, most mantissas.
        let scales: Vec<u16> = (0..=u16::MAX).step_by(13).collect();
        let (elems, _) = dtype.unit();
        let k = scales.len() * elems;
        let mut bytes = Weights::random(dtype, 1, k, &mut rng).bytes;
        for (block, scale) in bytes.chunks_exact_mut(unit).zip(&scales) {
            block[at..at + 2].copy_from_slice(&scale.to_le_bytes());
        }
        let weights = Weights::stored(dtype, bytes, 1, k);
        assert_bits_equal(&look_up(&Gpu::new(0), &weights, 1, &[0]), &weights.values, dtype.name());
    }
}

#[test]
fn a_number_outside_the_table_is_a_fault() {
    let mut rng = Rng::new(3);
    let weights = Weights::random(DType::Q8_0, 5, 64, &mut rng);
    for id in [-1, 5, i32::MAX, i32::MIN] {
        let gpu = Gpu::new(0);
        let (table, ids) = (gpu.upload(&weights.bytes), gpu.upload_i32(&[id]));
        let out = gpu.floats(64);
        let params = Params::new().buffer(&table).buffer(&ids).buffer(&out);
        let params = params.long(weights.row_bytes()).ints(&[5, 64]);
        let kernels = Kernels::load("rows.sm70");
        let result = gpu.try_launch(&kernels, "rows_q8_0", ([1, 1, 1], 128, 0), &params);
        assert!(result.is_err(), "row {id} of 5");
    }
}

#[test]
fn the_largest_weight_is_found_and_what_is_not_finite_is_passed_over() {
    let mut rng = Rng::new(4);
    for &dtype in GEMM_FORMATS.iter().chain(&[DType::F32]) {
        let (rows, k) = (37, lengths(dtype)[1]);
        let mut weights = Weights::random(dtype, rows, k, &mut rng);
        if dtype == DType::F16 {
            weights.bytes[..4].copy_from_slice(&[0x00, 0x7c, 0xff, 0xff]);
            weights = Weights::stored(dtype, weights.bytes, rows, k);
        }
        let gpu = Gpu::new(1);
        let (device, word) = (gpu.upload(&weights.bytes), gpu.upload(&[0; 4]));
        let params = Params::new().buffer(&device).buffer(&word);
        let params = params.longs(&[weights.row_bytes(), rows]).int(k);
        let kernels = Kernels::load("rows.sm70");
        let name = format!("weight_max_{}", weights.name());
        gpu.launch(&kernels, &name, ([2, 1, 1], 256, 0), &params);
        let got = read_f32(&word, 1)[0];
        let finite = weights.values.iter().filter(|v| v.is_finite());
        let want = finite.fold(0.0f32, |max, v| v.abs().max(max));
        assert_eq!(got.to_bits(), want.to_bits(), "{dtype}: {got}, not {want}");
    }
}

#[test]
fn packing_rounds_once_and_pads_with_zeros() {
    let mut rng = Rng::new(5);
    for k in [1, 2, 63, 64, 65, 700] {
        let (rows, stride) = (6, k + 3);
        let mut x = rng.normals(rows * stride, 1.0);
        x[stride] = 1e30;
        x[2 * stride..3 * stride].iter_mut().for_each(|x| *x *= 1e-30);
        x[3 * stride..4 * stride].fill(0.0);
        x[4 * stride] = f32::NEG_INFINITY;
        let ids = [5, 1, 2, 3, 4, 0, 1];
        let k_pad = usize::next_multiple_of(k, 64);
        let gpu = Gpu::new(1);
        let (device, device_ids) = (gpu.upload_f32(&x), gpu.upload_i32(&ids));
        let (out, scale) = (gpu.halves(ids.len() * k_pad), gpu.floats(ids.len()));
        let params = Params::new().buffer(&device).buffer(&device_ids).buffer(&out).buffer(&scale);
        let params = params.long(stride).ints(&[k, k_pad]);
        let kernels = Kernels::load("pack.sm70");
        gpu.launch(&kernels, "pack_f16_f32", ([ids.len(), 1, 1], 256, 0), &params);
        let bytes = read_bytes(&out, ids.len() * k_pad * 2);
        let halves: Vec<half::f16> = bytes
            .chunks_exact(2)
            .map(|b| half::f16::from_le_bytes(b.try_into().unwrap()))
            .collect();
        let scales = read_f32(&scale, ids.len());
        for (row, &id) in ids.iter().enumerate() {
            let want = &x[id as usize * stride..][..k];
            let (values, pads) = halves[row * k_pad..][..k_pad].split_at(k);
            assert!(pads.iter().all(|pad| pad.to_bits() == 0), "pads of row {row}");
            for (value, &want) in values.iter().zip(want) {
                // Dividing by a power of two is exact, so this is the one correct rounding.
                let rounded = half::f16::from_f64(f64::from(want) / f64::from(scales[row]));
                assert_eq!(value.to_bits(), rounded.to_bits(), "{want} at scale {}", scales[row]);
                assert!(value.is_finite() == want.is_finite(), "{want} left the range of f16");
            }
        }
    }
}
