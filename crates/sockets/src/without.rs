//! Systems without io_uring.

use super::{BATCH_MAX, Message, Sent};
use std::convert::Infallible;
use std::io;

/// There is none on this system.
#[derive(Debug)]
pub struct Batch(Infallible);

impl Batch {
    /// Always an error.
    pub fn new() -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Cannot be called.
    pub fn send<'a>(&mut self, _: impl Iterator<Item = Option<Message<'a>>>) -> [Sent; BATCH_MAX] {
        match self.0 {}
    }

    /// Cannot be called.
    pub fn is_broken(&self) -> bool {
        match self.0 {}
    }
}
