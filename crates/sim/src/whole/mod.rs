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
//!    moves, resize, replace   it moves, the cell gets another size, a spare takes its place
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
mod moves;
mod net;
mod port;
mod process;
mod profile;
mod recovery;
mod replace;
mod resize;
mod stats;
mod world;

pub use profile::Scene;
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
    tell(seed, None, trace)
}

/// Runs one seed without a trace: fast.
pub fn run(seed: u64) -> Result<WholeStats, Violation> {
    attempt(seed, None, &Rc::new(Log::new(false)))
}

/// As [`run`], in a scene if one is named.
#[cfg(feature = "mutants")]
pub(crate) fn run_in(scene: Option<Scene>, seed: u64) -> Result<WholeStats, Violation> {
    attempt(seed, scene, &Rc::new(Log::new(false)))
}

/// The violation of a run, with its history.
#[cfg(feature = "mutants")]
pub(crate) fn told(scene: Option<Scene>, seed: u64) -> Option<Violation> {
    tell(seed, scene, &mut |_| {}).err()
}

/// As [`run_seed`], in one scene.
pub fn tell_scene(
    scene: Scene,
    seed: u64,
    trace: &mut dyn FnMut(&str),
) -> Result<WholeStats, Violation> {
    tell(seed, Some(scene), trace)
}

fn tell(
    seed: u64,
    scene: Option<Scene>,
    trace: &mut dyn FnMut(&str),
) -> Result<WholeStats, Violation> {
    let log = Rc::new(Log::new(true));
    let result = attempt(seed, scene, &log);
    let history = log.take();
    for (_, line) in &history {
        trace(line);
    }
    result.map_err(|mut violation| {
        violation.history = crate::many::relevant(&history);
        violation
    })
}

fn attempt(seed: u64, scene: Option<Scene>, log: &Rc<Log>) -> Result<WholeStats, Violation> {
    let rng = Rng::new(seed ^ SALT);
    let mut profile = Profile::draw(&rng);
    if let Some(scene) = scene {
        scene.apply(&mut profile);
    }
    let log = Rc::clone(log);
    crate::many::guard(seed, Form::Whole(scene), || world::run(profile, rng, log))
}

/// Runs `count` seeds from `first` on `threads` threads. `progress` is called
/// on the calling thread with the number of seeds done so far.
pub fn run_many(
    first: u64,
    count: u64,
    threads: usize,
    progress: &dyn Fn(u64),
) -> Report<WholeStats> {
    let batch = Batch::of(first, count, threads);
    run_batch(&batch, None, progress, &|| {})
}

/// As [`run_many`], in one scene.
pub fn run_scene(scene: Scene, first: u64, count: u64, threads: usize) -> Report<WholeStats> {
    let batch = Batch::of(first, count, threads);
    run_batch(&batch, Some(scene), &|_| {}, &|| {})
}

/// Every thread calls `prepare` first.
pub(crate) fn run_batch(
    batch: &Batch,
    scene: Option<Scene>,
    progress: &dyn Fn(u64),
    prepare: &(dyn Fn() + Sync),
) -> Report<WholeStats> {
    let run = |seed| attempt(seed, scene, &Rc::new(Log::new(false)));
    batch.run(progress, prepare, &run, &|seed| {
        tell(seed, scene, &mut |_| {})
    })
}
