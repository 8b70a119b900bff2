//! The tests of `trefoil-sharder` from outside, as one program: a module for each subject.

mod assigners;
mod balance;
mod chaos;
mod scenarios;
mod world;
