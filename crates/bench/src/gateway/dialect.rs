//! Requests as bytes, and what their answers look like: of known length, so
//! that the generator counts bytes instead of parsing.

use std::io::Write as _;

/// Bytes of every key.
pub(super) const KEY_LEN: usize = 16;

/// A protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Dialect {
    /// memcached's text protocol.
    Memcached,
    /// RESP2.
    Redis,
}

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// One value.
    Get,
    /// So many values in one request.
    MultiGet(usize),
    /// A value is stored.
    Set,
}

impl Operation {
    /// Items that one request concerns.
    pub(super) fn items(self) -> usize {
        match self {
            Operation::MultiGet(count) => count,
            Operation::Get | Operation::Set => 1,
        }
    }
}

fn key(number: u64) -> [u8; KEY_LEN] {
    let mut key = *b"key:000000000000";
    let mut rest = number;
    for digit in key.iter_mut().rev() {
        if rest == 0 {
            break;
        }
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    key
}

impl Dialect {
    /// Appends a request; `next` gives the numbers of its keys.
    pub(super) fn ask(
        self,
        operation: Operation,
        value: &[u8],
        next: &mut dyn FnMut() -> u64,
        out: &mut Vec<u8>,
    ) {
        let len = value.len();
        // Writing to a vector cannot fail.
        match (self, operation) {
            (Dialect::Memcached, Operation::Get | Operation::MultiGet(_)) => {
                out.extend_from_slice(b"get");
                for _ in 0..operation.items() {
                    out.push(b' ');
                    out.extend_from_slice(&key(next()));
                }
                out.extend_from_slice(b"\r\n");
            }
            (Dialect::Memcached, Operation::Set) => {
                out.extend_from_slice(b"set ");
                out.extend_from_slice(&key(next()));
                let _ = write!(out, " 0 0 {len}\r\n");
                out.extend_from_slice(value);
                out.extend_from_slice(b"\r\n");
            }
            (Dialect::Redis, Operation::Get) => {
                out.extend_from_slice(b"*2\r\n$3\r\nGET\r\n$16\r\n");
                out.extend_from_slice(&key(next()));
                out.extend_from_slice(b"\r\n");
            }
            (Dialect::Redis, Operation::MultiGet(count)) => {
                let _ = write!(out, "*{}\r\n$4\r\nMGET\r\n", count + 1);
                for _ in 0..count {
                    out.extend_from_slice(b"$16\r\n");
                    out.extend_from_slice(&key(next()));
                    out.extend_from_slice(b"\r\n");
                }
            }
            (Dialect::Redis, Operation::Set) => {
                out.extend_from_slice(b"*3\r\n$3\r\nSET\r\n$16\r\n");
                out.extend_from_slice(&key(next()));
                let _ = write!(out, "\r\n${len}\r\n");
                out.extend_from_slice(value);
                out.extend_from_slice(b"\r\n");
            }
        }
    }

    /// The answer to a request of which every key is there; the value stands
    /// for each of them.
    pub(super) fn answer(self, operation: Operation, value: &[u8]) -> Answer {
        let len = value.len();
        let (text_len, first, last): (usize, &[u8], &[u8]) = match (self, operation) {
            (Dialect::Memcached, Operation::Set) => (8, b"STORED", b"STORED\r\n"),
            (Dialect::Memcached, Operation::Get | Operation::MultiGet(_)) => {
                let head = format!("VALUE {} 0 {len}\r\n", "k".repeat(KEY_LEN));
                let each = head.len() + len + 2;
                (operation.items() * each + 5, b"VALUE ", b"\r\nEND\r\n")
            }
            (Dialect::Redis, Operation::Set) => (5, b"+OK", b"+OK\r\n"),
            (Dialect::Redis, Operation::Get) => {
                (format!("${len}\r\n").len() + len + 2, b"$", b"\r\n")
            }
            (Dialect::Redis, Operation::MultiGet(count)) => {
                let each = format!("${len}\r\n").len() + len + 2;
                (format!("*{count}\r\n").len() + count * each, b"*", b"\r\n")
            }
        };
        Answer {
            len: text_len,
            first: first.to_vec(),
            last: last.to_vec(),
        }
    }
}

/// What an answer looks like from outside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Answer {
    /// Its length.
    pub(super) len: usize,
    /// How it begins.
    pub(super) first: Vec<u8>,
    /// How it ends.
    pub(super) last: Vec<u8>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(dialect: Dialect, operation: Operation) -> String {
        let mut out = Vec::new();
        let mut number = 8;
        let mut next = || {
            number += 1;
            number
        };
        dialect.ask(operation, b"abc", &mut next, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn requests_are_what_servers_expect() {
        let memcached = |operation| ask(Dialect::Memcached, operation);
        assert_eq!(memcached(Operation::Get), "get key:000000000009\r\n");
        assert_eq!(
            memcached(Operation::MultiGet(2)),
            "get key:000000000009 key:000000000010\r\n"
        );
        assert_eq!(
            memcached(Operation::Set),
            "set key:000000000009 0 0 3\r\nabc\r\n"
        );
        assert_eq!(
            ask(Dialect::Redis, Operation::Set),
            "*3\r\n$3\r\nSET\r\n$16\r\nkey:000000000009\r\n$3\r\nabc\r\n"
        );
        assert_eq!(
            ask(Dialect::Redis, Operation::MultiGet(1)),
            "*2\r\n$4\r\nMGET\r\n$16\r\nkey:000000000009\r\n"
        );
    }

    #[test]
    fn answers_have_the_length_that_is_expected() {
        let expect = |dialect: Dialect, operation, text: &str| {
            let answer = dialect.answer(operation, b"abc");
            assert_eq!(answer.len, text.len());
            assert!(text.as_bytes().starts_with(&answer.first));
            assert!(text.as_bytes().ends_with(&answer.last));
        };
        expect(
            Dialect::Memcached,
            Operation::MultiGet(1),
            "VALUE key:000000000009 0 3\r\nabc\r\nEND\r\n",
        );
        expect(Dialect::Memcached, Operation::Set, "STORED\r\n");
        expect(Dialect::Redis, Operation::Get, "$3\r\nabc\r\n");
        expect(
            Dialect::Redis,
            Operation::MultiGet(2),
            "*2\r\n$3\r\nabc\r\n$3\r\nabc\r\n",
        );
    }
}
