//! Requests and answers over UDP, beside a session's stream: the sockets and the cipher of
//! `trefoil_softnic_core::datagram`.
//!
//! Both sides draw the keys and the session's name from the TLS of the stream (RFC 5705),
//! so a session without TLS has no datagrams. The stream stays: when it ends, so does the
//! session.

mod cipher;
mod client;

pub(crate) use cipher::{Aes, Keys, Side};
pub(crate) use client::Datagrams;
