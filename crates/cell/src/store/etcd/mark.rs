//! Which cell in etcd a directory belongs to.

use crate::etcd_address::EtcdAddress;
use crate::store::file::fail;
use crate::store::{ConfigStoreError, DirectoryStore};
use std::fs::OpenOptions;
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;

/// In the directory: the cell's path in etcd.
pub(super) const FILE: &str = "cell.etcd";

/// Refuses the directory of another cell, and marks one that belongs to nobody. The
/// members of an etcd may be named differently each time, and change; the path does not.
pub(super) fn claim(
    directory: &DirectoryStore,
    address: &EtcdAddress,
) -> Result<(), ConfigStoreError> {
    let path = directory.directory().join(FILE);
    let ours = address.path();
    match std::fs::read_to_string(&path) {
        Ok(text) if text.trim_end() == ours => return Ok(()),
        // Somebody is about to write it.
        Ok(text) if text.is_empty() => return Ok(()),
        Ok(text) => {
            return Err(ConfigStoreError::OtherCell {
                directory: directory.directory().to_owned(),
                theirs: text.trim_end().chars().take(256).collect(),
                ours: ours.to_owned(),
                file: FILE,
            });
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(fail("read", &path, error).into()),
    }
    let mut options = OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(&path);
    match file.and_then(|mut file| file.write_all(format!("{ours}\n").as_bytes())) {
        // Another process of this cell, most likely; else the next start tells.
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        written => Ok(written.map_err(|error| fail("write", &path, error))?),
    }
}
