//! The tests of `trefoil-gateway` from outside, as one program: a module for each subject.

mod cell;
mod keyspaces;
mod pending;
mod room;
mod scripts;
mod serving;
mod statistics;
mod support;
mod tls;
mod transactions;
