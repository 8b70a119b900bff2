//! Frames of the binary protocol: the 24-byte header, operation codes,
//! statuses and the words that go with them.
//!
//! ```text
//!  offset  request            answer
//!       0  magic 0x80         magic 0x81
//!       1  opcode             opcode of the request
//!       2  key length, 16     key length, 16
//!       4  extras length      extras length
//!       5  data type          data type
//!       6  reserved, 16       status, 16
//!       8  body length, 32    body length, 32 (extras, key and value)
//!      12  opaque, 32         opaque of the request
//!      16  CAS, 64            CAS, 64
//! ```
//!
//! All numbers are big-endian. The body is extras, key, value, in this order.

use crate::keyspace::Fault;
use trefoil_layout::op::Rejection;

/// Length of a header.
pub(super) const HEADER_LEN: usize = 24;
/// First byte of every request.
pub const REQUEST_MAGIC: u8 = 0x80;
const ANSWER_MAGIC: u8 = 0x81;

/// What a request asks for, its quiet form apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    /// Get, with the key in the answer or not.
    Get {
        with_key: bool,
    },
    /// A new expiry, and the value.
    GetAndTouch {
        with_key: bool,
    },
    Touch,
    Set,
    Add,
    Replace,
    Append,
    Prepend,
    Delete,
    Increment,
    Decrement,
    Quit,
    Flush,
    Noop,
    Version,
    Stat,
    Verbosity,
    SaslMechanisms,
    SaslAuth,
    SaslStep,
    Unknown,
}

/// The request with this operation code, and whether it is the quiet form,
/// which does not answer its usual outcome.
pub(super) fn verb_of(opcode: u8) -> (Verb, bool) {
    match opcode {
        0x00 => (Verb::Get { with_key: false }, false),
        0x09 => (Verb::Get { with_key: false }, true),
        0x0c => (Verb::Get { with_key: true }, false),
        0x0d => (Verb::Get { with_key: true }, true),
        0x01 => (Verb::Set, false),
        0x11 => (Verb::Set, true),
        0x02 => (Verb::Add, false),
        0x12 => (Verb::Add, true),
        0x03 => (Verb::Replace, false),
        0x13 => (Verb::Replace, true),
        0x04 => (Verb::Delete, false),
        0x14 => (Verb::Delete, true),
        0x05 => (Verb::Increment, false),
        0x15 => (Verb::Increment, true),
        0x06 => (Verb::Decrement, false),
        0x16 => (Verb::Decrement, true),
        0x07 => (Verb::Quit, false),
        0x17 => (Verb::Quit, true),
        0x08 => (Verb::Flush, false),
        0x18 => (Verb::Flush, true),
        0x0a => (Verb::Noop, false),
        0x0b => (Verb::Version, false),
        0x0e => (Verb::Append, false),
        0x19 => (Verb::Append, true),
        0x0f => (Verb::Prepend, false),
        0x1a => (Verb::Prepend, true),
        0x10 => (Verb::Stat, false),
        0x1b => (Verb::Verbosity, false),
        0x1c => (Verb::Touch, false),
        0x1d => (Verb::GetAndTouch { with_key: false }, false),
        0x1e => (Verb::GetAndTouch { with_key: false }, true),
        0x23 => (Verb::GetAndTouch { with_key: true }, false),
        0x24 => (Verb::GetAndTouch { with_key: true }, true),
        0x20 => (Verb::SaslMechanisms, false),
        0x21 => (Verb::SaslAuth, false),
        0x22 => (Verb::SaslStep, false),
        _ => (Verb::Unknown, false),
    }
}

/// A request's header.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    pub(super) opcode: u8,
    pub(super) key_len: usize,
    pub(super) extras_len: usize,
    pub(super) body_len: usize,
    pub(super) opaque: [u8; 4],
    pub(super) cas: u64,
}

impl Header {
    /// Decodes the first [`HEADER_LEN`] bytes; the magic byte is the caller's.
    pub(super) fn decode(bytes: &[u8; HEADER_LEN]) -> Self {
        Header {
            opcode: bytes[1],
            key_len: usize::from(u16::from_be_bytes([bytes[2], bytes[3]])),
            extras_len: usize::from(bytes[4]),
            body_len: u32::from_be_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]) as usize,
            opaque: [bytes[12], bytes[13], bytes[14], bytes[15]],
            cas: be_u64(&bytes[16..24]),
        }
    }

    /// Length of the whole request.
    pub(super) fn frame_len(&self) -> usize {
        HEADER_LEN + self.body_len
    }

    /// Length of the value; meaningful once `key_len` and `extras_len` are
    /// known to fit the body.
    pub(super) fn value_len(&self) -> usize {
        self.body_len - self.key_len - self.extras_len
    }
}

/// A request that has come as far as its key, at least.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame<'a> {
    pub(super) header: Header,
    pub(super) quiet: bool,
    pub(super) extras: &'a [u8],
    pub(super) key: &'a [u8],
    /// Empty unless the whole request has come.
    pub(super) value: &'a [u8],
}

/// The first eight bytes as a number; the caller has checked the length.
pub(super) fn be_u64(bytes: &[u8]) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[..8]);
    u64::from_be_bytes(number)
}

/// The first four bytes as a number; the caller has checked the length.
pub(super) fn be_u32(bytes: &[u8]) -> u32 {
    let mut number = [0; 4];
    number.copy_from_slice(&bytes[..4]);
    u32::from_be_bytes(number)
}

/// Outcomes other than success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(super) enum Status {
    NotFound = 0x01,
    Exists = 0x02,
    TooLarge = 0x03,
    InvalidArguments = 0x04,
    NotStored = 0x05,
    NonNumeric = 0x06,
    AuthError = 0x20,
    UnknownCommand = 0x81,
    OutOfMemory = 0x82,
    NotSupported = 0x83,
    InternalError = 0x84,
    TemporaryFailure = 0x86,
}

/// SASL wants another message. Not an error, so without words.
pub(super) const AUTH_CONTINUE: u16 = 0x21;

impl Status {
    /// The words that memcached sends with it.
    pub(super) fn words(self) -> &'static str {
        match self {
            Status::NotFound => "Not found",
            Status::Exists => "Data exists for key.",
            Status::TooLarge => "Too large.",
            Status::InvalidArguments => "Invalid arguments",
            Status::NotStored => "Not stored.",
            Status::NonNumeric => "Non-numeric server-side value for incr or decr",
            Status::AuthError => "Auth failure.",
            Status::UnknownCommand => "Unknown command",
            Status::OutOfMemory => "Out of memory allocating item",
            Status::NotSupported => "Not supported",
            Status::InternalError => "Internal error",
            Status::TemporaryFailure => "Temporary failure",
        }
    }
}

/// Everything of an answer's header but the opcode and the opaque.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) key_len: usize,
    pub(super) extras_len: usize,
    pub(super) value_len: usize,
    pub(super) cas: u64,
}

/// Appends an answer's header.
pub(super) fn put_header(out: &mut Vec<u8>, header: &Header, answer: &Answer) {
    let body_len = answer.extras_len + answer.key_len + answer.value_len;
    let mut bytes = [0; HEADER_LEN];
    bytes[0] = ANSWER_MAGIC;
    bytes[1] = header.opcode;
    bytes[2..4].copy_from_slice(&(answer.key_len as u16).to_be_bytes());
    bytes[4] = answer.extras_len as u8;
    bytes[6..8].copy_from_slice(&answer.status.to_be_bytes());
    bytes[8..12].copy_from_slice(&(body_len as u32).to_be_bytes());
    bytes[12..16].copy_from_slice(&header.opaque);
    bytes[16..24].copy_from_slice(&answer.cas.to_be_bytes());
    out.extend_from_slice(&bytes);
}

/// Appends a successful answer that consists of these bytes.
pub(super) fn put_success(out: &mut Vec<u8>, header: &Header, cas: u64, value: &[u8]) {
    let answer = Answer {
        value_len: value.len(),
        cas,
        ..Answer::default()
    };
    put_header(out, header, &answer);
    out.extend_from_slice(value);
}

/// Appends an error with memcached's words for it.
pub(super) fn put_error(out: &mut Vec<u8>, header: &Header, status: Status) {
    put_words(out, header, status as u16, status.words().as_bytes());
}

/// Appends an answer with this status and words.
pub(super) fn put_words(out: &mut Vec<u8>, header: &Header, status: u16, words: &[u8]) {
    let answer = Answer {
        status,
        value_len: words.len(),
        ..Answer::default()
    };
    put_header(out, header, &answer);
    out.extend_from_slice(words);
}

/// Appends what a fault of the cell is in this protocol. memcached's own
/// statuses cover memory and size; for the rest there are the statuses that
/// clients of the binary protocol know from its other servers: *not
/// supported*, *internal error*, and *temporary failure*, which they retry.
pub(super) fn put_fault(out: &mut Vec<u8>, header: &Header, fault: &Fault) {
    let status = match fault {
        Fault::Inquorate | Fault::Unavailable(_) | Fault::Indeterminate | Fault::Contended => {
            Status::TemporaryFailure
        }
        Fault::Unsupported(_) => Status::NotSupported,
        Fault::Rejected(rejection) => match rejection {
            Rejection::NoMemory => return put_error(out, header, Status::OutOfMemory),
            Rejection::ValueTooLong => return put_error(out, header, Status::TooLarge),
            Rejection::KeyTooLong | Rejection::KeyEmpty | Rejection::BadItem => {
                Status::InvalidArguments
            }
            Rejection::Immutable => Status::NotSupported,
            Rejection::Recovering
            | Rejection::WrongShard
            | Rejection::OtherLife
            | Rejection::StaleConfig
            | Rejection::UnknownConfig => Status::TemporaryFailure,
            Rejection::ClockAhead => Status::InternalError,
        },
    };
    put_words(out, header, status as u16, fault.to_string().as_bytes());
}
