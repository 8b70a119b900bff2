//! The tests of `trefoil-tls` from outside, as one program: a module for each subject.

mod watched;
