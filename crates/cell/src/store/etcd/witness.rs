//! What this host remembers of a backend's starts.
//!
//! etcd counts them. If it is restored from an old backup it counts fewer, and a backend
//! that has lost its memory could take itself for one that has nothing to forget. Its
//! directory is not restored with etcd.

use crate::store::file::{FileError, fail, replace};
use crate::store::{ConfigStoreError, DirectoryStore};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// `backend-N.begun` in the cell's directory.
#[derive(Debug)]
pub(super) struct Witness {
    path: PathBuf,
}

#[derive(Serialize, Deserialize)]
struct Begun {
    /// 16 hexadecimal digits.
    life: String,
    incarnation: u32,
}

impl Witness {
    pub(super) fn of(directory: &DirectoryStore, number: u32) -> Self {
        let path = directory
            .directory()
            .join(format!("backend-{number}.begun"));
        Witness { path }
    }

    /// How often the backend has begun in `life`, as far as is known here.
    pub(super) fn count(&self, life: u64) -> Result<u32, ConfigStoreError> {
        let bytes = match std::fs::read(&self.path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(0),
            Err(error) => return Err(fail("read", &self.path, error).into()),
        };
        let begun: Begun =
            serde_json::from_slice(&bytes).map_err(|error| ConfigStoreError::Corrupt {
                path: self.path.clone(),
                reason: error.to_string(),
            })?;
        let is_same = begun.life == format!("{life:016x}");
        Ok(if is_same { begun.incarnation } else { 0 })
    }

    pub(super) fn note(&self, life: u64, incarnation: u32) -> Result<(), FileError> {
        let begun = Begun {
            life: format!("{life:016x}"),
            incarnation,
        };
        let bytes = serde_json::to_vec(&begun).map_err(|e| fail("write", &self.path, e))?;
        replace(&self.path, &bytes)
    }
}
