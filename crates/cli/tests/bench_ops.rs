//! `fucina bench ops`.

#![cfg(test)]

mod common;

use common::call;

/// Small enough for a debug build.
const DIMS: [&str; 9] =
    ["bench", "ops", "--dims", "3", "64", "256", "--iters", "2", "--weights=cached"];

fn with(args: &[&'static str]) -> Vec<&'static str> {
    [&DIMS[..], args].concat()
}

#[test]
fn every_format_has_a_row_with_its_kernel_and_a_small_error() {
    let formats = "q4_k,q5_k,q6_k,q8_0,q5_0,q4_0,q4_1,q2_k,q3_k,tq2_0,f16,bf16,f32";
    let rows = call(&with(&["--format", formats, "-t", "1,2", "--json"])).ok().json();
    let rows = rows.as_array().unwrap();
    assert_eq!(rows.len(), 2 * 13);
    for (at, row) in rows.iter().enumerate() {
        assert_eq!(row["threads"], 1 + at / 13, "{row}");
        assert_eq!((&row["m"], &row["n"], &row["k"]), (&3.into(), &64.into(), &256.into()));
        assert_eq!(row["samples_ns"].as_array().unwrap().len(), 2, "{row}");
        let number = |field: &str| row[field].as_f64().unwrap();
        assert!(number("ms_min") <= number("ms") && number("ms") > 0.0, "{row}");
        // 2 m n k operations, in the time of the median.
        let gflops = 2.0 * 3.0 * 64.0 * 256.0 / number("ms") / 1e6;
        assert!((number("gflops") / gflops - 1.0).abs() < 1e-9, "{row}");
        assert!((number("floor_ms") / number("ms") / number("share") - 1.0).abs() < 1e-9, "{row}");
        // Activations in 8 bits are off by half a step of 1/127 of the largest, 0.4 % of their
        // root mean square; f32 sums by far less.
        let is_block = row["format"].as_str().unwrap().starts_with(['Q', 'T']);
        let most = if is_block { 0.012 } else { 1e-5 };
        assert!(number("error") < most, "{row}");
        let kernel = row["kernel"].as_str().unwrap();
        assert_eq!(kernel.starts_with("panel16/"), is_block, "{row}");
    }
}

#[test]
fn table_and_csv_have_a_line_for_each_row() {
    let done = call(&with(&["--format", "q8_0,f32", "-t", "2"])).ok();
    let lines: Vec<&str> = done.stdout.lines().collect();
    assert_eq!(lines.len(), 2 + 2, "{}", done.stdout);
    let width = lines[0].chars().count();
    assert!(lines.iter().all(|line| line.chars().count() == width), "{}", done.stdout);
    assert!(lines[2].contains("Q8_0 3x64x256"), "{}", lines[2]);
    for words in ["2 threads", "weights cached", "GB/s from memory", "in 8 bits"] {
        assert!(done.stderr.contains(words), "{words} is not in {}", done.stderr);
    }
    let csv = call(&with(&["--format", "q8_0,f32", "--csv", "-q"])).ok();
    assert_eq!(csv.stderr, "");
    let columns: Vec<usize> = csv.stdout.lines().map(|line| line.split(',').count()).collect();
    assert_eq!(columns, [22, 22, 22], "{}", csv.stdout);
}

#[test]
fn calls_of_the_tables_run_and_agree_with_f64() {
    let args = ["bench", "ops", "--section", "light", "--iters", "1", "-t", "2", "--json"];
    for shape in ["rms norm", "rope", "to 8 bits", "top 40", "add"] {
        let rows = call(&[&args[..], &["--shape", shape]].concat()).ok().json();
        for row in rows.as_array().unwrap() {
            let most = if shape == "to 8 bits" { 0.012 } else { 1e-5 };
            assert!(row["error"].as_f64().unwrap() < most, "{row}");
            assert!(row["gb_s"].as_f64().unwrap() > 0.0, "{row}");
            assert_eq!(row["gflops"], serde_json::Value::Null, "{row}");
        }
    }
}

#[test]
fn what_cannot_be_is_one_sentence() {
    call(&["bench", "ops", "--shape", "nothing"]).failed(2, &["no call has", "Q4_K 1x4096x4096"]);
    call(&["bench", "ops", "--format", "q9"]).failed(2, &["--format", "Q4_K"]);
    call(&["bench", "ops", "--format", "q4_k", "--dims", "1", "1", "32"]).failed(2, &["256"]);
    call(&["bench", "model.gguf", "ops"]).failed(2, &["ops"]);
}
