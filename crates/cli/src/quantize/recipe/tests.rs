use fucina::gguf::{Data, Writer};
use fucina_testkit::golden_path;

use super::*;

/// A file with these metadata numbers and tensors of F32, whose data is zeros.
fn file(architecture: &str, numbers: &[(&str, u32)], tensors: &[(&str, &[usize])]) -> File {
    let mut writer = Writer::new();
    writer.set("general.architecture", architecture).unwrap();
    for (key, value) in numbers {
        writer.set(&format!("{architecture}.{key}"), *value).unwrap();
    }
    for (name, shape) in tensors {
        let data = vec![0_u8; 4 * shape.iter().product::<usize>()];
        writer.tensor(name, DType::F32, shape, Data::from(data)).unwrap();
    }
    File::from_bytes(writer.to_bytes().unwrap()).unwrap()
}

/// The type of each tensor afterwards.
fn types(file: &File, recipe: Recipe, pure: bool) -> Vec<(String, DType)> {
    let after = |plan: &Plan<'_>| plan.target.unwrap_or(plan.info.dtype().unwrap());
    let plans = plan(file, recipe, pure);
    plans.iter().map(|plan| (plan.info.name().to_owned(), after(plan))).collect()
}

fn type_of(types: &[(String, DType)], name: &str) -> DType {
    types.iter().find(|(found, _)| found == name).expect("the tensor is planned").1
}

/// The golden models were written by llama.cpp, so the recipe has nothing left to change.
#[test]
fn the_mix_of_golden_models_is_that_of_the_recipe() {
    for name in ["models/random-llama-q4_k_m.gguf", "models/random-qwen2-q4_k_m.gguf"] {
        let file = File::open(golden_path(name)).unwrap();
        let order: Vec<_> = file.tensors().iter().map(TensorInfo::name).collect();
        let plans = plan(&file, Recipe::Q4KM, false);
        for (plan, name) in plans.iter().zip(order) {
            assert_eq!((plan.info.name(), plan.target), (name, None));
        }
        assert!(plan(&file, Recipe::Q5KM, false).iter().any(|plan| plan.target.is_some()));
    }
}

#[test]
fn more_bits_go_to_the_ends_and_to_every_third_layer_between() {
    let layers: Vec<u64> = (0..32).filter(|&layer| more_bits(layer, 32)).collect();
    assert_eq!(layers, [0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 28, 29, 30, 31]);
    // Files that name no layers do not make it divide by zero or underflow.
    assert!(more_bits(0, 0) && more_bits(u64::MAX, u64::MAX));
}

#[test]
fn vectors_norms_and_gates_stay() {
    let file = file(
        "llama",
        &[],
        &[
            ("blk.0.attn_q.weight", &[256, 2]),
            ("blk.0.attn_q.bias", &[256, 2]),
            ("blk.0.attn_norm.weight", &[256, 2]),
            ("blk.0.ffn_gate_inp.weight", &[256, 8]),
            ("output_norm.weight", &[256]),
            ("row.weight", &[256, 1]),
            ("experts.weight", &[256, 1, 4]),
        ],
    );
    let types = types(&file, Recipe::F16, false);
    let changed: Vec<_> = types.iter().filter(|(_, dtype)| *dtype == DType::F16).collect();
    let changed: Vec<_> = changed.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(changed, ["experts.weight", "blk.0.attn_q.weight"]);
}

#[test]
fn rows_that_are_no_whole_blocks_get_a_wider_format() {
    let names = ["blk.0.attn_q.weight", "blk.0.attn_k.weight"];
    let file = file("llama", &[], &[(names[0], &[96, 2]), (names[1], &[40, 2])]);
    for (recipe, wanted, used) in [
        (Recipe::Q6K, DType::Q6_K, DType::Q8_0),
        (Recipe::Q5KS, DType::Q5_K, DType::Q5_1),
        (Recipe::Q4KS, DType::Q4_K, DType::Q5_0),
        (Recipe::Q3KS, DType::Q3_K, DType::Q4_0),
        (Recipe::Tq2_0, DType::TQ2_0, DType::Q4_0),
    ] {
        let plans = plan(&file, recipe, false);
        let plan = |name| plans.iter().find(|plan| plan.info.name() == name).unwrap();
        assert_eq!((plan(names[0]).target, plan(names[0]).unfit), (Some(used), Some(wanted)));
        assert_eq!((plan(names[1]).target, plan(names[1]).unfit), (Some(DType::F16), Some(wanted)));
    }
    let plans = plan(&file, Recipe::Q8_0, false);
    assert!(plans.iter().any(|plan| plan.unfit == Some(DType::Q8_0)));
    assert!(plans.iter().any(|plan| plan.target == Some(DType::Q8_0) && plan.unfit.is_none()));
}

#[test]
fn the_output_matrix_is_kept_better_also_where_it_is_the_embedding() {
    let (embedding, output) = ("token_embd.weight", "output.weight");
    let tied = file("llama", &[], &[(embedding, &[256, 2])]);
    let untied = file("llama", &[], &[(embedding, &[256, 2]), (output, &[256, 2])]);
    for (recipe, first, second) in [
        (Recipe::Q4KM, DType::Q4_K, DType::Q6_K),
        (Recipe::Q4_0, DType::Q4_0, DType::Q6_K),
        (Recipe::Q8_0, DType::Q8_0, DType::Q8_0),
        (Recipe::Tq2_0, DType::Q4_K, DType::Q6_K),
        (Recipe::F16, DType::F16, DType::F16),
    ] {
        assert_eq!(type_of(&types(&tied, recipe, false), embedding), second, "{recipe:?}");
        assert_eq!(type_of(&types(&untied, recipe, false), embedding), first, "{recipe:?}");
        assert_eq!(type_of(&types(&untied, recipe, false), output), second, "{recipe:?}");
        assert_eq!(type_of(&types(&untied, recipe, true), output), recipe.base(), "{recipe:?}");
    }
}

/// Sixteen layers, with what each recipe adds to its base.
#[test]
fn each_mix_spends_its_bits_where_it_says() {
    let mut tensors = Vec::new();
    for layer in 0..16 {
        for part in ["attn_v", "attn_output", "ffn_down", "attn_q"] {
            tensors.push(format!("blk.{layer}.{part}.weight"));
        }
    }
    let tensors: Vec<(&str, &[usize])> =
        tensors.iter().map(|name| (name.as_str(), &[256, 2][..])).collect();
    let numbers =
        [("block_count", 16), ("attention.head_count", 8), ("attention.head_count_kv", 2)];
    let file = file("llama", &numbers, &tensors);
    let row = |recipe, part: &str| -> String {
        let types = types(&file, recipe, false);
        let digit = |layer| {
            let dtype = type_of(&types, &format!("blk.{layer}.{part}.weight"));
            dtype.name().chars().nth(1).unwrap()
        };
        (0..16).map(digit).collect()
    };
    for (recipe, v, output, down, q) in [
        (Recipe::Q2K, "4".repeat(16), "3".repeat(16), "3".repeat(16), "2".repeat(16)),
        (Recipe::Q3KS, "3".repeat(16), "3".repeat(16), "3".repeat(16), "3".repeat(16)),
        (
            Recipe::Q3KM,
            format!("55{}", "4".repeat(14)),
            "4".repeat(16),
            format!("5{}", "4".repeat(15)),
            "3".repeat(16),
        ),
        (Recipe::Q3KL, "5".repeat(16), "5".repeat(16), "5".repeat(16), "3".repeat(16)),
        (
            Recipe::Q4KS,
            format!("5555{}", "4".repeat(12)),
            "4".repeat(16),
            format!("55{}", "4".repeat(14)),
            "4".repeat(16),
        ),
        (
            Recipe::Q4KM,
            "6644644644644666".into(),
            "4".repeat(16),
            "6644644644644666".into(),
            "4".repeat(16),
        ),
        (
            Recipe::Q5KM,
            "6655655655655666".into(),
            "5".repeat(16),
            "6655655655655666".into(),
            "5".repeat(16),
        ),
        (Recipe::Q5KS, "5".repeat(16), "5".repeat(16), "5".repeat(16), "5".repeat(16)),
        (Recipe::Q6K, "6".repeat(16), "6".repeat(16), "6".repeat(16), "6".repeat(16)),
    ] {
        let got = ["attn_v", "attn_output", "ffn_down", "attn_q"].map(|part| row(recipe, part));
        assert_eq!(got, [v, output, down, q], "{recipe:?}");
    }
}

#[test]
fn eight_experts_keep_keys_and_values_at_eight_bits() {
    let names = ["attn_k", "attn_v", "attn_output", "ffn_down_exps", "attn_q"];
    let names = names.map(|part| format!("blk.1.{part}.weight"));
    let tensors = names.each_ref().map(|name| (name.as_str(), &[256, 2, 8][..]));
    let file = file("qwen3moe", &[("block_count", 8), ("expert_count", 8)], &tensors);
    let types = types(&file, Recipe::Q4KM, false);
    let want = [DType::Q8_0, DType::Q8_0, DType::Q5_K, DType::Q4_K, DType::Q4_K];
    assert_eq!(names.map(|name| type_of(&types, &name)), want);
}

#[test]
fn grouped_heads_of_80_layers_keep_values_at_five_bits() {
    let names: Vec<String> = (0..80).map(|layer| format!("blk.{layer}.attn_v.weight")).collect();
    let tensors: Vec<(&str, &[usize])> =
        names.iter().map(|name| (name.as_str(), &[256, 2][..])).collect();
    for (kv_heads, least) in [(8, DType::Q5_K), (64, DType::Q4_K)] {
        let numbers = [
            ("block_count", 80),
            ("attention.head_count", 64),
            ("attention.head_count_kv", kv_heads),
        ];
        let types = types(&file("llama", &numbers, &tensors), Recipe::Q4KM, false);
        assert_eq!(type_of(&types, "blk.10.attn_v.weight"), least);
        assert_eq!(type_of(&types, "blk.0.attn_v.weight"), DType::Q6_K);
    }
}

/// Tensors without layers, types without a codec and missing metadata: no panic, a plan.
#[test]
fn a_strange_file_gets_a_plan() {
    let file = file(
        "",
        &[],
        &[
            ("blk.x.ffn_down.weight", &[256, 2]),
            ("blk..ffn_down.weight", &[1, 2]),
            ("blk.99999999999999999999.attn_v.weight", &[256, 2]),
            ("weight", &[256, 2]),
        ],
    );
    for recipe in Recipe::value_variants() {
        assert_eq!(plan(&file, *recipe, false).len(), 4);
        assert!(Recipe::from_str(&recipe.name(), false).is_ok_and(|found| found == *recipe));
    }
}
