//! A server that misbehaves on demand, and what it serves.

#![allow(dead_code, reason = "every test file uses its own part")]

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fucina_hub::{Config, Sha256};

/// A request, as the server saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Request {
    pub path: String,
    /// Names in lower case.
    pub headers: HashMap<String, String>,
}

impl Request {
    /// Start of the range that is asked for.
    pub(crate) fn start(&self) -> Option<usize> {
        let range = self.headers.get("range")?;
        range.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok()
    }
}

/// What the server answers: raw bytes, after which the connection ends.
pub(crate) type Handler = dyn Fn(&Request) -> Vec<u8> + Send + Sync;

pub(crate) struct Server {
    pub address: String,
    seen: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    /// Serves on a free port until the test ends.
    pub(crate) fn start(handler: impl Fn(&Request) -> Vec<u8> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let handler: Arc<Handler> = Arc::new(handler);
        let log = Arc::clone(&seen);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (handler, log) = (Arc::clone(&handler), Arc::clone(&log));
                std::thread::spawn(move || serve(stream, &*handler, &log));
            }
        });
        Self { address, seen }
    }

    /// Every request so far.
    pub(crate) fn seen(&self) -> Vec<Request> {
        self.seen.lock().unwrap().clone()
    }
}

fn serve(mut stream: TcpStream, handler: &Handler, log: &Mutex<Vec<Request>>) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
    let Some(first) = lines.next() else { return };
    let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut headers = HashMap::new();
    for line in lines.take_while(|line| !line.is_empty()) {
        if let Some((name, value)) = line.split_once(':') {
            headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
        }
    }
    let request = Request { path, headers };
    log.lock().unwrap().push(request.clone());
    // A client that hangs up is a part of the tests.
    let _ = stream.write_all(&handler(&request));
}

/// An answer with its status line, headers and body. `content-length` is up to the caller.
pub(crate) fn answer(status: u16, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut out = format!("HTTP/1.1 {status} X\r\nconnection: close\r\n");
    for (name, value) in headers {
        out.push_str(&format!("{name}: {value}\r\n"));
    }
    out.push_str("\r\n");
    [out.as_bytes(), body].concat()
}

/// The file, or the range of it that is asked for, as an honest server gives it.
pub(crate) fn file(request: &Request, etag: &str, bytes: &[u8]) -> Vec<u8> {
    file_cut(request, etag, bytes, usize::MAX)
}

/// As [`file`], but the connection breaks after `limit` bytes of the body.
pub(crate) fn file_cut(request: &Request, etag: &str, bytes: &[u8], limit: usize) -> Vec<u8> {
    let same = request.headers.get("if-range").is_none_or(|wanted| wanted == etag);
    match request.start().filter(|_| same) {
        Some(start) if start >= bytes.len() => {
            let range = format!("bytes */{}", bytes.len());
            answer(416, &[("content-range", &range), ("content-length", "0")], b"")
        }
        Some(start) => {
            let rest = &bytes[start..];
            let range = format!("bytes {start}-{}/{}", bytes.len() - 1, bytes.len());
            let len = rest.len().to_string();
            let headers = [("content-range", &*range), ("content-length", &*len), ("etag", etag)];
            answer(206, &headers, &rest[..rest.len().min(limit)])
        }
        None => {
            let len = bytes.len().to_string();
            let headers = [("content-length", &*len), ("etag", etag)];
            answer(200, &headers, &bytes[..bytes.len().min(limit)])
        }
    }
}

/// A description of a repository with one file, as the hub gives it.
pub(crate) fn description(file: &str, bytes: &[u8], with_sum: bool) -> Vec<u8> {
    let mut sibling = serde_json::json!({"rfilename": file, "size": bytes.len()});
    if with_sum {
        sibling["lfs"] = serde_json::json!({"sha256": sum(bytes).to_string(), "size": bytes.len()});
    }
    let value = serde_json::json!({
        "sha": "0123456789abcdef0123456789abcdef01234567",
        "siblings": [{"rfilename": "README.md"}, sibling],
        "cardData": {"license": "apache-2.0"},
    });
    json(&value)
}

pub(crate) fn json(value: &serde_json::Value) -> Vec<u8> {
    let text = value.to_string();
    let len = text.len().to_string();
    answer(200, &[("content-type", "application/json"), ("content-length", &len)], text.as_bytes())
}

/// Bytes that look like a model, of no pattern.
pub(crate) fn model(len: usize, seed: u32) -> Vec<u8> {
    let mut state = 2 * seed + 1;
    let mut bytes = b"GGUF".to_vec();
    bytes.resize_with(len, || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state.to_le_bytes()[0]
    });
    bytes
}

pub(crate) fn sum(bytes: &[u8]) -> Sha256 {
    let path = folder("sums").join(format!("{:p}-{}", bytes, bytes.len()));
    std::fs::write(&path, bytes).unwrap();
    let sum = Sha256::of_file(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    sum
}

/// An empty folder for one test.
pub(crate) fn folder(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    if name != "sums" {
        let _ = std::fs::remove_dir_all(&path);
    }
    std::fs::create_dir_all(&path).unwrap();
    path
}

/// Settings that do not keep a test waiting.
pub(crate) fn config(name: &str, server: &Server) -> Config {
    let mut config = Config::new(folder(name));
    config.endpoint.clone_from(&server.address);
    config.first_delay = Duration::from_millis(1);
    config.silence = Duration::from_secs(2);
    config
}
