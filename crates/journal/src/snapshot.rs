//! A service's state in a file, together with the position up to which it was executed:
//! both are replaced as one, by a new file that takes the old one's name.
//!
//! | word | field | why |
//! |---|---|---|
//! | 0 | magic | |
//! | 1 | queue | whose state it is |
//! | 2 | position | the last one executed |
//! | 3 | length | bytes of the state |
//! | 4 | checksum | of all the rest |
//! | 5 | state | |

use crate::disk::{set_word, word};
use crate::file::{beside, flush_folder};
use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use twox_hash::XxHash3_64;

/// "TFQSTAT1", little endian.
pub const MAGIC: u64 = u64::from_le_bytes(*b"TFQSTAT1");
const HEAD_LEN: usize = 5 * 8;
const WORD_CHECKSUM: usize = 4;
/// Who may read a state: its owner.
const MODE: u32 = 0o600;

/// Why a state cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The system refused.
    #[error("cannot {doing} the state {path}: {source}")]
    Io {
        /// The attempt.
        doing: &'static str,
        /// Which file.
        path: PathBuf,
        /// The system's words.
        source: io::Error,
    },
    /// No state, or one that was damaged.
    #[error(
        "{0} is no whole state of a queue; put it back together with the queue's journal from \
         one and the same copy"
    )]
    NotWhole(PathBuf),
    /// Another queue's.
    #[error("the state {path} is that of queue {found:016x}, not of {expected:016x}")]
    OtherQueue {
        /// Which file.
        path: PathBuf,
        /// What it says.
        found: u64,
        /// What was asked for.
        expected: u64,
    },
}

fn sum(head: &[u8], state: &[u8]) -> u64 {
    let seed = XxHash3_64::oneshot(&head[..WORD_CHECKSUM * 8]);
    XxHash3_64::oneshot_with_seed(seed, state)
}

/// The state at this place and its position; `None` if there is none yet. What it gives is
/// persistent, also after a [`store`] that was interrupted before its name was.
pub fn load(path: &Path, queue: u64) -> Result<Option<(u64, Vec<u8>)>, SnapshotError> {
    let mut bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => {
            let path = path.to_owned();
            let doing = "read";
            return Err(SnapshotError::Io {
                doing,
                path,
                source,
            });
        }
    };
    // Whoever goes by this state gives the journal's room free.
    flush_folder(path).map_err(|source| SnapshotError::Io {
        doing: "flush the folder of",
        path: path.to_owned(),
        source,
    })?;
    let not_whole = || SnapshotError::NotWhole(path.to_owned());
    if bytes.len() < HEAD_LEN || word(&bytes, 0) != MAGIC {
        return Err(not_whole());
    }
    let (head, state) = bytes.split_at(HEAD_LEN);
    if word(head, 3) != state.len() as u64 || word(head, WORD_CHECKSUM) != sum(head, state) {
        return Err(not_whole());
    }
    let (found, position) = (word(head, 1), word(head, 2));
    if found != queue {
        return Err(SnapshotError::OtherQueue {
            path: path.to_owned(),
            found,
            expected: queue,
        });
    }
    bytes.drain(..HEAD_LEN);
    Ok(Some((position, bytes)))
}

/// Replaces the state at this place. After an error, the old one stands there, or the new
/// one, and no part of another takes room beside it.
pub fn store(path: &Path, queue: u64, position: u64, state: &[u8]) -> Result<(), SnapshotError> {
    let fresh = beside(path, "new");
    let replaced = replace(path, &fresh, (queue, position), state);
    if replaced.is_err() {
        // A full disk has room again with that.
        let _ = std::fs::remove_file(&fresh);
    }
    replaced?;
    flush_folder(path).map_err(|source| SnapshotError::Io {
        doing: "flush the folder of",
        path: path.to_owned(),
        source,
    })
}

/// Writes the state to another file, which takes its name.
fn replace(
    path: &Path,
    fresh: &Path,
    (queue, position): (u64, u64),
    state: &[u8],
) -> Result<(), SnapshotError> {
    let failed = |doing| {
        move |source| SnapshotError::Io {
            doing,
            path: path.to_owned(),
            source,
        }
    };
    let mut head = [0; HEAD_LEN];
    set_word(&mut head, 0, MAGIC);
    set_word(&mut head, 1, queue);
    set_word(&mut head, 2, position);
    set_word(&mut head, 3, state.len() as u64);
    let checksum = sum(&head, state);
    set_word(&mut head, WORD_CHECKSUM, checksum);
    let mut options = File::options();
    options.write(true).create(true).truncate(true).mode(MODE);
    let mut file = options.open(fresh).map_err(failed("make"))?;
    // What an interrupted attempt has left keeps its mode otherwise.
    file.set_permissions(Permissions::from_mode(MODE))
        .map_err(failed("make"))?;
    file.write_all(&head)
        .and_then(|()| file.write_all(state))
        .map_err(failed("write"))?;
    file.sync_all().map_err(failed("flush"))?;
    std::fs::rename(fresh, path).map_err(failed("replace"))
}
