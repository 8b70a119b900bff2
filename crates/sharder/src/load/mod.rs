//! What is believed of the load of every slice, from reports that are late,
//! missing, repeated, or about slices that have been cut since.

mod estimate;
mod table;

pub(crate) use estimate::Estimate;
pub(crate) use table::{Heard, LoadTable};
