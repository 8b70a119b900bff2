//! How callers find a server.

use std::sync::atomic::{AtomicUsize, Ordering};

use trefoil_layout::hash::KeyHasher;

/// The app servers, and which of them may be asked.
#[derive(Debug)]
pub(super) struct Placement {
    addresses: Vec<String>,
    rule: Rule,
}

#[derive(Debug)]
enum Rule {
    /// Any: each in turn.
    Any(AtomicUsize),
    /// The one that the key's hash picks.
    ByKey(KeyHasher),
}

impl Placement {
    pub(super) fn any(addresses: Vec<String>) -> Self {
        let rule = Rule::Any(AtomicUsize::new(0));
        Placement { addresses, rule }
    }

    pub(super) fn by_key(addresses: Vec<String>) -> Self {
        let rule = Rule::ByKey(KeyHasher::default());
        Placement { addresses, rule }
    }

    pub(super) fn addresses(&self) -> &[String] {
        &self.addresses
    }

    /// The index of a server to ask for `key`.
    pub(super) fn pick(&self, key: &str) -> usize {
        let count = self.addresses.len().max(1);
        match &self.rule {
            Rule::Any(turn) => turn.fetch_add(1, Ordering::Relaxed) % count,
            Rule::ByKey(hasher) => {
                let place = hasher.hash(key.as_bytes()).place;
                ((u128::from(place) * count as u128) >> 64) as usize
            }
        }
    }
}
