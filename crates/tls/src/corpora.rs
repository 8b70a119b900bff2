//! The corpora of a linked store that a certificate is for.

use std::collections::BTreeSet;
use std::fmt;

/// Stands before a corpus' name among a certificate's alternative names (URI).
const URN: &str = "urn:trefoil:corpus:";
/// Stands for every corpus.
const ALL: &str = "*";

/// As a certificate carries a corpus: a URI among its alternative names. `*` is for
/// all of them.
pub fn urn(corpus: &str) -> String {
    format!("{URN}{corpus}")
}

/// The corpus that an alternative name stands for, if it is one's.
pub(crate) fn of_urn(uri: &str) -> Option<String> {
    let corpus = uri.strip_prefix(URN)?;
    (!corpus.is_empty()).then(|| corpus.to_owned())
}

/// A set of corpora; none by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Corpora(BTreeSet<String>);

impl Corpora {
    /// These; `*` for all.
    pub fn of(names: impl IntoIterator<Item = String>) -> Self {
        Corpora(names.into_iter().collect())
    }

    /// With one more.
    pub fn insert(&mut self, name: String) {
        self.0.insert(name);
    }

    /// Whether it is among them.
    pub fn has(&self, name: &str) -> bool {
        self.0.contains(name) || self.0.contains(ALL)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// As they are named, ascending.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }
}

impl fmt::Display for Corpora {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("none");
        }
        for (index, name) in self.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{name}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_corpus_survives_its_urn() {
        assert_eq!(of_urn(&urn("mail")), Some("mail".to_owned()));
        for other in ["", "mail", "urn:trefoil:corpus:", "urn:trefoil:role:client"] {
            assert_eq!(of_urn(other), None, "{other}");
        }
    }

    #[test]
    fn all_are_meant_by_a_star() {
        let some = Corpora::of(["mail".to_owned()]);
        assert!(some.has("mail") && !some.has("news") && !some.has("*"));
        assert!(Corpora::of([ALL.to_owned()]).has("news"));
        assert!(!Corpora::default().has(""));
        assert_eq!(some.to_string(), "mail");
        assert_eq!(Corpora::default().to_string(), "none");
    }
}
