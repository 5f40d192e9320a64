//! `fucina bench gpu-dispatch` and `gpu-formats`, on the simulated driver.

#![cfg(test)]
#![cfg(target_os = "linux")]

mod common;

use common::{Done, call, call_with};
// Its build puts the library beside this test.
use fucina_cuda_driver as _;

/// The simulator's library.
fn library() -> String {
    let test = std::env::current_exe().expect("a test knows where it is");
    let library = test.parent().expect("a test lies in a folder").join("libfucina_cuda_driver.so");
    assert!(library.exists(), "{} was not built", library.display());
    library.to_str().expect("the path is UTF-8").to_owned()
}

/// Runs with the simulator as the driver.
fn simulated(args: &[&str], variables: &[(&str, &str)]) -> Done {
    let args = [&["bench"][..], args, &["--allow-simulated"]].concat();
    call_with(&args, &[&[("FUCINA_CUDA_LIBRARY", &*library())][..], variables].concat())
}

#[test]
fn without_a_device_it_says_why() {
    for bench in ["gpu-dispatch", "gpu-formats"] {
        let nowhere = [("FUCINA_CUDA_LIBRARY", "/nonexistent/libcuda.so")];
        let done = call_with(&["bench", bench], &nowhere);
        done.failed(1, &["no device to measure", "cuda: ", "/nonexistent/libcuda.so"]);
        let done = call_with(&["bench", bench], &[("FUCINA_GPU", "0")]);
        done.failed(1, &["FUCINA_GPU=0", "unset it"]);
    }
    call(&["bench", "model.gguf", "gpu-dispatch"]).failed(2, &["gpu-dispatch"]);
    call(&["bench", "gpu-formats", "--format", "q9"]).failed(2, &["--format", "Q4_K"]);
}

#[test]
fn a_simulated_device_is_refused_and_its_times_are_never_shown() {
    let dims = ["gpu-dispatch", "--dims", "33", "40", "40"];
    let args = [&["bench"][..], &dims[..]].concat();
    let refused = call_with(&args, &[("FUCINA_CUDA_LIBRARY", &*library())]);
    refused.failed(1, &["simulated", "--allow-simulated"]);
    let done = simulated(&dims, &[]).ok();
    assert!(done.stderr.contains("simulated: no times"), "{done:?}");
    let row = done.stdout.lines().nth(2).expect("a head, a rule and a row");
    let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
    assert_eq!(cells[0], "dims 33x40x40");
    assert_eq!(cells[2..8], [""; 6], "{row}");
    assert_eq!(cells[11], "ok", "{row}");
}

#[test]
fn every_format_agrees_with_the_cpu_and_moves_no_more_than_it_must() {
    for format in ["f16", "bf16", "Q4_0", "Q5_0", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "TQ2_0"] {
        // More rows than the kernels for few rows take, and fewer.
        for m in ["3", "17"] {
            let args = ["gpu-formats", "--format", format, "--dims", m, "256", "256", "--json"];
            let rows = simulated(&args, &[]).ok().json();
            let row = &rows[0];
            assert_eq!((&row["ok"], &row["note"]), (&true.into(), &"".into()), "{row}");
            assert_eq!((&row["simulated"], &row["async_us"]), (&true.into(), &().into()), "{row}");
            let bytes = 4 * 256 * m.parse::<u64>().unwrap();
            for (field, want) in [
                ("uploaded_bytes", bytes),
                ("downloaded_bytes", bytes),
                ("chain_uploaded_bytes", bytes),
                ("chain_downloaded_bytes", bytes),
            ] {
                assert_eq!(row[field], want, "{field} of {row}");
            }
            // The bound is far above rounding to f16 and far below one wrong weight.
            assert!(row["device_error_of_bound"].as_f64().unwrap() <= 1.0, "{row}");
            assert!(row["max_abs"].as_f64() < row["tolerance"].as_f64(), "{row}");
        }
    }
}

#[test]
fn csv_has_the_columns_of_json_and_transient_weights_move() {
    let args = ["gpu-formats", "--format", "f16", "--dims", "2", "8", "64", "--transient"];
    let rows = simulated(&[&args[..], &["--json"]].concat(), &[]).ok().json();
    let (weights, x) = (2 * 8 * 64, 4 * 2 * 64);
    assert_eq!(rows[0]["uploaded_bytes"], weights + x, "{rows}");
    assert_eq!(rows[0]["resident"], false);
    let csv = simulated(&[&args[..], &["--csv"]].concat(), &[]).ok().stdout;
    let lines: Vec<Vec<&str>> = csv.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!(lines.len(), 2, "{csv}");
    assert_eq!(lines[0].len(), lines[1].len(), "{csv}");
    let at = |name: &str| lines[0].iter().position(|field| *field == name).expect(name);
    assert_eq!(lines[1][at("async_us")], "");
    assert_eq!(lines[1][at("uploaded_bytes")], (weights + x).to_string());
}

#[test]
fn a_declined_call_fails_its_row() {
    // No memory on the device at all.
    let none = [("FUCINA_GPU_VRAM_BUDGET", "0")];
    let done = simulated(&["gpu-dispatch", "--dims", "4", "40", "40"], &none);
    assert_eq!(done.code, Some(1), "{done:?}");
    assert!(done.stdout.contains("WRONG: declined: out of device memory"), "{done:?}");
    done.says(&["1 of 1 row", "failed"]);
}
