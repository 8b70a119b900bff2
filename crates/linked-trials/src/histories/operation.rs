//! One operation of one client: what it asked, what it was told, and when.

use serde::Serialize;

/// The end of an operation of which nobody knows whether, or when, it takes effect.
pub(crate) const NEVER: u64 = u64::MAX;

/// What was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Asked {
    /// To put this number, which nobody else ever uses, behind the list.
    Append(u64),
    /// For the list.
    Read,
    /// To take the list away.
    Remove,
}

/// What was told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Answer {
    /// The list; of an append: with its own number at the end.
    List(Vec<u64>),
    /// There was no list, and nothing was changed.
    Absent,
    /// The list was taken away.
    Removed,
    /// Nothing was done.
    Refused,
    /// It may have been done, or may yet be, once.
    Unknown,
}

/// One operation on one key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Operation {
    pub(crate) client: u32,
    pub(crate) key: u32,
    pub(crate) asked: Asked,
    pub(crate) answer: Answer,
    /// When it was begun.
    pub(crate) begin_ns: u64,
    /// When its caller was told, or gave up.
    pub(crate) end_ns: u64,
}

impl Operation {
    /// When it has certainly taken effect.
    pub(crate) fn effective_ns(&self) -> u64 {
        match self.answer {
            Answer::Unknown => NEVER,
            _ => self.end_ns,
        }
    }
}
