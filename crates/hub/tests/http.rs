//! Fetching from a hub that is slow, lies, breaks and changes its mind.

#![cfg(test)]

mod common;

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use common::{Request, Server, answer, config, description, file, file_cut, model, sum};
use fucina_hub::{Config, Error, Event, Plan, Pulled, Reference, Store, Token};

const FILE: &str = "m-Q8_0.gguf";

/// A hub whose one file is answered by `serve`; the number counts requests for it.
fn hub(
    bytes: &[u8],
    with_sum: bool,
    serve: impl Fn(&Request, usize) -> Vec<u8> + Send + Sync + 'static,
) -> Server {
    let description = description(FILE, bytes, with_sum);
    let count = AtomicUsize::new(0);
    Server::start(move |request| {
        if request.path.starts_with("/api/") {
            return description.clone();
        }
        serve(request, count.fetch_add(1, SeqCst))
    })
}

fn pull(config: &Config) -> Result<Pulled, Error> {
    pull_with(config, &mut |_| {})
}

fn pull_with(config: &Config, on_event: &mut dyn FnMut(Event<'_>)) -> Result<Pulled, Error> {
    let reference = Reference::parse("hf:owner/repo").unwrap();
    Plan::of(&reference, config)?.pull(config, on_event)
}

/// The requests for the file.
fn requests(server: &Server) -> Vec<Request> {
    server.seen().into_iter().filter(|request| !request.path.starts_with("/api/")).collect()
}

#[track_caller]
fn holds(config: &Config, bytes: &[u8]) {
    let path = config.models.join("hf/owner/repo").join(FILE);
    assert!(std::fs::read(path).unwrap() == bytes, "the file is another one");
    assert_eq!(Store::new(config.models.clone()).contents().unwrap().leftovers, []);
}

#[track_caller]
fn holds_nothing(config: &Config) {
    let contents = Store::new(config.models.clone()).contents().unwrap();
    assert_eq!((contents.models, contents.leftovers), (vec![], vec![]));
}

#[test]
fn a_file_comes_whole_is_recorded_and_is_not_fetched_twice() {
    let bytes = model(300_000, 1);
    let want = bytes.clone();
    let server = hub(&bytes.clone(), true, move |request, _| file(request, "\"a\"", &bytes));
    let config = config("whole", &server);
    let mut last = (0, None);
    let pulled = pull_with(&config, &mut |event| {
        if let Event::Progress { done_bytes, total_bytes } = event {
            assert!(done_bytes >= last.0, "progress goes forward");
            last = (done_bytes, total_bytes);
        }
    })
    .unwrap();
    assert_eq!((pulled.bytes, pulled.already), (300_000, false));
    assert_eq!(last, (300_000, Some(300_000)));
    holds(&config, &want);
    let commit = "0123456789abcdef0123456789abcdef01234567";
    assert_eq!(requests(&server)[0].path, format!("/owner/repo/resolve/{commit}/{FILE}"));
    let again = pull(&config).unwrap();
    assert!(again.already);
    assert_eq!(requests(&server).len(), 1);
    let store = Store::new(config.models);
    let found = store.find(&Reference::parse("m-Q8_0").unwrap()).unwrap().unwrap();
    let record = found.record.unwrap();
    assert_eq!((&*record.name, record.licence.open), ("hf:owner/repo:m-Q8_0.gguf", true));
    assert_eq!(record.sha256, [sum(&want).to_string()]);
}

#[test]
fn a_connection_that_breaks_is_resumed_where_it_broke() {
    let bytes = model(1_000_000, 2);
    let want = bytes.clone();
    let server =
        hub(&bytes.clone(), true, move |request, _| file_cut(request, "\"a\"", &bytes, 150_000));
    let config = config("breaks", &server);
    pull(&config).unwrap();
    holds(&config, &want);
    let starts: Vec<_> = requests(&server).iter().map(Request::start).collect();
    // More failures than a request without progress may have.
    let expected = [None, Some(150_000), Some(300_000), Some(450_000), Some(600_000)];
    assert_eq!(starts[..5], expected);
    assert_eq!(starts.len(), 7);
    assert_eq!(requests(&server)[1].headers["if-range"], "\"a\"");
}

#[test]
fn another_process_goes_on_where_one_was_killed() {
    let bytes = model(500_000, 3);
    let want = bytes.clone();
    // The first process has no patience, which is like being killed.
    let server = hub(&bytes.clone(), true, move |request, nth| {
        file_cut(request, "\"a\"", &bytes, if nth == 0 { 200_000 } else { usize::MAX })
    });
    let mut config = config("killed", &server);
    config.attempts = 0;
    assert!(matches!(pull(&config), Err(Error::Network { .. })));
    let contents = Store::new(config.models.clone()).contents().unwrap();
    assert_eq!(contents.leftovers[0].name, "hf:owner/repo:m-Q8_0.gguf");
    assert!(contents.leftovers[0].bytes > 200_000 && contents.models.is_empty());
    config.attempts = 5;
    let mut checked = 0;
    pull_with(&config, &mut |event| {
        if let Event::Checking { done_bytes, .. } = event {
            checked = done_bytes;
        }
    })
    .unwrap();
    holds(&config, &want);
    assert_eq!((checked, requests(&server)[1].start()), (200_000, Some(200_000)));
}

#[test]
fn a_file_that_changes_meanwhile_starts_again() {
    for honours_if_range in [true, false] {
        let (old, new) = (model(400_000, 4), model(400_000, 5));
        let want = new.clone();
        let server = hub(&new.clone(), false, move |request, nth| {
            let mut request = request.clone();
            if nth == 0 {
                return file_cut(&request, "\"old\"", &old, 100_000);
            }
            if !honours_if_range {
                request.headers.remove("if-range");
            }
            file(&request, "\"new\"", &new)
        });
        let config = config(&format!("changes-{honours_if_range}"), &server);
        pull(&config).unwrap();
        holds(&config, &want);
    }
}

#[test]
fn a_file_that_never_stops_changing_is_given_up() {
    let bytes = model(400_000, 6);
    let server = hub(&bytes.clone(), false, move |request, nth| {
        let mut request = request.clone();
        request.headers.remove("if-range");
        file_cut(&request, &format!("\"{nth}\""), &bytes, 100_000 + nth)
    });
    let config = config("never", &server);
    assert!(matches!(pull(&config), Err(Error::Network { .. })));
    assert!(requests(&server).len() < 12, "{}", requests(&server).len());
}

#[test]
fn a_server_without_ranges_still_delivers() {
    let bytes = model(200_000, 7);
    let want = bytes.clone();
    let server = hub(&bytes.clone(), true, move |request, nth| {
        let mut request = request.clone();
        request.headers.remove("range");
        file_cut(&request, "\"a\"", &bytes, if nth == 0 { 50_000 } else { usize::MAX })
    });
    let config = config("ranges", &server);
    pull(&config).unwrap();
    holds(&config, &want);
}

#[test]
fn a_part_that_grew_beyond_the_file_starts_again() {
    let bytes = model(300_000, 26);
    let want = bytes.clone();
    let server = hub(&bytes.clone(), true, move |request, nth| {
        file_cut(request, "\"a\"", &bytes, if nth == 0 { 100_000 } else { usize::MAX })
    });
    let mut config = config("beyond", &server);
    config.attempts = 0;
    assert!(pull(&config).is_err());
    config.attempts = 5;
    let part = config.models.join("hf/owner/repo").join(format!("{FILE}.part"));
    std::fs::write(part, model(300_001, 27)).unwrap();
    pull(&config).unwrap();
    holds(&config, &want);
    let starts: Vec<_> = requests(&server).iter().map(Request::start).collect();
    assert_eq!(starts, [None, Some(300_001), None]);
}

#[test]
fn a_length_that_is_not_that_of_the_description_is_refused() {
    let (long, short) = (model(300_000, 8), model(100_000, 9));
    let want = short.clone();
    // No sum: the description of the repository belongs to the new file.
    let server = hub(&short.clone(), false, move |request, nth| {
        let mut request = request.clone();
        request.headers.remove("if-range");
        if nth == 0 {
            // The length is not that of the description: refused before a byte is kept.
            return file_cut(&request, "\"a\"", &long, 200_000);
        }
        file(&request, "\"b\"", &short)
    });
    let config = config("longer", &server);
    assert!(matches!(pull(&config), Err(Error::Length { found_bytes: 300_000, .. })));
    holds_nothing(&config);
    pull(&config).unwrap();
    holds(&config, &want);
}

#[test]
fn more_or_fewer_bytes_than_promised_are_refused() {
    let bytes = model(100_000, 10);
    let expected = sum(&bytes);
    // Without a length, the end of the connection is the end of the body.
    for (case, change) in [("more", 1_i64), ("fewer", -1)] {
        let body: Vec<u8> = match change {
            1 => [&*bytes, b"x"].concat(),
            _ => bytes[..bytes.len() - 1].to_vec(),
        };
        let server = hub(&bytes.clone(), true, move |request, _| {
            let start = request.start().unwrap_or(0);
            match request.start() {
                Some(_) => {
                    let range = format!("bytes {start}-99999/100000");
                    answer(206, &[("content-range", &range)], &body[start..])
                }
                None => answer(200, &[], &body),
            }
        });
        let config = config(&format!("length-{case}"), &server);
        let error = pull(&config).unwrap_err();
        match change {
            1 => assert!(matches!(error, Error::Length { expected_bytes: 100_000, .. }), "{error}"),
            _ => assert!(matches!(error, Error::Network { .. }), "{error}"),
        }
        assert!(!config.models.join("hf/owner/repo").join(FILE).exists());
    }
    assert_eq!(sum(&bytes), expected);
}

#[test]
fn other_bytes_of_the_same_length_are_refused_and_not_kept() {
    let (bytes, evil) = (model(100_000, 11), model(100_000, 12));
    let server = hub(&bytes, true, move |request, _| file(request, "\"a\"", &evil));
    let config = config("evil", &server);
    let error = pull(&config).unwrap_err();
    assert!(
        matches!(&error, Error::Checksum { expected, .. } if *expected == sum(&bytes).to_string())
    );
    holds_nothing(&config);
}

#[test]
fn the_sum_of_the_redirect_counts_where_the_description_has_none() {
    let (bytes, evil) = (model(50_000, 13), model(50_000, 14));
    let linked = format!("\"{}\"", sum(&bytes));
    let server = hub(&bytes, false, move |request, _| {
        if request.path.starts_with("/cdn") {
            return file(request, "\"cdn\"", &evil);
        }
        let headers = [
            ("location", "/cdn/x?signature=secret"),
            ("x-linked-etag", &linked),
            ("content-length", "0"),
        ];
        answer(302, &headers, b"")
    });
    let config = config("linked", &server);
    let error = pull(&config).unwrap_err();
    assert!(matches!(error, Error::Checksum { .. }), "{error}");
    assert!(!error.to_string().contains("secret"));
    holds_nothing(&config);
}

#[test]
fn a_page_is_no_model() {
    let bytes = model(100, 15);
    let page =
        b"<!DOCTYPE html><title>Sign in to this network before you go on, please, and pay us";
    for (case, kind) in
        [("html", "text/html; charset=utf-8"), ("binary", "application/octet-stream")]
    {
        let server = hub(&bytes.clone(), false, move |_, _| {
            let mut body = page.to_vec();
            body.resize(100, b' ');
            answer(200, &[("content-type", kind), ("content-length", "100")], &body)
        });
        let config = config(&format!("page-{case}"), &server);
        let error = pull(&config).unwrap_err();
        assert!(matches!(error, Error::NotGguf { .. }), "{error}");
        holds_nothing(&config);
    }
}

#[test]
fn trouble_of_the_server_is_waited_out() {
    let bytes = model(10_000, 16);
    let want = bytes.clone();
    let server = hub(&bytes.clone(), true, move |request, nth| match nth {
        0 => answer(503, &[("content-length", "0")], b""),
        1 => answer(429, &[("retry-after", "0"), ("content-length", "0")], b""),
        // Not even a status line.
        2 => Vec::new(),
        _ => file(request, "\"a\"", &bytes),
    });
    let config = config("trouble", &server);
    let mut retries = 0;
    pull_with(&config, &mut |event| retries += u32::from(matches!(event, Event::Retry { .. })))
        .unwrap();
    assert_eq!(retries, 3);
    holds(&config, &want);
}

#[test]
fn trouble_without_end_is_given_up_and_refusals_at_once() {
    let bytes = model(10_000, 17);
    for (status, requests_made) in
        [(500, 5), (429, 5), (401, 1), (403, 1), (404, 1), (451, 1), (416, 1)]
    {
        let server =
            hub(&bytes.clone(), true, move |_, _| answer(status, &[("content-length", "0")], b""));
        let config = config(&format!("status-{status}"), &server);
        let error = pull(&config).unwrap_err();
        let fits = match status {
            401 | 403 => matches!(error, Error::Denied { .. }),
            404 => matches!(error, Error::NotFound { .. }),
            416 => matches!(error, Error::Answer { .. }),
            _ => matches!(error, Error::Status { .. }),
        };
        assert!(fits, "{status}: {error}");
        assert_eq!(requests(&server).len(), requests_made, "{status}");
        holds_nothing(&config);
    }
}

#[test]
fn a_server_that_falls_silent_is_left() {
    let bytes = model(10_000, 18);
    let server = hub(&bytes.clone(), true, move |request, _| {
        if request.start().is_none() {
            return file_cut(request, "\"a\"", &bytes, 5_000);
        }
        std::thread::sleep(Duration::from_secs(20));
        Vec::new()
    });
    let mut config = config("silent", &server);
    (config.attempts, config.silence) = (2, Duration::from_millis(200));
    let start = Instant::now();
    assert!(matches!(pull(&config), Err(Error::Network { .. })));
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}

#[test]
fn nobody_listens() {
    let server = Server::start(|_| Vec::new());
    let mut config = config("nobody", &server);
    // A port that was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    config.endpoint = format!("http://127.0.0.1:{port}");
    config.attempts = 2;
    let error = pull(&config).unwrap_err();
    assert!(error.to_string().contains("refused"), "{error}");
    config.endpoint = "http://no-such-host.invalid".to_owned();
    let error = pull(&config).unwrap_err();
    assert!(error.to_string().contains("no-such-host.invalid"), "{error}");
}

#[test]
fn the_token_goes_to_the_hub_and_nowhere_else() {
    let bytes = model(1_000, 19);
    let elsewhere_bytes = bytes.clone();
    let elsewhere = Server::start(move |request| file(request, "\"a\"", &elsewhere_bytes));
    let location = format!("{}/cdn", elsewhere.address);
    let server = hub(&bytes, true, move |request, _| {
        if request.path == "/second" {
            return answer(302, &[("location", &location), ("content-length", "0")], b"");
        }
        answer(302, &[("location", "/second"), ("content-length", "0")], b"")
    });
    let mut config = config("token", &server);
    config.token = Token::new("hf_secret");
    pull(&config).unwrap();
    for request in server.seen() {
        assert_eq!(request.headers["authorization"], "Bearer hf_secret", "{request:?}");
    }
    assert_eq!(elsewhere.seen().len(), 1);
    assert!(!elsewhere.seen()[0].headers.contains_key("authorization"));
}

#[test]
fn redirects_end() {
    let bytes = model(1_000, 20);
    for (case, location) in [("circle", "/circle"), ("file", "file:///etc/passwd"), ("none", "")] {
        let server = hub(&bytes.clone(), true, move |_, _| {
            answer(302, &[("location", location), ("content-length", "0")], b"")
        });
        let config = config(&format!("redirect-{case}"), &server);
        let error = pull(&config).unwrap_err();
        assert!(matches!(error, Error::Redirect { .. }), "{error}");
        assert!(requests(&server).len() <= 7);
    }
}

#[test]
fn a_description_that_makes_no_sense_is_an_error() {
    for (case, body) in [("page", "<html>"), ("endless", "[[[[[[[[")] {
        let server = Server::start(move |_| {
            answer(200, &[("content-length", &body.len().to_string())], body.as_bytes())
        });
        let config = config(&format!("description-{case}"), &server);
        let error = pull(&config).unwrap_err();
        assert!(matches!(error, Error::Answer { .. }), "{error}");
    }
    let server = Server::start(|_| answer(404, &[("content-length", "0")], b""));
    let error = pull(&config("description-404", &server)).unwrap_err();
    assert!(error.to_string().contains("no such repository"), "{error}");
}

#[test]
fn two_processes_do_not_pull_the_same() {
    let bytes = model(100_000, 21);
    let server = hub(&bytes.clone(), true, move |request, _| file(request, "\"a\"", &bytes));
    let config = config("two", &server);
    let mut second = None;
    pull_with(&config, &mut |event| {
        if let Event::Progress { .. } = event {
            second.get_or_insert_with(|| pull(&config));
        }
    })
    .unwrap();
    assert!(matches!(second, Some(Err(Error::Busy { .. }))), "{second:?}");
    assert!(pull(&config).unwrap().already, "afterwards the way is free");
}

#[test]
fn a_new_version_replaces_the_old_one() {
    let (old, new) = (model(50_000, 22), model(50_000, 23));
    let first = hub(&old.clone(), true, move |request, _| file(request, "\"a\"", &old));
    let want = new.clone();
    let second = hub(&new.clone(), true, move |request, _| file(request, "\"b\"", &new));
    let mut config = config("version", &first);
    pull(&config).unwrap();
    config.endpoint.clone_from(&second.address);
    assert!(!pull(&config).unwrap().already);
    holds(&config, &want);
}

#[test]
fn a_split_model_comes_with_all_its_parts() {
    let names = ["q/m-00001-of-00002.gguf", "q/m-00002-of-00002.gguf"];
    let parts = [model(20_000, 24), model(30_000, 25)];
    let siblings: Vec<_> = (0..2)
        .map(|at| {
            let sum = sum(&parts[at]).to_string();
            let size = parts[at].len();
            serde_json::json!({"rfilename": names[at], "lfs": {"sha256": sum, "size": size}})
        })
        .collect();
    let description = common::json(&serde_json::json!({"siblings": siblings}));
    let served = parts;
    let server = Server::start(move |request| {
        if request.path.starts_with("/api/") {
            return description.clone();
        }
        file(request, "\"a\"", &served[usize::from(request.path.ends_with("00002-of-00002.gguf"))])
    });
    let config = config("split", &server);
    let plan = Plan::of(&Reference::parse("hf:o/r:q/m").unwrap(), &config).unwrap();
    assert_eq!((plan.size_bytes(), plan.licence.open), (Some(50_000), false));
    let pulled = plan.pull(&config, &mut |_| {}).unwrap();
    assert_eq!(pulled.bytes, 50_000);
    let store = Store::new(config.models.clone());
    let [model] = &*store.contents().unwrap().models else { panic!("one model") };
    assert_eq!((&*model.name, model.files.len()), ("hf:o/r:q/m-00001-of-00002.gguf", 2));
    assert_eq!(store.remove(model).unwrap() / 1000, 50);
    assert!(!config.models.join("hf").exists(), "no empty folder stays");
}

#[test]
fn a_damaged_file_of_the_same_length_is_fetched_again() {
    for with_sum in [true, false] {
        let bytes = model(60_000, 28);
        let want = bytes.clone();
        let server =
            hub(&bytes.clone(), with_sum, move |request, _| file(request, "\"a\"", &bytes));
        let config = config(&format!("damaged-{with_sum}"), &server);
        let pulled = pull(&config).unwrap();
        assert_eq!((pulled.already, pulled.verified), (false, with_sum));
        let mut damaged = want.clone();
        damaged[30_000] ^= 1;
        std::fs::write(&pulled.path, damaged).unwrap();
        // A clock that is coarse must not hide the change.
        let file = std::fs::File::options().write(true).open(&pulled.path).unwrap();
        file.set_modified(std::time::UNIX_EPOCH + Duration::from_secs(1_000_000_000)).unwrap();
        assert!(!pull(&config).unwrap().already);
        holds(&config, &want);
        // Touched and not changed: it is read once, and noted.
        let file = std::fs::File::options().write(true).open(&pulled.path).unwrap();
        file.set_modified(std::time::UNIX_EPOCH + Duration::from_secs(1_100_000_000)).unwrap();
        let checked = |config: &Config| {
            let mut checked = false;
            let event = &mut |event: Event<'_>| checked |= matches!(event, Event::Checking { .. });
            let pulled = pull_with(config, event).unwrap();
            assert_eq!((pulled.already, pulled.verified), (true, with_sum));
            checked
        };
        assert_eq!((checked(&config), checked(&config)), (true, false));
        assert_eq!(requests(&server).len(), 2);
        let [model] = &*Store::new(config.models).contents().unwrap().models else { panic!("one") };
        let record = model.record.as_ref().unwrap();
        assert_eq!(record.source, "hf:owner/repo:m-Q8_0.gguf");
    }
}

#[test]
fn a_description_that_breaks_off_is_asked_for_again() {
    let bytes = model(1_000, 29);
    let whole = description(FILE, &bytes, true);
    let count = AtomicUsize::new(0);
    let server = Server::start(move |request| {
        if !request.path.starts_with("/api/") {
            return file(request, "\"a\"", &bytes);
        }
        let len = if count.fetch_add(1, SeqCst) < 2 { whole.len() - 20 } else { whole.len() };
        whole[..len].to_vec()
    });
    let config = config("description-breaks", &server);
    pull(&config).unwrap();
    assert_eq!(server.seen().len(), 4);
    // Not for ever.
    let server = Server::start(|_| answer(200, &[("content-length", "9")], b"{"));
    let mut config = config;
    config.endpoint.clone_from(&server.address);
    assert!(matches!(pull(&config), Err(Error::Network { .. })));
    assert_eq!(server.seen().len(), 5);
}
