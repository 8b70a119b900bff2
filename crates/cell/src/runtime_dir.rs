//! This user's own directory for sockets and tokens: nobody else may look into it.

use rustix::process::geteuid;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

/// Bits of a mode that let others in.
const MODE_OTHERS: u32 = 0o077;

/// Why the directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeDirError {
    /// It could not be made or inspected.
    #[error("cannot make {path} for sockets and tokens: {source}")]
    System {
        /// Which.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// Somebody else has put it there, or others may look into it.
    #[error(
        "{path} is not private to this user (owner {owner}, mode {mode:o}): remove it, or set XDG_RUNTIME_DIR to a directory of your own"
    )]
    NotPrivate {
        /// Which.
        path: PathBuf,
        /// Its owner's user id.
        owner: u32,
        /// Its mode.
        mode: u32,
    },
}

/// The directory, made if it is not there: `$XDG_RUNTIME_DIR/trefoil`, or
/// `trefoil-UID` in the directory for temporary files.
pub fn runtime_dir() -> Result<PathBuf, RuntimeDirError> {
    let path = runtime_dirs().swap_remove(0);
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&path)
        .map_err(|source| RuntimeDirError::System {
            path: path.clone(),
            source,
        })?;
    check(&path)?;
    Ok(path)
}

/// Where a server of this user may have left something, the likeliest place
/// first: servers that the system starts often know no `XDG_RUNTIME_DIR`.
pub(crate) fn runtime_dirs() -> Vec<PathBuf> {
    let user = geteuid().as_raw();
    let own = |path: &PathBuf| std::fs::metadata(path).is_ok_and(|m| m.is_dir() && m.uid() == user);
    let session = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let mut paths: Vec<PathBuf> = session.filter(own).into_iter().collect();
    for path in &mut paths {
        path.push("trefoil");
    }
    paths.push(std::env::temp_dir().join(format!("trefoil-{user}")));
    paths
}

/// Refuses a directory that others own or may look into: in the directory for
/// temporary files anybody could have made it first.
///
/// The directory around it is not judged. Where everybody may write to that and it is
/// not sticky, others can take this one away, and then nothing is found or made; what
/// they put in its place is theirs, or open to them, and refused here.
pub(crate) fn check(path: &Path) -> Result<(), RuntimeDirError> {
    let metadata = std::fs::symlink_metadata(path).map_err(|source| RuntimeDirError::System {
        path: path.to_owned(),
        source,
    })?;
    let is_private = metadata.is_dir()
        && metadata.uid() == geteuid().as_raw()
        && metadata.mode() & MODE_OTHERS == 0;
    if is_private {
        return Ok(());
    }
    Err(RuntimeDirError::NotPrivate {
        path: path.to_owned(),
        owner: metadata.uid(),
        mode: metadata.mode() & 0o7777,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn what_others_may_look_into_is_not_used() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("d");
        std::fs::create_dir(&path).unwrap();
        for (mode, is_private) in [
            (0o700, true),
            (0o750, false),
            (0o701, false),
            (0o777, false),
        ] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(check(&path).is_ok(), is_private, "{mode:o}");
        }
        let link = home.path().join("link");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(check(&link).is_err(), "a link may lead elsewhere tomorrow");
    }
}
