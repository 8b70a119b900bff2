//! The cell behind the door.
//!
//! | module | what it does |
//! |---|---|
//! | `local` | the one backend of this process: no message, one copy of a value |
//! | `cell` | any cell, through the client library |
//! | `gates` | one event loop acts alone, while the others stand still |
//! | `patient` | any keyspace, for callers who may wait |
//! | `versions` | versions for writers that are no clients |

mod cell;
mod gates;
mod local;
mod patient;
mod versions;

pub use cell::{CellExecutor, CellKeyspace, CellOptions, CommitCounts, Committing, cell_keyspace};
pub use gates::Gates;
pub use local::LocalKeyspace;
pub use patient::Patient;
