//! Whole models in turns: `fucina bench` and `llama-bench` with the same file.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::Args;
use super::contender::Contender;
use super::record::{MODEL, Record};

/// Tokens of the prompts, and of the generation.
const PROMPTS: [usize; 2] = [128, 512];
const GENERATE: usize = 128;

/// A rate, and the name of its test.
type Rate = (String, f64);

pub(super) fn run(args: &Args, contenders: &[Contender], record: &mut Record) -> Result<()> {
    for model in &args.model {
        ensure!(model.is_file(), "there is no file {}", model.display());
        for &threads in &args.threads {
            measure(args, contenders, model, threads, record)?;
        }
    }
    Ok(())
}

fn measure(
    args: &Args,
    contenders: &[Contender],
    model: &Path,
    threads: usize,
    record: &mut Record,
) -> Result<()> {
    let players: Vec<_> =
        contenders.iter().filter(|contender| contender.models.is_some()).collect();
    let mut rates: Vec<Vec<Rate>> = vec![Vec::new(); players.len()];
    let rounds = if args.quick { 1 } else { args.rounds };
    for round in 0..rounds {
        for at in 0..players.len() {
            let at = (at + round) % players.len();
            match turn(players[at], args, model, threads) {
                Ok(more) => rates[at].extend(more),
                Err(why) => eprintln!("bench-peers: {}: {why:#}", players[at].name),
            }
        }
    }
    let file = model.file_stem().unwrap_or_default().to_string_lossy();
    for (player, rates) in players.iter().zip(rates) {
        let mut tests: Vec<&str> = rates.iter().map(|(test, _)| test.as_str()).collect();
        tests.sort_unstable();
        tests.dedup();
        for test in tests {
            let of = rates.iter().filter(|(name, _)| name == test);
            let values: Vec<f64> = of.map(|(_, rate)| *rate).collect();
            let case = format!("{file} {test}");
            record.add((MODEL, &case, threads), "t/s", &values, &player.name)?;
        }
    }
    Ok(())
}

/// One turn: a process that runs every test once, after a round to warm up.
fn turn(player: &Contender, args: &Args, model: &Path, threads: usize) -> Result<Vec<Rate>> {
    let program = player.models.as_ref().context("it runs no models")?;
    let mut command = player.command(program, args.with.as_deref());
    let prompts = PROMPTS.map(|tokens| tokens.to_string()).join(",");
    let (threads, generate) = (threads.to_string(), GENERATE.to_string());
    let shared = ["-p", &prompts, "-n", &generate, "-r", "1", "-t", &threads];
    if player.is_ours() {
        command.arg("bench").arg(model).args(shared).args(["--json", "-q"]);
        // What the machine has beside the processor takes no part.
        command.env("FUCINA_GPU", "0");
        ours(&output(&mut command)?)
    } else {
        command.arg("-m").arg(model).args(shared).args(["-o", "json"]);
        theirs(&output(&mut command)?)
    }
}

fn output(command: &mut Command) -> Result<Value> {
    let output = command.output().context("it does not start")?;
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.lines().last().unwrap_or_default();
    ensure!(output.status.success(), "{}: {last}", output.status);
    serde_json::from_slice(&output.stdout).context("it does not answer in JSON")
}

fn rates(rows: &Value, rate: impl Fn(&Value) -> Option<Rate>) -> Result<Vec<Rate>> {
    let rows = rows.as_array().context("its answer is no list")?;
    rows.iter().map(|row| rate(row).with_context(|| format!("no rate in {row}"))).collect()
}

fn ours(rows: &Value) -> Result<Vec<Rate>> {
    rates(rows, |row| Some((row["test"].as_str()?.to_owned(), row["median"].as_f64()?)))
}

fn theirs(rows: &Value) -> Result<Vec<Rate>> {
    rates(rows, |row| {
        let test = match (row["n_prompt"].as_u64()?, row["n_gen"].as_u64()?) {
            (0, tokens) => format!("tg{tokens}"),
            (tokens, _) => format!("pp{tokens}"),
        };
        Some((test, row["avg_ts"].as_f64()?))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn both_answers_give_the_same_tests() {
        let mine = json!([{"test": "pp128", "median": 5.0}, {"test": "tg8", "median": 2.5}]);
        let other = json!([
            {"n_prompt": 128, "n_gen": 0, "avg_ts": 5.0},
            {"n_prompt": 0, "n_gen": 8, "avg_ts": 2.5},
        ]);
        let want = vec![("pp128".to_owned(), 5.0), ("tg8".to_owned(), 2.5)];
        assert_eq!(ours(&mine).unwrap(), want);
        assert_eq!(theirs(&other).unwrap(), want);
        assert!(ours(&json!({})).is_err() && theirs(&json!([{}])).is_err());
    }
}
