//! Simulation of the whole client: its own driver (a slab of operations, links,
//! deadlines, retries, reconnects) over a simulated host and ports, against
//! backends around production's store.
//!
//! ```text
//!  world     time: who acts next, what goes wrong, what must hold at the end
//!    client    whoever calls: an event loop, or a thread that waits
//!      Driver    the client library's own
//!        host      clocks, connections, configurations
//!        port      mapped memory and rings;  calls: calls one by one;
//!                  engine: scans, torn between any two words
//!    process   a backend: store, lease, configuration; killed, stopped, restarted
//!  net       what is on its way, and when it is there
//!  book      the promise, checked whenever an operation ends
//!  profile   which troubles, how often: drawn from the seed
//! ```
//!
//! Time is that of one host: it goes on while a client looks at a clock, and so do
//! the backends. Wall clocks differ. What is checked: [`crate::Property`].

mod book;
mod calls;
mod client;
mod engine;
mod host;
mod net;
mod port;
mod process;
mod profile;
mod stats;
mod world;

pub use stats::{Count, WholeStats};

use crate::many::{Batch, Report};
use crate::rng::Rng;
use crate::violation::{Form, Violation};
use net::Log;
use profile::Profile;
use std::rc::Rc;

/// Seeds are mixed, so that the same number is another run in each form.
const SALT: u64 = 0x7769_7468_6472_7672;

/// Runs one seed; `trace` receives a line for every event, at the end.
pub fn run_seed(seed: u64, trace: &mut dyn FnMut(&str)) -> Result<WholeStats, Violation> {
    let log = Rc::new(Log::new(true));
    let result = attempt(seed, &log);
    let history = log.take();
    for (_, line) in &history {
        trace(line);
    }
    result.map_err(|mut violation| {
        violation.history = crate::many::relevant(&history);
        violation
    })
}

/// Runs one seed without a trace: fast.
pub fn run(seed: u64) -> Result<WholeStats, Violation> {
    attempt(seed, &Rc::new(Log::new(false)))
}

fn attempt(seed: u64, log: &Rc<Log>) -> Result<WholeStats, Violation> {
    let rng = Rng::new(seed ^ SALT);
    let profile = Profile::draw(&rng);
    let log = Rc::clone(log);
    crate::many::guard(seed, Form::Whole, || world::run(profile, rng, log))
}

/// Runs `count` seeds from `first` on `threads` threads. `progress` is called
/// on the calling thread with the number of seeds done so far.
pub fn run_many(
    first: u64,
    count: u64,
    threads: usize,
    progress: &dyn Fn(u64),
) -> Report<WholeStats> {
    run_many_with(first, count, threads, progress, &|| {})
}

/// As [`run_many`]; every thread calls `prepare` first.
pub(crate) fn run_many_with(
    first: u64,
    count: u64,
    threads: usize,
    progress: &dyn Fn(u64),
    prepare: &(dyn Fn() + Sync),
) -> Report<WholeStats> {
    Batch::of(first, count, threads)
        .run(progress, prepare, &run, &|seed| run_seed(seed, &mut |_| {}))
}
