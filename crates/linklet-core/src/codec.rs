//! Frames as bytes. The transport carries them as they are, one by one.
//!
//! All numbers are little-endian; a list is its length (u32) and its parts.
//!
//! | part | bytes |
//! |---|---|
//! | frame | format (1) · sequence (8) · confirmed (8) · kind (1; 0 without a message) · the message's parts in the order of their declaration |
//! | slice | first point (8) · last point (8) |
//! | version | incarnation (8) · generation (8) |
//! | optional part | 0, or 1 and the part |
//! | byte string | length (u32) · bytes |

use crate::config::CHUNK_BYTES_MAX;
use crate::message::{
    Chunk, ChunkKind, Claim, ClaimAnswer, CopyOrder, Entry, Frame, Message, Operation, Pass,
};
use crate::values::VALUE_BYTES_MAX;
use crate::wire::Wire;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use trefoil_sharder::{AssignmentVersion, KeyPoint, ServerId, Slice};

/// The first byte of every frame.
const FORMAT: u8 = Wire::OWN.major;

/// A longer frame is refused. None is made: a chunk has [`CHUNK_BYTES_MAX`] and then one more
/// value at most, and what is said besides takes 16 bytes for a range.
pub const FRAME_BYTES_MAX: usize = 255 << 20;
const _: () = assert!(VALUE_BYTES_MAX + CHUNK_BYTES_MAX + (32 << 20) <= FRAME_BYTES_MAX);

/// Bytes that are no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// It ends too early.
    #[error("a frame ends in the middle of {0}")]
    Short(&'static str),
    /// A part is not one that there is.
    #[error("a frame has an unknown {0}: the servers of a corpus have to run compatible versions")]
    Unknown(&'static str),
    /// It is of another release's form: nothing of it is taken.
    #[error(
        "a frame has form {0}, and this release speaks form {FORMAT}: all servers of a corpus \
         have to run compatible versions"
    )]
    Format(u8),
    /// A slice ends before it begins.
    #[error("a frame has a slice that ends before it begins")]
    BadSlice,
    /// There is something behind its end.
    #[error("{0} bytes follow the end of a frame")]
    Trailing(usize),
    /// It is too long.
    #[error("a frame of {0} bytes is longer than the {FRAME_BYTES_MAX} allowed")]
    Long(usize),
}

/// What can be written and read back.
trait Part: Sized {
    fn put(&self, to: &mut BytesMut);
    fn get(from: &mut Bytes) -> Result<Self, DecodeError>;
}

fn need(from: &Bytes, count: usize, what: &'static str) -> Result<(), DecodeError> {
    if from.remaining() < count {
        return Err(DecodeError::Short(what));
    }
    Ok(())
}

impl Part for u8 {
    fn put(&self, to: &mut BytesMut) {
        to.put_u8(*self);
    }
    fn get(from: &mut Bytes) -> Result<Self, DecodeError> {
        need(from, 1, "a tag")?;
        Ok(from.get_u8())
    }
}

impl Part for u64 {
    fn put(&self, to: &mut BytesMut) {
        to.put_u64_le(*self);
    }
    fn get(from: &mut Bytes) -> Result<Self, DecodeError> {
        need(from, 8, "a number")?;
        Ok(from.get_u64_le())
    }
}

impl Part for Bytes {
    fn put(&self, to: &mut BytesMut) {
        to.put_u32_le(self.len() as u32);
        to.put_slice(self);
    }
    fn get(from: &mut Bytes) -> Result<Self, DecodeError> {
        need(from, 4, "a length")?;
        let length = from.get_u32_le() as usize;
        need(from, length, "a byte string")?;
        Ok(from.split_to(length))
    }
}

impl<T: Part> Part for Vec<T> {
    fn put(&self, to: &mut BytesMut) {
        to.put_u32_le(self.len() as u32);
        for part in self {
            part.put(to);
        }
    }
    fn get(from: &mut Bytes) -> Result<Self, DecodeError> {
        need(from, 4, "a length")?;
        let count = from.get_u32_le() as usize;
        // Every part takes at least a byte: no more room than was sent.
        let mut parts = Vec::with_capacity(count.min(from.remaining().min(1 << 16)));
        for _ in 0..count {
            parts.push(T::get(from)?);
        }
        Ok(parts)
    }
}

impl<T: Part> Part for Option<T> {
    fn put(&self, to: &mut BytesMut) {
        match self {
            None => to.put_u8(0),
            Some(part) => {
                to.put_u8(1);
                part.put(to);
            }
        }
    }
    fn get(from: &mut Bytes) -> Result<Self, DecodeError> {
        match u8::get(from)? {
            0 => Ok(None),
            1 => T::get(from).map(Some),
            _ => Err(DecodeError::Unknown("option")),
        }
    }
}

impl<A: Part, B: Part> Part for (A, B) {
    fn put(&self, to: &mut BytesMut) {
        self.0.put(to);
        self.1.put(to);
    }
    fn get(from: &mut Bytes) -> Result<Self, DecodeError> {
        Ok((A::get(from)?, B::get(from)?))
    }
}

impl Part for Slice {
    fn put(&self, to: &mut BytesMut) {
        self.start().put(to);
        self.last().put(to);
    }
    fn get(from: &mut Bytes) -> Result<Self, DecodeError> {
        let (start, last) = <(KeyPoint, KeyPoint)>::get(from)?;
        if start > last {
            return Err(DecodeError::BadSlice);
        }
        Ok(Slice::spanning(start, last))
    }
}

/// A struct is its fields, in order.
macro_rules! fields {
    ($name:ident { $($field:tt),* }) => {
        impl Part for $name {
            fn put(&self, to: &mut BytesMut) {
                $(self.$field.put(to);)*
            }
            fn get(from: &mut Bytes) -> Result<Self, DecodeError> {
                Ok($name { $($field: Part::get(from)?),* })
            }
        }
    };
}

/// An enum is its tag and the fields of the variant.
macro_rules! variants {
    ($name:ident, $what:literal, $($tag:literal => $variant:ident { $($field:ident),* }),* $(,)?) => {
        impl Part for $name {
            fn put(&self, to: &mut BytesMut) {
                match self {
                    $($name::$variant { $($field),* } => {
                        to.put_u8($tag);
                        $($field.put(to);)*
                    })*
                }
            }
            fn get(from: &mut Bytes) -> Result<Self, DecodeError> {
                match u8::get(from)? {
                    $($tag => Ok($name::$variant { $($field: Part::get(from)?),* }),)*
                    _ => Err(DecodeError::Unknown($what)),
                }
            }
        }
    };
}

fields!(KeyPoint { 0 });
fields!(ServerId { 0 });
fields!(AssignmentVersion {
    incarnation,
    generation
});
fields!(Entry {
    point,
    key,
    version,
    value
});
fields!(Chunk {
    id,
    kind,
    ranges,
    entries,
    holders,
    unsettled
});
fields!(Claim {
    id,
    version,
    ranges,
    alive
});
fields!(ClaimAnswer {
    claim,
    held,
    in_transit,
    refused,
    newest,
    copies
});

variants!(ChunkKind, "kind of chunk", 1 => Authority {}, 2 => Recovered {});
variants!(Operation, "operation", 1 => Put { version, value }, 2 => Remove {});
variants!(CopyOrder, "order",
    1 => Fill { ranges, entries },
    2 => Attach { ranges },
    3 => Exclude { ranges },
    4 => Apply { point, key, operation },
);

impl Part for Message {
    fn put(&self, to: &mut BytesMut) {
        let tag = |to: &mut BytesMut, tag: u8| to.put_u8(tag);
        match self {
            Message::Claim(claim) => {
                tag(to, 1);
                claim.put(to);
            }
            Message::ClaimAnswer(answer) => {
                tag(to, 2);
                answer.put(to);
            }
            Message::Gone { claim, ranges } => {
                tag(to, 3);
                claim.put(to);
                ranges.put(to);
            }
            Message::Pull { claim, points } => {
                tag(to, 4);
                claim.put(to);
                points.put(to);
            }
            Message::Recover { claim, ranges } => {
                tag(to, 5);
                claim.put(to);
                ranges.put(to);
            }
            Message::Chunk(chunk) => {
                tag(to, 6);
                chunk.put(to);
            }
            Message::Taken { chunk } => {
                tag(to, 7);
                chunk.put(to);
            }
            Message::NotTaken { chunk } => {
                tag(to, 8);
                chunk.put(to);
            }
            Message::Copy { id, token, order } => {
                tag(to, 9);
                id.put(to);
                token.put(to);
                order.put(to);
            }
            Message::CopyDone { id } => {
                tag(to, 10);
                id.put(to);
            }
            Message::CopyRefused { id, newest, ranges } => {
                tag(to, 11);
                id.put(to);
                newest.put(to);
                ranges.put(to);
            }
            Message::Attached {
                id,
                missing,
                unsettled,
            } => {
                tag(to, 12);
                id.put(to);
                missing.put(to);
                unsettled.put(to);
            }
            Message::Settled { id } => {
                tag(to, 13);
                id.put(to);
            }
            Message::CopyFailed {
                id,
                points,
                kept,
                no_room,
            } => {
                tag(to, 14);
                id.put(to);
                points.put(to);
                (u8::from(*kept) | u8::from(*no_room) << 1).put(to);
            }
            Message::TakenInPart {
                chunk,
                unreadable,
                no_room,
            } => {
                tag(to, 15);
                chunk.put(to);
                unreadable.put(to);
                no_room.put(to);
            }
            Message::Pass(pass) => {
                tag(to, 16);
                pass.from.put(to);
                pass.to.put(to);
                (u8::from(pass.hears) | u8::from(pass.asks) << 1).put(to);
                pass.frame.put(to);
            }
        }
    }

    fn get(from: &mut Bytes) -> Result<Self, DecodeError> {
        Ok(match u8::get(from)? {
            1 => Message::Claim(Part::get(from)?),
            2 => Message::ClaimAnswer(Part::get(from)?),
            3 => Message::Gone {
                claim: Part::get(from)?,
                ranges: Part::get(from)?,
            },
            4 => Message::Pull {
                claim: Part::get(from)?,
                points: Part::get(from)?,
            },
            5 => Message::Recover {
                claim: Part::get(from)?,
                ranges: Part::get(from)?,
            },
            6 => Message::Chunk(Part::get(from)?),
            7 => Message::Taken {
                chunk: Part::get(from)?,
            },
            8 => Message::NotTaken {
                chunk: Part::get(from)?,
            },
            9 => Message::Copy {
                id: Part::get(from)?,
                token: Part::get(from)?,
                order: Part::get(from)?,
            },
            10 => Message::CopyDone {
                id: Part::get(from)?,
            },
            11 => Message::CopyRefused {
                id: Part::get(from)?,
                newest: Part::get(from)?,
                ranges: Part::get(from)?,
            },
            12 => Message::Attached {
                id: Part::get(from)?,
                missing: Part::get(from)?,
                unsettled: Part::get(from)?,
            },
            13 => Message::Settled {
                id: Part::get(from)?,
            },
            14 => {
                let (id, points) = (Part::get(from)?, Part::get(from)?);
                let said = u8::get(from)?;
                Message::CopyFailed {
                    id,
                    points,
                    kept: said & 1 != 0,
                    no_room: said & 2 != 0,
                }
            }
            15 => Message::TakenInPart {
                chunk: Part::get(from)?,
                unreadable: Part::get(from)?,
                no_room: Part::get(from)?,
            },
            16 => {
                let (from_server, to) = (Part::get(from)?, Part::get(from)?);
                let said = u8::get(from)?;
                Message::Pass(Pass {
                    from: from_server,
                    to,
                    hears: said & 1 != 0,
                    asks: said & 2 != 0,
                    frame: Part::get(from)?,
                })
            }
            _ => return Err(DecodeError::Unknown("kind of message")),
        })
    }
}

impl Frame {
    /// Its bytes.
    pub fn encode(&self) -> Bytes {
        let message = self.message.as_ref().map_or(0, Message::bytes);
        let mut to = BytesMut::with_capacity(32 + message);
        to.put_u8(FORMAT);
        self.sequence.put(&mut to);
        self.confirmed.put(&mut to);
        match &self.message {
            None => to.put_u8(0),
            Some(message) => message.put(&mut to),
        }
        to.freeze()
    }

    /// From its bytes; keys and values share them.
    pub fn decode(mut bytes: Bytes) -> Result<Frame, DecodeError> {
        if bytes.len() > FRAME_BYTES_MAX {
            return Err(DecodeError::Long(bytes.len()));
        }
        match u8::get(&mut bytes)? {
            FORMAT => {}
            other => return Err(DecodeError::Format(other)),
        }
        let sequence = u64::get(&mut bytes)?;
        let confirmed = u64::get(&mut bytes)?;
        let message = match bytes.first() {
            None => return Err(DecodeError::Short("its kind")),
            Some(0) => {
                bytes.advance(1);
                None
            }
            Some(_) => Some(Message::get(&mut bytes)?),
        };
        if bytes.has_remaining() {
            return Err(DecodeError::Trailing(bytes.remaining()));
        }
        Ok(Frame {
            sequence,
            confirmed,
            message,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn slices() -> impl Strategy<Value = Vec<Slice>> {
        let slice =
            any::<(u64, u64)>().prop_map(|(a, b)| Slice::spanning(KeyPoint(a), KeyPoint(b)));
        prop::collection::vec(slice, 0..4)
    }

    fn bytes() -> impl Strategy<Value = Bytes> {
        prop::collection::vec(any::<u8>(), 0..20).prop_map(Bytes::from)
    }

    fn version() -> impl Strategy<Value = AssignmentVersion> {
        any::<(u64, u64)>().prop_map(|(incarnation, generation)| AssignmentVersion {
            incarnation,
            generation,
        })
    }

    fn points() -> impl Strategy<Value = Vec<KeyPoint>> {
        prop::collection::vec(any::<u64>().prop_map(KeyPoint), 0..4)
    }

    fn keys() -> impl Strategy<Value = Vec<(KeyPoint, Bytes)>> {
        prop::collection::vec((any::<u64>().prop_map(KeyPoint), bytes()), 0..4)
    }

    fn entries() -> impl Strategy<Value = Vec<Entry>> {
        let entry = (
            any::<u64>(),
            bytes(),
            any::<u64>(),
            prop::option::of(bytes()),
        )
            .prop_map(|(point, key, version, value)| Entry {
                point: KeyPoint(point),
                key,
                version,
                value,
            });
        prop::collection::vec(entry, 0..4)
    }

    fn order() -> impl Strategy<Value = CopyOrder> {
        let operation = prop_oneof![
            (any::<u64>(), bytes()).prop_map(|(version, value)| Operation::Put { version, value }),
            Just(Operation::Remove)
        ];
        prop_oneof![
            (slices(), entries()).prop_map(|(ranges, entries)| CopyOrder::Fill { ranges, entries }),
            slices().prop_map(|ranges| CopyOrder::Attach { ranges }),
            slices().prop_map(|ranges| CopyOrder::Exclude { ranges }),
            (any::<u64>(), bytes(), operation).prop_map(|(point, key, operation)| {
                CopyOrder::Apply {
                    point: KeyPoint(point),
                    key,
                    operation,
                }
            }),
        ]
    }

    fn message() -> impl Strategy<Value = Message> {
        let servers = || prop::collection::vec(any::<u64>().prop_map(ServerId), 0..4);
        let kind = || prop_oneof![Just(ChunkKind::Authority), Just(ChunkKind::Recovered)];
        let id = any::<u64>;
        prop_oneof![
            (id(), version(), slices(), servers()).prop_map(|(id, version, ranges, alive)| {
                Message::Claim(Claim {
                    id,
                    version,
                    ranges,
                    alive,
                })
            }),
            (
                id(),
                slices(),
                slices(),
                slices(),
                prop::option::of(version()),
                slices(),
                version()
            )
                .prop_map(
                    |(claim, held, in_transit, refused, newest, copies, token)| {
                        Message::ClaimAnswer(ClaimAnswer {
                            claim,
                            held,
                            in_transit,
                            refused,
                            newest,
                            copies: copies.into_iter().map(|slice| (slice, token)).collect(),
                        })
                    }
                ),
            (id(), slices()).prop_map(|(claim, ranges)| Message::Gone { claim, ranges }),
            (id(), points()).prop_map(|(claim, points)| Message::Pull { claim, points }),
            (id(), slices()).prop_map(|(claim, ranges)| Message::Recover { claim, ranges }),
            (id(), kind(), slices(), entries(), servers(), keys()).prop_map(
                |(id, kind, ranges, entries, servers, unsettled)| {
                    let holders = servers.into_iter().map(|server| (server, ranges.clone()));
                    Message::Chunk(Chunk {
                        id,
                        kind,
                        holders: holders.collect(),
                        ranges,
                        entries,
                        unsettled,
                    })
                }
            ),
            id().prop_map(|chunk| Message::Taken { chunk }),
            id().prop_map(|chunk| Message::NotTaken { chunk }),
            (id(), points(), points()).prop_map(|(chunk, unreadable, no_room)| {
                Message::TakenInPart {
                    chunk,
                    unreadable,
                    no_room,
                }
            }),
            (id(), version(), order()).prop_map(|(id, token, order)| Message::Copy {
                id,
                token,
                order
            }),
            id().prop_map(|id| Message::CopyDone { id }),
            (id(), version(), slices()).prop_map(|(id, newest, ranges)| Message::CopyRefused {
                id,
                newest,
                ranges
            }),
            (id(), slices(), keys()).prop_map(|(id, missing, unsettled)| Message::Attached {
                id,
                missing,
                unsettled
            }),
            id().prop_map(|id| Message::Settled { id }),
            (id(), id(), any::<bool>(), any::<bool>(), bytes()).prop_map(
                |(from, to, hears, asks, frame)| {
                    Message::Pass(Pass {
                        from: ServerId(from),
                        to: ServerId(to),
                        hears,
                        asks,
                        frame,
                    })
                }
            ),
            (
                id(),
                prop::collection::vec(any::<u64>(), 0..4),
                any::<bool>(),
                any::<bool>()
            )
                .prop_map(|(id, points, kept, no_room)| {
                    let points = points.into_iter().map(KeyPoint).collect();
                    Message::CopyFailed {
                        id,
                        points,
                        kept,
                        no_room,
                    }
                }),
        ]
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            message in prop::option::of(message()),
            sequence in any::<u64>(),
            confirmed in any::<u64>(),
            cut in any::<prop::sample::Index>(),
        ) {
            let frame = Frame { sequence, confirmed, message };
            let bytes = frame.encode();
            prop_assert_eq!(Frame::decode(bytes.clone()), Ok(frame));
            // Every beginning of it is refused, whatever is missing.
            let short = bytes.slice(..cut.index(bytes.len()));
            prop_assert!(Frame::decode(short).is_err());
            let mut long = bytes.to_vec();
            long.push(0);
            prop_assert!(matches!(Frame::decode(long.into()), Err(DecodeError::Trailing(1))));
        }

        #[test]
        fn nonsense_is_refused(mut bytes in prop::collection::vec(any::<u8>(), 0..200), kind in 0u8..18) {
            if bytes.len() > 18 {
                bytes[0] = FORMAT;
                bytes[17] = kind;
            }
            // A frame or an error: never a panic, never more memory than was sent.
            if let Ok(frame) = Frame::decode(bytes.clone().into()) {
                prop_assert_eq!(Frame::decode(frame.encode()), Ok(frame));
            }
        }
    }
}
