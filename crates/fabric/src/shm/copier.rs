//! Reading entries of a backend without mapping its memory: for a backend that copies much
//! of another's. What it mapped would count as its own memory wherever resident pages are
//! counted, in its own bound first of all.

use super::connect::{ConnectError, ConnectOptions, greet};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::path::Path;
use trefoil_layout::{Pointer, TopologyId};
use trefoil_region::WordBuffer;

/// The data region of one backend of this host, to be read by system calls.
#[derive(Debug)]
pub struct Copier {
    data: OwnedFd,
    topology: TopologyId,
    incarnation: u64,
}

impl Copier {
    /// Asks backend number `backend` of the process that listens at `path` for its memory.
    pub fn connect(
        path: &Path,
        backend: u32,
        options: &ConnectOptions,
    ) -> Result<Self, ConnectError> {
        let options = ConnectOptions {
            rings: false,
            ..options.clone()
        };
        let (_, granted, descriptors) = greet(path, backend, &options)?;
        // Control, index, data.
        let data = descriptors.into_iter().nth(2);
        let data = data.ok_or_else(|| ConnectError::Inconsistent {
            path: path.to_path_buf(),
            what: "a descriptor is missing",
        })?;
        Ok(Copier {
            data,
            topology: granted.topology,
            incarnation: granted.incarnation,
        })
    }

    /// Of the cell, when the backend was asked.
    pub fn topology(&self) -> TopologyId {
        self.topology
    }

    /// Which memory it is.
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Copies what `pointer` leads to, where it is to be validated: it may be torn, or
    /// something else by now. An error says that nothing stands there.
    pub fn read(&self, pointer: Pointer, into: &mut WordBuffer) -> Result<(), Errno> {
        into.prepare(pointer.len());
        let mut left = into.bytes_mut();
        let mut offset = pointer.offset();
        while !left.is_empty() {
            let read =
                rustix::io::retry_on_intr(|| rustix::io::pread(&self.data, &mut *left, offset))?;
            if read == 0 {
                return Err(Errno::NXIO);
            }
            left = &mut left[read..];
            offset += read as u64;
        }
        Ok(())
    }
}
