//! Requests and answers in datagrams, which are lost, doubled, reordered, held back and
//! forged. Set-up (HELLO, OPEN) stays on the session's stream; its TLS yields the keys.
//!
//! ```text
//!  client                                                 engine
//!  Initiator ─ASKS─► Courier ─► seal ─── datagram ──► open ─► carry_out ─► Memory
//!            ◄ANSWERS─       ◄─ open ◄── datagrams ── seal ◄─ pieces
//! ```
//!
//! | module | what it does |
//! |---|---|
//! | `sealed` | which datagrams are believed: AEAD, and each number once |
//! | `piece` | answers in pieces that fit a datagram |
//! | `coming` | what has come of an answer, and what is missing |
//! | `courier` | the client's side: what is asked again, and when; what is whole |
//! | `silence` | that they do not get through any more, and when they do again |
//! | `path` | how long datagrams may be, tried out and watched |
//! | `window` | how many bytes may be under way, by how long answers take |
//! | `target` | the engine's side: it keeps nothing of a request |
//!
//! # Invariants
//! 1. **Nothing is done for a datagram that is not sealed with the session's key**, and
//!    nothing is answered: not even an error.
//! 2. **A number is believed once** in its direction. Scans and reads are idempotent all
//!    the same: the client asks again what was lost, under a new number.
//! 3. **Pieces of two looks meet only where the whole is validated.** Pieces name the attempt
//!    that they answer, and those of two attempts at the same request are never put together.
//!    Of what a scan has pointed at, or a read copies out of the data region, a range that is
//!    missing may be read by itself: at another moment, as its reader does it that looks up by
//!    two reads. The checksum of an entry covers all of it, and is bound to tag and version: a
//!    mixture of two entries is torn, and looked up anew. The rest of the answer (vote,
//!    version, floor, stamp) is of one look.
//! 4. **Memory is bounded** by what was solicited, at the client; at the engine by the
//!    replay window.
//! 5. **Longer datagrams than usual are asked for**, by the client, which has seen one of that
//!    length go there and come back. An engine of an earlier release answers no probe, and is
//!    asked as before.

mod coming;
pub mod courier;
pub mod path;
pub mod piece;
pub mod sealed;
mod silence;
pub mod target;
pub mod window;

pub use courier::Courier;
pub use path::Path;
pub use sealed::{Cipher, Dropped, Sealed};
pub use window::Window;

/// Datagrams of which nothing else is known, with head and seal, in bytes: they fit every path
/// that carries Ethernet's 1500, with IPv6 and a tunnel.
pub const DATAGRAM_LEN_USUAL: usize = 1400;
/// The longest: they fill Ethernet's jumbo frames.
pub const DATAGRAM_LEN_MAX: usize = 8972;
/// The shortest that are cut to a length: every path that carries IPv6 takes them.
pub const DATAGRAM_LEN_MIN: usize = 1200;
/// Bytes before what is sealed: session, number.
pub const DATAGRAM_HEAD_LEN: usize = 16;
/// Bytes by which sealing makes it longer.
pub const TAG_LEN: usize = 16;
/// Longest data that is asked for by datagrams: what takes many of them goes by the stream,
/// whose kernel fills a way better. Engines refuse more.
pub const DATAGRAM_DATA_LEN_MAX: u32 = 16 << 10;
/// Longest payload.
pub const PAYLOAD_LEN_MAX: usize = payload_len(DATAGRAM_LEN_MAX);

/// The longest payload of datagrams of this length.
pub const fn payload_len(datagram_len: usize) -> usize {
    (datagram_len - DATAGRAM_HEAD_LEN - TAG_LEN) / 8 * 8
}

/// How long the datagram with this payload is.
pub const fn datagram_len(payload_len: usize) -> usize {
    payload_len + DATAGRAM_HEAD_LEN + TAG_LEN
}

const _: () = assert!(datagram_len(PAYLOAD_LEN_MAX) <= DATAGRAM_LEN_MAX);
