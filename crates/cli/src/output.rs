//! How things are said: lines on standard error, and numbers for people.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, Write as _};

/// Says what went wrong.
pub(crate) fn error(sentence: &str) {
    line(&format!("fucina: {}", plain(sentence)));
}

/// Says what is odd but no obstacle.
pub(crate) fn warning(sentence: &str) {
    line(&format!("fucina: warning: {}", plain(sentence)));
}

/// Writes a line to standard error.
pub(crate) fn line(text: &str) {
    // Nobody is left to be told if standard error is closed.
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Text from a file or an argument on one line: control characters are written as escapes, so that
/// a hostile name cannot steer the terminal.
pub(crate) fn plain(text: &str) -> Cow<'_, str> {
    let steers =
        |c: char| c.is_control() || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    if !text.contains(steers) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if steers(c) { out.extend(c.escape_default()) } else { out.push(c) }
    }
    Cow::Owned(out)
}

/// `3.8 MiB`.
#[expect(clippy::cast_precision_loss, reason = "shown with three digits")]
pub(crate) fn bytes(len: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = len as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{len} B") } else { format!("{value:.2} {}", UNITS[unit]) }
}

/// `3.7 M`.
#[expect(clippy::cast_precision_loss, reason = "shown with three digits")]
pub(crate) fn count(count: u64) -> String {
    let value = count as f64;
    match count {
        0..1_000 => count.to_string(),
        1_000..1_000_000 => format!("{:.1} K", value / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} M", value / 1e6),
        _ => format!("{:.2} B", value / 1e9),
    }
}

/// `1 tensor`, `2 tensors`.
pub(crate) fn plural(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// A rate with three or four digits.
pub(crate) fn rate(per_second: f64) -> String {
    let decimals = match per_second {
        value if value >= 100.0 => 0,
        value if value >= 10.0 => 1,
        _ => 2,
    };
    format!("{per_second:.decimals$} t/s")
}

/// `21 ms` or `3.41 s`.
pub(crate) fn duration(time: std::time::Duration) -> String {
    let seconds = time.as_secs_f64();
    if seconds < 1.0 { format!("{:.0} ms", seconds * 1e3) } else { format!("{seconds:.2} s") }
}

/// Rows of cells, padded to columns. The flag says which columns are aligned to the right.
pub(crate) fn columns(rows: &[Vec<String>], right: &[bool]) -> String {
    let width = |text: &str| text.chars().count();
    let mut widths = vec![0; right.len()];
    for row in rows {
        for (widest, cell) in widths.iter_mut().zip(row) {
            *widest = width(cell).max(*widest);
        }
    }
    let mut out = String::new();
    for row in rows {
        let mut line = String::new();
        for ((cell, &widest), &right) in row.iter().zip(&widths).zip(right) {
            let fill = " ".repeat(widest - width(cell));
            let (before, after) = if right { (&*fill, "") } else { ("", &*fill) };
            // Writing to a string does not fail.
            let _ = write!(line, "{before}{cell}{after}  ");
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

/// Writes to standard output at once.
///
/// # Errors
///
/// Fails if it is closed or full.
pub(crate) fn print(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

/// Writes a value as JSON, for programs, on one line.
///
/// # Errors
///
/// As [`print()`].
pub(crate) fn print_json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    let mut text = serde_json::to_string(value)?;
    text.push('\n');
    Ok(print(&text)?)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn numbers_are_short_and_keep_their_units() {
        assert_eq!(bytes(999), "999 B");
        assert_eq!(bytes(3_974_880), "3.79 MiB");
        assert_eq!(count(3_684_608), "3.7 M");
        assert_eq!(count(1_235_814_432), "1.24 B");
        assert_eq!((plural(1, "file"), plural(2, "file")), ("1 file".into(), "2 files".into()));
        assert_eq!(rate(812.4), "812 t/s");
        assert_eq!(rate(8.125), "8.12 t/s");
        assert_eq!(duration(Duration::from_millis(21)), "21 ms");
        assert_eq!(duration(Duration::from_millis(3410)), "3.41 s");
    }

    #[test]
    fn control_characters_of_a_name_do_not_reach_the_terminal() {
        assert_eq!(plain("blk.0 é"), "blk.0 é");
        assert_eq!(plain("a\u{1b}[2Jb\n"), "a\\u{1b}[2Jb\\n");
        assert_eq!(plain("a\u{202e}b"), "a\\u{202e}b");
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [vec!["a".into(), "1".into()], vec!["bcd".into(), "22".into()]];
        assert_eq!(columns(&rows, &[false, true]), "a     1\nbcd  22\n");
    }
}
