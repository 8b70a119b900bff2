//! What each slice costs: CPU time, requests and resident bytes, and which
//! keys stand out.
//!
//! ```text
//!   operation ─► Sampler (per thread) ── one in 1 to 64 ──► Probe: thread CPU clock
//!                                                            └─► Meter of the slice, Spikes
//!   every second: Meters::report ─► ServerReport
//! ```
//!
//! A quiet server measures every operation, a busy one a few thousand a
//! second; what was measured is scaled up by what it stands for.

mod meter;
mod spikes;

pub(crate) use meter::{Cost, Meters};
