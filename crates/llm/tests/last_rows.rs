//! The last layer runs the tokens whose logits are wanted, and no others. What it says of them is
//! what it says when all run, up to the order of the additions inside attention.

use fucina_gguf::File;
use fucina_llm::{Model, SessionOptions};
use fucina_runtime::Runtime;
use fucina_testkit::golden_path;

/// A thousand roundings of f32: far below what a missing or a wrong key would change.
const LIMIT: f64 = 1000.0 / (1 << 24) as f64;

#[test]
fn the_last_token_says_the_same_alone_in_the_last_layer() {
    let rt = Runtime::builder().threads(2).build().unwrap();
    for name in [
        "../crates/cli/assets/austen-q8_0.gguf",
        "models/random-llama-q4_k_m.gguf",
        "models/random-qwen2-q4_k_m.gguf",
    ] {
        let model = Model::load(&rt, &File::open(golden_path(name)).unwrap(), &|_, _| ()).unwrap();
        for (held, len) in [(0, 1), (0, 2), (0, 6), (0, 33), (1, 5), (7, 1), (20, 9)] {
            let ids: Vec<u32> = (0..held + len).map(|at| 3 + 7 * at).collect();
            let (before, after) = ids.split_at(held as usize);
            let session = || {
                let mut session = model.session(&SessionOptions::default()).unwrap();
                if held > 0 {
                    session.feed(before).unwrap();
                }
                session
            };
            let last = session().feed(after).unwrap();
            let all = session().feed_all(after).unwrap();
            assert_eq!(all.len(), after.len() * last.len());
            let want = &all[all.len() - last.len()..];
            let square = |values: &mut dyn Iterator<Item = f32>| {
                values.map(|value| f64::from(value).powi(2)).sum::<f64>()
            };
            let off = square(&mut last.iter().zip(want).map(|(a, b)| a - b));
            let part = (off / square(&mut want.iter().copied())).sqrt();
            assert!(part < LIMIT, "{name}, {len} tokens after {held}: {part}");
        }
    }
}
