//! Commands of many keys: MGET, MSET, DEL, UNLINK, EXISTS, TOUCH, WATCH.
//!
//! Each key (or pair) is executed and done with as it comes, so that a command
//! of a million keys takes no more memory than one of two, and a long answer
//! can wait for the output to leave.

use super::gather::value_len_max;
use super::parse::{Part, ProtocolError, bulk_len};
use super::reply::Reply;
use super::table::{Id, Spec};
use super::{Skip, Step};
use crate::keyspace::{Access, Fault, Keyspace, NewItem, Pending};
use crate::world::{Command, Done, Ending, World};
use trefoil_layout::Version;
use trefoil_layout::limits::KEY_LEN_MAX;
use trefoil_layout::op::Rejection;

/// Keys that are read together, to overlap memory latencies, and what is asked of
/// backends.
const CHUNK_LEN: usize = 32;
/// Keys that are stored or removed together: each begins messages to several backends, and
/// the turn of one client is to stay short.
const WRITES_LEN: usize = 8;
/// Bytes of pairs that do, but for the last one.
const PAIRS_LEN_MAX: usize = 1 << 20;

/// A command of many keys on its way.
#[derive(Debug)]
pub(super) struct Many {
    id: Id,
    /// Arguments that are still to come.
    left: usize,
    /// Keys found or removed so far.
    tally: i64,
    /// The first fault, which is what will be answered.
    fault: Option<Fault>,
    /// How many keys were begun to be stored or removed, and are pending: more may
    /// have come meanwhile, but the same is executed again.
    begun: usize,
    /// Keys to be watched, and their versions.
    seen: Vec<(Vec<u8>, Option<Version>)>,
    /// There are too many of those.
    is_refused: bool,
}

/// An argument at some place of the input.
enum Found<'a> {
    /// The bytes, and where the next one begins.
    Whole(&'a [u8], usize),
    /// So much input is needed in all, if known.
    Incomplete(usize),
    /// Longer than may be: where its bytes begin, and its length.
    TooLong(usize, usize),
    Lost(ProtocolError),
}

fn argument(input: &[u8], at: usize, len_max: usize) -> Found<'_> {
    match bulk_len(&input[at..], true) {
        Part::Incomplete => Found::Incomplete(0),
        Part::Bad(error) => Found::Lost(error),
        Part::Whole((len, line_len)) => {
            let start = at + line_len;
            if len > len_max {
                Found::TooLong(start, len)
            } else if input.len() < start + len + 2 {
                Found::Incomplete(start + len + 2)
            } else {
                Found::Whole(&input[start..start + len], start + len + 2)
            }
        }
    }
}

impl Many {
    /// Whether the command takes many keys, and this number of arguments after
    /// its name. MSET wants pairs; the error for others is an ordinary one.
    pub(super) fn takes(spec: &Spec, count: usize) -> bool {
        spec.is_many() && count.is_multiple_of(spec.keys.2 as usize)
    }

    /// Begins one of `count` arguments after its name.
    pub(super) fn begin(spec: &Spec, count: usize, reply: &mut Reply<'_>) -> Self {
        if spec.id == Id::MGet {
            reply.array(count);
        }
        Many {
            id: spec.id,
            left: count,
            tally: 0,
            fault: None,
            begun: 0,
            seen: Vec::new(),
            is_refused: false,
        }
    }

    /// Whether all arguments have been executed.
    pub(super) fn is_done(&self) -> bool {
        self.left == 0
    }

    /// Answers, unless the answers have gone out on the way.
    pub(super) fn finish(&self, reply: &mut Reply<'_>) {
        match (self.id, &self.fault) {
            (Id::MGet, _) => {}
            (_, Some(fault)) => reply.fault(fault),
            (Id::Watch, None) if self.is_refused => reply.error("ERR too many watched keys"),
            (Id::MSet | Id::Watch, None) => reply.simple("OK"),
            (_, None) => reply.integer(self.tally),
        }
    }

    /// Keys to be watched that have been looked at.
    pub(super) fn take_seen(&mut self) -> Vec<(Vec<u8>, Option<Version>)> {
        std::mem::take(&mut self.seen)
    }

    /// There are too many keys to be watched.
    pub(super) fn refuse_watch(&mut self) {
        self.is_refused = true;
    }

    /// Most keys of the next chunk of writes.
    fn chunk_len(&self, left: usize) -> usize {
        match self.begun {
            0 => WRITES_LEN.min(left),
            begun => begun,
        }
    }

    fn note(&mut self, fault: Fault) {
        self.fault.get_or_insert(fault);
    }

    /// Executes what stands at the front of the input.
    pub(super) fn step<K: Keyspace>(
        &mut self,
        input: &[u8],
        reply: &mut Reply<'_>,
        out_len_max: usize,
        skip: &mut Skip,
        world: &mut World<'_, K>,
    ) -> Step {
        if self.id == Id::MSet {
            return self.step_pairs(input, skip, world);
        }
        let mut keys: [&[u8]; CHUNK_LEN] = [b""; CHUNK_LEN];
        let mut ends = [0; CHUNK_LEN];
        let (mut count, mut at) = (0, 0);
        while count < CHUNK_LEN.min(self.left) {
            match argument(input, at, KEY_LEN_MAX) {
                Found::Whole(key, end) => {
                    (keys[count], ends[count]) = (key, end);
                    (count, at) = (count + 1, end);
                }
                // What has come goes first.
                _ if count > 0 => break,
                Found::Incomplete(needed) => return Step::Input(needed),
                Found::Lost(error) => return Step::Lost(error),
                Found::TooLong(start, len) => {
                    // No key is as long: it is not there.
                    if self.id == Id::MGet {
                        reply.null();
                    }
                    self.left -= 1;
                    skip.bytes = len + 2;
                    return Step::Done(start);
                }
            }
        }
        let keys = &keys[..count];
        let (executed, end) = match self.id {
            Id::Del | Id::Unlink => self.remove(keys, world),
            _ => self.read(keys, reply, out_len_max, world),
        };
        self.left -= executed;
        let consumed = executed.checked_sub(1).map_or(0, |last| ends[last]);
        match end {
            Ok(()) => Step::Done(consumed),
            Err(Pending) => Step::Pending(consumed),
        }
    }

    /// Reads keys: for their values, or for whether they are there. How many are
    /// done with, and whether the next one is pending.
    fn read<K: Keyspace>(
        &mut self,
        keys: &[&[u8]],
        reply: &mut Reply<'_>,
        out_len_max: usize,
        world: &mut World<'_, K>,
    ) -> (usize, Result<(), Pending>) {
        let access = if matches!(self.id, Id::Exists | Id::Watch) {
            Access::Peek
        } else {
            Access::Use
        };
        let World {
            keyspace, observer, ..
        } = world;
        let mut executed = 0;
        let end = keyspace.get_many(keys, access, &mut |index, read| {
            let (ending, value_len) = match &read {
                Ok(Some(item)) => (Ending::Hit, item.value.len()),
                Ok(None) => (Ending::Miss, 0),
                Err(_) => (Ending::ServerError, 0),
            };
            if self.id == Id::Watch {
                // Nobody has such a version: what could not be read has changed.
                let version = match &read {
                    Ok(item) => item.map(|item| item.version),
                    Err(_) => Some(Version::default()),
                };
                self.seen.push((keys[index].to_vec(), version));
            } else {
                observer.done(&Done {
                    command: Command::Get,
                    ending,
                    key: keys[index],
                    value_len,
                });
            }
            match read {
                Ok(item) if self.id == Id::MGet => reply.value_or_null(item),
                Ok(item) => self.tally += i64::from(item.is_some()),
                Err(fault) if self.id == Id::MGet => reply.fault(&fault),
                Err(fault) => self.note(fault),
            }
            executed = index + 1;
            reply.out.len() < out_len_max
        });
        (executed, end)
    }

    /// Removes keys, all at the same time where that can be.
    fn remove<K: Keyspace>(
        &mut self,
        keys: &[&[u8]],
        world: &mut World<'_, K>,
    ) -> (usize, Result<(), Pending>) {
        // The second of two that are the same finds nothing.
        let len_max = self.chunk_len(keys.len());
        let len = distinct(&keys[..len_max.min(keys.len())]);
        let keys = &keys[..len];
        let World {
            keyspace, observer, ..
        } = world;
        let erased = keyspace.erase_many(keys, &mut |index, erased| {
            let ending = match erased {
                Ok(true) => {
                    self.tally += 1;
                    Ending::Hit
                }
                Ok(false) => Ending::Miss,
                Err(fault) => {
                    self.note(fault);
                    Ending::ServerError
                }
            };
            observer.done(&Done {
                command: Command::Delete,
                ending,
                key: keys[index],
                value_len: 0,
            });
        });
        self.begun = match erased {
            Ok(()) => 0,
            Err(Pending) => len,
        };
        (len - self.begun, erased)
    }

    /// Stores the pairs at the front of the input that have come, as many as are stored
    /// at the same time.
    fn step_pairs<K: Keyspace>(
        &mut self,
        input: &[u8],
        skip: &mut Skip,
        world: &mut World<'_, K>,
    ) -> Step {
        let len_max = value_len_max(world);
        let mut items: [(&[u8], NewItem<'_>); WRITES_LEN] = Default::default();
        let (mut count, mut at, mut len) = (0, 0, 0);
        let count_max = self.chunk_len(self.left / 2);
        while count < count_max && len < PAIRS_LEN_MAX {
            let Found::Whole(key, key_end) = argument(input, at, KEY_LEN_MAX) else {
                break;
            };
            let Found::Whole(value, end) = argument(input, key_end, len_max) else {
                break;
            };
            let is_known = items[..count].iter().any(|(known, _)| *known == key);
            if key.is_empty() || is_known {
                break;
            }
            let item = NewItem {
                value,
                ..NewItem::default()
            };
            items[count] = (key, item);
            (count, at, len) = (count + 1, end, len + key.len() + value.len());
        }
        let items = &items[..count];
        if items.is_empty() {
            return self.step_odd_pair(input, skip, len_max, world);
        }
        let World {
            keyspace, observer, ..
        } = world;
        let stored = keyspace.set_many(items, &mut |index, stored| {
            let (key, item) = &items[index];
            let ending = self.ending(stored.err());
            observer.done(&Done {
                command: Command::Set,
                ending,
                key,
                value_len: item.value.len(),
            });
        });
        if let Err(Pending) = stored {
            self.begun = count;
            return Step::Pending(0);
        }
        self.begun = 0;
        self.left -= 2 * count;
        Step::Done(at)
    }

    fn ending(&mut self, fault: Option<Fault>) -> Ending {
        let Some(fault) = fault else {
            return Ending::Hit;
        };
        let ending = ending_of(&fault);
        self.note(fault);
        ending
    }

    /// Deals with a pair that has not come, or cannot be stored.
    fn step_odd_pair<K: Keyspace>(
        &mut self,
        input: &[u8],
        skip: &mut Skip,
        len_max: usize,
        world: &mut World<'_, K>,
    ) -> Step {
        let (key, key_end) = match argument(input, 0, KEY_LEN_MAX) {
            Found::Whole(key, end) => (key, end),
            Found::Incomplete(needed) => return Step::Input(needed),
            Found::Lost(error) => return Step::Lost(error),
            Found::TooLong(start, len) => {
                self.note(Fault::Rejected(Rejection::KeyTooLong));
                self.left -= 2;
                // The key, and its value.
                *skip = Skip {
                    bytes: len + 2,
                    arguments: 1,
                };
                return Step::Done(start);
            }
        };
        let (rejection, value_len, len) = match argument(input, key_end, len_max) {
            // The others were stored.
            Found::Whole(value, end) => (Rejection::KeyEmpty, value.len(), end),
            Found::Incomplete(needed) => return Step::Input(needed),
            Found::Lost(error) => return Step::Lost(error),
            Found::TooLong(start, len) => {
                skip.bytes = len + 2;
                (Rejection::ValueTooLong, len, start)
            }
        };
        let ending = self.ending(Some(Fault::Rejected(rejection)));
        world.observer.done(&Done {
            command: Command::Set,
            ending,
            key,
            value_len,
        });
        self.left -= 2;
        Step::Done(len)
    }
}

/// How many of these, from the first on, are different.
fn distinct(keys: &[&[u8]]) -> usize {
    let is_repeated = |index: &usize| keys[..*index].contains(&keys[*index]);
    (0..keys.len()).find(is_repeated).unwrap_or(keys.len())
}

/// Whose mistake a fault is.
pub(super) fn ending_of(fault: &Fault) -> Ending {
    match fault {
        Fault::Rejected(Rejection::ValueTooLong | Rejection::KeyTooLong | Rejection::KeyEmpty) => {
            Ending::ClientError
        }
        _ => Ending::ServerError,
    }
}
