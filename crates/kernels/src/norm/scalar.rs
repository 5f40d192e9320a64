#![deny(unsafe_code)]

/// Partial sums: enough independent chains for two 512-bit registers of f64.
const LANES: usize = 16;

#[inline(always)]
pub(super) fn rms_norm(x: &[f32], weight: Option<&[f32]>, eps: f32, out: &mut [f32]) {
    #[expect(clippy::cast_precision_loss, reason = "a row is shorter than 2^53")]
    let mean = sum_of_squares(x) / x.len() as f64;
    let scale = 1.0 / (mean + f64::from(eps)).sqrt();
    match weight {
        Some(weight) => {
            for ((out, &x), &w) in out.iter_mut().zip(x).zip(weight) {
                *out = round(f64::from(x) * scale * f64::from(w));
            }
        }
        None => {
            for (out, &x) in out.iter_mut().zip(x) {
                *out = round(f64::from(x) * scale);
            }
        }
    }
}

/// Sum of squares; the lanes make the order of additions the same for every vector width.
#[inline(always)]
fn sum_of_squares(x: &[f32]) -> f64 {
    let mut sums = [0.0_f64; LANES];
    let (chunks, tail) = x.as_chunks::<LANES>();
    for chunk in chunks {
        for (sum, &x) in sums.iter_mut().zip(chunk) {
            *sum += f64::from(x) * f64::from(x);
        }
    }
    for (sum, &x) in sums.iter_mut().zip(tail) {
        *sum += f64::from(x) * f64::from(x);
    }
    sums.iter().sum()
}

#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "rounding to f32 is the point")]
fn round(x: f64) -> f32 {
    x as f32
}
