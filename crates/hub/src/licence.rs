//! Under which terms a model may be used, and whether these want a decision.

use serde::{Deserialize, Serialize};

/// A licence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Licence {
    /// The SPDX identifier where there is one, otherwise the name that its author uses.
    pub name: String,
    /// Its text.
    pub url: String,
    /// Anyone may use the model for anything, at most with a notice: no decision is needed.
    pub open: bool,
}

/// Identifiers of the hub, in lower case, whose licence is open, with their SPDX identifiers.
const OPEN: &[(&str, &str)] = &[
    ("afl-3.0", "AFL-3.0"),
    ("agpl-3.0", "AGPL-3.0-only"),
    ("apache-2.0", "Apache-2.0"),
    ("artistic-2.0", "Artistic-2.0"),
    ("bsd-2-clause", "BSD-2-Clause"),
    ("bsd-3-clause", "BSD-3-Clause"),
    ("bsl-1.0", "BSL-1.0"),
    ("cc-by-4.0", "CC-BY-4.0"),
    ("cc-by-sa-4.0", "CC-BY-SA-4.0"),
    ("cc0-1.0", "CC0-1.0"),
    ("gpl-3.0", "GPL-3.0-only"),
    ("isc", "ISC"),
    ("lgpl-3.0", "LGPL-3.0-only"),
    ("mit", "MIT"),
    ("mpl-2.0", "MPL-2.0"),
    ("unlicense", "Unlicense"),
    ("zlib", "Zlib"),
];

impl Licence {
    /// An open licence by its SPDX identifier.
    #[must_use]
    pub fn spdx(id: &str) -> Self {
        let url = format!("https://spdx.org/licenses/{id}.html");
        Self { name: id.to_owned(), url, open: true }
    }

    /// Terms that want a decision.
    #[must_use]
    pub fn terms(name: &str, url: &str) -> Self {
        Self { name: name.to_owned(), url: url.to_owned(), open: false }
    }

    /// What a card on the hub says: an identifier, or `other` with a name and a link. `page` is
    /// where the text is if nothing else is said.
    pub(crate) fn from_card(id: &str, name: Option<&str>, link: Option<&str>, page: &str) -> Self {
        let id = id.trim();
        let lower = id.to_ascii_lowercase();
        if let Some(&(_, spdx)) = OPEN.iter().find(|(known, _)| *known == lower) {
            return Self::spdx(spdx);
        }
        let name = name.filter(|name| !name.is_empty());
        let shown = match (&*lower, name) {
            ("", _) => "no licence named by the repository",
            ("gemma", _) => "Gemma terms of use",
            ("other" | "unknown", Some(name)) => name,
            _ => id,
        };
        let link = link.filter(|link| link.starts_with("https://") || link.starts_with("http://"));
        let url = match (&*lower, link) {
            (_, Some(link)) => link,
            ("gemma", None) => GEMMA_URL,
            _ => page,
        };
        Self::terms(&crate::error::shown(shown, 80), &crate::error::shown(url, 200))
    }
}

/// Where the Gemma terms of use are.
pub(crate) const GEMMA_URL: &str = "https://ai.google.dev/gemma/terms";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_licences_are_known_and_all_others_want_a_decision() {
        let of = |id: &str, name, link| Licence::from_card(id, name, link, "https://page");
        assert_eq!(of("Apache-2.0", None, None), Licence::spdx("Apache-2.0"));
        assert!(of("mit", None, None).open);
        assert_eq!(of("gemma", None, None), Licence::terms("Gemma terms of use", GEMMA_URL));
        let named = of("other", Some("qwen-research"), Some("https://x/LICENSE"));
        assert_eq!(named, Licence::terms("qwen-research", "https://x/LICENSE"));
        assert_eq!(of("cc-by-nc-4.0", None, None), Licence::terms("cc-by-nc-4.0", "https://page"));
        assert!(!of("", None, Some("javascript:x")).open);
        assert_eq!(of("", None, Some("javascript:x")).url, "https://page");
    }
}
