//! What single identities may do in a cell, whatever their role is.
//!
//! | file | a line | gives a right to who |
//! |---|---|---|
//! | `rights` beside a server's certificate | `NAME RIGHT` | shows a certificate of that name |
//! | the same | `* RIGHT` | shows another one |
//! | `FILE.rights` beside a server's token in `FILE` | `NAME RIGHT sha256:DIGITS` | shows a token with that digest |
//!
//! Rights are `none`, `read`, `write` and `admin`; each includes those before it. `#` begins a
//! comment. A certificate with the role of a backend is a server's: nothing here is about it.
//! Nor is anything about the server's own token. Who is not listed may do what their role
//! says, or, with another token, nothing.
//!
//! A line that cannot be understood makes the whole file count for nothing new: one that is
//! passed over would leave somebody with more than was meant. How the file is looked at,
//! [`crate::listed`] says.

use crate::accept::Caller;
use crate::file::{self, FileError, Secrecy};
use crate::listed::{Listed, lines};
use crate::role::Role;
use ring::digest::{Context, SHA256, SHA256_OUTPUT_LEN};
use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// Name of the file in a directory with certificates, and what follows a token file's name.
pub const RIGHTS_FILE: &str = "rights";

/// Stands before a token's digest.
const DIGEST: &str = "sha256:";
/// Names all who are not named.
const OTHERS: &str = "*";

/// What somebody may do. The greater includes the lesser.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Right {
    /// Nothing.
    None,
    /// Look items up, list them, see statistics.
    Read,
    /// Store and erase items, too.
    Write,
    /// Everything.
    Admin,
}

impl Right {
    const ALL: [Right; 4] = [Right::None, Right::Read, Right::Write, Right::Admin];

    /// As people write it.
    pub fn name(self) -> &'static str {
        match self {
            Right::None => "none",
            Right::Read => "read",
            Right::Write => "write",
            Right::Admin => "admin",
        }
    }

    fn of_name(name: &str) -> Option<Right> {
        Right::ALL.into_iter().find(|right| right.name() == name)
    }
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// By the names of certificates.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Names(HashMap<String, Right>);

/// The list beside a certificate.
pub(crate) type NameRights = Listed<Names>;

/// Beside the certificate at `certificate`, before the first look.
pub(crate) fn beside(certificate: &Path) -> NameRights {
    Listed::at(certificate.with_file_name(RIGHTS_FILE), parse_names)
}

impl crate::watched::Tls {
    /// What the list says that they may do; `None` if it says nothing of them, so that their
    /// role decides.
    pub fn right_of(&self, caller: &Caller) -> Option<Right> {
        if caller.roles.has(Role::Backend) {
            return None;
        }
        self.look_at_rights();
        self.rights().said(|Names(names)| {
            let named = names.get(&caller.name);
            named.or_else(|| names.get(OTHERS)).copied()
        })
    }

    /// How often what the list says has changed, by now.
    pub fn rights_changes(&self) -> u64 {
        self.look_at_rights();
        self.rights().changes()
    }

    fn look_at_rights(&self) {
        if self.rights().look() {
            let path = self.rights().path().display();
            tracing::info!("{path}: the list of rights has changed");
        }
    }
}

type Digest = [u8; SHA256_OUTPUT_LEN];

/// By the digests of tokens; and whose they are.
#[derive(Debug, Default, PartialEq)]
struct Tokens(HashMap<Digest, (Arc<str>, Right)>);

/// Who may come in besides those who know a server's token, each by a token of their own.
/// Cheap to clone.
#[derive(Clone)]
pub struct TokenRights(Arc<Listed<Tokens>>);

impl fmt::Debug for TokenRights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenRights(…)")
    }
}

impl TokenRights {
    /// Reads the list beside the server's token in `token_file`, if there is one.
    pub fn beside(token_file: &Path) -> Result<TokenRights, FileError> {
        let mut path = token_file.as_os_str().to_owned();
        path.push(".");
        path.push(RIGHTS_FILE);
        let listed = Listed::at(path.into(), parse_tokens);
        listed.begin()?;
        Ok(TokenRights(Arc::new(listed)))
    }

    /// Whose token this is, and what they may do; `None` for one that is not listed.
    pub fn of(&self, token: &[u8]) -> Option<(Arc<str>, Right)> {
        self.look();
        self.0.said(|Tokens(tokens)| match tokens.is_empty() {
            true => None,
            // Also as `sha256sum` has it of the token's file.
            false => [&b""[..], b"\n"]
                .into_iter()
                .find_map(|end| tokens.get(&digest(token, end)).cloned()),
        })
    }

    /// How often what the list says has changed, by now.
    pub fn changes(&self) -> u64 {
        self.look();
        self.0.changes()
    }

    fn look(&self) {
        if self.0.look() {
            let path = self.0.path().display();
            tracing::info!("{path}: the list of rights has changed");
        }
    }
}

fn digest(token: &[u8], end: &[u8]) -> Digest {
    let mut context = Context::new(&SHA256);
    context.update(token);
    context.update(end);
    let mut digest = Digest::default();
    digest.copy_from_slice(context.finish().as_ref());
    digest
}

/// 64 hexadecimal digits.
fn digest_of_text(text: &str) -> Option<Digest> {
    let mut digest = Digest::default();
    if text.len() != 2 * digest.len() || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    for (byte, at) in digest.iter_mut().zip((0..).step_by(2)) {
        *byte = u8::from_str_radix(text.get(at..at + 2)?, 16).ok()?;
    }
    Some(digest)
}

/// The last word of a line, and what stands before it.
fn last(says: &str) -> (&str, &str) {
    says.rsplit_once(char::is_whitespace)
        .map_or(("", says), |(before, last)| (before.trim_end(), last))
}

fn parse_names(path: &Path, text: &str) -> Result<Names, FileError> {
    file::check(path, Secrecy::Shown)?;
    let mut names = HashMap::new();
    for (line, says) in lines(text) {
        let fail = |problem| refused(path, line, problem);
        let (name, right) = last(says);
        let right = Right::of_name(right).filter(|_| !name.is_empty());
        let right = right.ok_or_else(|| {
            fail("expected the name of a certificate, and none, read, write or admin".to_owned())
        })?;
        if names.insert(name.to_owned(), right).is_some() {
            return Err(fail(format!("\"{name}\" has a right already: give it one")));
        }
    }
    Ok(Names(names))
}

fn parse_tokens(path: &Path, text: &str) -> Result<Tokens, FileError> {
    file::check(path, Secrecy::Shown)?;
    let mut tokens = HashMap::new();
    for (line, says) in lines(text) {
        let fail = |problem| refused(path, line, problem);
        let (before, digest) = last(says);
        let (name, right) = last(before);
        let digest = digest.strip_prefix(DIGEST).and_then(digest_of_text);
        let right = Right::of_name(right).filter(|_| !name.is_empty());
        let (Some(right), Some(digest)) = (right, digest) else {
            return Err(fail(format!(
                "expected a name, then none, read, write or admin, then {DIGEST} and the 64 \
                 digits that `sha256sum TOKENFILE` shows"
            )));
        };
        let listed = (Arc::from(name), right);
        if tokens.insert(digest, listed).is_some() {
            return Err(fail(
                "this token has a right already: give it one".to_owned(),
            ));
        }
    }
    Ok(Tokens(tokens))
}

fn refused(path: &Path, line: usize, problem: String) -> FileError {
    FileError::Rights {
        path: path.to_owned(),
        line,
        problem,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listed::LIST_LOOK_PERIOD;
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::PathBuf;

    struct Place(tempfile::TempDir);

    impl Place {
        fn new() -> Place {
            Place(tempfile::tempdir().unwrap())
        }

        fn path(&self, name: &str) -> PathBuf {
            self.0.path().join(name)
        }

        fn put(&self, name: &str, text: &str) {
            let next = self.path("next");
            std::fs::write(&next, text).unwrap();
            std::fs::set_permissions(&next, std::fs::Permissions::from_mode(0o644)).unwrap();
            std::fs::rename(&next, self.path(name)).unwrap();
        }
    }

    #[test]
    fn the_greater_right_includes_the_lesser() {
        assert!(Right::ALL.is_sorted());
        for right in Right::ALL {
            assert_eq!(Right::of_name(right.name()), Some(right));
        }
        assert_eq!(Right::of_name("Read"), None);
    }

    #[test]
    fn certificates_have_rights_by_name() {
        let place = Place::new();
        let text = "# who may\nweb 1   write # the shop\n\ndash\tread\n* none\n";
        place.put(RIGHTS_FILE, text);
        let listed = beside(&place.path("cert.pem"));
        listed.begin().unwrap();
        let right = |name: &str| listed.said(|Names(names)| names.get(name).copied());
        assert_eq!(right("web 1"), Some(Right::Write));
        assert_eq!(right("dash"), Some(Right::Read));
        assert_eq!(right(OTHERS), Some(Right::None));
        assert_eq!(right("ops"), None);
    }

    /// `sha256sum` of 64 zeros.
    const OF_ZEROS: &str = "60e05bd1b195af2f94112fa7197a5c88289058840ce7c6df9693756bc6250f55";

    #[test]
    fn tokens_have_rights_by_their_digests() {
        let place = Place::new();
        let zeros = "0".repeat(64);
        let text_of = |bytes: &[u8]| -> String {
            let digest = digest(bytes, b"");
            digest.iter().map(|byte| format!("{byte:02x}")).collect()
        };
        assert_eq!(text_of(zeros.as_bytes()), OF_ZEROS);
        let file = place.path("token");
        // Without a list nobody is let in by it.
        assert_eq!(TokenRights::beside(&file).unwrap().of(b""), None);
        let with_end = text_of(format!("{zeros}\n").as_bytes()).to_ascii_uppercase();
        for digits in [OF_ZEROS, &with_end] {
            place.put("token.rights", &format!("dash read sha256:{digits}\n"));
            let rights = TokenRights::beside(&file).unwrap();
            let found = rights.of(zeros.as_bytes());
            assert_eq!(found, Some((Arc::from("dash"), Right::Read)));
            assert_eq!(rights.of(&zeros.as_bytes()[1..]), None);
            assert_eq!(rights.of(b""), None);
        }
    }

    #[test]
    fn what_cannot_be_understood_changes_nothing() {
        let place = Place::new();
        place.put(RIGHTS_FILE, "dash read\n");
        let listed = beside(&place.path("cert.pem"));
        listed.begin().unwrap();
        let look = || {
            std::thread::sleep(LIST_LOOK_PERIOD);
            listed.look();
            listed.said(|Names(names)| names.get("dash").copied())
        };
        for (text, line) in [
            ("dash raed\n", 1),
            ("# one\nread\n", 2),
            ("dash write\ndash none\n", 2),
            ("dash write sha256:00\n", 1),
        ] {
            place.put(RIGHTS_FILE, text);
            assert_eq!(look(), Some(Right::Read), "{text}");
            let refused = beside(&place.path("cert.pem")).begin().unwrap_err();
            let begin = format!("{}:{line}: ", place.path(RIGHTS_FILE).display());
            assert!(refused.to_string().starts_with(&begin), "{refused}");
        }
        assert_eq!(listed.changes(), 1);
        place.put(RIGHTS_FILE, "dash none\n");
        assert_eq!(look(), Some(Right::None));
        // Whoever may write there could give himself any right.
        let everybody = std::fs::Permissions::from_mode(0o666);
        place.put(RIGHTS_FILE, "dash admin\n");
        std::fs::set_permissions(place.path(RIGHTS_FILE), everybody).unwrap();
        assert_eq!(look(), Some(Right::None));
        std::fs::remove_file(place.path(RIGHTS_FILE)).unwrap();
        assert_eq!(look(), None);
    }

    #[test]
    fn lines_of_tokens_need_a_digest() {
        let place = Place::new();
        let of = |digits: &str| format!("dash read sha256:{digits}\n");
        let twice = of(OF_ZEROS) + &of(OF_ZEROS);
        for text in [
            "dash read\n",
            &of(&OF_ZEROS[1..]),
            &of(&OF_ZEROS.replace('6', "g")),
            &of(&"ä".repeat(32)),
            &format!("read sha256:{}\n", OF_ZEROS),
            &twice,
        ] {
            place.put("token.rights", text);
            assert!(TokenRights::beside(&place.path("token")).is_err(), "{text}");
        }
    }
}
