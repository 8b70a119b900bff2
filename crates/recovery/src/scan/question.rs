//! What a replica of a cohort is asked in a scan, and what it answers.

use crate::page::Data;
use trefoil_layout::data::DataEntry;
use trefoil_layout::op::{Ack, Action, Mutation};
use trefoil_layout::{KeyHash, Version};
use trefoil_store::KeyState;

/// What to ask a replica. `D` holds the bytes of values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question<D> {
    /// How many items it has, and whether it votes.
    Begin,
    /// Digests of equal parts of some ranges of places.
    Digests {
        /// Where the ranges begin.
        starts: Vec<u64>,
        /// Places of each.
        len: u64,
        /// Parts of each, a divisor of `len`.
        parts: u32,
    },
    /// Which keys have a value there, and its version.
    Held {
        /// Where the ranges begin.
        starts: Vec<u64>,
        /// Places of each.
        len: u64,
    },
    /// What it knows of these keys.
    States {
        /// By their hashes.
        keys: Vec<KeyHash>,
    },
    /// A value, or only the key that it is of.
    Item {
        /// The key's hash.
        hash: KeyHash,
        /// Of no use at any other version.
        version: Version,
        /// The value is not wanted.
        key_only: bool,
    },
    /// To execute a mutation; at most once.
    Mutate(Order<D>),
}

/// A mutation, with the item that it is of as a replica holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order<D> {
    /// SET, ERASE or CAS.
    pub action: Action,
    /// Its own.
    pub version: Version,
    /// A data entry. Of an ERASE's only the key counts, and it may be all there is.
    pub item: Data<D>,
}

impl<D: AsRef<[u8]>> Order<D> {
    /// As a replica's store takes it. `None` if the item is no data entry.
    pub fn mutation(&self) -> Option<Mutation<'_>> {
        let entry = match &self.item {
            Data::Whole(data) => DataEntry::decode(data.as_ref())?,
            Data::Long { key } => DataEntry {
                key: key.as_ref(),
                ..DataEntry::default()
            },
        };
        // Who erases what it holds has all of it. Others refuse an ERASE with a value.
        let entry = match self.action {
            Action::Erase => DataEntry {
                key: entry.key,
                ..DataEntry::default()
            },
            _ => entry,
        };
        Some(Mutation {
            action: self.action,
            version: self.version,
            entry,
        })
    }
}

/// What a replica has answered. An epoch is [`trefoil_layout::epoch::NONE`] where it
/// gives no vote.
#[derive(Clone, Debug)]
pub enum Reply<D> {
    /// To [`Question::Begin`].
    Begin {
        /// The shard's.
        epoch: u32,
        /// In the shard.
        items: u64,
    },
    /// To [`Question::Digests`]: for each range its parts.
    Digests {
        /// The shard's.
        epoch: u32,
        /// In the order of the question.
        sums: Vec<u64>,
    },
    /// To [`Question::Held`].
    Held {
        /// The shard's.
        epoch: u32,
        /// There are too many: this is a part of them, and of no use.
        is_cut: bool,
        /// In any order.
        held: Vec<(KeyHash, Version)>,
    },
    /// To [`Question::States`].
    States {
        /// It evicts for whatever new it stores.
        is_full: bool,
        /// In the order of the question.
        states: Vec<KeyState>,
    },
    /// To [`Question::Item`]: its data entry, or its key if that was wanted; `None` if it
    /// is no longer of that version.
    Item(Option<Data<D>>),
    /// To [`Question::Mutate`].
    Ack(Ack),
}

impl<D> Reply<D> {
    /// The same with bytes of another kind.
    pub fn map<E>(self, convert: impl FnOnce(D) -> E) -> Reply<E> {
        match self {
            Reply::Begin { epoch, items } => Reply::Begin { epoch, items },
            Reply::Digests { epoch, sums } => Reply::Digests { epoch, sums },
            Reply::Held {
                epoch,
                is_cut,
                held,
            } => Reply::Held {
                epoch,
                is_cut,
                held,
            },
            Reply::States { is_full, states } => Reply::States { is_full, states },
            Reply::Item(item) => Reply::Item(item.map(|data| match data {
                Data::Whole(data) => Data::Whole(convert(data)),
                Data::Long { key } => Data::Long { key: convert(key) },
            })),
            Reply::Ack(ack) => Reply::Ack(ack),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever erases may hold the whole item, and others refuse an ERASE with a value.
    #[test]
    fn an_erase_has_no_value_whatever_is_held() {
        let entry = DataEntry {
            key: b"key",
            value: b"value",
            client_flags: 7,
            ..DataEntry::default()
        };
        let mut data = vec![0; entry.encoded_len()];
        entry.encode(&mut data, 5, Version::new(1, 2, 3));
        let order = |action| Order {
            action,
            version: Version::new(4, 5, 6),
            item: Data::Whole(data.clone()),
        };
        let erase = order(Action::Erase);
        let erase = erase.mutation().unwrap();
        assert_eq!(
            (erase.entry.key, erase.entry.value),
            (&b"key"[..], &b""[..])
        );
        assert_eq!(erase.entry.client_flags, 0);
        let set = order(Action::Set);
        assert_eq!(set.mutation().unwrap().entry, entry);
    }
}
