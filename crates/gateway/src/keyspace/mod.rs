//! The cell behind the door.
//!
//! | module | what it does |
//! |---|---|
//! | `local` | the one backend of this process: no message, one copy of a value |
//! | `cell` | any cell, through the client library |
//! | `patient` | any keyspace, for callers who may wait |
//! | `versions` | versions for writers that are no clients |

mod cell;
mod local;
mod patient;
mod versions;

pub use cell::{CellExecutor, CellKeyspace, CellOptions, cell_keyspace};
pub use local::LocalKeyspace;
pub use patient::Patient;
