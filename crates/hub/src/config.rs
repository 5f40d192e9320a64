//! Every knob: where models lie, which hub, which token, how patient. The only file of the crate
//! that reads the environment.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::error::Error;

const FOLDER: &str = "FUCINA_MODELS";
const ENDPOINT: &str = "HF_ENDPOINT";
const TOKEN: &str = "HF_TOKEN";

/// The hub unless `HF_ENDPOINT` names another.
pub const DEFAULT_ENDPOINT: &str = "https://huggingface.co";

/// An access token. It is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// A token, or `None` if it has characters that no header takes.
    #[must_use]
    pub fn new(token: &str) -> Option<Self> {
        let fits = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
        fits.then(|| Self(token.to_owned()))
    }

    pub(crate) fn header(&self) -> String {
        format!("Bearer {}", self.0)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// What fetching needs to know.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Config {
    /// The folder of models.
    pub models: PathBuf,
    /// Address of the hub, without a slash at its end.
    pub endpoint: String,
    /// Sent to the hub alone, and only over https or to this machine.
    pub token: Option<Token>,
    /// The Python whose pip asks the package index; `None` looks for `python3` and `python`.
    pub python: Option<PathBuf>,
    /// How often in a row a request may fail without a byte of progress.
    pub attempts: u32,
    /// The wait after the first failure; it doubles from one to the next.
    pub first_delay: Duration,
    /// The longest silence in the middle of an answer.
    pub silence: Duration,
}

impl Config {
    /// The defaults, with a folder of models.
    #[must_use]
    pub fn new(models: PathBuf) -> Self {
        Self {
            models,
            endpoint: DEFAULT_ENDPOINT.to_owned(),
            token: None,
            python: None,
            attempts: 5,
            first_delay: Duration::from_millis(500),
            silence: Duration::from_secs(30),
        }
    }

    /// What the environment says.
    ///
    /// # Errors
    ///
    /// Fails if a variable has a value that it does not take, and if nothing says where models go.
    pub fn from_env() -> Result<Self, Error> {
        Self::from_variables(&variable)
    }

    /// The folder of models alone: to look at what is there, nothing else need be right.
    ///
    /// # Errors
    ///
    /// Fails if nothing says where models go.
    pub fn folder_from_env() -> Result<PathBuf, Error> {
        folder(&variable).ok_or(Error::NoFolder)
    }

    fn from_variables(get: &dyn Fn(&str) -> Option<OsString>) -> Result<Self, Error> {
        let mut config = Self::new(folder(get).ok_or(Error::NoFolder)?);
        if let Some(value) = get(ENDPOINT) {
            config.endpoint = value.to_str().and_then(endpoint).ok_or(Error::Variable {
                variable: ENDPOINT,
                expected: "the address of a hub, as https://huggingface.co",
            })?;
        }
        if let Some(value) = get(TOKEN) {
            let token = value.to_str().and_then(|token| Token::new(token.trim()));
            config.token = Some(token.ok_or(Error::Variable {
                variable: TOKEN,
                expected: "a token of the hub: printable characters without spaces",
            })?);
        }
        Ok(config)
    }
}

/// A variable that is set to something.
fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// An address with scheme and host, without user, query or slash at its end.
fn endpoint(text: &str) -> Option<String> {
    let text = text.trim().trim_end_matches('/');
    let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"))?;
    let plain = |c: char| c.is_ascii_graphic() && !matches!(c, '@' | '?' | '#' | '\\');
    let fits = !rest.is_empty() && !rest.starts_with('/') && rest.chars().all(plain);
    (fits && text.parse::<ureq::http::Uri>().is_ok()).then(|| text.to_owned())
}

/// The folder of models: `FUCINA_MODELS`, or a part of the user's cache.
fn folder(get: &dyn Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    if let Some(folder) = get(FOLDER) {
        return Some(PathBuf::from(folder));
    }
    let absolute = |name: &str| get(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = absolute("XDG_CACHE_HOME").or_else(|| {
        if cfg!(windows) {
            absolute("LOCALAPPDATA")
        } else if cfg!(target_os = "macos") {
            absolute("HOME").map(|home| home.join("Library/Caches"))
        } else {
            absolute("HOME").map(|home| home.join(".cache"))
        }
    });
    cache.map(|cache| cache.join("fucina").join("models"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Config, Error> {
        Config::from_variables(&|name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| OsString::from(value))
        })
    }

    #[cfg(unix)]
    #[test]
    fn the_folder_is_named_or_part_of_the_cache() {
        let folder = |variables: &[(&str, &str)]| read(variables).map(|config| config.models);
        let named = [("FUCINA_MODELS", "/m"), ("XDG_CACHE_HOME", "/c"), ("HOME", "/h")];
        assert_eq!(folder(&named), Ok("/m".into()));
        assert_eq!(folder(&named[1..]), Ok("/c/fucina/models".into()));
        let cache = if cfg!(target_os = "macos") { "Library/Caches" } else { ".cache" };
        assert_eq!(folder(&named[2..]), Ok(format!("/h/{cache}/fucina/models").into()));
        assert_eq!(folder(&[("XDG_CACHE_HOME", "relative")]), Err(Error::NoFolder));
    }

    #[test]
    fn the_hub_has_an_address_and_the_token_is_not_shown() {
        let home = ("FUCINA_MODELS", "m");
        let of = |value| read(&[home, ("HF_ENDPOINT", value)]).map(|config| config.endpoint);
        assert_eq!(of("https://hub.example/"), Ok("https://hub.example".to_owned()));
        for wrong in ["hub.example", "file:///x", "https://", "https://user@hub", "https://a b"] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
        let config = read(&[home, ("HF_TOKEN", " hf_secret\n")]).unwrap();
        assert_eq!(config.token, Token::new("hf_secret"));
        assert!(!format!("{config:?}").contains("secret"));
        let error = read(&[home, ("HF_TOKEN", "two words")]).unwrap_err();
        assert!(!error.to_string().contains("words"), "{error}");
    }
}
