//! The tests of `trefoil-bench` from outside, as one program: a module for each subject.

mod peers;
