//! The tests of `trefoil-cell` from outside, as one program: a module for each subject.

mod config_stores;
mod control;
#[cfg(feature = "etcd")]
mod control_etcd;
mod control_sim;
#[cfg(feature = "etcd")]
mod etcd_store;
