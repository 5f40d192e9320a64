//! Machine code as the GNU assembler writes it, against what the source line said.

use super::*;

/// rax = 0x1000, rcx = 0x1100, and so on, in the order of the encoding.
fn registers() -> Registers {
    let mut general = [0; 16];
    general.iter_mut().zip(0x10..).for_each(|(register, value)| *register = value << 8);
    Registers { general, rip: 0x40_0000 }
}

#[track_caller]
fn check(code: &[u8], op: Op, address: u64, stride: u64) {
    let want = Instruction { op, address, stride, len: code.len() };
    // What follows an instruction does not matter.
    let mut padded = code.to_vec();
    padded.resize(MAX_LEN + 4, 0x90);
    assert_eq!(decode(&padded, &registers()), Some(want), "{code:02x?}");
    for len in 0..code.len() {
        assert_eq!(decode(&code[..len], &registers()), None, "{code:02x?} cut to {len}");
    }
}

#[test]
fn configurations_are_addressed_like_any_memory() {
    // [rax], [r13+0x10], [rip+0x1234], [rbx+rcx*4-0x80]
    check(&[0xc4, 0xe2, 0x78, 0x49, 0x00], Op::LoadConfig, 0x1000, 0);
    check(&[0xc4, 0xc2, 0x78, 0x49, 0x45, 0x10], Op::LoadConfig, 0x1d10, 0);
    let relative = [0xc4, 0xe2, 0x78, 0x49, 0x05, 0x34, 0x12, 0, 0];
    check(&relative, Op::LoadConfig, 0x40_0000 + 9 + 0x1234, 0);
    let address = 0x1300 + 4 * 0x1100 - 0x80;
    check(&[0xc4, 0xe2, 0x78, 0x49, 0x44, 0x8b, 0x80], Op::LoadConfig, address, 0);
    // [rsp+0x40]
    check(&[0xc4, 0xe2, 0x79, 0x49, 0x44, 0x24, 0x40], Op::StoreConfig, 0x1440, 0);
}

#[test]
fn instructions_without_memory_name_their_tiles() {
    check(&[0xc4, 0xe2, 0x78, 0x49, 0xc0], Op::Release, 0, 0);
    check(&[0xc4, 0xe2, 0x7b, 0x49, 0xc0], Op::Zero { tile: 0 }, 0, 0);
    check(&[0xc4, 0xe2, 0x7b, 0x49, 0xf8], Op::Zero { tile: 7 }, 0, 0);
}

#[test]
fn rows_have_a_first_address_and_a_stride() {
    // tmm4, [rax+rcx*1]
    check(&[0xc4, 0xe2, 0x7b, 0x4b, 0x24, 0x08], Op::Load { tile: 4 }, 0x1000, 0x1100);
    // tmm3, [r12+r13*2+0x400]
    let code = [0xc4, 0x82, 0x7b, 0x4b, 0x9c, 0x6c, 0, 4, 0, 0];
    check(&code, Op::Load { tile: 3 }, 0x1c00 + 0x400, 2 * 0x1d00);
    // tmm5, [rbp+rdx*1+0x0]
    check(&[0xc4, 0xe2, 0x7b, 0x4b, 0x6c, 0x15, 0], Op::Load { tile: 5 }, 0x1500, 0x1200);
    // tmm6, [r13+r9*8-0x8]
    let code = [0xc4, 0x82, 0x7b, 0x4b, 0x74, 0xcd, 0xf8];
    check(&code, Op::Load { tile: 6 }, 0x1d00 - 8, 8 * 0x1900);
    // tmm1, [rdi+riz*1]: no index
    check(&[0xc4, 0xe2, 0x7b, 0x4b, 0x0c, 0x27], Op::Load { tile: 1 }, 0x1700, 0);
    // tmm2, [rax*1+0x12345678]: no base
    let code = [0xc4, 0xe2, 0x7b, 0x4b, 0x14, 0x05, 0x78, 0x56, 0x34, 0x12];
    check(&code, Op::Load { tile: 2 }, 0x1234_5678, 0x1000);
    // tileloaddt1 tmm2, [rsi+rdi*1]
    check(&[0xc4, 0xe2, 0x79, 0x4b, 0x14, 0x3e], Op::Load { tile: 2 }, 0x1600, 0x1700);
    // [r8+r15*4+0x7f], tmm5
    let code = [0xc4, 0x82, 0x7a, 0x4b, 0x6c, 0xb8, 0x7f];
    check(&code, Op::Store { tile: 5 }, 0x1800 + 0x7f, 4 * 0x1f00);
}

#[test]
fn products_keep_their_operands_apart() {
    let dot = |kind, dest, a, b| Op::Dot { kind, dest, a, b };
    let i8 = |a_signed, b_signed| Dot::I8 { a_signed, b_signed };
    // tdpbf16ps tmm0,tmm4,tmm6; tdpbssd tmm1,tmm2,tmm3; and so on
    check(&[0xc4, 0xe2, 0x4a, 0x5c, 0xc4], dot(Dot::Bf16, 0, 4, 6), 0, 0);
    check(&[0xc4, 0xe2, 0x63, 0x5e, 0xca], dot(i8(true, true), 1, 2, 3), 0, 0);
    check(&[0xc4, 0xe2, 0x42, 0x5e, 0xd5], dot(i8(true, false), 2, 5, 7), 0, 0);
    check(&[0xc4, 0xe2, 0x79, 0x5e, 0xd9], dot(i8(false, true), 3, 1, 0), 0, 0);
    check(&[0xc4, 0xe2, 0x70, 0x5e, 0xf8], dot(i8(false, false), 7, 0, 1), 0, 0);
}

#[test]
fn neighbours_in_the_encoding_are_not_taken_for_amx() {
    let others: [&[u8]; 11] = [
        &[0xc4, 0xe2, 0x71, 0xb8, 0xc2],       // vfmadd231ps
        &[0x62, 0xf2, 0x75, 0x28, 0x50, 0x00], // vpdpbusd
        &[0xc4, 0xe2, 0xe3, 0xf6, 0xc1],       // mulx
        &[0xc5, 0xf8, 0x77],                   // vzeroupper
        &[0x0f, 0x0b],                         // ud2
        &[0xc4, 0xe2, 0x7c, 0x49, 0xc0],       // tilerelease of 256 bits
        &[0xc4, 0xe2, 0xf8, 0x49, 0xc0],       // with W
        &[0xc4, 0xe1, 0x78, 0x49, 0xc0],       // of another map
        &[0xc4, 0xe2, 0x4b, 0x5c, 0xc4],       // tdpfp16ps
        &[0xc4, 0xe2, 0x7b, 0x4b, 0x20],       // tileloadd without SIB
        &[0xc4, 0xc2, 0x4a, 0x5c, 0xc4],       // a tile beyond 7
    ];
    for code in others {
        let mut padded = code.to_vec();
        padded.resize(MAX_LEN + 4, 0x90);
        assert_eq!(decode(&padded, &registers()), None, "{code:02x?}");
    }
}
