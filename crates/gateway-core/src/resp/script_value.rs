//! What scripts are told of commands, and answer: values, from the bytes of an answer and to
//! those.

use super::parse::{Part, bulk_len, count, number};
use super::reply::Reply;

/// What a script is told, and tells.
#[derive(Clone, Debug, PartialEq)]
pub enum ScriptValue {
    /// Null.
    Nil,
    /// A number.
    Integer(i64),
    /// A string.
    Bulk(Vec<u8>),
    /// `OK` and its like.
    Status(Vec<u8>),
    /// An error, with its code.
    Error(Vec<u8>),
    /// Several.
    Array(Vec<ScriptValue>),
}

impl ScriptValue {
    pub(super) fn put(&self, reply: &mut Reply<'_>) {
        match self {
            ScriptValue::Nil => reply.null(),
            ScriptValue::Integer(number) => reply.integer(*number),
            ScriptValue::Bulk(bytes) => reply.bulk(bytes),
            ScriptValue::Error(words) => reply.error(words),
            ScriptValue::Status(words) => {
                let one_line = |byte: &u8| !matches!(byte, b'\r' | b'\n');
                let words: Vec<u8> = words.iter().copied().filter(one_line).collect();
                reply.out.push(b'+');
                reply.out.extend_from_slice(&words);
                reply.out.extend_from_slice(b"\r\n");
            }
            ScriptValue::Array(values) => {
                reply.array(values.len());
                values.iter().for_each(|value| value.put(reply));
            }
        }
    }

    /// Bytes of the answer, about.
    pub(super) fn len(&self) -> usize {
        /// A letter, a number, and ends of lines.
        const HEAD_LEN: usize = 24;
        HEAD_LEN
            + match self {
                ScriptValue::Nil | ScriptValue::Integer(_) => 0,
                ScriptValue::Bulk(bytes)
                | ScriptValue::Status(bytes)
                | ScriptValue::Error(bytes) => bytes.len(),
                ScriptValue::Array(values) => values.iter().map(ScriptValue::len).sum(),
            }
    }

    /// The answer at the front of these bytes, in the second version of the protocol,
    /// and its length.
    pub(super) fn parse(bytes: &[u8]) -> Option<(ScriptValue, usize)> {
        let end = memchr::memchr(b'\n', bytes)?;
        let line = bytes.get(1..end)?;
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let after = end + 1;
        Some(match bytes.first()? {
            b'+' => (ScriptValue::Status(line.to_vec()), after),
            b'-' => (ScriptValue::Error(line.to_vec()), after),
            b':' => (ScriptValue::Integer(number(line)?), after),
            b'$' if line == b"-1" => (ScriptValue::Nil, after),
            b'$' => {
                let Part::Whole((len, _)) = bulk_len(bytes, true) else {
                    return None;
                };
                let value = bytes.get(after..after + len)?.to_vec();
                (ScriptValue::Bulk(value), after + len + 2)
            }
            b'*' if line == b"-1" => (ScriptValue::Nil, after),
            b'*' => {
                let Part::Whole((count, _)) = count(bytes, true) else {
                    return None;
                };
                let (mut values, mut at) = (Vec::new(), after);
                for _ in 0..count {
                    let (value, len) = ScriptValue::parse(bytes.get(at..)?)?;
                    values.push(value);
                    at += len;
                }
                (ScriptValue::Array(values), at)
            }
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::ScriptValue::{self, *};

    #[test]
    fn answers_are_read_as_they_are_written() {
        let value = Array(vec![
            Nil,
            Integer(-5),
            Bulk(b"a\r\nb".to_vec()),
            Status(b"OK".to_vec()),
            Error(b"ERR no".to_vec()),
            Array(vec![]),
        ]);
        let mut out = Vec::new();
        value.put(&mut super::Reply {
            out: &mut out,
            is_resp3: false,
        });
        assert_eq!(ScriptValue::parse(&out), Some((value, out.len())));
        assert_eq!(ScriptValue::parse(b"$5\r\nab"), None);
        assert_eq!(ScriptValue::parse(b""), None);
    }
}
