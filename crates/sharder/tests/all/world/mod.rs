//! A simulated service in virtual time. Used by the tests and by the example
//! `balance`; each of them uses a part of it.
#![allow(dead_code, unreachable_pub)]

pub mod cluster;
pub mod link;
pub mod load;
pub mod rng;
pub mod seeds;
pub mod server;
pub mod shift;
pub mod track;
