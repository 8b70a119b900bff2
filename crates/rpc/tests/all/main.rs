//! The tests of `trefoil-rpc` from outside, as one program: a module for each subject.

mod conversions;
