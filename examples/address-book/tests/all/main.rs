//! The tests of `address-book` from outside, as one program: a module for each subject.

mod followed;
mod forms;
mod support;
