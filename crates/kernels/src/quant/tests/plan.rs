//! The plan of kernels, and rows in bf16.

use super::*;
use crate::quant::{Kernel, Plan, row_ranges};

#[test]
fn ranges_cover_every_row_count_once() {
    for isa in all_isas() {
        for dtype in block_formats() {
            let ranges = row_ranges(isa, dtype);
            let layout = PackLayout::new(dtype, 16, dtype.unit().0).unwrap();
            let mut next = 1;
            for (i, &(first, last, plan)) in ranges.iter().enumerate() {
                assert_eq!(first, next, "{} {dtype}", isa.name());
                assert_eq!(last.is_none(), i + 1 == ranges.len());
                next = last.unwrap_or(usize::MAX - 1) + 1;
                for rows in [first, last.unwrap_or(100_000)] {
                    assert_eq!(Plan::new(isa, &layout, rows), plan, "{dtype} {rows}");
                }
            }
            assert_eq!(ranges.len(), if isa.name() == "avx512-amx" { 3 } else { 1 });
        }
        assert!(row_ranges(isa, DType::F16).is_empty());
    }
}

/// A plan for some rows of a product reads the form that the plan for the product writes.
#[test]
fn a_plan_for_fewer_rows_keeps_the_form() {
    for isa in all_isas() {
        let layout = PackLayout::new(DType::Q4_K, 16, 256).unwrap();
        for rows in [1, 9, 64, 65, 1000] {
            let plan = Plan::new(isa, &layout, rows);
            for part in [1, 8, 9, 64, 65, 1000] {
                let part = plan.with_rows(part);
                let is_bf16 = |plan: Plan| plan.kernel() == Kernel::Bf16Tiles;
                assert_eq!(is_bf16(part), is_bf16(plan), "{} {rows}", isa.name());
            }
        }
    }
}

#[test]
fn a_kernel_that_the_cpu_lacks_is_not_planned() {
    let layout = PackLayout::new(DType::Q4_K, 16, 256).unwrap();
    let plan = Plan::new(Isa::Scalar, &layout, 1000);
    assert_eq!(plan.kernel(), Kernel::Vector);
    assert_eq!(plan.with_kernel(Kernel::Bf16Tiles), None);
    assert_eq!(plan.with_kernel(Kernel::Int8Tiles), None);
    assert_eq!(plan.with_kernel(Kernel::Vector), Some(plan));
}

fn all_isas() -> Vec<Isa> {
    let isas = Isa::available().into_iter();
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    let isas = isas.chain(crate::isa::amx::for_tests());
    isas.collect()
}

/// Every upper half of an f32 with lower halves around a tie: all exponents, signs and roundings.
#[test]
fn rows_are_rounded_to_nearest_even() {
    let (mut x, mut want) = (Vec::new(), Vec::new());
    for high in (0..=u16::MAX).step_by(7) {
        for low in [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
            let value = f32::from_bits(u32::from(high) << 16 | low);
            x.push(value);
            // Away from zero if the rest is more than half, or half of an odd one.
            let up = low > 0x8000 || low == 0x8000 && high % 2 == 1;
            want.push(match value {
                _ if value.is_nan() => None,
                _ if value.is_subnormal() => Some(high & 0x8000),
                _ => Some(high.wrapping_add(u16::from(up && value.is_finite()))),
            });
        }
    }
    for isa in all_isas() {
        for len in [x.len(), 31, 32, 33, 1, 0] {
            let mut out = vec![u32::MAX; activation_len(len)];
            crate::quant::bf16::round_row(isa, &x[..len], &mut out);
            let halves: Vec<u16> = out
                .iter()
                .flat_map(|word| word.to_le_bytes())
                .collect::<Vec<u8>>()
                .as_chunks()
                .0
                .iter()
                .map(|&half| u16::from_le_bytes(half))
                .collect();
            for (at, (&got, want)) in halves.iter().zip(&want[..len]).enumerate() {
                match want {
                    Some(want) => assert_eq!(got, *want, "{} {:e}", isa.name(), x[at]),
                    None => assert!(got & 0x7fff > 0x7f80, "{}: {got:#x}", isa.name()),
                }
            }
            assert!(halves[len..].iter().all(|&half| half == 0), "padding");
        }
    }
}
