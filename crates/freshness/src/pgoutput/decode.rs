//! Bytes to messages.

use super::{Column, Message, Old, Relation, Tuple, Value};
use bytes::{Buf, Bytes};

/// Bytes that are no message of `pgoutput` version 1.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The message ends inside of a field.
    #[error("a pgoutput message ends inside of {0}")]
    Truncated(&'static str),
    /// A field has a value that the protocol does not know.
    #[error("a pgoutput message has an unknown {what}: byte {found:#04x}")]
    Unknown {
        /// Which field.
        what: &'static str,
        /// Its value.
        found: u8,
    },
    /// A count or length is negative.
    #[error("a pgoutput message has a negative {0}")]
    Negative(&'static str),
    /// A name is not UTF-8.
    #[error("a pgoutput message has a {0} that is not UTF-8")]
    NotText(&'static str),
    /// Bytes are left over.
    #[error("a pgoutput message goes on for {0} bytes after its end")]
    TooLong(usize),
}

/// Decodes one message.
///
/// # Errors
/// The bytes are no message. Nothing is allocated beyond what the bytes hold.
pub fn decode(bytes: Bytes) -> Result<Message, DecodeError> {
    let mut input = Input(bytes);
    let message = match input.byte("kind")? {
        b'B' => {
            let commit = input.u64("commit position")?;
            input.u64("commit time")?;
            let xid = input.u32("transaction number")?;
            Message::Begin { commit, xid }
        }
        b'C' => {
            input.byte("commit flags")?;
            input.u64("commit position")?;
            let end = input.u64("commit end")?;
            input.u64("commit time")?;
            Message::Commit { end }
        }
        b'R' => Message::Relation(relation(&mut input)?),
        b'I' => {
            let relation = input.u32("relation")?;
            match input.byte("tuple kind")? {
                b'N' => Message::Insert {
                    relation,
                    new: tuple(&mut input)?,
                },
                found => return Err(unknown("tuple kind", found)),
            }
        }
        b'U' => {
            let relation = input.u32("relation")?;
            let (old, next) = match input.byte("tuple kind")? {
                b'N' => (Old::Same, b'N'),
                kind => (old(kind, &mut input)?, input.byte("tuple kind")?),
            };
            if next != b'N' {
                return Err(unknown("tuple kind", next));
            }
            Message::Update {
                relation,
                old,
                new: tuple(&mut input)?,
            }
        }
        b'D' => {
            let relation = input.u32("relation")?;
            let kind = input.byte("tuple kind")?;
            Message::Delete {
                relation,
                old: old(kind, &mut input)?,
            }
        }
        b'T' => truncate(&mut input)?,
        b'M' => logical(&mut input)?,
        b'Y' => {
            input.u32("type")?;
            input.text("schema name")?;
            input.text("type name")?;
            Message::Type
        }
        b'O' => {
            input.u64("origin position")?;
            input.text("origin name")?;
            Message::Origin
        }
        found => return Err(unknown("kind", found)),
    };
    match input.0.len() {
        0 => Ok(message),
        left => Err(DecodeError::TooLong(left)),
    }
}

fn relation(input: &mut Input) -> Result<Relation, DecodeError> {
    let id = input.u32("relation")?;
    let schema = match input.text("schema name")? {
        // How the protocol abbreviates it.
        empty if empty.is_empty() => "pg_catalog".into(),
        schema => schema,
    };
    let name = input.text("table name")?;
    input.byte("replica identity")?;
    let count = input.u16("count of columns")?;
    // A column takes ten bytes at least: what cannot be there is not reserved.
    let mut columns = Vec::with_capacity(usize::from(count).min(input.0.len() / 10));
    for _ in 0..count {
        let flags = input.byte("column flags")?;
        columns.push(Column {
            name: input.text("column name")?,
            identity: flags & 1 != 0,
            type_id: input.u32("column type")?,
            type_modifier: input.u32("column type modifier")? as i32,
        });
    }
    Ok(Relation {
        id,
        schema,
        name,
        columns,
    })
}

fn old(kind: u8, input: &mut Input) -> Result<Old, DecodeError> {
    match kind {
        b'K' => Ok(Old::Identity(tuple(input)?)),
        b'O' => Ok(Old::Full(tuple(input)?)),
        found => Err(unknown("tuple kind", found)),
    }
}

fn tuple(input: &mut Input) -> Result<Tuple, DecodeError> {
    let count = input.u16("count of values")?;
    let mut values = Vec::with_capacity(usize::from(count).min(input.0.len()));
    for _ in 0..count {
        values.push(match input.byte("value kind")? {
            b'n' => Value::Null,
            b'u' => Value::Unchanged,
            b't' => {
                let length = input.length("value length")?;
                Value::Text(input.bytes(length, "value")?)
            }
            found => return Err(unknown("value kind", found)),
        });
    }
    Ok(values)
}

fn truncate(input: &mut Input) -> Result<Message, DecodeError> {
    let count = input.length("count of tables")?;
    input.byte("truncate options")?;
    let mut relations = Vec::with_capacity(count.min(input.0.len() / 4));
    for _ in 0..count {
        relations.push(input.u32("relation")?);
    }
    Ok(Message::Truncate { relations })
}

fn logical(input: &mut Input) -> Result<Message, DecodeError> {
    input.byte("message flags")?;
    input.u64("message position")?;
    let prefix = input.text("message prefix")?;
    let length = input.length("message length")?;
    let content = input.bytes(length, "message")?;
    Ok(Message::Logical { prefix, content })
}

fn unknown(what: &'static str, found: u8) -> DecodeError {
    DecodeError::Unknown { what, found }
}

/// What is left of a message; every taking is checked.
struct Input(Bytes);

impl Input {
    fn need(&self, count: usize, what: &'static str) -> Result<(), DecodeError> {
        if self.0.len() < count {
            return Err(DecodeError::Truncated(what));
        }
        Ok(())
    }

    fn byte(&mut self, what: &'static str) -> Result<u8, DecodeError> {
        self.need(1, what)?;
        Ok(self.0.get_u8())
    }

    fn u16(&mut self, what: &'static str) -> Result<u16, DecodeError> {
        self.need(2, what)?;
        Ok(self.0.get_u16())
    }

    fn u32(&mut self, what: &'static str) -> Result<u32, DecodeError> {
        self.need(4, what)?;
        Ok(self.0.get_u32())
    }

    fn u64(&mut self, what: &'static str) -> Result<u64, DecodeError> {
        self.need(8, what)?;
        Ok(self.0.get_u64())
    }

    /// A signed 32-bit number that must not be negative.
    fn length(&mut self, what: &'static str) -> Result<usize, DecodeError> {
        let length = self.u32(what)? as i32;
        usize::try_from(length).map_err(|_| DecodeError::Negative(what))
    }

    fn bytes(&mut self, count: usize, what: &'static str) -> Result<Bytes, DecodeError> {
        self.need(count, what)?;
        Ok(self.0.split_to(count))
    }

    /// A text that ends with a zero byte.
    fn text(&mut self, what: &'static str) -> Result<String, DecodeError> {
        let end = self.0.iter().position(|&b| b == 0);
        let end = end.ok_or(DecodeError::Truncated(what))?;
        let text = self.0.split_to(end);
        self.0.advance(1);
        String::from_utf8(text.to_vec()).map_err(|_| DecodeError::NotText(what))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A column of text, as a tuple holds it.
    fn text(value: &[u8]) -> Vec<u8> {
        let mut bytes = vec![b't'];
        bytes.extend((value.len() as u32).to_be_bytes());
        bytes.extend(value);
        bytes
    }

    fn table() -> Vec<u8> {
        let mut bytes = b"R\0\0\x40\x01public\0contact\0d\0\x02".to_vec();
        bytes.extend(b"\x01id\0\0\0\0\x17\xff\xff\xff\xff");
        bytes.extend(b"\0name\0\0\0\0\x19\xff\xff\xff\xff");
        bytes
    }

    fn update() -> Vec<u8> {
        let mut bytes = b"U\0\0\x40\x01K\0\x02".to_vec();
        bytes.extend(text(b"7"));
        bytes.extend(b"nN\0\x02");
        bytes.extend(text(b"8"));
        bytes.push(b'u');
        bytes
    }

    fn examples() -> Vec<Vec<u8>> {
        let mut begin = b"B".to_vec();
        begin.extend([0, 0, 0, 1, 0, 0, 0, 2]);
        begin.extend([0; 8]);
        begin.extend([0, 0, 3, 0xE8]);
        let mut commit = b"C\0".to_vec();
        commit.extend([0, 0, 0, 1, 0, 0, 0, 2]);
        commit.extend([0, 0, 0, 1, 0, 0, 0, 0x32]);
        commit.extend([0; 8]);
        let mut insert = b"I\0\0\x40\x01N\0\x02".to_vec();
        insert.extend(text(b"7"));
        insert.push(b'n');
        let mut delete = b"D\0\0\x40\x01O\0\x01".to_vec();
        delete.extend(text(b"7"));
        let mut logical = b"M\x01\0\0\0\0\0\0\0\x09mine\0".to_vec();
        logical.extend([0, 0, 0, 2, b'h', b'i']);
        vec![
            begin,
            commit,
            table(),
            insert,
            update(),
            delete,
            b"T\0\0\0\x02\0\0\0\x40\x01\0\0\x40\x02".to_vec(),
            logical,
            b"Y\0\0\0\x01public\0colour\0".to_vec(),
            b"O\0\0\0\0\0\0\0\x01there\0".to_vec(),
        ]
    }

    fn value(text: &'static str) -> Value {
        Value::Text(Bytes::from_static(text.as_bytes()))
    }

    #[test]
    fn every_kind_of_message() {
        let decoded: Vec<Message> = examples()
            .into_iter()
            .map(|bytes| decode(bytes.into()).expect("an example"))
            .collect();
        let relation = 0x4001;
        let column = |name: &str, identity, type_id| Column {
            name: name.into(),
            identity,
            type_id,
            type_modifier: -1,
        };
        let expected = vec![
            Message::Begin {
                commit: 1 << 32 | 2,
                xid: 1000,
            },
            Message::Commit {
                end: 1 << 32 | 0x32,
            },
            Message::Relation(Relation {
                id: relation,
                schema: "public".into(),
                name: "contact".into(),
                columns: vec![column("id", true, 23), column("name", false, 25)],
            }),
            Message::Insert {
                relation,
                new: vec![value("7"), Value::Null],
            },
            Message::Update {
                relation,
                old: Old::Identity(vec![value("7"), Value::Null]),
                new: vec![value("8"), Value::Unchanged],
            },
            Message::Delete {
                relation,
                old: Old::Full(vec![value("7")]),
            },
            Message::Truncate {
                relations: vec![relation, 0x4002],
            },
            Message::Logical {
                prefix: "mine".into(),
                content: Bytes::from_static(b"hi"),
            },
            Message::Type,
            Message::Origin,
        ];
        assert_eq!(decoded, expected);
    }

    #[test]
    fn every_shorter_message_is_an_error() {
        for bytes in examples() {
            for length in 0..bytes.len() {
                let short = Bytes::copy_from_slice(&bytes[..length]);
                assert!(decode(short).is_err(), "{bytes:?} up to {length}");
            }
        }
    }

    #[test]
    fn what_the_protocol_does_not_know() {
        let mut long = update();
        long.push(0);
        assert_eq!(decode(long.into()), Err(DecodeError::TooLong(1)));
        let kind = decode(Bytes::from_static(b"S"));
        assert_eq!(kind, Err(unknown("kind", b'S')));
        let negative = decode(Bytes::from_static(b"T\xff\xff\xff\xff\0"));
        assert_eq!(negative, Err(DecodeError::Negative("count of tables")));
        let huge = decode(Bytes::from_static(b"T\x7f\xff\xff\xff\0"));
        assert_eq!(huge, Err(DecodeError::Truncated("relation")));
        let name = decode(Bytes::from_static(b"Y\0\0\0\x01\xff\0\0"));
        assert_eq!(name, Err(DecodeError::NotText("schema name")));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            let _ = decode(bytes.into());
        }

        #[test]
        fn no_damage_panics(which in 0..10_usize, at: prop::sample::Index, byte: u8) {
            let mut bytes = examples().swap_remove(which);
            let at = at.index(bytes.len());
            bytes[at] = byte;
            let _ = decode(bytes.into());
        }
    }
}
