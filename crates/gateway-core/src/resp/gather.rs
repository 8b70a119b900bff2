//! A command's arguments, as they come.
//!
//! Input stays where it is until the command is whole; what is remembered
//! meanwhile is where its arguments lie, so that nothing is parsed twice.

use super::Skip;
use super::many::Many;
use super::parse::{Part, ProtocolError, bulk_len, count};
use super::table::{Spec, lookup};
use crate::keyspace::Keyspace;
use crate::world::World;
use trefoil_layout::limits::KEY_LEN_MAX;

/// Most arguments of a command that does not take many keys.
pub(super) const ARGUMENTS_MAX: usize = 1024;
/// Room beside a key and a value for everything else of a command.
const OVERHEAD_LEN: usize = 16 * 1024;
/// Places that an idle connection keeps room for.
const KEPT_MAX: usize = 16;

/// Where an argument lies in the input.
#[derive(Clone, Copy, Debug)]
struct Place {
    start: u32,
    end: u32,
}

/// A command whose arguments are coming.
#[derive(Debug, Default)]
pub(super) struct Gathering {
    /// How many there will be, with the name; 0 before a command begins.
    count: usize,
    places: Vec<Place>,
    /// Parsed so far.
    at: usize,
}

/// Why there is no room for a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// An argument is too long.
    TooLong,
    /// There are too many.
    TooMany,
}

/// What gathering came to.
pub(super) enum Gathered {
    /// A command without arguments, which is nothing, of this length.
    Empty(usize),
    /// So much input is needed in all, if known.
    Incomplete(usize),
    /// The next command cannot be found.
    Lost(ProtocolError),
    /// A command of many keys: the `len` bytes up to its keys have come.
    Many {
        spec: &'static Spec,
        count: usize,
        len: usize,
    },
    /// More than there is room for. The bytes up to `len` are done with, the
    /// rest is to be skipped.
    Refused {
        len: usize,
        skip: Skip,
        refusal: Refusal,
    },
    /// All of it has come, in this many bytes.
    Whole(usize),
}

/// A command's arguments, the name first.
#[derive(Clone, Copy)]
pub(super) struct Arguments<'a> {
    input: &'a [u8],
    places: &'a [Place],
}

impl<'a> Arguments<'a> {
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    /// One of them; empty if there are not so many.
    pub(super) fn get(&self, index: usize) -> &'a [u8] {
        self.places.get(index).map_or(b"", |place| {
            &self.input[place.start as usize..place.end as usize]
        })
    }

    /// The name.
    pub(super) fn name(&self) -> &'a [u8] {
        self.get(0)
    }

    /// All from this one on.
    pub(super) fn from(&self, index: usize) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let input = self.input;
        self.places
            .get(index..)
            .unwrap_or_default()
            .iter()
            .map(move |place| &input[place.start as usize..place.end as usize])
    }

    /// Whether this one is the word, in whatever letters.
    pub(super) fn is(&self, index: usize, word: &str) -> bool {
        index < self.len() && self.get(index).eq_ignore_ascii_case(word.as_bytes())
    }
}

/// The longest value that is stored: the cell's, as `--item-max` is memcached's.
pub(super) fn value_len_max<K: Keyspace>(world: &World<'_, K>) -> usize {
    world.keyspace.value_len_max()
}

impl Gathering {
    pub(super) fn is_begun(&self) -> bool {
        self.count > 0
    }

    /// Bytes that it keeps.
    pub(super) fn kept(&self) -> usize {
        self.places.capacity() * size_of::<Place>()
    }

    /// What has yet to come of a command that has begun to come in this input, if that
    /// ends in the middle of an argument.
    pub(super) fn rest(&self, input: &[u8]) -> Option<Skip> {
        let Part::Whole((len, line_len)) = bulk_len(input.get(self.at..)?, true) else {
            return None;
        };
        let end = self.at + line_len + len + 2;
        Some(Skip {
            bytes: end.checked_sub(input.len())?,
            arguments: self.count.checked_sub(self.places.len() + 1)?,
        })
    }

    /// How many arguments the command has, with its name.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Takes the arguments out, to be given back by [`Self::done`].
    pub(super) fn take(&mut self) -> Gathering {
        std::mem::take(self)
    }

    /// The arguments that have come.
    pub(super) fn arguments<'a>(&'a self, input: &'a [u8]) -> Arguments<'a> {
        Arguments {
            input,
            places: &self.places,
        }
    }

    /// Ready for the next command, in the memory of this one.
    pub(super) fn done(mut self) -> Gathering {
        self.places.clear();
        self.places.shrink_to(KEPT_MAX);
        Gathering {
            places: self.places,
            ..Gathering::default()
        }
    }

    /// Goes on with this input, which begins with the same bytes as before.
    pub(super) fn go_on<K: Keyspace>(
        &mut self,
        input: &[u8],
        is_known: bool,
        world: &World<'_, K>,
    ) -> Gathered {
        if self.count == 0 {
            match count(input, is_known) {
                Part::Incomplete => return Gathered::Incomplete(0),
                Part::Bad(error) => return Gathered::Lost(error),
                Part::Whole((count, len)) => match usize::try_from(count) {
                    Err(_) | Ok(0) => return Gathered::Empty(len),
                    Ok(count) => {
                        self.count = count;
                        self.at = len;
                    }
                },
            }
        }
        let len_max = value_len_max(world) + KEY_LEN_MAX + OVERHEAD_LEN;
        while self.places.len() < self.count {
            let (len, line_len) = match bulk_len(&input[self.at..], is_known) {
                Part::Incomplete => return Gathered::Incomplete(0),
                Part::Bad(error) => return Gathered::Lost(error),
                Part::Whole(whole) => whole,
            };
            let start = self.at + line_len;
            let end = start + len;
            let is_many = self.places.len() == ARGUMENTS_MAX;
            if end > len_max || is_many {
                let skip = Skip {
                    bytes: len + 2,
                    arguments: self.count - self.places.len() - 1,
                };
                let refusal = if is_many {
                    Refusal::TooMany
                } else {
                    Refusal::TooLong
                };
                return Gathered::Refused {
                    len: start,
                    skip,
                    refusal,
                };
            }
            if input.len() < end + 2 {
                return Gathered::Incomplete(end + 2);
            }
            self.places.push(Place {
                start: start as u32,
                end: end as u32,
            });
            self.at = end + 2;
            if self.places.len() == 1
                && let Some(spec) = lookup(&input[start..end])
                && spec.takes(self.count)
                && is_known
                && Many::takes(spec, self.count - 1)
            {
                let (count, len) = (self.count - 1, self.at);
                *self = std::mem::take(self).done();
                return Gathered::Many { spec, count, len };
            }
        }
        Gathered::Whole(self.at)
    }
}
