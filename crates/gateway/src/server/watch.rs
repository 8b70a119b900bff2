//! Log lines for connections that `watch`.
//!
//! A command on any event loop may have watchers on any other. Each loop has a
//! mailbox; nobody takes its lock, or makes a line, unless somebody watches.

use rustix::time::{ClockId, clock_gettime};
use std::collections::VecDeque;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use trefoil_gateway_core::keyspace::Evicted;
use trefoil_gateway_core::world::{
    Command, Done, Ending, WATCH_EVICTIONS, WATCH_FETCHERS, WATCH_MUTATIONS,
};
use trefoil_layout::size_class;

/// Connections that watch, as in memcached: a line is made and sent for each of them.
const WATCHERS_MAX: usize = 20;
/// Lines that wait for one loop at most; the rest is dropped and counted.
const LINES_MAX: usize = 4096;
/// Keys are shown up to this length, before encoding.
const KEY_SHOWN_MAX: usize = 250;

/// A line and the kinds of log that it belongs to.
#[derive(Clone, Debug)]
pub(super) struct Line {
    pub(super) kinds: u8,
    pub(super) text: Arc<str>,
}

/// Lines for the watchers of one loop.
#[derive(Debug, Default)]
pub(super) struct Mailbox {
    /// What its watchers want, all together.
    kinds: AtomicU8,
    lines: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    lines: VecDeque<Line>,
    dropped: u64,
}

impl Mailbox {
    /// Takes all lines, and how many were dropped for lack of room.
    pub(super) fn take(&self, into: &mut Vec<Line>) -> u64 {
        let mut waiting = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        into.extend(waiting.lines.drain(..));
        std::mem::take(&mut waiting.dropped)
    }

    /// Whether anybody on this loop watches.
    pub(super) fn is_wanted(&self) -> bool {
        self.kinds.load(Ordering::Relaxed) != 0
    }
}

/// All mailboxes.
#[derive(Debug)]
pub(super) struct Hub {
    mailboxes: Vec<Mailbox>,
    /// What anybody wants.
    kinds: AtomicU8,
    numbered: AtomicU64,
    watcher_count: AtomicUsize,
}

impl Hub {
    pub(super) fn new(loop_count: usize) -> Self {
        Hub {
            mailboxes: (0..loop_count).map(|_| Mailbox::default()).collect(),
            kinds: AtomicU8::new(0),
            numbered: AtomicU64::new(1),
            watcher_count: AtomicUsize::new(0),
        }
    }

    /// A place for one more watcher, if there is one.
    pub(super) fn admit(&self) -> bool {
        let relaxed = Ordering::Relaxed;
        let more = |count| (count < WATCHERS_MAX).then_some(count + 1);
        self.watcher_count
            .fetch_update(relaxed, relaxed, more)
            .is_ok()
    }

    /// Such a place is free again.
    pub(super) fn dismiss(&self) {
        self.watcher_count.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn mailbox(&self, index: usize) -> &Mailbox {
        &self.mailboxes[index]
    }

    /// What anybody wants.
    #[inline]
    pub(super) fn kinds(&self) -> u8 {
        self.kinds.load(Ordering::Relaxed)
    }

    /// Another watcher of loop `index` wants these kinds.
    pub(super) fn want_more(&self, index: usize, kinds: u8) {
        self.mailboxes[index]
            .kinds
            .fetch_or(kinds, Ordering::Relaxed);
        self.kinds.fetch_or(kinds, Ordering::Relaxed);
    }

    /// The watchers of loop `index` want these kinds, all together.
    pub(super) fn want(&self, index: usize, kinds: u8) {
        self.mailboxes[index].kinds.store(kinds, Ordering::Relaxed);
        let each = |mailbox: &Mailbox| mailbox.kinds.load(Ordering::Relaxed);
        let all = self.mailboxes.iter().map(each).fold(0, |a, b| a | b);
        self.kinds.store(all, Ordering::Relaxed);
    }

    /// Posts the line of a command, if it makes one; `posted` is told which
    /// loops have got mail.
    pub(super) fn publish(&self, done: &Done<'_>, fd: i32, mut posted: impl FnMut(usize)) {
        let Some(kind) = kind_of(done) else {
            return;
        };
        if self.kinds() & kind == 0 {
            return;
        }
        let mut text = self.begin();
        put_done(&mut text, done, fd);
        self.post(kind, text, &mut posted);
    }

    /// Posts the line of an eviction.
    pub(super) fn publish_evicted(
        &self,
        evicted: &Evicted<'_>,
        now_ms: u64,
        posted: &mut dyn FnMut(usize),
    ) {
        let mut text = self.begin();
        put_evicted(&mut text, evicted, now_ms);
        self.post(WATCH_EVICTIONS, text, posted);
    }

    /// Lines of this kind were lost before they were made.
    pub(super) fn dropped(&self, kind: u8, count: u64) {
        if count == 0 {
            return;
        }
        for mailbox in &self.mailboxes {
            if mailbox.kinds.load(Ordering::Relaxed) & kind != 0 {
                let mut waiting = mailbox.lines.lock().unwrap_or_else(PoisonError::into_inner);
                waiting.dropped += count;
            }
        }
    }

    /// The beginning of every line: when, and which.
    fn begin(&self) -> String {
        let number = self.numbered.fetch_add(1, Ordering::Relaxed);
        let now = clock_gettime(ClockId::Realtime);
        let micros = now.tv_nsec / 1000;
        let mut text = String::with_capacity(160);
        // Writing to a string cannot fail.
        let _ = write!(text, "ts={}.{micros:06} gid={number} type=", now.tv_sec);
        text
    }

    fn post(&self, kind: u8, text: String, posted: &mut dyn FnMut(usize)) {
        let line = Line {
            kinds: kind,
            text: text.into(),
        };
        for (index, mailbox) in self.mailboxes.iter().enumerate() {
            if mailbox.kinds.load(Ordering::Relaxed) & kind == 0 {
                continue;
            }
            let mut waiting = mailbox.lines.lock().unwrap_or_else(PoisonError::into_inner);
            if waiting.lines.len() < LINES_MAX {
                waiting.lines.push_back(line.clone());
            } else {
                waiting.dropped += 1;
            }
            drop(waiting);
            posted(index);
        }
    }
}

/// Which log a command belongs to.
fn kind_of(done: &Done<'_>) -> Option<u8> {
    match done.command {
        Command::Get | Command::GetAndTouch | Command::Touch => Some(WATCH_FETCHERS),
        Command::Set | Command::Cas | Command::Delete | Command::Incr | Command::Decr => {
            Some(WATCH_MUTATIONS)
        }
        Command::Flush | Command::Other => None,
    }
}

/// Appends what was done, in the shape that memcached's readers know.
fn put_done(line: &mut String, done: &Done<'_>, fd: i32) {
    let status = match (done.command, done.ending) {
        (Command::Get | Command::GetAndTouch | Command::Touch, Ending::Hit) => "found",
        (Command::Delete, Ending::Hit) => "deleted",
        (_, Ending::Hit) => "stored",
        (Command::Cas, Ending::Refused) => "exists",
        (Command::Set, _) | (_, Ending::Refused) => "not_stored",
        (_, Ending::Miss) => "not_found",
        (_, Ending::ClientError | Ending::ServerError) => "error",
    };
    let kind = match done.command {
        Command::Get | Command::GetAndTouch | Command::Touch => "item_get",
        Command::Delete => "deleted",
        _ => "item_store",
    };
    // Writing to a string cannot fail.
    let _ = write!(line, "{kind} key=");
    put_key(line, done.key);
    let _ = write!(line, " status={status}");
    if kind == "item_store" {
        let command = match done.command {
            Command::Cas => "cas",
            Command::Incr => "incr",
            Command::Decr => "decr",
            _ => "set",
        };
        let _ = write!(line, " cmd={command} ttl=0");
    }
    // What was not found has no class.
    let class = match (kind, done.ending) {
        ("item_get", Ending::Miss) => 0,
        _ => size_class::of_item(done.key.len(), done.value_len),
    };
    let _ = writeln!(line, " clsid={class} cfd={fd} size={}", done.value_len);
}

fn put_key(line: &mut String, key: &[u8]) {
    for byte in key.iter().take(KEY_SHOWN_MAX) {
        match byte {
            b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' | b'-' | b'_' | b'.' | b'~' => {
                line.push(char::from(*byte));
            }
            byte => {
                let _ = write!(line, "%{byte:02X}");
            }
        }
    }
}

fn put_evicted(line: &mut String, evicted: &Evicted<'_>, now_ms: u64) {
    line.push_str("eviction key=");
    put_key(line, evicted.key);
    let fetched = if evicted.seen.hit_before { "yes" } else { "no" };
    let ttl_s = match evicted.expiry_ms {
        0 => -1,
        expiry_ms => (expiry_ms.saturating_sub(now_ms) / 1000) as i64,
    };
    let _ = writeln!(
        line,
        " fetch={fetched} ttl={ttl_s} la={} clsid={} size={}",
        evicted.seen.idle_s,
        size_class::of_item(evicted.key_len, evicted.value_len),
        evicted.value_len,
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done(command: Command, ending: Ending, key: &[u8]) -> Done<'_> {
        Done {
            command,
            ending,
            key,
            value_len: 5,
        }
    }

    #[test]
    fn lines_go_to_those_who_want_them() {
        let hub = Hub::new(2);
        let mut posted = Vec::new();
        let get = done(Command::Get, Ending::Hit, b"a b");
        hub.publish(&get, 9, |index| posted.push(index));
        assert!(posted.is_empty());
        hub.want(1, WATCH_FETCHERS);
        hub.publish(&get, 9, |index| posted.push(index));
        let set = done(Command::Set, Ending::Hit, b"k");
        hub.publish(&set, 9, |index| posted.push(index));
        assert_eq!(posted, [1]);
        let mut lines = Vec::new();
        assert_eq!(hub.mailbox(1).take(&mut lines), 0);
        assert_eq!(lines.len(), 1);
        let text = &lines[0].text;
        assert!(text.starts_with("ts="), "{text}");
        assert!(
            text.ends_with("type=item_get key=a%20b status=found clsid=1 cfd=9 size=5\n"),
            "{text}"
        );
        hub.want(1, 0);
        assert_eq!(hub.kinds(), 0);
    }

    #[test]
    fn a_full_mailbox_drops_and_counts() {
        let hub = Hub::new(1);
        hub.want(0, WATCH_MUTATIONS);
        for _ in 0..LINES_MAX + 7 {
            hub.publish(&done(Command::Set, Ending::Refused, b"k"), 1, |_| {});
        }
        let mut lines = Vec::new();
        assert_eq!(hub.mailbox(0).take(&mut lines), 7);
        assert_eq!(lines.len(), LINES_MAX);
        assert!(lines[0].text.contains("status=not_stored cmd=set ttl=0"));
    }
}
