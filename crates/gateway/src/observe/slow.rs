//! The slow log: the last commands that took longer than they should.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

/// Commands remembered.
const COUNT_MAX: usize = 128;
/// Bytes of a key that are kept: enough to recognise it.
const KEY_KEPT_MAX: usize = 64;

/// A slow command.
#[derive(Clone, Debug)]
pub(super) struct SlowCommand {
    /// Counts from 0.
    pub(super) number: u64,
    pub(super) unix_ms: u64,
    pub(super) duration_ns: u64,
    pub(super) command: &'static str,
    /// Its key, cut off and escaped.
    pub(super) key: String,
    pub(super) key_len: usize,
    pub(super) value_len: usize,
    /// Who sent it.
    pub(super) client: String,
}

/// A ring of them.
#[derive(Debug, Default)]
pub(super) struct SlowLog {
    ring: Mutex<Ring>,
}

#[derive(Debug, Default)]
struct Ring {
    next: u64,
    commands: VecDeque<SlowCommand>,
}

impl SlowLog {
    /// Remembers one; its number is given here.
    pub(super) fn push(&self, mut command: SlowCommand) {
        let mut ring = self.lock();
        command.number = ring.next;
        ring.next += 1;
        if ring.commands.len() == COUNT_MAX {
            ring.commands.pop_front();
        }
        ring.commands.push_back(command);
    }

    /// The newest first.
    pub(super) fn newest(&self) -> Vec<SlowCommand> {
        self.lock().commands.iter().rev().cloned().collect()
    }

    /// Forgets them; numbers go on.
    pub(super) fn clear(&self) {
        self.lock().commands.clear();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A key as people may see it: cut off, and on one line.
pub(super) fn shown(key: &[u8]) -> String {
    let kept = &key[..key.len().min(KEY_KEPT_MAX)];
    let mut text = kept.escape_ascii().to_string();
    if kept.len() < key.len() {
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_stay() {
        let log = SlowLog::default();
        for n in 0..COUNT_MAX + 5 {
            log.push(SlowCommand {
                number: 0,
                unix_ms: 0,
                duration_ns: n as u64,
                command: "get",
                key: shown(b"k"),
                key_len: 1,
                value_len: 0,
                client: String::new(),
            });
        }
        let newest = log.newest();
        assert_eq!(newest.len(), COUNT_MAX);
        assert_eq!((newest[0].number, newest[0].duration_ns), (132, 132));
        log.clear();
        assert!(log.newest().is_empty());
    }

    #[test]
    fn keys_are_cut_off_and_escaped() {
        assert_eq!(shown(b"plain"), "plain");
        assert_eq!(shown(b"a\r\nb\xff"), "a\\r\\nb\\xff");
        let shown = shown(&[b'x'; 100]);
        assert_eq!(shown.chars().count(), 65);
    }
}
