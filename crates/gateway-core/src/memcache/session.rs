//! A connection's first byte tells which protocol it speaks.

use super::binary::{BinarySession, REQUEST_MAGIC};
use super::text::TextSession;
use crate::keyspace::Keyspace;
use crate::session::{Driven, Session, Wants};
use crate::world::World;

/// One connection of a memcached client.
#[derive(Clone, Debug, Default)]
pub struct MemcacheSession {
    protocol: Protocol,
}

#[derive(Clone, Debug, Default)]
enum Protocol {
    #[default]
    Undecided,
    Text(TextSession),
    Binary(BinarySession),
}

impl MemcacheSession {
    /// A new connection's.
    pub fn new() -> Self {
        Self::default()
    }
}

/// What stands behind the name of a command, up to the next blank or the line's end.
fn second_word(line: &[u8]) -> Option<&[u8]> {
    const NAME_LEN_MAX: usize = 16;
    const KEY_LEN_MAX: usize = 250;
    let name = line.iter().take(NAME_LEN_MAX);
    let rest = &line[name.take_while(|byte| **byte != b' ').count()..];
    let rest = rest.strip_prefix(b" ")?;
    let key = rest.iter().take(KEY_LEN_MAX + 1);
    let len = key.take_while(|byte| **byte > b' ').count();
    (1..=KEY_LEN_MAX).contains(&len).then(|| &rest[..len])
}

impl Session for MemcacheSession {
    fn drive<K: Keyspace>(
        &mut self,
        input: &[u8],
        out: &mut Vec<u8>,
        out_len_max: usize,
        world: &mut World<'_, K>,
    ) -> Driven {
        loop {
            match &mut self.protocol {
                Protocol::Text(text) => return text.drive(input, out, out_len_max, world),
                Protocol::Binary(binary) => return binary.drive(input, out, out_len_max, world),
                Protocol::Undecided => {}
            }
            self.protocol = match input.first() {
                None => {
                    return Driven {
                        consumed: 0,
                        wants: Wants::Input(0),
                    };
                }
                Some(&REQUEST_MAGIC) => Protocol::Binary(BinarySession::new()),
                Some(_) => Protocol::Text(TextSession::default()),
            };
        }
    }

    #[inline]
    fn key_ahead<'a>(&self, input: &'a [u8]) -> Option<&'a [u8]> {
        match &self.protocol {
            Protocol::Text(_) => second_word(input),
            Protocol::Undecided | Protocol::Binary(_) => None,
        }
    }

    fn refuse_unfinished(&mut self, input: &[u8], out: &mut Vec<u8>) -> bool {
        match &mut self.protocol {
            Protocol::Text(text) => text.refuse_unfinished(input, out),
            Protocol::Undecided | Protocol::Binary(_) => false,
        }
    }

    fn is_authenticated(&self) -> bool {
        match &self.protocol {
            Protocol::Undecided => false,
            Protocol::Text(text) => text.is_authenticated(),
            Protocol::Binary(binary) => binary.is_authenticated(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::second_word;

    #[test]
    fn keys_are_seen_ahead() {
        let cases: [(&str, Option<&str>); 8] = [
            ("get k\r\n", Some("k")),
            ("set key 0 0 1\r\nx\r\n", Some("key")),
            ("mg of-meta v\r\n", Some("of-meta")),
            ("get a b c\r\n", Some("a")),
            ("version\r\n", None),
            ("get \r\n", None),
            ("a-name-of-no-command k\r\n", None),
            ("", None),
        ];
        for (input, key) in cases {
            assert_eq!(
                second_word(input.as_bytes()),
                key.map(str::as_bytes),
                "{input}"
            );
        }
        let long = |len: usize| format!("get {}\r\n", "k".repeat(len));
        assert!(second_word(long(250).as_bytes()).is_some());
        assert_eq!(second_word(long(251).as_bytes()), None);
    }
}
