//! A file from an address into a [`Part`]: in ranges, as often as it takes, within limits.

use std::io::{self, Read as _};
use std::time::Duration;

use crate::config::Config;
use crate::digest::Sha256;
use crate::error::{Error, shown};
use crate::http::{self, Answer, Client, Failure, Retry};
use crate::part::Part;
use crate::pull::Event;

/// How often a file may have to be started again because the server has another one.
const MAX_RESTARTS: u32 = 3;

/// The longest wait between two tries, unless the server asks for more.
const MAX_DELAY: Duration = Duration::from_secs(20);

/// The file that is wanted.
pub(crate) struct Want<'a> {
    pub(crate) url: &'a str,
    /// What it is called in messages.
    pub(crate) name: &'a str,
    pub(crate) size_bytes: Option<u64>,
    pub(crate) sha256: Option<Sha256>,
}

/// Fetches what `part` lacks. In the end `part` has as many bytes as were promised.
pub(crate) fn fetch(
    client: &Client,
    config: &Config,
    want: &Want<'_>,
    part: &mut Part,
    on_event: &mut dyn FnMut(Event<'_>),
) -> Result<(), Error> {
    let mut tries = Tries { failures: 0, restarts: 0, best: part.len() };
    loop {
        let job = Attempt { client, want, restarts: &mut tries.restarts };
        match job.run(part, on_event) {
            Ok(()) => return Ok(()),
            Err(failure) => {
                let wait = tries.wait(config, &failure, part.len()).ok_or(failure.error.clone())?;
                on_event(Event::Retry { error: &failure.error, wait });
                std::thread::sleep(wait);
            }
        }
    }
}

/// How patient to be.
struct Tries {
    /// Failures in a row without progress.
    failures: u32,
    restarts: u32,
    /// The most bytes that were there.
    best: u64,
}

impl Tries {
    /// How long to wait before another try, or `None` if it is enough.
    fn wait(&mut self, config: &Config, failure: &Failure, len: u64) -> Option<Duration> {
        if len > self.best {
            (self.best, self.failures) = (len, 0);
        }
        self.failures += 1;
        let least = match failure.retry {
            Retry::No => return None,
            Retry::IfKnown if self.best == 0 => return None,
            Retry::IfKnown | Retry::Yes => Duration::ZERO,
            Retry::After(least) => least,
        };
        if self.failures >= config.attempts || self.restarts > MAX_RESTARTS {
            return None;
        }
        let doubled = config.first_delay.saturating_mul(1 << (self.failures - 1).min(10));
        Some(doubled.min(MAX_DELAY).max(least))
    }
}

/// One request.
struct Attempt<'a> {
    client: &'a Client,
    want: &'a Want<'a>,
    restarts: &'a mut u32,
}

impl Attempt<'_> {
    fn run(self, part: &mut Part, on_event: &mut dyn FnMut(Event<'_>)) -> Result<(), Failure> {
        if part.len() > 0 && part.state().total_bytes == Some(part.len()) {
            return Ok(());
        }
        let etag = part.state().etag.clone();
        // Without a name for the version and without a sum, old bytes cannot be trusted.
        let known = etag.is_some() || self.want.sha256.is_some() || part.state().sha256.is_some();
        let have = if known { part.len() } else { 0 };
        let range = format!("bytes={have}-");
        let mut headers: Vec<(&str, &str)> = Vec::new();
        if have > 0 {
            headers.push(("range", &range));
            headers
                .extend(etag.as_deref().filter(|e| !e.starts_with("W/")).map(|e| ("if-range", e)));
        }
        let answer = self.client.get(self.want.url, &headers)?;
        let total = match answer.status {
            206 if have > 0 => match self.continued(&answer, part, have)? {
                Some(total) => total,
                None => return Err(self.again(&answer, part)),
            },
            416 if have > 0 => return Err(self.again(&answer, part)),
            200 => {
                if have > 0 {
                    *self.restarts += 1;
                }
                self.begun(&answer, part)?
            }
            status => {
                let reason = format!("status {status} to a request for the whole file");
                return Err(Error::Answer { host: answer.host, reason }.into());
            }
        };
        copy(answer, total, part, on_event)
    }

    /// The server has another file by now: starts again.
    fn again(self, answer: &Answer, part: &mut Part) -> Failure {
        *self.restarts += 1;
        let host = answer.host.clone();
        let reason = "the file changed while it was fetched; starting again".to_owned();
        match part.restart(|_| {}) {
            Ok(()) => Failure { error: Error::Network { host, reason }, retry: Retry::Yes },
            Err(error) => error.into(),
        }
    }

    /// The length of the whole of which this is the rest, or `None` if it is another whole.
    fn continued(&self, answer: &Answer, part: &Part, have: u64) -> Result<Option<u64>, Error> {
        let state = part.state();
        let range = http::text(&answer.headers, "content-range").unwrap_or_default();
        let (start, total) = content_range(&range).ok_or_else(|| Error::Answer {
            host: answer.host.clone(),
            reason: format!("a part of the file without saying which (`{}`)", shown(&range, 60)),
        })?;
        let other = |old: &Option<String>, new: Option<String>| {
            old.as_ref().zip(new.as_ref()).is_some_and(|(old, new)| old != new)
        };
        let changed = other(&state.etag, http::text(&answer.headers, "etag"))
            || other(&state.sha256, sum(answer))
            || state.total_bytes.is_some_and(|old| old != total);
        Ok((!changed && start == have).then_some(total))
    }

    /// The length of the whole, which starts now.
    fn begun(&self, answer: &Answer, part: &mut Part) -> Result<u64, Error> {
        let html = http::text(&answer.headers, "content-type")
            .is_some_and(|kind| kind.to_ascii_lowercase().starts_with("text/html"));
        if html {
            let found = "a page for browsers".to_owned();
            return Err(Error::NotGguf { from: answer.host.clone(), found });
        }
        let said = http::number(&answer.headers, "content-length");
        let expected = self.want.size_bytes.or(answer.linked_size);
        let total = said.or(expected).ok_or_else(|| Error::Answer {
            host: answer.host.clone(),
            reason: "it does not say how long the file is".to_owned(),
        })?;
        if let Some(expected_bytes) = expected.filter(|&expected| expected != total) {
            let from = self.want.name.to_owned();
            return Err(Error::Length { from, expected_bytes, found_bytes: total });
        }
        part.restart(|state| {
            state.etag = http::text(&answer.headers, "etag");
            state.sha256 = sum(answer);
            state.total_bytes = Some(total);
        })?;
        Ok(total)
    }
}

/// The sum that the hub gives for a large file.
fn sum(answer: &Answer) -> Option<String> {
    let quoted = answer.linked_etag.as_deref()?;
    Sha256::from_hex(quoted.trim_matches('"')).map(|sum| sum.to_string())
}

/// Start and length of the whole of `bytes START-END/TOTAL`.
fn content_range(text: &str) -> Option<(u64, u64)> {
    let (range, total) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (start, end) = range.split_once('-')?;
    let (start, end, total) = (start.parse().ok()?, end.parse().ok()?, total.parse().ok()?);
    (start <= end && end < total).then_some((start, total))
}

/// Appends the body, up to `total` bytes in all.
fn copy(
    answer: Answer,
    total: u64,
    part: &mut Part,
    on_event: &mut dyn FnMut(Event<'_>),
) -> Result<(), Failure> {
    let host = answer.host;
    let mut body = answer.body.into_reader();
    let mut buffer = vec![0; 1 << 18];
    let mut read = |buffer: &mut [u8]| loop {
        match body.read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(http::broken_io(host.clone(), &error)),
            Ok(len) => return Ok(len),
        }
    };
    while part.len() < total {
        let room = usize::try_from(total - part.len()).unwrap_or(usize::MAX).min(buffer.len());
        let len = match read(&mut buffer[..room])? {
            0 => return Err(http::broken_io(host.clone(), &io::ErrorKind::UnexpectedEof.into())),
            len => len,
        };
        check_start(&host, part.len(), &buffer[..len])?;
        part.append(&buffer[..len])?;
        on_event(Event::Progress { done_bytes: part.len(), total_bytes: Some(total) });
    }
    // A body whose length was not announced may go on.
    if read(&mut buffer[..1]).is_ok_and(|more| more > 0) {
        let from = host.clone();
        return Err(Error::Length { from, expected_bytes: total, found_bytes: total + 1 }.into());
    }
    Ok(())
}

/// A GGUF file starts with its name. The first read may be shorter than that; then the end of the
/// work finds out.
fn check_start(host: &str, at: u64, bytes: &[u8]) -> Result<(), Error> {
    if at > 0 || bytes.starts_with(b"GGUF") || b"GGUF".starts_with(bytes) {
        return Ok(());
    }
    let start = String::from_utf8_lossy(&bytes[..bytes.len().min(24)]);
    let found = format!("it starts with `{}`", shown(&start, 24));
    Err(Error::NotGguf { from: host.to_owned(), found })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_has_start_end_and_total() {
        assert_eq!(content_range("bytes 5-9/10"), Some((5, 10)));
        for wrong in ["", "bytes 5-9/*", "bytes */10", "bytes 9-5/10", "bytes 5-10/10", "5-9/10"] {
            assert_eq!(content_range(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn waits_double_and_progress_makes_patient_again() {
        let config = Config::new("m".into());
        let mut tries = Tries { failures: 0, restarts: 0, best: 0 };
        let failure = |retry| Failure { error: Error::NoFolder, retry };
        let mut wait =
            |retry, len| tries.wait(&config, &failure(retry), len).map(|w| w.as_millis());
        assert_eq!(wait(Retry::IfKnown, 0), None, "never reached");
        assert_eq!(wait(Retry::Yes, 0), Some(1000));
        assert_eq!(wait(Retry::IfKnown, 10), Some(500), "it was there a moment ago");
        assert_eq!(wait(Retry::Yes, 10), Some(1000));
        assert_eq!(wait(Retry::After(Duration::from_secs(9)), 10), Some(9000));
        assert_eq!(wait(Retry::Yes, 10), Some(4000));
        assert_eq!(wait(Retry::Yes, 10), None, "five in a row");
        assert_eq!(wait(Retry::Yes, 11), Some(500));
        assert_eq!(wait(Retry::No, 12), None);
    }
}
