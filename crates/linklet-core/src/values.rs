//! How the protocol reaches the values, which it never looks into.

use crate::message::Entry;
use crate::table::Table;
use bytes::Bytes;
use std::sync::Arc;
use trefoil_sharder::{KeyPoint, Slice};

/// The longest value that is kept in common, with its key, as marshalled. A longer one is
/// refused where it is put ([`Refused::TooLong`](crate::Refused)) and where it arrives, and is
/// never sent: with what goes along it has to fit in a frame, and a frame that is refused
/// would be sent again for ever.
pub const VALUE_BYTES_MAX: usize = 192 << 20;

/// How much to take at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Marshalled bytes after which to stop.
    pub bytes: usize,
    /// Entries after which to stop.
    pub entries: usize,
}

/// Values of the beginning of a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scan {
    /// Every value up to and including `last`, in the order of the points.
    pub entries: Vec<Entry>,
    /// How far it goes; at least one point, at most to the end of the range.
    /// All keys of one point are always together.
    pub last: KeyPoint,
}

/// Why a value that arrived was not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NotStored {
    /// It could not be unmarshalled, or is longer than [`VALUE_BYTES_MAX`].
    Unreadable,
    /// There is no room for it.
    NoRoom,
}

/// The values of one server and corpus, its own and copies of others'.
///
/// Where several threads serve keys, the rule is: *look at the table under the
/// lock that guards the value*. `publish` returns only when later looks see the
/// new table; the protocol reads a value for another server only after the
/// table that withdraws it was published. So a commit either is in what is
/// sent, or sees that the key is not here any more.
pub trait Values {
    /// The table by which keys are served from now on.
    fn publish(&mut self, table: Arc<Table>);

    /// The values of the beginning of `slice`. A value whose marshalling fails
    /// or panics is an entry without a value; one that is longer than [`VALUE_BYTES_MAX`] is
    /// made one. Neither the server's own threads
    /// nor evictions change these keys between `publish` and `forget`.
    fn scan(&mut self, slice: Slice, limit: Limit) -> Scan;

    /// The value of one key, for its copies; `None` if there is none.
    fn get(&mut self, point: KeyPoint, key: &Bytes) -> Option<Entry>;

    /// Takes a value from elsewhere, instead of the one that is there, which stays if it
    /// is refused.
    fn store(&mut self, entry: Entry) -> Result<(), NotStored>;

    /// The same, for a copy of another server's value. What is refused here is
    /// sent again later.
    fn store_copy(&mut self, entry: Entry) -> Result<(), NotStored> {
        self.store(entry)
    }

    /// Removes one key, if it is there.
    fn remove(&mut self, point: KeyPoint, key: &Bytes);

    /// Removes all keys of a range: they are elsewhere now, or about to be
    /// stored anew.
    fn forget(&mut self, slice: Slice);

    /// Removes all keys of a range but those of which this is true.
    fn forget_but(&mut self, slice: Slice, stays: &dyn Fn(KeyPoint, &[u8]) -> bool);

    /// A proposed commit ([`Core::propose`](crate::Core::propose)) is settled:
    /// make it visible now.
    fn settle(&mut self, ticket: crate::Ticket);
}

/// The value of one key as it may be sent.
pub(crate) fn get(values: &mut dyn Values, point: KeyPoint, key: &Bytes) -> Option<Entry> {
    values.get(point, key).map(Entry::sendable)
}

/// Values of the beginning of a range as they may be sent.
pub(crate) fn scan(values: &mut dyn Values, slice: Slice, limit: Limit) -> Scan {
    let Scan { entries, last } = values.scan(slice, limit);
    let entries = entries.into_iter().map(Entry::sendable).collect();
    Scan { entries, last }
}
