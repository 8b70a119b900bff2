//! Requests and answers of the services here.
//!
//! A request:
//!
//! | byte | field | why |
//! |---|---|---|
//! | 0 | what: 1 GET, 2 SET, 3 ERASE, 4 ADD, 5 APPEND | |
//! | 1 | zero | reserved |
//! | 2 | length of the key, two bytes, little endian | |
//! | 4 | key | |
//! | then | SET: the value; APPEND: what comes behind it; ADD: the number, eight bytes, little endian; GET, ERASE: nothing | |
//!
//! An answer: its first byte is a [`Status`], the rest a value.
//!
//! All but GET may be sent *nilext*. The answer to an ADD or APPEND says whether it has had
//! an effect; who does not ask for it does not learn that a value was no number, or full.

use trefoil_ordered::slot::{ANSWER_LEN_MAX, PAYLOAD_LEN_MAX};

const HEAD_LEN: usize = 4;
/// Longest key, in bytes.
pub const KEY_LEN_MAX: usize = 250;
/// Longest value, in bytes: it fits into a request beside any key, and into an answer.
pub const VALUE_LEN_MAX: usize = PAYLOAD_LEN_MAX - HEAD_LEN - KEY_LEN_MAX;
// Beside a status.
const _: () = assert!(VALUE_LEN_MAX < ANSWER_LEN_MAX);

const GET: u8 = 1;
const SET: u8 = 2;
const ERASE: u8 = 3;
const ADD: u8 = 4;
const APPEND: u8 = 5;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// The value of a key.
    Get(&'a [u8]),
    /// This value for this key.
    Set(&'a [u8], &'a [u8]),
    /// No value for a key.
    Erase(&'a [u8]),
    /// So much more in a key's value, which is a decimal number. No value is zero. The new
    /// number is the answer.
    Add(&'a [u8], i64),
    /// These bytes behind a key's value.
    Append(&'a [u8], &'a [u8]),
}

/// Why something is no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// Nothing, or too much.
    #[error("a key of {len} bytes: it has to have 1 to {KEY_LEN_MAX}")]
    KeyLen {
        /// Bytes of it.
        len: usize,
    },
    /// Longer than a slot holds beside any key.
    #[error("a value of {len} bytes: the longest is one of {VALUE_LEN_MAX}")]
    ValueLen {
        /// Bytes of it.
        len: usize,
    },
    /// Bytes of another meaning, or none.
    #[error("these bytes are no request of this version")]
    Malformed,
}

impl<'a> Request<'a> {
    /// The key.
    pub fn key(&self) -> &'a [u8] {
        match *self {
            Request::Get(key)
            | Request::Set(key, _)
            | Request::Erase(key)
            | Request::Add(key, _)
            | Request::Append(key, _) => key,
        }
    }

    fn check(&self) -> Result<(), RequestError> {
        let len = self.key().len();
        if len == 0 || len > KEY_LEN_MAX {
            return Err(RequestError::KeyLen { len });
        }
        match *self {
            Request::Set(_, value) | Request::Append(_, value) if value.len() > VALUE_LEN_MAX => {
                Err(RequestError::ValueLen { len: value.len() })
            }
            _ => Ok(()),
        }
    }

    /// Spells it.
    pub fn encode(&self, into: &mut Vec<u8>) -> Result<(), RequestError> {
        self.check()?;
        let number;
        let (what, rest): (u8, &[u8]) = match *self {
            Request::Get(_) => (GET, &[]),
            Request::Set(_, value) => (SET, value),
            Request::Erase(_) => (ERASE, &[]),
            Request::Add(_, by) => {
                number = by.to_le_bytes();
                (ADD, &number)
            }
            Request::Append(_, value) => (APPEND, value),
        };
        let key = self.key();
        into.clear();
        into.extend_from_slice(&[what, 0]);
        into.extend_from_slice(&(key.len() as u16).to_le_bytes());
        into.extend_from_slice(key);
        into.extend_from_slice(rest);
        Ok(())
    }

    /// Reads one.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, RequestError> {
        let malformed = RequestError::Malformed;
        let (head, rest) = bytes.split_first_chunk::<HEAD_LEN>().ok_or(malformed)?;
        let [what, 0, low, high] = *head else {
            return Err(malformed);
        };
        let key_len = usize::from(u16::from_le_bytes([low, high]));
        let (key, rest) = rest.split_at_checked(key_len).ok_or(malformed)?;
        let request = match what {
            GET if rest.is_empty() => Request::Get(key),
            SET => Request::Set(key, rest),
            ERASE if rest.is_empty() => Request::Erase(key),
            ADD => {
                let by = rest.try_into().map_err(|_| malformed)?;
                Request::Add(key, i64::from_le_bytes(by))
            }
            APPEND => Request::Append(key, rest),
            _ => return Err(malformed),
        };
        request.check()?;
        Ok(request)
    }

    /// Whether it has no effect.
    pub fn is_read(&self) -> bool {
        matches!(self, Request::Get(_))
    }
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[repr(u8)]
pub enum Status {
    /// It is done.
    #[error("done")]
    Done = 0,
    /// A GET: there is no value.
    #[error("no value")]
    Missing = 1,
    /// It was no request.
    #[error("the server knows no such request")]
    Malformed = 2,
    /// An ADD: the value is no decimal number of 64 bits with sign. It is as it was.
    #[error("the value is no number")]
    NoNumber = 3,
    /// An ADD: the sum is no such number. The value is as it was.
    #[error("the sum does not fit into 64 bits with sign")]
    Overflow = 4,
    /// An APPEND: the value would be too long. It is as it was.
    #[error("the value would be longer than {VALUE_LEN_MAX} bytes")]
    TooLong = 5,
    /// What keeps the values has failed: the server ends. A durable one executes what it has
    /// acknowledged when it is started again.
    #[error("what keeps the values has failed, and the server ends")]
    Failed = 6,
}

impl Status {
    const ALL: [Status; 7] = [
        Status::Done,
        Status::Missing,
        Status::Malformed,
        Status::NoNumber,
        Status::Overflow,
        Status::TooLong,
        Status::Failed,
    ];

    /// An answer's status and value; `None` is no answer.
    pub fn of(answer: &[u8]) -> Option<(Status, &[u8])> {
        let (&first, value) = answer.split_first()?;
        let status = Status::ALL.into_iter().find(|of| *of as u8 == first)?;
        Some((status, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_as_they_were_spelled() {
        let long = [7; VALUE_LEN_MAX];
        let mut bytes = Vec::new();
        for request in [
            Request::Get(b"k"),
            Request::Set(&long[..KEY_LEN_MAX], &long),
            Request::Set(b"k", b""),
            Request::Erase(b"k"),
            Request::Add(b"k", -5),
            Request::Append(b"k", b"more"),
        ] {
            request.encode(&mut bytes).expect("a request");
            assert!(bytes.len() <= PAYLOAD_LEN_MAX);
            assert_eq!(Request::decode(&bytes), Ok(request));
            for len in 0..HEAD_LEN + request.key().len() {
                assert!(
                    Request::decode(&bytes[..len]).is_err(),
                    "{len} of {request:?}"
                );
            }
            assert_eq!(request.is_read(), request == Request::Get(b"k"));
        }
    }

    #[test]
    fn what_is_no_request_is_refused_on_both_sides() {
        let mut bytes = Vec::new();
        let long = [7; VALUE_LEN_MAX + 1];
        for (request, error) in [
            (Request::Get(b""), RequestError::KeyLen { len: 0 }),
            (
                Request::Erase(&long[..KEY_LEN_MAX + 1]),
                RequestError::KeyLen {
                    len: KEY_LEN_MAX + 1,
                },
            ),
            (
                Request::Set(b"k", &long),
                RequestError::ValueLen { len: long.len() },
            ),
        ] {
            assert_eq!(request.encode(&mut bytes), Err(error));
        }
        for bytes in [
            &b""[..],
            &[0, 0, 1, 0, b'k'],
            &[6, 0, 1, 0, b'k'],
            &[GET, 1, 1, 0, b'k'],
            &[GET, 0, 2, 0, b'k'],
            &[GET, 0, 1, 0, b'k', b'?'],
            &[ADD, 0, 1, 0, b'k', 1],
            &[SET, 0, 0, 0, b'v'],
        ] {
            assert!(Request::decode(bytes).is_err(), "{bytes:?}");
        }
        assert_eq!(Status::of(&[]), None);
        assert_eq!(Status::of(&[99]), None);
        for status in Status::ALL {
            assert_eq!(Status::of(&[status as u8, 5]), Some((status, &[5][..])));
        }
    }
}
