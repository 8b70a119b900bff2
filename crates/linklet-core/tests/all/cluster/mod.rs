//! Cores, values in maps, and a network that delivers everything, in rounds.

use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use trefoil_linklet_core::{
    Access, Config, CopyOrder, Core, Decision, Effect, Entry, Frame, Limit, Loss, Message,
    NotStored, Operation, Request, Scan, Status, Table, Ticket, Values, Wire,
};
use trefoil_sharder::{AssignedSlice, Assignment, AssignmentVersion, KeyPoint, ServerId, Slice};

/// Where a key lies: the first 32 in the lower half of the key space.
pub(crate) fn at(key: u64) -> KeyPoint {
    KeyPoint(key << 58 | (key >> 6) << 30)
}

/// A key's bytes.
pub(crate) fn name(key: u64) -> Bytes {
    Bytes::from(format!("key {key}"))
}

/// Of a message of whole ranges.
fn bulk_bytes(message: &Message) -> usize {
    let is_fill = |order: &CopyOrder| matches!(order, CopyOrder::Fill { .. });
    match message {
        Message::Chunk(_) => message.bytes(),
        Message::Copy { order, .. } if is_fill(order) => message.bytes(),
        _ => 0,
    }
}

#[derive(Default)]
struct Memory {
    values: BTreeMap<KeyPoint, (Bytes, u64)>,
    unmarshallable: BTreeSet<KeyPoint>,
    /// Copies of these are refused.
    refused: BTreeSet<KeyPoint>,
    /// There is no room for these where they move to.
    no_room: BTreeSet<KeyPoint>,
    proposed: BTreeMap<Ticket, (KeyPoint, Bytes, u64)>,
}

impl Memory {
    fn entry(&self, point: KeyPoint, key: &Bytes, value: u64) -> Entry {
        let fails = self.unmarshallable.contains(&point);
        Entry {
            point,
            key: key.clone(),
            version: 0,
            value: (!fails).then(|| Bytes::copy_from_slice(&value.to_le_bytes())),
        }
    }
}

impl Values for Memory {
    fn publish(&mut self, _: Arc<Table>) {}

    fn scan(&mut self, slice: Slice, limit: Limit) -> Scan {
        let mut entries: Vec<Entry> = Vec::new();
        for (&point, (key, value)) in self.values.range(slice.start()..=slice.last()) {
            if entries.len() == limit.entries {
                let last = KeyPoint(point.0 - 1);
                return Scan { entries, last };
            }
            entries.push(self.entry(point, key, *value));
        }
        let last = slice.last();
        Scan { entries, last }
    }

    fn get(&mut self, point: KeyPoint, _: &Bytes) -> Option<Entry> {
        let (key, value) = self.values.get(&point)?;
        Some(self.entry(point, key, *value))
    }

    fn store(&mut self, entry: Entry) -> Result<(), NotStored> {
        if self.no_room.contains(&entry.point) {
            return Err(NotStored::NoRoom);
        }
        let value = entry.value.ok_or(NotStored::Unreadable)?;
        let value = value
            .as_ref()
            .try_into()
            .map_err(|_| NotStored::Unreadable)?;
        let value = (entry.key, u64::from_le_bytes(value));
        self.values.insert(entry.point, value);
        Ok(())
    }

    fn store_copy(&mut self, entry: Entry) -> Result<(), NotStored> {
        let point = entry.point;
        if self.refused.contains(&point) {
            return Err(NotStored::NoRoom);
        }
        // One that is there makes room for the one that takes its place.
        let full = self.values.contains_key(&point) && self.no_room.remove(&point);
        let stored = self.store(entry);
        if full {
            self.no_room.insert(point);
        }
        stored
    }

    fn remove(&mut self, point: KeyPoint, _: &Bytes) {
        self.values.remove(&point);
    }

    fn forget(&mut self, slice: Slice) {
        self.values.retain(|&point, _| !slice.contains(point));
    }

    fn forget_but(&mut self, slice: Slice, stays: &dyn Fn(KeyPoint, &[u8]) -> bool) {
        self.values
            .retain(|&point, (key, _)| !slice.contains(point) || stays(point, key));
    }

    fn settle(&mut self, ticket: Ticket) {
        let (point, key, value) = self.proposed.remove(&ticket).expect("proposed before");
        self.values.insert(point, (key, value));
    }
}

pub(crate) struct Cluster {
    /// Servers of a release of before versions were said.
    of_before: BTreeSet<ServerId>,
    now: Duration,
    servers: BTreeMap<u64, (Core, Memory)>,
    alive: BTreeSet<ServerId>,
    map: Option<Assignment>,
    frames: Vec<(ServerId, ServerId, Frame)>,
    /// The last message on each link.
    sequences: BTreeMap<(u64, u64), u64>,
    /// From whom to whom nothing comes through.
    cut: BTreeSet<(u64, u64)>,
    /// Of servers, those that passed a frame on, to whom, and how many.
    pub(crate) passed: BTreeMap<(u64, u64), usize>,
    /// Everything that was not a frame, and whose it was.
    pub(crate) effects: Vec<(u64, Effect)>,
    tickets: u64,
    puts: BTreeMap<Ticket, u64>,
    /// The most that one call of a server had it send of whole ranges.
    pub(crate) turn_bytes_max: usize,
}

impl Cluster {
    pub(crate) fn new(config: Config, servers: &[u64]) -> Self {
        let core = |id: u64| Core::new(ServerId(id), config.clone()).expect("a good configuration");
        let mut cluster = Cluster {
            of_before: BTreeSet::new(),
            now: Duration::from_secs(1),
            servers: servers
                .iter()
                .map(|&id| (id, (core(id), Memory::default())))
                .collect(),
            alive: servers.iter().map(|&id| ServerId(id)).collect(),
            map: None,
            frames: Vec::new(),
            sequences: BTreeMap::new(),
            cut: BTreeSet::new(),
            passed: BTreeMap::new(),
            effects: Vec::new(),
            tickets: 0,
            puts: BTreeMap::new(),
            turn_bytes_max: 0,
        };
        cluster.renew_leases();
        cluster
    }

    fn with<T>(&mut self, id: u64, act: impl FnOnce(&mut Core, &mut Memory, Duration) -> T) -> T {
        let now = self.now;
        let (core, memory) = self.servers.get_mut(&id).expect("a server of the cluster");
        let result = act(core, memory, now);
        self.carry_out(id);
        // As a driver does: at once.
        loop {
            let (core, memory) = self.servers.get_mut(&id).expect("a server of the cluster");
            if core.next_tick().is_none_or(|at| at > now) {
                return result;
            }
            core.tick(now, memory);
            self.carry_out(id);
        }
    }

    /// Sees to what one call of a server has come to.
    fn carry_out(&mut self, id: u64) {
        let (core, _) = self.servers.get_mut(&id).expect("a server of the cluster");
        assert_eq!(core.overlooked(), None, "of server {id}");
        let mut turn_bytes = 0;
        while let Some(effect) = core.poll() {
            match effect {
                Effect::Send { to, frame } => {
                    turn_bytes += frame.message.as_ref().map_or(0, bulk_bytes);
                    let last = self.sequences.entry((id, to.0)).or_default();
                    *last = frame.sequence.max(*last);
                    if let Some(Message::Pass(pass)) = &frame.message
                        && pass.from.0 != id
                    {
                        *self.passed.entry((id, to.0)).or_default() += 1;
                    }
                    // As it goes over the wire.
                    let bytes = frame.encode();
                    let frame = Frame::decode(bytes).expect("what was encoded");
                    self.frames.push((ServerId(id), to, frame));
                }
                other => self.effects.push((id, other)),
            }
        }
        self.turn_bytes_max = self.turn_bytes_max.max(turn_bytes);
    }

    fn ids(&self) -> Vec<u64> {
        self.servers.keys().copied().collect()
    }

    /// A new map: the key space in equal slices with these servers.
    pub(crate) fn assign(&mut self, slices: &[&[u64]]) {
        self.assign_but(&[], slices);
    }

    /// The same, but these servers do not hear of it.
    pub(crate) fn assign_but(&mut self, deaf: &[u64], slices: &[&[u64]]) {
        let version = match &self.map {
            None => AssignmentVersion::first_of(1),
            Some(map) => map.version().next(),
        };
        let tiles = Slice::tiles(slices.len()).into_iter();
        let slices = tiles.zip(slices).map(|(slice, servers)| AssignedSlice {
            slice,
            servers: servers.iter().map(|&id| ServerId(id)).collect(),
        });
        let map = Assignment::new(version, slices.collect()).expect("tiles tile");
        self.map = Some(map);
        self.hear_who_lives_but(deaf);
    }

    /// The map is what it was, and everybody hears who is alive.
    pub(crate) fn hear_who_lives(&mut self) {
        self.hear_who_lives_but(&[]);
    }

    fn hear_who_lives_but(&mut self, deaf: &[u64]) {
        let (map, alive) = (self.map.clone().expect("a map"), self.alive.clone());
        for id in self.ids().into_iter().filter(|id| !deaf.contains(id)) {
            self.with(id, |core, memory, now| {
                core.learn(now, memory, &map, &alive)
            });
        }
    }

    /// A server comes, of which nobody has heard.
    pub(crate) fn join(&mut self, config: Config, id: u64) {
        let core = Core::new(ServerId(id), config).expect("a good configuration");
        self.servers.insert(id, (core, Memory::default()));
        self.alive.insert(ServerId(id));
        self.renew_leases();
    }

    pub(crate) fn version(&self) -> Option<AssignmentVersion> {
        self.map.as_ref().map(Assignment::version)
    }

    /// Delivers what is on its way, so many times.
    pub(crate) fn rounds(&mut self, rounds: usize) {
        for _ in 0..rounds {
            self.now += Duration::from_micros(500);
            for (from, to, frame) in std::mem::take(&mut self.frames) {
                if self.cut.contains(&(from.0, to.0)) {
                    continue;
                }
                if self.servers.contains_key(&to.0) {
                    let wire = match self.of_before.contains(&from) {
                        true => Wire::UNSAID,
                        false => Wire::OWN,
                    };
                    if self.of_before.contains(&to)
                        && let Some(message) = &frame.message
                    {
                        assert!(message.since() <= Wire::UNSAID, "{message:?}");
                    }
                    self.with(to.0, |core, _, _| core.meet(from, wire))
                        .expect("one major");
                    self.with(to.0, |core, memory, now| {
                        core.receive(now, memory, from, frame);
                    });
                }
            }
        }
    }

    /// Delivers what is on its way to one server, and loses the rest.
    pub(crate) fn only_to(&mut self, id: u64) {
        self.frames.retain(|(_, to, _)| to.0 == id);
        self.rounds(1);
    }

    /// A server speaks as those did that did not say what they speak, and understands no
    /// more.
    pub(crate) fn of_before(&mut self, id: u64) {
        self.of_before.insert(ServerId(id));
    }

    /// Who was sent a key that a server had, and has not answered.
    pub(crate) fn sent_to(&self, id: u64, key: u64) -> Option<ServerId> {
        self.servers[&id].0.sent_to(at(key))
    }

    /// From now on nothing comes through from one server to another.
    pub(crate) fn cut(&mut self, from: u64, to: u64) {
        self.cut.insert((from, to));
    }

    /// It does again.
    pub(crate) fn mend(&mut self, from: u64, to: u64) {
        self.cut.remove(&(from, to));
    }

    /// The number of the next message on a link.
    pub(crate) fn next_message(&self, from: u64, to: u64) -> u64 {
        let last = self.sequences.get(&(from, to));
        last.copied().unwrap_or_default() + 1
    }

    /// A frame arrives, whoever made it.
    pub(crate) fn arrives(&mut self, from: u64, to: u64, frame: Frame) {
        self.frames.push((ServerId(from), ServerId(to), frame));
    }

    /// How many servers one reaches through others only.
    pub(crate) fn detours(&self, id: u64) -> usize {
        self.servers[&id].0.detours(self.now)
    }

    /// Loses what is on its way from one server to another.
    pub(crate) fn lose(&mut self, from: u64, to: u64) {
        self.frames.retain(|(a, b, _)| (a.0, b.0) != (from, to));
    }

    /// Until nothing happens any more.
    pub(crate) fn settle(&mut self) {
        for _ in 0..40 {
            self.rounds(10);
            self.now += Duration::from_millis(60);
            for id in self.ids() {
                self.with(id, |core, memory, now| core.tick(now, memory));
            }
        }
    }

    /// Delivers what is on its way, some milliseconds long, with what is due then.
    pub(crate) fn millis(&mut self, millis: u64) {
        for _ in 0..millis {
            self.rounds(2);
            for id in self.ids() {
                self.with(id, |core, memory, now| {
                    if core.next_tick().is_some_and(|at| at <= now) {
                        core.tick(now, memory);
                    }
                });
            }
        }
    }

    /// Seconds pass, in steps of a tenth.
    pub(crate) fn seconds(&mut self, seconds: u64) {
        for _ in 0..10 * seconds {
            self.tenth();
        }
    }

    /// A tenth of a second passes.
    pub(crate) fn tenth(&mut self) {
        self.rounds(10);
        self.now += Duration::from_millis(95);
        for id in self.ids() {
            self.with(id, |core, memory, now| core.tick(now, memory));
        }
    }

    /// How often a server has told something.
    pub(crate) fn times_told(&self, id: u64, what: impl Fn(&Effect) -> bool) -> usize {
        let told = self
            .effects
            .iter()
            .filter(|(of, effect)| *of == id && what(effect));
        told.count()
    }

    /// Bytes on their way from one server to another, of whole ranges.
    pub(crate) fn bulk_on_the_way(&self, from: u64, to: u64) -> usize {
        let frames = self.frames.iter();
        let there = frames.filter(|(a, b, _)| (a.0, b.0) == (from, to));
        let messages = there.filter_map(|(.., frame)| frame.message.as_ref());
        messages.map(bulk_bytes).sum()
    }

    /// Claims on their way.
    pub(crate) fn claims(&self) -> usize {
        let is_claim = |frame: &Frame| matches!(frame.message, Some(Message::Claim(_)));
        let frames = self.frames.iter();
        frames.filter(|(.., frame)| is_claim(frame)).count()
    }

    /// 256ths of the key space that a server has looked at.
    pub(crate) fn looked_at(&self, id: u64) -> u64 {
        self.servers[&id].0.segments_looked_at()
    }

    /// Bytes that a server keeps for others.
    pub(crate) fn unconfirmed(&self, id: u64) -> usize {
        self.servers[&id].0.unconfirmed_bytes()
    }

    pub(crate) fn renew_leases(&mut self) {
        let until = self.now + Duration::from_secs(3_600);
        for id in self.ids() {
            self.with(id, |core, memory, now| core.lease(now, memory, until));
        }
    }

    pub(crate) fn end_leases(&mut self) {
        self.now += Duration::from_secs(7_200);
        for id in self.ids() {
            self.with(id, |core, memory, now| core.tick(now, memory));
        }
    }

    pub(crate) fn kill(&mut self, id: u64) {
        self.servers.remove(&id);
        self.alive.remove(&ServerId(id));
        self.frames
            .retain(|(from, to, _)| from.0 != id && to.0 != id);
    }

    pub(crate) fn drain(&mut self, id: u64) {
        self.with(id, |core, memory, now| core.drain(now, memory));
    }

    pub(crate) fn expire(&mut self, id: u64) {
        self.with(id, |core, memory, _| core.expire(memory));
    }

    fn request(&mut self, key: u64, access: Access) -> Request {
        self.tickets += 1;
        Request {
            ticket: Ticket(self.tickets),
            point: at(key),
            access,
            known: self.version(),
        }
    }

    pub(crate) fn read(&mut self, id: u64, key: u64) -> Decision {
        let request = self.request(key, Access::Read);
        self.with(id, |core, memory, now| core.request(now, memory, &request))
    }

    /// A commit, as the runtime makes it.
    pub(crate) fn put(&mut self, id: u64, key: u64, value: u64) -> Decision {
        let request = self.request(key, Access::Commit);
        let ticket = request.ticket;
        self.puts.insert(ticket, key);
        self.with(id, |core, memory, now| {
            if let Status::Owned {
                propose: false,
                note,
                token,
            } = core.table().status(at(key))
            {
                memory.values.insert(at(key), (name(key), value));
                if note {
                    core.touched(now, memory, at(key), name(key));
                }
                return Decision::Serve { token };
            }
            memory.proposed.insert(ticket, (at(key), name(key), value));
            let operation = Operation::Put {
                version: 0,
                value: Bytes::copy_from_slice(&value.to_le_bytes()),
            };
            core.propose(now, memory, &request, name(key), operation)
        })
    }

    /// Who has not confirmed the commits of a key that are under way at its owner.
    pub(crate) fn awaited(&self, id: u64, key: u64) -> Vec<ServerId> {
        self.servers[&id].0.awaited(at(key), &name(key))
    }

    /// Whether all commits of a key have been acknowledged.
    pub(crate) fn acknowledged(&self, key: u64) -> bool {
        let done = |ticket: &Ticket| {
            self.effects.iter().any(|(_, effect)| {
                matches!(effect, Effect::Settled { ticket: of, result: Ok(_) } if of == ticket)
            })
        };
        let last = self.puts.iter().rfind(|(_, of)| **of == key);
        last.is_some_and(|(ticket, _)| done(ticket))
    }

    pub(crate) fn unmarshallable(&mut self, id: u64, key: u64) {
        self.with(id, |_, memory, _| memory.unmarshallable.insert(at(key)));
    }

    /// Whether a server refuses copies of a key from now on.
    pub(crate) fn refuse(&mut self, id: u64, key: u64, refuses: bool) {
        self.with(id, |_, memory, _| match refuses {
            true => memory.refused.insert(at(key)),
            false => memory.refused.remove(&at(key)),
        });
    }

    /// Whether a server has no room for a key from now on.
    pub(crate) fn no_room(&mut self, id: u64, key: u64, full: bool) {
        self.with(id, |_, memory, _| match full {
            true => memory.no_room.insert(at(key)),
            false => memory.no_room.remove(&at(key)),
        });
    }

    /// What others have been refusing for a second, according to an owner.
    pub(crate) fn refusals(&self, id: u64) -> Vec<(ServerId, KeyPoint)> {
        let (core, _) = &self.servers[&id];
        core.refusals(self.now, Duration::from_secs(1))
    }

    pub(crate) fn get(&self, id: u64, key: u64) -> Option<u64> {
        let (_, memory) = self.servers.get(&id)?;
        memory.values.get(&at(key)).map(|(_, value)| *value)
    }

    /// Who serves a key.
    pub(crate) fn owner(&self, key: u64) -> Option<u64> {
        let mut owners = self.servers.iter().filter(|(_, (core, _))| {
            core.table()
                .owned()
                .iter()
                .any(|slice| slice.contains(at(key)))
                || core.token(at(key)).is_some()
        });
        let owner = owners.next().map(|(&id, _)| id);
        assert!(owners.next().is_none(), "one owner");
        owner
    }

    /// How many values a server has.
    pub(crate) fn arrived(&self, id: u64) -> usize {
        self.servers[&id].1.values.len()
    }

    pub(crate) fn told(&self, id: u64, what: impl Fn(&Effect) -> bool) -> bool {
        self.effects
            .iter()
            .any(|(of, effect)| *of == id && what(effect))
    }

    pub(crate) fn woken(&self, id: u64) -> bool {
        self.told(id, |effect| matches!(effect, Effect::Wake(_)))
    }

    pub(crate) fn losses(&self) -> Vec<Loss> {
        let losses = self.effects.iter().filter_map(|(_, effect)| match effect {
            Effect::Loss(loss) => Some(loss.clone()),
            _ => None,
        });
        losses.collect()
    }
}
