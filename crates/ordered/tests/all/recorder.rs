//! A service that writes down what it executes, for the suite of all carriers.

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use trefoil_ordered::{Answer, DurableService, Request, Service};

/// Answers with the place of a request in the order.
pub(crate) struct Recorder {
    pub(crate) log: Arc<Mutex<Vec<Vec<u8>>>>,
    /// While it is set, nothing is executed.
    pub(crate) pause: Arc<AtomicBool>,
    pub(crate) persistent: u64,
}

impl Service for Recorder {
    fn execute(&mut self, request: Request<'_>, answer: &mut Answer) {
        while self.pause.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_micros(200));
        }
        let mut log = self.log.lock().expect("no panic");
        let place = log.len() as u64;
        answer.put(&place.to_le_bytes()).expect("eight bytes");
        log.push(request.payload.to_vec());
    }
}

/// Its state is the test's, which outlives it.
impl DurableService for Recorder {
    type Error = Infallible;

    fn persistent_position(&self) -> u64 {
        self.persistent
    }

    fn checkpoint(&mut self, position: u64) -> Result<(), Infallible> {
        self.persistent = position;
        Ok(())
    }
}
