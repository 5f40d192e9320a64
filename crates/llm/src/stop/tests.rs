use fucina_testkit::Rng;

use super::{StopError, StopStrings};

/// Runs `pieces` through a matcher: everything passed on, and the stop string.
fn run(stops: &StopStrings, pieces: &[&str]) -> (String, Option<usize>) {
    let mut matcher = stops.matcher();
    let mut out = String::new();
    for piece in pieces {
        let (text, stopped) = matcher.push(piece);
        out.push_str(text);
        if stopped.is_some() {
            assert_eq!(matcher.push("more"), ("", stopped));
            assert_eq!(matcher.finish(), "");
            return (out, stopped);
        }
    }
    out.push_str(&matcher.finish());
    (out, None)
}

/// By definition: the earliest end, then the longest, then the first.
fn oracle(stops: &[&str], text: &str) -> (String, Option<usize>) {
    for end in 0..=text.len() {
        let complete = stops
            .iter()
            .enumerate()
            .filter(|(_, s)| text.as_bytes()[..end].ends_with(s.as_bytes()));
        if let Some((index, stop)) =
            complete.max_by_key(|&(index, s)| (s.len(), usize::MAX - index))
        {
            return (text[..end - stop.len()].to_owned(), Some(index));
        }
    }
    (text.to_owned(), None)
}

#[test]
fn a_stop_string_may_span_pieces_and_nothing_of_it_leaks() {
    let stops = StopStrings::new(["<|im_end|>"]).unwrap();
    let mut matcher = stops.matcher();
    assert_eq!(matcher.push("Hi<"), ("Hi", None));
    assert_eq!(matcher.push("|im_"), ("", None));
    assert_eq!(matcher.push("end"), ("", None));
    assert_eq!(matcher.push("|>tail"), ("", Some(0)));
}

#[test]
fn text_that_turns_out_to_be_none_comes_back_whole() {
    let stops = StopStrings::new(["abac", "ad"]).unwrap();
    assert_eq!(run(&stops, &["ab", "ab", "a", "b"]), ("ababab".to_owned(), None));
    assert_eq!(run(&stops, &["aba", "bac!"]), ("ab".to_owned(), Some(0)));
    assert_eq!(run(&stops, &["abaad"]), ("aba".to_owned(), Some(1)));
}

#[test]
fn only_what_can_still_become_a_stop_string_is_held_back() {
    let stops = StopStrings::new(["\n\nUser:", "STOP"]).unwrap();
    let mut matcher = stops.matcher();
    assert_eq!(matcher.push("one\n"), ("one", None));
    assert_eq!(matcher.push("\n"), ("", None));
    assert_eq!(matcher.push("\n"), ("\n", None), "two of three line breaks still fit");
    assert_eq!(matcher.push("x ST"), ("\n\nx ", None));
    assert_eq!(matcher.push("é"), ("STé", None));
}

#[test]
fn of_stop_strings_that_end_together_the_longest_counts() {
    assert_eq!(run(&StopStrings::new(["b", "ab"]).unwrap(), &["xab"]), ("x".to_owned(), Some(1)));
    assert_eq!(run(&StopStrings::new(["abc", "b"]).unwrap(), &["abc"]), ("a".to_owned(), Some(1)));
    assert_eq!(run(&StopStrings::new(["ab", "ab"]).unwrap(), &["ab"]), (String::new(), Some(0)));
}

#[test]
fn every_cutting_of_every_text_gives_what_the_definition_says() {
    let mut rng = Rng::new(11);
    let letters = ["a", "b", "é", "😀", "\u{e9}\u{301}"];
    let word = |rng: &mut Rng, most: usize, least: usize| -> String {
        (0..least + rng.below(most)).map(|_| letters[rng.below(letters.len())]).collect()
    };
    let mut stopped = 0;
    for _ in 0..4000 {
        let stops: Vec<String> = (0..rng.below(4)).map(|_| word(&mut rng, 4, 1)).collect();
        let text = word(&mut rng, 16, 0);
        let plain: Vec<&str> = stops.iter().map(String::as_str).collect();
        let want = oracle(&plain, &text);
        stopped += usize::from(want.1.is_some());
        let mut pieces = Vec::new();
        let mut rest = &*text;
        while !rest.is_empty() {
            let at =
                rest.char_indices().map(|(at, _)| at).chain([rest.len()]).nth(1 + rng.below(3));
            let (piece, after) = rest.split_at(at.unwrap_or(rest.len()));
            pieces.push(piece);
            rest = after;
        }
        let set = StopStrings::new(stops.iter().map(String::as_str)).unwrap();
        assert_eq!(run(&set, &pieces), want, "{stops:?} in {pieces:?}");
    }
    assert!(stopped > 500, "{stopped}");
}

#[test]
fn sets_without_sense_are_refused() {
    assert_eq!(StopStrings::new(["a", ""]), Err(StopError::Empty));
    let long = StopStrings::new(["é".repeat(600)]);
    assert_eq!(long, Err(StopError::TooLong { bytes: 1200, limit: 1024 }));
    let many = StopStrings::new((0..65).map(|i| i.to_string()));
    assert_eq!(many, Err(StopError::TooMany { count: 65, limit: 64 }));
    assert!(StopStrings::default().is_empty());
    assert_eq!(run(&StopStrings::default(), &["a", "b"]), ("ab".to_owned(), None));
}

#[test]
fn a_megabyte_of_almost_stops_takes_linear_time() {
    let stops = StopStrings::new(["a".repeat(1000) + "b"]).unwrap();
    let text = "a".repeat(1 << 20);
    assert_eq!(run(&stops, &[&text]), (text.clone(), None));
}
