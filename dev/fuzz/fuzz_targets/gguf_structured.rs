//! Arbitrary calls of the writer. It must refuse what the reader would refuse, and what it accepts
//! must come back. One byte of the result is then changed, which gets past the magic and the counts
//! far more often than arbitrary bytes do.

#![no_main]

#[path = "../../../crates/gguf/tests/common/exercise.rs"]
mod exercise;

use fucina_gguf::{Array, Data, File, Strings, Value, Writer};
use libfuzzer_sys::arbitrary::{Arbitrary, Result, Unstructured};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    // Input that ends early is no failure.
    let _ = write_and_damage(&mut Unstructured::new(input));
});

fn write_and_damage(input: &mut Unstructured<'_>) -> Result<()> {
    let mut writer = Writer::new();
    let _ = writer.version(input.int_in_range(1..=4)?);
    let (mut entries, mut tensors) = (Vec::new(), Vec::new());
    for _ in 0..input.int_in_range(0..=8)? {
        let key = name(input)?;
        let value = value(input)?;
        if writer.set(&key, value.clone()).is_ok() {
            entries.push((key, value));
        }
    }
    for _ in 0..input.int_in_range(0..=6)? {
        let (name, shape) = (name(input)?, shape(input)?);
        let (ggml_type, len) = type_and_len(input, &shape)?;
        let fits = writer.tensor_ggml(&name, ggml_type, &shape, vec![ggml_type as u8; len]).is_ok();
        let streamed = Data::from_fn(move |out| out.write_all(&vec![ggml_type as u8; len]));
        if fits {
            tensors.push((name, ggml_type, shape, len));
        } else if len % 7 == 0 {
            // The length is found out only when the file is written.
            if writer.tensor_ggml(&name, ggml_type, &shape, streamed).is_ok() {
                assert!(writer.to_bytes().is_err(), "a tensor of another length is written");
                return Ok(());
            }
        }
    }
    let written = writer.to_bytes().expect("memory takes everything");
    exercise::exercise(&written);
    check(&written, &entries, &tensors);
    damage(input, &written)
}

fn check(written: &bytes::Bytes, entries: &[(String, Value)], tensors: &[Described]) {
    let file = match File::from_bytes(written.clone()) {
        Ok(file) => file,
        // The keys of a split model mean something to the reader alone.
        Err(error) => {
            let split = |(key, _): &(String, Value)| key.starts_with("split.");
            assert!(entries.iter().any(split), "{error}");
            return;
        }
    };
    let read: Vec<_> = file.metadata().iter().collect();
    assert_eq!(read.len(), entries.len());
    for ((key, value), (read_key, read_value)) in entries.iter().zip(read) {
        assert_eq!(key, read_key);
        // As text, so that NaN equals NaN; the round trip has compared the bits.
        assert_eq!(format!("{value:?}"), format!("{read_value:?}"));
    }
    assert_eq!(file.tensors().len(), tensors.len());
    for ((name, ggml_type, shape, len), info) in tensors.iter().zip(file.tensors()) {
        assert_eq!((&**name, *ggml_type), (info.name(), info.ggml_type()));
        assert_eq!((&**shape, *len), (info.shape(), info.len_bytes()));
        let data = file.tensor_data(info).expect("a listed tensor has data");
        assert!(data.iter().all(|&byte| byte == *ggml_type as u8));
    }
}

fn damage(input: &mut Unstructured<'_>, written: &[u8]) -> Result<()> {
    let mut damaged = written.to_vec();
    for _ in 0..input.int_in_range(0..=3)? {
        let at = input.choose_index(damaged.len())?;
        damaged[at] = input.arbitrary()?;
    }
    damaged.truncate(input.int_in_range(0..=damaged.len())?);
    exercise::exercise(&damaged);
    Ok(())
}

/// Name, type, shape and bytes of a tensor that was accepted.
type Described = (String, u32, Vec<usize>, usize);

fn name(input: &mut Unstructured<'_>) -> Result<String> {
    const KNOWN: [&str; 6] =
        ["general.alignment", "split.no", "split.count", "split.tensors.count", "", "k"];
    match input.int_in_range(0..=2)? {
        0 => Ok((*input.choose(&KNOWN)?).to_owned()),
        _ => String::arbitrary(input),
    }
}

fn shape(input: &mut Unstructured<'_>) -> Result<Vec<usize>> {
    let n_dims = input.int_in_range(0..=5)?;
    (0..n_dims)
        .map(|_| match input.int_in_range(0..=4)? {
            0 => input.arbitrary(),
            1 => Ok(input.int_in_range(1..=8)? * 256),
            2 => Ok(input.int_in_range(1..=8)? * 32),
            _ => input.int_in_range(0..=4),
        })
        .collect()
}

/// A type and a length that often fits it.
fn type_and_len(input: &mut Unstructured<'_>, shape: &[usize]) -> Result<(u32, usize)> {
    // Id, elements and bytes of a block.
    const COMMON: [(u32, usize, usize); 4] = [(0, 1, 4), (1, 1, 2), (8, 32, 34), (12, 256, 144)];
    // At most 1 MiB, so that a shape that is only large costs nothing.
    const MOST: usize = 1 << 20;
    if input.ratio(1, 4)? {
        return Ok((input.int_in_range(0..=40)?, input.int_in_range(0..=MOST)?));
    }
    let (id, elems, bytes) = *input.choose(&COMMON)?;
    let product = shape.iter().try_fold(1_usize, |n, &dim| n.checked_mul(dim)).unwrap_or(0);
    Ok((id, (product / elems).saturating_mul(bytes).min(MOST)))
}

fn value(input: &mut Unstructured<'_>) -> Result<Value> {
    Ok(match input.int_in_range(0..=13)? {
        0 => u8::arbitrary(input)?.into(),
        1 => i8::arbitrary(input)?.into(),
        2 => u16::arbitrary(input)?.into(),
        3 => i16::arbitrary(input)?.into(),
        4 => u32::arbitrary(input)?.into(),
        5 => i32::arbitrary(input)?.into(),
        6 => f32::arbitrary(input)?.into(),
        7 => bool::arbitrary(input)?.into(),
        8 => String::arbitrary(input)?.into(),
        9 => u64::arbitrary(input)?.into(),
        10 => i64::arbitrary(input)?.into(),
        11 => f64::arbitrary(input)?.into(),
        12 => (1_u32 << input.int_in_range(0..=25)?).into(),
        _ => array(input, 0)?.into(),
    })
}

fn array(input: &mut Unstructured<'_>, depth: usize) -> Result<Array> {
    let kinds = if depth < 6 { 12 } else { 11 };
    Ok(match input.int_in_range(0..=kinds)? {
        0 => Array::U8(Vec::arbitrary(input)?),
        1 => Array::I8(Vec::arbitrary(input)?),
        2 => Array::U16(Vec::arbitrary(input)?),
        3 => Array::I16(Vec::arbitrary(input)?),
        4 => Array::U32(Vec::arbitrary(input)?),
        5 => Array::I32(Vec::arbitrary(input)?),
        6 => Array::F32(Vec::arbitrary(input)?),
        7 => Array::Bool(Vec::arbitrary(input)?),
        8 => Array::Str(Vec::<String>::arbitrary(input)?.into_iter().collect::<Strings>()),
        9 => Array::U64(Vec::arbitrary(input)?),
        10 => Array::I64(Vec::arbitrary(input)?),
        11 => Array::F64(Vec::arbitrary(input)?),
        _ => {
            let count = input.int_in_range(0..=3)?;
            Array::Array((0..count).map(|_| array(input, depth + 1)).collect::<Result<_>>()?)
        }
    })
}
