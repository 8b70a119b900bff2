//! The memory of another process of this host, to be copied from: it says where values
//! stand, and they are read from there. So a copy costs the one that serves next to nothing,
//! and nothing is packed into messages and out of them.
//!
//! What was read is judged as any reader judges it: by its checksum, which covers the
//! version. A value is the same wherever it stands, so nothing else has to hold. What moved,
//! went or was replaced meanwhile is asked for by message.

use crate::background;
use bytes::{Bytes, BytesMut};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
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
/// After it was refused, or was of no use: at first, and at most.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// After so many pages in a row of which nothing was to be had it is of no use.
const USELESS_PAGES_MAX: u32 = 4;
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

/// So many values before it is read, a value is fetched: as long as the memory takes.
const FETCH_AHEAD: usize = 6;
/// Bytes of it: behind them the processor has understood by itself. To fetch all of 1 KiB
/// gains nothing more, and costs an instruction for each line.
const FETCH_LEN_MAX: usize = 128;

const _: () = assert!(LEN_MAX <= READ_LEN_MAX);

/// The memories of the cell's backends: each is asked for once, whatever shard it is about.
#[derive(Debug, Default)]
pub(crate) struct Memories {
    of: Mutex<BTreeMap<u32, Arc<Memory>>>,
}

impl Memories {
    /// Of backend `number`.
    pub(crate) fn of(&self, number: u32) -> Arc<Memory> {
        let mut of = self.of.lock().unwrap_or_else(PoisonError::into_inner);
        let memory = of.entry(number);
        Arc::clone(memory.or_insert_with(|| Arc::new(Memory::new(number))))
    }
}

/// The memory of one backend, once it has given it, if it does.
#[derive(Debug)]
pub(crate) struct Memory {
    backend: u32,
    link: Mutex<Link<Copier>>,
}

/// Where values are read from.
trait Source {
    /// Which memory it is.
    fn incarnation(&self) -> u64;

    /// Brings what stands there nearer: the first bytes of it.
    fn fetch(&self, pointer: Pointer, len: usize);

    /// Copies what stands there, whatever it is; `false` if nothing can.
    fn copy(&self, pointer: Pointer, into: &mut WordBuffer) -> bool;
}

impl Source for Copier {
    fn incarnation(&self) -> u64 {
        Copier::incarnation(self)
    }

    fn fetch(&self, pointer: Pointer, len: usize) {
        Copier::fetch(self, pointer, len);
    }

    fn copy(&self, pointer: Pointer, into: &mut WordBuffer) -> bool {
        self.read(pointer, into)
    }
}

/// A memory that is open, and how often it may be asked for.
#[derive(Debug)]
struct Link<S> {
    open: Option<Box<Open<S>>>,
    /// Not before then, after it was refused or of no use.
    not_before: Option<Instant>,
    pause: Duration,
    /// Pages in a row of which nothing was to be had.
    useless_pages: u32,
    /// Why it is closed, if it is; and whether the log has yet to tell.
    why: String,
    is_untold: bool,
}

#[derive(Debug)]
struct Open<S> {
    source: S,
    buffer: WordBuffer,
    /// The values of the last pages: the room of the one before is free by then.
    rooms: [Bytes; 2],
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
    /// Of that backend. Nothing is connected yet.
    pub(crate) fn new(backend: u32) -> Self {
        let link = Mutex::new(Link::default());
        Memory { backend, link }
    }

    /// Whether values can be read of the memory of this incarnation, or of any if it is 0.
    /// Asks for it if need be, from time to time.
    pub(crate) fn is_open(&self, config: &CellConfig, incarnation: u64) -> bool {
        let socket = config.backend(self.backend);
        let Some(socket) = socket.and_then(|backend| backend.fabric_socket.as_ref()) else {
            return false;
        };
        let (backend, life) = (self.backend, config.life);
        let connect = || connect(socket.as_ref(), backend, life);
        let mut link = self.lock();
        let is_open = link.open(Instant::now(), incarnation, connect);
        self.tell(&mut link);
        is_open
    }

    /// Reads what `placed` names into the page; of one that names very much only the first
    /// part, where the page ends then.
    pub(crate) fn read(&self, placed: Vec<Placed>, page: &mut Page<Bytes>) -> Missed {
        let mut link = self.lock();
        let missed = link.read(Instant::now(), placed, page);
        self.tell(&mut link);
        missed
    }

    /// Once for each reason in a row: there are as many shards and pages as there are.
    fn tell(&self, link: &mut Link<Copier>) {
        if std::mem::take(&mut link.is_untold) {
            let (backend, why) = (self.backend, &link.why);
            tracing::info!(backend, why, "its values are copied by messages");
        }
    }

    fn lock(&self) -> MutexGuard<'_, Link<Copier>> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn connect(socket: &Path, backend: u32, life: u64) -> Result<Copier, String> {
    let options = ConnectOptions {
        timeout: CONNECT_PATIENCE,
        ..ConnectOptions::default()
    };
    let copier = Copier::connect(socket, backend, &options).map_err(|e| e.to_string())?;
    match copier.topology().life == life {
        true => Ok(copier),
        false => Err("it is of another life of the cell".to_owned()),
    }
}

impl<S> Default for Link<S> {
    fn default() -> Self {
        Link {
            open: None,
            not_before: None,
            pause: Duration::ZERO,
            useless_pages: 0,
            why: String::new(),
            is_untold: false,
        }
    }
}

impl<S: Source> Link<S> {
    fn open(
        &mut self,
        now: Instant,
        incarnation: u64,
        connect: impl FnOnce() -> Result<S, String>,
    ) -> bool {
        let is_it = |source: &S| incarnation == 0 || source.incarnation() == incarnation;
        // That of a process that is no more is of no use, however long it can be read.
        self.open.take_if(|open| !is_it(&open.source));
        if self.open.is_none() && self.not_before.is_none_or(|at| now >= at) {
            match connect() {
                Ok(source) if is_it(&source) => {
                    self.useless_pages = 0;
                    self.open = Some(Box::new(Open {
                        source,
                        buffer: WordBuffer::default(),
                        rooms: [Bytes::new(), Bytes::new()],
                    }));
                }
                Ok(_) => self.is_of_no_use(now, "its memory is of another process"),
                Err(why) => self.is_of_no_use(now, &why),
            }
        }
        self.open.is_some()
    }

    fn read(&mut self, now: Instant, placed: Vec<Placed>, page: &mut Page<Bytes>) -> Missed {
        if placed.is_empty() {
            return Missed::Places(Missing::default());
        }
        let Some(open) = &mut self.open else {
            return Missed::All;
        };
        let missed = open.read(placed, page);
        if missed != Missed::All {
            self.useless_pages = 0;
            self.pause = Duration::ZERO;
            return missed;
        }
        self.useless_pages += 1;
        if self.useless_pages >= USELESS_PAGES_MAX {
            self.is_of_no_use(now, "what it names does not stand in its memory");
        }
        missed
    }

    /// Closes it for a while, longer each time.
    fn is_of_no_use(&mut self, now: Instant, why: &str) {
        self.open = None;
        self.pause = (2 * self.pause).clamp(PAUSE_MIN, PAUSE_MAX);
        self.not_before = Some(now + self.pause);
        if self.why != why {
            why.clone_into(&mut self.why);
            self.is_untold = true;
        }
    }
}

impl<S: Source> Open<S> {
    fn read(&mut self, mut placed: Vec<Placed>, page: &mut Page<Bytes>) -> Missed {
        placed.sort_unstable_by_key(place_of);
        let Some((count, len)) = readable(&placed) else {
            return Missed::All;
        };
        if let Some(first_left) = placed.get(count) {
            // Long values that it names behind are named again by the next one.
            page.next = place_of(first_left);
        }
        let placed = &placed[..count];
        let mut room = self.room(len);
        // Where each value stands there; nothing, where it could not be read.
        let mut found: Vec<Range<usize>> = Vec::with_capacity(count);
        let mut missed: Vec<Range<u64>> = Vec::new();
        for (number, one) in placed.iter().enumerate() {
            background::leave_core();
            if let Some(soon) = placed.get(number + FETCH_AHEAD) {
                self.source.fetch(soon.pointer, FETCH_LEN_MAX);
            }
            let begin = room.len();
            let is_there = one.pointer.len() <= LEN_MAX
                && self.source.copy(one.pointer, &mut self.buffer)
                && is_sound(self.buffer.bytes(), one);
            if is_there {
                room.extend_from_slice(self.buffer.bytes());
            } else {
                let place = place_of(one)..place_of(one) + 1;
                if missed.last() != Some(&place) {
                    missed.push(place);
                }
                if missed.len() > MISSED_MAX {
                    return Missed::All;
                }
            }
            found.push(begin..room.len());
        }
        // One count of holders for all of them.
        let room = room.freeze();
        let there = placed.iter().zip(found).filter(|(_, at)| !at.is_empty());
        page.items.extend(there.map(|(one, at)| Item {
            version: one.version,
            recency: one.recency,
            data: Data::Whole(room.slice(at)),
        }));
        self.rooms[0] = room;
        Missed::Places(Missing { places: missed })
    }

    /// Room for the values of a page: that of the page before the last, if nobody has
    /// anything of it any more.
    fn room(&mut self, len: usize) -> BytesMut {
        self.rooms.swap(0, 1);
        let former = std::mem::take(&mut self.rooms[0]).try_into_mut();
        let mut room = former.unwrap_or_default();
        room.clear();
        room.reserve(len);
        room
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
        let many: Vec<Placed> = (0..1000u64)
            .map(|n| placed(n.div_ceil(2), LEN_MAX))
            .collect();
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
            assert!(
                check_placed(&found, &asked, &page(next)).is_err(),
                "{asked:?}"
            );
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

    /// A memory in which nothing stands that is named, or, from a time on, everything.
    struct Fake {
        incarnation: u64,
        entry: Vec<u8>,
    }

    impl Source for Fake {
        fn incarnation(&self) -> u64 {
            self.incarnation
        }

        fn fetch(&self, _: Pointer, _: usize) {}

        fn copy(&self, _: Pointer, into: &mut WordBuffer) -> bool {
            into.prepare(self.entry.len());
            into.bytes_mut().copy_from_slice(&self.entry);
            !self.entry.is_empty()
        }
    }

    fn fake(incarnation: u64) -> Result<Fake, String> {
        let entry = Vec::new();
        Ok(Fake { incarnation, entry })
    }

    #[test]
    fn the_memory_of_another_process_is_not_read() {
        let mut link = Link::default();
        let now = Instant::now();
        assert!(link.open(now, 1, || fake(1)));
        assert!(link.open(now, 1, || unreachable!("it is open")));
        assert!(link.open(now, 0, || unreachable!("any will do")));
        // It was restarted, and then once more, behind the back of who asks.
        assert!(link.open(now, 2, || fake(2)));
        assert!(!link.open(now, 3, || fake(4)));
        assert!(link.is_untold);
        assert!(!link.open(now, 4, || unreachable!("not so soon")));
        assert!(link.open(now + PAUSE_MIN, 4, || fake(4)));
    }

    #[test]
    fn one_that_is_refused_is_asked_for_seldom_and_the_log_tells_once() {
        let mut link: Link<Fake> = Link::default();
        let (begin, mut asked) = (Instant::now(), Vec::new());
        let mut told = 0;
        for second in 0..300 {
            let now = begin + Duration::from_secs(second);
            for _ in 0..10 {
                let connect = || {
                    asked.push(second);
                    Err("refused".to_owned())
                };
                assert!(!link.open(now, 1, connect));
                told += u32::from(std::mem::take(&mut link.is_untold));
            }
        }
        assert_eq!(asked, [0, 1, 3, 7, 15, 31, 63, 123, 183, 243]);
        assert_eq!(told, 1);
        assert!(link.open(begin + Duration::from_secs(600), 1, || fake(1)));
    }

    #[test]
    fn one_in_which_nothing_stands_that_is_named_is_given_up() {
        let mut link = Link::default();
        let now = Instant::now();
        assert!(link.open(now, 1, || fake(1)));
        let names: Vec<_> = (0..=MISSED_MAX as u64).map(|n| placed(n, 100)).collect();
        for _ in 0..USELESS_PAGES_MAX {
            assert!(link.open(now, 1, || unreachable!("it is open")));
            assert_eq!(link.read(now, names.clone(), &mut page(1000)), Missed::All);
        }
        assert!(!link.open(now, 1, || unreachable!("not so soon")));
        assert_eq!(link.read(now, names, &mut page(1000)), Missed::All);
    }

    #[test]
    fn what_is_sound_is_read_and_what_is_not_is_asked_for() {
        let entry = DataEntry {
            key: b"key",
            value: b"value",
            ..DataEntry::default()
        };
        let hash = trefoil_layout::KeyHasher::default().hash(entry.key);
        let version = Version::new(1, 1, 1);
        let mut bytes = vec![0; entry.encoded_len()];
        entry.encode(&mut bytes, hash.tag, version);
        let sound = Placed {
            hash,
            version,
            recency: Recency::default(),
            pointer: Pointer::new(4096, bytes.len()).unwrap(),
        };
        let mut link = Link::default();
        let source = Fake {
            incarnation: 1,
            entry: bytes.clone(),
        };
        assert!(link.open(Instant::now(), 1, || Ok(source)));
        let newer = Placed {
            version: Version::new(2, 1, 1),
            ..sound
        };
        let mut into = page(PLACES_END);
        let missed = link.read(Instant::now(), vec![sound, newer, newer], &mut into);
        let place = place_of(&newer);
        let place = place..place + 1;
        let places = vec![place];
        assert_eq!(missed, Missed::Places(Missing { places }));
        assert_eq!(into.items.len(), 1);
        assert_eq!(into.items[0].data, Data::Whole(Bytes::from(bytes)));
    }

    const PLACES_END: u64 = trefoil_store::PLACES.end;
}
