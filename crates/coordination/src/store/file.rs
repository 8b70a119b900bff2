//! The embedded store's file: replaced as a whole, so that a crash leaves the
//! old one or the new one.

use rustix::fs::{FlockOperation, flock};
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// A file that one process at a time may write.
#[derive(Debug)]
pub(crate) struct Document {
    path: PathBuf,
    /// Held as long as the document is.
    lock: File,
}

impl Drop for Document {
    fn drop(&mut self) {
        // Closing alone would leave it to children that were forked just now and
        // have not closed what they inherited. If it fails, nothing is held.
        let _ = flock(&self.lock, FlockOperation::Unlock);
    }
}

impl Document {
    /// Takes the file for this process; its content if there is any.
    pub(crate) fn open(path: &Path) -> Result<(Self, Option<Vec<u8>>), String> {
        let lock_path = beside(path, "lock");
        let lock = File::create(&lock_path)
            .map_err(|error| format!("cannot create {}: {error}", lock_path.display()))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|error| {
            if error == rustix::io::Errno::WOULDBLOCK {
                "another process has it open: several assigners need etcd".to_owned()
            } else {
                format!("cannot lock {}: {error}", lock_path.display())
            }
        })?;
        let content = match fs::read(path) {
            Ok(content) => Some(content),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(format!("cannot read {}: {error}", path.display())),
        };
        let document = Document {
            path: path.to_owned(),
            lock,
        };
        Ok((document, content))
    }

    /// Replaces the content; it is on the disk when this returns.
    pub(crate) fn write(&self, content: &[u8]) -> Result<(), String> {
        self.replace(content)
            .map_err(|error| format!("cannot write {}: {error}", self.path.display()))
    }

    fn replace(&self, content: &[u8]) -> io::Result<()> {
        let temporary = beside(&self.path, "new");
        let mut file = File::create(&temporary)?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(&temporary, &self.path)?;
        let folder = match self.path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        File::open(folder)?.sync_all()
    }
}

/// `path` with another ending appended.
fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(ending);
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_at_a_time_and_never_half_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        let (document, content) = Document::open(&path).unwrap();
        assert_eq!(content, None);
        document.write(b"one").unwrap();
        document.write(b"two").unwrap();
        let refused = Document::open(&path).unwrap_err();
        assert!(refused.contains("another process"), "{refused}");
        drop(document);
        assert_eq!(Document::open(&path).unwrap().1, Some(b"two".to_vec()));
        let nowhere = Document::open(&folder.path().join("no/where")).unwrap_err();
        assert!(nowhere.contains("cannot create"), "{nowhere}");
    }
}
