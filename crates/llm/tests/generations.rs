//! A thousand generations leave no byte behind. One test only: the allocator counts the whole
//! process.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test: a panic is a failure")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicIsize, Ordering::SeqCst};

use fucina_gguf::File;
use fucina_llm::sampler::{Sampler, SamplerConfig};
use fucina_llm::tokenizer::{Bos, Special};
use fucina_llm::{Event, GenerateOptions, Model, SessionOptions, generate};
use fucina_runtime::Runtime;
use fucina_testkit::golden_path;

/// The system's allocator, with the bytes that are in use.
struct Counting;

static LIVE: AtomicIsize = AtomicIsize::new(0);

fn count(bytes: usize, sign: isize) {
    LIVE.fetch_add(sign * isize::try_from(bytes).unwrap_or(isize::MAX), SeqCst);
}

// SAFETY: every call goes on to the system's allocator with the arguments it came with.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 1);
        // SAFETY: the caller keeps the contract of `alloc`, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        count(layout.size(), -1);
        // SAFETY: the caller got `block` from `alloc` above, so from the system's allocator, with
        // this layout.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Live bytes.
fn live() -> isize {
    LIVE.load(SeqCst)
}

#[test]
fn a_thousand_generations_leave_no_byte_behind() {
    let rt = Runtime::builder().threads(2).build().unwrap();
    let path = golden_path("../crates/cli/assets/austen-q8_0.gguf");
    let model = Model::load(&rt, &File::open(path).unwrap(), &|_, _| ()).unwrap();
    let tokenizer = model.tokenizer();
    let prompts = ["It is", "She was not", "\"My dear Mr. Bennet,\" said his lady to him, \""];
    let prompts = prompts.map(|text| tokenizer.encode(text, Special::Plain, Bos::Auto).unwrap());
    let generation = |round: usize| {
        // A session of its own each time: sizes and lengths take turns.
        let context = [16, 32, 64][round % 3];
        let mut session = model.session(&SessionOptions::default().context(Some(context))).unwrap();
        let config = SamplerConfig { seed: round as u64, ..SamplerConfig::default() };
        let mut sampler = Sampler::new(config).unwrap();
        let options = GenerateOptions::default().max_tokens(Some(3)).ignore_end(true);
        let mut bytes = 0;
        let on_event = &mut |event: Event<'_>| {
            if let Event::Token { text, .. } = event {
                bytes += text.len();
            }
            ControlFlow::Continue(())
        };
        let prompt = &prompts[round / 3 % 3];
        let prompt = &prompt[..prompt.len().min(context - 3)];
        generate(&mut session, prompt, &mut sampler, &options, on_event).unwrap().tokens
    };
    // All nine combinations several times, so that the pool has every size it needs, and until the
    // worker has had a share of each: on a busy machine it may come late to its first ones.
    let (mut before, mut steady) = (live(), 0);
    for round in 0.. {
        assert!(round < 2000, "live bytes do not settle");
        assert_eq!(generation(round), 3);
        steady = if live() == before { steady + 1 } else { 0 };
        before = live();
        if steady == 90 {
            break;
        }
    }
    let mut most = before;
    for round in 0..1000 {
        assert_eq!(generation(round), 3);
        most = most.max(live());
    }
    // Before anything is printed: the harness keeps that.
    let after = live();
    println!("{before} live bytes before, {after} after, {most} at most between");
    assert_eq!(after, before, "live bytes grew");
    assert_eq!(most, before, "live bytes between generations");
}
