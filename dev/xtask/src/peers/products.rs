//! Products in turns: every contender opens the case, and then they run it one after the other, as
//! often as there are rounds. The next round begins with another of them.

use anyhow::{Result, ensure};

use super::cases::{self, Case};
use super::contender::{Contender, Opened, Running};
use super::record::{PRODUCT, Record, spread};
use super::{Args, report};

/// A contender in a match.
struct Seat<'a> {
    contender: &'a Contender,
    running: Option<Running>,
    opened: Option<Opened>,
    /// Medians of the rounds, in milliseconds.
    rounds: Vec<f64>,
}

pub(super) fn run(args: &Args, contenders: &[Contender], record: &mut Record) -> Result<()> {
    let cases = cases::chosen(args);
    ensure!(!cases.is_empty(), "no product has this name and format");
    for &threads in &args.threads {
        let seat = |contender| Seat { contender, running: None, opened: None, rounds: Vec::new() };
        let mut seats: Vec<_> = contenders.iter().map(seat).collect();
        for case in &cases {
            measure(args, threads, case, &mut seats, record)?;
        }
    }
    Ok(())
}

fn measure(
    args: &Args,
    threads: usize,
    case: &Case,
    seats: &mut [Seat<'_>],
    record: &mut Record,
) -> Result<()> {
    for seat in seats.iter_mut() {
        seat.open(args, threads, case);
    }
    let rounds = if args.quick { 1 } else { args.rounds };
    for round in 0..rounds {
        for at in 0..seats.len() {
            let next = (at + round) % seats.len();
            if let Some(seat) = seats.get_mut(next) {
                seat.turn(args.turn);
            }
        }
    }
    let name = case.name();
    for seat in seats.iter_mut() {
        let (Some(opened), false) = (&seat.opened, seat.rounds.is_empty()) else { continue };
        let who = format!("{}: {}", seat.contender.name, opened.kernel);
        record.add((PRODUCT, &name, threads), "ms", &seat.rounds, &who)?;
        record.add((PRODUCT, &name, threads), "error", &[opened.error], &who)?;
    }
    eprintln!("{}", report::line(record.rows(), &name, threads));
    Ok(())
}

impl Seat<'_> {
    fn open(&mut self, args: &Args, threads: usize, case: &Case) {
        self.rounds.clear();
        self.opened = None;
        let Case { format, m, n, k } = case;
        if self.running.is_none() {
            self.running = self.contender.start(threads, args.with.as_deref()).ok();
        }
        let Some(running) = &mut self.running else { return };
        match running.open(&format!("{format} {m} {n} {k}")) {
            Ok(opened) => self.opened = Some(opened),
            Err(why) => self.gone(&case.name(), &why),
        }
    }

    fn turn(&mut self, ms: f64) {
        let (Some(running), Some(_)) = (&mut self.running, &self.opened) else { return };
        // The first call after the others' turns finds cold caches: it is not counted.
        let times = running.run(0.001).and_then(|_| running.run(ms));
        match times {
            Ok(times) => self.rounds.push(spread(&times).0 / 1e6),
            Err(why) => self.gone("a turn", &why),
        }
    }

    /// Says why there is no figure. Whoever ended is started again for the next case.
    fn gone(&mut self, what: &str, why: &anyhow::Error) {
        self.opened = None;
        let why = why.to_string();
        if why.starts_with("it ended") {
            self.running = None;
        }
        eprintln!("bench-peers: {what}: {}: {why}", self.contender.name);
    }
}
