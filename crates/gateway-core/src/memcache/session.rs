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
