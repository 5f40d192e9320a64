//! What a hostile template takes of memory, counted by an allocator.

#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use fucina_llm::chat::{ChatTemplate, Message, RenderOptions, SpecialTexts, TemplateError};

/// The system's allocator, which counts what lives.
struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: Both functions do what the system's allocator does, which keeps the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let live = LIVE.fetch_add(layout.size(), Ordering::SeqCst) + layout.size();
        PEAK.fetch_max(live, Ordering::SeqCst);
        // SAFETY: The caller's layout is passed on as it is.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::SeqCst);
        // SAFETY: The block comes from `alloc` above, with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The engine's budget here is 64 bytes for each of 51,000 steps: 3.3 MB of what the template
/// makes. Ours may hold a value, its text and a copy of both at once, and lists take a place of
/// 24 bytes for the 32 that are paid, twice while they grow.
const MOST: usize = 24 << 20;

/// What rendering `source` takes at most, and what it leaves.
fn memory(source: &str) -> (usize, usize, Result<String, TemplateError>) {
    let template = ChatTemplate::new(source, SpecialTexts::default()).unwrap();
    // What is made once.
    let _ = template.render(&[], &RenderOptions::default());
    let before = LIVE.load(Ordering::SeqCst);
    PEAK.store(before, Ordering::SeqCst);
    let result = template.render(&[Message::user("hi")], &RenderOptions::default());
    let peak = PEAK.load(Ordering::SeqCst) - before;
    let kept = result.as_ref().map_or(0, String::capacity);
    let left = LIVE.load(Ordering::SeqCst).saturating_sub(before + kept);
    (peak, left, result)
}

/// Some of these end within the budget.
fn kept_small(result: &Result<String, TemplateError>) -> bool {
    result.as_ref().is_ok_and(|text| text.len() < 100)
}

#[test]
fn a_hostile_template_takes_little_memory_and_gives_it_back() {
    let twice = |step: &str| {
        format!(
            "{{% set ns = namespace(x=['ab']) %}}{{% for i in range(99) %}}{{% set ns.x = {step} %}}\
             {{% endfor %}}{{{{ ns.x | length }}}}"
        )
    };
    let mut sources: Vec<String> = [
        "ns.x + ns.x",
        "[ns.x, ns.x]",
        "(ns.x, ns.x)",
        "{'a': ns.x, 'b': ns.x}",
        "ns.x * 3",
        "ns.x ~ ns.x",
        "(ns.x | string) * 2",
        "ns.x | string | replace('a', 'aaaa')",
        "ns.x | batch(1)",
        "[ns.x] | tojson",
        "'%s %s' | format(ns.x, ns.x)",
        "ns.x | join(ns.x ~ ns.x)",
        "(ns.x ~ ns.x).split('b')",
        "(ns.x ~ ns.x) | list",
        "ns.x | map('string') | list + ns.x",
        "((ns.x ~ ns.x).center(99999999))",
        "ns.x | string | indent(9999999, true)",
    ]
    .map(twice)
    .into();
    sources.push("{{ 'a' * 10**9 }}".to_owned());
    sources.push("{{ [0] * 10**8 }}".to_owned());
    sources.push("{{ range(99999) | join('a' * 3000000) }}".to_owned());
    sources.push("{% for i in range(99999) %}{{ 'x' * 1000 }}{% endfor %}".to_owned());
    sources.push(
        "{% set x %}{% for i in range(99999) %}{{ i }}{% endfor %}{% endset %}{{ x }}".to_owned(),
    );
    sources.push("{% macro m(a) %}{{ a }}{{ m(a ~ a) }}{% endmacro %}{{ m('ab') }}".to_owned());
    sources.push("{{ 'x' | batch(10**9, 'y') | list }}".to_owned());
    sources.push("{{ 'x' | slice(10**9, 'y') | list }}".to_owned());
    for source in &sources {
        let (peak, left, result) = memory(source);
        assert!(peak < MOST, "{source}: {peak} bytes, {result:?}");
        assert!(left < 64 << 10, "{source}: {left} bytes left");
        assert!(result.is_err() || kept_small(&result), "{source}: {result:?}");
    }
    // A conversation may be rendered in full.
    let (peak, left, result) = memory("{{ messages | tojson }}");
    assert!(peak < MOST && left < 64 << 10 && result.is_ok(), "{peak} {left} {result:?}");
}
