//! `fucina bench account`: where the time of a prompt and of a token goes, call by call.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use fucina::accel::{Decision, Record, Timeline};
use fucina::llm::{Model, SessionOptions};
use fucina::{Ceilings, DType, Runtime, packed_bytes};
use serde::Serialize;

use super::{Test, feed, tokens};
use crate::args::{repetitions, threads};
use crate::exit::{Exit, Failure};
use crate::load::LoadArgs;
use crate::output;
use crate::source::{self, Source};

/// Calls that one test may make, rounds and warm-up together.
const RECORDS: usize = 1 << 18;
/// Bytes that are read to tell the bandwidth of the memory.
const READ_BYTES: usize = 256 << 20;

/// Show where the time of a prompt and of a token goes
///
/// Runs each test once to warm up and then with a clock on every call. Calls with the same op, format
/// and weights are one row: how many there are, microseconds for all of them and for each, the part
/// of the whole, and the shortest time that this machine's ceilings allow, where the call is a product.
/// What no row has is between the calls.
#[derive(Args)]
#[command(after_help = "\
Examples:
  fucina bench account model.gguf
  fucina bench account model.gguf -p 512 -n 0 -t 1 --json")]
pub(crate) struct AccountArgs {
    /// A GGUF file, or the name of a pulled model [default: the embedded model]
    model: Option<PathBuf>,
    /// Tokens of a prompt; 0 leaves it out
    #[arg(short = 'p', long, value_name = "N", default_value_t = 128)]
    n_prompt: usize,
    /// Tokens to generate; 0 leaves them out
    #[arg(short = 'n', long, value_name = "N", default_value_t = 32)]
    n_gen: usize,
    /// Rounds of each test
    #[arg(short, long, value_name = "N", default_value_t = 5, value_parser = repetitions)]
    repetitions: usize,
    #[command(flatten)]
    load: LoadArgs,
    /// Threads [default: `FUCINA_THREADS`, or all CPUs that the process may use]
    #[arg(short, long, value_name = "N", value_parser = threads)]
    threads: Option<usize>,
    /// Write JSON instead of tables
    #[arg(long)]
    json: bool,
    /// Write nothing but errors to standard error
    #[arg(short, long)]
    quiet: bool,
}

/// The account of one test. The fields are those of `--json`; `docs/cli.md` describes them.
#[derive(Serialize)]
struct Account {
    model: String,
    test: String,
    isa: &'static str,
    threads: usize,
    /// Passes through the network in a round: 1, or one for each token.
    passes: usize,
    rounds: usize,
    memory_bytes_s: f64,
    int8_ops_s: f64,
    f32_ops_s: f64,
    /// Of a pass, all calls and what is between them.
    us: f64,
    rows: Vec<Row>,
    between_us: f64,
}

/// Calls of one kind. Times are those of one pass.
#[derive(Serialize)]
struct Row {
    op: &'static str,
    format: &'static str,
    /// Sizes of the weights of a product.
    #[serde(skip_serializing_if = "Option::is_none")]
    weights: Option<Vec<usize>>,
    /// `cpu`, or the provider.
    ran_on: &'static str,
    calls: f64,
    us: f64,
    /// The shortest time that the ceilings allow. Only for products on the CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    floor_us: Option<f64>,
}

pub(crate) fn run(args: &AccountArgs) -> anyhow::Result<Exit> {
    let source = Source::of(args.model.as_deref())?;
    let timeline = Arc::new(Timeline::new(RECORDS));
    let rt = source::timed(args.threads, &timeline)?;
    let model = args.load.model(&rt, &source, args.quiet)?;
    let ceilings = rt.ceilings(READ_BYTES)?;
    let tests = [Test::Prompt(args.n_prompt), Test::Generate(args.n_gen)];
    let tests: Vec<Test> = tests.into_iter().filter(|test| test.tokens() > 0).collect();
    let room = model.info().context;
    if let Some(test) = tests.iter().find(|test| test.tokens() > room) {
        let message =
            format!("the test {} does not fit the model's context of {room} tokens", test.name(0));
        return Err(Failure::usage(message).into());
    }
    let mut accounts = Vec::new();
    for test in tests {
        let account = account(&model, &source, test, args.repetitions, (&timeline, &ceilings))?;
        if !args.json {
            output::print(&text(&account))?;
        }
        accounts.push(account);
    }
    if args.json {
        output::print_json(&accounts)?;
    }
    Ok(Exit::Ok)
}

fn account(
    model: &Model,
    source: &Source,
    test: Test,
    rounds: usize,
    (timeline, ceilings): (&Timeline, &Ceilings),
) -> anyhow::Result<Account> {
    let rt = model.runtime();
    let mut session = model.session(&SessionOptions::default().context(Some(test.tokens())))?;
    let tokens = tokens(test.tokens(), model.tokenizer().vocab_size(), 2);
    let passes = match test {
        Test::Prompt(_) => 1,
        Test::Generate(tokens) => tokens,
    };
    let mut sums = Sums::default();
    for round in 0..=rounds {
        session.truncate(0);
        let before = timeline.records().len();
        let start = timeline.now_ns();
        feed(&mut session, test, &tokens)?;
        let whole = timeline.since(start);
        // The first round warms up caches, page tables and threads.
        if round > 0 {
            sums.add(&timeline.records()[before..], whole.len_ns());
        }
    }
    if timeline.dropped() > 0 {
        let message = format!("more than {RECORDS} calls; give a smaller -n, -p or -r");
        return Err(Failure::usage(message).into());
    }
    Ok(sums.account(rt, ceilings, (source.short_name(), test.name(0)), (passes, rounds)))
}

/// What tells the calls of one row from those of others.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Kind {
    op: &'static str,
    format: DType,
    ran_on: &'static str,
    /// Rows, columns of the result, contracted size; of a product.
    product: Option<[usize; 3]>,
}

impl Kind {
    fn of(decision: &Decision) -> Self {
        let shapes = &decision.shapes;
        let is_product = matches!(decision.op, "matmul" | "grouped_matmul");
        let product = match (is_product, shapes.first(), shapes.get(1)) {
            (true, Some(x), Some(weights)) => {
                let (rows, k) = (x.iter().rev().skip(1).product(), x.last().copied());
                let n = weights.iter().rev().nth(1).copied();
                k.zip(n).map(|(k, n)| [rows, n, k])
            }
            _ => None,
        };
        let ran_on = match decision.outcome {
            fucina::accel::Outcome::Offloaded { provider } => provider,
            _ => "cpu",
        };
        Self { op: decision.op, format: decision.format, ran_on, product }
    }

    /// Microseconds that the ceilings allow for one call: the weights are read once, and
    /// multiplied in the unit that the format's kernels use.
    #[expect(clippy::cast_precision_loss, reason = "sizes of products are far below 2^53")]
    fn floor_us(&self, ceilings: &Ceilings) -> Option<f64> {
        let [m, n, k] = self.product.filter(|_| self.ran_on == "cpu" && self.op == "matmul")?;
        let packed = packed_bytes(self.format, n, k);
        let bytes = packed.or_else(|| self.format.row_bytes(k)?.checked_mul(n))?;
        let rate = if packed.is_some() { ceilings.int8 } else { ceilings.f32 };
        let operations = 2.0 * m as f64 * n as f64 * k as f64;
        Some(1e6 * (bytes as f64 / ceilings.memory).max(operations / rate))
    }
}

/// What the rounds of one test added up to.
#[derive(Default)]
struct Sums {
    kinds: HashMap<Kind, (u64, u64)>,
    whole_ns: u64,
}

impl Sums {
    fn add(&mut self, records: &[Record], whole_ns: u64) {
        self.whole_ns += whole_ns;
        for record in records {
            if let Record::Call { span, decision, .. } = record {
                let (calls, ns) = self.kinds.entry(Kind::of(decision)).or_default();
                *calls += 1;
                *ns += span.len_ns();
            }
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "nanoseconds of a run are far below 2^53")]
    fn account(
        self,
        rt: &Runtime,
        ceilings: &Ceilings,
        (model, test): (String, String),
        (passes, rounds): (usize, usize),
    ) -> Account {
        let each = |count: u64| count as f64 / (passes * rounds) as f64;
        let row = |(kind, (calls, ns)): (Kind, (u64, u64))| Row {
            op: kind.op,
            format: kind.format.name(),
            weights: kind.product.map(|[_, n, k]| vec![n, k]),
            ran_on: kind.ran_on,
            calls: each(calls),
            us: each(ns) / 1e3,
            floor_us: kind.floor_us(ceilings).map(|us| us * each(calls)),
        };
        let mut rows: Vec<Row> = self.kinds.into_iter().map(row).collect();
        rows.sort_by(|a, b| b.us.total_cmp(&a.us));
        let us = each(self.whole_ns) / 1e3;
        Account {
            model,
            test,
            isa: rt.isa().name(),
            threads: rt.threads(),
            passes,
            rounds,
            memory_bytes_s: ceilings.memory,
            int8_ops_s: ceilings.int8,
            f32_ops_s: ceilings.f32,
            us,
            between_us: us - rows.iter().map(|row| row.us).sum::<f64>(),
            rows,
        }
    }
}

fn text(account: &Account) -> String {
    let giga = |rate: f64| rate / 1e9;
    let mut out = format!(
        "{} · {} · cpu {}, {} · at most {:.1} GB/s from memory, {:.0} GOP/s in 8 bits, {:.0} GFLOP/s in f32\n",
        output::plain(&account.model),
        account.test,
        account.isa,
        output::plural(account.threads, "thread"),
        giga(account.memory_bytes_s),
        giga(account.int8_ops_s),
        giga(account.f32_ops_s),
    );
    let head = [
        "op", "format", "weights", "ran on", "calls", "us", "us each", "part", "floor us",
        "floor/us",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    let part = |us: f64| format!("{:.1} %", 100.0 * us / account.us);
    for row in &account.rows {
        let weights = row
            .weights
            .as_ref()
            .map(|sizes| sizes.iter().map(usize::to_string).collect::<Vec<_>>().join(" x "));
        rows.push(vec![
            row.op.to_owned(),
            row.format.to_owned(),
            weights.unwrap_or_default(),
            row.ran_on.to_owned(),
            format!("{:.0}", row.calls),
            format!("{:.1}", row.us),
            format!("{:.2}", row.us / row.calls),
            part(row.us),
            row.floor_us.map_or(String::new(), |us| format!("{us:.1}")),
            row.floor_us.map_or(String::new(), |us| format!("{:.2}", us / row.us)),
        ]);
    }
    for (name, us) in [("between calls", account.between_us), ("a pass", account.us)] {
        let mut cells = vec![String::new(); rows[0].len()];
        (cells[0], cells[5], cells[7]) = (name.to_owned(), format!("{us:.1}"), part(us));
        rows.push(cells);
    }
    out +=
        &output::columns(&rows, &[false, false, true, false, true, true, true, true, true, true]);
    out.push('\n');
    out
}

#[cfg(test)]
mod tests {
    use fucina::accel::{CpuReason, Outcome, Shape, Shapes, Span};

    use super::*;

    fn call(op: &'static str, format: DType, shapes: &[&[usize]], ns: u64) -> Record {
        let shapes = shapes.iter().filter_map(|shape| Shape::new(shape));
        let decision = Decision {
            op,
            shapes: Shapes::new(shapes),
            format,
            outcome: Outcome::Cpu { reason: CpuReason::NoProvider },
            kernel: None,
        };
        let span = Span { start_ns: 10, end_ns: 10 + ns };
        Record::Call { thread: 1, span, decision, offered: None, command: None }
    }

    #[test]
    fn calls_of_a_kind_are_one_row_and_the_rest_is_between_them() {
        let weights: &[usize] = &[1, 64, 256];
        let records = [
            call("matmul", DType::Q8_0, &[&[1, 1, 256], weights], 3000),
            call("matmul", DType::Q8_0, &[&[1, 1, 256], weights], 5000),
            call("matmul", DType::Q4_K, &[&[1, 1, 256], weights], 1000),
            call("add", DType::F32, &[&[1, 256], &[1, 256]], 500),
        ];
        let mut sums = Sums::default();
        sums.add(&records, 12_000);
        sums.add(&records, 8_000);
        let rt = Runtime::builder().threads(1).build().unwrap();
        let ceilings = rt.ceilings(1 << 20).unwrap();
        let names = ("m".to_owned(), "tg2".to_owned());
        let account = sums.account(&rt, &ceilings, names, (2, 2));
        assert_eq!(account.us, 5.0);
        let found: Vec<_> =
            account.rows.iter().map(|row| (row.op, row.format, row.calls, row.us)).collect();
        let want =
            [("matmul", "Q8_0", 1.0, 4.0), ("matmul", "Q4_K", 0.5, 0.5), ("add", "F32", 0.5, 0.25)];
        assert_eq!(found, want);
        assert_eq!(account.between_us, 0.25);
        assert_eq!(account.rows[0].weights, Some(vec![64, 256]));
        assert!(account.rows[0].floor_us.is_some() && account.rows[2].floor_us.is_none());
        assert!(text(&account).contains("64 x 256"), "{}", text(&account));
    }

    /// One row of weights is bound by memory, many rows by arithmetic.
    #[test]
    fn the_floor_is_that_of_the_ceiling_that_takes_longer() {
        let rt = Runtime::builder().threads(1).build().unwrap();
        let mut ceilings = rt.ceilings(1 << 20).unwrap();
        (ceilings.memory, ceilings.int8, ceilings.f32) = (1e9, 1e12, 1e11);
        let kind =
            |m, format| Kind { op: "matmul", format, ran_on: "cpu", product: Some([m, 64, 256]) };
        let bytes = packed_bytes(DType::Q8_0, 64, 256).unwrap() as f64;
        let operations = 2.0 * 4096.0 * 64.0 * 256.0;
        for (kind, us) in [
            (kind(1, DType::Q8_0), bytes / 1e3),
            (kind(4096, DType::Q8_0), operations / 1e6),
            (kind(4096, DType::F16), operations / 1e5),
        ] {
            let floor = kind.floor_us(&ceilings).unwrap();
            assert!((floor / us - 1.0).abs() < 1e-9, "{floor} is not {us}");
        }
    }
}
