use std::time::{Duration, Instant, UNIX_EPOCH};

use serde_json::json;

use super::{ChatTemplate, RenderOptions, SpecialTexts, TemplateError, time};
use crate::chat::Message;

fn compile(source: &str) -> Result<ChatTemplate, TemplateError> {
    ChatTemplate::new(source, SpecialTexts::default())
}

fn render(source: &str) -> Result<String, TemplateError> {
    compile(source)?.render(&[Message::user("hi")], &RenderOptions::default())
}

/// Far above what the budget takes, also unoptimized and on a busy machine.
const LIMIT: Duration = Duration::from_secs(30);

/// Loops and values that grow.
fn growing() -> Vec<String> {
    let nested_loops = "{% for a in range(1000) %}".repeat(8) + "x" + &"{% endfor %}".repeat(8);
    let doubled = "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}";
    let diamond = "{% set ns = namespace(x=['ab']) %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}";
    vec![
        "{% for i in range(10**9) %}{{ i }}{% endfor %}".to_owned(),
        "{{ 'a' * 10**9 }}".to_owned(),
        "{{ 'a' * 99999999999999999999 }}".to_owned(),
        "{{ ['a'] * 10**9 }}".to_owned(),
        "{% set x = 'a' * 1000000000 %}".to_owned(),
        nested_loops,
        doubled.to_owned(),
        format!("{diamond}{{{{ ns.x }}}}"),
        format!("{diamond}{{{{ ns.x | string }}}}"),
        format!("{diamond}{{{{ ns.x | tojson }}}}"),
        format!("{diamond}{{{{ ns.x | tojson(indent=2) }}}}"),
        format!(
            "{diamond}{{{{ ns.x == [ns.x] }}}}{{{{ ns.x == ns.x + [1] }}}}{{{{ ns.x | join('a') }}}}"
        ),
        format!("{diamond}{{{{ [ns.x].count(1) }}}}{{{{ ','.join(ns.x) }}}}"),
    ]
}

/// Small values that are endless when they are read.
fn shared() -> Vec<String> {
    let grow = |initial: &str, step: &str| {
        format!(
            "{{% set ns = namespace(x={initial}) %}}{{% for i in range(60) %}}{{% set ns.x = {step} %}}{{% endfor %}}"
        )
    };
    let mut all = vec![
        grow("['ab']", "ns.x + ns.x"),
        grow("('ab', 1)", "ns.x + ns.x"),
        grow("['ab']", "ns.x * 2"),
        grow("(1, 2)", "2 * ns.x"),
        grow("'ab'", "ns.x ~ ns.x"),
        grow("'ab'", "ns.x * 2"),
        grow("'ab'", "[ns.x, ns.x] | join"),
        grow("'ab'", "'%s%s' | format(ns.x, ns.x)"),
        grow("'ab'", "'{0}{0}'.format(ns.x)"),
        grow("'ab'", "ns.x.replace('ab', 'abab')"),
        grow("'ab'", "ns.x | replace('ab', 'abab')"),
        grow("'ab'", "ns.x | indent(99999, true)"),
        grow("['ab']", "[ns.x, ns.x]"),
        grow("['ab']", "(ns.x, ns.x)"),
        grow("['ab']", "{'a': ns.x, 'b': ns.x}"),
        grow("['ab']", "{(ns.x, 1): 1, (ns.x, 2): ns.x}"),
        grow("['ab']", "dict(a=ns.x, b=ns.x)"),
        grow("['ab']", "[ns.x] * 2"),
        grow("['ab']", "ns.x + [ns.x]"),
    ];
    all.extend(read_again());
    all.extend(compared());
    all
}

/// Two values with the same shared parts and no part in common, compared to the end: large ones
/// once, and such as a template can make again and again.
fn compared() -> Vec<String> {
    let mut all = Vec::new();
    for step in ["{'a': X, 'b': X}", "[X, X]", "(X, X)"] {
        for comparison in [
            "ns.l == ns.m",
            "ns.l != ns.m",
            "ns.l < ns.m",
            "ns.l in [ns.m]",
            "[ns.l, ns.m] | max",
            "[ns.l, ns.m] | min",
            "[ns.l, ns.m] | sort",
            "[ns.l, ns.m] | unique",
        ] {
            let (l, m) = (step.replace('X', "ns.l"), step.replace('X', "ns.m"));
            let grow = |levels: u32| {
                format!(
                    "{{% set ns = namespace(l=['ab'], m=['ab']) %}}{{% for i in range({levels}) %}}\
                     {{% set ns.l = {l} %}}{{% set ns.m = {m} %}}{{% endfor %}}"
                )
            };
            let (large, small) = (grow(40), grow(6));
            all.push(format!("{large}{{{{ {comparison} }}}}"));
            all.push(format!(
                "{small}{{% for i in range(99999) %}}{{% set x = {comparison} %}}{{% endfor %}}"
            ));
        }
    }
    all
}

/// What is read in each step of a loop.
fn read_again() -> Vec<String> {
    let mut all = Vec::new();
    // As much as may be: a list whose text has 16 KB, read in each step of a loop.
    let big = "{% set ns = namespace(x=['ab']) %}{% for i in range(9) %}\
        {% set ns.x = [ns.x, ns.x] %}{% endfor %}";
    for use_of in [
        "ns.x ~ ''",
        "ns.x | string",
        "ns.x | upper",
        "ns.x | length ~ ns.x",
        "ns.x == ([ns.x[0], ns.x[0]] | list)",
        "ns.x < [ns.x[0], ns.x[0]]",
        "ns.x in [1, [ns.x[0], ns.x[0]]]",
        "1 < 2 < 3 == ns.x",
        "[ns.x, ns.x] | sort",
        "[ns.x, ns.x] | unique | list",
        "[ns.x, ns.x] | min",
        "[{'a': ns.x}, {'a': ns.x}] | groupby('a')",
        "{'a': ns.x, 'b': ns.x} | dictsort(by='value')",
        "[ns.x, ns.x] | select('eq', [ns.x[0], ns.x[0]]) | list",
        "ns.x is eq [ns.x[0], ns.x[0]]",
        "{ns.x: 1}",
        "{'a': 1}[ns.x]",
        "{'a': 1}.get(ns.x)",
        "{'a': 1} | attr(ns.x)",
        "'a' | replace(ns.x, 'b')",
        "ns.x | tojson",
        "ns.x | join(',')",
        "[ns.x, ns.x]",
    ] {
        all.push(format!(
            "{big}{{% for i in range(9999) %}}{{% set y = {use_of} %}}{{% endfor %}}"
        ));
    }
    let long = "{% set s = 'ab' * 500000 %}{% set ns = namespace(x=0) %}";
    for use_of in [
        "s[499999]",
        "s[1:]",
        "s[::-1]",
        "s is upper",
        "s | first",
        "[s] | map('last') | list",
        "s < s ~ 'a'",
        "[s] | map(attribute=9) | list",
        "{s: 1}",
        "{'a': 1}[s]",
    ] {
        all.push(format!(
            "{long}{{% for i in range(9999) %}}{{% set y = {use_of} %}}{{% endfor %}}"
        ));
    }
    all.push(format!("{long}{{% for i in range(50000) %}}{{% for c in s %}}{{% break %}}{{% endfor %}}{{% endfor %}}"));
    all.push("{% macro m(a) %}{{ a }}{{ m(a ~ a) }}{% endmacro %}{{ m('ab' * 999) }}".to_owned());
    all.push(
        "{% macro m() %}{{ caller() }}{{ caller() }}{{ caller() }}{{ caller() }}{% endmacro %}"
            .to_owned()
            + &"{% call m() %}".repeat(12)
            + "x"
            + &"{% endcall %}".repeat(12),
    );
    all.push(
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}".to_owned(),
    );
    all
}

/// Filters and methods that are asked for too much.
fn greedy() -> Vec<String> {
    vec![
        "{{ 'x' | center(10**9) }}".to_owned(),
        "{{ 'x'.center(10**9) }}".to_owned(),
        "{{ 'x'.ljust(999999999) }}".to_owned(),
        "{{ 'x'.zfill(999999999) }}".to_owned(),
        "{{ '%1000000000d' | format(1) }}".to_owned(),
        "{{ '%*d' | format(1000000000, 1) }}".to_owned(),
        "{{ '{:>1000000000}'.format('a') }}".to_owned(),
        "{{ ('{0}' * 100000).format('a' * 600000) }}".to_owned(),
        "{{ ('a' * 100000).replace('a', 'b' * 100000) }}".to_owned(),
        "{{ ('a' * 100000).replace('', 'b' * 100000) }}".to_owned(),
        "{{ ('a' * 100000) | replace('a', 'b' * 100000) }}".to_owned(),
        "{{ ('a' * 100000).join(range(99999) | map('string')) }}".to_owned(),
        "{{ range(99999) | join('a' * 100000) }}".to_owned(),
        "{{ 'a\\nb' | indent(1000000000) }}".to_owned(),
        "{{ ('a\\n' * 100000) | indent(100000) }}".to_owned(),
        "{{ [1] | tojson(indent=1000000000) }}".to_owned(),
        "{{ range(99999) | list | tojson(indent='a' * 600000) }}".to_owned(),
        "{{ [1, 2] | tojson(separators=('a' * 2000000, 'b')) }}".to_owned(),
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}".to_owned(),
        "{% macro m(x) %}{{ m(x) ~ m(x) }}{% endmacro %}{{ m(1) }}".to_owned(),
    ]
}

/// Much work for each step.
fn slow() -> Vec<String> {
    let long = "{% set s = 'ab' * 500000 %}";
    vec![
        format!(
            "{long}{{% for i in range(99999) %}}{{% if s.find('x') == 0 %}}{{% endif %}}{{% endfor %}}"
        ),
        format!(
            "{long}{{% for i in range(99999) %}}{{% if 'x' in s %}}{{% endif %}}{{% endfor %}}"
        ),
        format!(
            "{long}{{% for i in range(99999) %}}{{% if s == s ~ '' %}}{{% endif %}}{{% endfor %}}"
        ),
        format!("{long}{{% for i in range(99999) %}}{{% set x = s.strip('ba') %}}{{% endfor %}}"),
        format!(
            "{long}{{% for i in range(99999) %}}{{% set x = s.startswith(['x'] * 999) %}}{{% endfor %}}"
        ),
        format!("{long}{{% for i in range(99999) %}}{{% set x = s[::-1] %}}{{% endfor %}}"),
        format!("{long}{{% for i in range(99999) %}}{{% set x = s[499999] %}}{{% endfor %}}"),
        format!("{long}{{{{ s.split('a') | map('upper') | list | length }}}}"),
        format!("{long}{{{{ s.split('') }}}}{{{{ s.count('') }}}}{{{{ (s | list) * 99 }}}}"),
        format!("{long}{{{{ raise_exception(s * 9) }}}}"),
        format!("{long}{{{{ strftime_now(s * 9) }}}}"),
    ]
}

/// Deep nesting, of the source and of values.
fn deep() -> Vec<String> {
    vec![
        "{{ '[' * 100000 | fromjson }}".to_owned(),
        "{{ ('[' * 100000) | fromjson }}".to_owned(),
        "{{ 2 ** 2 ** 2 ** 2 ** 2 ** 2 }}".to_owned(),
        "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}".to_owned(),
        format!("{}1{}", "{{ (".to_owned() + &"(".repeat(60_000), ")".repeat(60_001) + " }}"),
        "{% if 1 %}".repeat(12_000),
        format!("{{{{ {}1 }}}}", "not ".repeat(32_000)),
        format!("{{{{ {}1 }}}}", "-".repeat(130_000)),
        format!("{{{{ 1{} }}}}", " + 1".repeat(30_000)),
        format!("{{{{ a{} }}}}", ".a".repeat(60_000)),
        format!("{{{{ a{} }}}}", "[0]".repeat(40_000)),
        format!("{{{{ a{} }}}}", " | trim".repeat(18_000)),
        format!("{{{{ {} }}}}", "[".repeat(100_000)),
        format!("{{{{ {}1 }}}}", "1 if ".repeat(20_000)),
        format!("{{{{ {}1{} }}}}", "f(".repeat(40_000), ")".repeat(40_000)),
        "x".repeat((128 << 10) + 1),
    ]
}

#[test]
fn a_hostile_template_is_an_error_and_takes_neither_time_nor_memory() {
    for source in [growing(), greedy(), slow(), deep()].concat() {
        let start = Instant::now();
        let result = render(&source);
        let took = start.elapsed();
        let name = &source[..source.len().min(200)];
        assert!(took < LIMIT, "{name}: {took:?}");
        if let Ok(text) = &result {
            assert!(text.len() < 1 << 20, "{name}: {} bytes", text.len());
        }
        if let Err(error) = &result {
            assert!(error.to_string().len() < 5000, "{name}");
        }
    }
}

#[test]
fn limits_are_told_apart_from_damage() {
    let error =
        render("a\n{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}");
    assert!(matches!(error, Err(TemplateError::Limit { line: 2, .. })), "{error:?}");
    let error = render("a\n\n{{ 'x' * 10**9 }}");
    assert!(matches!(error, Err(TemplateError::Limit { line: 3, .. })), "{error:?}");
    let error = compile("a\n{% nonsense %}").unwrap_err();
    assert!(matches!(error, TemplateError::Syntax { line: 2, .. }), "{error:?}");
    assert!(error.to_string().starts_with("line 2 of the chat template: "), "{error}");
    let error = render("\n\n{{ messages[0].content + 1 }}");
    assert!(matches!(error, Err(TemplateError::Render { line: 3, .. })), "{error:?}");
    let error = render("\n{{ raise_exception('no \x1b[31m' ~ messages[0].content) }}").unwrap_err();
    let message = "no \u{fffd}[31mhi".to_owned();
    assert_eq!(error, TemplateError::Refused { line: 2, message });
    let error = render("{{ raise_exception('x' * 5000) }}").unwrap_err();
    assert!(
        matches!(error, TemplateError::Refused { message, .. } if message.chars().count() == 1001)
    );
    let bytes = (128 << 10) + 1;
    let error = compile(&"x".repeat(bytes)).unwrap_err();
    assert_eq!(error, TemplateError::TooLong { bytes, limit: 128 << 10 });
}

#[test]
fn what_is_read_once_for_each_way_to_it_is_beyond_the_limit() {
    for source in shared() {
        let start = Instant::now();
        let result = render(&source);
        let name = &source[..source.len().min(300)];
        assert!(matches!(result, Err(TemplateError::Limit { .. })), "{name}: {result:?}");
        assert!(start.elapsed() < LIMIT, "{name}: {:?}", start.elapsed());
    }
}

#[test]
fn a_value_that_could_hold_itself_is_refused() {
    for source in [
        "{% set ns = namespace() %}{% set ns.me = ns %}",
        "{% set ns = namespace() %}{% set ns.me = [ns] %}",
        "{% set a = namespace() %}{% set b = namespace(a=a) %}",
        "{% set a = namespace() %}{% set b = namespace({'a': a}) %}",
        "{% set a = namespace() %}{% set b = dict(a=a) %}",
        "{% set ns = namespace() %}{% for i in [1] %}{% set ns.loop = loop %}{% endfor %}",
        "{% for i in [1] %}{% set x = (loop,) %}{% endfor %}",
        "{% for i in [1] %}{% set x = {'a': loop} %}{% endfor %}",
        "{% for i in [1] %}{{ loop.changed(loop) }}{% endfor %}",
        // The engine divides by the number of arguments.
        "{% for i in [1] %}{{ loop.cycle() }}{% endfor %}",
        // It negates the step.
        "{{ range(0, -9223372036854775807, -9223372036854775807 - 1) | list }}{{ nothing.at.all }}",
        "{{ range(10**9) }}",
    ] {
        let result = render(source);
        assert!(
            matches!(result, Err(TemplateError::Render { line: 1, .. })),
            "{source}: {result:?}"
        );
    }
}

#[test]
fn nesting_is_bounded_and_nothing_that_is_nested_overflows_a_stack() {
    let nest = |step: &str| {
        format!(
            "{{% set ns = namespace(x=[1]) %}}{{% for i in range(3000) %}}{step}{{% endfor %}}done"
        )
    };
    for step in [
        "{% set ns.x = [ns.x] %}",
        "{% set ns.x = (ns.x, 1) %}",
        "{% set ns.x = {'a': ns.x} %}",
        "{% set ns.x = dict(a=ns.x) %}",
        "{% set ns.x = ns.x | batch(1) %}",
        "{% set ns.x = ns.x | slice(1) %}",
        "{% set ns.x = [ns.x] | map('list') | list %}",
        "{% set ns.x = {'a': ns.x} | items %}",
        "{% set ns.x = {'a': ns.x}.items() %}",
        "{% set ns.x = {'a': ns.x} | dictsort %}",
        "{% set ns.x = [{'a': ns.x}] | groupby('a') %}",
    ] {
        let result = render(&nest(step));
        let refused = matches!(&result, Err(TemplateError::Render { detail, .. }) if detail.contains("too deeply"));
        assert!(
            refused || matches!(result, Err(TemplateError::Limit { .. })),
            "{step}: {result:?}"
        );
    }
    for step in [
        "{% set ns.x = ns.x[0:] %}",
        "{% set ns.x = ns.x | reverse %}",
        "{% set ns.x = ns.x | list %}",
        "{% set ns.x = ns.x + [] %}",
        "{% set ns.x = ns.x * 1 %}",
        "{% set ns.x = ns.x | map('string') | list %}",
    ] {
        assert_eq!(render(&nest(step)).as_deref(), Ok("done"), "{step}");
    }
}

#[test]
fn operators_do_what_pythons_do() {
    for (source, want) in [
        ("{{ [1] + [2, 3] }}{{ (1,) + (2,) }}", "[1, 2, 3](1, 2)"),
        (
            "{{ [1, 2] * 2 }}{{ 2 * 'ab' }}{{ 'ab' * -1 }}{{ (1, 2) * 2 }}",
            "[1, 2, 1, 2]abab(1, 2, 1, 2)",
        ),
        (
            "{{ 1 + 2.5 }} {{ true + 1 }} {{ 3 * 1.5 }} {{ 9223372036854775807 + 1 }}",
            "3.5 2 4.5 9223372036854775808",
        ),
        ("{{ [1, 'a'] ~ 1.0 ~ none ~ true }}", "[1, 'a']1.0NoneTrue"),
        (
            "{{ 'héllo'[1] }}{{ 'abc'[-1] }}{{ 'abc'[-4] is undefined }}{{ 'abc'[9] is undefined }}",
            "écTrueTrue",
        ),
        ("{{ 'héllo'[1:3] }}{{ 'abc'[::-1] }}{{ 'abcde'[3:0:-2] }}{{ 'abc'[5:] }}|", "élcbadb|"),
        (
            "{{ [1, 2, 3, 4][-2:] }}{{ [1, 2, 3][::-1] }}{{ (1, 2, 3)[1:] }}{{ range(5)[1:3] }}",
            "[3, 4][3, 2, 1](2, 3)[1, 2]",
        ),
        ("{{ 1 < 2 < 3 }}{{ 1 < 2 > 3 }}{{ 'a' in ['a'] in [true] }}", "TrueFalseFalse"),
        (
            "{{ 2 in [1, 2] }}{{ 'b' in 'abc' }}{{ 'k' in {'k': 1} }}{{ 5 not in range(5) }}",
            "TrueTrueTrueTrue",
        ),
        (
            "{{ [1, [2]] == [1, [2]] }}{{ {'a': [1]} != {'a': [1]} }}{{ [1] < [2] }}",
            "TrueFalseTrue",
        ),
        (
            "{{ [1, 2] | map('string') | join }}{{ {'b': 1, 'a': 2} | dictsort }}",
            "12[('a', 2), ('b', 1)]",
        ),
        (
            "{{ range(3, 0, -1) | list }}{{ range(0) | list }}{{ range(1, 9, 3) | list }}",
            "[3, 2, 1][][1, 4, 7]",
        ),
        ("{% macro f(a, b=2) %}{{ a }}{{ b }}{% endmacro %}{{ f(*[1], **{'b': 3}) }}", "13"),
        (
            "{% for a, b in {'x': 1}.items() if b == 1 %}{{ loop.cycle('p', 'q') }}{{ a }}{% else %}no{% endfor %}",
            "px",
        ),
        ("{% for x in [1, 1, 2] %}{{ loop.changed(x) }}{% endfor %}", "TrueFalseTrue"),
        (
            "{% for x in [[1], [2]] recursive %}{% if x is iterable %}{{ loop(x) }}{% else %}{{ x }}{% endif %}{% endfor %}",
            "12",
        ),
        ("{% if 1 and [] or {'a': 1} %}y{% endif %}{{ 'a' if none else 'b' }}", "yb"),
    ] {
        assert_eq!(render(source).as_deref(), Ok(want), "{source}");
    }
}

#[test]
fn a_long_conversation_is_within_the_limits() {
    let source = "{% for m in messages %}{% if m.role == 'user' %}{{ m.content.strip() | trim + '</think>' }}\
        {% else %}{{ m.content.split('</think>')[-1] }}{% endif %}{% endfor %}";
    let template = compile(source).unwrap();
    let turns: Vec<Message> = (0..20_000)
        .map(|i| if i % 2 == 0 { Message::user("a") } else { Message::assistant("b") })
        .collect();
    assert_eq!(template.render(&turns, &RenderOptions::default()).unwrap().len(), 100_000);
    let long = [Message::user("word ".repeat(1 << 20))];
    assert!(template.render(&long, &RenderOptions::default()).unwrap().len() > 5 << 20);
}

#[test]
fn deep_arguments_are_an_error() {
    let mut value = json!(1);
    for _ in 0..200 {
        value = json!([value]);
    }
    let options = RenderOptions { tools: vec![value], ..RenderOptions::default() };
    let error = compile("").unwrap().render(&[], &options).unwrap_err();
    assert_eq!(error, TemplateError::TooDeep { limit: 128 });
}

#[test]
fn nothing_of_one_rendering_is_left_for_the_next() {
    let template = compile("{{ x }}{{ bos_token }}{{ enable_thinking is defined }}").unwrap();
    let mut options = RenderOptions::default();
    options.extra.insert("x".to_owned(), json!("a"));
    options.enable_thinking = Some(true);
    assert_eq!(template.render(&[], &options).unwrap(), "aTrue");
    assert_eq!(template.render(&[], &RenderOptions::default()).unwrap(), "False");
}

#[test]
fn fromjson_reads_what_tojson_wrote() {
    let source = "{{ ('[1, 2.5, {\"a\": [null, true]}]' | fromjson)[2].a | tojson }}";
    assert_eq!(render(source).unwrap(), "[null, true]");
    assert!(matches!(render("{{ '{' | fromjson }}"), Err(TemplateError::Render { line: 1, .. })));
}

#[test]
fn the_calendar_is_right() {
    // By `date -u -d @N`.
    for (seconds, want) in [
        (0, "1970-01-01 00:00:00 Thu 001"),
        (951_782_399, "2000-02-28 23:59:59 Mon 059"),
        (951_782_400, "2000-02-29 00:00:00 Tue 060"),
        (951_868_800, "2000-03-01 00:00:00 Wed 061"),
        (1_735_787_045, "2025-01-02 03:04:05 Thu 002"),
        (4_107_542_400, "2100-03-01 00:00:00 Mon 060"),
        (253_402_300_799, "9999-12-31 23:59:59 Fri 365"),
    ] {
        assert_eq!(time::format(seconds, "%Y-%m-%d %H:%M:%S %a %j"), want);
    }
    assert_eq!(time::format(1_735_787_045, "%q%-q%"), "%q%-q%");
    let early = UNIX_EPOCH - Duration::from_secs(5);
    assert_eq!(time::seconds(Some(early)), 0);
    let late = UNIX_EPOCH.checked_add(Duration::from_secs(1 << 60));
    assert!(late.is_none() || time::seconds(late) == 253_402_300_799);
}
