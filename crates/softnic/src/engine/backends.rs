//! The mapped backends, as sessions read them: what an engine does for a request.
//!
//! Every answer ends the same way ([`finish`]): the flush floor is read after the data. The
//! lease is looked at last, on the host's own clock, once for all that was read before
//! ([`Memory::end_reads`]). A copy whose lease has ended meanwhile is thrown away, so nothing
//! of a dead process' memory leaves the host.

use super::counters::{Counters, add_own as add, note_cpu};
use super::messages::{LEAVING_NS, Replies, Rings, Sender};
use super::shared::{Adoption, Shared};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use trefoil_client_core::touch::TouchBuffer;
use trefoil_client_core::vote::IndexVote;
use trefoil_fabric::RegionView;
use trefoil_fabric::clock::monotonic_ns;
use trefoil_fabric::port::Refreshed;
use trefoil_fabric::shm::Connection;
use trefoil_layout::KeyHash;
use trefoil_layout::bucket::{BUCKET_LEN, BUCKET_WORDS, HEADER_WORDS};
use trefoil_layout::words::Words as _;
use trefoil_softnic_core::limits::BACKEND_COUNT_MAX;
use trefoil_softnic_core::wire::{
    Answer, CounterValues, Message, MessageStatus, Open, OpenStatus, Opened, Region, Status,
};
use trefoil_softnic_core::{Expected, Handed, Memory, ReadRange, Scan};

/// Bits of a handle that say which backend; the others, which mapping of it.
const NUMBER_BITS: u32 = BACKEND_COUNT_MAX.trailing_zeros();
const _: () = assert!(BACKEND_COUNT_MAX.is_power_of_two());

/// A backend that is mapped, or was.
struct Slot {
    handle: u32,
    connection: Connection,
    touches: Box<[TouchBuffer]>,
    rings: Rings,
}

/// A slot whose process has moved, or has ended, and which still owes answers to messages.
struct Leaving {
    number: u32,
    slot: Slot,
    until_ns: u64,
}

/// See the module. Each event loop has its own.
pub(super) struct Backends {
    shared: Arc<Shared>,
    /// Of its loop.
    at: usize,
    slots: Vec<Option<Slot>>,
    /// Those who had the slots before, and owe something.
    leaving: Vec<Leaving>,
    has_touches: bool,
    /// When reads ended last.
    now_ns: u64,
    /// Where the rings' bells are heard: the loop's.
    epoll: OwnedFd,
    /// Whose turn it is.
    pub(super) sender: Sender,
    /// Of the last message that was handed on.
    token: u64,
    replies: Replies,
    /// Some rings may owe something. Without messages nobody walks the slots for it.
    owes: bool,
    /// Some rings may have been asked to ring.
    is_armed: bool,
}

impl Backends {
    pub(super) fn new(shared: Arc<Shared>, at: usize, epoll: OwnedFd) -> Self {
        Backends {
            shared,
            at,
            slots: Vec::new(),
            leaving: Vec::new(),
            has_touches: false,
            now_ns: 0,
            epoll,
            sender: Sender::default(),
            token: 0,
            replies: Replies::default(),
            owes: false,
            is_armed: false,
        }
    }

    fn own_counters(&self) -> &Counters {
        &self.shared.loops[self.at].counters
    }

    /// Notes what CPU the event loop, whose thread this is, has used.
    pub(super) fn note_cpu(&self) {
        note_cpu(&self.own_counters().cpu_us);
    }

    /// Takes what the mapper has brought. Handles of earlier mappings are good no more.
    pub(super) fn adopt(&mut self) {
        let adoptions = self.shared.take_adoptions(self.at);
        if adoptions.is_empty() {
            return;
        }
        for Adoption {
            number,
            generation,
            connection,
        } in adoptions
        {
            let at = number as usize;
            // The memory of a dead process is nobody's but the engine's.
            if let Some(slot) = self.slots.get_mut(at).and_then(Option::take) {
                self.end_messages(number, slot);
            }
            let Some(connection) = connection else {
                continue;
            };
            if self.slots.len() <= at {
                self.slots.resize_with(at + 1, || None);
            }
            let count = connection.view().partition_count();
            self.slots[at] = Some(Slot {
                handle: generation << NUMBER_BITS | number,
                rings: Rings::of(&connection),
                connection,
                touches: (0..count).map(|_| TouchBuffer::new(1)).collect(),
            });
        }
        let count = self.slots.iter().flatten().count() as u64;
        self.own_counters()
            .backends_mapped
            .store(count, Ordering::Relaxed);
    }

    /// What is mapped there is not any more. One that has moved answers what was in its rings, or
    /// says that it has not carried it out; what another one owes is told, or given up.
    fn end_messages(&mut self, number: u32, mut slot: Slot) {
        let counters = &self.shared.loops[self.at].counters;
        let now_ns = monotonic_ns();
        let connection = (&mut slot.connection, &self.epoll);
        let replies = &mut self.replies;
        if slot.rings.leaves(connection, replies, counters, now_ns) {
            let until_ns = now_ns + LEAVING_NS;
            self.owes = true;
            self.leaving.push(Leaving {
                number,
                slot,
                until_ns,
            });
        }
    }

    /// Takes what those have answered that have moved.
    fn look_at_leaving(&mut self, now_ns: u64) {
        let counters = &self.shared.loops[self.at].counters;
        let (epoll, replies) = (&self.epoll, &mut self.replies);
        self.leaving.retain_mut(|leaving| {
            let slot = &mut leaving.slot;
            let connection = (&mut slot.connection, epoll);
            if now_ns >= leaving.until_ns {
                slot.rings.end(connection, replies, counters);
                return false;
            }
            slot.rings.look(connection, replies, counters, now_ns);
            slot.rings.is_awaited()
        });
        self.owes |= !self.leaving.is_empty();
    }

    /// Whether answers to messages are to come, or to be told.
    pub(super) fn awaits_answers(&self) -> bool {
        self.owes || !self.replies.is_empty()
    }

    /// The bell of a backend's rings.
    pub(super) fn is_heard(&mut self, number: u32) {
        self.owes = true;
        if let Some(Some(slot)) = self.slots.get_mut(number as usize) {
            slot.rings.is_heard(&slot.connection);
        }
        // Their bells have the same name.
        let its = |of: &&mut Leaving| of.number == number;
        for leaving in self.leaving.iter_mut().filter(its) {
            let slot = &mut leaving.slot;
            slot.rings.is_heard(&slot.connection);
        }
    }

    /// Before a sleep, and after it: those who owe something ring meanwhile.
    pub(super) fn set_waits(&mut self, waits: bool) {
        // Whoever was asked to ring is told that it need not.
        if !self.owes && !std::mem::replace(&mut self.is_armed, false) {
            return;
        }
        self.is_armed = waits;
        let leaving = self.leaving.iter_mut().map(|leaving| &mut leaving.slot);
        for slot in self.slots.iter_mut().flatten().chain(leaving) {
            slot.rings.set_waits(waits, &slot.connection);
        }
    }

    /// What has come of messages. To be given back.
    pub(super) fn take_replies(&mut self) -> Replies {
        let counters = &self.shared.loops[self.at].counters;
        let now_ns = monotonic_ns();
        self.owes = false;
        for slot in self.slots.iter_mut().flatten() {
            if slot.rings.is_awaited() {
                let connection = (&mut slot.connection, &self.epoll);
                let replies = &mut self.replies;
                if slot.rings.look(connection, replies, counters, now_ns) {
                    self.shared.nudge();
                }
                self.owes |= slot.rings.is_awaited();
            }
        }
        if !self.leaving.is_empty() {
            self.look_at_leaving(now_ns);
        }
        std::mem::take(&mut self.replies)
    }

    /// They were told.
    pub(super) fn give_back(&mut self, mut replies: Replies) {
        replies.clear();
        self.replies = replies;
    }

    fn hand_on(&mut self, message: &Message<'_>) -> Result<(), MessageStatus> {
        let now_ns = monotonic_ns();
        let number = message.handle & (BACKEND_COUNT_MAX - 1);
        self.slot(message.handle).ok_or(MessageStatus::Gone)?;
        let slot = self.slots.get_mut(number as usize);
        let slot = slot.and_then(Option::as_mut).ok_or(MessageStatus::Gone)?;
        self.token += 1;
        self.owes = true;
        let ring = (&mut slot.connection, &self.epoll, number);
        let by = (self.token, &self.sender);
        slot.rings.send(ring, by, message, now_ns)
    }

    /// Reports the touches that are still being collected.
    pub(super) fn flush_touches(&mut self) {
        if !std::mem::take(&mut self.has_touches) {
            return;
        }
        for slot in self.slots.iter_mut().flatten() {
            for (partition, touches) in slot.touches.iter_mut().enumerate() {
                if let Some(batch) = touches.flush() {
                    slot.connection.touch(partition, batch);
                }
            }
        }
    }

    fn slot(&mut self, handle: u32) -> Option<&mut Slot> {
        let at = (handle & (BACKEND_COUNT_MAX - 1)) as usize;
        let is_it = |slot: &Option<Slot>| slot.as_ref().is_some_and(|of| of.handle == handle);
        if !self.slots.get(at).is_some_and(is_it) {
            // Another loop may have told of one that waits to be adopted here.
            self.adopt();
        }
        let slot = self.slots.get_mut(at)?.as_mut();
        slot.filter(|slot| slot.handle == handle)
    }

    /// What is mapped under a handle, without a look for what is new.
    fn view(&self, handle: u32) -> Option<&RegionView> {
        let at = (handle & (BACKEND_COUNT_MAX - 1)) as usize;
        let slot = self.slots.get(at)?.as_ref();
        let slot = slot.filter(|slot| slot.handle == handle)?;
        Some(slot.connection.view())
    }

    fn gone(&self) -> Answer {
        add(&self.own_counters().gone, 1);
        Answer::bare(Status::Gone)
    }
}

/// What one look has found.
enum Look {
    Found(IndexVote),
    TooLong(u32),
    /// What is known of the windows may be out of date; what to say if it is not.
    Stale(IndexVote),
}

impl Memory for Backends {
    fn open(&mut self, open: &Open) -> Result<Opened, OpenStatus> {
        // One that has come back may be waiting to be adopted.
        self.adopt();
        let slot = self.slots.get_mut(open.backend as usize);
        let Some(slot) = slot.and_then(Option::as_mut) else {
            self.shared.nudge();
            return Err(OpenStatus::NotMapped);
        };
        // What it serves now: a client that is told of an older configuration takes the
        // backend for one that has not followed yet, and does not use it.
        slot.connection.refresh();
        let view = slot.connection.view();
        let agreement = view.agreement();
        if agreement.topology.life != open.life {
            self.shared.nudge();
            return Err(OpenStatus::OtherLife);
        }
        if !view.lease_alive(monotonic_ns()) {
            self.shared.nudge();
            return Err(OpenStatus::NotMapped);
        }
        let mut topology = agreement.topology;
        topology.config_id = view.config_id();
        Ok(Opened {
            handle: slot.handle,
            backend: agreement.backend,
            layout: agreement.layout_version,
            hasher: agreement.hasher,
            // At most `PARTITION_COUNT_MAX`.
            partition_count: agreement.partition_count as u16,
            sub_count: agreement.sub_count as u16,
            incarnation: agreement.incarnation,
            topology,
        })
    }

    fn scan(&mut self, scan: &Scan, data: &mut Vec<u8>) -> Answer {
        add(&self.own_counters().scans, 1);
        let Some(slot) = self.slot(scan.handle) else {
            return self.gone();
        };
        let begin = data.len();
        let partition = slot
            .connection
            .view()
            .partition(scan.place.into(), scan.hash);
        let ask = |view: &RegionView, data: &mut Vec<u8>| {
            // Before the bucket: what comes later changes it.
            let stamp = view.stamp_in(partition, scan.hash);
            (stamp, look(view, partition, scan, data))
        };
        let (mut stamp, mut found) = ask(slot.connection.view(), data);
        if let Look::Stale(_) = found
            && slot.connection.refresh() == Refreshed::Changed
        {
            data.truncate(begin);
            (stamp, found) = ask(slot.connection.view(), data);
        }
        let view = slot.connection.view();
        let answer = match found {
            Look::Found(vote) => Answer {
                vote: Some(vote),
                data_len: (data.len() - begin) as u32,
                stamp,
                ..Answer::bare(Status::Done)
            },
            Look::TooLong(len) => Answer {
                data_len: len,
                ..Answer::bare(Status::TooLong)
            },
            // What the backend serves, not what one of its buckets says, which may be on
            // its way from one to the other: the client expects that next.
            Look::Stale(IndexVote::ConfigChanged { .. }) => Answer {
                vote: Some(IndexVote::ConfigChanged {
                    found: view.config_id(),
                }),
                ..Answer::bare(Status::Done)
            },
            Look::Stale(vote) => Answer {
                vote: Some(vote),
                ..Answer::bare(Status::Done)
            },
        };
        let answer = finish(view, answer);
        if let Some(IndexVote::Present { slot_number, .. }) = answer.vote
            && scan.is_use
        {
            let window_id = view.window_id(partition);
            if let Some(batch) = slot.touches[partition].touch(window_id, slot_number) {
                slot.connection.touch(partition, batch);
            }
            self.has_touches = true;
            add(&self.own_counters().touches, 1);
        }
        answer
    }

    /// All buckets first, then what they point at: fetches in a row pass beside one another,
    /// and where the system has pages of memory to look up as well, those, too.
    fn expect(&mut self, scans: impl Iterator<Item = Expected> + Clone) {
        for scan in scans.clone() {
            if let Some(view) = self.view(scan.handle) {
                view.prefetch_scan(scan.place.into(), scan.hash);
            }
        }
        for scan in scans.filter(|scan| scan.has_data) {
            if let Some(view) = self.view(scan.handle)
                && let Some(home) = view.home(scan.place.into(), scan.hash)
                && let Some(IndexVote::Present { entry, .. }) = view.glance(scan.hash, home)
            {
                view.prefetch_data(entry.pointer);
            }
        }
    }

    fn read(&mut self, handle: u32, range: &ReadRange, data: &mut Vec<u8>) -> Answer {
        add(&self.own_counters().reads, 1);
        let Some(slot) = self.slot(handle) else {
            return self.gone();
        };
        let begin = data.len();
        let mut status = copy(slot.connection.view(), range, data);
        if status == Status::OutOfWindow && slot.connection.refresh() == Refreshed::Changed {
            status = copy(slot.connection.view(), range, data);
        }
        let answer = Answer {
            data_len: (data.len() - begin) as u32,
            ..Answer::bare(status)
        };
        finish(slot.connection.view(), answer)
    }

    fn end_reads(&mut self) {
        self.now_ns = monotonic_ns();
    }

    fn lease_left_us(&mut self, handle: u32) -> Option<u32> {
        // One that was adopted away since it was read has ended as well.
        let left_ns = self
            .view(handle)
            .map_or(0, |view| view.lease_left_ns(self.now_ns));
        Some(u32::try_from(left_ns / 1000).unwrap_or(u32::MAX))
    }

    /// Its backend is looked for.
    fn lapsed(&mut self, _: u32) {
        add(&self.own_counters().lapsed, 1);
        self.shared.nudge();
    }

    fn touch(&mut self, handle: u32, place: u8, hash: KeyHash) {
        add(&self.own_counters().touches, 1);
        let Some(slot) = self.slot(handle) else {
            return;
        };
        let view = slot.connection.view();
        let partition = view.partition(place.into(), hash);
        let (window_id, name) = (view.window_id(partition), view.name(partition, hash));
        if let Some(batch) = slot.touches[partition].touch_by_name(window_id, name) {
            slot.connection.touch(partition, batch);
        }
        self.has_touches = true;
    }

    fn message(&mut self, message: &Message<'_>) -> Handed {
        let cost = message.cost();
        if !self.sender.under_way.has_room(cost) {
            return Handed::TooMany;
        }
        match self.hand_on(message) {
            Ok(()) => {
                self.sender.under_way.begins(cost);
                add(&self.own_counters().messages, 1);
                Handed::UnderWay
            }
            Err(status) => {
                if status == MessageStatus::Gone {
                    self.shared.nudge();
                }
                add(&self.own_counters().messages_refused, 1);
                Handed::Refused(status)
            }
        }
    }

    fn counters(&mut self) -> CounterValues {
        self.note_cpu();
        self.shared.counted().0
    }
}

/// Scans, and copies what is pointed at.
fn look(view: &RegionView, partition: usize, scan: &Scan, data: &mut Vec<u8>) -> Look {
    if view.config_id() != scan.config_id {
        return Look::Stale(IndexVote::ConfigChanged {
            found: view.config_id(),
        });
    }
    let vote = view.index_vote_in(partition, scan.hash);
    let entry = match vote {
        IndexVote::Present { .. } if scan.is_vote => return Look::Found(vote),
        IndexVote::Present { entry, .. } => entry,
        IndexVote::ConfigChanged { .. } => return Look::Stale(vote),
        vote => return Look::Found(vote),
    };
    // Torn, or the window has grown.
    let Ok(words) = view.entry(entry.pointer) else {
        return Look::Stale(IndexVote::Unstable);
    };
    let len = entry.pointer.len();
    if len > scan.solicited as usize {
        // A pointer's length has fewer than 32 bits.
        return Look::TooLong(len as u32);
    }
    words.append_to(0, len, data);
    Look::Found(vote)
}

/// Copies a range of a region, or nothing.
fn copy(view: &RegionView, range: &ReadRange, data: &mut Vec<u8>) -> Status {
    let (offset, len) = (range.offset, range.len as usize);
    let partition = usize::from(range.partition);
    let words = match range.region {
        Region::Control => view.control_range(offset, len),
        Region::Data => view.data_range(offset, len),
        Region::Index => view.index_range(partition, range.window_id, offset, len),
    };
    let Ok(words) = words else {
        return Status::OutOfWindow;
    };
    let begin = data.len();
    words.append_to(0, len, data);
    if range.region != Region::Index {
        return Status::Done;
    }
    // An entry counts in the epoch of its bucket's header: both are of one moment.
    words.fence_acquire();
    let copied = |word: usize| {
        let at = begin + word * 8;
        data[at..at + 8] == words.load(word).to_le_bytes()
    };
    let is_stable = (0..len / BUCKET_LEN)
        .all(|bucket| (0..HEADER_WORDS).all(|word| copied(bucket * BUCKET_WORDS + word)));
    let is_window = view.is_window(partition, range.window_id);
    if is_stable && is_window {
        return Status::Done;
    }
    data.truncate(begin);
    match is_window {
        true => Status::Unstable,
        false => Status::OutOfWindow,
    }
}

/// What is read after everything else but the lease.
fn finish(view: &RegionView, answer: Answer) -> Answer {
    Answer {
        config_id: view.config_id(),
        flush_floor: view.flush_floor(),
        ..answer
    }
}
