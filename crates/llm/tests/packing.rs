//! Which matrices are packed, and that the choice is one of time and memory alone.

#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use fucina_gguf::File;
use fucina_llm::{LoadOptions, Model, Pack, PackPlan, SessionOptions, is_table};
use fucina_runtime::Runtime;
use fucina_testkit::golden_path;

fn file(name: &str) -> File {
    File::open(golden_path(name)).unwrap()
}

fn load(name: &str, pack: Pack) -> Model {
    let rt = Runtime::builder().threads(2).build().unwrap();
    let options = LoadOptions::default().pack(pack);
    Model::load_with(&rt, &file(name), &options, &|_, _| ()).unwrap()
}

#[test]
fn packing_stops_where_the_free_memory_ends() {
    let file = file("models/random-llama-q4_k_m.gguf");
    let all = PackPlan::new(&file, Pack::Always, None);
    let matrices: Vec<_> =
        file.tensors().iter().filter(|info| info.shape_row_major().len() == 2).collect();
    let sizes: Vec<u64> =
        matrices.iter().filter_map(|info| all.packed_bytes(info.name())).collect();
    assert!(sizes.len() > 8 && all.left_out() == 0);
    assert_eq!(PackPlan::new(&file, Pack::Auto, None), all, "not known is enough");
    assert_eq!(PackPlan::new(&file, Pack::Auto, Some(u64::MAX)), all);
    let none = PackPlan::new(&file, Pack::Never, None);
    assert!(matrices.iter().all(|info| none.packed_bytes(info.name()).is_none()));
    assert_eq!((none.left_out(), none), (0, PackPlan::new(&file, Pack::Never, Some(u64::MAX))));
    // Room for the first three, and a byte too little for them.
    let three: u64 = sizes[..3].iter().sum();
    for (free, packed) in [((three / 7 + 1) * 8, 3), (three / 8 * 7, 2), (0, 0)] {
        let plan = PackPlan::new(&file, Pack::Auto, Some(free));
        let first = matrices.iter().filter(|info| all.packed_bytes(info.name()).is_some());
        let kept: u64 = first.filter_map(|info| plan.packed_bytes(info.name())).sum();
        assert!(kept <= free / 8 * 7, "{free}");
        assert!(plan.left_out() + packed <= sizes.len(), "{free}: {}", plan.left_out());
    }
}

/// The product with weights of the file rounds no activation, so it is the more exact of the two:
/// they differ by what rounding activations to 8 bits costs, for which `parity.rs` derives 2.5 %.
#[test]
fn a_model_says_the_same_without_packed_weights() {
    for name in ["../crates/cli/assets/austen-q8_0.gguf", "models/random-llama-q4_k_m.gguf"] {
        let logits = [Pack::Always, Pack::Never, Pack::Auto].map(|pack| {
            let model = load(name, pack);
            let memory = model.info().memory;
            assert_eq!(memory.packed == 0, pack == Pack::Never, "{name}, {pack:?}");
            assert_eq!(model.info().not_packed, 0, "{name}, {pack:?}");
            let mut session = model.session(&SessionOptions::default()).unwrap();
            let mut logits = session.feed(&[5, 9, 14, 3, 200]).unwrap().to_vec();
            logits.extend(session.feed(&[7]).unwrap());
            logits
        });
        let [packed, in_file, auto] = logits;
        assert_eq!(packed, auto, "{name}: a small model fits");
        let square = |values: &mut dyn Iterator<Item = f32>| {
            values.map(|value| f64::from(value) * f64::from(value)).sum::<f64>()
        };
        let mean = in_file.iter().sum::<f32>() / in_file.len() as f32;
        let off = square(&mut packed.iter().zip(&in_file).map(|(a, b)| a - b));
        let spread = square(&mut in_file.iter().map(|value| value - mean));
        let part = (off / spread).sqrt();
        assert!(part > 0.0 && part < 0.025, "{name}: {part}");
    }
}

#[test]
fn a_table_of_rows_is_no_matrix() {
    let tied = file("../crates/cli/assets/austen-q8_0.gguf");
    assert!(!is_table(&tied, "token_embd.weight"));
    let untied = file("models/random-llama-q4_k_m.gguf");
    let has_output = untied.tensor_opt("output.weight").is_some();
    assert_eq!(is_table(&untied, "token_embd.weight"), has_output);
    assert!(!is_table(&untied, "blk.0.attn_q.weight"));
    let plan = PackPlan::new(&untied, Pack::Always, None);
    assert_eq!(plan.packed_bytes("token_embd.weight").is_none(), has_output);
}
