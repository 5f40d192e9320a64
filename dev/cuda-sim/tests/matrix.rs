//! Matrix instructions: where elements lie, written down from the instruction set's tables, and
//! exact products of small integers.

#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "tests panic when something is wrong, and sizes are small"
)]

mod common;

use common::{Arg, Device, read_u32s};
use fucina_cuda_sim::exec::FaultKind;
use fucina_cuda_sim::ptx::Module;
use fucina_testkit::Rng;
use half::{bf16, f16};

/// Runs `op {d}, {a}, {b}, {c}` on registers by register and lane.
fn product(op: &str, a: &[u32], b: &[u32], c: &[u32], results: usize) -> Vec<u32> {
    let mut loads = String::new();
    let mut list = |name: &str, count: usize, first: usize| {
        for i in 0..count {
            loads += &format!("ld.global.u32 %{name}{i}, [%x0+{}];\n", 128 * (first + i));
        }
        let names: Vec<String> = (0..count).map(|i| format!("%{name}{i}")).collect();
        format!("{{{}}}", names.join(","))
    };
    let (na, nb, nc) = (a.len() / 32, b.len() / 32, c.len() / 32);
    let (ra, rb, rc) = (list("a", na, 0), list("b", nb, na), list("c", nc, na + nb));
    let names: Vec<String> = (0..results).map(|i| format!("%d{i}")).collect();
    let stores: Vec<String> =
        (0..results).map(|i| format!("st.global.u32 [%x1+{}], %d{i};", 128 * i)).collect();
    let text = format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n
        .visible .entry k(.param .u64 in, .param .u64 out) {{ .reg .b64 %x<4>;
        .reg .b32 %a<8>, %b<8>, %c<8>, %d<8>, %t; ld.param.u64 %x0, [in]; ld.param.u64 %x1, [out];
        mov.u32 %t, %tid.x; mul.wide.u32 %x2, %t, 4; add.s64 %x0, %x0, %x2; add.s64 %x1, %x1, %x2;
        {loads} {op} {{{}}}, {ra}, {rb}, {rc};\n {} ret; }}",
        names.join(","),
        stores.join("\n")
    );
    let module = Module::parse(&text).unwrap_or_else(|error| panic!("{op}: {error}"));
    let device = Device::new();
    let input = device.u32s(&[a, b, c].concat());
    let out = device.poisoned(results as u64 * 128);
    let args = [Arg::Buffer(&input), Arg::Buffer(&out)];
    device.launch(&module, "k", ([1; 3], [32, 1, 1], 0), &args).unwrap();
    read_u32s(&out)
}

/// An element type, packed into 32-bit registers.
#[derive(Clone, Copy)]
enum Kind {
    F16,
    BF16,
    TF32,
    S8,
    U8,
    F32,
    S32,
}

impl Kind {
    fn per_reg(self) -> usize {
        match self {
            Self::F16 | Self::BF16 => 2,
            Self::S8 | Self::U8 => 4,
            _ => 1,
        }
    }

    fn pack(self, values: &[f64]) -> u32 {
        let join = |bits: u32| {
            values.iter().rev().fold(0, |word, v| {
                let part = match self {
                    Self::F16 => u32::from(f16::from_f64(*v).to_bits()),
                    Self::BF16 => u32::from(bf16::from_f64(*v).to_bits()),
                    _ => (*v as i32 as u32) & 0xff,
                };
                word << bits | part
            })
        };
        match self {
            Self::F16 | Self::BF16 => join(16),
            Self::S8 | Self::U8 => join(8),
            Self::TF32 | Self::F32 => (values[0] as f32).to_bits(),
            Self::S32 => values[0] as i32 as u32,
        }
    }

    fn unpack(self, word: u32) -> Vec<f64> {
        match self {
            Self::F16 => [word, word >> 16].map(|h| f16::from_bits(h as u16).to_f64()).to_vec(),
            Self::S32 => vec![f64::from(word.cast_signed())],
            _ => vec![f64::from(f32::from_bits(word))],
        }
    }

    /// Small integers that the type holds.
    fn value(self, rng: &mut Rng) -> f64 {
        let value = f64::from(rng.next_i8());
        match self {
            Self::U8 => value + 128.0,
            Self::S8 => value,
            _ => (value / 16.0).trunc(),
        }
    }
}

/// Row and column of element i of lane `lane`.
type Layout = fn(usize, usize) -> (usize, usize);

struct Case {
    op: &'static str,
    dims: [usize; 3],
    kinds: [Kind; 4],
    layouts: [Layout; 2],
}

/// Accumulators of every shape with n = 8.
fn result(lane: usize, i: usize) -> (usize, usize) {
    (lane / 4 + if i < 2 { 0 } else { 8 }, lane % 4 * 2 + (i & 1))
}

fn cases() -> Vec<Case> {
    use Kind::{BF16, F16, F32, S8, S32, TF32, U8};
    let a_k8: Layout = |l, i| (l / 4 + if i < 2 { 0 } else { 8 }, l % 4 * 2 + (i & 1));
    let b_k8: Layout = |l, i| (l % 4 * 2 + i, l / 4);
    let a_k16: Layout = |l, i| {
        let row = if i < 2 || (4..6).contains(&i) { l / 4 } else { l / 4 + 8 };
        (row, l % 4 * 2 + (i & 1) + if i < 4 { 0 } else { 8 })
    };
    let b_k16: Layout = |l, i| (l % 4 * 2 + (i & 1) + if i < 2 { 0 } else { 8 }, l / 4);
    let a_tf4: Layout = |l, i| (l / 4 + if i == 0 { 0 } else { 8 }, l % 4);
    let b_tf4: Layout = |l, _| (l % 4, l / 4);
    let a_tf8: Layout = |l, i| {
        (if i == 0 || i == 2 { l / 4 } else { l / 4 + 8 }, if i < 2 { l % 4 } else { l % 4 + 4 })
    };
    let b_tf8: Layout = |l, i| (if i == 0 { l % 4 } else { l % 4 + 4 }, l / 4);
    let a_i8: Layout = |l, i| (l / 4, l % 4 * 4 + i);
    let a_i16: Layout = |l, i| (if i < 4 { l / 4 } else { l / 4 + 8 }, l % 4 * 4 + (i & 3));
    let b_i16: Layout = |l, i| (l % 4 * 4 + i, l / 4);
    let a_i32: Layout = |l, i| {
        let row = if i < 4 || (8..12).contains(&i) { l / 4 } else { l / 4 + 8 };
        (row, l % 4 * 4 + (i & 3) + if i < 8 { 0 } else { 16 })
    };
    let b_i32: Layout = |l, i| (l % 4 * 4 + (i & 3) + if i < 4 { 0 } else { 16 }, l / 4);
    let case = |op, dims, kinds, layouts| Case { op, dims, kinds, layouts };
    vec![
        case("m16n8k8.row.col.f32.f16.f16.f32", [16, 8, 8], [F16, F16, F32, F32], [a_k8, b_k8]),
        case("m16n8k8.row.col.f16.f16.f16.f16", [16, 8, 8], [F16, F16, F16, F16], [a_k8, b_k8]),
        case("m16n8k8.row.col.f32.bf16.bf16.f32", [16, 8, 8], [BF16, BF16, F32, F32], [a_k8, b_k8]),
        case("m16n8k16.row.col.f32.f16.f16.f32", [16, 8, 16], [F16, F16, F32, F32], [a_k16, b_k16]),
        case("m16n8k16.row.col.f16.f16.f16.f16", [16, 8, 16], [F16, F16, F16, F16], [a_k16, b_k16]),
        case(
            "m16n8k16.row.col.f32.bf16.bf16.f32",
            [16, 8, 16],
            [BF16, BF16, F32, F32],
            [a_k16, b_k16],
        ),
        case(
            "m16n8k4.row.col.f32.tf32.tf32.f32",
            [16, 8, 4],
            [TF32, TF32, F32, F32],
            [a_tf4, b_tf4],
        ),
        case(
            "m16n8k8.row.col.f32.tf32.tf32.f32",
            [16, 8, 8],
            [TF32, TF32, F32, F32],
            [a_tf8, b_tf8],
        ),
        case("m8n8k16.row.col.s32.s8.s8.s32", [8, 8, 16], [S8, S8, S32, S32], [a_i8, b_i16]),
        case("m16n8k16.row.col.s32.s8.u8.s32", [16, 8, 16], [S8, U8, S32, S32], [a_i16, b_i16]),
        case("m16n8k32.row.col.s32.s8.s8.s32", [16, 8, 32], [S8, S8, S32, S32], [a_i32, b_i32]),
        case(
            "m16n8k32.row.col.satfinite.s32.u8.s8.s32",
            [16, 8, 32],
            [U8, S8, S32, S32],
            [a_i32, b_i32],
        ),
    ]
}

/// The registers of all lanes, given a matrix.
fn spread(matrix: &[f64], cols: usize, kind: Kind, layout: Layout) -> Vec<u32> {
    let per = kind.per_reg();
    let regs = matrix.len() / 32 / per;
    let mut out = Vec::new();
    for reg in 0..regs {
        for lane in 0..32 {
            let values: Vec<f64> = (0..per)
                .map(|e| {
                    let (row, col) = layout(lane, reg * per + e);
                    matrix[row * cols + col]
                })
                .collect();
            out.push(kind.pack(&values));
        }
    }
    out
}

#[test]
fn products_of_integers_are_exact_in_every_shape() {
    let mut rng = Rng::new(1);
    for case in cases() {
        let [m, n, k] = case.dims;
        let [a_kind, b_kind, c_kind, d_kind] = case.kinds;
        let a: Vec<f64> = (0..m * k).map(|_| a_kind.value(&mut rng)).collect();
        let b: Vec<f64> = (0..k * n).map(|_| b_kind.value(&mut rng)).collect();
        let c: Vec<f64> = (0..m * n).map(|_| c_kind.value(&mut rng)).collect();
        let op = format!("mma.sync.aligned.{}", case.op);
        let (ra, rb) =
            (spread(&a, k, a_kind, case.layouts[0]), spread(&b, n, b_kind, case.layouts[1]));
        let rc = spread(&c, n, c_kind, result);
        let count = m * n / 32 / d_kind.per_reg();
        let out = product(&op, &ra, &rb, &rc, count);
        for (index, word) in out.iter().enumerate() {
            let (reg, lane) = (index / 32, index % 32);
            for (e, value) in d_kind.unpack(*word).into_iter().enumerate() {
                let (row, col) = result(lane, reg * d_kind.per_reg() + e);
                let exact: f64 = (0..k).map(|i| a[row * k + i] * b[i * n + col]).sum();
                assert_eq!(value, exact + c[row * n + col], "{op}: ({row}, {col})");
            }
        }
    }
}

#[test]
fn tf32_operands_lose_their_low_bits() {
    let one = [f32::from_bits(0x3f80_1fff).to_bits(); 64];
    let zero = [0; 128];
    let op = "mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32";
    let out = product(op, &one, &one[..32], &zero, 4);
    assert_eq!(out, [4.0_f32.to_bits(); 128]);
}

#[test]
fn integer_sums_saturate_or_wrap() {
    let (a, b, c) = ([0x7f7f_7f7f; 32], [0x7f7f_7f7f; 32], [i32::MAX as u32 - 5; 64]);
    let op = |name: &str| format!("mma.sync.aligned.m8n8k16.row.col.{name}s32.s8.s8.s32");
    assert_eq!(product(&op("satfinite."), &a, &b, &c, 2), [i32::MAX as u32; 64]);
    let sum = (i32::MAX - 5).wrapping_add(16 * 127 * 127).cast_unsigned();
    assert_eq!(product(&op(""), &a, &b, &c, 2), [sum; 64]);
}

/// A kernel that loads a 16-bit tile of 32 rows of 8 from global to shared memory, then `body`.
fn staged(body: &str) -> Vec<u32> {
    let text = format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n
        .visible .entry k(.param .u64 in, .param .u64 out) {{ .reg .b64 %x<4>; .reg .b32 %a<8>, %t<4>;
        .shared .align 16 .b8 s[512]; ld.param.u64 %x0, [in]; ld.param.u64 %x1, [out];
        mov.u32 %t0, %tid.x; mul.wide.u32 %x2, %t0, 16; add.s64 %x0, %x0, %x2; add.s64 %x1, %x1, %x2;
        ld.global.v4.u32 {{%a0,%a1,%a2,%a3}}, [%x0]; mov.u32 %t1, s; mad.lo.u32 %t1, %t0, 16, %t1;
        st.shared.v4.u32 [%t1], {{%a0,%a1,%a2,%a3}}; bar.warp.sync -1;
        {body}
        st.global.v4.u32 [%x1], {{%a0,%a1,%a2,%a3}}; ret; }}"
    );
    let module = Module::parse(&text).unwrap_or_else(|error| panic!("{body}: {error}"));
    let device = Device::new();
    // Element (row, col) is 8 * row + col.
    let words: Vec<u32> = (0..128).map(|i| (2 * i) | ((2 * i + 1) << 16)).collect();
    let (input, out) = (device.u32s(&words), device.poisoned(512));
    let args = [Arg::Buffer(&input), Arg::Buffer(&out)];
    device.launch(&module, "k", ([1; 3], [32, 1, 1], 0), &args).unwrap();
    read_u32s(&out)
}

#[test]
fn ldmatrix_distributes_rows_and_columns() {
    let element = |matrix: usize, row: usize, col: usize| (64 * matrix + 8 * row + col) as u32;
    let out = staged("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%a0,%a1,%a2,%a3}, [%t1];");
    let trans = staged("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%a0,%a1,%a2,%a3}, [%t1];");
    let two = staged(
        "ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%a2,%a3}, [%t1];
         ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%a1}, [%t1]; mov.u32 %a0, 0;",
    );
    for lane in 0..32 {
        let (row, col) = (lane / 4, lane % 4 * 2);
        for matrix in 0..4 {
            let straight = element(matrix, row, col) | element(matrix, row, col + 1) << 16;
            assert_eq!(out[4 * lane + matrix], straight);
            let turned = element(matrix, col, row) | element(matrix, col + 1, row) << 16;
            assert_eq!(trans[4 * lane + matrix], turned);
        }
        assert_eq!(two[4 * lane + 1], trans[4 * lane]);
        assert_eq!(two[4 * lane + 2..][..2], out[4 * lane..][..2]);
    }
}

#[test]
fn movmatrix_transposes_in_registers() {
    let out = staged(
        "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%a0}, [%t1];
         movmatrix.sync.aligned.m8n8.trans.b16 %a1, %a0;
         ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%a2}, [%t1]; mov.u32 %a3, 0;",
    );
    for lane in 0..32 {
        assert_eq!(out[4 * lane + 1], out[4 * lane + 2], "lane {lane}");
    }
}

/// `d = a b + c` by `wmma` on global memory, every layout.
#[test]
fn wmma_products_are_exact_in_every_shape_and_layout() {
    let mut rng = Rng::new(5);
    for (dims, regs) in [([16, 16, 16], [8, 8]), ([32, 8, 16], [8, 8]), ([8, 32, 16], [8, 8])] {
        for layouts in [["row", "row"], ["row", "col"], ["col", "row"], ["col", "col"]] {
            for result in ["row", "col"] {
                wmma(dims, regs, layouts, result, &mut rng);
            }
        }
    }
}

fn names(letter: char, count: usize) -> String {
    let list: Vec<String> = (0..count).map(|i| format!("%{letter}{i}")).collect();
    format!("{{{}}}", list.join(","))
}

fn wmma(dims: [usize; 3], regs: [usize; 2], layouts: [&str; 2], result: &str, rng: &mut Rng) {
    let [m, n, k] = dims;
    let shape = format!("m{m}n{n}k{k}");
    // Rows (or columns) lie 8 elements farther apart than they are long.
    let step =
        |rows: usize, cols: usize, layout: &str| 8 + if layout == "row" { cols } else { rows };
    let (sa, sb, sc) = (step(m, k, layouts[0]), step(k, n, layouts[1]), step(m, n, result));
    let (a, b, c, d) = (names('a', regs[0]), names('b', regs[1]), names('c', 8), names('d', 8));
    let text = format!(
        ".version 8.0\n.target sm_70\n.address_size 64\n
        .visible .entry k(.param .u64 a, .param .u64 b, .param .u64 c) {{ .reg .b64 %x<4>;
        .reg .b32 %a<8>, %b<8>; .reg .f32 %c<8>, %d<8>;
        ld.param.u64 %x0, [a]; ld.param.u64 %x1, [b]; ld.param.u64 %x2, [c];
        wmma.load.a.sync.aligned.{la}.{shape}.global.f16 {a}, [%x0], {sa};
        wmma.load.b.sync.aligned.{lb}.{shape}.f16 {b}, [%x1], {sb};
        wmma.load.c.sync.aligned.{result}.{shape}.global.f32 {c}, [%x2], {sc};
        wmma.mma.sync.aligned.{la}.{lb}.{shape}.f32.f32 {d}, {a}, {b}, {c};
        wmma.store.d.sync.aligned.{result}.{shape}.global.f32 [%x2], {d}, {sc}; ret; }}",
        la = layouts[0],
        lb = layouts[1],
    );
    let module = Module::parse(&text).unwrap_or_else(|error| panic!("{shape}: {error}"));
    let at = |row: usize, col: usize, step: usize, layout: &str| {
        if layout == "row" { row * step + col } else { col * step + row }
    };
    let device = Device::new();
    let mut numbers =
        |len: usize| -> Vec<f32> { (0..len).map(|_| f32::from(rng.next_i8() / 16)).collect() };
    let (va, vb, vc) = (numbers(sa * 32), numbers(sb * 32), numbers(sc * 32));
    let (da, db, dc) = (device.f16s(&va), device.f16s(&vb), device.f32s(&vc));
    let args = [Arg::Buffer(&da), Arg::Buffer(&db), Arg::Buffer(&dc)];
    device.launch(&module, "k", ([1; 3], [32, 1, 1], 0), &args).unwrap();
    let out = common::read_f32s(&dc);
    for row in 0..m {
        for col in 0..n {
            let exact: f32 = (0..k)
                .map(|i| va[at(row, i, sa, layouts[0])] * vb[at(i, col, sb, layouts[1])])
                .sum();
            let place = at(row, col, sc, result);
            assert_eq!(
                out[place],
                exact + vc[place],
                "{shape} {layouts:?} {result}: ({row}, {col})"
            );
        }
    }
}

#[test]
fn fragments_of_another_layout_are_not_mistaken() {
    // The load says row, the product says column: a device computes something else, and so do we.
    let text = ".version 8.0\n.target sm_70\n.address_size 64\n
        .visible .entry k(.param .u64 a, .param .u64 c) { .reg .b64 %x<4>;
        .reg .b32 %a<8>, %b<8>; .reg .f32 %c<8>, %d<8>; ld.param.u64 %x0, [a]; ld.param.u64 %x2, [c];
        wmma.load.a.sync.aligned.row.m16n16k16.global.f16 {%a0,%a1,%a2,%a3,%a4,%a5,%a6,%a7}, [%x0], 16;
        wmma.load.b.sync.aligned.row.m16n16k16.global.f16 {%b0,%b1,%b2,%b3,%b4,%b5,%b6,%b7}, [%x0], 16;
        wmma.load.c.sync.aligned.row.m16n16k16.global.f32 {%c0,%c1,%c2,%c3,%c4,%c5,%c6,%c7}, [%x2], 16;
        wmma.mma.sync.aligned.col.row.m16n16k16.f32.f32 {%d0,%d1,%d2,%d3,%d4,%d5,%d6,%d7},
          {%a0,%a1,%a2,%a3,%a4,%a5,%a6,%a7}, {%b0,%b1,%b2,%b3,%b4,%b5,%b6,%b7},
          {%c0,%c1,%c2,%c3,%c4,%c5,%c6,%c7};
        wmma.store.d.sync.aligned.row.m16n16k16.global.f32 [%x2], {%d0,%d1,%d2,%d3,%d4,%d5,%d6,%d7}, 16;
        ret; }";
    let module = Module::parse(text).unwrap();
    let device = Device::new();
    let values: Vec<f32> = (0..256).map(|i| (i % 11) as f32).collect();
    let (da, dc) = (device.f16s(&values), device.f32s(&[0.0; 256]));
    let args = [Arg::Buffer(&da), Arg::Buffer(&dc)];
    device.launch(&module, "k", ([1; 3], [32, 1, 1], 0), &args).unwrap();
    let right: f32 = (0..16).map(|i| values[16 + i] * values[16 * i]).sum();
    assert_ne!(common::read_f32s(&dc)[16], right);
    // A tile must lie at a multiple of 32 bytes, its rows at multiples of 16.
    let args = [Arg::Address(da.base() + 16), Arg::Buffer(&dc)];
    let broken = device.launch(&module, "k", ([1; 3], [32, 1, 1], 0), &args).unwrap_err();
    assert_eq!(broken.kind, FaultKind::Misaligned { space: "tile", align: 32 });
}
