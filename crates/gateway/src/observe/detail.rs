//! Counts by key prefix, up to the first `:`: memcached's `stats detail`. Off
//! until somebody asks for it, because it takes a lock for every command.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use trefoil_gateway_core::world::{Command, Done, Ending};

/// Prefixes counted at most; later ones are not.
const PREFIX_COUNT_MAX: usize = 4096;
/// Longest prefix counted, in bytes.
const PREFIX_LEN_MAX: usize = 250;
const DELIMITER: u8 = b':';

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    gets: u64,
    hits: u64,
    sets: u64,
    deletes: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Detail {
    is_on: AtomicBool,
    prefixes: Mutex<BTreeMap<String, Counts>>,
}

impl Detail {
    pub(super) fn turn(&self, on: bool) {
        self.is_on.store(on, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    #[cold]
    pub(super) fn note(&self, done: &Done<'_>) {
        let Some(len) = done.key.iter().position(|byte| *byte == DELIMITER) else {
            return;
        };
        if len > PREFIX_LEN_MAX {
            return;
        }
        let is_hit = done.ending == Ending::Hit;
        let (gets, sets, deletes) = match done.command {
            Command::Get | Command::GetAndTouch => (1, 0, 0),
            Command::Set | Command::Cas => (0, 1, 0),
            Command::Delete => (0, 0, 1),
            _ => return,
        };
        let prefix = done.key[..len].escape_ascii().to_string();
        let mut prefixes = self.lock();
        if prefixes.len() >= PREFIX_COUNT_MAX && !prefixes.contains_key(&prefix) {
            return;
        }
        let counts = prefixes.entry(prefix).or_default();
        counts.gets += gets;
        counts.hits += gets * u64::from(is_hit);
        counts.sets += sets;
        counts.deletes += deletes;
    }

    /// `PREFIX name counts`, without the first word.
    pub(super) fn report(&self, each: &mut dyn FnMut(&str, &str)) {
        let prefixes = self.lock().clone();
        for (prefix, counts) in &prefixes {
            let Counts {
                gets,
                hits,
                sets,
                deletes,
            } = counts;
            each(
                prefix,
                &format!("get {gets} hit {hits} set {sets} del {deletes}"),
            );
        }
    }

    pub(super) fn clear(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Counts>> {
        self.prefixes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_are_counted_up_to_a_bound() {
        let detail = Detail::default();
        let note = |key: &str, command, ending| {
            detail.note(&Done {
                command,
                ending,
                key: key.as_bytes(),
                value_len: 0,
            });
        };
        note("user:1", Command::Get, Ending::Hit);
        note("user:2", Command::Get, Ending::Miss);
        note("user:2", Command::Set, Ending::Hit);
        note("user:3", Command::Delete, Ending::Miss);
        note("plain", Command::Get, Ending::Hit);
        for n in 0..2 * PREFIX_COUNT_MAX {
            note(&format!("z{n}:"), Command::Get, Ending::Hit);
        }
        let mut lines = Vec::new();
        detail.report(&mut |name, value| lines.push(format!("{name} {value}")));
        assert_eq!(lines[0], "user get 2 hit 1 set 1 del 1");
        assert_eq!(lines.len(), PREFIX_COUNT_MAX);
        detail.clear();
        lines.clear();
        detail.report(&mut |name, _| lines.push(name.to_owned()));
        assert!(lines.is_empty());
    }
}
