//! `fucina inspect`: what it shows, and that damaged values are found.

#![cfg(test)]

mod common;

use common::{asset, call, call_with, file};
use fucina::DType;
use fucina::gguf::Writer;
use fucina_testkit::golden_path;

#[test]
fn the_embedded_model_is_shown_with_its_kernels() {
    for isa in fucina::Isa::available() {
        let done = call_with(&["inspect"], &[("FUCINA_CPU_ISA", isa.name())]).ok();
        for words in ["GGUF version 3", "qwen3.block_count", "blk.3.ffn_up.weight", "2048 items"] {
            assert!(done.stdout.contains(words), "{words} is not in {}", done.stdout);
        }
        let kernel = format!("panel16/{}", isa.name());
        let row = done.stdout.lines().find(|line| line.contains("blk.0.attn_q.weight")).unwrap();
        assert!(
            row.contains("256 x 256") && row.contains("Q8_0") && row.contains(&kernel),
            "{row}"
        );
    }
}

#[test]
fn json_has_every_tensor_and_the_sums_agree() {
    let report = call(&["inspect", "--json"]).ok().json();
    let tensors = report["tensors"].as_array().unwrap();
    assert_eq!(tensors.len(), 46);
    let sum = |key: &str| {
        let of = |list: &str| -> u64 {
            report[list].as_array().unwrap().iter().map(|item| item[key].as_u64().unwrap()).sum()
        };
        (of("tensors"), of("types"))
    };
    assert_eq!(sum("bytes").0, sum("bytes").1);
    assert_eq!(report["parameters"], 3_672_832);
    assert_eq!(report["supported"], true);
    assert!(report.get("damaged").is_none(), "nothing was checked");
    // Four layers, two key and two value heads of 64 elements.
    let cache = serde_json::json!([
        { "type": "f16", "bytes": 4 * 4 * 64 * 2 },
        { "type": "q8_0", "bytes": 4 * 4 * 2 * 34 },
    ]);
    assert_eq!(report["cache_per_token"], cache);
    let on_disk = call(&["inspect", asset().to_str().unwrap(), "--json"]).ok().json();
    assert_eq!(on_disk["access"], "memory-mapped");
    assert_eq!(on_disk["tensors"], report["tensors"]);
}

#[test]
fn sound_models_pass_the_check() {
    for name in ["random-llama-q4_k_m.gguf", "random-qwen2-q4_k_m.gguf"] {
        let path = golden_path(&format!("models/{name}"));
        let done = call(&["inspect", path.to_str().unwrap(), "--check"]).ok();
        assert!(done.stdout.contains("no damaged values"), "{}", done.stdout);
    }
    let report = call(&["inspect", "--check", "--json"]).ok().json();
    assert_eq!(report["damaged"].as_array().unwrap().len(), 0);
    let norm = report["tensors"].as_array().unwrap().iter();
    let norm = norm.clone().find(|tensor| tensor["name"] == "output_norm.weight").unwrap();
    assert!(norm["min"].as_f64() < norm["mean"].as_f64(), "{norm}");
    assert!(norm["mean"].as_f64() < norm["max"].as_f64(), "{norm}");
    assert_eq!((&norm["nan"], &norm["infinite"]), (&0.into(), &0.into()));
}

/// The matrices of a layer's experts are one tensor: packed like so many matrices.
#[test]
fn experts_are_shown_with_their_kernel_and_their_memory() {
    let mut writer = Writer::new();
    writer.set("general.architecture", "qwen3moe").unwrap();
    // Rows of three blocks, 17 of them: two panels of 16 columns for each of 5 experts.
    let blocks = q8([0x2000; 2])[..34].repeat(3 * 17 * 5);
    writer.tensor("blk.0.ffn_up_exps.weight", DType::Q8_0, &[96, 17, 5], blocks).unwrap();
    let plain = f32s((0..96_u8).map(f32::from));
    writer.tensor("blk.0.ffn_down_exps.weight", DType::F32, &[4, 8, 3], plain).unwrap();
    let path = file("experts.gguf", &writer.to_bytes().unwrap());
    let report = call(&["inspect", &path, "--json"]).ok().json();
    assert_eq!(report["supported"], true);
    let (up, down) = (&report["tensors"][0], &report["tensors"][1]);
    assert_eq!(up["shape"], serde_json::json!([5, 17, 96]));
    let kernel = |tensor: &serde_json::Value| tensor["kernel"].as_str().unwrap().to_owned();
    assert!(kernel(up).starts_with("panel16/") && kernel(up).ends_with("each of 5 experts"));
    assert!(kernel(down).starts_with("rows/") && kernel(down).ends_with("each of 3 experts"));
    // A panel takes its columns' own bytes: 34 for each block of 32.
    let memory = &report["memory"];
    assert_eq!(memory["packed"], 5 * 2 * 16 * 3 * 34);
    assert_eq!(memory["in_file"], 96 * 4);
    let shown = call(&["inspect", &path, "--check"]).ok().stdout;
    assert!(shown.contains("5 x 17 x 96") && shown.contains("no damaged values"), "{shown}");
}

fn f32s(values: impl IntoIterator<Item = f32>) -> Vec<u8> {
    values.into_iter().flat_map(f32::to_le_bytes).collect()
}

/// Two blocks of `Q8_0` whose scales have these bits.
fn q8(scales: [u16; 2]) -> Vec<u8> {
    scales.iter().flat_map(|d| d.to_le_bytes().into_iter().chain([100; 32])).collect()
}

/// Each kind of damage in a tensor named after it, between sound ones.
fn damaged() -> Vec<u8> {
    let ramp = |spoilt: f32| f32s((0..63_u8).map(f32::from).chain([spoilt]));
    let mut writer = Writer::new();
    writer.set("general.architecture", "llama").unwrap();
    let mut add = |name: &str, dtype, shape: &[usize], data: Vec<u8>| {
        writer.tensor(name, dtype, shape, data).unwrap();
    };
    add("sound.weight", DType::F32, &[32, 2], ramp(64.0));
    add("sound_norm.weight", DType::F32, &[64], ramp(5000.0));
    add("sound.bias", DType::F32, &[64], f32s([0.0; 64]));
    add("sound_q8.weight", DType::Q8_0, &[64, 1], q8([0x2000, 0x2100]));
    add("nan.weight", DType::F32, &[32, 2], ramp(f32::NAN));
    add("inf.weight", DType::F32, &[64], ramp(f32::NEG_INFINITY));
    add("zero.weight", DType::F32, &[32, 2], f32s([0.0; 64]));
    add("zero_q8.weight", DType::Q8_0, &[64, 1], q8([0, 0]));
    add("huge.weight", DType::F32, &[32, 2], ramp(-1e6));
    // Scales of f16: a NaN, and 2^9, whose quant of 100 is 51200.
    add("nan_scale.weight", DType::Q8_0, &[64, 1], q8([0x2000, 0x7e01]));
    add("huge_scale.weight", DType::Q8_0, &[64, 1], q8([0x2000, 0x6000]));
    writer.to_bytes().unwrap().to_vec()
}

#[test]
fn every_kind_of_damage_is_flagged_and_nothing_else() {
    let path = file("damaged.gguf", &damaged());
    let done = call(&["inspect", &path, "--check", "--json"]);
    assert_eq!(done.code, Some(3), "{done:?}");
    done.says(&["7 tensors", "damaged values"]);
    let report = done.json();
    let found: Vec<(&str, &str)> = report["damaged"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| (item["tensor"].as_str().unwrap(), item["what"].as_str().unwrap()))
        .collect();
    let expected = [
        ("nan.weight", "NaN values: 1"),
        ("inf.weight", "infinite values: 1"),
        ("zero.weight", "all values are zero"),
        ("zero_q8.weight", "all values are zero"),
        ("huge.weight", "a magnitude of 1e6 is beyond 1e3"),
        ("nan_scale.weight", "NaN values: 32"),
        ("huge_scale.weight", "a magnitude of 5.12e4 is beyond 1e3"),
    ];
    assert_eq!(found, expected);
    let without = call(&["inspect", &path]).ok();
    assert!(!without.stdout.contains("damaged values"), "{without:?}");
}

#[test]
fn an_unknown_type_and_an_unknown_architecture_are_shown() {
    let mut writer = Writer::new();
    writer.set("general.architecture", "mamba9").unwrap();
    writer.tensor("first", DType::F32, &[32, 1], vec![1_u8; 128]).unwrap();
    writer.tensor("strange", DType::I32, &[32, 1], vec![1_u8; 128]).unwrap();
    let mut bytes = writer.to_bytes().unwrap().to_vec();
    // After the name: the number of dimensions, two sizes, and the type.
    let name = bytes.windows(7).position(|window| window == b"strange").unwrap();
    let at = name + 7 + 4 + 16;
    assert_eq!(bytes[at], 26, "the type's place in the file");
    bytes[at] = 250;
    let path = file("strange.gguf", &bytes);
    let done = call(&["inspect", &path, "--check"]).ok();
    let row = done.stdout.lines().find(|line| line.contains("strange ")).unwrap();
    assert!(row.contains("unknown (250)") && row.contains("not supported"), "{row}");
    assert!(done.stdout.contains("mamba9, not supported by `fucina run`"), "{}", done.stdout);
}

/// What `inspect` says of a choice is what `run` does with it.
#[test]
fn weights_that_are_not_packed_stay_in_the_file() {
    let all = call(&["inspect", "--json"]).ok().json();
    let none = call(&["inspect", "--json", "--pack", "never"]).ok().json();
    assert_eq!(none["memory"]["packed"], 0);
    assert!(none["memory"]["in_file"].as_u64().unwrap() > 3_500_000);
    assert!(all["memory"]["packed"].as_u64().unwrap() > 3_500_000);
    assert_eq!(all["not_packed"], 0);
    let run = |pack: &str| {
        call(&["run", "It is a truth", "--greedy", "-n", "8", "--pack", pack, "-q"]).ok().stdout
    };
    let text = run("always");
    assert_eq!(text, run("auto"));
    assert!(run("never").starts_with("It is a truth") && text.len() > 20, "{text}");
    let done = call(&["inspect", "--pack", "sometimes"]);
    assert!(done.stderr.contains("auto, never, always"), "{}", done.stderr);
}
