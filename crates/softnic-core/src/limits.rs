//! Bounds of the protocol, on one page.

use crate::wire::message::{MESSAGE_HEAD_LEN, MESSAGED_HEAD_LEN};
use crate::wire::{ANSWER_LEN, ASK_LEN, HEAD_LEN};
use trefoil_layout::message::MESSAGE_LEN_MAX;

/// Longest data of one answer, in bytes. Longer items are asked for by message.
pub const DATA_LEN_MAX: usize = 256 << 10;

/// Requests of one frame.
pub const ASK_COUNT_MAX: usize = 256;

/// Longest frame of requests, in bytes.
pub const ASKS_LEN_MAX: usize = HEAD_LEN + ASK_COUNT_MAX * ASK_LEN;

/// Longest frame of a message, in bytes: of all that an engine takes once it knows its client.
pub const MESSAGE_FRAME_LEN_MAX: usize = HEAD_LEN + MESSAGE_HEAD_LEN + MESSAGE_LEN_MAX;

/// Messages that a session may have under way.
pub const MESSAGE_COUNT_MAX: usize = 128;

/// Bytes of them and of what they solicit, heads included
/// ([`cost`](crate::wire::message::cost)).
pub const MESSAGE_WINDOW_LEN: u32 = 512 << 10;

/// An engine begins another frame of answers beyond so many bytes.
pub const ANSWERS_LEN_FULL: usize = 64 << 10;

/// Longest frame that a client takes, in bytes.
pub const ANSWERS_LEN_MAX: usize = HEAD_LEN + ANSWERS_LEN_FULL + ANSWER_LEN + DATA_LEN_MAX;

/// Bytes that a client may have solicited and not yet received, heads included.
pub const WINDOW_LEN: u32 = 512 << 10;

/// The least that holds the longest answer.
pub const WINDOW_LEN_MIN: u32 = (ANSWER_LEN + DATA_LEN_MAX) as u32;

/// Longest request for an ordered queue, and longest answer, in bytes: what a slot holds.
pub const REQUEST_LEN_MAX: usize = 1440;

/// Longest token, in bytes.
pub const TOKEN_LEN_MAX: usize = 256;

/// Backends that one engine can name, and so one more than the highest number.
pub const BACKEND_COUNT_MAX: u32 = 4096;

const _: () = {
    assert!(WINDOW_LEN >= WINDOW_LEN_MIN);
    assert!(MESSAGE_LEN_MAX.is_multiple_of(8) && MESSAGE_FRAME_LEN_MAX >= ASKS_LEN_MAX);
    // A client takes the longest answer to a message, and one message always has room.
    assert!(HEAD_LEN + MESSAGED_HEAD_LEN + MESSAGE_LEN_MAX <= ANSWERS_LEN_MAX);
    assert!(2 * (MESSAGE_FRAME_LEN_MAX + MESSAGED_HEAD_LEN) <= MESSAGE_WINDOW_LEN as usize);
    assert!(DATA_LEN_MAX.is_multiple_of(8));
    assert!(ASK_COUNT_MAX <= u16::MAX as usize);
    // However many items there are in a full frame, their count fits.
    assert!(ANSWERS_LEN_FULL / ANSWER_LEN < u16::MAX as usize);
};

/// How long an engine that owes answers may say nothing before a client gives the session up, in
/// nanoseconds.
pub const SESSION_PATIENCE_NS: u64 = 500_000_000;
