//! The tests of `trefoil-cell` from outside, as one program: a module for each subject.

mod config_stores;
#[cfg(feature = "etcd")]
mod etcd_store;
