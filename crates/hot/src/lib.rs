//! Which keys are asked for most, by operations and by bytes: sketches in
//! bounded memory, fed with a sample of the operations.
//!
//! ```text
//!  every operation ─► Sampler::tick (a subtraction or two)
//!                        └─ one in many ─► HotKeys::record ─► top() ─► merge()
//! ```
//!
//! No clock, no thread, no lock: time is an argument, and who shares a sketch
//! locks it (only for sampled operations).
//!
//! | module | what it does |
//! |---|---|
//! | `sampler` | chooses the operations that are recorded, fewer as there are more |
//! | `sketch` | scores of the keys that matter, with decay |
//! | `keys` | the two sketches together, and what they report |

mod keys;
mod sampler;
mod sketch;

pub use keys::{HALF_LIFE_S, HotKey, HotKeys, KEY_KEPT_MAX, Order, merge};
pub use sampler::{Sample, Sampler};
