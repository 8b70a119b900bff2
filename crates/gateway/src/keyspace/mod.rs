//! The cell behind the door.
//!
//! | module | what it does |
//! |---|---|
//! | `local` | the one backend of this process: no message, one copy of a value |
//! | `cell` | any cell, through the client library |
//! | `versions` | versions for writers that are no clients |

mod cell;
mod local;
mod versions;

pub use cell::{CellKeyspace, CellOptions};
pub use local::LocalKeyspace;
