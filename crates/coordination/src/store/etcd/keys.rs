//! The names of keys.

use trefoil_sharder::ServerId;

/// Those of one corpus.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    /// Ends with a slash.
    pub(crate) all: String,
    pub(crate) leader: String,
    pub(crate) term: String,
    pub(crate) assignment: String,
    pub(crate) members: String,
    pub(crate) freeze: String,
    pub(crate) lease: String,
}

impl Keys {
    pub(crate) fn of(prefix: &str, corpus: &str) -> Self {
        let all = format!("{prefix}/{corpus}/");
        Keys {
            leader: format!("{all}leader"),
            term: format!("{all}term"),
            assignment: format!("{all}assignment"),
            members: format!("{all}members/"),
            freeze: format!("{all}freeze"),
            lease: format!("{all}lease"),
            all,
        }
    }

    pub(crate) fn member(&self, id: ServerId) -> String {
        format!("{}{:016x}", self.members, id.0)
    }

    /// The corpus that a key belongs to.
    pub(crate) fn corpus_of(prefix: &str, key: &[u8]) -> Option<String> {
        let key = std::str::from_utf8(key).ok()?;
        let (corpus, _) = key
            .strip_prefix(prefix)?
            .strip_prefix('/')?
            .split_once('/')?;
        Some(corpus.to_owned())
    }
}

/// The first key behind all that begin with `prefix`.
pub(crate) fn prefix_end(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    // Nothing is behind: etcd's word for "to the end".
    vec![0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_ends() {
        let keys = Keys::of("p/q", "mail");
        assert_eq!(
            keys.member(ServerId(255)),
            "p/q/mail/members/00000000000000ff"
        );
        let corpus = |key: &str| Keys::corpus_of("p/q", key.as_bytes());
        assert_eq!(corpus(&keys.assignment).as_deref(), Some("mail"));
        assert_eq!(corpus("p/qq/mail/term"), None);
        assert_eq!(corpus("p/q/mail"), None);
        assert_eq!(prefix_end(b"ab/"), b"ab0");
        assert_eq!(prefix_end(b"a\xff"), b"b");
        assert_eq!(prefix_end(b"\xff"), [0]);
    }
}
