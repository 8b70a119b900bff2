//! The `pgoutput` protocol, version 1: what a publication's changes look like
//! on the wire. A decoder without I/O; any bytes give a message or an error.
//!
//! Values stay in the text form that the server sends, as slices of the
//! received message.

mod decode;

pub use decode::{DecodeError, decode};

use bytes::Bytes;

/// One message of the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// A transaction's changes follow.
    Begin {
        /// Where its commit record starts.
        commit: u64,
        /// Its number, without the epoch.
        xid: u32,
    },
    /// The transaction's changes are complete.
    Commit {
        /// Where the commit record ends.
        end: u64,
    },
    /// What a table looks like from here on.
    Relation(Relation),
    /// A new row.
    Insert {
        /// The table's number.
        relation: u32,
        /// The row.
        new: Tuple,
    },
    /// A changed row.
    Update {
        /// The table's number.
        relation: u32,
        /// What is told of the row before.
        old: Old,
        /// The row now.
        new: Tuple,
    },
    /// A row that is gone.
    Delete {
        /// The table's number.
        relation: u32,
        /// What is told of the row before.
        old: Old,
    },
    /// Tables that were emptied.
    Truncate {
        /// The tables' numbers.
        relations: Vec<u32>,
    },
    /// Something that a client wrote into the log.
    Logical {
        /// Whose it is.
        prefix: String,
        /// What it says.
        content: Bytes,
    },
    /// A type's name: of no use here.
    Type,
    /// Where a replicated transaction came from: of no use here.
    Origin,
}

/// A table as the stream describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relation {
    /// Its number in the messages that follow.
    pub id: u32,
    /// Its schema's name.
    pub schema: String,
    /// Its name.
    pub name: String,
    /// Its columns, in the order of the tuples.
    pub columns: Vec<Column>,
}

impl Relation {
    /// `schema.table`.
    pub fn full_name(&self) -> String {
        format!("{}.{}", self.schema, self.name)
    }
}

/// A column of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// It belongs to the replica identity: its old value is known when it
    /// changes and when the row is deleted.
    pub identity: bool,
    /// Its type's number.
    pub type_id: u32,
    /// Its type's modifier.
    pub type_modifier: i32,
}

/// What a change tells of the row before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Old {
    /// Nothing: the columns of the replica identity did not change.
    Same,
    /// The columns of the replica identity; others look like NULL.
    Identity(Tuple),
    /// The whole row.
    Full(Tuple),
}

/// A row's values, in the order of the relation's columns.
pub type Tuple = Vec<Value>;

/// One value of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// NULL; in [`Old::Identity`] also a column outside of the identity.
    Null,
    /// A large value that did not change and is not told.
    Unchanged,
    /// The value's text form.
    Text(Bytes),
}
