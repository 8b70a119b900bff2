//! The memory limit that a cell's backends were given last, in the directory of their host.
//!
//! A backend that dies has forgotten what it was told by command, and where there is one copy
//! nobody else may have been told. So each notes it when it takes a limit, and whoever starts
//! backends there gives it to those that it starts.

use std::path::PathBuf;

/// `memory-limit` in a cell's directory: bytes, in digits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitNote {
    path: PathBuf,
}

impl LimitNote {
    /// In this directory.
    pub fn in_directory(directory: &std::path::Path) -> Self {
        LimitNote {
            path: directory.join("memory-limit"),
        }
    }

    /// Notes a limit that was taken. Backends of one host do so at the same time.
    pub fn write(&self, bytes: u64) -> std::io::Result<()> {
        let own = format!("memory-limit.{}", std::process::id());
        let next = self.path.with_file_name(own);
        std::fs::write(&next, format!("{bytes}\n"))
            .and_then(|()| std::fs::rename(&next, &self.path))
            .inspect_err(|_| {
                let _ = std::fs::remove_file(&next);
            })
    }

    /// What was noted last; nothing: nobody was given one, or it cannot be read.
    pub fn read(&self) -> Option<u64> {
        std::fs::read_to_string(&self.path)
            .ok()?
            .trim()
            .parse()
            .ok()
    }

    /// From now on the settings count.
    pub fn forget(&self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_limit_counts_until_it_is_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let note = LimitNote::in_directory(dir.path());
        assert_eq!(note.read(), None);
        note.write(7 << 30).unwrap();
        note.write(1 << 30).unwrap();
        assert_eq!(note.read(), Some(1 << 30));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        note.forget();
        assert_eq!(note.read(), None);
        let nowhere = LimitNote::in_directory(&dir.path().join("nowhere"));
        assert!(nowhere.write(1).is_err());
    }
}
