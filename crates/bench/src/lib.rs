//! Load generation, traces, real peers and plots: what turns a claim about
//! Trefoil into a figure with a command beside it.

pub mod floor;
pub mod load;
pub mod measure;
pub mod peer;
pub mod target;
pub mod workload;
