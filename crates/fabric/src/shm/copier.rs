//! Reading entries of a backend's memory for one who copies much of it: another backend. Its
//! data region alone is mapped, without rings, index or lease.
//!
//! Mapped, so that no entry costs a system call. What is mapped counts as resident memory of
//! this process; the mapping says that it is not its own ([`trefoil_region::maps_foreign`]).

use super::connect::{ConnectError, ConnectOptions, greet};
use std::path::Path;
use trefoil_layout::{Pointer, TopologyId};
use trefoil_region::{Mapping, WordBuffer};

/// The data region of one backend of this host.
#[derive(Debug)]
pub struct Copier {
    data: Mapping,
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
            data: Mapping::foreign_reader(data, granted.data_len)?,
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

    /// Brings the first `len` bytes of what `pointer` leads to nearer.
    pub fn fetch(&self, pointer: Pointer, len: usize) {
        if let Some(words) = self.data.words().slice(pointer.offset(), pointer.len()) {
            words.prefetch(len);
        }
    }

    /// Copies what `pointer` leads to, where it is to be validated: it may be torn, or
    /// something else by now. `false` if it leads out of the region.
    pub fn read(&self, pointer: Pointer, into: &mut WordBuffer) -> bool {
        let words = self.data.words().slice(pointer.offset(), pointer.len());
        words.map(|words| into.fill_from(words)).is_some()
    }
}
