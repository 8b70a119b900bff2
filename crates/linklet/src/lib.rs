//! wip

mod flight;
mod fresh;
mod load;
mod marshal;
mod table;

pub use marshal::{Marshal, MarshalError, PlainMarshal, ProstMarshal};
