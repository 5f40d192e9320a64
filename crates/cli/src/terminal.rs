//! What a terminal is sent.
//!
//! Text of a model may hold any character. A terminal obeys some of them: it changes colours, moves
//! the cursor, sets its title, and some answer as if the user had typed. So what is shown on a
//! terminal has a picture for every control character; what goes to a file or a pipe is exact.

use std::borrow::Cow;
use std::io::{IsTerminal as _, stdin, stdout};
#[cfg(unix)]
use std::sync::{Mutex, OnceLock};

#[cfg(unix)]
use nix::sys::termios::{SetArg, Termios, tcgetattr, tcsetattr};

/// Text for a terminal: control characters other than line break and tab become pictures, one
/// character for one.
pub(crate) fn neutral(text: &str) -> Cow<'_, str> {
    if text.chars().any(steers) {
        text.chars().map(|c| if steers(c) { picture(c) } else { c }).collect()
    } else {
        Cow::Borrowed(text)
    }
}

fn steers(c: char) -> bool {
    c.is_control() && !matches!(c, '\n' | '\t')
}

/// `␛` for escape. The second set of control characters has no pictures.
fn picture(c: char) -> char {
    match u32::from(c) {
        code @ 0..0x20 => char::from_u32(0x2400 + code),
        0x7f => Some('\u{2421}'),
        _ => None,
    }
    .unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// Whether a person types and reads here.
pub(crate) fn is_interactive() -> bool {
    stdin().is_terminal() && is_output()
}

/// Whether a person reads standard output.
pub(crate) fn is_output() -> bool {
    stdout().is_terminal()
}

/// Whether standard output is a terminal that may be sent colours: not with `NO_COLOR`, by the
/// convention of that name, and not on a terminal that calls itself dumb.
pub(crate) fn has_colour() -> bool {
    let no_colour = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_some_and(|value| value == "dumb");
    is_output() && !no_colour && !dumb
}

/// How the terminal was before something changed it.
#[cfg(unix)]
static BEFORE: OnceLock<Mutex<Termios>> = OnceLock::new();

/// Notes how the terminal is, for [`restore`].
pub(crate) fn remember() {
    #[cfg(unix)]
    if let Ok(modes) = tcgetattr(stdin()) {
        // A second note would hold what the first change made.
        let _ = BEFORE.set(Mutex::new(modes));
    }
}

/// Gives the terminal back as it was: an editor that is cut off in the middle does not.
pub(crate) fn restore() {
    #[cfg(unix)]
    if let Some(Ok(modes)) = BEFORE.get().map(Mutex::lock) {
        // The process ends: there is nobody to tell of a failure.
        let _ = tcsetattr(stdin(), SetArg::TCSADRAIN, &modes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_control_character_but_line_break_and_tab_reaches_a_terminal() {
        for c in ('\0'..='\u{2ff}').chain(['\u{2028}', '\u{1f600}']) {
            let text = c.to_string();
            let shown = neutral(&text);
            assert_eq!(shown.chars().count(), 1, "{c:?}");
            if matches!(c, '\n' | '\t') || !c.is_control() {
                assert_eq!(shown, text);
            } else {
                assert!(!shown.contains(char::is_control), "{c:?} became {shown:?}");
            }
        }
        assert_eq!(neutral("a\u{1b}]0;x\u{7}\u{9b}2J\r\n"), "a␛]0;x␇\u{fffd}2J␍\n");
    }
}
