//! The tests of `trefoil-coordination` from outside, as one program: a module for each subject.

mod etcd_access;
mod flags;
mod local;
mod service;
mod support;
