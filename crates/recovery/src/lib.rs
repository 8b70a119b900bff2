//! How a backend that has lost its memory, and comes back without its cell, learns what
//! it knew, without I/O, threads or a clock: the backend and the simulator drive it.
//!
//! ```text
//! for each shard   ask both others of its cohort for its epoch
//!                  raise it at both, and here, to one above all of them     (rule 6)
//!                  floor: the highest bound that either has of any key      (rule 9)
//!                  copy: from one the values, from the other what it holds at which
//!                        version, the same places of both; what both hold (rule 10)
//!                  vote                                                  (rules 7, 8)
//!                  repair: values that both hold and this one lacks, because they were
//!                          written while it was copying                     (rule 11)
//! ```
//!
//! Rules are those of docs/quorum.md. The shard answers nobody while it is copied, but
//! keeps what is written meanwhile ([`trefoil_store::Store::keep_writes`]). Everything may
//! be interrupted and goes on where it was, unless a peer has lost its memory, too.
//!
//! **One floor stands for all bounds.** Bounds of keys that both peers do not hold alike
//! are not copied one by one: while a walk goes on they move, from a tombstone to a value
//! behind it, and are missed. The highest bound that either peer had of any key when the old
//! epoch had ended is no lower than any of them. A writer whose clock is behind may
//! be refused once for it, by this replica alone, and goes on above.
//!
//! **Two of three have lost the shard.** Then no value has a quorum any more, and the
//! promise is void. Nothing is invented: the shard comes back empty, and nothing older
//! than what the third one knows is stored.
//!
//! | module | what it does |
//! |---|---|
//! | `page` | what a replica tells of a shard, a page at a time |
//! | `places` | ranges of places: what is asked for at once, and what a page leaves of it |
//! | `machine` | whom to ask for what next, and what to do with the answer |
//! | `copy`, `repair` | the two walks over a shard |
//! | `handover` | how a backend's number moves to another process, which loses nothing |
//! | `gathering` | the same of all backends at once, when a cell gets another number of them |
//! | `givers` | what the backends of before note for them, and whether their copies go together |
//! | [`scan`] | repair of a cohort that has lost nothing, in the background |
//! | `credible` | which floors and epochs are believed of a peer |
//! | `mutants` | single rules, turned off for the simulator |
//! | `examine` | comparing what all replicas of a shard hold, for `trefoil doctor` |

mod copy;
mod credible;
pub mod examine;
mod gathering;
mod givers;
mod handover;
mod machine;
pub mod mutants;
mod page;
mod places;
mod repair;
pub mod scan;

pub use gathering::{Asked, Gathering, Source, What, sources};
pub use givers::{Notes, Ranges, one_epoch};
pub use handover::{Handover, Moved, Question, Reply, ShardState, shard_states};
pub use machine::{Answer, Ask, Counts, Ended, Nonsense, Recovery, Standing};
pub use page::{Copied, Data, Item, PLACED_LEN, Page, Placed, standing};
pub use trefoil_store::Recency;
