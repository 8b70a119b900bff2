//! Which copies of a database's rows may be stored, kept and served: the part
//! without I/O, clocks or values. `trefoil-freshness` follows the database and
//! tells a [`event::Sink`]; whoever keeps values (a linklet, a cache) asks a
//! [`table::FreshTable`] what may be done with them.
//!
//! | module | what it does |
//! |---|---|
//! | `position` | log positions, and the histories that they belong to |
//! | `event` | what a relay tells |
//! | `table` | what may be stored, kept, served |

pub mod event;
pub mod position;
pub mod table;
