//! Who may come in: a file of `user:password` lines, as memcached reads it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Users and their passwords.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Users {
    users: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Why a file of users cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum UsersError {
    /// It cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// Which file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A line that is something else.
    #[error("{path}, line {line}: expected user:password")]
    Line {
        /// Which file.
        path: PathBuf,
        /// Which line, from 1.
        line: usize,
    },
    /// Nobody could come in.
    #[error("{0} names no user: give lines of user:password")]
    Empty(PathBuf),
}

impl Users {
    /// Reads a file of users.
    pub fn read(path: &Path) -> Result<Self, UsersError> {
        let text = fs::read(path).map_err(|source| UsersError::Read {
            path: path.to_owned(),
            source,
        })?;
        let mut users = Vec::new();
        for (index, line) in text.split(|byte| *byte == b'\n').enumerate() {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if line.is_empty() {
                continue;
            }
            let colon = line.iter().position(|byte| *byte == b':');
            match colon {
                Some(colon) if colon > 0 => {
                    users.push((line[..colon].to_vec(), line[colon + 1..].to_vec()));
                }
                _ => {
                    return Err(UsersError::Line {
                        path: path.to_owned(),
                        line: index + 1,
                    });
                }
            }
        }
        if users.is_empty() {
            return Err(UsersError::Empty(path.to_owned()));
        }
        Ok(Users { users })
    }

    /// Whether this is a user with this password. How long it takes depends on
    /// the lengths alone, never on how much of a guess is right.
    pub fn knows(&self, name: &[u8], password: &[u8]) -> bool {
        let mut known = false;
        for (user, secret) in &self.users {
            known |= is_equal(user, name) & is_equal(secret, password);
        }
        known
    }
}

fn is_equal(secret: &[u8], guess: &[u8]) -> bool {
    let mut difference = secret.len() ^ guess.len();
    for (index, byte) in guess.iter().enumerate() {
        // A longer guess goes on against zeros.
        let expected = secret.get(index).copied().unwrap_or(0);
        difference |= usize::from(std::hint::black_box(expected ^ byte));
    }
    difference == 0
}

impl std::fmt::Debug for Users {
    /// Without the passwords.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = self.users.iter().map(|(n, _)| String::from_utf8_lossy(n));
        f.debug_list().entries(names).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn users(text: &[u8]) -> Result<Users, UsersError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        Users::read(file.path())
    }

    #[test]
    fn names_and_passwords_have_to_match_together() {
        let users = users(b"ann:one\r\nbob:two:more\n\neve:\n").unwrap();
        assert!(users.knows(b"ann", b"one"));
        assert!(users.knows(b"bob", b"two:more"));
        assert!(users.knows(b"eve", b""));
        for (name, password) in [
            ("ann", "two:more"),
            ("bob", "one"),
            ("ann", ""),
            ("ann", "on"),
            ("ann", "one\0"),
            ("", ""),
            ("an", "one"),
        ] {
            assert!(
                !users.knows(name.as_bytes(), password.as_bytes()),
                "{name}:{password}"
            );
        }
        assert!(!format!("{users:?}").contains("one"));
    }

    #[test]
    fn mistakes_are_named_by_line() {
        let error = users(b"ann:one\nbob\n").unwrap_err().to_string();
        assert!(error.contains("line 2"), "{error}");
        assert!(matches!(users(b":x\n"), Err(UsersError::Line { .. })));
        assert!(matches!(users(b"\n"), Err(UsersError::Empty(_))));
        let missing = Users::read(Path::new("/nowhere/users"));
        assert!(matches!(missing, Err(UsersError::Read { .. })));
    }
}
