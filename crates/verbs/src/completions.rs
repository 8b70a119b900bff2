//! What a device has done.

use crate::device::Device;
use crate::error::VerbsError;
use crate::raw::{RawChannel, RawCq, RawWc, WC_FLUSHED, WC_RECV, WC_SUCCESS};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;

/// Completions taken at a time.
const BATCH: usize = 16;

/// How a request has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Done: of a send, the other side's device has it and has acknowledged it.
    Done,
    /// The connection was closed before.
    Flushed,
    /// It failed, and the connection with it: the library's number for why.
    Failed(u32),
}

/// A request that has ended.
#[derive(Clone, Copy, Debug)]
pub struct Completion {
    /// The number that it was posted with.
    pub id: u64,
    /// How.
    pub outcome: Outcome,
    /// Whether something was received. Known of what is done only.
    pub is_receive: bool,
    /// Bytes received.
    pub len: u32,
    /// Of which connection ([`crate::Connection::number`]).
    pub connection: u32,
}

/// A queue of completions, with a descriptor that can be read when there are some.
#[derive(Debug)]
pub struct Completions {
    raw: NonNull<RawCq>,
    channel: NonNull<RawChannel>,
    device: Device,
}

// SAFETY: the library locks by itself (rule 2).
unsafe impl Send for Completions {}
// SAFETY: as above.
unsafe impl Sync for Completions {}

impl Completions {
    /// Room for so many. Whoever posts requests sees to it that no more are there at a time.
    pub fn new(device: &Device, count: u32) -> Result<Self, VerbsError> {
        let most = device.limits().completions;
        if u64::from(count) > most {
            return Err(VerbsError::TooMany {
                device: device.name().to_owned(),
                what: "completions at a time",
                most,
                wanted: count.into(),
            });
        }
        let library = device.library();
        // SAFETY: the context is open.
        let channel = unsafe { (library.create_channel)(device.context()) };
        let channel =
            NonNull::new(channel).ok_or_else(|| device.failed("make a channel for completions"))?;
        let count = i32::try_from(count).unwrap_or(i32::MAX);
        // SAFETY: the context is open, and the channel is its.
        let raw = unsafe {
            (library.create_cq)(
                device.context(),
                count,
                std::ptr::null_mut(),
                channel.as_ptr(),
                0,
            )
        };
        let Some(raw) = NonNull::new(raw) else {
            let error = device.failed("make a queue of completions");
            // SAFETY: it was made above, and nothing uses it.
            unsafe { (library.destroy_channel)(channel.as_ptr()) };
            return Err(error);
        };
        let completions = Completions {
            raw,
            channel,
            device: device.clone(),
        };
        // SAFETY: the descriptor is the channel's, which lives.
        let code = unsafe { libc::fcntl(channel.as_ref().fd, libc::F_SETFL, libc::O_NONBLOCK) };
        match code {
            0 => Ok(completions),
            _ => Err(device.failed("look at completions without waiting")),
        }
    }

    /// Takes what is there, some at most. Whether there was anything.
    #[inline]
    pub fn poll(&self, mut each: impl FnMut(Completion)) -> Result<bool, VerbsError> {
        let mut taken = [const { MaybeUninit::<RawWc>::uninit() }; BATCH];
        // SAFETY: the queue lives, and there is room for so many.
        let count = unsafe {
            let poll = (*self.raw.as_ref().context).ops.poll_cq;
            poll(self.raw.as_ptr(), BATCH as i32, taken.as_mut_ptr().cast())
        };
        let Ok(count) = usize::try_from(count) else {
            return Err(self.device.failed("say what it has done"));
        };
        for one in &taken[..count.min(BATCH)] {
            // SAFETY: the first `count` are written.
            let one = unsafe { one.assume_init_ref() };
            let outcome = match one.status {
                WC_SUCCESS => Outcome::Done,
                WC_FLUSHED => Outcome::Flushed,
                why => Outcome::Failed(why),
            };
            each(Completion {
                id: one.wr_id,
                outcome,
                is_receive: one.opcode & WC_RECV != 0,
                len: one.byte_len,
                connection: one.qp_num,
            });
        }
        Ok(count > 0)
    }

    /// Has the descriptor told of the next completion; `solicited`: of the next one that the
    /// sender wants to be told of, or that is an error. What came before is not told: look
    /// once more between this and sleeping.
    pub fn arm(&self, solicited: bool) -> Result<(), VerbsError> {
        // SAFETY: the queue lives.
        let code = unsafe {
            let arm = (*self.raw.as_ref().context).ops.req_notify_cq;
            arm(self.raw.as_ptr(), solicited.into())
        };
        self.device.done("tell of completions", code)
    }

    /// Takes what the descriptor has to tell.
    pub fn silence(&self) {
        let (mut of, mut context) = (std::ptr::null_mut(), std::ptr::null_mut());
        let library = self.device.library();
        // SAFETY: the channel lives, does not block, and has events of this queue alone.
        unsafe {
            while (library.get_cq_event)(self.channel.as_ptr(), &raw mut of, &raw mut context) == 0
            {
                (library.ack_cq_events)(of, 1);
            }
        }
    }

    pub(crate) fn raw(&self) -> *mut RawCq {
        self.raw.as_ptr()
    }
}

impl AsFd for Completions {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel's descriptor is open as long as this is.
        unsafe { BorrowedFd::borrow_raw(self.channel.as_ref().fd) }
    }
}

impl Drop for Completions {
    fn drop(&mut self) {
        let library = self.device.library();
        // SAFETY: both were made once, connections that use them held this, and the queue's
        // events are acknowledged.
        unsafe {
            (library.destroy_cq)(self.raw.as_ptr());
            (library.destroy_channel)(self.channel.as_ptr());
        }
    }
}
