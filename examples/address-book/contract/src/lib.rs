//! The address book's contract as Rust: messages, client, server, and objects of
//! a wanted size to measure with.
//!
//! The service is in the package `address-book`; this crate has nothing that
//! stores anything, so that callers need not build its databases' drivers.

mod answer;
mod connect;
pub mod frame;
mod generated;
mod sample;

pub use answer::EncodedAnswer;
pub use connect::{MESSAGE_LEN_MAX, client, endpoint, service};
pub use generated::{server, v1};
pub use sample::{owner, sample_book};
