//! One GET at a time: redirects that do not carry the token away, time limits, and which failures
//! are worth another try.

use std::sync::Arc;
use std::time::Duration;

use ureq::http::{HeaderMap, Uri};
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::{Agent, Body};

use crate::config::{Config, Token};
use crate::error::{Error, shown};

/// The hub redirects once or twice.
const MAX_REDIRECTS: usize = 6;

/// To connect, and to wait for the start of an answer.
const CONNECT: Duration = Duration::from_secs(20);

/// The longest pause that a server may ask for.
const MAX_PAUSE: Duration = Duration::from_secs(60);

const UNKNOWN_HOST: &str = "there is no such host, or no network; behind a proxy, set HTTPS_PROXY";

/// A client with the certificates of the system and the proxies of the environment.
pub(crate) struct Client {
    agent: Agent,
    hub: Option<Origin>,
    token: Option<Token>,
}

/// A successful answer.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    /// `x-linked-etag` and `x-linked-size` of a redirect: what the hub knows of a large file.
    pub(crate) linked_etag: Option<String>,
    pub(crate) linked_size: Option<u64>,
    pub(crate) body: Body,
    /// Where it came from in the end.
    pub(crate) host: String,
}

/// A failure, and whether to try again.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) error: Error,
    pub(crate) retry: Retry,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Retry {
    No,
    /// Only if the host has answered before: it may have a moment's trouble.
    IfKnown,
    Yes,
    /// Not before this has passed.
    After(Duration),
}

impl Retry {
    /// How long to wait before try number `tries` + 1 of a request, or `None` if it is enough.
    pub(crate) fn first_wait(self, config: &Config, tries: u32) -> Option<Duration> {
        let least = match self {
            Self::No | Self::IfKnown => return None,
            Self::Yes => Duration::ZERO,
            Self::After(least) => least,
        };
        let doubled = config.first_delay.saturating_mul(1 << (tries - 1).min(10));
        (tries < config.attempts).then(|| doubled.min(MAX_PAUSE).max(least))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { error, retry: Retry::No }
    }
}

/// Scheme, host and port.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Origin {
    https: bool,
    host: String,
    port: u16,
}

impl Origin {
    fn of(uri: &Uri) -> Option<Self> {
        let https = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return None,
        };
        let host = uri.host()?.to_ascii_lowercase();
        let port = uri.port_u16().unwrap_or(if https { 443 } else { 80 });
        Some(Self { https, host, port })
    }

    /// Nobody else can listen.
    fn is_private(&self) -> bool {
        self.https || matches!(&*self.host, "localhost" | "127.0.0.1" | "[::1]")
    }
}

impl Client {
    pub(crate) fn new(config: &Config) -> Self {
        // Without any certificate the first connection over https says so.
        let found = rustls_native_certs::load_native_certs().certs;
        let roots = found.iter().map(|der| Certificate::from_der(der).to_owned()).collect();
        let tls = TlsConfig::builder()
            .root_certs(RootCerts::Specific(Arc::new(roots)))
            .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .build();
        let agent = Agent::config_builder()
            .tls_config(tls)
            .http_status_as_error(false)
            .max_redirects(0)
            .user_agent(concat!("fucina/", env!("CARGO_PKG_VERSION")))
            .accept_encoding("identity")
            .timeout_resolve(Some(CONNECT))
            .timeout_connect(Some(CONNECT))
            .timeout_per_write(Some(config.silence))
            .timeout_per_read(Some(config.silence))
            .build()
            .new_agent();
        let hub = config.endpoint.parse().ok().and_then(|uri| Origin::of(&uri));
        Self { agent, hub, token: config.token.clone() }
    }

    /// Asks for `url`, follows redirects, and returns an answer of 200, 206 or 416.
    pub(crate) fn get(&self, url: &str, headers: &[(&str, &str)]) -> Result<Answer, Failure> {
        let mut uri: Uri = url.parse().map_err(|_| redirect(url, "is no address"))?;
        let (mut linked_etag, mut linked_size) = (None, None);
        for _ in 0..=MAX_REDIRECTS {
            let response = self.call(&uri, headers)?;
            let status = response.status().as_u16();
            let (parts, body) = response.into_parts();
            if !matches!(status, 301 | 302 | 303 | 307 | 308) {
                let host = host(&uri);
                return match failure(status, &parts.headers, &uri, self.token.is_some()) {
                    Some(failure) => Err(failure),
                    None => Ok(Answer {
                        status,
                        headers: parts.headers,
                        linked_etag,
                        linked_size,
                        body,
                        host,
                    }),
                };
            }
            linked_etag = linked_etag.or_else(|| text(&parts.headers, "x-linked-etag"));
            linked_size = linked_size.or_else(|| number(&parts.headers, "x-linked-size"));
            let to = text(&parts.headers, "location")
                .ok_or_else(|| redirect(&place(&uri), "redirects to nowhere"))?;
            uri = follow(&uri, &to)?;
        }
        Err(redirect(&place(&uri), "redirects too often").into())
    }

    fn call(
        &self,
        uri: &Uri,
        headers: &[(&str, &str)],
    ) -> Result<ureq::http::Response<Body>, Failure> {
        let mut request = self.agent.get(uri);
        for &(name, value) in headers {
            request = request.header(name, value);
        }
        if let (Some(token), Some(hub)) = (&self.token, &self.hub)
            && hub.is_private()
            && Origin::of(uri).as_ref() == Some(hub)
        {
            request = request.header("authorization", token.header());
        }
        request.call().map_err(|error| broken(&host(uri), &error))
    }
}

fn redirect(url: &str, reason: &'static str) -> Error {
    Error::Redirect { url: shown(url, 300), reason }
}

/// The address that `to` means on the page `from`.
fn follow(from: &Uri, to: &str) -> Result<Uri, Error> {
    let wrong = |reason| redirect(&place(from), reason);
    let origin = Origin::of(from).ok_or_else(|| wrong("is no address"))?;
    let (scheme, authority) = (from.scheme_str(), from.authority());
    let (Some(scheme), Some(authority)) = (scheme, authority) else {
        return Err(wrong("is no address"));
    };
    let absolute = if to.contains("://") {
        to.to_owned()
    } else if to.starts_with("//") {
        format!("{scheme}:{to}")
    } else if to.starts_with('/') {
        format!("{scheme}://{authority}{to}")
    } else {
        let folder = from.path().rsplit_once('/').map_or("", |(folder, _)| folder);
        format!("{scheme}://{authority}{folder}/{to}")
    };
    let absolute = absolute.split('#').next().unwrap_or_default();
    let uri: Uri = absolute.parse().map_err(|_| wrong("redirects to what is no address"))?;
    match Origin::of(&uri) {
        None => Err(wrong("redirects to what is no page")),
        Some(next) if origin.https && !next.https => {
            Err(wrong("redirects from https to http, which is not followed"))
        }
        Some(_) => Ok(uri),
    }
}

/// Host of an address, with its port if it names one.
pub(crate) fn host(uri: &Uri) -> String {
    match (uri.host(), uri.port_u16()) {
        (Some(host), Some(port)) => format!("{host}:{port}"),
        (Some(host), None) => host.to_owned(),
        (None, _) => "the server".to_owned(),
    }
}

/// An address for people: without the query, which may be a signature.
fn place(uri: &Uri) -> String {
    shown(&format!("{}{}", host(uri), uri.path()), 300)
}

/// A header as text.
pub(crate) fn text(headers: &HeaderMap, name: &str) -> Option<String> {
    headers.get(name)?.to_str().ok().map(|value| value.trim().to_owned())
}

/// A header as a number.
pub(crate) fn number(headers: &HeaderMap, name: &str) -> Option<u64> {
    text(headers, name)?.parse().ok()
}

/// What an unsuccessful status means.
fn failure(status: u16, headers: &HeaderMap, uri: &Uri, has_token: bool) -> Option<Failure> {
    let url = place(uri);
    let pause = number(headers, "retry-after").map(Duration::from_secs);
    let (error, retry) = match status {
        200 | 206 | 416 => return None,
        401 | 403 => {
            let advice = if has_token {
                "there is no such repository, or the token in HF_TOKEN may not read it; if its \
                page asks to accept terms, do so"
            } else {
                "there is no such repository, or it wants a token: if its page asks to accept \
                terms, do so, and set HF_TOKEN"
            };
            (Error::Denied { url, status, advice }, Retry::No)
        }
        404 | 410 => (Error::NotFound { url }, Retry::No),
        408 | 425 | 429 | 500..=599 => {
            let retry = pause.map_or(Retry::Yes, |pause| Retry::After(pause.min(MAX_PAUSE)));
            (Error::Status { url, status }, retry)
        }
        _ => (Error::Status { url, status }, Retry::No),
    };
    Some(Failure { error, retry })
}

/// What a broken connection means.
pub(crate) fn broken(host: &str, error: &ureq::Error) -> Failure {
    let host = host.to_owned();
    let (reason, retry) = match error {
        ureq::Error::HostNotFound => (UNKNOWN_HOST.to_owned(), Retry::IfKnown),
        ureq::Error::Timeout(_) => {
            ("no answer in time; is a proxy needed (HTTPS_PROXY)?".to_owned(), Retry::Yes)
        }
        ureq::Error::Rustls(error) => return certificate(host, error),
        ureq::Error::Io(error) => return broken_io(host, error),
        other => (shown(&other.to_string(), 200), Retry::Yes),
    };
    Failure { error: Error::Network { host, reason }, retry }
}

fn certificate(host: String, error: &rustls::Error) -> Failure {
    let reason = shown(&error.to_string(), 200);
    Failure { error: Error::Certificate { host, reason }, retry: Retry::No }
}

/// What a connection that breaks in the middle of an answer means.
pub(crate) fn broken_io(host: String, error: &std::io::Error) -> Failure {
    if let Some(inner) = error.get_ref() {
        if let Some(error) = inner.downcast_ref::<rustls::Error>() {
            return certificate(host, error);
        }
        if let Some(error) = inner.downcast_ref::<ureq::Error>()
            && !matches!(error, ureq::Error::Io(_))
        {
            return broken(&host, error);
        }
    }
    // The standard library has no kind for it.
    if error.to_string().starts_with("failed to lookup address") {
        let reason = UNKNOWN_HOST.to_owned();
        return Failure { error: Error::Network { host, reason }, retry: Retry::IfKnown };
    }
    let reason = match error.kind() {
        std::io::ErrorKind::ConnectionRefused => "the connection is refused".to_owned(),
        std::io::ErrorKind::ConnectionReset
        | std::io::ErrorKind::ConnectionAborted
        | std::io::ErrorKind::UnexpectedEof
        | std::io::ErrorKind::BrokenPipe => "the connection broke".to_owned(),
        std::io::ErrorKind::TimedOut | std::io::ErrorKind::WouldBlock => {
            "no answer in time".to_owned()
        }
        _ => shown(&error.to_string(), 200),
    };
    Failure { error: Error::Network { host, reason }, retry: Retry::Yes }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to(from: &str, location: &str) -> Result<String, Error> {
        follow(&from.parse().unwrap(), location).map(|uri| uri.to_string())
    }

    #[test]
    fn a_redirect_is_relative_or_absolute_and_never_weaker() {
        let from = "https://hub.example/a/b?q=1";
        assert_eq!(to(from, "/c?d").unwrap(), "https://hub.example/c?d");
        assert_eq!(to(from, "c").unwrap(), "https://hub.example/a/c");
        assert_eq!(to(from, "//cdn.example/c").unwrap(), "https://cdn.example/c");
        assert_eq!(to(from, "https://cdn.example/c#x").unwrap(), "https://cdn.example/c");
        assert_eq!(to("http://h/a", "https://h/b").unwrap(), "https://h/b");
        for wrong in ["http://hub.example/c", "file:///etc/passwd", "ftp://x/y", "https://", "a b"]
        {
            let error = to(from, wrong).expect_err(wrong);
            assert!(matches!(error, Error::Redirect { .. }), "{wrong}");
            assert!(!error.to_string().contains("q=1"), "{error}");
        }
    }

    #[test]
    fn the_token_needs_a_private_way() {
        let private = |uri: &str| Origin::of(&uri.parse().unwrap()).unwrap().is_private();
        assert!(private("https://hub.example/"));
        assert!(private("http://127.0.0.1:8080/"));
        assert!(!private("http://hub.example/"));
        let of = |uri: &str| Origin::of(&uri.parse().unwrap());
        assert_eq!(of("https://Hub.example"), of("https://hub.example:443/x"));
        assert_ne!(of("https://hub.example"), of("https://hub.example:444"));
        assert_ne!(of("https://hub.example"), of("https://hub.example.evil"));
    }

    #[test]
    fn what_is_worth_another_try_is_told_from_what_is_not() {
        let uri: Uri = "https://h/x?secret".parse().unwrap();
        let of = |status| failure(status, &HeaderMap::new(), &uri, false).map(|f| f.retry);
        assert_eq!([200, 206, 416].map(of), [None, None, None]);
        assert_eq!([400, 401, 403, 404, 451].map(of), [Some(Retry::No); 5]);
        assert_eq!([408, 429, 500, 502, 503].map(of), [Some(Retry::Yes); 5]);
        let mut headers = HeaderMap::new();
        headers.insert("retry-after", "86400".parse().unwrap());
        let busy = failure(503, &headers, &uri, false).unwrap();
        assert_eq!(busy.retry, Retry::After(MAX_PAUSE));
        assert!(!busy.error.to_string().contains("secret"));
    }
}
