//! Histories: what clients of a real cell did and were told, recorded while
//! things go wrong, and checked against the promise.
//!
//! ```text
//!  plan ──► round ─┬─ starts a cell, a gateway, and workers (processes)
//!                  ├─ faults: stops, kills, flushes, restarts, wrong clocks
//!                  └─ worker ─► log (a file each) ─► events ─► check ─► report
//! ```
//!
//! The promise, for each key, under one failure at a time in its cohort:
//!
//! | rule | what a history must not show |
//! |---|---|
//! | intact | a hit whose bytes are not exactly what one write wrote, or two values under one version |
//! | known | a hit on a write that nobody began |
//! | denied | a hit on a mutation that was reported as not done: a failed CAS, a refused SET |
//! | fresh | a hit older than a mutation acknowledged before the GET began |
//! | monotone | a hit older than a hit that ended before the GET began |
//! | fill | the same of a value that was filled in: it is as old as the miss that it was computed after |
//! | exact | a successful CAS that replaced something else than it expected |
//! | order | an acknowledged mutation below what was acknowledged or hit before it began |
//! | once | an increment that counted twice or not at all |
//! | kept | a miss on what was acknowledged, where nothing may leave ([`check::Promise::Kept`]) |
//!
//! Elsewhere misses are allowed; they are counted, by reason. With two backends of a
//! cohort away at a time, *intact*, *known* and *denied* hold, and nothing else is
//! promised ([`check::Promise::Weakened`]).
//!
//! **Older.** Every value names the write that wrote it ([`Mark`]). Write A is
//! older than write B
//!
//! * if both versions are known and A's is lower: versions are Trefoil's order
//!   of a key's mutations (native clients are told them, users of the gateway
//!   are not), and nothing was lost between them; or
//! * if A certainly ended before B began. A SET, ERASE or CAS takes effect
//!   between its call and its acknowledgement; one that was never acknowledged
//!   may take effect at any later time. A fill counts as having happened at the
//!   miss that its value was computed after, however late it is stored.
//!
//! Where there is one copy only, killing its backend is a *loss*: the order by
//! versions begins anew, the order by time does not.
//!
//! The check knows no order through a third write: it may overlook a violation,
//! and reports none that is none.
//!
//! All times are of one host's CLOCK_MONOTONIC, taken before the call and after
//! its return.

pub mod check;
mod damage;
mod event;
mod log;
pub mod record;
mod text;
mod value;

pub use damage::{Damage, DamageKind, damage};
pub use event::{Event, Kind, Mark, NEVER, Outcome};
pub use log::{LogReader, LogWriter};
pub use text::{TextError, parse_case, show_event};
pub use value::{MARKED_LEN_MIN, Marked, ValueMaker, marked};
