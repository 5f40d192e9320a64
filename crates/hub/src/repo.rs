//! What the hub says of a repository: its files, their lengths and sums, and the licence.
//!
//! The answer is outside input. Paths in it go through the rules of [`crate::name`], and what does
//! not keep them is not seen.

use std::io::Read as _;

use serde_json::Value;

use crate::config::Config;
use crate::digest::Sha256;
use crate::error::{Error, shown};
use crate::http::{Client, Failure};
use crate::licence::Licence;
use crate::name;
use crate::pull::PlannedFile;
use crate::store::{Store, is_gguf, part_name, split};

/// Longest description of a repository that is read.
const MAX_BYTES: u64 = 32 << 20;

/// Files that are named in a message.
const MAX_CHOICES: usize = 40;

/// A file of a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
struct RepoFile {
    path: String,
    size_bytes: Option<u64>,
    sha256: Option<Sha256>,
}

/// A repository.
#[derive(Debug)]
pub(crate) struct Repo {
    pub(crate) name: String,
    /// The commit, so that all files are of one version.
    pub(crate) revision: String,
    pub(crate) licence: Licence,
    pub(crate) architecture: Option<String>,
    files: Vec<RepoFile>,
}

/// Asks the hub for a repository.
pub(crate) fn ask(client: &Client, config: &Config, repo: &str) -> Result<Repo, Error> {
    let url = format!("{}/api/models/{repo}/revision/main?blobs=true", config.endpoint);
    let mut tries = 0;
    let value = loop {
        match describe(client, &url) {
            Ok(value) => break value,
            Err(failure) => {
                tries += 1;
                let wait = failure.retry.first_wait(config, tries).ok_or(failure.error)?;
                std::thread::sleep(wait);
            }
        }
    };
    Ok(read(repo, &config.endpoint, &value))
}

/// One request, and all of its answer.
fn describe(client: &Client, url: &str) -> Result<Value, Failure> {
    let answer = client.get(url, &[])?;
    let host = answer.host;
    let mut text = Vec::new();
    let mut body = answer.body.into_reader().take(MAX_BYTES + 1);
    body.read_to_end(&mut text).map_err(|error| crate::http::broken_io(host.clone(), &error))?;
    let wrong = |reason: String| Error::Answer { host, reason };
    if text.len() as u64 > MAX_BYTES {
        return Err(wrong("the description of the repository is endless".to_owned()).into());
    }
    serde_json::from_slice(&text).map_err(|error| {
        wrong(format!("the description of the repository is no JSON ({error})")).into()
    })
}

/// Reads the hub's description. What is missing is unknown.
fn read(repo: &str, endpoint: &str, value: &Value) -> Repo {
    let commit = value["sha"]
        .as_str()
        .filter(|sha| sha.len() == 40 && sha.bytes().all(|byte| byte.is_ascii_hexdigit()));
    let card = &value["cardData"];
    let id = card["license"].as_str().or_else(|| card["license"][0].as_str()).or_else(|| {
        let tags = value["tags"].as_array()?;
        tags.iter().find_map(|tag| tag.as_str()?.strip_prefix("license:"))
    });
    let page = format!("{endpoint}/{repo}");
    let (name, link) = (card["license_name"].as_str(), card["license_link"].as_str());
    let siblings = value["siblings"].as_array().map_or(&[][..], Vec::as_slice);
    let architecture = value["gguf"]["architecture"].as_str();
    Repo {
        name: repo.to_owned(),
        revision: commit.unwrap_or("main").to_owned(),
        licence: Licence::from_card(id.unwrap_or_default(), name, link, &page),
        architecture: architecture.map(|name| shown(name, 40)),
        files: siblings.iter().filter_map(file).collect(),
    }
}

fn file(sibling: &Value) -> Option<RepoFile> {
    let path = sibling["rfilename"].as_str()?;
    if !is_gguf(path) || name::check_path(path).is_err() {
        return None;
    }
    let sum = sibling["lfs"]["sha256"].as_str().or_else(|| sibling["lfs"]["oid"].as_str());
    Some(RepoFile {
        path: path.to_owned(),
        size_bytes: sibling["lfs"]["size"].as_u64().or_else(|| sibling["size"].as_u64()),
        sha256: sum.and_then(Sha256::from_hex),
    })
}

impl Repo {
    /// The files of the model that `wanted` means: all parts of a split model.
    pub(crate) fn choose(&self, wanted: Option<&str>) -> Result<Vec<PlannedFile>, Error> {
        let firsts: Vec<&RepoFile> = self
            .files
            .iter()
            .filter(|file| split(&file.path).is_none_or(|(_, part, _)| part == 1))
            .collect();
        if firsts.is_empty() {
            return Err(Error::NoGguf { repo: self.name.clone() });
        }
        let exact = wanted.and_then(|wanted| self.files.iter().find(|file| file.path == wanted));
        if let Some(file) = exact {
            return self.all_parts(file);
        }
        let text = wanted.unwrap_or_default().to_ascii_lowercase();
        let is_model = |file: &&&RepoFile| {
            // A projector is a part of a model that sees, and no language model.
            !file_name(&file.path).to_ascii_lowercase().starts_with("mmproj")
        };
        let fits = |file: &&&RepoFile| file.path.to_ascii_lowercase().contains(&text);
        let found: Vec<_> = firsts.iter().filter(is_model).filter(fits).collect();
        match *found {
            [file] => self.all_parts(file),
            _ => {
                let listed = if found.is_empty() { firsts.iter().collect() } else { found };
                let mut choices: Vec<String> =
                    listed.iter().take(MAX_CHOICES).map(|file| file.path.clone()).collect();
                if listed.len() > MAX_CHOICES {
                    choices.push(format!("and {} more", listed.len() - MAX_CHOICES));
                }
                let wanted = wanted.unwrap_or("*").to_owned();
                Err(Error::Choices { repo: self.name.clone(), wanted, choices })
            }
        }
    }

    fn all_parts(&self, file: &RepoFile) -> Result<Vec<PlannedFile>, Error> {
        let names = match split(&file.path) {
            None => vec![file.path.clone()],
            Some((stem, _, count)) => (1..=count).map(|n| part_name(stem, n, count)).collect(),
        };
        let planned = names.iter().map(|name| {
            let file = self.files.iter().find(|file| file.path == *name);
            let file = file.ok_or_else(|| Error::Choices {
                repo: self.name.clone(),
                wanted: name.clone(),
                choices: self.files.iter().take(MAX_CHOICES).map(|f| f.path.clone()).collect(),
            })?;
            Ok(PlannedFile {
                path: Store::hub_path(&self.name, &file.path),
                size_bytes: file.size_bytes,
                sha256: file.sha256,
            })
        });
        planned.collect()
    }
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const SUM: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    fn repo(files: &[&str]) -> Repo {
        let siblings: Vec<_> = files
            .iter()
            .map(|name| json!({"rfilename": name, "size": 7, "lfs": {"sha256": SUM, "size": 7}}))
            .collect();
        let value = json!({"sha": "a".repeat(40), "siblings": siblings,
            "cardData": {"license": "apache-2.0"}, "gguf": {"architecture": "qwen3"}});
        read("o/r", "https://hub", &value)
    }

    fn paths(repo: &Repo, wanted: Option<&str>) -> Result<Vec<String>, Error> {
        repo.choose(wanted).map(|files| files.into_iter().map(|file| file.path).collect())
    }

    #[test]
    fn a_single_file_needs_no_name_and_a_part_of_its_name_is_enough() {
        let one = repo(&["README.md", "m-Q4_K_M.gguf", "mmproj-m.gguf"]);
        assert_eq!(paths(&one, None).unwrap(), ["hf/o/r/m-Q4_K_M.gguf"]);
        assert_eq!(paths(&one, Some("mmproj-m.gguf")).unwrap(), ["hf/o/r/mmproj-m.gguf"]);
        assert_eq!((one.revision.len(), one.licence.open), (40, true));
        assert_eq!(one.choose(None).unwrap()[0].sha256, Sha256::from_hex(SUM));
        let two = repo(&["m-Q4_K_M.gguf", "m-Q8_0.gguf"]);
        assert_eq!(paths(&two, Some("q8_0")).unwrap(), ["hf/o/r/m-Q8_0.gguf"]);
        let error = paths(&two, None).unwrap_err();
        let choices = ["m-Q4_K_M.gguf", "m-Q8_0.gguf"].map(str::to_owned).to_vec();
        let want = Error::Choices { repo: "o/r".into(), wanted: "*".into(), choices };
        assert_eq!(error, want);
        assert!(matches!(paths(&two, Some("q5")), Err(Error::Choices { .. })));
        let none = Error::NoGguf { repo: "o/r".into() };
        assert_eq!(paths(&repo(&["model.safetensors"]), None), Err(none));
    }

    #[test]
    fn a_split_model_comes_whole() {
        let names = ["q/m-00001-of-00002.gguf", "q/m-00002-of-00002.gguf", "x.gguf"];
        let whole = repo(&names);
        let want = ["hf/o/r/q/m-00001-of-00002.gguf", "hf/o/r/q/m-00002-of-00002.gguf"];
        assert_eq!(paths(&whole, Some("q/m")).unwrap(), want);
        assert_eq!(paths(&whole, Some(names[1])).unwrap(), want, "by its second part");
        assert!(paths(&repo(&names[..1]), None).is_err(), "the second part is missing");
    }

    #[test]
    fn a_hostile_description_is_harmless() {
        let evil = repo(&["../../x.gguf", "/etc/x.gguf", "a/../b.gguf", "a\\b.gguf", "C:x.gguf"]);
        assert_eq!(evil.files, []);
        for value in [json!(null), json!([]), json!({"siblings": 3, "sha": 5, "cardData": []})] {
            let repo = read("o/r", "https://hub", &value);
            assert_eq!((&*repo.revision, repo.files.len(), repo.licence.open), ("main", 0, false));
        }
        let odd = json!({"sha": "../../../x", "tags": ["license:mit"]});
        let repo = read("o/r", "https://hub", &odd);
        assert_eq!((&*repo.revision, repo.licence.open), ("main", true));
    }
}
