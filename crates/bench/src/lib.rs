//! Load generation, traces, real peers and plots: what turns a claim about
//! Trefoil into a figure with a command beside it.

pub mod churn;
pub mod compare;
pub mod doctor;
pub mod floor;
pub mod gateway;
pub mod hit_ratio;
pub mod hosts;
#[cfg(feature = "linked")]
pub mod linked;
pub mod load;
pub mod look_aside;
pub mod measure;
pub mod median;
pub mod memory;
pub mod network;
pub mod ordered;
pub mod peer;
pub mod report;
pub mod scenario;
pub mod server;
pub mod size_shift;
pub mod suite;
pub mod target;
pub mod workload;

pub use trefoil_store::PolicyKind;
