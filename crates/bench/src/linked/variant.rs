//! The forms of the service that are compared.

use serde::{Serialize, Serializer};

/// A form of the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Variant {
    /// Stateless, with memcached: what reductions are relative to.
    Memcached,
    /// Stateless, with Redis.
    Redis,
    /// Stateful without a linked store: a plain map, callers that know the
    /// servers by heart, nothing that could move. The bound of what linking
    /// objects in can give.
    Bare,
    /// Stateless, in front of domain-specific stores.
    CustomStore,
}

impl Variant {
    /// All, in the order of tables.
    pub const ALL: [Variant; 4] = [
        Variant::Memcached,
        Variant::Redis,
        Variant::Bare,
        Variant::CustomStore,
    ];

    /// Its name in tables, JSON and options.
    pub const fn name(self) -> &'static str {
        match self {
            Variant::Memcached => "memcached",
            Variant::Redis => "redis",
            Variant::Bare => "plain-map",
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
            Variant::Bare => "store",
            Variant::CustomStore => "front",
        }
    }
}

impl Serialize for Variant {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}
