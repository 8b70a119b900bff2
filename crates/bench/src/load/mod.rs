//! Load: what is asked, how fast, and what came of it.

mod arrivals;
mod error;
mod keys;
mod limited;
mod permutation;
mod pin;
mod preload;
mod recorder;
mod runner;
#[cfg(test)]
mod runner_tests;
mod source;
mod summary;
mod timeline;
mod values;

pub use arrivals::Arrivals;
pub use error::LoadError;
pub use keys::{KeyChooser, KeyCodec, Popularity};
pub use limited::Limited;
pub use permutation::{Permutation, mix64};
pub use pin::pin_current_thread;
pub use preload::preload;
pub use recorder::{Kind, RunResult};
pub use runner::{Bound, RunOptions, RunShared, run, run_clients};
pub use source::{
    Operation, Request, RequestSource, Share, SyntheticOptions, SyntheticSource, ValueLen,
};
pub use summary::{Latency, Summary};
pub use timeline::{TIMELINE_SLOT, Timeline, TimelineSlot};
pub use values::{AckTable, ValueWriter, Verdict, verify};
