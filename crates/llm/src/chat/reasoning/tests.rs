use super::{Part, Splitter};

/// The thought and the answer of a text that comes in pieces of `size` characters.
fn split(prompt: &str, text: &str, size: usize) -> (String, String) {
    let (mut reasoning, mut content) = (String::new(), String::new());
    let mut out = |part, text: &str| {
        assert!(!text.is_empty());
        match part {
            Part::Reasoning => reasoning.push_str(text),
            Part::Content => content.push_str(text),
        }
    };
    let mut splitter = Splitter::new(prompt);
    let chars: Vec<char> = text.chars().collect();
    for piece in chars.chunks(size) {
        splitter.push(&piece.iter().collect::<String>(), &mut out);
    }
    splitter.finish(&mut out);
    (reasoning, content)
}

#[test]
fn every_cutting_gives_the_same_parts() {
    let cases = [
        ("", "<think>\nHm.\n\nSo.\n</think>\n\nYes.\n", "Hm.\n\nSo.", "Yes.\n"),
        ("", "\n <think>a</think>b", "a", "b"),
        ("", "<think></think>b", "", "b"),
        ("", "<think>\n\n</think>\n\n", "", ""),
        ("", "<think>a</thin", "a</thin", ""),
        ("", "<think>a</thin</think>b", "a</thin", "b"),
        ("", "<think>a < b </t> é", "a < b </t> é", ""),
        ("", "<think>a\n\n", "a", ""),
        ("", "<thin", "", "<thin"),
        ("", "<thing> is <think>", "", "<thing> is <think>"),
        ("", "  plain", "", "  plain"),
        ("", "\n\n", "", "\n\n"),
        ("", "", "", ""),
        ("x<think>\n", "a\n</think>\nb", "a", "b"),
        ("x<think>\n\n</think>\n\n", "b</think>", "", "b</think>"),
    ];
    for (prompt, text, reasoning, content) in cases {
        for size in 1..=text.len().max(1) {
            let got = split(prompt, text, size);
            assert_eq!(got, (reasoning.to_owned(), content.to_owned()), "{text:?} by {size}");
        }
    }
}

#[test]
fn text_comes_as_soon_as_it_is_certain() {
    let mut splitter = Splitter::new("");
    let mut push = |text| {
        let mut got = Vec::new();
        splitter.push(text, &mut |part, text| got.push((part, text.to_owned())));
        got
    };
    assert_eq!(push("<thi"), []);
    assert_eq!(push("nk>one"), [(Part::Reasoning, "one".to_owned())]);
    assert_eq!(push("\n</th"), []);
    assert_eq!(push("e"), [(Part::Reasoning, "\n</the".to_owned())]);
    assert_eq!(push("</think>\n"), []);
    assert_eq!(push("\nA"), [(Part::Content, "A".to_owned())]);
    assert_eq!(push("\n"), [(Part::Content, "\n".to_owned())]);
}
