//! Speed of encoding, decoding and sampling.
//!
//! `cargo bench -p fucina-llm --bench tokenizer -- [--quick] [FILTER]...`
//!
//! The rounds are interleaved over the cases; minimum and median are printed. A case runs if its
//! name contains every filter. Texts have one mebibyte, with `--quick` a sixteenth of that.

#![expect(clippy::print_stdout, reason = "a benchmark prints its results")]
#![expect(clippy::unwrap_used, reason = "a benchmark may stop at a failure")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use fucina_gguf::File;
use fucina_llm::sampler::{Sampler, SamplerConfig};
use fucina_llm::tokenizer::{Bos, ControlTokens, Special, Tokenizer};
use fucina_testkit::{Rng, golden_path};

/// Something to time, and how many bytes or tokens it handles.
struct Case<'a> {
    name: String,
    amount: usize,
    run: Box<dyn FnMut() + 'a>,
    times: Vec<Duration>,
}

impl<'a> Case<'a> {
    fn new(name: impl Into<String>, amount: usize, run: impl FnMut() + 'a) -> Self {
        Self { name: name.into(), amount, run: Box::new(run), times: Vec::new() }
    }
}

/// The first `len` bytes of prose in three scripts, with some code. One paragraph, over and over.
fn prose(len: usize) -> String {
    let paragraph = "It is a truth universally acknowledged, that a single man in possession of a \
        good fortune, must be in want of a wife.\n\nHowever little known the feelings (1813) of \
        such a man may be... «naïve», don't you think? Привет, мир! 你好，世界。\n\tif (a && b) { \
        return x[10]; } // comment\n";
    let mut text = paragraph.repeat(len / paragraph.len() + 1);
    text.truncate((0..=len).rev().find(|&at| text.is_char_boundary(at)).unwrap());
    text
}

fn text_cases<'a>(tokenizer: &'a Tokenizer, len: usize) -> Vec<Case<'a>> {
    let texts = [
        ("prose", prose(len)),
        ("one word", "supercalifragilistic".repeat(len / 20)),
        ("one character", "a".repeat(len)),
        ("brackets", "(".repeat(len)),
        ("spaces", " ".repeat(len)),
    ];
    let mut cases = Vec::new();
    for (name, text) in texts {
        let ids = tokenizer.encode(&text, Special::Parse, Bos::Never).unwrap();
        let len = text.len();
        cases.push(Case::new(format!("encode {name}"), len, move || {
            black_box(tokenizer.encode(&text, Special::Parse, Bos::Never).unwrap());
        }));
        if name == "prose" {
            let all = ids.clone();
            cases.push(Case::new("decode prose", len, move || {
                black_box(tokenizer.decode(&all, ControlTokens::Skip).unwrap());
            }));
            cases.push(Case::new("stream prose", len, move || {
                let mut stream = tokenizer.stream(ControlTokens::Skip);
                for &id in &ids {
                    black_box(stream.push(id).unwrap());
                }
            }));
        }
    }
    cases
}

fn sampler_cases(logits: &[f32]) -> Vec<Case<'_>> {
    let base = SamplerConfig { temperature: 0.8, ..SamplerConfig::GREEDY };
    let configs = [
        ("greedy", SamplerConfig::GREEDY),
        ("top-k 40", SamplerConfig { top_k: 40, ..base }),
        ("defaults", SamplerConfig::default()),
        ("defaults, penalties", SamplerConfig { repeat_penalty: 1.1, ..SamplerConfig::default() }),
        ("top-k 1000", SamplerConfig { top_k: 1000, ..base }),
        ("top-p alone", SamplerConfig { top_p: 0.9, ..base }),
        ("min-p alone", SamplerConfig { min_p: 0.05, ..base }),
        ("temperature alone", base),
    ];
    configs
        .into_iter()
        .map(|(name, config)| {
            let mut sampler = Sampler::new(config).unwrap();
            let name = format!("sample {}, {name}", logits.len());
            Case::new(name, 1, move || {
                let token = sampler.sample(logits).unwrap();
                sampler.accept(black_box(token));
            })
        })
        .collect()
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let quick = args.iter().any(|arg| arg == "--quick");
    let filters: Vec<&String> = args.iter().filter(|arg| !arg.starts_with("--")).collect();
    let (len, rounds) = if quick { (1 << 16, 3) } else { (1 << 20, 11) };

    let file = File::open(golden_path("qwen2-vocab.gguf")).unwrap();
    let (tokenizer, _) = Tokenizer::from_gguf(file.metadata()).unwrap();
    let logits = Rng::new(1).normals(262_144, 3.0);
    let mut cases = vec![Case::new("load the vocabulary", 151_936, || {
        black_box(Tokenizer::from_gguf(file.metadata()).unwrap());
    })];
    cases.extend(text_cases(&tokenizer, len));
    cases.extend(sampler_cases(&logits));
    cases.retain(|case| filters.iter().all(|filter| case.name.contains(filter.as_str())));

    for _ in 0..rounds {
        for case in &mut cases {
            let start = Instant::now();
            (case.run)();
            case.times.push(start.elapsed());
        }
    }
    println!("case                                  min ms   med ms   M/s (bytes, tokens, draws)");
    for Case { name, amount, mut times, .. } in cases {
        times.sort_unstable();
        let (min, median) = (times[0], times[times.len() / 2]);
        let rate = amount as f64 / min.as_secs_f64() / 1e6;
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        println!("{name:36} {:8.3} {:8.3} {rate:8.3}", ms(min), ms(median));
    }
}
