//! `fucina quantize`: the files it writes, and what it refuses.

#![cfg(test)]

mod common;

use std::path::{Path, PathBuf};

use common::{asset, call, file};
use fucina::DType;
use fucina::gguf::{File, Writer};
use fucina_testkit::oracles_dir;

/// An empty folder for one test, so that files left behind are seen.
fn folder(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("quantize-{name}"));
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).unwrap();
    path
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn f32s(values: impl IntoIterator<Item = f32>) -> Vec<u8> {
    values.into_iter().flat_map(f32::to_le_bytes).collect()
}

/// A file with one matrix of 2 rows.
fn matrix(path: &Path, values: [f32; 512]) {
    let mut writer = Writer::new();
    writer.set("general.architecture", "llama").unwrap();
    writer.tensor("blk.0.attn_q.weight", DType::F32, &[256, 2], f32s(values)).unwrap();
    writer.save(path).unwrap();
}

/// Whole files that `llama-quantize` wrote from the same source, header and padding included.
#[test]
fn every_format_gives_the_file_that_llama_cpp_gives() {
    let Some(oracles) = oracles_dir("every_format_gives_the_file_that_llama_cpp_gives") else {
        return;
    };
    let models = oracles.join("models");
    let (source, out) = (models.join("austen-f16.gguf"), folder("oracles").join("out.gguf"));
    for format in [
        "bf16", "q8_0", "q6_k", "q5_k_m", "q5_1", "q5_0", "q4_k_m", "q4_1", "q4_0", "q3_k_m",
        "q2_k", "tq2_0",
    ] {
        let done = call(&["quantize", text(&source), text(&out), "--to", format]).ok();
        assert!(done.stdout.is_empty(), "{done:?}");
        let want = std::fs::read(models.join(format!("austen-{format}.gguf"))).unwrap();
        assert!(std::fs::read(&out).unwrap() == want, "{format} differs");
    }
    // These were made from f32 and not from the f16 file, so bytes differ, but not the header.
    for model in ["llama", "qwen2", "qwen3moe"] {
        for format in ["q4_k_m", "q6_k"] {
            let source = models.join(format!("random-{model}-f16.gguf"));
            call(&["quantize", text(&source), text(&out), "--to", format]).ok();
            let want = File::open(models.join(format!("random-{model}-{format}.gguf"))).unwrap();
            let got = File::open(&out).unwrap();
            let header = |file: &File| -> Vec<_> {
                let tensors = file.tensors().iter();
                tensors
                    .map(|t| (t.name().to_owned(), t.shape().to_vec(), t.dtype().unwrap()))
                    .collect()
            };
            assert_eq!(header(&got), header(&want), "{model} {format}");
        }
    }
}

#[test]
fn the_embedded_model_is_quantized_again_when_asked_to() {
    let folder = folder("again");
    let out = folder.join("q4_0.gguf");
    let args = ["quantize", text(&asset()), text(&out), "--to", "Q4_0", "--requantize", "--json"]
        .map(str::to_owned);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = call(&args).ok();
    assert_eq!(names(&folder), ["q4_0.gguf"]);
    let (old, new) = (File::open(asset()).unwrap(), File::open(&out).unwrap());
    assert_eq!(new.metadata().u32("general.file_type"), Ok(2));
    assert_eq!(new.metadata().u32("general.quantization_version"), Ok(2));
    assert_eq!(new.metadata().len(), old.metadata().len());
    for (key, value) in old.metadata().iter().filter(|(key, _)| *key != "general.file_type") {
        assert_eq!(new.metadata().get(key), Some(value), "{key}");
    }
    for info in new.tensors() {
        let source = old.tensor(info.name()).unwrap();
        let (elems, dtype) = (info.len_elems(), info.dtype().unwrap());
        let want = match info.name() {
            "token_embd.weight" => DType::Q6_K,
            _ if info.shape().len() > 1 => DType::Q4_0,
            _ => DType::F32,
        };
        assert_eq!((info.shape(), dtype), (source.shape(), want), "{}", info.name());
        let (mut values, mut bytes) = (vec![0.0; elems], vec![0; info.len_bytes()]);
        source.dtype().unwrap().decode(&old.tensor_data(source).unwrap(), &mut values).unwrap();
        dtype.encode(&values, &mut bytes).unwrap();
        assert!(new.tensor_data(info).unwrap() == bytes, "{}", info.name());
    }
    let report = done.json();
    assert_eq!((&report["tensors"], &report["converted"]), (&46.into(), &29.into()));
    assert_eq!(report["output_tensor_bytes"], new.tensor_bytes());
    assert_eq!(report["parameters"], 3_672_832);
    let run = call(&["run", text(&out), "It is a truth", "-n", "8", "--greedy"]).ok();
    assert!(run.stdout.len() > "It is a truth".len() + 8, "{run:?}");
    let line = done.stderr.lines().last().unwrap();
    for words in ["Q4_0", "bits per weight", "29 of 46 tensors"] {
        assert!(line.contains(words), "{line}");
    }
}

/// The matrices of a layer's experts are one tensor of three axes. Each row is encoded as in a
/// matrix, the router is kept, and the mix gives the experts what it gives a feed-forward block.
#[test]
fn experts_are_quantized_like_matrices() {
    let folder = folder("experts");
    let (input, out) = (folder.join("in.gguf"), folder.join("out.gguf"));
    let (experts, inner, hidden) = (3, 512, 256);
    let mut seed = 1_u32;
    let mut weights = |len: usize| {
        let next = || {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            f32::from(u16::try_from(seed >> 16).unwrap()) / 65536.0 - 0.5
        };
        f32s(std::iter::repeat_with(next).take(len))
    };
    let mut writer = Writer::new();
    writer.set("general.architecture", "qwen3moe").unwrap();
    for (key, value) in [("block_count", 1_u32), ("expert_count", 3), ("expert_used_count", 2)] {
        writer.set(&format!("qwen3moe.{key}"), value).unwrap();
    }
    // In the order of llama.cpp: by layer and name.
    let tensors = [
        ("blk.0.ffn_down_exps.weight", vec![inner, hidden, experts], DType::Q6_K),
        ("blk.0.ffn_gate_exps.weight", vec![hidden, inner, experts], DType::Q4_K),
        ("blk.0.ffn_gate_inp.weight", vec![hidden, experts], DType::F32),
        ("blk.0.ffn_norm.weight", vec![hidden], DType::F32),
    ];
    for (name, shape, _) in &tensors {
        writer.tensor(name, DType::F32, shape, weights(shape.iter().product())).unwrap();
    }
    writer.save(&input).unwrap();
    for threads in ["1", "3"] {
        let args = ["quantize", text(&input), text(&out), "--to", "q4_k_m", "-q"];
        call(&[&args[..], &["--threads", threads]].concat()).ok();
        let (old, new) = (File::open(&input).unwrap(), File::open(&out).unwrap());
        for (info, (name, shape, dtype)) in new.tensors().iter().zip(&tensors) {
            assert_eq!((info.name(), info.shape(), info.dtype()), (*name, &**shape, Ok(*dtype)));
            let source = old.tensor_data(old.tensor(name).unwrap()).unwrap();
            let mut values = vec![0.0; info.len_elems()];
            DType::F32.decode(&source, &mut values).unwrap();
            // Row by row, so that a row that took a value of its neighbour would show.
            let mut want = Vec::new();
            for row in values.chunks_exact(shape[0]) {
                let mut bytes = vec![0; dtype.row_bytes(row.len()).unwrap()];
                dtype.encode(row, &mut bytes).unwrap();
                want.extend(bytes);
            }
            assert!(new.tensor_data(info).unwrap() == want, "{name}");
        }
    }
}

#[test]
fn the_number_of_threads_does_not_show() {
    let folder = folder("threads");
    let mut first = None;
    for threads in ["1", "2", "7"] {
        let out = folder.join("out.gguf");
        let asset = asset();
        let args = ["quantize", text(&asset), text(&out), "--to", "q3_k_l", "--requantize", "-q"];
        let done = call(&[&args[..], &["--threads", threads]].concat()).ok();
        assert_eq!(done.stderr, "");
        let bytes = std::fs::read(&out).unwrap();
        assert!(*first.get_or_insert_with(|| bytes.clone()) == bytes, "{threads} threads");
    }
}

#[test]
fn what_is_quantized_already_needs_a_flag() {
    let folder = folder("flag");
    let out = folder.join("out.gguf");
    let done = call(&["quantize", text(&asset()), text(&out), "--to", "q4_k_m"]);
    done.failed(2, &["token_embd.weight", "Q8_0", "--requantize"]);
    assert!(names(&folder).is_empty());
    // Nothing has to change here, so nothing has to be asked.
    let done = call(&["quantize", text(&asset()), text(&out), "--to", "q8_0", "--json"]).ok();
    assert_eq!(done.json()["converted"], 0);
}

#[test]
fn values_that_do_not_fit_are_named_and_leave_the_old_file_alone() {
    let folder = folder("values");
    let (input, out) = (folder.join("in.gguf"), folder.join("out.gguf"));
    std::fs::write(&out, b"precious").unwrap();
    for (value, format, words) in [
        (f32::NAN, "q8_0", &["`blk.0.attn_q.weight`", "element 300 is NaN"][..]),
        (f32::NEG_INFINITY, "q4_k_s", &["element 300 is infinite"]),
        (1e9, "q4_k_s", &["element 256", "too large"]),
        (70_000.0, "f16", &["element 300", "too large"]),
    ] {
        let mut values = std::array::from_fn(|i| f32::from(u16::try_from(i).unwrap()));
        values[300] = value;
        matrix(&input, values);
        let done = call(&["quantize", text(&input), text(&out), "--to", format]);
        done.failed(3, words);
        assert_eq!(names(&folder), ["in.gguf", "out.gguf"]);
        assert_eq!(std::fs::read(&out).unwrap(), b"precious");
    }
}

#[test]
fn rows_that_do_not_fit_are_reported() {
    let folder = folder("rows");
    let (input, out) = (folder.join("in.gguf"), folder.join("out.gguf"));
    let mut writer = Writer::new();
    writer.set("general.architecture", "llama").unwrap();
    writer.tensor("blk.0.attn_q.weight", DType::F32, &[96, 2], f32s([0.5; 192])).unwrap();
    writer.save(&input).unwrap();
    let done = call(&["quantize", text(&input), text(&out), "--to", "q4_k", "--json"]).ok();
    assert!(done.stderr.contains("1 tensor") && done.stderr.contains("Q5_0 instead of Q4_K"));
    let report = done.json();
    assert_eq!(report["fallbacks"][0]["tensor"], "blk.0.attn_q.weight");
    assert_eq!(report["format"], "q4_k_m");
    let quantized = File::open(&out).unwrap();
    assert_eq!(quantized.tensors()[0].dtype(), Ok(DType::Q5_0));
}

#[test]
fn places_that_cannot_be_written_are_refused_before_the_work() {
    let folder = folder("places");
    let input = folder.join("in.gguf");
    matrix(&input, [1.0; 512]);
    let before = std::fs::read(&input).unwrap();
    let again = folder.join("../quantize-places/in.gguf");
    let nowhere = folder.join("nowhere/out.gguf");
    for (out, words) in [
        (text(&input), "is the input"),
        (text(&again), "is the input"),
        (text(&folder), "is not a file"),
        (text(&nowhere), "no folder"),
        ("..", "is not a file"),
    ] {
        call(&["quantize", text(&input), out, "--to", "q8_0"]).failed(2, &[words]);
    }
    #[cfg(unix)]
    {
        call(&["quantize", text(&input), "/dev/null", "--to", "q8_0"]).failed(2, &["not a file"]);
        let link = folder.join("link.gguf");
        std::os::unix::fs::symlink(&input, &link).unwrap();
        let done = call(&["quantize", text(&input), text(&link), "--to", "q8_0"]);
        done.failed(2, &["is the input"]);
        std::fs::remove_file(&link).unwrap();
    }
    let out = folder.join("out.gguf");
    call(&["quantize", text(&input), text(&out), "--to", "q9"]).failed(2, &["q9", "q4_k_m"]);
    call(&["quantize", text(&input), text(&out)]).failed(2, &["--to"]);
    call(&["quantize", text(&nowhere), text(&out), "--to", "f16"]).failed(3, &["nowhere"]);
    let broken = file("quantize-broken.gguf", &before[..before.len() - 64]);
    call(&["quantize", &broken, text(&out), "--to", "f16"]).failed(3, &["quantize-broken"]);
    assert_eq!(names(&folder), ["in.gguf"]);
    assert_eq!(std::fs::read(&input).unwrap(), before);
}

/// A signal in the middle leaves neither a new file nor a part of one.
#[cfg(unix)]
#[test]
fn an_interrupted_conversion_leaves_nothing_behind() {
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    let folder = folder("interrupted");
    let (input, out) = (folder.join("in.gguf"), folder.join("out.gguf"));
    // Many seconds of searching.
    let row: Vec<f32> = (0..4096_u16).map(|i| (f32::from(i) * 1.7).sin()).collect();
    let data: Vec<u8> = f32s(row).repeat(4096);
    let mut writer = Writer::new();
    writer.set("general.architecture", "llama").unwrap();
    writer.tensor("blk.0.attn_q.weight", DType::F32, &[4096, 4096], data).unwrap();
    writer.save(&input).unwrap();
    let mut command = common::fucina();
    command.args(["quantize", text(&input), text(&out), "--to", "q2_k", "--threads", "1"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let start = Instant::now();
    // The temporary file is there once signals are heard.
    while names(&folder).len() < 2 {
        assert!(start.elapsed() < Duration::from_secs(60), "the conversion does not begin");
        std::thread::sleep(Duration::from_millis(5));
    }
    let kill = format!("kill -INT {}", child.id());
    assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    let done = common::Done::from(child.wait_with_output().unwrap());
    done.failed(130, &["interrupted", "was not written"]);
    assert_eq!(names(&folder), ["in.gguf"]);
    std::fs::remove_dir_all(&folder).unwrap();
}

/// The system refuses to write on: the old file stays, the new one is removed.
#[cfg(unix)]
#[test]
fn a_file_that_cannot_grow_is_an_error() {
    let folder = folder("full");
    let (asset, out) = (asset(), folder.join("out.gguf"));
    std::fs::write(&out, b"precious").unwrap();
    // Without the signal that comes with it, a write beyond the limit fails as on a full disk.
    let script = format!(
        "trap '' XFSZ; ulimit -f 1000; exec {} quantize {} {} --to q4_0 --requantize",
        env!("CARGO_BIN_EXE_fucina"),
        text(&asset),
        text(&out),
    );
    let output = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
    common::Done::from(output).failed(1, &["out.gguf", "could not write"]);
    assert_eq!(names(&folder), ["out.gguf"]);
    assert_eq!(std::fs::read(&out).unwrap(), b"precious");
}

#[test]
fn a_split_model_becomes_one_file() {
    let folder = folder("split");
    let part = |number: u16| folder.join(format!("in-{:05}-of-00002.gguf", number + 1));
    for number in 0..2_u16 {
        let mut writer = Writer::new();
        writer.set("general.architecture", "llama").unwrap();
        for (key, value) in [("no", number), ("count", 2), ("tensors.count", 2)] {
            writer.set(&format!("split.{key}"), value).unwrap();
        }
        let name = format!("blk.{number}.attn_q.weight");
        writer.tensor(&name, DType::F32, &[256, 2], f32s([0.5; 512])).unwrap();
        writer.save(part(number)).unwrap();
    }
    let (first, second, out) = (part(0), part(1), folder.join("out.gguf"));
    let done = call(&["quantize", text(&first), text(&second), "--to", "q4_0"]);
    done.failed(2, &["is the input"]);
    call(&["quantize", text(&first), text(&out), "--to", "q4_0"]).ok();
    let quantized = File::open(&out).unwrap();
    assert_eq!((quantized.parts(), quantized.tensors().len()), (1, 2));
    assert!(quantized.metadata().iter().all(|(key, _)| !key.starts_with("split.")));
}

/// Tensors are converted in batches; the element is counted from the start of the tensor.
#[test]
fn a_value_deep_inside_a_tensor_is_named_by_its_place() {
    let folder = folder("deep");
    let (input, out) = (folder.join("in.gguf"), folder.join("out.gguf"));
    let mut data = f32s(std::iter::repeat_n(0.5, 1 << 20));
    data[4 * 900_000..][..4].copy_from_slice(&f32::NAN.to_le_bytes());
    let mut writer = Writer::new();
    writer.set("general.architecture", "llama").unwrap();
    writer.tensor("blk.0.attn_q.weight", DType::F32, &[1024, 1024], data).unwrap();
    writer.save(&input).unwrap();
    for threads in ["1", "3"] {
        let args = ["quantize", text(&input), text(&out), "--to", "q8_0", "--threads", threads];
        call(&args).failed(3, &["`blk.0.attn_q.weight`", "element 900000 is NaN"]);
    }
}
