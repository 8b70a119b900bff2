//! Who may come in, and what they may do: a file of `user:password` lines, as
//! memcached reads it, with sections for roles.
//!
//! ```text
//! root:secret            # before any section: admin, as in memcached
//! [write]
//! app:another secret
//! [read]
//! dashboard:a third
//! ```

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use subtle::{Choice, ConstantTimeEq as _};
use trefoil_gateway_core::world::Role;

#[derive(Clone, PartialEq, Eq)]
struct User {
    name: Vec<u8>,
    password: Vec<u8>,
    role: Role,
}

/// Users, their passwords and roles.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Users {
    users: Vec<User>,
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
    #[error("{path}, line {line}: expected user:password, [read], [write] or [admin]")]
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
        let mut role = Role::Admin;
        for (index, line) in text.split(|byte| *byte == b'\n').enumerate() {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            let colon = line.iter().position(|byte| *byte == b':');
            match (line, colon) {
                (b"", _) => {}
                (b"[read]", _) => role = Role::Read,
                (b"[write]", _) => role = Role::Write,
                (b"[admin]", _) => role = Role::Admin,
                (_, Some(colon @ 1..)) => users.push(User {
                    name: line[..colon].to_vec(),
                    password: line[colon + 1..].to_vec(),
                    role,
                }),
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

    /// Whether there is one of this name.
    pub(super) fn has(&self, name: &[u8]) -> bool {
        self.users.iter().any(|user| user.name == name)
    }

    /// The role of the user with this name and password. How long it takes depends
    /// on lengths alone, never on how much of a guess is right. Of a name that
    /// stands twice the first line counts.
    pub fn role(&self, name: &[u8], password: &[u8]) -> Option<Role> {
        let mut found = None;
        for user in &self.users {
            let is_same: Choice = user.name.ct_eq(name) & user.password.ct_eq(password);
            if bool::from(is_same) && found.is_none() {
                found = Some(user.role);
            }
        }
        found
    }
}

impl std::fmt::Debug for Users {
    /// Without the passwords.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let each = |user: &User| (String::from_utf8_lossy(&user.name).into_owned(), user.role);
        f.debug_list().entries(self.users.iter().map(each)).finish()
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
        for (name, password) in [("ann", "one"), ("bob", "two:more"), ("eve", "")] {
            let role = users.role(name.as_bytes(), password.as_bytes());
            assert_eq!(role, Some(Role::Admin), "{name}");
        }
        for (name, password) in [
            ("ann", "two:more"),
            ("bob", "one"),
            ("ann", ""),
            ("ann", "on"),
            ("ann", "one\0"),
            ("", ""),
            ("an", "one"),
        ] {
            let role = users.role(name.as_bytes(), password.as_bytes());
            assert_eq!(role, None, "{name}:{password}");
        }
        assert!(!format!("{users:?}").contains("one"));
    }

    #[test]
    fn sections_are_roles() {
        let text = b"a:1\n[read]\nb:1\n\nc:1\r\n[write]\r\nd:1\n[admin]\ne:1\n[read]\nf:1";
        let users = users(text).unwrap();
        let role = |name: &[u8]| users.role(name, b"1");
        assert_eq!(role(b"a"), Some(Role::Admin));
        assert_eq!([role(b"b"), role(b"c"), role(b"f")], [Some(Role::Read); 3]);
        assert_eq!(role(b"d"), Some(Role::Write));
        assert_eq!(role(b"e"), Some(Role::Admin));
    }

    #[test]
    fn mistakes_are_named_by_line() {
        let error = users(b"ann:one\nbob\n").unwrap_err().to_string();
        assert!(error.contains("line 2"), "{error}");
        assert!(matches!(users(b":x\n"), Err(UsersError::Line { .. })));
        assert!(matches!(
            users(b"[root]\na:b\n"),
            Err(UsersError::Line { .. })
        ));
        assert!(matches!(users(b"\n[read]\n"), Err(UsersError::Empty(_))));
        let missing = Users::read(Path::new("/nowhere/users"));
        assert!(matches!(missing, Err(UsersError::Read { .. })));
    }
}
