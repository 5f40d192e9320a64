//! `fucina bench` and `fucina doctor`.

#![cfg(test)]

mod common;

use common::{call, call_with};
use fucina_blas_double::control::{Double, Role};

#[test]
fn bench_prints_a_row_for_each_test() {
    let done = call(&["bench", "-p", "4,8", "-n", "2", "-r", "2", "-t", "1,2", "-d", "0,16"]).ok();
    let lines: Vec<&str> = done.stdout.lines().collect();
    assert_eq!(lines.len(), 2 + 2 * 2 * 3, "{}", done.stdout);
    let width = lines[0].chars().count();
    assert!(lines.iter().all(|line| line.chars().count() == width), "{}", done.stdout);
    let cells = |line: &str| -> Vec<String> {
        line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()
    };
    assert_eq!(cells(lines[0]), ["model", "size", "params", "backend", "threads", "test", "t/s"]);
    let row = cells(lines[2]);
    assert_eq!(row[..6], ["qwen3 Q8_0", "3.73 MiB", "3.7 M", "CPU", "1", "pp4"], "{row:?}");
    let (mean, spread) = row[6].split_once(" ± ").unwrap();
    assert!(mean.parse::<f64>().unwrap() > 0.0 && spread.parse::<f64>().unwrap() >= 0.0);
    let tests: Vec<String> = lines[2..8].iter().map(|line| cells(line)[5].clone()).collect();
    assert_eq!(tests, ["pp4", "pp8", "tg2", "pp4 @ d16", "pp8 @ d16", "tg2 @ d16"]);
    assert_eq!(cells(lines[8])[4], "2");
    assert_eq!(done.stderr, "");
}

#[test]
fn bench_json_has_every_sample_and_csv_the_same_columns() {
    let args = ["bench", "-p", "8", "-n", "2", "-r", "3", "-t", "1"];
    let rows = call(&[&args[..], &["--json"]].concat()).ok().json();
    let rows = rows.as_array().unwrap();
    assert_eq!(rows.len(), 2);
    for (row, tokens) in rows.iter().zip([8.0, 2.0]) {
        let ns: Vec<f64> =
            row["samples_ns"].as_array().unwrap().iter().map(|ns| ns.as_f64().unwrap()).collect();
        assert_eq!(ns.len(), 3);
        let mean = ns.iter().map(|ns| tokens * 1e9 / ns).sum::<f64>() / 3.0;
        let shown = row["tokens_per_second"].as_f64().unwrap();
        // Three additions and divisions of positive numbers, and the digits of the JSON.
        assert!((shown - mean).abs() <= 8.0 * f64::EPSILON * mean, "{row}");
        assert!(row["min"].as_f64() <= row["median"].as_f64());
        assert!(row["median"].as_f64() <= row["max"].as_f64());
    }
    let csv = call(&[&args[..], &["--csv"]].concat()).ok().stdout;
    let columns: Vec<usize> = csv.lines().map(|line| line.split(',').count()).collect();
    assert_eq!(columns, [19, 19, 19], "{csv}");
}

#[test]
fn doctor_tells_what_will_be_used() {
    let done = call(&["doctor"]).ok();
    for words in ["threads", "ISA", "kernels", "Q4_K", "TQ2_0", "pool", "providers"] {
        assert!(done.stdout.contains(words), "{words} is not in {}", done.stdout);
    }
    // Linux has a provider for CUDA; this machine may or may not have a driver.
    assert_eq!(done.stdout.contains("cuda"), cfg!(not(target_os = "macos")), "{}", done.stdout);
    let none = call_with(&["doctor"], &[("FUCINA_GPU", "0")]).ok();
    assert!(none.stdout.contains("none was looked for"), "{}", none.stdout);
    let elsewhere = call_with(&["doctor"], &[("FUCINA_CUDA_LIBRARY", "/no/such/libcuda.so")]).ok();
    assert!(elsewhere.stdout.contains("/no/such/libcuda.so"), "{}", elsewhere.stdout);
    let wrong = call_with(&["doctor"], &[("FUCINA_GPU_DEVICE", "first")]);
    assert_eq!(wrong.code, Some(2), "{wrong:?}");
    let report = call(&["doctor", "--json"]).ok().json();
    assert_eq!(report["isa"], fucina::Isa::best().name());
    let available: Vec<_> = fucina::Isa::available().into_iter().map(fucina::Isa::name).collect();
    assert_eq!(report["isa_available"], serde_json::json!(available));
    assert_eq!(report["kernels"].as_array().unwrap().len(), fucina::DType::ALL.len());
    assert_eq!(report["variables"], serde_json::json!([]));
    // Why AMX is used or not, and a kernel for every number of rows.
    assert!(report["amx"].as_str().unwrap().contains("AMX"), "{}", report["amx"]);
    let amx = report["isa"] == "avx512-amx";
    for kernel in report["kernels"].as_array().unwrap() {
        let rows = kernel["rows"].as_array().unwrap();
        assert!(amx || rows.len() <= 1, "{kernel}");
        let mut next = 1;
        for row in rows {
            assert_eq!(row["first"], next, "{kernel}");
            next = row["last"].as_u64().map_or(0, |last| last + 1);
        }
        assert!(rows.is_empty() || next == 0, "the last range has no end: {kernel}");
    }
}

#[test]
fn doctor_explains_variables_and_goes_on_where_one_is_wrong() {
    let misspelt = ["FUCINA", "THREAD"].join("_");
    let set = [("FUCINA_THREADS", "3"), ("FUCINA_CPU_ISA", "scalar"), (&*misspelt, "4")];
    let report = call_with(&["doctor", "--json"], &set).ok().json();
    assert_eq!((&report["threads"], &report["isa"]), (&3.into(), &"scalar".into()));
    let variables = report["variables"].as_array().unwrap();
    let effect = |name: &str| {
        let found = variables.iter().find(|variable| variable["name"] == name).unwrap();
        found["effect"].as_str().unwrap().to_owned()
    };
    assert_eq!(effect("FUCINA_THREADS"), "number of threads");
    assert!(effect(&misspelt).starts_with("UNKNOWN"));
    let done = call_with(&["doctor"], &[("FUCINA_CPU_ISA", "avx9000")]);
    assert_eq!(done.code, Some(2), "{done:?}");
    assert!(done.stdout.contains("WRONG") && done.stdout.contains("kernels"), "{done:?}");
    done.says(&["FUCINA_CPU_ISA", "avx9000"]);
}

#[test]
fn an_account_adds_up_to_the_pass() {
    let args = ["bench", "account", "-p", "9", "-n", "3", "-r", "2", "-t", "2"];
    let accounts = call(&[&args[..], &["--json", "-q"]].concat()).ok().json();
    let accounts = accounts.as_array().unwrap();
    assert_eq!(accounts.len(), 2);
    for (account, (test, passes)) in accounts.iter().zip([("pp9", 1), ("tg3", 3)]) {
        assert_eq!((&account["test"], &account["passes"]), (&test.into(), &passes.into()));
        let rows = account["rows"].as_array().unwrap();
        let us = |value: &serde_json::Value| value["us"].as_f64().unwrap();
        let sum: f64 = rows.iter().map(us).sum();
        let between = account["between_us"].as_f64().unwrap();
        assert!((sum + between - us(account)).abs() < 1e-6 * us(account), "{account}");
        assert!(between > 0.0 && between < us(account), "{account}");
        // Four layers of q, k, v, output, gate, up and down, and the vocabulary.
        let products = rows.iter().filter(|row| row["op"] == "matmul");
        let calls: f64 = products.clone().map(|row| row["calls"].as_f64().unwrap()).sum();
        assert_eq!(calls, 29.0, "{account}");
        assert!(products.clone().all(|row| row["floor_us"].as_f64().unwrap() > 0.0), "{account}");
    }
    let table = call(&args).ok().stdout;
    for words in ["pp9", "tg3", "2048 x 256", "between calls", "a pass"] {
        assert!(table.contains(words), "{words} is not in {table}");
    }
    let done = call(&["bench", "account", "-p", "100000"]);
    assert_eq!(done.code, Some(2), "{}", done.stderr);
    assert!(done.stderr.contains("context of 512 tokens"), "{}", done.stderr);
}

#[test]
fn doctor_shows_the_blas_library_and_bench_ops_what_it_computed() {
    let double = Double::start(Role::OpenBlas);
    let path = double.path().to_str().unwrap();
    let set = [("FUCINA_BLAS_LIBRARY", path)];
    let report = call_with(&["doctor", "--json"], &set).ok().json();
    assert_eq!(report["blas"]["kind"], "openblas");
    assert_eq!(report["blas"]["file"], path);
    assert!(report["blas"]["detail"].as_str().unwrap().contains("double"), "{report}");
    let product = |m: &str, set: &[(&str, &str)]| {
        let format = ["--format", "f32", "--iters", "1", "--weights=cached", "--json"];
        let args = [&["bench", "ops", "--dims", m, "32", "64"][..], &format[..]].concat();
        let done = call_with(&args, set).ok();
        let row = done.json()[0].clone();
        assert!(row["error"].as_f64().unwrap() < 1e-5, "{row}");
        row["kernel"].as_str().unwrap().to_owned()
    };
    assert_eq!(product("64", &set), "openblas");
    assert!(product("63", &set).ends_with(": too small for a BLAS library"));
    let off = [("FUCINA_BLAS_LIBRARY", path), ("FUCINA_CPU_BLAS", "off")];
    assert!(product("64", &off).starts_with("rows/"));
    let report = call_with(&["doctor", "--json"], &off).ok().json();
    assert_eq!(report["blas"]["kind"], serde_json::Value::Null);
}

#[test]
fn a_blas_library_that_was_named_and_is_not_there_is_a_warning() {
    let nowhere = "/nowhere/libopenblas.so";
    let done = call_with(&["run", "-n", "1", "Once"], &[("FUCINA_BLAS_LIBRARY", nowhere)]).ok();
    assert!(done.stderr.contains(nowhere), "{}", done.stderr);
    assert_eq!(done.stderr.matches("fucina: warning: no BLAS library").count(), 1);
    let text = call_with(&["doctor"], &[("FUCINA_BLAS_LIBRARY", nowhere)]).ok().stdout;
    assert!(text.contains("no BLAS library is usable: /nowhere/libopenblas.so:"), "{text}");
    let wrong = call_with(&["run", "-n", "1", "Once"], &[("FUCINA_CPU_BLAS", "blis")]);
    wrong.failed(2, &["FUCINA_CPU_BLAS", "blis", "auto, off, accelerate, mkl or openblas"]);
}

#[test]
fn a_run_with_f32_copies_says_so() {
    let set = [
        ("FUCINA_CPU_F32_SHADOW", "1"),
        ("FUCINA_CPU_F32_SHADOW_MIN_M", "16"),
        ("FUCINA_CPU_ISA", "scalar"),
    ];
    let args = ["bench", "ops", "--dims", "16", "32", "64", "--format", "bf16", "--iters", "1"];
    let args = [&args[..], &["--weights=cached", "--json"]].concat();
    let rows = call_with(&args, &set).ok().json();
    assert_eq!(rows[0]["kernel"], "rows/scalar on an f32 shadow");
    assert!(rows[0]["error"].as_f64().unwrap() < 1e-5, "{rows}");
    let report = call_with(&["doctor", "--json"], &set).ok().json();
    assert_eq!(report["f32_shadow_min_m"], 16);
    let wrong = call_with(&["run", "-n", "1", "Once"], &[("FUCINA_CPU_F32_SHADOW_MIN_M", "many")]);
    wrong.failed(2, &["FUCINA_CPU_F32_SHADOW_MIN_M", "many", "a number of rows"]);
}
