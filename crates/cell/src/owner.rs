//! Files and sockets that belong to somebody else are not trusted.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// A path that is not safe to use.
#[derive(Debug, thiserror::Error)]
pub enum OwnerError {
    /// It belongs to another user.
    #[error(
        "{path} belongs to user {owner}, this process runs as user {user}: run as that user or choose another path"
    )]
    Other {
        /// Which path.
        path: PathBuf,
        /// Its owner's user id.
        owner: u32,
        /// Our user id.
        user: u32,
    },
    /// It cannot be inspected.
    #[error("cannot inspect {path}: {source}")]
    Inspect {
        /// Which path.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
}

/// Checks that `path` belongs to the user this process runs as, or to root, who
/// could do anything to this process anyway.
pub fn check_owner(path: &Path) -> Result<(), OwnerError> {
    let metadata = std::fs::symlink_metadata(path).map_err(|source| OwnerError::Inspect {
        path: path.to_owned(),
        source,
    })?;
    let user = rustix::process::geteuid().as_raw();
    if metadata.uid() != user && metadata.uid() != 0 {
        return Err(OwnerError::Other {
            path: path.to_owned(),
            owner: metadata.uid(),
            user,
        });
    }
    Ok(())
}
