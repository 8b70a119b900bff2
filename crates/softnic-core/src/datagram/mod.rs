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
//! | `courier` | the client's side: what is asked again, and when; what is whole |
//! | `window` | how many bytes may be under way, by how long answers take |
//! | `target` | the engine's side: it keeps nothing of a request |
//!
//! # Invariants
//! 1. **Nothing is done for a datagram that is not sealed with the session's key**, and
//!    nothing is answered: not even an error.
//! 2. **A number is believed once** in its direction. Scans and reads are idempotent all
//!    the same: the client asks again what was lost, under a new number.
//! 3. **An answer is of one look.** Pieces name the attempt that they answer; pieces of two
//!    attempts are never put together.
//! 4. **Memory is bounded** by what was solicited, at the client; at the engine by the
//!    replay window.

pub mod courier;
pub mod piece;
pub mod sealed;
pub mod target;
pub mod window;

pub use courier::Courier;
pub use sealed::{Cipher, Dropped, Sealed};
pub use window::Window;

/// Longest datagram, with its head and seal, in bytes: fits every path that carries
/// Ethernet's 1500, with IPv6 and a tunnel.
pub const DATAGRAM_LEN_MAX: usize = 1400;
/// Bytes before what is sealed: session, number.
pub const DATAGRAM_HEAD_LEN: usize = 16;
/// Bytes by which sealing makes it longer.
pub const TAG_LEN: usize = 16;
/// Longest data that is asked for by datagrams: a piece that is lost costs the whole answer,
/// so what takes many of them goes by the stream.
pub const DATAGRAM_DATA_LEN_MAX: u32 = 16 << 10;
/// Longest payload.
pub const PAYLOAD_LEN_MAX: usize = (DATAGRAM_LEN_MAX - DATAGRAM_HEAD_LEN - TAG_LEN) / 8 * 8;

const _: () = assert!(PAYLOAD_LEN_MAX + DATAGRAM_HEAD_LEN + TAG_LEN <= DATAGRAM_LEN_MAX);
