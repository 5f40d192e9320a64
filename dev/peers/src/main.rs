//! Times products of one contender, as `README.md` describes: a line in, a line out.
//!
//! `fucina-peers CONTENDER THREADS [LIBRARY]`
//!
//! With `PEERS_AVX2` set, nothing finds more than AVX2 while it runs.

#![deny(unsafe_code)]

mod case;
mod contenders;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
#[expect(unsafe_code, reason = "a handler of signals")]
mod hide;
#[cfg(feature = "dense")]
#[expect(unsafe_code, reason = "the peers' products take pointers")]
mod raw;

use std::io::{BufRead as _, Write as _};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use case::Weights;
use contenders::{Call, Contender, Product};

/// Most calls of a turn.
const MAX_CALLS: usize = 4096;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (name, threads, library) = match &args[..] {
        [name, threads] => (name, threads, None),
        [name, threads, library] => (name, threads, Some(library.as_str())),
        _ => bail!("usage: fucina-peers fucina|candle|gemm|blas THREADS [LIBRARY]"),
    };
    let threads = threads.parse().context("THREADS is a number")?;
    if std::env::var_os("PEERS_AVX2").is_some() {
        #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
        hide::hide()?;
        #[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
        bail!("only Linux on x86-64 can hide what the processor has");
    }
    let contender = Contender::new(name, threads, library)?;
    let mut table = Table::default();
    for line in std::io::stdin().lock().lines() {
        let answer = match table.answer(&contender, &line?) {
            Ok(answer) => answer,
            Err(why) => format!("no {}", format!("{why:#}").replace('\n', " ")),
        };
        let mut out = std::io::stdout().lock();
        writeln!(out, "{answer}")?;
        out.flush()?;
    }
    Ok(())
}

/// What is on the table.
#[derive(Default)]
struct Table {
    /// The weights of the last case, which often serve the next.
    weights: Option<(String, Weights, Box<dyn Product>)>,
    call: Option<Call>,
    turn: usize,
}

impl Table {
    fn answer(&mut self, contender: &Contender, line: &str) -> Result<String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["open", format, m, n, k] => {
                self.call = None;
                let key = format!("{format} {n} {k}");
                if self.weights.as_ref().is_none_or(|(of, ..)| *of != key) {
                    self.weights = None;
                    let weights = Weights::new(format, n.parse()?, k.parse()?)?;
                    let product = contender.take(&weights)?;
                    self.weights = Some((key, weights, product));
                }
                self.open(m.parse()?)
            }
            ["run", ms] => self.run(ms.parse()?),
            ["close"] => {
                *self = Self::default();
                Ok("ok".to_owned())
            }
            _ => bail!("no such command"),
        }
    }

    fn open(&mut self, m: usize) -> Result<String> {
        let (_, weights, product) = self.weights.as_ref().context("no weights are there")?;
        let x = weights.activations(m)?;
        let mut call = product.bind(&x, m)?;
        let error = weights.error(&x, &call(0)?)?;
        self.call = Some(call);
        Ok(format!("ok {error} {}", product.kernel()))
    }

    /// Calls for so many milliseconds, and one at least.
    fn run(&mut self, ms: f64) -> Result<String> {
        let (Some(call), Some((.., product))) = (&mut self.call, &self.weights) else {
            bail!("no case is open")
        };
        let limit = Duration::try_from_secs_f64(ms / 1e3)?;
        let (begin, mut answer) = (Instant::now(), "ns".to_owned());
        for _ in 0..MAX_CALLS {
            self.turn += 1;
            let (at, start) = (self.turn % product.copies(), Instant::now());
            // The result is dropped within the time: its memory is part of a call.
            drop(call(at)?);
            answer += &format!(" {}", start.elapsed().as_nanos());
            if begin.elapsed() >= limit {
                break;
            }
        }
        Ok(answer)
    }
}
