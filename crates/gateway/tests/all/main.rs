//! The tests of `trefoil-gateway` from outside, as one program: a module for each subject.

mod accepting;
mod cell;
mod keyspaces;
mod noise;
mod pending;
mod pipelines;
mod redis;
mod room;
mod scripts;
mod serving;
mod statistics;
mod stretches;
mod support;
mod tls;
mod tools;
mod transactions;
mod turns;
