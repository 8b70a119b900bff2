//! Loops that look for room or for answers without sleeping: a server that has panicked is
//! not looked for for ever.

use crate::LoadError;
use trefoil_ordered::{Committed, Queue, Refused};

/// Looks in vain between two looks at a socket, which cost a system call.
const LOOKS: u32 = 1 << 16;

/// Counts looks in vain.
#[derive(Debug, Default)]
pub(crate) struct Watch(u32);

impl Watch {
    /// After a look in vain. An error: the server is gone.
    #[inline]
    pub(crate) fn in_vain(&mut self, queue: &Queue) -> Result<(), LoadError> {
        std::hint::spin_loop();
        self.0 = self.0.wrapping_add(1);
        if self.0.is_multiple_of(LOOKS) && queue.is_server_gone() {
            return Err(LoadError::Queue("its server is gone".into()));
        }
        Ok(())
    }

    /// Puts a request into its place, looking for room without sleeping.
    #[inline]
    pub(crate) fn submit(
        &mut self,
        queue: &mut Queue,
        request: &[u8],
        nilext: bool,
    ) -> Result<Committed, LoadError> {
        loop {
            match queue.submit(request, nilext) {
                Ok(committed) => return Ok(committed),
                Err(Refused::Full | Refused::Skipped) => self.in_vain(queue)?,
                Err(refused) => return Err(LoadError::Queue(refused.to_string())),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trefoil_ordered::{Options, Worker};

    #[test]
    fn a_dead_server_has_no_room() {
        let mut worker = Worker::new(1, Options::default()).expect("memory");
        let mut queue = Queue::join(worker.admit().expect("memory")).expect("a queue");
        drop(worker);
        let mut watch = Watch::default();
        let error = loop {
            if let Err(error) = watch.submit(&mut queue, b"request", true) {
                break error;
            }
        };
        assert!(matches!(error, LoadError::Queue(_)), "{error}");
    }
}
