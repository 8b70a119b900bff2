//! The first message to a client, with which its lane comes:
//!
//! | word | field | why |
//! |---|---|---|
//! | 0 | magic | |
//! | 1 | outcome: 0 welcome, 1 full, 2 no memory, 3 ending; to an engine also 4 draining, 5 forgotten, 6 superseded | |
//! | 2 | epoch | of the lane's terms |
//! | 3 | client id | likewise |
//! | 4 | slot count | likewise |
//! | 5 | service: 1 cache, 2 rocksdb | a client that expects the other one notices |
//! | 6 | durable: 1 | what a commit means |
//! | 7 | most clients | for the words of a refusal |
//!
//! With outcome 0 come three descriptors: order, lane, bell.

use trefoil_ordered::lane::Terms;

/// "TFQJOIN1", little endian.
pub const MAGIC: u64 = u64::from_le_bytes(*b"TFQJOIN1");
const WORDS: usize = 8;
/// Bytes of the message.
pub const LEN: usize = WORDS * 8;
/// Descriptors of a welcome.
pub const DESCRIPTORS: usize = 3;

/// What keeps the values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceKind {
    /// Trefoil's own store.
    Cache = 1,
    /// RocksDB.
    Rocksdb = 2,
}

impl ServiceKind {
    /// Both.
    pub const ALL: [ServiceKind; 2] = [ServiceKind::Cache, ServiceKind::Rocksdb];

    /// As users call it.
    pub fn name(self) -> &'static str {
        match self {
            ServiceKind::Cache => "cache",
            ServiceKind::Rocksdb => "rocksdb",
        }
    }
}

/// What became of a client's coming.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It has a lane.
    Welcome = 0,
    /// As many clients as the server takes are there.
    Full = 1,
    /// The server could make no lane.
    NoMemory = 2,
    /// The server ends.
    Ending = 3,
    /// What this producer has sent before is still being executed.
    Draining = 4,
    /// Nothing is known of what this producer has sent before.
    Forgotten = 5,
    /// A later claim of this producer has been heard.
    Superseded = 6,
}

impl Outcome {
    const ALL: [Outcome; 7] = [
        Outcome::Welcome,
        Outcome::Full,
        Outcome::NoMemory,
        Outcome::Ending,
        Outcome::Draining,
        Outcome::Forgotten,
        Outcome::Superseded,
    ];
}

/// The message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// Whether there is a lane.
    pub outcome: Outcome,
    /// The lane's terms, with a welcome.
    pub terms: Terms,
    /// What is behind the queue.
    pub service: ServiceKind,
    /// Whether a commit means persistent.
    pub is_durable: bool,
    /// Most clients at a time.
    pub client_count_max: u64,
}

/// What serves a queue, as clients elsewhere are told by its engine: the service's number,
/// and 256 besides if a commit means persistent.
const ABOUT_DURABLE: u64 = 1 << 8;

/// What that word says; `None`: it is none of this version.
pub(crate) fn about(word: u64) -> Option<(ServiceKind, bool)> {
    let number = word & !ABOUT_DURABLE;
    let service = ServiceKind::ALL
        .into_iter()
        .find(|of| *of as u64 == number)?;
    Some((service, word & ABOUT_DURABLE != 0))
}

impl Welcome {
    /// What serves it, in a word.
    pub(crate) fn about(&self) -> u64 {
        let durable = if self.is_durable { ABOUT_DURABLE } else { 0 };
        self.service as u64 | durable
    }

    /// Its bytes.
    pub fn encode(&self) -> [u8; LEN] {
        let words: [u64; WORDS] = [
            MAGIC,
            self.outcome as u64,
            self.terms.epoch,
            self.terms.client_id,
            u64::from(self.terms.slot_count),
            self.service as u64,
            u64::from(self.is_durable),
            self.client_count_max,
        ];
        let mut bytes = [0; LEN];
        for (at, word) in words.into_iter().enumerate() {
            bytes[at * 8..][..8].copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Reads it; `None`: it is none of this version.
    pub fn decode(bytes: &[u8; LEN]) -> Option<Self> {
        let mut words = [0; WORDS];
        for (at, word) in words.iter_mut().enumerate() {
            *word = u64::from_le_bytes(bytes[at * 8..][..8].try_into().ok()?);
        }
        let [
            MAGIC,
            outcome,
            epoch,
            client_id,
            slots,
            service,
            durable,
            most,
        ] = words
        else {
            return None;
        };
        Some(Welcome {
            outcome: Outcome::ALL.into_iter().find(|of| *of as u64 == outcome)?,
            terms: Terms {
                epoch,
                client_id,
                slot_count: slots.try_into().ok()?,
            },
            service: ServiceKind::ALL
                .into_iter()
                .find(|of| *of as u64 == service)?,
            is_durable: match durable {
                0 => false,
                1 => true,
                _ => return None,
            },
            client_count_max: most,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_welcome_is_read_as_it_was_spelled_and_nothing_else_is() {
        let welcome = Welcome {
            outcome: Outcome::Full,
            terms: Terms {
                epoch: 3,
                client_id: 9,
                slot_count: 256,
            },
            service: ServiceKind::Rocksdb,
            is_durable: true,
            client_count_max: 64,
        };
        let bytes = welcome.encode();
        assert_eq!(Welcome::decode(&bytes), Some(welcome));
        for at in [0, 8, 39, 40, 48] {
            let mut other = bytes;
            other[at] ^= 0x40;
            assert_eq!(Welcome::decode(&other), None, "byte {at}");
        }
    }
}
