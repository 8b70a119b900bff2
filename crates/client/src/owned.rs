//! Lookups' results that own their values.

use crate::get::{Hit, Lookup, Miss};
use trefoil_layout::Version;
use trefoil_layout::copied;

/// A hit that owns its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedHit {
    /// The value's bytes.
    pub value: Vec<u8>,
    /// The mutation that wrote it.
    pub version: Version,
    /// Opaque to the cell.
    pub client_flags: u32,
    /// Milliseconds since the Unix epoch; 0 never expires.
    pub expiry_ms: u64,
    /// `layout::data::ITEM_STALE`, `ITEM_WIN_GIVEN`.
    pub item_flags: u8,
    /// CAS unique that its writer supplied.
    pub unique: Option<u64>,
}

impl OwnedHit {
    /// The same, borrowed.
    pub fn as_hit(&self) -> Hit<'_> {
        Hit {
            value: &self.value,
            version: self.version,
            client_flags: self.client_flags,
            expiry_ms: self.expiry_ms,
            item_flags: self.item_flags,
            unique: self.unique,
        }
    }
}

/// A lookup's result that owns its value.
#[derive(Debug)]
pub enum OwnedLookup {
    /// A value.
    Hit(OwnedHit),
    /// None, and why.
    Miss(Miss),
}

impl Lookup<'_> {
    /// Copies the value out of the client's memory.
    pub fn into_owned(self) -> OwnedLookup {
        match self {
            Lookup::Hit(hit) => OwnedLookup::Hit(OwnedHit {
                value: copied::owned(hit.value),
                version: hit.version,
                client_flags: hit.client_flags,
                expiry_ms: hit.expiry_ms,
                item_flags: hit.item_flags,
                unique: hit.unique,
            }),
            Lookup::Miss(miss) => OwnedLookup::Miss(miss),
        }
    }
}
