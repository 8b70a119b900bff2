//! Repair in the background: finds the keys of a shard on which its three replicas
//! differ, and makes them agree again. Without I/O, threads or a clock, as recovery.
//!
//! ```text
//! digests of ranges of places, from all three ── equal ──► nothing more
//!        │ differ: of sixteen parts of the range, and again
//!        ▼
//! what is held there, at which version ── differs ──► a suspect: its first look
//!        ▼ a pause
//! the second look: what each holds, its bound, tombstone and epoch
//!        │ the same as before                        │ something else: it is in use
//!        ▼                                           └► not this time
//! a verdict, and what it says is done
//! ```
//!
//! Readers that have met a key on which replicas differ name it ([`Scan::name`]); it
//! gets two looks like any other.
//!
//! One replica of the cohort drives the scan of a shard, its first. All three are needed,
//! itself among them, and are asked alike; where one does not answer, or does not vote,
//! the scan ends and is begun again later from the same place.
//!
//! | module | what it does |
//! |---|---|
//! | `question` | what a replica is asked, and what it answers |
//! | `answer` | how it finds the answer in its store |
//! | `verdict` | what three states of a key mean, and what is to be done |
//! | `job` | doing it |
//! | `machine` | what to ask next |

mod answer;
mod job;
mod machine;
mod question;
mod verdict;

pub use answer::{RANGE_COUNT_MAX, answer};
pub use machine::{Counts, Done, Ended, HalfDone, Limits, Scan, just_above};
pub use question::{Order, Question, Reply};
pub use verdict::{Verdict, decide};
