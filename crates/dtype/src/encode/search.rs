//! How the K formats choose scales: searches over a few candidates, scored by weighted error.
//!
//! A group is approximated by `scale * l` or `scale * l + min` with integers `l`. Each search
//! starts from the scale that the extremes suggest, tries neighbours, solves a least-squares
//! problem for each, and keeps the best. The candidates, weights and the order of sums are ggml's.

/// A group whose largest magnitude is below this counts as zeros.
pub(crate) const ZERO_GROUP: f32 = 1e-15;

/// The nearest integer, ties to even, for magnitudes up to 2^22.
///
/// Adding 1.5 * 2^23 leaves no bit for a fraction, so the addition rounds. Beyond 2^22 the result
/// is some integer: callers clamp it, and score what they get.
#[inline]
pub(crate) fn nearest_int(value: f32) -> i32 {
    const SHIFT: f32 = 12_582_912.0;
    ((value + SHIFT).to_bits() & 0x007f_ffff).cast_signed() - 0x0040_0000
}

/// An integer of at most 8 bits as f32, exact.
#[inline]
#[expect(clippy::cast_precision_loss, reason = "callers clamp to a few bits")]
fn real(quant: i32) -> f32 {
    quant as f32
}

/// A clamped integer as a stored quant.
#[inline]
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped by callers")]
fn stored(quant: i32) -> u8 {
    quant as u8
}

/// Quants of a group and what they are multiplied with.
#[derive(Debug)]
pub(crate) struct Scaled<const N: usize> {
    pub(crate) scale: f32,
    /// Counted from the smallest.
    pub(crate) quants: [u8; N],
}

impl<const N: usize> Scaled<N> {
    const ZERO: Self = Self { scale: 0.0, quants: [0; N] };
}

/// Weighted sums for the best `scale` in `x ~ scale * l`: it is `xl / ll`.
#[derive(Default, Clone, Copy)]
struct Sums {
    xl: f32,
    ll: f32,
}

impl Sums {
    /// Weights of `x * x` favour the large values.
    fn with(self, x: f32, l: i32) -> Self {
        let (w, l) = (x * x, real(l));
        Self { xl: self.xl + w * x * l, ll: self.ll + w * l * l }
    }

    /// Not a number if the sums overflowed, which callers refuse.
    fn scale(self) -> f32 {
        if self.ll == 0.0 { 0.0 } else { self.xl / self.ll }
    }
}

/// Quants from `-half` to `half - 1`: the scale is searched on a grid around the one that puts the
/// extreme on `-half`.
pub(crate) fn symmetric_grid<const N: usize>(x: &[f32; N], half: i32) -> Scaled<N> {
    let extreme = super::extreme(x);
    if extreme.abs() < ZERO_GROUP {
        return Scaled::ZERO;
    }
    let quant = |inverse: f32, x: f32| nearest_int(inverse * x).clamp(-half, half - 1);
    let sums =
        |inverse: f32| x.iter().fold(Sums::default(), |sums, &x| sums.with(x, quant(inverse, x)));
    let mut inverse = -real(half) / extreme;
    let first = sums(inverse);
    let mut scale = first.scale();
    let mut best = scale * first.xl;
    for step in (-9..=9).filter(|&step| step != 0) {
        let candidate = -(real(half) + 0.1 * real(step)) / extreme;
        let sums = sums(candidate);
        if sums.ll > 0.0 && sums.xl * sums.xl > best * sums.ll {
            inverse = candidate;
            scale = sums.xl / sums.ll;
            best = scale * sums.xl;
        }
    }
    Scaled { scale, quants: x.map(|x| stored(quant(inverse, x) + half)) }
}

/// Quants from `-half` to `half - 1`: starts with the extreme on `-half`, then moves single quants
/// to where the remaining ones want them, in up to five rounds.
pub(crate) fn symmetric_descent<const N: usize>(x: &[f32; N], half: i32) -> Scaled<N> {
    let extreme = super::extreme(x);
    if extreme.abs() < ZERO_GROUP {
        return Scaled::ZERO;
    }
    let inverse = -real(half) / extreme;
    let mut quants = x.map(|x| nearest_int(inverse * x).clamp(-half, half - 1));
    let mut sums = x.iter().zip(&quants).fold(Sums::default(), |sums, (&x, &l)| sums.with(x, l));
    for _ in 0..5 {
        let mut changed = false;
        for (&x, quant) in x.iter().zip(&mut quants) {
            if let Some((better, with)) = moved(x, *quant, half, sums) {
                (*quant, sums) = (better, with);
                changed = true;
            }
        }
        if !changed {
            break;
        }
    }
    Scaled { scale: sums.scale(), quants: quants.map(|l| stored(l + half)) }
}

/// A better place for one quant and the sums with it there, if there is one.
fn moved(x: f32, quant: i32, half: i32, sums: Sums) -> Option<(i32, Sums)> {
    let (w, l) = (x * x, real(quant));
    let without = Sums { xl: sums.xl - w * x * l, ll: sums.ll - w * l * l };
    if without.xl.is_nan() || without.xl <= 0.0 {
        return None;
    }
    let better = nearest_int(x * without.ll / without.xl).clamp(-half, half - 1);
    let with = without.with(x, better);
    let improves = with.ll > 0.0 && with.xl * with.xl * sums.ll > sums.xl * sums.xl * with.ll;
    (better != quant && improves).then_some((better, with))
}

/// Quants of a group above a minimum: `x ~ scale * l - offset`, `offset >= 0`.
#[derive(Debug)]
pub(crate) struct Affine<const N: usize> {
    pub(crate) scale: f32,
    pub(crate) offset: f32,
    pub(crate) quants: [u8; N],
}

/// How errors of an affine search are summed.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Score {
    Absolute,
    Squared,
}

/// The candidates of [`affine`]: quants are computed as if the largest were
/// `most + first + 0.1 * step`, for `steps + 1` steps.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Candidates {
    pub(crate) most: u8,
    pub(crate) first: f32,
    pub(crate) steps: u8,
    pub(crate) score: Score,
}

/// Weighted sums for the best line through `(l, x)`.
#[derive(Default, Clone, Copy)]
struct LineSums {
    l: f32,
    ll: f32,
    xl: f32,
}

impl LineSums {
    fn of<const N: usize>(x: &[f32; N], weights: &[f32; N], quants: &[u8; N]) -> Self {
        let mut sums = Self::default();
        for ((&x, &w), &l) in x.iter().zip(weights).zip(quants) {
            let l = f32::from(l);
            sums.l += w * l;
            sums.ll += w * l * l;
            sums.xl += w * l * x;
        }
        sums
    }
}

/// Searches scale and offset together. `weights` says how much each element matters.
pub(crate) fn affine<const N: usize>(
    x: &[f32; N],
    weights: &[f32; N],
    candidates: Candidates,
) -> Affine<N> {
    let (min, max) = super::range(x);
    let mut min = if min > 0.0 { 0.0 } else { min };
    if max == min {
        return Affine { scale: 0.0, offset: -min, quants: [0; N] };
    }
    let most = i32::from(candidates.most);
    let quantized = |largest: f32, min: f32| {
        let inverse = largest / (max - min);
        x.map(|x| stored(nearest_int(inverse * (x - min)).clamp(0, most)))
    };
    let sum_w = weights.iter().fold(0.0, |sum, w| sum + w);
    let sum_x = x.iter().zip(weights).fold(0.0, |sum, (x, w)| sum + w * x);
    let mut scale = 1.0 / (real(most) / (max - min));
    let mut quants = quantized(real(most), min);
    let mut best = error(x, weights, &quants, (scale, min), candidates.score);
    for step in 0..=candidates.steps {
        let largest = candidates.first + 0.1 * f32::from(step) + real(most);
        // From the best minimum so far, not from the smallest value.
        let tried = quantized(largest, min);
        let sums = LineSums::of(x, weights, &tried);
        let Some(found) = line(sums, sum_w, sum_x) else { continue };
        let error = error(x, weights, &tried, found, candidates.score);
        if error < best {
            best = error;
            (scale, min) = found;
            quants = tried;
        }
    }
    Affine { scale, offset: -min, quants }
}

/// Weighted sum of the errors of `scale * l + min`.
fn error<const N: usize>(
    x: &[f32; N],
    weights: &[f32; N],
    quants: &[u8; N],
    (scale, min): (f32, f32),
    score: Score,
) -> f32 {
    let mut sum = 0.0;
    for ((&x, &w), &l) in x.iter().zip(weights).zip(quants) {
        let difference = scale * f32::from(l) + min - x;
        sum += w * match score {
            Score::Absolute => difference.abs(),
            Score::Squared => difference * difference,
        };
    }
    sum
}

/// Scale and minimum of the least-squares line whose minimum is not positive.
fn line(sums: LineSums, sum_w: f32, sum_x: f32) -> Option<(f32, f32)> {
    let determinant = sum_w * sums.ll - sums.l * sums.l;
    if determinant.is_nan() || determinant <= 0.0 {
        return None;
    }
    let min = (sums.ll * sum_x - sums.l * sums.xl) / determinant;
    if min > 0.0 {
        return Some((sums.xl / sums.ll, 0.0));
    }
    Some(((sum_w * sums.xl - sum_x * sums.l) / determinant, min))
}

/// The quants of a group once its scale and offset have been rounded: `(x + offset) / scale`.
/// A scale of zero leaves the quants as they are.
pub(crate) fn requantize(
    x: &[f32],
    scale: f32,
    offset: f32,
    (least, most): (i32, i32),
    quants: &mut [u8],
) {
    if scale == 0.0 {
        return;
    }
    for (&x, quant) in x.iter().zip(quants) {
        let l = nearest_int((x + offset) / scale).clamp(least, most);
        *quant = stored(l - least);
    }
}

#[cfg(test)]
mod tests;
