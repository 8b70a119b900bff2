//! What tests of protocols share: a session over a keyspace in memory, a real
//! server beside it, and random numbers by seed.

#![allow(dead_code, reason = "each test file uses its part of it")]

pub(crate) mod server;

pub(crate) use crate::corpus::random;

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};
use trefoil_gateway_core::keyspace::{
    Access, Decide, Fault, Halt, Item, Keyspace, ListedItem, NewItem, PAGE_LEN, Pending, Totals,
    Updated,
};
use trefoil_gateway_core::memory::MemoryKeyspace;
use trefoil_gateway_core::session::{Session, Wants};
use trefoil_gateway_core::world::{
    Client, Command, Done, Ending, Introduction, Isolation, Now, Observer, Progress, Release, Role,
    ServerRequest, Settings, SlowCommand, World,
};
use trefoil_layout::Version;
use trefoil_layout::op::Rejection;

/// The number of the connection.
pub(crate) const CONNECTION: u64 = 7;

/// A keyspace in memory that can be told to fail.
pub(crate) struct FaultyKeyspace {
    pub(crate) inner: MemoryKeyspace,
    pub(crate) fault: Option<Fault>,
    /// Items that a listing shows in one piece of work.
    pub(crate) page_len: usize,
    /// Whether it is a store that nobody else has.
    pub(crate) is_alone: bool,
    /// How often somebody was alone with it.
    pub(crate) isolations: usize,
    /// Somebody is.
    pub(crate) is_isolated: bool,
    /// How often keys were held, and whether some are.
    pub(crate) holds: usize,
    pub(crate) is_held: bool,
    /// So many writes are done before one is refused, for once.
    pub(crate) refuses_after: Option<usize>,
    /// The same of a second one, counted from that one on.
    pub(crate) refuses_then: Option<usize>,
}

impl FaultyKeyspace {
    fn check(&self) -> Result<(), Fault> {
        self.fault.clone().map_or(Ok(()), Err)
    }

    fn check_write(&mut self) -> Result<(), Fault> {
        self.check()?;
        self.refuses_after = match self.refuses_after {
            Some(0) => {
                self.refuses_after = self.refuses_then.take();
                return Err(Fault::Rejected(Rejection::NoMemory));
            }
            Some(count) => Some(count - 1),
            None => None,
        };
        Ok(())
    }
}

impl Keyspace for FaultyKeyspace {
    fn get(
        &mut self,
        key: &[u8],
        access: Access,
        with: &mut dyn FnMut(Option<&Item<'_>>),
    ) -> Result<(), Halt> {
        self.check()?;
        self.inner.get(key, access, with)
    }

    fn set(&mut self, key: &[u8], item: &NewItem<'_>) -> Result<Version, Halt> {
        self.check_write()?;
        self.inner.set(key, item)
    }

    fn update(&mut self, key: &[u8], decide: &mut Decide<'_>) -> Result<Updated, Halt> {
        self.check_write()?;
        self.inner.update(key, decide)
    }

    fn flush(&mut self, at_ms: u64) -> Result<(), Halt> {
        self.check()?;
        self.inner.flush(at_ms)
    }

    fn list(
        &mut self,
        cursor: u64,
        count: usize,
        each: &mut dyn FnMut(&ListedItem<'_>),
    ) -> Result<u64, Halt> {
        self.check()?;
        self.inner.list(cursor, count, each)
    }

    fn totals(&mut self) -> Result<Totals, Halt> {
        self.check()?;
        self.inner.totals()
    }

    fn set_memory_limit(&mut self, bytes: u64) -> Result<(), Halt> {
        self.check()?;
        self.inner.set_memory_limit(bytes)
    }

    fn value_len_max(&self) -> usize {
        self.inner.value_len_max()
    }

    fn page_len(&self) -> usize {
        self.page_len
    }

    fn work(&self) -> u64 {
        self.inner.work()
    }

    fn charge(&mut self, work: u64) {
        self.inner.charge(work);
    }

    fn isolates(&self) -> bool {
        self.is_alone
    }

    fn isolate(&mut self) -> Result<(), Pending> {
        assert!(self.is_alone && !self.is_isolated);
        self.is_isolated = true;
        self.isolations += 1;
        Ok(())
    }

    fn end_isolation(&mut self) {
        assert!(self.is_isolated);
        self.is_isolated = false;
    }

    fn hold(&mut self, keys: Vec<u64>) -> Result<(), Pending> {
        assert!(self.is_alone && !self.is_isolated && !self.is_held && !keys.is_empty());
        self.is_held = true;
        self.holds += 1;
        Ok(())
    }

    fn release(&mut self) {
        assert!(self.is_held);
        self.is_held = false;
    }
}

/// An observer that remembers.
#[derive(Default)]
pub(crate) struct Notes {
    pub(crate) done: Vec<(Command, Ending, Vec<u8>, usize)>,
    pub(crate) requests: Vec<ServerRequest>,
    pub(crate) resets: usize,
    /// Numbers of slow commands, the newest first.
    pub(crate) slow: Vec<u64>,
    /// Kinds of log lines that somebody wants.
    pub(crate) watched: u8,
    /// Lookups before changes, and how many commands were done before each.
    pub(crate) lookups: Vec<(usize, Vec<u8>, Option<usize>)>,
    /// What clients have said of themselves, the own connection's (7) under its number.
    pub(crate) introduced: BTreeMap<u64, Introduction>,
    /// Users that there are beside the default one.
    pub(crate) users: Vec<Vec<u8>>,
    /// Connections that somebody wants to end.
    pub(crate) ended: Vec<u64>,
}

impl Observer for Notes {
    fn done(&mut self, done: &Done<'_>) {
        let noted = (done.command, done.ending, done.key.to_vec(), done.value_len);
        self.done.push(noted);
    }

    fn slow_log(&self, each: &mut dyn FnMut(&SlowCommand<'_>) -> bool) {
        let slow = |number: &u64| SlowCommand {
            number: *number,
            unix_ms: 5_900,
            duration_us: 7,
            command: "get",
            key: "some key",
            client: "tcp:127.0.0.1:9",
        };
        let _ = self.slow.iter().all(|number| each(&slow(number)));
    }

    fn forget_slow(&mut self) {
        self.slow.clear();
    }

    fn watched(&self) -> u8 {
        self.watched
    }

    fn looked_up(&mut self, key: &[u8], value_len: Option<usize>) {
        self.lookups
            .push((self.done.len(), key.to_vec(), value_len));
    }

    fn stats(&mut self, group: &str, _totals: &Totals, each: &mut dyn FnMut(&str, &str)) -> bool {
        match group {
            "" => {
                each("pid", "1");
                each("uptime", "2");
                true
            }
            "settings" => {
                each("maxbytes", "3");
                true
            }
            "items" | "slabs" | "sizes" | "detail on" | "detail off" => true,
            _ => false,
        }
    }

    fn reset(&mut self, _totals: &Totals) {
        self.resets += 1;
    }

    fn request(&mut self, request: ServerRequest) {
        self.requests.push(request);
    }

    fn clients(&self, each: &mut dyn FnMut(&Client<'_>)) {
        for (number, said) in &self.introduced {
            each(&Client {
                number: *number,
                fd: 1,
                address: "127.0.0.1:9",
                own_address: "127.0.0.1:8",
                age_s: 0,
                idle_s: 0,
                said,
            });
        }
    }

    fn introduce(&mut self, said: &Introduction) {
        self.introduced.insert(CONNECTION, said.clone());
    }

    fn has_user(&self, name: &[u8]) -> bool {
        name == b"default" || self.users.iter().any(|user| user == name)
    }

    fn end_clients(&mut self, numbers: &[u64]) {
        self.ended.extend_from_slice(numbers);
    }

    fn authenticate(&mut self, name: &[u8], password: &[u8]) -> Option<Role> {
        match (name, password) {
            (b"me" | b"default", b"secret") => Some(Role::Admin),
            (b"writer", b"secret") => Some(Role::Write),
            (b"reader", b"secret") => Some(Role::Read),
            _ => None,
        }
    }
}

/// Milliseconds since the Unix epoch.
pub(crate) fn now_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_millis() as u64)
}

/// One connection over a keyspace.
pub(crate) struct Rig<S> {
    pub(crate) session: S,
    pub(crate) keyspace: FaultyKeyspace,
    pub(crate) notes: Notes,
    pub(crate) settings: Settings,
    /// Output at which the session has to stop.
    pub(crate) out_len_max: usize,
    /// How often the session was driven with the last input.
    pub(crate) drives: usize,
    /// Bytes that one of those has answered at most.
    pub(crate) answered_max: usize,
    /// What the last call asked for.
    pub(crate) wants: Wants,
    /// The most input that the session ever asked for.
    pub(crate) asked_max: usize,
    pending: Vec<u8>,
}

impl<S: Session> Rig<S> {
    pub(crate) fn new(session: S) -> Self {
        Rig {
            session,
            keyspace: FaultyKeyspace {
                page_len: PAGE_LEN,
                holds: 0,
                is_held: false,
                inner: MemoryKeyspace::new(now_ms()),
                fault: None,
                is_alone: true,
                isolations: 0,
                is_isolated: false,
                refuses_after: None,
                refuses_then: None,
            },
            notes: Notes::default(),
            settings: Settings {
                item_len_max: 1 << 20,
                shutdown_allowed: false,
                authentication: false,
                admin_commands: true,
                release: Release::V1_6_18,
                connections_max: 1024,
                idle_timeout: None,
                thread_count: 1,
                answer_len_max: 64 << 20,
                transactions: Isolation::Relaxed,
            },
            out_len_max: 1 << 16,
            drives: 0,
            answered_max: 0,
            wants: Wants::Input(0),
            asked_max: 0,
            pending: Vec::new(),
        }
    }

    /// Another connection to the same keyspace.
    pub(crate) fn reconnect(&mut self, session: S) {
        self.session = session;
        self.pending.clear();
        self.wants = Wants::Input(0);
    }

    /// Whether the session has ended the connection.
    pub(crate) fn is_closed(&self) -> bool {
        self.wants == Wants::Close
    }

    /// Bytes that the session has left unconsumed.
    pub(crate) fn pending_len(&self) -> usize {
        self.pending.len()
    }

    /// More input; returns what is answered.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut answers = Vec::new();
        if self.is_closed() {
            return answers;
        }
        self.pending.extend_from_slice(bytes);
        let clock_ms = self.keyspace.inner.now_ms;
        (self.drives, self.answered_max) = (0, 0);
        loop {
            self.drives += 1;
            let now = Now {
                unix_ms: clock_ms,
                monotonic_ns: clock_ms * 1_000_000,
            };
            let mut world = World {
                keyspace: &mut self.keyspace,
                observer: &mut self.notes,
                settings: &self.settings,
                now,
                next_now: now,
                progress: Progress::Begun,
                connection: CONNECTION,
            };
            let mut out = Vec::new();
            let driven = self
                .session
                .drive(&self.pending, &mut out, self.out_len_max, &mut world);
            assert!(driven.consumed <= self.pending.len(), "consumed too much");
            self.pending.drain(..driven.consumed);
            assert!(
                driven.wants != Wants::Output || !out.is_empty() || driven.consumed > 0,
                "waits for output that there is none of"
            );
            self.answered_max = self.answered_max.max(out.len());
            answers.append(&mut out);
            self.wants = driven.wants;
            match driven.wants {
                Wants::Output | Wants::Turn => {}
                Wants::Input(len) => {
                    self.asked_max = self.asked_max.max(len);
                    return answers;
                }
                Wants::Operation => panic!("a keyspace in memory is always ready"),
                Wants::Close | Wants::Events => return answers,
            }
        }
    }

    /// The same in pieces, cut where these random numbers say.
    pub(crate) fn feed_in_pieces(
        &mut self,
        mut bytes: &[u8],
        random: &mut random::Random,
    ) -> Vec<u8> {
        let mut answers = Vec::new();
        while !bytes.is_empty() {
            let len_max = if random.below(3) == 0 {
                bytes.len()
            } else {
                40
            };
            let len = 1 + random.below(len_max.min(bytes.len()) as u64) as usize;
            answers.extend(self.feed(&bytes[..len]));
            bytes = &bytes[len..];
        }
        answers
    }
}
