//! Receive buffers that connections share. The device takes them in the order in which they
//! were posted, whichever connection something comes by.

use crate::device::Device;
use crate::error::VerbsError;
use crate::raw::{RawRecvWr, RawSrq, RawSrqInitAttr};
use crate::region::Region;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

/// A shared receive queue.
#[derive(Debug)]
pub struct ReceiveQueue {
    raw: NonNull<RawSrq>,
    region: Arc<Region>,
    device: Device,
}

// SAFETY: the library locks by itself (rule 2).
unsafe impl Send for ReceiveQueue {}
// SAFETY: as above.
unsafe impl Sync for ReceiveQueue {}

impl ReceiveQueue {
    /// Room for so many buffers, which are parts of `region`.
    pub fn new(device: &Device, count: u32, region: Arc<Region>) -> Result<Self, VerbsError> {
        let most = device.limits().shared_receives;
        if u64::from(count) > most {
            return Err(VerbsError::TooMany {
                device: device.name().to_owned(),
                what: "buffers in a shared receive queue",
                most,
                wanted: count.into(),
            });
        }
        let mut attributes = RawSrqInitAttr {
            srq_context: std::ptr::null_mut(),
            max_wr: count,
            max_sge: 1,
            srq_limit: 0,
        };
        // SAFETY: the domain lives, and the attributes are whole.
        let raw = unsafe { (device.library().create_srq)(device.domain(), &raw mut attributes) };
        let raw = NonNull::new(raw).ok_or_else(|| device.failed("make a shared receive queue"))?;
        Ok(ReceiveQueue {
            raw,
            region,
            device: device.clone(),
        })
    }

    /// Its memory.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Puts a buffer behind the others. Its completion has this number.
    #[inline]
    pub fn post(&self, id: u64, buffer: Range<u64>) -> Result<(), VerbsError> {
        let mut part = self.region.part(buffer);
        let mut request = RawRecvWr {
            wr_id: id,
            next: std::ptr::null_mut(),
            sg_list: &raw mut part,
            num_sge: 1,
        };
        let mut bad = std::ptr::null_mut();
        // SAFETY: the queue lives; the request names registered memory, which lives as long as
        // the queue, and is read before the call returns.
        let code = unsafe {
            let post = (*self.raw.as_ref().context).ops.post_srq_recv;
            post(self.raw.as_ptr(), &raw mut request, &raw mut bad)
        };
        self.device.done("take a shared receive buffer", code)
    }

    pub(crate) fn raw(&self) -> *mut RawSrq {
        self.raw.as_ptr()
    }
}

impl Drop for ReceiveQueue {
    fn drop(&mut self) {
        // SAFETY: it was made once, and connections that use it held this.
        unsafe { (self.device.library().destroy_srq)(self.raw.as_ptr()) };
    }
}
