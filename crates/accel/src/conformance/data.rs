//! Seeded operands.

use bytes::Bytes;
use fucina_dtype::{DType, f16_to_f32};

use crate::error::OperandError;
use crate::operand::Operand;
use crate::storage::Storage;

/// A small seeded generator.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5555_5555)
    }

    pub(super) fn bits(&mut self) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let x = self.0 ^ (self.0 >> 33);
        x.wrapping_mul(0xff51_afd7_ed55_8ccd) ^ (x >> 29)
    }

    /// From -1 to 1.
    #[expect(clippy::cast_precision_loss, reason = "24 bits fit an f32")]
    pub(super) fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / 8_388_608.0 - 1.0
    }

    /// Two random bytes.
    fn two(&mut self) -> [u8; 2] {
        let [_, _, _, a, b, ..] = self.bits().to_le_bytes();
        [a, b]
    }
}

/// An operand's bytes and their meaning.
pub(super) struct Data {
    pub(super) dtype: DType,
    pub(super) shape: Vec<usize>,
    /// Dense, unless set.
    pub(super) strides: Option<Vec<usize>>,
    pub(super) bytes: Vec<u8>,
}

impl Data {
    pub(super) fn f32s(shape: &[usize], values: &[f32]) -> Self {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Self { dtype: DType::F32, shape: shape.to_vec(), strides: None, bytes }
    }

    pub(super) fn ids(ids: &[i32]) -> Self {
        let bytes = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        Self { dtype: DType::I32, shape: vec![ids.len()], strides: None, bytes }
    }

    /// Random elements: from -1 to 1 for scalars, whatever the bits mean for blocks.
    pub(super) fn random(dtype: DType, shape: &[usize], random: &mut Random) -> Self {
        let elems: usize = shape.iter().product();
        let bytes = match dtype {
            DType::F32 => (0..elems).flat_map(|_| random.unit().to_le_bytes()).collect(),
            DType::BF16 => {
                (0..elems).map(|_| (random.unit().to_bits() >> 16) as u16).collect_bytes()
            }
            DType::F16 => (0..elems).map(|_| small_f16(random)).collect_bytes(),
            _ => blocks(dtype, elems, random),
        };
        Self { dtype, shape: shape.to_vec(), strides: None, bytes }
    }

    /// The stored values, in the order of the bytes.
    pub(super) fn values(&self) -> Vec<f64> {
        let (unit_elems, unit_bytes) = self.dtype.unit();
        let mut values = vec![0f32; self.bytes.len() / unit_bytes * unit_elems];
        self.dtype.decode(&self.bytes, &mut values).expect("whole units");
        values.into_iter().map(f64::from).collect()
    }

    /// The operand's bytes as memory that somebody else owns, at an offset.
    pub(super) fn storage(&self) -> Storage {
        let mut bytes = vec![0xffu8; OFFSET_BYTES];
        bytes.extend_from_slice(&self.bytes);
        Storage::from_bytes(Bytes::from(bytes))
    }

    /// Views what [`Data::storage`] has made.
    pub(super) fn operand<'a>(&self, storage: &'a Storage) -> Result<Operand<'a>, OperandError> {
        match &self.strides {
            Some(strides) => Operand::new(storage, self.dtype, OFFSET_BYTES, &self.shape, strides),
            None => Operand::dense(storage, self.dtype, OFFSET_BYTES, &self.shape),
        }
    }
}

/// Operands do not start where their storage does.
const OFFSET_BYTES: usize = 16;

trait CollectBytes {
    fn collect_bytes(self) -> Vec<u8>;
}

impl<I: Iterator<Item = u16>> CollectBytes for I {
    fn collect_bytes(self) -> Vec<u8> {
        self.flat_map(u16::to_le_bytes).collect()
    }
}

/// A finite half of at most 2.
fn small_f16(random: &mut Random) -> u16 {
    loop {
        let bits = u16::from_le_bytes(random.two());
        if f16_to_f32(bits).abs() <= 2.0 {
            return bits;
        }
    }
}

/// Random blocks whose values are finite and not huge.
fn blocks(dtype: DType, elems: usize, random: &mut Random) -> Vec<u8> {
    let (unit_elems, unit_bytes) = dtype.unit();
    let mut bytes = Vec::new();
    let mut values = vec![0f32; unit_elems];
    while bytes.len() < elems / unit_elems * unit_bytes {
        let block: Vec<u8> = (0..unit_bytes).map(|_| random.two()[0]).collect();
        dtype.decode(&block, &mut values).expect("one block");
        if values.iter().all(|value| value.abs() < 1e4) {
            bytes.extend_from_slice(&block);
        }
    }
    bytes
}
