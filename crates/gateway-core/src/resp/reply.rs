//! Answers as bytes, in both versions of the protocol.

use crate::keyspace::{Fault, Item, ValueSource};
use trefoil_layout::op::Rejection;

/// What is answered to a value over the limit, in Redis's words.
pub(super) const TOO_LONG: &str = "ERR string exceeds maximum allowed size (proto-max-bulk-len)";

/// What is answered to what is no number.
pub(super) const NOT_AN_INTEGER: &str = "ERR value is not an integer or out of range";

/// Room for what stands around a long string, so that memory is taken for both at once.
const AROUND_LEN: usize = 32;

/// Appends answers to the output.
pub(super) struct Reply<'a> {
    pub(super) out: &'a mut Vec<u8>,
    /// The third version, which has types for null, maps and sets.
    pub(super) is_resp3: bool,
}

/// Appends a number in decimal.
pub(super) fn put_number(out: &mut Vec<u8>, number: u64) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    let mut rest = number;
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

impl Reply<'_> {
    fn head(&mut self, kind: u8, number: usize) {
        self.out.push(kind);
        put_number(self.out, number as u64);
        self.out.extend_from_slice(b"\r\n");
    }

    /// `OK` and its like.
    pub(super) fn simple(&mut self, words: &str) {
        self.out.push(b'+');
        self.out.extend_from_slice(words.as_bytes());
        self.out.extend_from_slice(b"\r\n");
    }

    /// An error: a code in capitals, then words.
    pub(super) fn error(&mut self, words: impl AsRef<[u8]>) {
        self.out.push(b'-');
        // Words of clients are part of some errors; an error is one line.
        let one_line = words.as_ref().iter().map(|&byte| match byte {
            b'\r' | b'\n' => b' ',
            byte => byte,
        });
        self.out.extend(one_line);
        self.out.extend_from_slice(b"\r\n");
    }

    pub(super) fn integer(&mut self, number: i64) {
        self.out.push(b':');
        if number < 0 {
            self.out.push(b'-');
        }
        put_number(self.out, number.unsigned_abs());
        self.out.extend_from_slice(b"\r\n");
    }

    pub(super) fn bulk(&mut self, bytes: impl AsRef<[u8]>) {
        let bytes = bytes.as_ref();
        self.out.reserve(bytes.len() + AROUND_LEN);
        self.head(b'$', bytes.len());
        self.out.extend_from_slice(bytes);
        self.out.extend_from_slice(b"\r\n");
    }

    pub(super) fn value(&mut self, value: &dyn ValueSource) {
        self.out.reserve(value.len() + AROUND_LEN);
        self.head(b'$', value.len());
        value.append_to(self.out);
        self.out.extend_from_slice(b"\r\n");
    }

    pub(super) fn value_or_null(&mut self, item: Option<&Item<'_>>) {
        match item {
            Some(item) => self.value(item.value),
            None => self.null(),
        }
    }

    pub(super) fn null(&mut self) {
        let null: &[u8] = if self.is_resp3 { b"_\r\n" } else { b"$-1\r\n" };
        self.out.extend_from_slice(null);
    }

    /// What stands in the place of an array.
    pub(super) fn null_array(&mut self) {
        let null: &[u8] = if self.is_resp3 { b"_\r\n" } else { b"*-1\r\n" };
        self.out.extend_from_slice(null);
    }

    pub(super) fn array(&mut self, len: usize) {
        self.head(b'*', len);
    }

    /// A map of this many pairs; an array where there are no maps.
    pub(super) fn map(&mut self, len: usize) {
        if self.is_resp3 {
            self.head(b'%', len);
        } else {
            self.head(b'*', len * 2);
        }
    }

    pub(super) fn set(&mut self, len: usize) {
        let kind = if self.is_resp3 { b'~' } else { b'*' };
        self.head(kind, len);
    }

    /// Text that is meant for people.
    pub(super) fn text(&mut self, text: &str) {
        if self.is_resp3 {
            self.head(b'=', text.len() + 4);
            self.out.extend_from_slice(b"txt:");
            self.out.extend_from_slice(text.as_bytes());
            self.out.extend_from_slice(b"\r\n");
        } else {
            self.bulk(text);
        }
    }

    pub(super) fn wrong_arity(&mut self, command: &str) {
        self.error(format!(
            "ERR wrong number of arguments for '{command}' command"
        ));
    }

    /// Redis's words for a command that the user's role does not allow.
    pub(super) fn no_permission(&mut self, command: &str) {
        self.error(format!(
            "NOPERM this user has no permissions to run the '{command}' command"
        ));
    }

    pub(super) fn syntax_error(&mut self) {
        self.error("ERR syntax error");
    }

    pub(super) fn not_an_integer(&mut self) {
        self.error(NOT_AN_INTEGER);
    }

    pub(super) fn bad_expiry(&mut self, command: &str) {
        self.error(format!("ERR invalid expire time in '{command}' command"));
    }

    /// What a fault of the cell is in this protocol.
    pub(super) fn fault(&mut self, fault: &Fault) {
        match fault {
            Fault::Inquorate | Fault::Contended => self.error(format!("TRYAGAIN {fault}")),
            Fault::Rejected(rejection) if rejection.is_transient() => {
                self.error(format!("TRYAGAIN {fault}"));
            }
            Fault::Rejected(Rejection::NoMemory) => {
                self.error("OOM command not allowed when used memory > 'maxmemory'.");
            }
            Fault::Rejected(Rejection::ValueTooLong) => self.error(TOO_LONG),
            Fault::Rejected(_)
            | Fault::Unavailable(_)
            | Fault::Indeterminate
            | Fault::Unsupported(_) => self.error(format!("ERR {fault}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Reply;

    #[test]
    fn numbers() {
        let mut out = Vec::new();
        let mut reply = Reply {
            out: &mut out,
            is_resp3: false,
        };
        for number in [0, 9, 10, -1, i64::MAX, i64::MIN] {
            reply.integer(number);
        }
        assert_eq!(
            out,
            b":0\r\n:9\r\n:10\r\n:-1\r\n:9223372036854775807\r\n:-9223372036854775808\r\n"
        );
    }
}
