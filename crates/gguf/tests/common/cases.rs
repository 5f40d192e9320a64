//! Small files, one for each class of fault that GGUF readers are known to have had, with the
//! exact answer that this crate gives. The same files are the seeds of the fuzz target.

use std::sync::Arc;

use fucina_gguf::{Error, MAX_ARRAY_DEPTH};

use super::raw::{self, Raw};

/// One file.
pub(crate) struct Case {
    /// Name of the test that checks it, a dash, and what is special about it.
    pub(crate) name: &'static str,
    /// The file.
    pub(crate) bytes: Vec<u8>,
    /// What opening it gives.
    pub(crate) expected: Result<(), Error>,
}

fn bad(name: &'static str, raw: Raw, error: Error) -> Case {
    Case { name, bytes: raw.0, expected: Err(error) }
}

fn good(name: &'static str, raw: Raw) -> Case {
    Case { name, bytes: raw.0, expected: Ok(()) }
}

fn file() -> Arc<str> {
    "<memory>".into()
}

fn w() -> Box<str> {
    "w".into()
}

fn k() -> Box<str> {
    "k".into()
}

/// All cases.
pub(crate) fn all() -> Vec<Case> {
    let groups = [
        sizes(),
        offsets(),
        alignments(),
        emptiness(),
        counts(),
        nesting(),
        tensors(),
        values(),
        texts(),
        truncations(),
        preambles(),
        sound(),
    ];
    groups.into_iter().flatten().collect()
}

fn one_tensor(dims: &[u64], ggml_type: u32, offset: u64) -> Raw {
    Raw::header(1, 0).tensor(dims, ggml_type, offset).data(64)
}

fn overflow(dims: &[u64]) -> Error {
    Error::SizeOverflow { file: file(), tensor: w(), shape: dims.into() }
}

fn out_of_bounds(offset: u64, len_bytes: u64) -> Error {
    Error::OutOfBounds { file: file(), tensor: w(), offset, len_bytes, available: 64 }
}

fn too_many_dims(n_dims: u64) -> Error {
    Error::TooManyDims { file: file(), tensor: w(), n_dims }
}

/// Element counts and sizes that wrap.
fn sizes() -> Vec<Case> {
    let sized = |name, dims: &[u64], error| bad(name, one_tensor(dims, raw::F32, 0), error);
    // Elements fit i64, bytes wrap u64 to a small number.
    let bytes_wrap = [(1 << 42) + 1, 1 << 20];
    let long = [(1_u64 << 42) + 1];
    let elems_wrap_to_zero = [1 << 32, 1 << 32];
    let wraps = [u64::MAX, 2, 1, 1];
    let negative = [1 << 63];
    vec![
        sized("e01-size-in-bytes-wraps", &bytes_wrap, overflow(&bytes_wrap)),
        sized("e01-dimension-of-2-to-the-42", &long, out_of_bounds(0, (1 << 44) + 4)),
        sized("e09-element-count-wraps", &wraps, overflow(&wraps)),
        sized(
            "e09-element-count-wraps-to-zero",
            &elems_wrap_to_zero,
            overflow(&elems_wrap_to_zero),
        ),
        sized("e09-five-dimensions", &[1; 5], too_many_dims(5)),
        sized("e04-nine-dimensions", &[1; 9], too_many_dims(9)),
        sized("e04-negative-dimension", &negative, overflow(&negative)),
        bad(
            "e04-2-to-the-30-dimensions",
            Raw::header(1, 0).str(b"w").u32(1 << 30).data(64),
            too_many_dims(1 << 30),
        ),
    ]
}

/// Offsets that point elsewhere.
fn offsets() -> Vec<Case> {
    let at = |name, offset, error| bad(name, one_tensor(&[16], raw::F32, offset), error);
    let wraps = u64::MAX - 31;
    let odd = u64::MAX - 7;
    let misaligned =
        |offset| Error::Misaligned { file: file(), tensor: w(), offset, alignment: 32 };
    vec![
        at("e02-offset-wraps-into-the-file", wraps, out_of_bounds(wraps, 64)),
        at("e02-offset-wraps-and-is-odd", odd, misaligned(odd)),
        at("e10-offset-not-aligned", 4, misaligned(4)),
        at("e10-tensor-ends-behind-the-file", 32, out_of_bounds(32, 64)),
        at("e10-tensor-starts-behind-the-file", 96, out_of_bounds(96, 64)),
    ]
}

/// Values of `general.alignment`.
fn alignments() -> Vec<Case> {
    const KEY: &str = "general.alignment";
    let set = |name, value, alignment| {
        let raw = Raw::header(1, 1).entry_u32(KEY, value).tensor(&[16], raw::F32, 0).data(64);
        bad(name, raw, Error::BadAlignment { file: file(), alignment })
    };
    let typed = |found| Error::WrongType { file: file(), key: KEY.into(), wanted: "u64", found };
    vec![
        set("e04-alignment-zero", 0, 0),
        set("e04-alignment-not-a-power-of-two", 24, 24),
        set("e04-alignment-of-2-to-the-31", 1 << 31, 1 << 31),
        bad(
            "e04-alignment-negative",
            Raw::header(0, 1).key(KEY, 5).u32((-32_i32).cast_unsigned()),
            Error::OutOfRange { file: file(), key: KEY.into(), value: -32, wanted: "u64" },
        ),
        bad(
            "e07-padding-wraps",
            Raw::header(1, 1).key(KEY, raw::U64).u64(1 << 63).tensor(&[16], raw::F32, 0).data(64),
            Error::BadAlignment { file: file(), alignment: 1 << 63 },
        ),
        bad(
            "e07-alignment-is-a-string",
            Raw::header(0, 1).key(KEY, raw::STR).str(b"32"),
            typed("str"),
        ),
        bad(
            "e07-alignment-is-a-bool",
            Raw::header(0, 1).key(KEY, raw::BOOL).bytes(&[1]),
            typed("bool"),
        ),
        bad(
            "e07-alignment-larger-than-the-file",
            Raw::header(1, 1).entry_u32(KEY, 1 << 24).tensor(&[16], raw::F32, 0).data(64),
            Error::OutOfBounds {
                file: file(),
                tensor: w(),
                offset: 0,
                len_bytes: 64,
                available: 0,
            },
        ),
    ]
}

/// Things of length zero.
fn emptiness() -> Vec<Case> {
    let name = |what: &str| Error::BadName { file: file(), what: what.into(), len_bytes: 0 };
    let zero = |dims: &[u64]| Error::ZeroDim { file: file(), tensor: w(), shape: dims.into() };
    vec![
        bad("e05-dimension-zero", one_tensor(&[0], raw::F32, 0), zero(&[0])),
        bad("e05-outer-dimension-zero", one_tensor(&[32, 0], raw::Q8_0, 0), zero(&[32, 0])),
        bad(
            "e05-empty-key",
            Raw::header(0, 1).entry_u32("", 1),
            name("the key of metadata entry 0"),
        ),
        bad(
            "e05-empty-tensor-name",
            Raw::header(1, 0).named("", &[16], raw::F32, 0).data(64),
            name("the name of tensor 0"),
        ),
    ]
}

/// Counts and lengths that the file cannot hold.
fn counts() -> Vec<Case> {
    const HUGE: u64 = u64::MAX / 64;
    let count = |what: &str, count, most| Error::CountTooLarge {
        file: file(),
        what: what.into(),
        count,
        most,
    };
    let array = |element, count| Raw::header(0, 1).key("k", raw::ARRAY).u32(element).u64(count);
    let of_k = "the array of key `k`";
    vec![
        bad("e08-metadata-count", Raw::header(0, HUGE), count("the metadata count", HUGE, 0)),
        bad("e08-tensor-count", Raw::header(HUGE, 0), count("the tensor count", HUGE, 0)),
        bad("e08-2-to-the-40-strings", array(raw::STR, 1 << 40), count(of_k, 1 << 40, 0)),
        bad(
            "e08-more-numbers-than-bytes",
            array(raw::U64, HUGE).bytes(&[0; 17]),
            count(of_k, HUGE, 2),
        ),
        bad("e08-more-arrays-than-bytes", array(raw::ARRAY, HUGE), count(of_k, HUGE, 0)),
        bad("e08-more-bools-than-bytes", array(raw::BOOL, 3).bytes(&[0; 2]), count(of_k, 3, 2)),
        bad(
            "e08-string-length",
            Raw::header(0, 1).key("k", raw::STR).u64(HUGE).bytes(b"abc"),
            Error::Truncated {
                file: file(),
                what: "the value of key `k`".into(),
                offset: 45,
                needed: HUGE,
                available: 3,
            },
        ),
        bad(
            "e08-string-length-in-an-array",
            array(raw::STR, 1).u64(u64::MAX).bytes(b"abc"),
            Error::Truncated {
                file: file(),
                what: "string 0 of key `k`".into(),
                offset: 57,
                needed: u64::MAX,
                available: 3,
            },
        ),
        bad(
            "e08-key-length",
            Raw::header(0, 1).u64(HUGE).bytes(&[b'a'; 16]),
            Error::BadName {
                file: file(),
                what: "the key of metadata entry 0".into(),
                len_bytes: HUGE,
            },
        ),
    ]
}

/// Arrays inside arrays.
fn nesting() -> Vec<Case> {
    // `depth` arrays, each the only element of the one before; the innermost is empty.
    let nested = |depth: usize| {
        let start = Raw::header(0, 1).key("k", raw::ARRAY);
        (1..depth).fold(start, |raw, _| raw.u32(raw::ARRAY).u64(1)).u32(raw::U32).u64(0)
    };
    let deep = || Error::NestedTooDeep { file: file(), key: k(), limit: MAX_ARRAY_DEPTH };
    vec![
        good("e08-nested-as-deep-as-allowed", nested(MAX_ARRAY_DEPTH)),
        bad("e08-nested-one-level-too-deep", nested(MAX_ARRAY_DEPTH + 1), deep()),
        bad("e08-nested-without-end", nested(160), deep()),
    ]
}

/// Tensors that do not agree with each other or with their type.
fn tensors() -> Vec<Case> {
    let two = |second: &str, offset| {
        let raw = Raw::header(2, 0).tensor(&[16], raw::F32, 0);
        raw.named(second, &[16], raw::F32, offset).data(128)
    };
    let overlap = |first: &str, second: &str| Error::Overlap {
        file: file(),
        first: first.into(),
        second: second.into(),
    };
    vec![
        bad("e10-tensors-overlap", two("x", 32), overlap("w", "x")),
        bad("e10-tensors-share-all-bytes", two("x", 0), overlap("w", "x")),
        bad(
            "e10-duplicate-tensor",
            two("w", 64),
            Error::DuplicateTensor { file: file(), tensor: w() },
        ),
        bad(
            "e10-row-is-not-whole-blocks",
            one_tensor(&[33], raw::Q8_0, 0),
            Error::PartialBlock {
                file: file(),
                tensor: w(),
                type_name: "Q8_0",
                row_elems: 33,
                block_elems: 32,
            },
        ),
        // 32 elements altogether, but no row is a block.
        bad(
            "e10-rows-are-smaller-than-a-block",
            one_tensor(&[16, 2], raw::Q8_0, 0),
            Error::PartialBlock {
                file: file(),
                tensor: w(),
                type_name: "Q8_0",
                row_elems: 16,
                block_elems: 32,
            },
        ),
        bad(
            "e10-unknown-tensor-type-behind-the-file",
            one_tensor(&[1], 99, 96),
            out_of_bounds(96, 0),
        ),
        good("e10-unknown-tensor-type", one_tensor(&[1 << 40], 99, 0)),
    ]
}

/// Values that their type does not allow.
fn values() -> Vec<Case> {
    let bool = |value| Error::InvalidBool { file: file(), key: k(), value };
    let unknown = |id| Error::UnknownValueType { file: file(), key: k(), id };
    vec![
        bad("e10-bool-is-2", Raw::header(0, 1).key("k", raw::BOOL).bytes(&[2]), bool(2)),
        bad(
            "e10-bool-in-an-array-is-255",
            Raw::header(0, 1).key("k", raw::ARRAY).u32(raw::BOOL).u64(2).bytes(&[1, 255]),
            bool(255),
        ),
        bad("e10-unknown-value-type", Raw::header(0, 1).key("k", 13).u64(0), unknown(13)),
        bad(
            "e10-unknown-element-type",
            Raw::header(0, 1).key("k", raw::ARRAY).u32(u32::MAX).u64(0),
            unknown(u32::MAX),
        ),
        bad(
            "e10-duplicate-key",
            Raw::header(0, 2).entry_u32("k", 1).entry_u32("k", 2),
            Error::DuplicateKey { file: file(), key: k() },
        ),
    ]
}

/// Strings that are not UTF-8.
fn texts() -> Vec<Case> {
    let utf8 = |what: &str| Error::InvalidUtf8 { file: file(), what: what.into() };
    let strings = |strings: &[&[u8]]| {
        let count = strings.len() as u64;
        let start = Raw::header(0, 1).key("k", raw::ARRAY).u32(raw::STR).u64(count);
        strings.iter().fold(start, |raw, string| raw.str(string))
    };
    vec![
        bad(
            "e10-key-is-not-utf-8",
            Raw::header(0, 1).str(b"k\xff").u32(raw::U32).u32(0),
            utf8("the key of metadata entry 0"),
        ),
        bad(
            "e10-string-is-not-utf-8",
            Raw::header(0, 1).key("k", raw::STR).str(b"\xc3"),
            utf8("the value of key `k`"),
        ),
        bad(
            "e10-string-in-an-array-is-not-utf-8",
            strings(&[b"a", b"\xff", b"b"]),
            utf8("string 1 of key `k`"),
        ),
        // End to end they would be valid.
        bad(
            "e10-character-split-over-two-strings",
            strings(&[b"a", b"caf\xc3", b"\xa9"]),
            utf8("string 1 of key `k`"),
        ),
        bad(
            "e10-tensor-name-is-not-utf-8",
            Raw::header(1, 0).str(b"\x80").u32(1).u64(16).u32(raw::F32).u64(0).data(64),
            utf8("the name of tensor 0"),
        ),
    ]
}

/// Files that end early. Every other place to cut is in `e11_...`.
fn truncations() -> Vec<Case> {
    let hint = "it has fewer than four bytes";
    let cut = |raw: Raw, len: usize| Raw(raw.0[..len].to_vec());
    let truncated = |what: &str, offset, needed, available| Error::Truncated {
        file: file(),
        what: what.into(),
        offset,
        needed,
        available,
    };
    vec![
        bad("e11-empty-file", Raw::default(), Error::NotGguf { file: file(), hint }),
        bad("e11-cut-in-the-version", cut(Raw::header(0, 0), 6), truncated("the version", 4, 4, 2)),
        bad(
            "e11-cut-in-the-counts",
            cut(Raw::header(0, 0), 23),
            truncated("the metadata count", 16, 8, 7),
        ),
        bad(
            "e11-cut-in-the-tensor-data",
            cut(one_tensor(&[16], raw::F32, 0), 127),
            Error::OutOfBounds {
                file: file(),
                tensor: w(),
                offset: 0,
                len_bytes: 64,
                available: 63,
            },
        ),
    ]
}

/// Other formats, versions and byte orders.
fn preambles() -> Vec<Case> {
    let start =
        |magic: &[u8; 4], version: u32| Raw::default().bytes(magic).u32(version).u64(0).u64(0);
    let big = || Error::BigEndian { file: file() };
    let version = |version| Error::UnsupportedVersion { file: file(), version };
    let other = |hint| Error::NotGguf { file: file(), hint };
    vec![
        bad("e12-magic-byte-swapped", start(b"FUGG", 3), big()),
        bad("e12-version-byte-swapped", start(b"GGUF", 3_u32.swap_bytes()), big()),
        bad("e12-version-1", start(b"GGUF", 1), version(1)),
        bad("e12-version-4", start(b"GGUF", 4), version(4)),
        bad("e12-version-0", start(b"GGUF", 0), version(0)),
        bad(
            "e12-format-before-gguf",
            start(b"tjgg", 3),
            other("it is in a format older than GGUF; convert it again"),
        ),
        bad(
            "e12-git-lfs-pointer",
            Raw::default().bytes(b"version https://git-lfs.github.com/spec/v1\n"),
            other("it looks like a Git LFS pointer; fetch it with `git lfs pull`"),
        ),
        bad(
            "e12-web-page",
            Raw::default().bytes(b"<!doctype html>"),
            other("it is a web page; check the download"),
        ),
        bad(
            "e12-something-else",
            Raw::default().bytes(b"\x7fELF\x02\x01"),
            other("it does not start with `GGUF`"),
        ),
    ]
}

/// Files with nothing wrong, as other seeds.
fn sound() -> Vec<Case> {
    let nan = 0x7fc0_1234;
    vec![
        good("sound-nothing-in-it", Raw::header(0, 0)),
        good("sound-version-2", Raw::default().bytes(b"GGUF").u32(2).u64(0).u64(0)),
        good("sound-every-value-type", every_value_type()),
        good("sound-scalar-tensor", one_tensor(&[], raw::F32, 0)),
        good("sound-four-dimensions", one_tensor(&[2, 2, 2, 2], raw::F32, 0)),
        good(
            "sound-tensors-out-of-order",
            Raw::header(2, 1)
                .entry_u32("general.alignment", 8)
                .named("late", &[32], raw::Q8_0, 16)
                .named("early", &[3], raw::F32, 0)
                .pad(8)
                .bytes(&[7; 50]),
        ),
        good(
            "e15-unknown-architecture",
            Raw::header(0, 1).key("general.architecture", raw::STR).str(b"foo9"),
        ),
        good("e16-nan-with-a-payload", Raw::header(0, 1).key("k", 6).u32(nan)),
    ]
}

fn every_value_type() -> Raw {
    let sizes = [(0, 1), (1, 1), (2, 2), (3, 2), (4, 4), (5, 4), (6, 4), (10, 8), (11, 8), (12, 8)];
    let mut raw = Raw::header(0, 26);
    for (id, size) in sizes {
        raw = raw.key(&format!("scalar.{id}"), id).bytes(&vec![0xa5; size]);
        raw =
            raw.key(&format!("array.{id}"), raw::ARRAY).u32(id).u64(3).bytes(&vec![0x5a; 3 * size]);
    }
    raw.key("scalar.7", raw::BOOL)
        .bytes(&[1])
        .key("array.7", raw::ARRAY)
        .u32(raw::BOOL)
        .u64(2)
        .bytes(&[0, 1])
        .key("scalar.8", raw::STR)
        .str("é\0".as_bytes())
        .key("array.8", raw::ARRAY)
        .u32(raw::STR)
        .u64(2)
        .str(b"")
        .str("日本".as_bytes())
        .key("array.9", raw::ARRAY)
        .u32(raw::ARRAY)
        .u64(2)
        .u32(0)
        .u64(1)
        .bytes(&[9])
        .u32(raw::STR)
        .u64(1)
        .str(b"x")
        .key("array.empty", raw::ARRAY)
        .u32(raw::ARRAY)
        .u64(0)
}
