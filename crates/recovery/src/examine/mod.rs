//! Comparing what the replicas of a shard hold, without changing anything.
//!
//! ```text
//! walk     a page of each replica, from the same place on; what all have told is compared
//! pause    as long as a mutation may take to reach its last replica
//! again    the places of the keys that were not clean, once more
//! names    of the keys that are examples, if no values were read
//! ```
//!
//! **A key that changes is not called dirty.** Replicas are read one page after another,
//! and a mutation reaches them one after another. So a key that is not clean is looked at
//! again after a pause, and judged only if each replica holds what it held before. Then
//! there was a moment, and a whole pause, at which they differed. What changes all the
//! time is *unsettled*, which is no finding.
//!
//! Nothing here knows of time, sockets or threads: whoever drives it says what time it
//! is, asks what is to be asked, and decides how fast. It lies beside recovery because it
//! reads the same pages, and because simulators and tests over real stores can say with
//! it whether a cell is clean.
//!
//! | module | what it does |
//! |---|---|
//! | `verdict` | the decision table: copies of a key to what is wrong with it |
//! | `seen` | items of a page as copies, their checksums verified |
//! | `walk` | which places were told by whom |
//! | `plan` | what goes in, and what comes out |
//! | `machine` | what to ask next, second looks, counts and examples |

mod machine;
mod plan;
#[cfg(test)]
mod scenarios;
mod seen;
mod verdict;
mod walk;

pub use machine::Examination;
pub use plan::{Example, Keys, Moment, Plan, Question, Reply};
pub use trefoil_store::PLACES;
pub use verdict::{Copy, Odd, Verdict, judge};
