//! Activations in the order that a plan wants.

use super::*;
use crate::quant::{Plan, TILE_ROWS, matmul_planned, planned_scratch_len};

/// Written into poisoned memory in pieces of `steps` steps.
fn write(plan: Plan, x: &[f32], k: usize, steps: usize) -> Vec<u32> {
    let (len, m, together) = (activation_len(k), x.len() / k, plan.rows_together());
    let mut words = vec![u32::MAX; plan.room(m) * len];
    for (x, out) in x.chunks(together * k).zip(words.chunks_mut(together * len)) {
        if together == 1 {
            plan.write((x, k), 0, out);
            continue;
        }
        let step = 16 * plan.room(x.len() / k);
        for (piece, out) in out.chunks_mut(steps * step).enumerate() {
            plan.write((x, k), piece * steps, out);
        }
    }
    words
}

fn planned(plan: Plan, w: &Weight, words: &[u32], m: usize) -> Vec<f32> {
    let (k, panels) = (w.layout.k(), w.layout.panels());
    let mut out = vec![f32::NAN; m * w.layout.n()];
    let mut scratch = vec![f32::NAN; planned_scratch_len(plan, k, (panels, m))];
    let mut matrix = MatrixMut::new(&mut out, m, w.layout.n());
    matmul_planned(plan, (&w.layout, &w.packed), (words, m), &mut matrix, &mut scratch);
    out
}

/// Every order gives the bits that record after record gives, whatever pieces it is written in.
#[test]
fn every_order_gives_the_same_bits() {
    for dtype in block_formats() {
        let mut rng = Rng::new(11);
        // Whole chunks of 256, and a part of one.
        let k = if dtype.unit().0 == 32 { 608 } else { 768 };
        let w = Weight::random(dtype, 33, k, &mut rng);
        for m in (1..=32).chain([36, 41, 48, 63, 64, 65, 144, 145]) {
            let x = rng.normals(m * k, 1.0);
            let records = quantize(Isa::Scalar, &x, k);
            for isa in Isa::available() {
                let want = matmul(isa, &w, &records, m);
                let plan = Plan::new(isa, &w.layout, m);
                for (plan, steps) in [(plan, 1), (plan, 4), (plan, 1000), (plan.by_rows(), 1000)] {
                    let got = planned(plan, &w, &write(plan, &x, k, steps), m);
                    assert!(got == want, "{} {dtype} {m} rows, {steps} steps", isa.name());
                }
            }
        }
    }
}

/// Activations that exceed a second-level cache are multiplied in parts of k.
#[test]
fn long_rows_give_the_same_bits() {
    for dtype in [DType::Q4_K, DType::Q6_K, DType::Q5_0] {
        let mut rng = Rng::new(13);
        let (m, k) = (145, 9 * 1024 + 256);
        let w = Weight::random(dtype, 17, k, &mut rng);
        let x = rng.normals(m * k, 1.0);
        let records = quantize(Isa::Scalar, &x, k);
        for isa in Isa::available().into_iter().filter(|&isa| isa != Isa::Scalar) {
            let plan = Plan::new(isa, &w.layout, m);
            let got = planned(plan, &w, &write(plan, &x, k, 1000), m);
            assert!(got == matmul(isa, &w, &records, m), "{} {dtype}", isa.name());
        }
    }
}

/// Rows from a tile on are a product of their own.
#[test]
fn a_part_begins_at_any_tile() {
    let mut rng = Rng::new(12);
    let k = 512;
    let w = Weight::random(DType::Q4_K, 16, k, &mut rng);
    let x = rng.normals(41 * k, 1.0);
    for isa in Isa::available() {
        let plan = Plan::new(isa, &w.layout, 41);
        let words = write(plan, &x, k, 1000);
        let all = planned(plan, &w, &words, 41);
        for first in (0..41).step_by(TILE_ROWS) {
            for rows in [TILE_ROWS, 2 * TILE_ROWS, 41 - first] {
                let rows = rows.min(41 - first);
                let some = planned(plan, &w, &words[first * activation_len(k)..], rows);
                assert!(some == all[first * 16..][..rows * 16], "{} {first}+{rows}", isa.name());
            }
        }
    }
}

/// Blocks that a row does not fill, and rows that a tile does not.
#[test]
fn what_nothing_is_left_for_is_zero() {
    for isa in Isa::available() {
        let layout = PackLayout::new(DType::Q8_0, 16, 64).unwrap();
        let plan = Plan::new(isa, &layout, 3);
        if plan.rows_together() == 1 {
            continue;
        }
        // Half a block is left over, and a row is an odd number of blocks.
        let words = write(plan, &[1.0; 3 * 48], 48, 1);
        for (at, block) in words.chunks_exact(16).enumerate() {
            let (step, row) = (at / 4, at % 4);
            let elems = if row == 3 { 0 } else { 48usize.saturating_sub(32 * step).min(32) };
            let (full, zero) = block[..8].split_at(elems / 4);
            assert!(full.iter().all(|&word| word == 0x7f7f_7f7f), "{} {at}", isa.name());
            assert!(zero.iter().all(|&word| word == 0), "{} {at}", isa.name());
            assert_eq!(block[8] == 0, elems == 0, "{} {at}", isa.name());
        }
    }
}

#[test]
#[should_panic(expected = "steps of a tile")]
fn a_part_of_a_step_is_refused() {
    let layout = PackLayout::new(DType::Q8_0, 16, 64).unwrap();
    let plan = Plan::new(Isa::best(), &layout, 3);
    if plan.rows_together() == 1 {
        panic!("steps of a tile");
    }
    plan.write((&[1.0; 3 * 64], 64), 0, &mut [0; 3 * 16]);
}
