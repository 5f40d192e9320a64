//! What a damaged or foreign file, and a bad prompt, turn into: an error that names the thing.

#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test: small numbers, and a panic is a failure"
)]

use bytes::Bytes;
use fucina_gguf::{File, Value, Writer};
use fucina_llm::{Error, Model, SessionOptions, sampler, tokenizer};
use fucina_runtime::{DType, Runtime};
use fucina_testkit::golden_path;

/// What to change of the embedded model.
#[derive(Default)]
struct Edit<'a> {
    set: &'a [(&'a str, Value)],
    without_key: Option<&'a str>,
    without_tensor: Option<&'a str>,
    extra_tensor: Option<&'a str>,
    /// Cuts the rows of a tensor to so many.
    rows: Option<(&'a str, usize)>,
    /// Makes the last two rows of the embedding large and opposite.
    large_last_rows: bool,
}

/// Rows of `Q8_0`: scales of 1/4 and bytes that are negated from one row to the next.
fn opposite_rows(data: &Bytes) -> Bytes {
    let mut data = data.to_vec();
    let row = 256 / 32 * 34;
    let start = data.len() - 2 * row;
    for (at, block) in data[start..].chunks_exact_mut(34).enumerate() {
        block[..2].copy_from_slice(&0x3400u16.to_le_bytes());
        for (byte, x) in block[2..].iter_mut().enumerate() {
            let value = (at % 8 * 32 + byte) as i8 | 1;
            *x = if at < 8 { value } else { value.wrapping_neg() }.cast_unsigned();
        }
    }
    data.into()
}

fn edited(edit: &Edit<'_>) -> File {
    let file = File::open(golden_path("../crates/cli/assets/austen-q8_0.gguf")).unwrap();
    let mut writer = Writer::new();
    let replaced = |key: &str| edit.set.iter().any(|(name, _)| *name == key);
    for (key, value) in file.metadata().iter() {
        if !replaced(key) && edit.without_key != Some(key) {
            writer.set(key, value.clone()).unwrap();
        }
    }
    for (key, value) in edit.set {
        writer.set(key, value.clone()).unwrap();
    }
    for tensor in file.tensors() {
        if edit.without_tensor == Some(tensor.name()) {
            continue;
        }
        let (mut shape, mut data) = (tensor.shape().to_vec(), file.tensor_data(tensor).unwrap());
        if let Some((name, rows)) = edit.rows
            && name == tensor.name()
        {
            data.truncate(data.len() / shape[1] * rows);
            shape[1] = rows;
        }
        if edit.large_last_rows && tensor.name() == "token_embd.weight" {
            data = opposite_rows(&data);
        }
        writer.tensor(tensor.name(), tensor.dtype().unwrap(), &shape, data).unwrap();
    }
    if let Some(name) = edit.extra_tensor {
        writer.tensor(name, DType::F32, &[4], Bytes::from(vec![0; 16])).unwrap();
    }
    File::from_bytes(writer.to_bytes().unwrap()).unwrap()
}

fn load(edit: &Edit<'_>) -> Result<Model, Error> {
    let rt = Runtime::builder().threads(1).build().unwrap();
    Model::load(&rt, &edited(edit), &|_, _| ())
}

fn key(name: &str, value: impl Into<Value>) -> [(&str, Value); 1] {
    [(name, value.into())]
}

#[test]
fn an_unedited_copy_loads_and_reports_what_it_is() {
    let model = load(&Edit::default()).unwrap();
    let info = model.info();
    assert_eq!((info.architecture.as_str(), info.main_type), ("qwen3", "Q8_0"));
    assert_eq!((info.context, info.vocab), (512, 2048));
    assert!(info.unused_tensors.is_empty() && info.tokenizer_warnings.is_empty());
    assert!(info.memory.packed > info.memory.copied);
}

#[test]
fn an_unknown_architecture_lists_the_known_ones() {
    let error = load(&Edit { set: &key("general.architecture", "foo9"), ..Edit::default() });
    let text = error.unwrap_err().to_string();
    assert!(["foo9", "llama", "qwen2", "qwen3"].iter().all(|name| text.contains(name)), "{text}");
}

#[test]
fn a_missing_tensor_is_named_and_an_extra_one_reported() {
    for name in ["token_embd.weight", "output_norm.weight", "blk.2.attn_k_norm.weight"] {
        let error = load(&Edit { without_tensor: Some(name), ..Edit::default() }).unwrap_err();
        assert!(matches!(error, Error::File(_)) && error.to_string().contains(name), "{error}");
    }
    let model = load(&Edit { extra_tensor: Some("blk.0.spare"), ..Edit::default() }).unwrap();
    assert_eq!(model.info().unused_tensors, ["blk.0.spare"]);
}

#[test]
fn a_tensor_of_another_shape_is_named_with_both_shapes() {
    let name = "blk.1.ffn_up.weight";
    let error = load(&Edit { rows: Some((name, 767)), ..Edit::default() }).unwrap_err();
    let (expected, found) = (vec![768, 256], vec![767, 256]);
    assert_eq!(error, Error::TensorShape { name: name.to_owned(), expected, found });
    let error = load(&Edit { rows: Some(("token_embd.weight", 2000)), ..Edit::default() });
    assert_eq!(error.unwrap_err(), Error::Vocabulary { tokens: 2048, rows: 2000 });
}

/// Rows of the embedding beyond the vocabulary are padding. Here they are so large that one of them
/// always has the best logit: they point in opposite directions.
#[test]
fn rows_beyond_the_vocabulary_are_never_chosen() {
    use fucina_llm::{Event, GenerateOptions, generate};
    use std::ops::ControlFlow;

    let file = File::open(golden_path("../crates/cli/assets/austen-q8_0.gguf")).unwrap();
    let mut tokens: Vec<&str> =
        file.metadata().str_array("tokenizer.ggml.tokens").unwrap().iter().collect();
    let kinds = file.metadata().i32_array_opt("tokenizer.ggml.token_type").unwrap().unwrap();
    tokens.truncate(2046);
    let set = [
        ("tokenizer.ggml.tokens", tokens.into()),
        ("tokenizer.ggml.token_type", kinds[..2046].to_vec().into()),
        ("tokenizer.ggml.eos_token_id", u32::MAX.into()),
        ("tokenizer.ggml.bos_token_id", u32::MAX.into()),
        ("tokenizer.ggml.padding_token_id", u32::MAX.into()),
    ];
    let rt = Runtime::builder().threads(1).build().unwrap();
    let file = edited(&Edit { set: &set, large_last_rows: true, ..Edit::default() });
    let model = Model::load(&rt, &file, &|_, _| ()).unwrap();
    assert_eq!((model.info().vocab, model.tokenizer().vocab_size()), (2048, 2046));
    let mut session = model.session(&SessionOptions::default().context(Some(32))).unwrap();
    let logits = session.feed(&[1, 2, 3]).unwrap();
    let best = (0..2048).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap();
    assert!(best >= 2046, "the padding is best, at {best}");
    session.truncate(0);
    let config = sampler::SamplerConfig { temperature: 0.0, ..sampler::SamplerConfig::default() };
    let mut sampler = sampler::Sampler::new(config).unwrap();
    let options = GenerateOptions::default().max_tokens(Some(20)).ignore_end(true);
    let mut ids = Vec::new();
    let on_event = &mut |event: Event<'_>| {
        if let Event::Token { id, .. } = event {
            ids.push(id);
        }
        ControlFlow::Continue(())
    };
    generate(&mut session, &[1, 2, 3], &mut sampler, &options, on_event).unwrap();
    assert!(ids.len() == 20 && ids.iter().all(|&id| id < 2046), "{ids:?}");
}

/// Every size that a file can lie about is refused with the key's name, and nothing overflows.
#[test]
fn impossible_sizes_are_errors_that_name_the_key() {
    let cases: [(&str, Value); 16] = [
        ("qwen3.embedding_length", 0u32.into()),
        ("qwen3.attention.head_count", 0u32.into()),
        ("qwen3.attention.head_count", 3u32.into()),
        ("qwen3.attention.head_count_kv", 0u32.into()),
        ("qwen3.attention.head_count_kv", u64::MAX.into()),
        ("qwen3.attention.key_length", 0u32.into()),
        ("qwen3.attention.key_length", u64::MAX.into()),
        ("qwen3.attention.value_length", u64::MAX.into()),
        ("qwen3.feed_forward_length", 0u32.into()),
        ("qwen3.block_count", 0u32.into()),
        ("qwen3.context_length", 0u32.into()),
        ("qwen3.attention.layer_norm_rms_epsilon", f32::NAN.into()),
        ("qwen3.rope.freq_base", (-1.0f32).into()),
        ("qwen3.rope.dimension_count", 65u32.into()),
        ("qwen3.rope.dimension_count", u64::MAX.into()),
        ("qwen3.rope.scaling.type", "longrope".into()),
    ];
    for (name, value) in cases {
        let set = [(name, value)];
        let error = load(&Edit { set: &set, ..Edit::default() }).unwrap_err();
        let text = error.to_string();
        let shape = matches!(error, Error::TensorShape { .. });
        assert!(text.contains(name) || shape, "{:?}: {text}", set[0]);
    }
    // A count of layers beyond the file ends at the first layer that is not there.
    let error = load(&Edit { set: &key("qwen3.block_count", u32::MAX), ..Edit::default() });
    assert!(error.unwrap_err().to_string().contains("blk.4."));
    for name in ["qwen3.block_count", "qwen3.context_length", "tokenizer.ggml.tokens"] {
        let error = load(&Edit { without_key: Some(name), ..Edit::default() }).unwrap_err();
        assert!(error.to_string().contains(name), "{error}");
    }
    let error = load(&Edit { set: &key("qwen3.block_count", "four"), ..Edit::default() });
    assert!(error.unwrap_err().to_string().contains("qwen3.block_count"));
}

#[test]
fn prompts_that_do_not_fit_are_errors_and_leave_the_session_as_it_was() {
    let model = load(&Edit::default()).unwrap();
    for wanted in [0, 513, usize::MAX] {
        let error = model.session(&SessionOptions::default().context(Some(wanted))).unwrap_err();
        assert_eq!(error, Error::Context { wanted, limit: 512 });
    }
    let mut session = model.session(&SessionOptions::default().context(Some(8))).unwrap();
    assert_eq!(session.feed(&[]), Err(Error::EmptyPrompt));
    let error = session.feed(&[1; 9]).unwrap_err();
    assert_eq!(error, Error::PromptTooLong { prompt: 9, held: 0, context: 8 });
    let want = session.feed(&[1, 2, 3]).unwrap();
    for bad in [2048, u32::MAX] {
        let error = session.feed(&[4, bad]).unwrap_err();
        assert!(matches!(error, Error::Tensor(_)), "{error}");
        assert_eq!(session.len(), 3);
    }
    session.truncate(0);
    assert_eq!(session.feed(&[1, 2, 3]).unwrap(), want);
    assert!(matches!(session.feed(&[1; 6]), Err(Error::PromptTooLong { held: 3, .. })));
}

/// One token at a time gives what the whole prompt gives, within what the order of f32 sums makes.
#[test]
fn token_by_token_equals_the_whole_prompt() {
    let model = load(&Edit::default()).unwrap();
    let ids: Vec<u32> = (0..70).map(|at| at * 29 % 2000).collect();
    let mut whole = model.session(&SessionOptions::default()).unwrap();
    let all = whole.feed_all(&ids).unwrap();
    let mut single = model.session(&SessionOptions::default()).unwrap();
    for (&id, want) in ids.iter().zip(all.chunks_exact(2048)) {
        let got = single.feed(&[id]).unwrap();
        let worst = got.iter().zip(want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        // Logits are about 20 large; the 8-bit rounding of activations may fall the other way.
        assert!(worst < 0.25, "{worst}");
    }
}

#[test]
fn a_generation_reuses_its_memory() {
    let model = load(&Edit::default()).unwrap();
    let mut session = model.session(&SessionOptions::default()).unwrap();
    let mut misses = 0;
    for step in 0..60 {
        session.feed(&[step % 7]).unwrap();
        let now = model.runtime().pool().stats().misses;
        // The first steps fill the pool.
        assert!(step < 4 || now == misses, "step {step} allocates");
        misses = now;
    }
}

#[test]
fn generation_stops_where_it_should_and_repeats_by_seed() {
    use fucina_llm::{Event, GenerateOptions, Stop, generate};
    use std::ops::ControlFlow;

    let model = load(&Edit::default()).unwrap();
    let encode = |text: &str| {
        model.tokenizer().encode(text, tokenizer::Special::Plain, tokenizer::Bos::Auto).unwrap()
    };
    let prompt = encode("She was");
    let run = |context: usize, max: Option<usize>, stop_at: usize, seed: u64| {
        let mut session = model.session(&SessionOptions::default().context(Some(context))).unwrap();
        let config = sampler::SamplerConfig { seed, ..sampler::SamplerConfig::default() };
        let mut sampler = sampler::Sampler::new(config).unwrap();
        let options = GenerateOptions::default().max_tokens(max).ignore_end(true);
        let (mut text, mut count) = (String::new(), 0);
        let mut on_event = |event: Event<'_>| {
            match event {
                Event::Token { text: piece, .. } => {
                    text.push_str(piece);
                    count += 1;
                }
                Event::Tail { text: piece } => text.push_str(piece),
                Event::Prompt { .. } => {}
            }
            if count >= stop_at { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let done = generate(&mut session, &prompt, &mut sampler, &options, &mut on_event).unwrap();
        (text, done.tokens, done.stop)
    };
    let (text, tokens, stop) = run(64, Some(20), usize::MAX, 1);
    assert_eq!((tokens, stop), (20, Stop::MaxTokens));
    assert_eq!(run(64, Some(20), usize::MAX, 1).0, text);
    assert_ne!(run(64, Some(20), usize::MAX, 2).0, text);
    assert_eq!(run(64, Some(0), usize::MAX, 1), (String::new(), 0, Stop::MaxTokens));
    let full = 16 - prompt.len() + 1;
    let (_, tokens, stop) = run(16, None, usize::MAX, 1);
    assert_eq!((tokens, stop), (full, Stop::ContextFull));
    let (part, tokens, stop) = run(64, Some(20), 5, 1);
    assert_eq!((tokens, stop), (5, Stop::Cancelled));
    assert!(text.starts_with(&part), "what was written stays");
}
