//! What this machine does at most with the threads and the instruction set of a runtime: a scale
//! for the times of ops.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fucina_kernels::probe;
use zerocopy::FromBytes;

use crate::error::{Error, Result};
use crate::ops;
use crate::runtime::Runtime;

/// Words that a task reads at once: small beside any cache, large beside the cost of a task.
const PIECE_WORDS: usize = 1 << 15;
/// What a core's own caches and the shared one surely hold.
const CACHED_BYTES: usize = 8 << 20;
/// Rounds of arithmetic of a task: about 50 µs.
const ROUNDS: usize = 20_000;
/// Tasks for each thread, so that one that is late takes fewer.
const TASKS: usize = 8;
/// How long each figure is looked for.
const PATIENCE: Duration = Duration::from_millis(60);
/// Fewest measurements of a figure.
const FEWEST: usize = 3;

/// The best of several measurements each: a ceiling is what was possible.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Ceilings {
    /// Bytes a second that all threads read from memory that no cache holds.
    pub memory: f64,
    /// The same from 8 MiB that were read just before.
    pub cache: f64,
    /// f32 multiplications and additions a second, in registers.
    pub f32: f64,
    /// The same of bytes, added to 32-bit sums.
    pub int8: f64,
}

impl Runtime {
    /// Measures, with reads of `memory_bytes` bytes, which should be more than the caches hold.
    ///
    /// # Errors
    ///
    /// Fails without memory.
    pub fn ceilings(&self, memory_bytes: usize) -> Result<Ceilings> {
        let (isa, tasks) = (self.isa(), TASKS * self.threads());
        let counted = |steps: fn(_, _) -> u64| {
            best(|| {
                let operations = AtomicU64::new(0);
                self.team().run(tasks, |_| {
                    operations.fetch_add(steps(isa, ROUNDS), Ordering::SeqCst);
                });
                operations.into_inner()
            })
        };
        Ok(Ceilings {
            memory: self.bandwidth(memory_bytes.max(CACHED_BYTES))?,
            cache: self.bandwidth(CACHED_BYTES)?,
            f32: counted(probe::multiply_add_f32),
            int8: counted(probe::dot_i8),
        })
    }

    fn bandwidth(&self, len_bytes: usize) -> Result<f64> {
        let op = "ceilings";
        let mut storage = self.pool().take(len_bytes)?;
        let bytes = storage.host_mut().map_err(|error| ops::storage_error(error, op))?;
        // Pages that were never written are all one page of zeros.
        self.team().for_each_chunk(&mut bytes[..len_bytes], 8 * PIECE_WORDS, |piece, out| {
            out.fill(u8::try_from(piece % 251).unwrap_or(0) + 1);
        });
        let unaligned = |_| Error::Unaligned { op, dtype: fucina_dtype::DType::I32 };
        let words = &storage.host()?[..len_bytes / 8 * 8];
        let words = <[u64]>::ref_from_bytes(words).map_err(unaligned)?;
        let pieces: Vec<_> = words.chunks(PIECE_WORDS).collect();
        let read = || {
            let all = AtomicU64::new(0);
            self.team().run(pieces.len(), |piece| {
                all.fetch_xor(probe::read(self.isa(), pieces[piece]), Ordering::SeqCst);
            });
            std::hint::black_box(all.into_inner());
            words.len() as u64 * 8
        };
        Ok(best(read))
    }
}

/// The highest rate, in units a second, of a measurement that says how many units it took.
#[expect(clippy::cast_precision_loss, reason = "counts of a few milliseconds")]
fn best(mut measure: impl FnMut() -> u64) -> f64 {
    let (begin, mut best, mut done) = (Instant::now(), 0f64, 0);
    while done < FEWEST || begin.elapsed() < PATIENCE {
        let start = Instant::now();
        let units = measure();
        let seconds = start.elapsed().as_secs_f64().max(1e-9);
        best = best.max(units as f64 / seconds);
        done += 1;
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ceilings_are_positive_numbers() {
        let rt = Runtime::builder().threads(2).build().unwrap();
        let Ceilings { memory, cache, f32, int8 } = rt.ceilings(1 << 20).unwrap();
        for (name, rate) in [("memory", memory), ("cache", cache), ("f32", f32), ("int8", int8)] {
            // No machine that runs this does less than a million or more than 10^16 a second.
            assert!((1e6..1e16).contains(&rate), "{name}: {rate}");
        }
    }
}
