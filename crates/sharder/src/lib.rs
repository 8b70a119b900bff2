//! Who serves which keys: the brain of the linked store.
//!
//! Keys are hashed to 64-bit points; *slices* of that space are *assigned* to
//! servers under an ever-growing version. The balancer keeps every server near
//! its fair share of CPU and of memory at once, moving little; the coordination
//! store sees to it that there is one map at a time, and that older ones are
//! refused everywhere.
//!
//! ```text
//!                reports (per slice: CPU, bytes; hot keys)
//!   linklets ───────────────────────────────────────────┐
//!      ▲                                                 ▼
//!      │ assignment, diffs          ┌──────────────── Assigner ────────────────┐
//!      │                            │  Balancer::step: nine phases              │
//!   the store ◄─────── campaign ────┤   1 dead        slices of dead servers    │
//!  (compare-and-swap,   load        │   2 drain       servers about to stop     │
//!   lease)              swap        │   3 unstored    what has no room there    │
//!      │                            │   4 restore     replicas that are missing │
//!      │                            │   5 redundancy  replicas of hot keys      │
//!      ▼                            │   6 merge       cold neighbours           │
//!   routers, linklets               │   7 moves       benefit per churn         │
//!   (KnownAssignment)               │   8 split       what is too big to move   │
//!                                   │   9 isolate     a hot key alone           │
//!                                   └───────────────────────────────────────────┘
//! ```
//!
//! No I/O, no clock, no randomness, no runtime: `now` is an argument, requests
//! to the store are values. The same inputs give the same map.
//!
//! | module | what it does |
//! |---|---|
//! | `key` | points and slices of the key space |
//! | `assignment`, `diff`, `known` | the map, what changed in it, the newest that one knows |
//! | `version` | how maps are ordered |
//! | `server`, `report` | who is there; what they say of their load |
//! | `load` | what is believed of every slice's load |
//! | `balance` | the phases, and what they propose |
//! | `config` | every threshold |
//! | `coordination` | the store of assignments: requests, and one inside the process |
//! | `mutants` | single rules, turned off for simulations |
//! | `assigner` | election, loading, balancing and publishing together |
//!
//! The shape of the algorithm is the weighted move of Slicer (Adya et al.,
//! OSDI 2016). Different on purpose: two metrics at once instead of one, with
//! exchanges where no single move helps; a budget in resident bytes beside the
//! one in key space; a second measure of cold servers so that newcomers fill
//! up; hot keys isolated and replicated by name; and a memory of who gave away
//! what, which makes A→B→A impossible within `no_return` instead of unlikely.
//!
//! That memory is the balancer's own. An assigner that is elected knows what it
//! has observed while it followed ([`Assigner::observe`]); one that has just
//! been started knows nothing, and leaves everything alone for `cooldown`.
//!
//! Look at it: `cargo run --release -p trefoil-sharder --example balance`.

mod assigner;
mod assignment;
mod balance;
mod config;
pub mod coordination;
mod diff;
mod key;
mod known;
mod load;
pub mod mutants;
mod ranges;
mod report;
mod server;
mod version;

pub use assigner::{Assigner, AssignerEvent, AssignerOptions};
pub use assignment::{AssignedSlice, Assignment, AssignmentError};
pub use balance::{
    Action, Balancer, Change, Churn, Metric, Note, Obstacles, Overloaded, Plan, Reason, ServerLoad,
    StepError,
};
pub use config::{BalanceConfig, ConfigError, Freeze};
pub use diff::{AssignmentDiff, DiffError};
pub use key::{KeyPoint, POINTS, Slice};
pub use known::{KnownAssignment, Learned};
pub use report::{
    BYTES_MAX, HotKey, Load, RATE_MAX, REPORT_HOT_KEYS_MAX, REPORT_SLICES_MAX, REPORT_UNSTORED_MAX,
    ReportError, ServerReport, SliceLoad, Unstored,
};
pub use server::{Capacity, Member, MemberState, ServerId};
pub use version::AssignmentVersion;
