//! The tests of `trefoil-freshness` from outside, as one program: a module for each subject.

mod access;
mod encrypted;
mod hub;
mod model;
mod notify;
mod relay;
mod setup;
mod support;
mod visible;
