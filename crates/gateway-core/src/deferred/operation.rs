//! Operations that own what they need, so that somebody else can execute them,
//! and their results.

use crate::keyspace::{Access, Fault, Item, ListedItem, NewItem, Seen, Totals};
use trefoil_layout::Version;
use trefoil_layout::copied;
use trefoil_layout::op::Expected;

/// An operation of a keyspace, for somebody else to execute.
#[derive(Clone, Debug)]
pub enum Operation {
    /// Reads one item.
    Get {
        /// Which.
        key: Vec<u8>,
        /// Whether that is a use of it.
        access: Access,
        /// Whether [`Item::seen`] has to be exact.
        with_seen: bool,
    },
    /// Reads items.
    GetMany {
        /// Which.
        keys: Vec<Vec<u8>>,
        /// Whether that is a use of them.
        access: Access,
    },
    /// Stores an item.
    Set {
        /// Under this key.
        key: Vec<u8>,
        /// This one.
        item: OwnedNewItem,
        /// Whether it has to end as [`Outcome::Stored`].
        needs_version: bool,
    },
    /// Changes an item that is as expected, once: nobody tries again.
    Change {
        /// Which.
        key: Vec<u8>,
        /// What has to be there.
        expected: Expected,
        /// What becomes of it.
        change: Change,
    },
    /// Makes everything invisible that was stored before.
    Flush {
        /// This time, in milliseconds since the Unix epoch.
        at_ms: u64,
    },
    /// Lists items.
    List {
        /// From here.
        cursor: u64,
        /// About so many.
        count: usize,
    },
    /// Totals of the cell.
    Totals,
    /// Sets the memory limit.
    SetMemoryLimit {
        /// To this.
        bytes: u64,
    },
}

impl Operation {
    /// Bytes that it holds of keys and values.
    pub fn held_len(&self) -> usize {
        match self {
            Operation::Get { key, .. } => key.len(),
            Operation::GetMany { keys, .. } => keys.iter().map(Vec::len).sum(),
            Operation::Set { key, item, .. } => key.len() + item.value.len(),
            Operation::Change { key, change, .. } => match change {
                Change::Store(item) => key.len() + item.value.len(),
                Change::Erase => key.len(),
            },
            _ => 0,
        }
    }
}

/// What becomes of an item.
#[derive(Clone, Debug)]
pub enum Change {
    /// This takes its place.
    Store(OwnedNewItem),
    /// It is removed.
    Erase,
}

/// What a change came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changed {
    /// Stored under this version.
    Stored(Version),
    /// Removed.
    Erased,
    /// Something else was there. Nothing has changed.
    Lost,
}

/// What an operation came to; each kind has its own.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// Of [`Operation::Get`].
    Item(Result<Option<OwnedItem>, Fault>),
    /// Of [`Operation::GetMany`]: of at least the first key, in order; the executor
    /// may leave the others to the next read.
    Items(Vec<Result<Option<OwnedItem>, Fault>>),
    /// Of [`Operation::Set`].
    Stored(Result<Version, Fault>),
    /// Of [`Operation::Set`] that needs no version: acknowledged before it was executed.
    Committed,
    /// Of [`Operation::Change`].
    Changed(Result<Changed, Fault>),
    /// Of [`Operation::Flush`] and [`Operation::SetMemoryLimit`].
    Done(Result<(), Fault>),
    /// Of [`Operation::List`]: items, and where to go on.
    Listed(Result<(Vec<OwnedListed>, u64), Fault>),
    /// Of [`Operation::Totals`].
    Totals(Result<Box<Totals>, Fault>),
}

impl Outcome {
    /// Bytes that it holds of keys and values.
    pub fn held_len(&self) -> usize {
        let read = |item: &Result<Option<OwnedItem>, Fault>| match item {
            Ok(Some(item)) => item.value_len(),
            _ => 0,
        };
        match self {
            Outcome::Item(item) => read(item),
            Outcome::Items(items) => items.iter().map(read).sum(),
            Outcome::Listed(Ok((items, _))) => items
                .iter()
                .map(|item| item.key.len() + size_of::<OwnedListed>())
                .sum(),
            _ => 0,
        }
    }
}

/// An item that was read.
#[derive(Clone, Debug)]
pub struct OwnedItem {
    value: Vec<u8>,
    version: Version,
    client_flags: u32,
    item_flags: u8,
    expiry_ms: u64,
    unique: Option<u64>,
    seen: Seen,
}

impl OwnedItem {
    /// A copy.
    pub fn of(item: &Item<'_>) -> Self {
        let mut value = Vec::with_capacity(item.value.len());
        item.value.append_to(&mut value);
        OwnedItem {
            value,
            version: item.version,
            client_flags: item.client_flags,
            item_flags: item.item_flags,
            expiry_ms: item.expiry_ms,
            unique: item.unique,
            seen: item.seen,
        }
    }

    /// What `new` is once it is stored under this version.
    pub fn stored(new: &NewItem<'_>, version: Version) -> Self {
        OwnedItem {
            value: copied::owned(new.value),
            version,
            client_flags: new.client_flags,
            item_flags: new.item_flags,
            expiry_ms: new.expiry_ms,
            unique: new.unique,
            seen: Seen::default(),
        }
    }

    /// The item.
    pub fn item(&self) -> Item<'_> {
        Item {
            value: &self.value,
            version: self.version,
            client_flags: self.client_flags,
            item_flags: self.item_flags,
            expiry_ms: self.expiry_ms,
            unique: self.unique,
            seen: self.seen,
        }
    }

    /// The item, to be stored anew.
    pub fn as_new(&self) -> NewItem<'_> {
        NewItem {
            value: &self.value,
            client_flags: self.client_flags,
            item_flags: self.item_flags,
            expiry_ms: self.expiry_ms,
            unique: self.unique,
        }
    }

    /// Bytes of its value.
    pub fn value_len(&self) -> usize {
        self.value.len()
    }
}

/// An item to be stored.
#[derive(Clone, Debug)]
pub struct OwnedNewItem {
    value: Vec<u8>,
    client_flags: u32,
    item_flags: u8,
    expiry_ms: u64,
    unique: Option<u64>,
}

impl OwnedNewItem {
    /// A copy.
    pub fn of(item: &NewItem<'_>) -> Self {
        OwnedNewItem {
            value: copied::owned(item.value),
            client_flags: item.client_flags,
            item_flags: item.item_flags,
            expiry_ms: item.expiry_ms,
            unique: item.unique,
        }
    }

    /// The item.
    pub fn item(&self) -> NewItem<'_> {
        NewItem {
            value: &self.value,
            client_flags: self.client_flags,
            item_flags: self.item_flags,
            expiry_ms: self.expiry_ms,
            unique: self.unique,
        }
    }
}

/// What a listing tells of an item.
#[derive(Clone, Debug)]
pub struct OwnedListed {
    key: Vec<u8>,
    value_len: usize,
    entry_len: usize,
    version: Version,
    unique: Option<u64>,
    client_flags: u32,
    expiry_ms: u64,
    seen: Seen,
}

impl OwnedListed {
    /// A copy.
    pub fn of(item: &ListedItem<'_>) -> Self {
        OwnedListed {
            key: item.key.to_vec(),
            value_len: item.value_len,
            entry_len: item.entry_len,
            version: item.version,
            unique: item.unique,
            client_flags: item.client_flags,
            expiry_ms: item.expiry_ms,
            seen: item.seen,
        }
    }

    /// The item.
    pub fn item(&self) -> ListedItem<'_> {
        ListedItem {
            key: &self.key,
            value_len: self.value_len,
            entry_len: self.entry_len,
            version: self.version,
            unique: self.unique,
            client_flags: self.client_flags,
            expiry_ms: self.expiry_ms,
            seen: self.seen,
        }
    }
}
