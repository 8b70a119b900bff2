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
    /// It belongs to another user, who may have put it there to be taken for
    /// somebody else's.
    #[error(
        "{path} belongs to user {owner}, and {place} is no place where only that user, root or user {user} can put it: move the cell to one, or run as user {owner}"
    )]
    Planted {
        /// Which path.
        path: PathBuf,
        /// Its owner's user id.
        owner: u32,
        /// Our user id.
        user: u32,
        /// A directory on the way to it, or the path itself, that others may write to.
        place: PathBuf,
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
    let metadata = std::fs::symlink_metadata(path).map_err(|source| inspect(path, source))?;
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

/// Checks a cell's directory or socket for a client that was told where it is. It may
/// be another user's, who lets this one in, if nobody else can have put it there: in a
/// directory that everybody may write to, the name may be a trap.
pub fn check_found(path: &Path) -> Result<(), OwnerError> {
    const OTHERS_WRITE: u32 = 0o022;
    const STICKY: u32 = 0o1000;
    let real = path.canonicalize().map_err(|e| inspect(path, e))?;
    let look = |at: &Path| std::fs::metadata(at).map_err(|e| inspect(at, e));
    let metadata = look(&real)?;
    let (user, owner) = (rustix::process::geteuid().as_raw(), metadata.uid());
    let is_ours = |id: u32| id == user || id == 0;
    if is_ours(owner) {
        return Ok(());
    }
    let planted = |place: &Path| OwnerError::Planted {
        path: path.to_owned(),
        owner,
        user,
        place: place.to_owned(),
    };
    if metadata.is_dir() && metadata.mode() & OTHERS_WRITE != 0 {
        return Err(planted(&real));
    }
    let mut below = owner;
    for place in real.ancestors().skip(1) {
        let metadata = look(place)?;
        // What is ours stays what it is where others can only add.
        let is_kept = metadata.mode() & STICKY != 0 && is_ours(below);
        let is_open = metadata.mode() & OTHERS_WRITE != 0 && !is_kept;
        if is_open || !(is_ours(metadata.uid()) || metadata.uid() == owner) {
            return Err(planted(place));
        }
        below = metadata.uid();
    }
    Ok(())
}

fn inspect(path: &Path, source: std::io::Error) -> OwnerError {
    OwnerError::Inspect {
        path: path.to_owned(),
        source,
    }
}
