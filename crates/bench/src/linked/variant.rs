//! The forms of the service that are compared.

use serde::{Serialize, Serializer};

/// A form of the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Variant {
    /// Stateless, with memcached: what reductions are relative to.
    Memcached,
    /// Stateless, with Redis.
    Redis,
    /// Objects in the app servers, by a linked store, without copies.
    Linked,
    /// The same with a copy of each object, made after changes.
    LinkedEventual,
    /// The same with a copy of each object, made before a change is
    /// acknowledged.
    LinkedStrong,
    /// Objects in the app servers without a linked store: a plain map, callers
    /// that know the servers by heart, nothing that could move. The bound of
    /// what a linked store can give.
    PlainMap,
    /// Stateless, in front of domain-specific stores.
    CustomStore,
}

impl Variant {
    /// All, in the order of tables.
    pub const ALL: [Variant; 7] = [
        Variant::Memcached,
        Variant::Redis,
        Variant::Linked,
        Variant::LinkedEventual,
        Variant::LinkedStrong,
        Variant::PlainMap,
        Variant::CustomStore,
    ];

    /// Its name in tables, JSON and options.
    pub const fn name(self) -> &'static str {
        match self {
            Variant::Memcached => "memcached",
            Variant::Redis => "redis",
            Variant::Linked => "linked",
            Variant::LinkedEventual => "linked-eventual",
            Variant::LinkedStrong => "linked-strong",
            Variant::PlainMap => "plain-map",
            Variant::CustomStore => "custom-store",
        }
    }

    /// The form with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Variant::ALL.into_iter().find(|form| form.name() == name)
    }

    /// What the address book's `--mode` calls its app servers.
    pub(super) const fn mode(self) -> &'static str {
        match self {
            Variant::Memcached => "memcached",
            Variant::Redis => "redis",
            Variant::Linked | Variant::LinkedEventual | Variant::LinkedStrong => "linked",
            Variant::PlainMap => "store",
            Variant::CustomStore => "front",
        }
    }

    /// Of a linked store: its `--replication`, and servers that have each key.
    pub(super) const fn replication(self) -> Option<(&'static str, usize)> {
        match self {
            Variant::Linked => Some(("none", 1)),
            Variant::LinkedEventual => Some(("eventual", 2)),
            Variant::LinkedStrong => Some(("strong", 2)),
            _ => None,
        }
    }
}

impl Serialize for Variant {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}
