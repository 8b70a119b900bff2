//! PEM files, and who may have access to them.

use rustls::RootCertStore;
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Why a file of certificates or of a key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The system says no.
    #[error("cannot read {path}: {source}")]
    Read {
        /// Which file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// No PEM.
    #[error("{path} is not in PEM: {source}")]
    Pem {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        source: pem::Error,
    },
    /// A file without what it was named for.
    #[error("{0} holds no certificate: expected PEM (-----BEGIN CERTIFICATE-----)")]
    NoCertificate(PathBuf),
    /// The same of a key.
    #[error(
        "{0} holds no private key: expected PEM without a passphrase (-----BEGIN PRIVATE KEY-----)"
    )]
    NoKey(PathBuf),
    /// Not an authority's certificate.
    #[error("{path} holds something else than authorities' certificates: {problem}")]
    Authority {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// It belongs to another user, who could put anything there.
    #[error(
        "{path} belongs to user {owner}, and this process runs as user {user}: give it to that user (chown {user} {path})"
    )]
    Owner {
        /// Which file.
        path: PathBuf,
        /// Its owner's user id.
        owner: u32,
        /// Our user id.
        user: u32,
    },
    /// Others may read a key.
    #[error(
        "the private key {path} has mode {mode:04o}: others may read it; take that away (chmod 0600 {path}), and take another key if anybody may have read this one"
    )]
    Open {
        /// Which file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// Others may write to it, and so choose who is believed.
    #[error(
        "{path} has mode {mode:04o}: others may write to it; take that away (chmod go-w {path})"
    )]
    Writable {
        /// Which file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// A list of rights that says nothing definite.
    #[error("{path}:{line}: {problem}")]
    Rights {
        /// Which file.
        path: PathBuf,
        /// Which line, from 1.
        line: usize,
        /// What is wrong with it, and how it has to be.
        problem: String,
    },
}

/// Who else may have access to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Secrecy {
    /// Others may read it.
    Shown,
    /// A private key: nobody else's, but root may let a group read its file.
    Secret,
}

/// Bits of a mode.
const OTHERS_WRITE: u32 = 0o022;
const OTHERS_AT_ALL: u32 = 0o077;
const GROUP_READS: u32 = 0o040;

/// Checks that a private key's file belongs to this user or root, and that nobody
/// else may read it.
pub fn check_private(path: &Path) -> Result<(), FileError> {
    check(path, Secrecy::Secret)
}

/// Checks that only this user or root can have put the file there.
pub(crate) fn check(path: &Path, secrecy: Secrecy) -> Result<(), FileError> {
    let metadata = std::fs::metadata(path).map_err(|source| FileError::Read {
        path: path.to_owned(),
        source,
    })?;
    let user = rustix::process::geteuid().as_raw();
    judge(
        path,
        secrecy,
        metadata.mode() & 0o7777,
        metadata.uid(),
        user,
    )
}

fn judge(path: &Path, secrecy: Secrecy, mode: u32, owner: u32, user: u32) -> Result<(), FileError> {
    let path = path.to_owned();
    if owner != user && owner != 0 {
        return Err(FileError::Owner { path, owner, user });
    }
    // As in /etc/ssl/private: root's, and a group may read it.
    let allowed = if owner == 0 { GROUP_READS } else { 0 };
    match secrecy {
        Secrecy::Secret if mode & OTHERS_AT_ALL & !allowed != 0 => {
            Err(FileError::Open { path, mode })
        }
        Secrecy::Shown if mode & OTHERS_WRITE != 0 => Err(FileError::Writable { path, mode }),
        _ => Ok(()),
    }
}

/// All certificates of a PEM file, at least one.
pub fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, FileError> {
    let found = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    let found: Vec<_> = found.map_err(|source| failed(path, source))?;
    match found.is_empty() {
        true => Err(FileError::NoCertificate(path.to_owned())),
        false => Ok(found),
    }
}

/// The first private key of a PEM file.
pub fn read_key(path: &Path) -> Result<PrivateKeyDer<'static>, FileError> {
    PrivateKeyDer::from_pem_file(path).map_err(|error| match error {
        pem::Error::NoItemsFound => FileError::NoKey(path.to_owned()),
        error => failed(path, error),
    })
}

/// The authorities of a PEM file.
pub fn read_roots(path: &Path) -> Result<RootCertStore, FileError> {
    let mut roots = RootCertStore::empty();
    for certificate in read_certificates(path)? {
        roots
            .add(certificate)
            .map_err(|error| FileError::Authority {
                path: path.to_owned(),
                problem: error.to_string(),
            })?;
    }
    Ok(roots)
}

fn failed(path: &Path, error: pem::Error) -> FileError {
    let path = path.to_owned();
    match error {
        pem::Error::Io(source) => FileError::Read { path, source },
        source => FileError::Pem { path, source },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_have_access_to_a_file() {
        const USER: u32 = 1000;
        let verdict = |secrecy, mode, owner| match judge(Path::new("f"), secrecy, mode, owner, USER)
        {
            Ok(()) => "fine",
            Err(FileError::Owner { .. }) => "owner",
            Err(FileError::Open { .. }) => "open",
            Err(FileError::Writable { .. }) => "writable",
            Err(_) => "else",
        };
        for (secrecy, mode, owner, expected) in [
            (Secrecy::Secret, 0o600, USER, "fine"),
            (Secrecy::Secret, 0o400, USER, "fine"),
            (Secrecy::Secret, 0o640, USER, "open"),
            (Secrecy::Secret, 0o604, USER, "open"),
            (Secrecy::Secret, 0o660, 0, "open"),
            (Secrecy::Secret, 0o640, 0, "fine"),
            (Secrecy::Secret, 0o644, 0, "open"),
            (Secrecy::Secret, 0o600, 7, "owner"),
            (Secrecy::Shown, 0o644, USER, "fine"),
            (Secrecy::Shown, 0o664, USER, "writable"),
            (Secrecy::Shown, 0o646, 0, "writable"),
            (Secrecy::Shown, 0o644, 7, "owner"),
        ] {
            let found = verdict(secrecy, mode, owner);
            assert_eq!(found, expected, "{secrecy:?} {mode:o} {owner}");
        }
    }
}
