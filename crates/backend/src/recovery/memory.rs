//! The memory of another process of this host, to be copied from: it says where values
//! stand, and they are read from there. So a copy costs the one that serves next to nothing,
//! and nothing is packed into messages and out of them.
//!
//! What was read is judged as any reader judges it: by its checksum, which covers the
//! version. A value is the same wherever it stands, so nothing else has to hold. What moved,
//! went or was replaced meanwhile is asked for by message.

use crate::background;
use bytes::{Bytes, BytesMut};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use trefoil_cell::CellConfig;
use trefoil_fabric::shm::{ConnectOptions, Copier};
use trefoil_layout::data::DataEntry;
use trefoil_layout::{Pointer, epoch};
use trefoil_recovery::{Data, Item, PLACED_LEN, Page, Placed};
use trefoil_region::WordBuffer;
use trefoil_rpc::{ContractError, v1};
use trefoil_store::{Position, Recency};

/// How long the greeting may take. Who is later than this is asked by message.
const CONNECT_PATIENCE: Duration = Duration::from_millis(500);
/// No entry is longer that is named instead of sent.
const LEN_MAX: usize = 128 << 10;
/// If more of a page is gone, all of it is asked for by message.
const MISSED_MAX: usize = 64;
/// Words of [`Placed`] in a message.
const WORDS: usize = 6;
/// Values that one page names, at most: those that fill it, and in each of 256 partitions
/// the rest of a bucket's.
const PLACED_COUNT_MAX: usize = 64 << 10;
/// Bytes that are read of one page. What it names behind them comes with the next one.
const READ_LEN_MAX: usize = 4 * PLACED_LEN;

const _: () = assert!(LEN_MAX <= READ_LEN_MAX);

/// The memory of one backend, once it has given it, if it does.
#[derive(Debug)]
pub(crate) struct Memory {
    is: Mutex<Is>,
}

#[derive(Debug)]
enum Is {
    Untried {
        backend: u32,
        config: Box<CellConfig>,
    },
    Refused,
    Open(Box<Open>),
}

#[derive(Debug)]
struct Open {
    copier: Copier,
    buffer: WordBuffer,
    /// Room for the values of pages, in turn: that of the page before the last is free.
    rooms: [BytesMut; 2],
}

/// What of a page could not be read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Missed {
    /// These places.
    Places(Missing),
    /// Too much of it.
    All,
}

/// Places of a page, in order, that are asked for by message: all at once, and what one
/// answer has no room for again.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Missing {
    places: Vec<Range<u64>>,
}

impl Memory {
    /// Of a backend of this cell. Nothing is connected yet.
    pub(crate) fn new(config: &CellConfig, backend: u32) -> Self {
        let config = Box::new(config.clone());
        let is = Is::Untried { backend, config };
        Memory { is: Mutex::new(is) }
    }

    /// Whether values can be read; asks for the memory at first.
    pub(crate) fn is_open(&self) -> bool {
        let mut is = self.is.lock().unwrap_or_else(PoisonError::into_inner);
        if let Is::Untried { backend, config } = &*is {
            *is = match connect(config, *backend) {
                Some(open) => Is::Open(Box::new(open)),
                None => Is::Refused,
            };
        }
        matches!(&*is, Is::Open(_))
    }

    /// Reads what `placed` names into the page; of one that names very much only the first
    /// part, where the page ends then.
    pub(crate) fn read(&self, placed: Vec<Placed>, page: &mut Page<Bytes>) -> Missed {
        let mut is = self.is.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *is {
            Is::Open(open) => open.read(placed, page),
            _ if placed.is_empty() => Missed::Places(Missing::default()),
            _ => Missed::All,
        }
    }
}

fn connect(config: &CellConfig, backend: u32) -> Option<Open> {
    let socket = config.backend(backend)?.fabric_socket.as_ref()?;
    let options = ConnectOptions {
        timeout: CONNECT_PATIENCE,
        ..ConnectOptions::default()
    };
    let copier = Copier::connect(socket, backend, &options);
    let copier = copier
        .inspect_err(|error| tracing::info!(backend, %error, "its values are copied by messages"));
    let copier = copier.ok()?;
    (copier.topology().life == config.life).then_some(Open {
        copier,
        buffer: WordBuffer::default(),
        rooms: [BytesMut::new(), BytesMut::new()],
    })
}

impl Open {
    fn read(&mut self, mut placed: Vec<Placed>, page: &mut Page<Bytes>) -> Missed {
        if placed.is_empty() {
            return Missed::Places(Missing::default());
        }
        placed.sort_unstable_by_key(place_of);
        let Some((count, len)) = readable(&placed) else {
            return Missed::All;
        };
        if let Some(first_left) = placed.get(count) {
            // Long values that it names behind are named again by the next one.
            page.next = place_of(first_left);
        }
        self.rooms.swap(0, 1);
        let room = &mut self.rooms[0];
        room.reserve(len);
        let mut missed: Vec<Range<u64>> = Vec::new();
        for one in &placed[..count] {
            background::leave_core();
            let is_there = one.pointer.len() <= LEN_MAX
                && self.copier.read(one.pointer, &mut self.buffer).is_ok()
                && is_sound(self.buffer.bytes(), one);
            if !is_there {
                let place = place_of(one)..place_of(one) + 1;
                if missed.last() != Some(&place) {
                    missed.push(place);
                }
                if missed.len() > MISSED_MAX {
                    return Missed::All;
                }
                continue;
            }
            room.extend_from_slice(self.buffer.bytes());
            page.items.push(Item {
                version: one.version,
                recency: one.recency,
                data: Data::Whole(room.split().freeze()),
            });
        }
        Missed::Places(Missing { places: missed })
    }
}

fn place_of(placed: &Placed) -> u64 {
    Position::place_of(placed.hash)
}

/// How many of `placed`, in the order of their places, are read, and their bytes: whole
/// places, as far as [`READ_LEN_MAX`] goes. `None` if that is not even one.
fn readable(placed: &[Placed]) -> Option<(usize, usize)> {
    let (mut count, mut len) = (0, 0);
    for place in placed.chunk_by(|one, next| place_of(one) == place_of(next)) {
        let lens = place.iter().map(|placed| placed.pointer.len());
        let more: usize = lens.filter(|len| *len <= LEN_MAX).sum();
        if len + more > READ_LEN_MAX {
            break;
        }
        count += place.len();
        len += more;
    }
    (count > 0).then_some((count, len))
}

fn is_sound(bytes: &[u8], placed: &Placed) -> bool {
    let key = DataEntry::decode(bytes).map(|entry| entry.key);
    key.is_some_and(|key| DataEntry::validate(bytes, placed.hash.tag, placed.version, key).is_ok())
}

impl Missing {
    /// What to ask for now.
    pub(crate) fn places(&self) -> Option<&[Range<u64>]> {
        (!self.places.is_empty()).then_some(&self.places)
    }

    /// The answer, which belongs to the page.
    pub(crate) fn take(
        &mut self,
        more: Page<Bytes>,
        page: &mut Page<Bytes>,
    ) -> Result<(), ContractError> {
        let next = more.next;
        if self.places.first().is_none_or(|first| next <= first.start) {
            return Err(ContractError::OutOfRange {
                field: "next",
                found: next,
                why: "not behind the first place that was asked for",
            });
        }
        add(page, more);
        self.places.retain(|range| range.end > next);
        if let Some(first) = self.places.first_mut() {
            first.start = first.start.max(next);
        }
        Ok(())
    }
}

/// The request's places: all of them, and from the first to the last of them for a server
/// that knows no more than that.
pub(crate) fn encode_places(places: &[Range<u64>]) -> (Range<u64>, Vec<v1::PlaceRange>) {
    let range = |range: &Range<u64>| v1::PlaceRange {
        from: range.start,
        until: range.end,
    };
    let first = places.first().map_or(0, |first| first.start);
    let end = places.last().map_or(0, |last| last.end);
    let ranges = match places {
        [_] => Vec::new(),
        _ => places.iter().map(range).collect(),
    };
    (first..end, ranges)
}

/// What was asked for by message belongs to the page; what is of another epoch makes it no
/// vote.
fn add(page: &mut Page<Bytes>, more: Page<Bytes>) {
    page.items.extend(more.items);
    if more.epoch != page.epoch {
        page.epoch = epoch::NONE;
    }
}

pub(crate) fn encode_placed(placed: &[Placed]) -> Vec<u64> {
    let words = |one: &Placed| -> [u64; WORDS] {
        let (hash, version) = (one.hash, one.version);
        let recency = one.recency.bits().into();
        [
            hash.place,
            hash.tag,
            version.time_ns,
            version.origin,
            one.pointer.0,
            recency,
        ]
    };
    placed.iter().flat_map(words).collect()
}

/// Refuses a page that names values elsewhere than it was asked for, or than it says that it
/// has told of.
pub(crate) fn check_placed(
    placed: &[Placed],
    asked: &Range<u64>,
    page: &Page<Bytes>,
) -> Result<(), ContractError> {
    let told = asked.start..asked.end.min(page.next);
    match placed.iter().find(|one| !told.contains(&place_of(one))) {
        None => Ok(()),
        Some(one) => Err(ContractError::OutOfRange {
            field: "placed",
            found: place_of(one),
            why: "a place that the page does not tell of",
        }),
    }
}

pub(crate) fn decode_placed(words: &[u64]) -> Result<Vec<Placed>, ContractError> {
    let nonsense = |why| ContractError::OutOfRange {
        field: "placed",
        found: words.len() as u64,
        why,
    };
    let (all, rest) = words.as_chunks::<WORDS>();
    if !rest.is_empty() {
        return Err(nonsense("not six words for each value"));
    }
    if all.len() > PLACED_COUNT_MAX {
        return Err(nonsense("the words of more values than one page names"));
    }
    let one = |&[place, tag, time_ns, origin, pointer, recency]: &[u64; WORDS]| {
        let is_possible = tag != 0 && u16::try_from(recency).is_ok();
        is_possible.then_some(Placed {
            hash: trefoil_layout::KeyHash { place, tag },
            version: trefoil_layout::Version { time_ns, origin },
            recency: Recency::from_bits(recency as u16),
            pointer: Pointer(pointer),
        })
    };
    let placed: Option<Vec<_>> = all.iter().map(one).collect();
    placed.ok_or_else(|| nonsense("a tag of 0, or a recency that none has"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use trefoil_layout::{KeyHash, Version};

    /// A value at a place, of that many bytes.
    fn placed(place: u64, len: usize) -> Placed {
        Placed {
            hash: KeyHash {
                place: place << (u64::BITS - Position::PLACE_BITS),
                tag: 1,
            },
            version: Version::new(1, 1, 1),
            recency: Recency::default(),
            pointer: Pointer::new(4096, len).unwrap(),
        }
    }

    fn page(next: u64) -> Page<Bytes> {
        Page {
            next,
            ..Page::default()
        }
    }

    #[test]
    fn no_more_is_read_of_a_page_than_it_should_have_and_only_whole_places() {
        let few = vec![placed(1, 1000), placed(2, 2000), placed(3, LEN_MAX + 8)];
        assert_eq!(readable(&few), Some((3, 3000)));
        let fits = READ_LEN_MAX / LEN_MAX;
        let many: Vec<Placed> = (0..1000).map(|n| placed(n, LEN_MAX)).collect();
        assert_eq!(readable(&many), Some((fits, fits * LEN_MAX)));
        // Two at each place.
        let many: Vec<Placed> = (0..1000u64).map(|n| placed(n.div_ceil(2), LEN_MAX)).collect();
        assert_eq!(readable(&many), Some((fits - 1, (fits - 1) * LEN_MAX)));
        let at_one_place = vec![placed(7, LEN_MAX); 1000];
        assert_eq!(readable(&at_one_place), None);
    }

    #[test]
    fn what_is_named_is_bounded_and_lies_where_it_was_asked_for() {
        let one = encode_placed(&[placed(5, 100)]);
        assert_eq!(decode_placed(&one), Ok(vec![placed(5, 100)]));
        assert!(decode_placed(&one[1..]).is_err());
        assert!(decode_placed(&one.repeat(PLACED_COUNT_MAX)).is_ok());
        assert!(decode_placed(&one.repeat(PLACED_COUNT_MAX + 1)).is_err());
        let found = [placed(5, 100)];
        assert_eq!(check_placed(&found, &(5..6), &page(6)), Ok(()));
        for (asked, next) in [(6..9, 9), (0..5, 5), (0..9, 5)] {
            assert!(check_placed(&found, &asked, &page(next)).is_err(), "{asked:?}");
        }
        assert_eq!(check_placed(&[], &(0..0), &page(0)), Ok(()));
    }

    #[test]
    fn many_places_are_asked_for_at_once_and_what_has_no_room_again() {
        let places: Vec<_> = (0..64).map(|n| 10 * n..10 * n + 1).collect();
        // An answer has room for so many places.
        let run = |room: usize| {
            let (mut missing, mut into, mut asked) = (Missing::default(), page(640), 0);
            missing.places.clone_from(&places);
            while let Some(places) = missing.places() {
                let last = places.iter().take(room).next_back();
                let more = page(last.map_or(0, |last| last.end));
                if let Err(error) = missing.take(more, &mut into) {
                    return (Err(error), into.next, asked);
                }
                asked += 1;
            }
            (Ok(()), into.next, asked)
        };
        assert_eq!(run(64), (Ok(()), 640, 1));
        assert_eq!(run(40), (Ok(()), 640, 2));
        assert_eq!(run(1), (Ok(()), 640, 64));
        assert!(run(0).0.is_err());
        let (all, ranges) = encode_places(&places);
        assert_eq!((all, ranges.len()), (0..631, 64));
        assert_eq!(encode_places(&places[3..4]), (30..31, Vec::new()));
    }
}
