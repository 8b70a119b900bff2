//! Operations that are pending: whatever is ready when, and in whatever order
//! results come, each connection is answered, byte for byte, what it would be
//! answered by a keyspace that is always ready; and one operation that takes
//! long holds nobody else up.

use crate::rig::Notes;
use crate::rig::random::Random;
use std::collections::{HashMap, VecDeque};
use std::time::Duration;
use trefoil_gateway_core::deferred::{
    Change, Changed, DeferredKeyspace, Executor, Operation, Outcome, OwnedItem, OwnedListed, Ticket,
};
use trefoil_gateway_core::keyspace::{
    Access, Decision, Fault, Halt, Item, Keyspace, Ready as _, Updated,
};
use trefoil_gateway_core::memcache::MemcacheSession;
use trefoil_gateway_core::memory::MemoryKeyspace;
use trefoil_gateway_core::resp::RespSession;
use trefoil_gateway_core::session::{Driven, Session, Wants};
use trefoil_gateway_core::world::{
    Command, Ending, Now, Progress, Settings, WATCH_FETCHERS, World,
};
use trefoil_layout::op::{Expected, Rejection};

const NOW_MS: u64 = 1_700_000_000_000;
const SEEDS: u64 = 3_000;

/// Executes in memory, in an order of its own. Keys of a connection begin with its
/// letter, and each letter has a memory of its own, so that versions do not depend
/// on the order.
struct Shuffler {
    random: Random,
    memories: HashMap<u8, MemoryKeyspace>,
    waiting: VecDeque<(Ticket, Operation)>,
    /// Of ten reads so many are ready, and of ten operations so many at once.
    ready: u64,
    /// Loses one change of so many to a contender that does not exist.
    lost: u64,
    /// Keys that are answered only when this is unset.
    stuck: Option<Vec<u8>>,
    cancelled: usize,
}

impl Shuffler {
    fn new(seed: u64, ready: u64, lost: u64) -> Self {
        Shuffler {
            random: Random::new(seed),
            memories: HashMap::new(),
            waiting: VecDeque::new(),
            ready,
            lost,
            stuck: None,
            cancelled: 0,
        }
    }

    fn is_ready(&mut self) -> bool {
        self.random.below(10) < self.ready
    }

    fn memory(&mut self, key: &[u8]) -> &mut MemoryKeyspace {
        let letter = key.first().copied().unwrap_or(b'a');
        self.memories
            .entry(letter)
            .or_insert_with(|| MemoryKeyspace::new(NOW_MS))
    }

    fn read(&mut self, key: &[u8], access: Access) -> Result<Option<OwnedItem>, Fault> {
        fault_of(key)?;
        let mut found = None;
        let read = self.memory(key).get(key, access, &mut |item| {
            found = item.map(OwnedItem::of);
        });
        done(read.map(|()| found))
    }

    fn execute(&mut self, operation: Operation) -> Outcome {
        match operation {
            Operation::Get { key, access, .. } => Outcome::Item(self.read(&key, access)),
            Operation::GetMany { keys, access } => {
                // Any number of them, from one on.
                let count = 1 + self.random.below(keys.len() as u64) as usize;
                let mut read = Vec::new();
                for key in &keys[..count] {
                    read.push(self.read(key, access));
                    // What is behind a fault may not be asked for.
                    if read.last().is_some_and(Result::is_err) {
                        break;
                    }
                }
                Outcome::Items(read)
            }
            Operation::Set {
                key,
                item,
                needs_version,
            } => {
                let set = |own: &mut Self| done(own.memory(&key).set(&key, &item.item()));
                let stored = fault_of(&key).and_then(|()| set(self));
                match stored.is_ok() && !needs_version && self.random.below(2) == 0 {
                    true => Outcome::Committed,
                    false => Outcome::Stored(stored),
                }
            }
            Operation::Change {
                key,
                expected,
                change,
            } => {
                if self.lost > 0 && self.random.below(self.lost) == 0 {
                    return Outcome::Changed(Ok(Changed::Lost));
                }
                Outcome::Changed(fault_of(&key).and_then(|()| {
                    let mut found = Expected::Absent;
                    let updated = self.memory(&key).update(&key, &mut |item, scratch| {
                        found = item.map_or(Expected::Absent, |i| Expected::Version(i.version));
                        match &change {
                            _ if found != expected => Decision::Keep,
                            Change::Erase => Decision::Erase,
                            Change::Store(new) => {
                                let new = new.item();
                                scratch.extend_from_slice(new.value);
                                Decision::Store(trefoil_gateway_core::keyspace::NewItem {
                                    value: scratch,
                                    ..new
                                })
                            }
                        }
                    });
                    done(updated).map(|updated| match updated {
                        Updated::Kept => Changed::Lost,
                        Updated::Stored(version) => Changed::Stored(version),
                        Updated::Erased => Changed::Erased,
                    })
                }))
            }
            Operation::Flush { .. } | Operation::SetMemoryLimit { .. } => Outcome::Done(Ok(())),
            Operation::List { cursor, count } => {
                let mut items = Vec::new();
                let memory = self.memory(b"l");
                let next =
                    memory.list(cursor, count, &mut |item| items.push(OwnedListed::of(item)));
                Outcome::Listed(done(next.map(|next| (items, next))))
            }
            Operation::Totals => Outcome::Totals(done(self.memory(b"l").totals().map(Box::new))),
        }
    }
}

fn done<T>(result: Result<T, Halt>) -> Result<T, Fault> {
    result.ready().expect("memory is always ready")
}

/// Some keys have faults.
fn fault_of(key: &[u8]) -> Result<(), Fault> {
    match key.get(1..) {
        Some(b"down") => Err(Fault::Unavailable("nobody".into())),
        Some(b"full") => Err(Fault::Rejected(Rejection::NoMemory)),
        _ => Ok(()),
    }
}

impl Executor for Shuffler {
    fn try_get(
        &mut self,
        key: &[u8],
        access: Access,
        with: &mut dyn FnMut(Option<&Item<'_>>),
    ) -> Option<Result<(), Fault>> {
        if self.stuck.as_deref() == Some(key) || !self.is_ready() {
            return None;
        }
        if let Err(fault) = fault_of(key) {
            return Some(Err(fault));
        }
        Some(done(self.memory(key).get(key, access, with)))
    }

    fn submit(&mut self, ticket: Ticket, operation: Operation) -> Option<Outcome> {
        let is_stuck = self.stuck.is_some();
        if !is_stuck && self.random.below(10) < self.ready / 2 {
            return Some(self.execute(operation));
        }
        self.waiting.push_back((ticket, operation));
        None
    }

    fn poll(&mut self, each: &mut dyn FnMut(Ticket, Outcome)) {
        for _ in 0..self.random.below(4) {
            if self.waiting.is_empty() {
                return;
            }
            let at = self.random.below(self.waiting.len() as u64) as usize;
            if let Some(stuck) = &self.stuck
                && let Operation::Get { key, .. } = &self.waiting[at].1
                && key == stuck
            {
                continue;
            }
            if let Some((ticket, operation)) = self.waiting.remove(at) {
                let outcome = self.execute(operation);
                each(ticket, outcome);
            }
        }
    }

    fn cancel(&mut self, ticket: Ticket) {
        self.waiting.retain(|(waiting, _)| *waiting != ticket);
        self.cancelled += 1;
    }

    fn value_len_max(&self) -> usize {
        1000
    }
}

/// A keyspace that is always ready: the same in memory.
struct Always(Shuffler);

impl Always {
    fn new() -> Self {
        Always(Shuffler::new(0, 10, 0))
    }
}

impl Keyspace for Always {
    fn get(
        &mut self,
        key: &[u8],
        access: Access,
        with: &mut dyn FnMut(Option<&Item<'_>>),
    ) -> Result<(), Halt> {
        fault_of(key)?;
        self.0.memory(key).get(key, access, with)
    }

    fn set(
        &mut self,
        key: &[u8],
        item: &trefoil_gateway_core::keyspace::NewItem<'_>,
    ) -> Result<trefoil_layout::Version, Halt> {
        fault_of(key)?;
        self.0.memory(key).set(key, item)
    }

    fn update(
        &mut self,
        key: &[u8],
        decide: &mut trefoil_gateway_core::keyspace::Decide<'_>,
    ) -> Result<Updated, Halt> {
        fault_of(key)?;
        self.0.memory(key).update(key, decide)
    }

    fn flush(&mut self, _at_ms: u64) -> Result<(), Halt> {
        Ok(())
    }

    fn list(
        &mut self,
        cursor: u64,
        count: usize,
        each: &mut dyn FnMut(&trefoil_gateway_core::keyspace::ListedItem<'_>),
    ) -> Result<u64, Halt> {
        self.0.memory(b"l").list(cursor, count, each)
    }

    fn totals(&mut self) -> Result<trefoil_gateway_core::keyspace::Totals, Halt> {
        self.0.memory(b"l").totals()
    }

    fn set_memory_limit(&mut self, _bytes: u64) -> Result<(), Halt> {
        Ok(())
    }

    fn value_len_max(&self) -> usize {
        1000
    }
}

/// One client's connection.
struct Connection<S> {
    session: S,
    number: u64,
    input: Vec<u8>,
    /// Bytes of the input that have come.
    come: usize,
    output: Vec<u8>,
    is_parked: bool,
    is_over: bool,
    progress: Progress,
    began: Option<Now>,
    turns: usize,
}

impl<S: Session> Connection<S> {
    fn new(session: S, number: u64, input: Vec<u8>) -> Self {
        Connection {
            session,
            number,
            input,
            come: 0,
            output: Vec::new(),
            is_parked: false,
            is_over: false,
            progress: Progress::Begun,
            began: None,
            turns: 0,
        }
    }

    /// One call of the session, as an event loop makes it.
    fn turn<K: Keyspace>(
        &mut self,
        keyspace: &mut K,
        notes: &mut Notes,
        out_len_max: usize,
        now: Now,
    ) {
        self.turns += 1;
        let settings = Settings {
            item_len_max: 1000,
            shutdown_allowed: false,
            authentication: false,
            admin_commands: true,
            release: trefoil_gateway_core::world::Release::V1_6_18,
            connections_max: 10,
            idle_timeout: None,
            thread_count: 1,
            answer_len_max: 64 << 20,
            transactions: trefoil_gateway_core::world::Isolation::Relaxed,
        };
        keyspace.enter(self.number, now.monotonic_ns);
        let mut world = World {
            keyspace,
            observer: notes,
            settings: &settings,
            now: self.began.take().unwrap_or(now),
            next_now: now,
            progress: std::mem::take(&mut self.progress),
            connection: self.number,
        };
        let input = &self.input[..self.come];
        let mut out = Vec::new();
        let Driven { consumed, wants } =
            self.session.drive(input, &mut out, out_len_max, &mut world);
        if wants == Wants::Operation {
            (self.progress, self.began) = (world.progress, Some(world.now));
        }
        keyspace.leave();
        self.input.drain(..consumed);
        self.come -= consumed;
        self.output.append(&mut out);
        self.is_parked = wants == Wants::Operation;
        self.is_over = wants == Wants::Close
            || (self.input.is_empty() && matches!(wants, Wants::Input(_) | Wants::Events));
    }
}

fn now(tick: u64) -> Now {
    Now {
        unix_ms: NOW_MS,
        monotonic_ns: tick * 5_000_000,
    }
}

/// A script of requests to keys that begin with this letter.
fn script(random: &mut Random, pieces: &[&str], letter: u8) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..1 + random.below(12) {
        let piece = random.pick(pieces);
        bytes.extend(piece.bytes().map(|b| if b == b'@' { letter } else { b }));
    }
    bytes
}

const TEXT: &[&str] = &[
    "get @a\r\n",
    "gets @a @b @c\r\n",
    "get @a @b @c @d @e @f @g @h @i @j @a @b @c @d @e @f @g @h @i @j @a @b @c @d @e @f @g @h @i @j @a @b @c @d\r\n",
    "get @down\r\n",
    "get @a @down @b\r\n",
    "get @a @b @c @down\r\n",
    "set @a 1 0 2\r\n10\r\n",
    "set @b 2 0 5\r\nhello\r\n",
    "set @c 3 100 0 noreply\r\n\r\n",
    "set @full 0 0 1\r\nx\r\n",
    "set @a 0 0 2000\r\n",
    "add @d 0 0 1\r\n7\r\n",
    "add @a 0 0 1\r\n7\r\n",
    "replace @a 0 0 1\r\n8\r\n",
    "append @a 0 0 1\r\n1\r\n",
    "prepend @b 0 0 1\r\n1\r\n",
    "cas @a 0 0 1 1\r\n9\r\n",
    "incr @a 3\r\n",
    "decr @d 1\r\n",
    "incr @b 3 noreply\r\n",
    "incr @down 3\r\n",
    "delete @a\r\n",
    "delete @b noreply\r\n",
    "touch @a 100\r\n",
    "gat 100 @a\r\n",
    "gats 0 @a @b @c @d\r\n",
    "gat 0 @a @down @c\r\n",
    "gat 50 @a @b @a @c @d @e @f @g @h @i @j @k @a\r\n",
    "gats 50 @a @b @c @d @down @f @g @h @i @j @k @a\r\n",
    "mg @a v t c f s k Oq\r\n",
    "mg @e v N30 c t\r\n",
    "mg @e v N30 h l t\r\n",
    "mg @c v R30 t\r\n",
    "mg @a T90 v h t\r\n",
    "mg @down v\r\n",
    "ms @a 2 T0 c\r\n12\r\n",
    "ms @f 2 I C1 c\r\n12\r\n",
    "md @a I T30 q\r\n",
    "md @f\r\n",
    "ma @a N0 J13 v t c\r\n",
    "ma @g\r\n",
    "me @a\r\n",
    "mn\r\n",
    "flush_all\r\n",
    "stats\r\n",
    "stats settings\r\n",
    "stats reset\r\n",
    "cache_memlimit 64\r\n",
    "lru_crawler metadump all\r\n",
    "lru_crawler mgdump 1\r\n",
    "stats cachedump 1 2\r\n",
    "nonsense\r\n",
    "version\r\n",
];

const INLINE: &[&str] = &[
    "GET @a\r\n",
    "*2\r\n$3\r\nGET\r\n$2\r\n@a\r\n",
    "*3\r\n$3\r\nSET\r\n$2\r\n@a\r\n$2\r\n10\r\n",
    "SET @b hello EX 100\r\n",
    "SET @b hello XX KEEPTTL GET\r\n",
    "SET @full x\r\n",
    "SETNX @c 1\r\n",
    "GETSET @a 5\r\n",
    "APPEND @a 1\r\n",
    "SETRANGE @a 2 xyz\r\n",
    "GETRANGE @b 0 2\r\n",
    "INCRBY @a 5\r\n",
    "INCR @down\r\n",
    "MGET @a @b @c @down @d @e @f @g @h @i @j @k @l @m @n @o @p @q @r @s @t @u @v @w @x @y @z @a @b @c @d @e @f @g\r\n",
    "*4\r\n$4\r\nMGET\r\n$2\r\n@a\r\n$2\r\n@b\r\n$2\r\n@c\r\n",
    "MSET @a 1 @b 2 @c 3 @d 4\r\n",
    "*5\r\n$4\r\nMSET\r\n$2\r\n@a\r\n$1\r\n1\r\n$5\r\n@down\r\n$1\r\n2\r\n",
    "DEL @a @b @down @c\r\n",
    "DEL @a @b @a @c @d @e @f @g @h @i @j @k @l @m @n @o @p @q @r @s @t @u @v @w @x @y @z @aa @bb @cc @dd @ee @ff @gg @hh\r\n",
    "*8\r\n$6\r\nUNLINK\r\n$2\r\n@a\r\n$2\r\n@b\r\n$2\r\n@c\r\n$2\r\n@d\r\n$2\r\n@e\r\n$2\r\n@f\r\n$2\r\n@g\r\n",
    "MSET @a 1 @b 2 @a 3 @full 4 @d 5 @e 6\r\n",
    "*9\r\n$4\r\nMSET\r\n$2\r\n@a\r\n$1\r\n1\r\n$2\r\n@b\r\n$1\r\n2\r\n$2\r\n@c\r\n$1\r\n3\r\n$2\r\n@d\r\n$1\r\n4\r\n",
    "EXISTS @a @b @a\r\n",
    "EXISTS @a @b @c @d @e @f @g @h @i @a @b @down @c @d\r\n",
    "TOUCH @a @b\r\n",
    "EXPIRE @a 100\r\n",
    "TTL @a\r\n",
    "PERSIST @a\r\n",
    "GETEX @a EX 100\r\n",
    "GETEX @b EX 0\r\n",
    "GETDEL @b\r\n",
    "MULTI\r\nINCR @a\r\nEXPIRE @a 100\r\nGET @a\r\nEXEC\r\n",
    "MULTI\r\nINCR @a\r\nMSET @b 1 @c 2\r\nMGET @a @down @b\r\nDEL @b\r\nEXEC\r\n",
    "MULTI\r\nSET @full x\r\nSET @a 1\r\nEXEC\r\n",
    "MULTI\r\nINCR @down\r\nEXEC\r\n",
    "WATCH @a @b\r\n",
    "WATCH @a\r\nMULTI\r\nGETSET @a 7\r\nDEL @a\r\nEXEC\r\n",
    "MULTI\r\nSET @a 1\r\nDISCARD\r\n",
    "MULTI\r\nGET @a\r\nSTRLEN @a\r\nEXEC\r\n",
    "SCAN 0 COUNT 3\r\n",
    "SCAN 0 COUNT 300\r\n",
    "KEYS *\r\n",
    "KEYS ?[a-c]\r\n",
    "MULTI\r\nKEYS *\r\nDBSIZE\r\nEXEC\r\n",
    "DBSIZE\r\n",
    "INFO\r\n",
    "CONFIG GET max*\r\n",
    "CONFIG RESETSTAT\r\n",
    "FLUSHALL\r\n",
    "PING\r\n",
    "NONSENSE\r\n",
];

fn binary_script(random: &mut Random, letter: u8) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..1 + random.below(12) {
        // Opcode, extras, whether it has a key, value.
        let (opcode, extras, value): (u8, &[u8], &[u8]) = *random.pick(&[
            (0x00, b"".as_slice(), b"".as_slice()),
            (0x09, b"", b""),
            (0x0c, b"", b""),
            (0x0d, b"", b""),
            (0x0d, b"", b""),
            (0x0d, b"", b""),
            (0x01, &[0; 8], b"12"),
            (0x11, &[0; 8], b"hello"),
            (0x01, &[0; 8], &[b'x'; 1500]),
            (0x02, &[0; 8], b"7"),
            (0x03, &[0; 8], b"8"),
            (0x0e, b"", b"1"),
            (0x04, b"", b""),
            (0x05, &[0; 20], b""),
            (0x1c, &[0; 4], b""),
            (0x1d, &[0; 4], b""),
            (0x0a, b"", b""),
            (0x10, b"", b""),
            (0x08, b"", b""),
        ]);
        let name: &[u8] = match opcode {
            0x0a | 0x10 | 0x08 => b"",
            _ => random.pick::<&[u8]>(&[b"@a", b"@b", b"@c", b"@down", b"@full"]),
        };
        let key: Vec<u8> = name
            .iter()
            .map(|b| if *b == b'@' { letter } else { *b })
            .collect();
        bytes.extend([
            0x80,
            opcode,
            0,
            key.len() as u8,
            extras.len() as u8,
            0,
            0,
            0,
        ]);
        let body_len = (extras.len() + key.len() + value.len()) as u32;
        bytes.extend(body_len.to_be_bytes());
        bytes.extend([0; 12]);
        for part in [extras, &key, value] {
            bytes.extend_from_slice(part);
        }
    }
    bytes
}

/// What commands were told as, without their keys' letters.
type Told = Vec<(Command, Ending, Vec<u8>, usize)>;
type Lookups = Vec<(Vec<u8>, Option<usize>)>;

struct Answered {
    output: Vec<u8>,
    told: Told,
    lookups: Lookups,
}

fn notes(watched: bool) -> Notes {
    Notes {
        watched: if watched { WATCH_FETCHERS } else { 0 },
        ..Notes::default()
    }
}

fn lookups(notes: &Notes) -> Lookups {
    let each = |(_, key, value_len): &(usize, Vec<u8>, Option<usize>)| (key.clone(), *value_len);
    notes.lookups.iter().map(each).collect()
}

fn blocking<S: Session>(session: S, input: &[u8], is_watched: bool) -> Answered {
    let mut keyspace = Always::new();
    let mut connection = Connection::new(session, 1, input.to_vec());
    connection.come = input.len();
    let mut notes = notes(is_watched);
    for _ in 0..10_000 {
        connection.turn(&mut keyspace, &mut notes, 1 << 20, now(0));
        assert!(!connection.is_parked, "it is always ready");
        if connection.is_over || connection.turns > 5_000 {
            break;
        }
    }
    assert!(connection.is_over);
    Answered {
        output: connection.output,
        lookups: lookups(&notes),
        told: notes.done,
    }
}

/// Runs several connections over one keyspace, everything in an order by seed.
fn shuffled<S: Session>(new: fn() -> S, seed: u64, make: impl Fn(&mut Random, u8) -> Vec<u8>) {
    let mut random = Random::new(seed);
    let ready = *random.pick(&[0, 0, 3, 7, 9]);
    let lost = *random.pick(&[0, 2, 5]);
    let out_len_max = *random.pick(&[1, 100, 1 << 16]);
    let is_watched = random.below(4) == 0;
    // Somebody begins or ends to watch while requests wait.
    let toggles = random.below(4) == 0;
    // The letter `l` is that of listings, which show one connection's items only.
    let letters = [b'l', b'm', b'n', b'o'];
    let shuffler = Shuffler::new(seed, ready, lost);
    let mut keyspace = DeferredKeyspace::new(shuffler, Duration::from_secs(3600), seed);
    // There may be little room for what requests hold meanwhile.
    keyspace.limit_held(*random.pick(&[usize::MAX, 3, 30, 1000]));
    let mut connections: Vec<_> = letters
        .iter()
        .enumerate()
        .map(|(index, letter)| {
            let input = make(&mut random, *letter);
            Connection::new(new(), index as u64 + 1, input)
        })
        .collect();
    let inputs: Vec<_> = connections.iter().map(|c| c.input.clone()).collect();
    let mut all_notes: Vec<_> = letters.iter().map(|_| notes(is_watched)).collect();
    let mut tick = 0;
    while !connections.iter().all(|c| c.is_over) {
        tick += 1;
        assert!(tick < 1_000_000, "it never ends: seed {seed}");
        keyspace.poll(now(tick).monotonic_ns, &mut |number| {
            let connection = &mut connections[number as usize - 1];
            assert!(connection.is_parked, "nobody waits: seed {seed}");
            connection.is_parked = false;
        });
        let index = random.below(connections.len() as u64) as usize;
        let connection = &mut connections[index];
        if connection.is_parked || connection.is_over {
            continue;
        }
        let more = random.below(60) as usize;
        connection.come = (connection.come + more).min(connection.input.len());
        if toggles && random.below(2) == 0 {
            all_notes[index].watched ^= WATCH_FETCHERS;
        }
        connection.turn(&mut keyspace, &mut all_notes[index], out_len_max, now(tick));
    }
    assert_eq!(keyspace.parked_count(), 0);
    for ((connection, notes), input) in connections.iter().zip(&all_notes).zip(&inputs) {
        let expected = blocking(new(), input, is_watched);
        let shown = |bytes: &[u8]| bytes.escape_ascii().to_string();
        assert_eq!(
            shown(&connection.output),
            shown(&expected.output),
            "seed {seed}: {}",
            shown(input)
        );
        if toggles {
            // Which log lines are written depends on when somebody watched.
            continue;
        }
        assert_eq!(notes.done, expected.told, "seed {seed}: {}", shown(input));
        assert_eq!(
            lookups(notes),
            expected.lookups,
            "seed {seed}: {}",
            shown(input)
        );
    }
}

#[test]
fn text_and_meta_commands_are_answered_the_same_in_any_order() {
    for seed in 0..SEEDS {
        shuffled(MemcacheSession::new, seed, |random, letter| {
            // What is listed and totalled is the first connection's.
            let pieces = match letter {
                b'l' => TEXT,
                _ => &TEXT[..TEXT.len() - 10],
            };
            script(random, pieces, letter)
        });
    }
}

#[test]
fn binary_commands_are_answered_the_same_in_any_order() {
    for seed in 0..SEEDS {
        shuffled(MemcacheSession::new, seed, binary_script);
    }
}

#[test]
fn redis_commands_are_answered_the_same_in_any_order() {
    for seed in 0..SEEDS {
        shuffled(RespSession::new, seed, |random, letter| {
            let pieces = match letter {
                b'l' => INLINE,
                _ => &INLINE[..INLINE.len() - 12],
            };
            script(random, pieces, letter)
        });
    }
}

#[test]
fn increments_of_one_counter_all_count() {
    for seed in 0..300 {
        let shuffler = Shuffler::new(seed, seed % 10, 0);
        let mut keyspace = DeferredKeyspace::new(shuffler, Duration::from_secs(3600), seed);
        let mut notes = Notes::default();
        let mut first =
            Connection::new(MemcacheSession::new(), 99, b"set a 0 0 1\r\n0\r\n".to_vec());
        first.come = first.input.len();
        let mut connections: Vec<_> = (0..6)
            .map(|number| {
                let input = "incr a 1\r\n".repeat(5).into_bytes();
                Connection::new(MemcacheSession::new(), number, input)
            })
            .collect();
        let mut tick = 0;
        while !connections.iter().all(|c| c.is_over) {
            tick += 1;
            assert!(tick < 100_000, "seed {seed}");
            keyspace.poll(now(tick).monotonic_ns, &mut |number| match connections
                .get_mut(number as usize)
            {
                Some(connection) => connection.is_parked = false,
                None => first.is_parked = false,
            });
            if !first.is_over {
                if !first.is_parked {
                    first.turn(&mut keyspace, &mut notes, 100, now(tick));
                }
                continue;
            }
            for connection in &mut connections {
                if !connection.is_parked && !connection.is_over {
                    connection.come = connection.input.len();
                    connection.turn(&mut keyspace, &mut notes, 100, now(tick));
                }
            }
        }
        let outputs: Vec<u8> = connections.into_iter().flat_map(|c| c.output).collect();
        let text = String::from_utf8(outputs).unwrap();
        let mut numbers: Vec<u32> = text.lines().map(|line| line.parse().unwrap()).collect();
        numbers.sort_unstable();
        assert!(numbers.into_iter().eq(1..=30), "seed {seed}: {text}");
    }
}

#[test]
fn an_operation_that_hangs_holds_nobody_else_up() {
    let mut shuffler = Shuffler::new(1, 10, 0);
    shuffler.stuck = Some(b"ahangs".to_vec());
    let mut keyspace = DeferredKeyspace::new(shuffler, Duration::from_secs(1), 1);
    let mut notes = Notes::default();
    let input = b"get ab\r\nget ahangs\r\nget ab\r\n".to_vec();
    let mut hanging = Connection::new(MemcacheSession::new(), 1, input);
    hanging.come = hanging.input.len();
    hanging.turn(&mut keyspace, &mut notes, 1 << 16, now(1));
    assert!(hanging.is_parked);
    assert_eq!(hanging.output, b"END\r\n", "what came before is answered");
    for number in 2..12 {
        let mut other = Connection::new(
            MemcacheSession::new(),
            number,
            b"get ax\r\n".repeat(100).to_vec(),
        );
        other.come = other.input.len();
        keyspace.poll(now(number).monotonic_ns, &mut |_| panic!("it hangs"));
        other.turn(&mut keyspace, &mut notes, 1 << 16, now(number));
        assert_eq!(other.turns, 1);
        assert_eq!(other.output, b"END\r\n".repeat(100));
    }
    keyspace.executor().stuck = None;
    for tick in 20..100 {
        let mut is_back = false;
        keyspace.poll(now(tick).monotonic_ns, &mut |_| is_back = true);
        if is_back {
            hanging.turn(&mut keyspace, &mut notes, 1 << 16, now(tick));
            assert_eq!(hanging.output, b"END\r\n".repeat(3));
            return;
        }
    }
    panic!("it never came back");
}

#[test]
fn a_connection_that_ends_takes_its_operation_with_it() {
    for seed in 0..500 {
        let mut random = Random::new(seed);
        let mut keyspace =
            DeferredKeyspace::new(Shuffler::new(seed, 0, 0), Duration::from_secs(1), seed);
        let mut notes = Notes::default();
        let mut gone = Connection::new(MemcacheSession::new(), 1, b"incr aa 1\r\n".to_vec());
        let mut stays = Connection::new(MemcacheSession::new(), 2, b"get ab\r\n".to_vec());
        for connection in [&mut gone, &mut stays] {
            connection.come = connection.input.len();
            connection.turn(&mut keyspace, &mut notes, 1 << 16, now(1));
            assert!(connection.is_parked);
        }
        let mut tick = 1;
        let ends_at = random.below(6);
        while stays.is_parked {
            tick += 1;
            if tick == 2 + ends_at {
                keyspace.forget(1);
                gone.is_over = true;
            }
            let mut resumed = Vec::new();
            keyspace.poll(now(tick).monotonic_ns, &mut |number| resumed.push(number));
            for number in resumed {
                let connection = match number {
                    1 => &mut gone,
                    _ => &mut stays,
                };
                assert!(!connection.is_over, "told of what is over: seed {seed}");
                connection.turn(&mut keyspace, &mut notes, 1 << 16, now(tick));
            }
        }
        assert_eq!(stays.output, b"END\r\n");
        keyspace.forget(1);
        assert_eq!(keyspace.parked_count(), 0);
        keyspace.poll(now(tick + 1).monotonic_ns, &mut |_| panic!("nobody waits"));
    }
}

#[test]
fn what_is_kept_for_a_parked_connection_is_told() {
    let mut keyspace = DeferredKeyspace::new(Shuffler::new(1, 0, 0), Duration::from_secs(1), 1);
    let mut notes = Notes::default();
    let mut input = b"set ab 0 0 900\r\n".to_vec();
    input.extend_from_slice(&[b'x'; 900]);
    input.extend_from_slice(b"\r\nget ab\r\nappend ab 0 0 1\r\ny\r\n");
    let mut connection = Connection::new(MemcacheSession::new(), 1, input);
    connection.come = connection.input.len();
    let mut held = Vec::new();
    for tick in 1..1000 {
        if connection.output.ends_with(b"END\r\nSTORED\r\n") {
            break;
        }
        if !connection.is_parked {
            connection.turn(&mut keyspace, &mut notes, 1 << 16, now(tick));
            held.push(keyspace.held(1));
        }
        let mut is_back = false;
        keyspace.poll(now(tick).monotonic_ns, &mut |_| is_back = true);
        if is_back {
            connection.is_parked = false;
            held.push(keyspace.held(1));
        }
    }
    let expected = [
        902,           // the set: its key and value
        0,             // stored
        2,             // the get: its key
        900,           // the value
        2,             // the append: a read first
        900,           // what it read
        900 + 2 + 901, // and what is to take its place
        900,           // stored; shown to the decision once more
        0,
    ];
    assert_eq!(held, expected);
    assert_eq!(keyspace.held(2), 0);
}

/// Reads at once, and changes when it is polled: one long item under each key.
struct LongItems {
    value: Vec<u8>,
    waiting: Vec<(Ticket, Operation)>,
    /// Operations that came, with what they hold.
    submitted: Vec<usize>,
}

impl Executor for LongItems {
    fn try_get(
        &mut self,
        _key: &[u8],
        _access: Access,
        with: &mut dyn FnMut(Option<&Item<'_>>),
    ) -> Option<Result<(), Fault>> {
        let item = trefoil_gateway_core::keyspace::NewItem {
            value: &self.value,
            ..Default::default()
        };
        let version = trefoil_layout::Version::new(1, 1, 0);
        with(Some(&OwnedItem::stored(&item, version).item()));
        Some(Ok(()))
    }

    fn submit(&mut self, ticket: Ticket, operation: Operation) -> Option<Outcome> {
        self.submitted.push(operation.held_len());
        self.waiting.push((ticket, operation));
        None
    }

    fn poll(&mut self, each: &mut dyn FnMut(Ticket, Outcome)) {
        for (ticket, _) in self.waiting.drain(..) {
            let version = trefoil_layout::Version::new(2, 1, 0);
            each(ticket, Outcome::Changed(Ok(Changed::Stored(version))));
        }
    }

    fn value_len_max(&self) -> usize {
        16 << 20
    }
}

/// Ten clients set an expiry of something long: no more copies than there is room for.
#[test]
fn what_parked_requests_hold_is_bounded_before_they_begin() {
    const LEN: usize = 1 << 20;
    const ROOM: usize = 5 * LEN;
    let items = LongItems {
        value: vec![b'v'; LEN],
        waiting: Vec::new(),
        submitted: Vec::new(),
    };
    let mut keyspace = DeferredKeyspace::new(items, Duration::from_secs(1), 1);
    keyspace.limit_held(ROOM);
    let mut notes = Notes::default();
    let mut connections: Vec<_> = (0..10)
        .map(|number| {
            let input = b"touch a 100\r\n".to_vec();
            let mut connection = Connection::new(MemcacheSession::new(), number, input);
            connection.come = connection.input.len();
            connection
        })
        .collect();
    // One that goes while it waits takes its place with it.
    let mut order = Vec::new();
    for tick in 1..50 {
        for connection in &mut connections {
            if !connection.is_parked && !connection.is_over {
                connection.turn(&mut keyspace, &mut notes, 1 << 16, now(tick));
                if connection.is_over {
                    order.push(connection.number);
                }
            }
        }
        if tick == 1 {
            keyspace.forget(7);
            connections.remove(7);
        }
        let held: usize = (0..10).map(|number| keyspace.held(number)).sum();
        assert!(held <= ROOM, "{held}");
        keyspace.poll(now(tick).monotonic_ns, &mut |number| {
            let is_it = |connection: &&mut Connection<_>| connection.number == number;
            let found = connections.iter_mut().find(is_it);
            found.expect("it has not gone").is_parked = false;
        });
        let held: usize = (0..10).map(|number| keyspace.held(number)).sum();
        assert!(held <= ROOM, "{held}");
    }
    assert_eq!(order, [0, 1, 2, 3, 4, 5, 6, 8, 9]);
    assert_eq!(keyspace.executor().submitted.len(), 9, "each once");
    assert_eq!(keyspace.due_ns(), None);
}

/// Nothing is there, and the first change comes too late.
#[derive(Default)]
struct Contended {
    waiting: Vec<(Ticket, Operation)>,
    expiries: Vec<u64>,
}

impl Executor for Contended {
    fn try_get(
        &mut self,
        _key: &[u8],
        _access: Access,
        _with: &mut dyn FnMut(Option<&Item<'_>>),
    ) -> Option<Result<(), Fault>> {
        None
    }

    fn submit(&mut self, ticket: Ticket, operation: Operation) -> Option<Outcome> {
        self.waiting.push((ticket, operation));
        None
    }

    fn poll(&mut self, each: &mut dyn FnMut(Ticket, Outcome)) {
        for (ticket, operation) in self.waiting.drain(..) {
            let outcome = match operation {
                Operation::Get { .. } => Outcome::Item(Ok(None)),
                Operation::Change {
                    change: Change::Store(item),
                    ..
                } => {
                    self.expiries.push(item.item().expiry_ms);
                    let version = trefoil_layout::Version::new(1, 1, 0);
                    Outcome::Changed(Ok(match self.expiries.len() {
                        1 => Changed::Lost,
                        _ => Changed::Stored(version),
                    }))
                }
                other => panic!("{other:?}"),
            };
            each(ticket, outcome);
        }
    }

    fn value_len_max(&self) -> usize {
        1000
    }
}

/// A lock lives as long as it says from the attempt on that took it.
#[test]
fn expiries_count_from_the_attempt_that_stored() {
    for (input, answer) in [
        ("SET lock me NX PX 10000\r\n", "+OK\r\n"),
        (
            "MULTI\r\nSET lock me NX\r\nPEXPIRE lock 10000\r\nEXEC\r\n",
            "+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n+OK\r\n:1\r\n",
        ),
    ] {
        counts_from_the_last_attempt(RespSession::new(), input, answer);
    }
    let add = "add lock 0 10 2\r\nme\r\n";
    counts_from_the_last_attempt(MemcacheSession::new(), add, "STORED\r\n");
}

fn counts_from_the_last_attempt<S: Session>(session: S, input: &str, answer: &str) {
    let mut keyspace = DeferredKeyspace::new(Contended::default(), Duration::from_secs(3600), 1);
    let mut notes = Notes::default();
    let mut connection = Connection::new(session, 1, input.as_bytes().to_vec());
    connection.come = connection.input.len();
    let mut seconds = 0;
    while !connection.is_over {
        seconds += 1;
        assert!(seconds < 100);
        let now = Now {
            unix_ms: NOW_MS + seconds * 1000,
            monotonic_ns: seconds * 1_000_000_000,
        };
        keyspace.poll(now.monotonic_ns, &mut |_| connection.is_parked = false);
        if !connection.is_parked {
            connection.turn(&mut keyspace, &mut notes, 1 << 16, now);
        }
    }
    assert_eq!(String::from_utf8_lossy(&connection.output), answer);
    // First: read in the first second, decided over in the second one.
    let expiries = &keyspace.executor().expiries;
    let [first, last] = expiries[..] else {
        panic!("{expiries:?}");
    };
    assert_eq!(first, NOW_MS + 12_000, "{input}");
    assert!(last > first + 1000, "{input}: {first}, {last}");
}

/// Counts operations under way: nothing is answered before `poll`.
#[derive(Default)]
struct Slow {
    waiting: Vec<(Ticket, Operation)>,
    most: usize,
}

impl Executor for Slow {
    fn try_get(
        &mut self,
        _key: &[u8],
        _access: Access,
        _with: &mut dyn FnMut(Option<&Item<'_>>),
    ) -> Option<Result<(), Fault>> {
        None
    }

    fn submit(&mut self, ticket: Ticket, operation: Operation) -> Option<Outcome> {
        self.waiting.push((ticket, operation));
        self.most = self.most.max(self.waiting.len());
        None
    }

    fn poll(&mut self, each: &mut dyn FnMut(Ticket, Outcome)) {
        for (ticket, operation) in self.waiting.drain(..) {
            let outcome = match operation {
                Operation::Get { .. } => Outcome::Item(Ok(None)),
                Operation::Set { .. } => Outcome::Stored(Ok(trefoil_layout::Version::ZERO)),
                other => panic!("{other:?}"),
            };
            each(ticket, outcome);
        }
    }

    fn value_len_max(&self) -> usize {
        1000
    }
}

/// Operations of one command overlap, and each wait is for many of them: of those that
/// bring values no more than may be kept.
#[test]
fn keys_of_one_command_are_under_way_together() {
    for (name, answer, most, done) in [
        ("MSET", "+OK\r\n", 8, 1000),
        ("DEL", ":0\r\n", 8, 2000),
        ("EXISTS", ":0\r\n", 8, 2000),
        ("WATCH", "+OK\r\n", 8, 0),
    ] {
        let count = if name == "WATCH" { 500 } else { 1000 };
        under_way_together(RespSession::new(), name, count, answer, most, done);
    }
    let gat = under_way_together(MemcacheSession::new(), "gat 100", 1000, "END\r\n", 8, 2000);
    assert!(gat < 260, "{gat}");
}

/// A command of so many pairs of keys, to an executor that answers when it is polled. How
/// many turns it took.
fn under_way_together<S: Session>(
    session: S,
    name: &str,
    count: usize,
    answer: &str,
    most: usize,
    done: usize,
) -> usize {
    let words: Vec<String> = (0..count)
        .map(|number| format!("k{number} v{number}"))
        .collect();
    let input = format!("{name} {}\r\n", words.join(" ")).into_bytes();
    let mut keyspace = DeferredKeyspace::new(Slow::default(), Duration::from_secs(1), 1);
    let mut notes = Notes::default();
    let mut connection = Connection::new(session, 1, input);
    connection.come = connection.input.len();
    for tick in 1..500 {
        connection.turn(&mut keyspace, &mut notes, 1 << 16, now(tick));
        let mut resumed = 0;
        keyspace.poll(now(tick).monotonic_ns, &mut |_| resumed += 1);
        assert_eq!(resumed, usize::from(connection.is_parked), "{name}, {tick}");
        if connection.is_over {
            break;
        }
    }
    let answered = String::from_utf8_lossy(&connection.output);
    assert_eq!(answered, answer, "{name}");
    assert_eq!(keyspace.executor().most, most, "{name}");
    let turns_max = 2 * count / most + 20;
    assert!(connection.turns < turns_max, "{name}: {}", connection.turns);
    assert_eq!(notes.done.len(), done, "{name}");
    connection.turns
}

/// Commits what it may, and notes what it may not.
#[derive(Default)]
struct Committing {
    needs_version: Vec<bool>,
}

impl Executor for Committing {
    fn try_get(
        &mut self,
        _key: &[u8],
        _access: Access,
        _with: &mut dyn FnMut(Option<&Item<'_>>),
    ) -> Option<Result<(), Fault>> {
        None
    }

    fn submit(&mut self, _: Ticket, operation: Operation) -> Option<Outcome> {
        let Operation::Set { needs_version, .. } = operation else {
            panic!("{operation:?}");
        };
        self.needs_version.push(needs_version);
        Some(match needs_version {
            true => Outcome::Stored(Ok(trefoil_layout::Version {
                time_ns: 5,
                origin: 6,
            })),
            false => Outcome::Committed,
        })
    }

    fn poll(&mut self, _: &mut dyn FnMut(Ticket, Outcome)) {}

    fn value_len_max(&self) -> usize {
        1000
    }
}

/// A SET whose answer tells no version may be acknowledged before it has one.
#[test]
fn a_version_is_needed_where_the_answer_tells_it() {
    fn answered<S: Session>(session: S, input: &[u8]) -> (Vec<bool>, Vec<u8>) {
        let mut keyspace = DeferredKeyspace::new(Committing::default(), Duration::from_secs(1), 1);
        let mut connection = Connection::new(session, 1, input.to_vec());
        connection.come = input.len();
        connection.turn(&mut keyspace, &mut Notes::default(), 1 << 16, now(1));
        let needs_version = keyspace.executor().needs_version.clone();
        (needs_version, connection.output)
    }
    let text = |input: &str| {
        let (needs_version, output) = answered(MemcacheSession::new(), input.as_bytes());
        (needs_version, String::from_utf8(output).unwrap())
    };
    let is = |needs_version: bool, output: &str| (vec![needs_version], output.to_owned());
    assert_eq!(text("set k 0 0 1\r\nv\r\n"), is(false, "STORED\r\n"));
    assert_eq!(text("set k 0 0 1 noreply\r\nv\r\n"), is(false, ""));
    assert_eq!(text("ms k 1\r\nv\r\n"), is(false, "HD\r\n"));
    assert_eq!(text("ms k 1 s k\r\nv\r\n"), is(false, "HD s1 kk\r\n"));
    // The client's own.
    assert_eq!(text("ms k 1 E7 c\r\nv\r\n"), is(false, "HD c7\r\n"));
    let (needs_version, output) = text("ms k 1 c\r\nv\r\n");
    assert_eq!(needs_version, [true]);
    assert!(
        output.starts_with("HD c") && output != "HD c0\r\n",
        "{output}"
    );

    let resp = |input: &str| {
        let (needs_version, output) = answered(RespSession::new(), input.as_bytes());
        (needs_version, String::from_utf8(output).unwrap())
    };
    assert_eq!(resp("SET k v\r\n"), is(false, "+OK\r\n"));
    assert_eq!(resp("SETEX k 9 v\r\n"), is(false, "+OK\r\n"));
    assert_eq!(resp("MSET k v\r\n"), is(false, "+OK\r\n"));

    let binary = |opcode: u8| {
        let mut frame = vec![0x80, opcode, 0, 1, 8, 0, 0, 0, 0, 0, 0, 10];
        frame.resize(24 + 8, 0);
        frame.extend_from_slice(b"kv");
        answered(MemcacheSession::new(), &frame)
    };
    let (loud, quiet) = (binary(0x01), binary(0x11));
    assert_eq!(loud.0, [true]);
    assert_ne!(loud.1[16..24], [0; 8]);
    assert_eq!(quiet, (vec![false], Vec::new()));
}
