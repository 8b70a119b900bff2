//! The heap of a process that serves without a backend's memory bound: what a storm of
//! uploads has left in it goes back to the system.

use std::io;
use std::time::Duration;

/// Between two looks for pages that hold nothing any more.
pub(crate) const TRIM_PERIOD: Duration = Duration::from_secs(5);

/// Does for this process what a backend does for its own: long blocks go back when they
/// are freed, threads share heaps, and free pages of those are returned now and then, by
/// a thread that ends with the process. To be called before there are other threads.
pub fn keep_heap_small() -> io::Result<()> {
    trefoil_region::return_long_blocks();
    trefoil_region::share_heaps();
    let thread = std::thread::Builder::new().name("trefoil-heap".to_owned());
    thread.spawn(|| {
        loop {
            std::thread::sleep(TRIM_PERIOD);
            trefoil_region::return_free_blocks();
        }
    })?;
    Ok(())
}
