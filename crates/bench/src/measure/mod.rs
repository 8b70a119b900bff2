//! Small experiments whose outcome decides something elsewhere in the
//! workspace. Each is a runnable example; the numbers they printed, and what was
//! decided from them, stand in `MEASUREMENTS.md` beside this crate's manifest.

mod timing;

pub use timing::{Timing, time_chained};
