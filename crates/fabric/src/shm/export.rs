//! What a backend hands to the clients on its host.

use crate::target::Service;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use trefoil_layout::KeyHasher;
use trefoil_layout::control::ControlShape;
use trefoil_layout::hello::Granted;
use trefoil_layout::limits::LAYOUT_VERSION;
use trefoil_layout::ring::Geometry;
use trefoil_region::{MemoryObject, ObjectError};

/// One backend: its regions, read-only, and the service behind its messages.
pub struct Export {
    pub(super) backend: u32,
    hasher: KeyHasher,
    shape: ControlShape,
    regions: [Region; 3],
    pub(super) service: Arc<dyn Service>,
}

struct Region {
    descriptor: OwnedFd,
    len: u64,
}

impl Region {
    fn new(object: &MemoryObject) -> Result<Self, ObjectError> {
        Ok(Region {
            descriptor: object.reopen_read_only()?,
            len: object.len(),
        })
    }
}

impl Export {
    /// Exports backend number `backend` of a cell that hashes by `hasher`.
    /// `shape` is what its control region was initialised with.
    pub fn new(
        backend: u32,
        hasher: KeyHasher,
        shape: ControlShape,
        [control, index, data]: [&MemoryObject; 3],
        service: Arc<dyn Service>,
    ) -> Result<Self, ObjectError> {
        Ok(Export {
            backend,
            hasher,
            shape,
            regions: [
                Region::new(control)?,
                Region::new(index)?,
                Region::new(data)?,
            ],
            service,
        })
    }

    /// Control, index, data.
    pub(super) fn descriptors(&self) -> [BorrowedFd<'_>; 3] {
        self.regions.each_ref().map(|r| r.descriptor.as_fd())
    }

    pub(super) fn granted(&self, rings: Option<Geometry>) -> Granted {
        let [control_len, index_len, data_len] = self.regions.each_ref().map(|r| r.len);
        Granted {
            layout_version: LAYOUT_VERSION,
            hasher: self.hasher,
            partition_count: self.shape.partition_count as u16,
            backend: self.backend,
            incarnation: self.shape.incarnation,
            control_len,
            index_len,
            data_len,
            rings,
            marks_len: self.service.marks().map_or(0, |marks| marks.len as u32),
            place: None,
            topology: self.service.topology(),
        }
    }
}

impl std::fmt::Debug for Export {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Export")
            .field("backend", &self.backend)
            .field("shape", &self.shape)
            .finish_non_exhaustive()
    }
}
