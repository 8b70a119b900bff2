//! What a protocol is lent for the duration of one call.

use crate::keyspace::{Keyspace, Seen, Totals};
use crate::resp::Scripts;
use std::time::Duration;

/// The time, as the event loop knows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Milliseconds since the Unix epoch.
    pub unix_ms: u64,
    /// Nanoseconds of a clock that never goes back.
    pub monotonic_ns: u64,
}

/// What an operator chose, the same for every connection of a listener.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Longest value, in bytes (memcached's `-I`; 1 MiB unless told otherwise).
    pub item_len_max: usize,
    /// Whether `shutdown` is obeyed.
    pub shutdown_allowed: bool,
    /// Whether clients must authenticate before anything else.
    pub authentication: bool,
    /// Whether anybody may use administrative commands; see [`Role::Admin`].
    pub admin_commands: bool,
    /// The memcached whose answers clients get, where two contradict each other.
    pub release: Release,
    /// Most connections, for reports.
    pub connections_max: usize,
    /// After how long connections that say nothing are closed, for reports.
    pub idle_timeout: Option<Duration>,
    /// Event loops, for reports.
    pub thread_count: usize,
    /// Longest answer that is collected before it is sent, in bytes: what one
    /// connection may keep of those that all have.
    pub answer_len_max: usize,
    /// What becomes of transactions that cannot be atomic here.
    pub transactions: Isolation,
}

/// A memcached whose answers clients get. Commands and flags that only the newer one has
/// are there always; this decides where the two contradict each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Release {
    /// Debian 12's.
    #[default]
    V1_6_18,
    /// Debian's of 2026: other words for errors, and what stands behind a command's last
    /// word is ignored.
    V1_6_45,
}

impl Release {
    /// What `version` answers, after the protocol's own words: clients choose by this
    /// number what they may ask for.
    pub const fn version(self) -> &'static str {
        match self {
            Release::V1_6_18 => "1.6.18",
            Release::V1_6_45 => "1.6.45",
        }
    }
}

/// What becomes of a transaction whose keys cannot be changed as one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Isolation {
    /// Its commands are executed one after another; others may act in between.
    #[default]
    Relaxed,
    /// It is refused before anything of it is applied.
    Strict,
}

/// What a connection may do. Each role may do what those before it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Read items, lists of them, and statistics.
    Read,
    /// Store, change and remove items, one key at a time.
    Write,
    /// What concerns all items, or the server: `flush_all`, FLUSHALL,
    /// `cache_memlimit`, `shutdown`, setting statistics to zero, and ending connections.
    Admin,
}

impl Settings {
    /// What a connection may do whose user has this role; `None` if it has not
    /// authenticated.
    pub fn role(&self, user: Option<Role>) -> Role {
        let role = match user {
            None if self.authentication => Role::Read,
            None => Role::Admin,
            Some(role) => role,
        };
        if self.admin_commands {
            role
        } else {
            role.min(Role::Write)
        }
    }
}

/// What a command did, one per item: for counters, logs, `watch`, top keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Read.
    Get,
    /// Read, with a new expiry.
    GetAndTouch,
    /// A new expiry.
    Touch,
    /// Stored: set, add, replace, append, prepend.
    Set,
    /// Stored if unchanged.
    Cas,
    /// Removed.
    Delete,
    /// Counted up.
    Incr,
    /// Counted down.
    Decr,
    /// Everything removed.
    Flush,
    /// Anything about the connection or the server.
    Other,
}

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Found, stored, removed.
    Hit,
    /// There was no such item.
    Miss,
    /// There was one, and it prevented the command: a CAS unique that differs,
    /// an `add` of what exists.
    Refused,
    /// The client's mistake.
    ClientError,
    /// The cell's fault.
    ServerError,
}

/// One command on one key.
#[derive(Clone, Copy, Debug)]
pub struct Done<'a> {
    /// What.
    pub command: Command,
    /// How it ended.
    pub ending: Ending,
    /// On which key; empty if on none.
    pub key: &'a [u8],
    /// Bytes of the value that was read, stored, touched or removed.
    pub value_len: usize,
}

/// What a client has said of itself, in printable ASCII without blanks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Introduction {
    /// The name that it has given its connection; empty without one.
    pub name: String,
    /// Whom it has authenticated as; empty if as nobody.
    pub user: String,
    /// The library that it uses, and that one's version; empty if it has not said.
    pub library: (String, String),
    /// It reads answers of the third version of Redis's protocol.
    pub is_resp3: bool,
}

/// Longest name of a connection, or of a user in lists of them.
pub(crate) const NAME_LEN_MAX: usize = 1024;

/// In letters that spoil no list of clients.
pub(crate) fn printable(name: &[u8], len_max: usize) -> String {
    let letter = |byte: &u8| match byte.is_ascii_graphic() {
        true => char::from(*byte),
        false => '?',
    };
    name.iter().take(len_max).map(letter).collect()
}

impl Introduction {
    /// Of a client that has authenticated as this user, and says no more of itself.
    pub(crate) fn of_user(name: &[u8]) -> Self {
        Introduction {
            user: printable(name, NAME_LEN_MAX),
            ..Introduction::default()
        }
    }
}

/// A connection, whoever speaks what on it.
#[derive(Clone, Copy, Debug)]
pub struct Client<'a> {
    /// Unique within the server.
    pub number: u64,
    /// Its descriptor.
    pub fd: i32,
    /// Where it comes from: an address and a port, or a socket's path.
    pub address: &'a str,
    /// Where it has come to.
    pub own_address: &'a str,
    /// Seconds since it was accepted.
    pub age_s: u32,
    /// Seconds since it last said something.
    pub idle_s: u32,
    /// What it has said of itself.
    pub said: &'a Introduction,
}

/// A command that took long.
#[derive(Clone, Copy, Debug)]
pub struct SlowCommand<'a> {
    /// Counts from 0.
    pub number: u64,
    /// When it ended, in milliseconds since the Unix epoch.
    pub unix_ms: u64,
    /// How long it took, in microseconds.
    pub duration_us: u64,
    /// Its name in reports.
    pub command: &'a str,
    /// Its key, cut off and escaped.
    pub key: &'a str,
    /// Who sent it: `tcp:` and an address, or a socket's path.
    pub client: &'a str,
}

/// Who listens to what commands do. One belongs to each event loop; its work
/// per command must be small. One that says nothing more counts, keeps and knows nobody.
pub trait Observer {
    /// A command on one key was executed.
    fn done(&mut self, done: &Done<'_>);

    /// Kinds of log lines that anybody watches, bits of [`WATCH_FETCHERS`] and its
    /// like: what serves only them is done only then.
    fn watched(&self) -> u8 {
        0
    }

    /// Before a command that changes an item, if [`Observer::watched`] has
    /// [`WATCH_FETCHERS`]: the item was looked up, and had a value of this length
    /// if it was there. Counts for nothing but log lines.
    fn looked_up(&mut self, _key: &[u8], _value_len: Option<usize>) {}

    /// Whether [`Observer::stats`] of this group tells of the cell, so that it
    /// needs [`Totals`].
    fn needs_totals(&self, group: &str) -> bool {
        matches!(group, "" | "settings" | "items" | "slabs" | "sizes")
    }

    /// Gives `(name, value)` of a group of statistics, in order: `""` is the
    /// general one, else memcached's `settings`, `items`, `slabs`, `sizes`,
    /// `conns`, `detail on`, `detail off`, `detail dump` (name: a prefix; value:
    /// its counts), and `slow`, the slow log. What is told of the cell (items,
    /// bytes, evictions) is made from `totals`: a session adds nothing of its own.
    /// `false` if there is no such group.
    fn stats(&mut self, _group: &str, _totals: &Totals, _each: &mut dyn FnMut(&str, &str)) -> bool {
        false
    }

    /// Shows the slow log, the newest command first, until `each` has seen enough
    /// and returns `false`.
    fn slow_log(&self, _each: &mut dyn FnMut(&SlowCommand<'_>) -> bool) {}

    /// Shows all connections of the server, as far as they are known.
    fn clients(&self, _each: &mut dyn FnMut(&Client<'_>)) {}

    /// Shows this connection, if it is known.
    fn own_client(&self, _each: &mut dyn FnMut(&Client<'_>)) {}

    /// The TCP port that this connection has come to; 0 if it is none.
    fn own_port(&self) -> u16 {
        0
    }

    /// This connection's client has said something of itself: all that it has.
    fn introduce(&mut self, _said: &Introduction) {}

    /// Whether there is a user of this name; without users there is the default one.
    fn has_user(&self, name: &[u8]) -> bool {
        name == b"default"
    }

    /// Has the connections with these numbers ended.
    fn end_clients(&mut self, _numbers: &[u64]) {}

    /// Forgets the slow log; numbers go on.
    fn forget_slow(&mut self) {}

    /// Sets all counters to zero (`stats reset`), those in `totals` included.
    fn reset(&mut self, _totals: &Totals) {}

    /// Subscribes this connection to log lines; the kinds are bits of
    /// [`WATCH_FETCHERS`] and its like. The event loop sends them. `false`: too many
    /// connections watch.
    fn watch(&mut self, _connection: u64, _kinds: u8) -> bool {
        true
    }

    /// Executes what concerns the whole server: see [`ServerRequest`].
    fn request(&mut self, _request: ServerRequest) {}

    /// Where scripts are kept and executed, if they are.
    fn scripts(&mut self) -> Option<&mut dyn Scripts> {
        None
    }

    /// The role of the user with this name and password, if there is one.
    fn authenticate(&mut self, _name: &[u8], _password: &[u8]) -> Option<Role> {
        None
    }
}

/// Log lines of reads.
pub const WATCH_FETCHERS: u8 = 1;
/// Log lines of writes.
pub const WATCH_MUTATIONS: u8 = 2;
/// Log lines of evictions.
pub const WATCH_EVICTIONS: u8 = 4;

/// What a command asks of the whole server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerRequest {
    /// Stop, as on SIGTERM.
    Shutdown,
    /// Flush at this time in the future, in milliseconds since the Unix epoch
    /// (a flush that is due at once goes to the keyspace). It takes the place of
    /// one that was put off before.
    FlushAt(u64),
    /// No flush at a time in the future any more: one that was due at once has
    /// taken its place.
    FlushNoMore,
    /// How much the server logs (`verbosity`).
    Verbosity(u32),
}

/// What a request has seen before the operation that it waits for, and must not
/// look at again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Progress {
    /// Nothing.
    #[default]
    Begun,
    /// Nobody watched when it began: no lookup for a log line.
    NotLookedUp,
    /// The item is being looked up for a log line.
    LookingUp,
    /// The item was looked up for a log line, and had a value of this length if it
    /// was there.
    LookedUp(Option<usize>),
    /// The item was read, and has to be written; when it was last used, if that
    /// was asked for.
    Read(Option<Seen>),
}

/// Everything a protocol needs beside the bytes.
pub struct World<'a, K: Keyspace> {
    /// The cell.
    pub keyspace: &'a mut K,
    /// Counters, logs and the server at large.
    pub observer: &'a mut dyn Observer,
    /// See [`Settings`].
    pub settings: &'a Settings,
    /// The time: of the call, or of the request's first execution if it is
    /// executed again.
    pub now: Now,
    /// The time of the call, which counts from the next request on. Expiries of what is
    /// stored count from it: the request may have waited, and other writers may have been
    /// faster.
    pub next_now: Now,
    /// How far the request has come. Whoever drives a session keeps this and `now`
    /// while an operation is pending.
    pub progress: Progress,
    /// Number of the connection, unique within the server.
    pub connection: u64,
}

impl<K: Keyspace> World<'_, K> {
    /// The request (or a part of it that is consumed by itself) has been answered.
    #[inline]
    pub fn conclude(&mut self) {
        self.keyspace.conclude();
        self.progress = Progress::Begun;
        self.now = self.next_now;
    }

    /// The request goes on behind its first operations, and remembers this of
    /// them.
    pub fn advance(&mut self, progress: Progress) {
        self.keyspace.conclude();
        self.progress = progress;
    }
}

impl<K: Keyspace> std::fmt::Debug for World<'_, K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("World")
            .field("connection", &self.connection)
            .field("now", &self.now)
            .finish_non_exhaustive()
    }
}
