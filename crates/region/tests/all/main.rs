//! The tests of `trefoil-region` from outside, as one program: a module for each subject.

mod foreign;
mod fork;
mod region;
