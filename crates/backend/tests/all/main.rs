//! The tests of `trefoil-backend` from outside, as one program: a module for each subject.

mod layouts;
mod reloading;
mod repairing;
mod restarting;
mod serving;
mod starting;
mod support;
mod tls;
mod topology;
