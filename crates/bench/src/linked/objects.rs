//! The objects and what is asked of them.

use std::time::Instant;

use address_book_contract::v1::{AddressBook, ChangeRequest, LookupRequest};
use address_book_contract::{owner, sample_book};
use bytes::Bytes;
use prost::Message as _;
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};

/// Objects of one size, and requests for part of each.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ObjectSet {
    /// Bytes of each, marshalled.
    pub object_len: usize,
    /// How many there are.
    pub objects_count: u64,
    /// Percent of an object's contacts that a request is about: 100 means no
    /// overread.
    pub used_percent: u32,
    /// Whether a change of all contacts may overwrite the object without having
    /// read it. Otherwise the rest of it stays, as a calendar beside the
    /// contacts has to: a stateless server reads, modifies and writes.
    pub overwrites: bool,
}

/// One request, ready to be sent.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Prepared {
    /// The key.
    pub(super) owner: u64,
    /// The message.
    pub(super) message: Bytes,
    pub(super) is_lookup: bool,
}

/// Changes are prepared in advance, in so many variants: marshalling them anew
/// would take the callers' CPU from the servers.
const VARIANTS_COUNT: u64 = 8;

/// Makes requests: uniform keys, parts from anywhere.
pub(super) struct Requests {
    set: ObjectSet,
    lookup_share: f64,
    contacts_count: u32,
    used_count: u32,
    variants: Vec<AddressBook>,
    rng: SmallRng,
}

impl Requests {
    pub(super) fn new(set: ObjectSet, lookup_share: f64, seed: u64) -> Self {
        let variant = |number| sample_book(set.objects_count + number, set.object_len);
        let variants: Vec<_> = (0..VARIANTS_COUNT).map(variant).collect();
        // Objects differ by a contact or so: a request asks for what all have.
        let lens = variants.iter().map(|book| book.contacts.len() as u32);
        let contacts_count = lens.min().unwrap_or(1).max(1);
        Requests {
            set,
            lookup_share,
            contacts_count,
            used_count: used_count(contacts_count, set.used_percent),
            variants,
            rng: SmallRng::seed_from_u64(seed),
        }
    }

    /// The next request.
    pub(super) fn next(&mut self) -> Prepared {
        let number = self.rng.random_range(0..self.set.objects_count.max(1));
        let is_whole = self.set.used_percent >= 100;
        let first = match is_whole {
            true => 0,
            false => self
                .rng
                .random_range(0..=self.contacts_count - self.used_count),
        };
        let is_lookup = self.rng.random::<f64>() < self.lookup_share;
        let message = if is_lookup {
            let request = LookupRequest {
                owner: owner(number),
                first,
                // All there are, where all are used.
                count: if is_whole { u32::MAX } else { self.used_count },
            };
            request.encode_to_vec()
        } else {
            let variant = self.rng.random_range(0..self.variants.len());
            self.change(number, first, variant, is_whole)
                .encode_to_vec()
        };
        Prepared {
            owner: number,
            message: message.into(),
            is_lookup,
        }
    }

    /// Replaces the part that is used, by another object's contacts.
    fn change(&self, number: u64, first: u32, variant: usize, whole: bool) -> ChangeRequest {
        let contacts = &self.variants[variant].contacts;
        let contacts = match whole {
            true => contacts.clone(),
            false => contacts[first as usize..(first + self.used_count) as usize].to_vec(),
        };
        ChangeRequest {
            owner: owner(number),
            whole: whole && self.set.overwrites,
            first,
            contacts,
            events: Vec::new(),
        }
    }
}

fn used_count(contacts_count: u32, used_percent: u32) -> u32 {
    let used = u64::from(contacts_count) * u64::from(used_percent.min(100));
    (used.div_ceil(100) as u32).clamp(1, contacts_count)
}

/// The request that stores object `number` as it is at the beginning.
pub(super) fn fill_request(set: &ObjectSet, number: u64) -> ChangeRequest {
    ChangeRequest {
        owner: owner(number),
        whole: true,
        contacts: sample_book(number, set.object_len).contacts,
        ..ChangeRequest::default()
    }
}

/// Nanoseconds to marshal and to unmarshal one of these objects, warm.
pub(super) fn marshalling_ns(object_len: usize) -> (f64, f64) {
    let book = sample_book(1, object_len);
    let bytes = Bytes::from(book.encode_to_vec());
    let rounds = (4_000_000 / object_len.max(1)).clamp(5, 20_000);
    let timed = |work: &dyn Fn()| {
        work();
        let begin = Instant::now();
        (0..rounds).for_each(|_| work());
        begin.elapsed().as_nanos() as f64 / rounds as f64
    };
    let marshal = timed(&|| drop(std::hint::black_box(book.encode_to_vec())));
    let unmarshal = timed(&|| drop(std::hint::black_box(AddressBook::decode(bytes.clone()))));
    (marshal, unmarshal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_for_the_part_that_is_used() {
        for (object_len, used_percent) in [(100, 10), (10_000, 10), (10_000, 50), (10_000, 100)] {
            let set = ObjectSet {
                object_len,
                objects_count: 50,
                used_percent,
                overwrites: used_percent == 50,
            };
            let mut requests = Requests::new(set, 0.8, 5);
            let mut lookups_count = 0;
            for _ in 0..500 {
                let request = requests.next();
                assert!(request.owner < 50);
                if !request.is_lookup {
                    let change = ChangeRequest::decode(request.message).unwrap();
                    let share = change.encoded_len() as f64 / object_len as f64;
                    let wanted = f64::from(used_percent) / 100.0;
                    // A small object is one contact, all or nothing.
                    assert!(
                        object_len < 1_000 || (share - wanted).abs() < 0.05,
                        "{share}"
                    );
                    assert!(!change.whole);
                    continue;
                }
                lookups_count += 1;
                let lookup = LookupRequest::decode(request.message).unwrap();
                assert_eq!(lookup.owner, owner(request.owner));
                assert_eq!(lookup.count == u32::MAX, used_percent == 100);
            }
            assert!((360..440).contains(&lookups_count), "{lookups_count}");
        }
    }

    #[test]
    fn marshalling_takes_time_that_grows() {
        let (small, large) = (marshalling_ns(100), marshalling_ns(100_000));
        assert!(small.0 > 0.0 && large.0 > small.0 && large.1 > small.1);
    }
}
