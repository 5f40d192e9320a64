//! Tiles against results that were worked out by hand.

use super::*;

/// A configuration of `(rows, bytes of a row)`.
fn config(shapes: [(u8, u16); TILES]) -> [u8; CONFIG_BYTES] {
    let mut config = [0; CONFIG_BYTES];
    config[0] = 1;
    for (tile, (rows, colsb)) in shapes.into_iter().enumerate() {
        config[16 + 2 * tile..][..2].copy_from_slice(&colsb.to_le_bytes());
        config[48 + tile] = rows;
    }
    config
}

const FULL: [(u8, u16); TILES] = [(16, 64); TILES];

fn configured(shapes: [(u8, u16); TILES]) -> Tiles {
    let mut tiles = Tiles::poisoned();
    tiles.load_config(&config(shapes)).unwrap();
    tiles
}

fn fill(tiles: &mut Tiles, tile: usize, value: impl Fn(usize, usize) -> u8) {
    let write = |row: usize, bytes: &mut [u8]| {
        bytes.iter_mut().enumerate().for_each(|(col, byte)| *byte = value(row, col));
    };
    tiles.load(tile, write).unwrap();
}

fn set_words(tiles: &mut Tiles, tile: usize, value: impl Fn(usize, usize) -> u32) {
    fill(tiles, tile, |row, col| value(row, col / 4).to_le_bytes()[col % 4]);
}

/// All rows of a tile, those beyond its shape included.
fn get_words(tiles: &Tiles, tile: usize) -> Vec<Words> {
    words(&tiles.data[tile]).to_vec()
}

fn pair(low: f32, high: f32) -> u32 {
    assert_eq!((low.to_bits() | high.to_bits()) & 0xffff, 0, "not bf16");
    low.to_bits() >> 16 | high.to_bits()
}

#[test]
fn an_integer_product_of_two_by_two() {
    // a = [1 2 3 4 | -1 -2 -3 -4], b = columns (5 6 7 8) and (255 0 0 1): quads of k.
    let mut tiles = configured([(2, 8), (2, 4), (1, 8), (1, 4), (1, 4), (1, 4), (1, 4), (1, 4)]);
    fill(&mut tiles, 1, |row, col| [[1, 2, 3, 4], [255, 254, 253, 252]][row][col]);
    fill(&mut tiles, 2, |_, col| [5, 6, 7, 8, 255, 0, 0, 1][col]);
    let sums = |a_signed, b_signed| {
        let mut tiles = tiles.clone();
        set_words(&mut tiles, 0, |_, _| 100);
        tiles.dot(Dot::I8 { a_signed, b_signed }, 0, 1, 2).unwrap();
        let words = get_words(&tiles, 0);
        let get = |row: usize, col: usize| words[row][col].cast_signed() - 100;
        [[get(0, 0), get(0, 1)], [get(1, 0), get(1, 1)]]
    };
    // 1*5+2*6+3*7+4*8 = 70; 255*5+254*6+253*7+252*8 = 6586; 255 + 4 = 259; -1 + 4 = 3;
    // -255 - 4; 255*255 + 252 = 65277; with -1 for 255: 1 - 4; -255 + 252 = -3.
    assert_eq!(sums(true, true), [[70, 3], [-70, -3]]);
    assert_eq!(sums(true, false), [[70, 259], [-70, -259]]);
    assert_eq!(sums(false, true), [[70, 3], [6586, -3]]);
    assert_eq!(sums(false, false), [[70, 259], [6586, 65277]]);
}

#[test]
fn integer_sums_wrap() {
    let mut tiles = configured([(1, 4); TILES]);
    set_words(&mut tiles, 0, |_, _| i32::MAX.cast_unsigned());
    fill(&mut tiles, 1, |_, _| 1);
    fill(&mut tiles, 2, |_, _| 1);
    tiles.dot(Dot::I8 { a_signed: true, b_signed: true }, 0, 1, 2).unwrap();
    assert_eq!(get_words(&tiles, 0)[0][0].cast_signed(), i32::MIN + 3);
}

#[test]
fn a_float_product_of_two_by_two() {
    // a = [1 2 | 3 4], b = [0.5 -1 | 8 0.25] for k, columns.
    let mut tiles = configured([(2, 8), (2, 4), (1, 8), (1, 4), (1, 4), (1, 4), (1, 4), (1, 4)]);
    set_words(&mut tiles, 1, |row, _| [pair(1.0, 2.0), pair(3.0, 4.0)][row]);
    set_words(&mut tiles, 2, |_, col| [pair(0.5, 8.0), pair(-1.0, 0.25)][col]);
    set_words(&mut tiles, 0, |row, col| [[1.0_f32, 2.0], [3.0, 4.0]][row][col].to_bits());
    tiles.dot(Dot::Bf16, 0, 1, 2).unwrap();
    let words = get_words(&tiles, 0);
    let got: Vec<f32> = [(0, 0), (0, 1), (1, 0), (1, 1)]
        .map(|(row, col): (usize, usize)| f32::from_bits(words[row][col]))
        .into();
    assert_eq!(got, [1.0 + 16.5, 2.0 - 0.5, 3.0 + 33.5, 4.0 - 2.0]);
    // What lies beyond the shape became zero, not poison.
    assert!(words[0][2..].iter().chain(words[2..].iter().flatten()).all(|&word| word == 0));
}

/// The even elements are summed apart from the odd ones, then both, then the destination.
#[test]
fn float_sums_have_the_documented_order() {
    let big = 2f32.powi(30);
    let mut tiles = configured([(1, 4), (1, 8), (2, 4), (1, 4), (1, 4), (1, 4), (1, 4), (1, 4)]);
    // Products: even big, -big; odd 1, 1. In the order of k alone, the first 1 would be lost.
    set_words(&mut tiles, 1, |_, col| [pair(big, 1.0), pair(-big, 1.0)][col]);
    set_words(&mut tiles, 2, |_, _| pair(1.0, 1.0));
    set_words(&mut tiles, 0, |_, _| 0);
    tiles.dot(Dot::Bf16, 0, 1, 2).unwrap();
    assert_eq!(f32::from_bits(get_words(&tiles, 0)[0][0]), 2.0);
    // The destination comes last: big + (1 + 1) - big keeps nothing if it came first.
    set_words(&mut tiles, 0, |_, _| (-big).to_bits());
    set_words(&mut tiles, 1, |_, col| [pair(big, 1.0), pair(1.0, 0.0)][col]);
    tiles.dot(Dot::Bf16, 0, 1, 2).unwrap();
    assert_eq!(f32::from_bits(get_words(&tiles, 0)[0][0]), 0.0, "big + 2 rounds to big");
}

/// A fused multiply-add rounds once. Products of bf16 have 16 bits, exact in f32, so what shows it
/// is an overflow on the way.
#[test]
fn a_product_is_not_rounded_before_it_is_added() {
    let mut tiles = configured([(1, 4), (1, 8), (2, 4), (1, 4), (1, 4), (1, 4), (1, 4), (1, 4)]);
    // -2^127 + 2^64 * 2^64: 2^128 is not a float, the sum is.
    let (half, square) = (2f32.powi(64), 2f32.powi(127));
    set_words(&mut tiles, 1, |_, col| [pair(-square, 0.0), pair(half, 0.0)][col]);
    set_words(&mut tiles, 2, |row, _| [pair(1.0, 0.0), pair(half, 0.0)][row]);
    set_words(&mut tiles, 0, |_, _| 0);
    tiles.dot(Dot::Bf16, 0, 1, 2).unwrap();
    assert_eq!(f32::from_bits(get_words(&tiles, 0)[0][0]), square);
}

#[test]
fn subnormal_floats_are_zero_on_the_way_in_and_out() {
    let one = |a: u32, b: u32, c: u32| {
        let mut tiles = configured([(1, 4); TILES]);
        set_words(&mut tiles, 0, |_, _| c);
        set_words(&mut tiles, 1, |_, _| a);
        set_words(&mut tiles, 2, |_, _| b);
        tiles.dot(Dot::Bf16, 0, 1, 2).unwrap();
        get_words(&tiles, 0)[0][0]
    };
    let subnormal = 0x0040; // 2^-127 as bf16
    assert_eq!(one(subnormal, pair(2f32.powi(100), 0.0), 0), 0, "input");
    assert_eq!(one(pair(2f32.powi(-64), 0.0), pair(2f32.powi(-64), 0.0), 0), 0, "product");
    assert_eq!(one(0, 0, 1), 0, "destination");
    let min = f32::MIN_POSITIVE;
    assert_eq!(one(pair(min, 0.0), pair(1.0, 0.0), 0), min.to_bits(), "the least normal stays");
}

#[test]
fn not_a_number_and_infinity_go_through() {
    let one = |a: f32, b: f32| {
        let mut tiles = configured([(1, 4); TILES]);
        set_words(&mut tiles, 0, |_, _| 0);
        set_words(&mut tiles, 1, |_, _| pair(a, 0.0));
        set_words(&mut tiles, 2, |_, _| pair(b, 0.0));
        tiles.dot(Dot::Bf16, 0, 1, 2).unwrap();
        f32::from_bits(get_words(&tiles, 0)[0][0])
    };
    assert!(one(f32::NAN, 1.0).is_nan());
    assert!(one(f32::INFINITY, 0.0).is_nan());
    assert_eq!(one(f32::INFINITY, -2.0), f32::NEG_INFINITY);
}

#[test]
fn a_load_zeroes_what_the_shape_leaves_out() {
    let mut tiles = configured([(3, 8); TILES]);
    fill(&mut tiles, 6, |row, col| u8::try_from(10 * row + col).unwrap());
    assert_eq!(tiles.data[6][2][..9], [20, 21, 22, 23, 24, 25, 26, 27, 0]);
    assert!(tiles.data[6][3..].iter().flatten().all(|&byte| byte == 0));
    let mut rows = Vec::new();
    tiles.store(6, |row, bytes| rows.push((row, bytes.to_vec()))).unwrap();
    assert_eq!(rows.len(), 3);
    assert_eq!(rows[1], (1, vec![10, 11, 12, 13, 14, 15, 16, 17]));
}

#[test]
fn a_configuration_and_a_release_leave_poison_or_zeros() {
    for (mut tiles, left) in [(Tiles::poisoned(), 0xff), (Tiles::documented(), 0)] {
        tiles.load_config(&config(FULL)).unwrap();
        fill(&mut tiles, 2, |_, _| 7);
        tiles.load_config(&config(FULL)).unwrap();
        assert_eq!(tiles.data[2], [[left; 64]; 16], "configured again");
        fill(&mut tiles, 2, |_, _| 7);
        tiles.release();
        assert!(!tiles.is_configured());
        assert_eq!(tiles.store_config(), [0; 64]);
        tiles.load_config(&config(FULL)).unwrap();
        assert_eq!(tiles.data[2], [[left; 64]; 16], "released");
        assert_eq!(tiles.store_config(), config(FULL));
        tiles.load_config(&[0; 64]).unwrap();
        assert!(!tiles.is_configured(), "palette 0 releases");
    }
}

#[test]
fn what_a_cpu_refuses_is_a_fault() {
    let mut tiles = Tiles::poisoned();
    for fault in [
        tiles.zero(0),
        tiles.load(1, |_, _| unreachable!()),
        tiles.store(1, |_, _| unreachable!()),
        tiles.dot(Dot::Bf16, 0, 1, 2),
    ] {
        assert_eq!(fault, Err(Fault::NotConfigured));
    }
    let wrong = |at: usize, byte: u8| {
        let mut config = config(FULL);
        config[at] = byte;
        Tiles::poisoned().load_config(&config)
    };
    assert_eq!(wrong(0, 2), Err(Fault::Palette));
    assert_eq!(wrong(1, 3), Err(Fault::StartRow));
    for at in [2, 15, 32, 47, 56, 63] {
        assert_eq!(wrong(at, 1), Err(Fault::Reserved), "byte {at}");
    }
    assert_eq!(wrong(16, 65), Err(Fault::TooLarge));
    assert_eq!(wrong(48, 17), Err(Fault::TooLarge));
    assert_eq!(wrong(55, 0), Err(Fault::Empty));
    assert_eq!(wrong(30, 0), Err(Fault::Empty));

    let mut tiles =
        configured([(16, 64), (16, 32), (8, 64), (8, 32), (16, 30), (0, 0), (8, 60), (9, 64)]);
    let kind = Dot::I8 { a_signed: true, b_signed: true };
    assert_eq!(tiles.dot(kind, 0, 1, 2), Ok(()));
    assert_eq!(tiles.dot(kind, 0, 0, 2), Err(Fault::SameTile));
    assert_eq!(tiles.dot(kind, 0, 1, 0), Err(Fault::SameTile));
    assert_eq!(tiles.dot(kind, 0, 1, 1), Err(Fault::SameTile));
    assert_eq!(tiles.dot(kind, 0, 3, 2), Err(Fault::Shapes), "rows of a");
    assert_eq!(tiles.dot(kind, 0, 1, 7), Err(Fault::Shapes), "rows of b");
    assert_eq!(tiles.dot(kind, 0, 1, 6), Err(Fault::Shapes), "columns of b");
    assert_eq!(tiles.dot(kind, 0, 4, 2), Err(Fault::Shapes), "a broken group");
    assert_eq!(tiles.dot(kind, 0, 5, 2), Err(Fault::Empty));
    assert_eq!(tiles.zero(5), Err(Fault::Empty));
}
