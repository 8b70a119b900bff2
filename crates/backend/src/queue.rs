//! The queue of a backend: SETs and ERASEs that its clients on this host have committed by
//! publishing them, and that are executed here afterwards, in the order of their positions
//! (`docs/ordered.md`, *In a cell*).
//!
//! ```text
//!  client ─ marks its key ─ publishes ─► lane ─► trefoil-queue ─► Store::mutate ─ clears
//!  another reader ─ a mark: by message ─► Member ─ settle ─► house lane ─► the same thread
//! ```
//!
//! # Rules
//! 1. **Whatever comes by another way is behind the queue.** Before a message, a call or a
//!    flush looks at a key with a mark, everything that was published before is executed.
//! 2. **What was committed to the only copy takes effect at its position**
//!    (`Store::mutate_committed`). The version that its client has nominated orders nothing
//!    here: where something at least as new is known, it is lifted above that. By rule 1,
//!    whatever began after the commit lies behind it all the same. With three copies each has
//!    an order of its own, and versions decide, as everywhere.
//! 3. **What cannot be stored is erased.** Nobody may hit what was there before.
//! 4. **An end executes what was committed, and refuses the rest**, before the backend stops
//!    to take mutations: shut down, moved to another process, or of another size.
//! 5. **Before it is copied, everything is executed that was committed before its epoch was
//!    raised** (`service/copy.rs`). What was committed later, clients do not count.

use crate::clock;
use crate::member::Member;
use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use trefoil_fabric::{Lane, NoLane, SharedMarks};
use trefoil_layout::message::{Request, parse_request};
use trefoil_layout::op::Action;
use trefoil_ordered::marks::{self, Clearer, Directory, PLACES};
use trefoil_ordered::words::Mapped;
use trefoil_ordered::worker::Turn;
use trefoil_ordered::{
    Answer, Invitation, Options, Queue, Refused, Service, SetUpError, Step, Worker,
};
use trefoil_region::{HugePages, Mapping, MemoryObject};
use trefoil_store::CommitOrder;

/// How long somebody waits for the queue's thread before it counts as hindered.
const WITHIN: Duration = Duration::from_secs(1);
/// How often it is looked whether an end has come to its end.
const LOOK: Duration = Duration::from_micros(100);

/// Turns of the queue for what dead clients have committed, before somebody who wants a place
/// is told that there is none: most of what one of them can have left.
const DEAD_TURNS_MAX: usize = 8;

/// Who wants a place, and is told which with what belongs to it.
type Wanted = Sender<Result<(usize, Invitation), NoLane>>;

/// See the module.
pub(crate) struct CellQueue {
    marks: Mapping,
    object: MemoryObject,
    /// What is handed to readers.
    readable: OwnedFd,
    /// A lane of this process: what comes through it is behind all that was committed.
    house: Mutex<Queue>,
    admissions: Mutex<Sender<Wanted>>,
    is_ending: Arc<AtomicBool>,
    has_ended: Arc<AtomicBool>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl CellQueue {
    /// The queue of this member, executed from now on.
    pub(crate) fn start(member: &Arc<Member>) -> Result<Self, SetUpError> {
        let len = marks::OBJECT_LEN;
        let object = MemoryObject::create("trefoil-marks", len, len, HugePages::Off)?;
        object.populate(0..len)?;
        let readable = object.reopen_read_only()?;
        let marks = Mapping::owner(&object)?;
        marks::initialise(&marks.words());
        let (wanting, wanted) = channel();
        let (is_ending, has_ended) = <(Arc<AtomicBool>, Arc<AtomicBool>)>::default();
        let (mut serving, house) = Serving::new(member, &marks, wanted, &is_ending)?;
        let ended = Arc::clone(&has_ended);
        let thread = std::thread::Builder::new()
            .name("trefoil-queue".to_owned())
            .spawn(move || {
                let _held = EndsWithIt;
                serving.run();
                serving.finish();
                ended.store(true, Ordering::Release);
            })?;
        Ok(CellQueue {
            marks,
            object,
            readable,
            house: Mutex::new(house),
            admissions: Mutex::new(wanting),
            is_ending,
            has_ended,
            thread: Mutex::new(Some(thread)),
        })
    }

    pub(crate) fn marks(&self) -> SharedMarks<'_> {
        SharedMarks {
            object: self.readable.as_fd(),
            len: self.object.len(),
        }
    }

    /// Another client. Full is only what is: who hears that makes room at other backends.
    pub(crate) fn admit(&self) -> Result<Lane, NoLane> {
        if self.is_ending.load(Ordering::Acquire) {
            return Err(NoLane::NotNow);
        }
        let (answering, answer) = channel();
        let sent = lock(&self.admissions).send(answering);
        sent.map_err(|_| NoLane::NotNow)?;
        self.wake();
        let given = answer.recv_timeout(WITHIN).map_err(|_| NoLane::NotNow)?;
        let (place, invitation) = given?;
        let marks = self.object.as_fd().try_clone_to_owned();
        Ok(Lane {
            place: place as u32,
            marks: marks.map_err(|_| NoLane::NotNow)?,
            order: invitation.order,
            lane: invitation.lane,
            bell: invitation.bell.into(),
        })
    }

    /// Rule 1 for one key. `false`: the queue is hindered, and nothing is known.
    #[inline]
    pub(crate) fn settle(&self, key_hash: u64) -> bool {
        !marks::is_pending(&self.marks.words(), key_hash) || self.settle_all()
    }

    /// Executes a mutation that depends on what is there, by another way than the queue: with
    /// three copies a commit does not count that it has come between (`client/src/commit.rs`).
    pub(crate) fn conditionally<T>(&self, key_hash: u64, execute: impl FnOnce() -> T) -> T {
        let words = Mapped(self.marks.clone());
        marks::begin_conditional(&words, key_hash);
        let executed = execute();
        marks::end_conditional(&words, key_hash);
        executed
    }

    /// Rule 1 for all keys.
    #[cold]
    pub(crate) fn settle_all(&self) -> bool {
        let mut house = lock(&self.house);
        match house.submit(&[], false) {
            Ok(sent) => {
                let is_answered = house.answer(sent, WITHIN).is_ok();
                if !is_answered {
                    house.forget(sent);
                }
                is_answered
            }
            Err(Refused::Closed) => {
                drop(house);
                self.await_end()
            }
            Err(_) => false,
        }
    }

    /// Rule 4. Returns when everything that was committed is executed.
    pub(crate) fn end(&self) -> bool {
        self.is_ending.store(true, Ordering::Release);
        self.wake();
        self.await_end()
    }

    /// Ends the nap of the queue's thread.
    fn wake(&self) {
        let mut house = lock(&self.house);
        if let Ok(sent) = house.submit(&[], false) {
            house.forget(sent);
        }
    }

    fn await_end(&self) -> bool {
        let by = Instant::now() + WITHIN;
        while !self.has_ended.load(Ordering::Acquire) {
            if Instant::now() >= by {
                return false;
            }
            std::thread::sleep(LOOK);
        }
        if let Some(thread) = lock(&self.thread).take() {
            let _ = thread.join();
        }
        true
    }
}

/// The lease tells clients that what they commit is executed, and it is renewed elsewhere. A
/// backend that is gone does less harm than one that acknowledges and executes nothing.
struct EndsWithIt;

impl Drop for EndsWithIt {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("trefoil: the queue's thread has panicked; the process ends");
            std::process::abort();
        }
    }
}

/// The queue's thread.
struct Serving {
    worker: Worker,
    order: CommitOrder,
    wanted: Receiver<Wanted>,
    member: Arc<Member>,
    marks: Mapping,
    directory: Directory<Mapped>,
    /// By the client's number: its place, which clears its marks.
    places: HashMap<u64, Clearer<Mapped>>,
    is_ending: Arc<AtomicBool>,
    /// What was committed and could be neither stored nor erased.
    unexecuted: u64,
}

impl Serving {
    /// Of a queue without clients but the house, whose end is the other.
    fn new(
        member: &Arc<Member>,
        marks: &Mapping,
        wanted: Receiver<Wanted>,
        is_ending: &Arc<AtomicBool>,
    ) -> Result<(Self, Queue), SetUpError> {
        let options = Options {
            // The house is a client, too.
            client_count_max: PLACES + 1,
            ..Options::default()
        };
        let mut worker = Worker::new(member.shape().incarnation, options)?;
        let house = Queue::join(worker.admit()?)?;
        let copy_count = member.store.config().shards.placement().copy_count();
        let serving = Serving {
            worker,
            order: match copy_count {
                1 => CommitOrder::Position,
                _ => CommitOrder::Version,
            },
            wanted,
            member: Arc::clone(member),
            marks: marks.clone(),
            directory: Directory::new(Mapped(marks.clone())),
            places: HashMap::new(),
            is_ending: Arc::clone(is_ending),
            unexecuted: 0,
        };
        Ok((serving, house))
    }

    fn run(&mut self) {
        let mut idle_since = None;
        while !self.is_ending.load(Ordering::Acquire) {
            while let Ok(wanted) = self.wanted.try_recv() {
                // Who does not wait for it any more has its end of the bell closed with it.
                let _ = wanted.send(self.admit());
            }
            let turn = self.turn();
            let last = match turn.executed {
                0 => turn.last,
                _ => Step::Executed,
            };
            self.worker.rest(last, &mut idle_since);
            if self.worker.client_count() <= self.places.len() {
                self.release();
            }
        }
    }

    fn turn(&mut self) -> Turn {
        let Serving {
            worker,
            order,
            member,
            places,
            unexecuted,
            ..
        } = self;
        worker.run_once(&mut Execution {
            member,
            order: *order,
            places,
            unexecuted,
        })
    }

    /// Executes what was committed, and takes nothing more. Marks that stay are of nothing
    /// that was, or will be: nobody looks at them any more.
    fn finish(&mut self) {
        self.worker.close();
        while !self.worker.is_drained() {
            self.turn();
        }
        for (_, place) in self.places.drain() {
            self.directory.release(place);
            self.member.store.release(lane_len());
        }
        marks::close(&self.marks.words());
    }

    /// Places of clients that are gone are free.
    fn release(&mut self) {
        let worker = &self.worker;
        let gone = self.places.extract_if(|id, _| !worker.has_client(*id));
        for (_, place) in gone {
            self.directory.release(place);
            self.member.store.release(lane_len());
        }
    }

    /// Has places of clients that have died meanwhile given up, of whom a queue that is busy
    /// has not heard yet. What they have committed is executed first.
    #[cold]
    fn release_those_of_the_dead(&mut self) {
        for _ in 0..DEAD_TURNS_MAX {
            let is_left = self.worker.hear_of_the_dead();
            self.release();
            if self.directory.has_room() || !is_left {
                return;
            }
            self.turn();
        }
    }

    fn admit(&mut self) -> Result<(usize, Invitation), NoLane> {
        if !self.member.is_read() {
            return Err(NoLane::NotNow);
        }
        self.release();
        if !self.directory.has_room() {
            self.release_those_of_the_dead();
        }
        if !self.directory.has_room() {
            return Err(NoLane::Full);
        }
        if !self.member.store.charge(lane_len()) {
            return Err(NoLane::NotNow);
        }
        let admitted = self.worker.admit().ok();
        let admitted = admitted.and_then(|invitation| Some((invitation, self.directory.take()?)));
        let Some((invitation, clearer)) = admitted else {
            self.member.store.release(lane_len());
            return Err(NoLane::NotNow);
        };
        let place = clearer.place();
        self.places.insert(invitation.terms.client_id, clearer);
        Ok((place, invitation))
    }
}

/// What a lane is charged with.
fn lane_len() -> u64 {
    trefoil_ordered::lane::Terms {
        epoch: 0,
        client_id: 0,
        slot_count: Options::default().slot_count,
    }
    .object_len()
}

/// Executes what was committed.
struct Execution<'a> {
    member: &'a Member,
    order: CommitOrder,
    places: &'a mut HashMap<u64, Clearer<Mapped>>,
    unexecuted: &'a mut u64,
}

impl Service for Execution<'_> {
    fn execute(&mut self, request: trefoil_ordered::Request<'_>, _: &mut Answer) {
        // The house asks for nothing but its turn.
        let Some(clearer) = self.places.get_mut(&request.client_id) else {
            return;
        };
        // Nonsense has no effect, and its mark stays.
        let Ok((_, Request::Mutate(mutation))) = parse_request(request.payload) else {
            return;
        };
        if !matches!(mutation.action, Action::Set | Action::Erase) {
            return;
        }
        let store = &self.member.store;
        // Rules 2 and 3.
        if let Err(why) = store.mutate_committed(clock::now(), &mutation, self.order) {
            *self.unexecuted += 1;
            // A client may send as many as it likes of what belongs elsewhere.
            if self.unexecuted.is_power_of_two() {
                tracing::error!(%why, times = *self.unexecuted, "a mutation that was committed could be neither stored nor erased");
            }
        }
        let key = mutation.entry.key;
        self.member.hot.message(key, mutation.entry.value.len());
        clearer.clear(store.config().hasher.hash(key).tag);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::tests::Cell;

    /// Of a queue that does not sleep nobody tells it that clients have died: who finds all
    /// places taken has it look. What a dead client has committed is executed first.
    #[test]
    fn places_of_the_dead_are_looked_for_when_all_are_taken() {
        let cell = Cell::new();
        let len = marks::OBJECT_LEN;
        let object = MemoryObject::create("trefoil-marks", len, len, HugePages::Off).unwrap();
        let marks = Mapping::owner(&object).unwrap();
        let (_wanting, wanted) = channel();
        let is_ending = Arc::default();
        let serving = Serving::new(cell.member(), &marks, wanted, &is_ending);
        let (mut serving, _house) = serving.unwrap();
        let by = Instant::now() + Duration::from_secs(60);
        let admit = |serving: &mut Serving| {
            // Nobody is let in while the lease has ended, as on a machine that stands still.
            while !cell.member().is_read() {
                assert!(Instant::now() < by, "no lease");
                std::thread::sleep(LOOK);
            }
            serving.admit()
        };
        let mut clients: Vec<_> = (0..PLACES)
            .map(|_| admit(&mut serving).expect("a place"))
            .collect();
        assert_eq!(marks::places(&marks.words()), PLACES);
        assert!(matches!(admit(&mut serving), Err(NoLane::Full)));
        // One with nothing left, and one with requests that are not executed.
        for has_left in [false, true] {
            let (place, invitation) = clients.swap_remove(5);
            let mut queue = Queue::join(invitation).unwrap();
            for _ in 0..if has_left { 100 } else { 0 } {
                queue.submit(b"nonsense", true).expect("room");
            }
            drop(queue);
            let (given, invitation) = admit(&mut serving).expect("the place of the dead");
            assert_eq!(given, place);
            clients.push((given, invitation));
        }
        assert!(matches!(admit(&mut serving), Err(NoLane::Full)));
        // All go: readers look at no row any more.
        clients.clear();
        serving.worker.hear_of_the_dead();
        serving.release();
        assert_eq!(marks::places(&marks.words()), 0);
    }

    /// Who hears that a queue is full makes room for others elsewhere, in vain where it ends.
    #[test]
    fn a_queue_that_has_ended_is_not_called_full() {
        let cell = Cell::new();
        let queue = CellQueue::start(cell.member()).unwrap();
        assert!(queue.end());
        assert!(matches!(queue.admit(), Err(NoLane::NotNow)));
    }
}
