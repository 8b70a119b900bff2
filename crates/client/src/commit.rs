//! SETs and ERASEs that are acknowledged when they stand in the queues of their backends, and
//! executed afterwards (`docs/ordered.md`, *In a cell*). On the backends' host.
//!
//! # Three copies
//! Each backend executes in an order of its own, and versions decide, as everywhere. So a commit
//! must not be below anything that was acknowledged before it, and has to stand where it will
//! survive:
//! 1. **Ask first.** Its version is above whatever is known at each of the three, executed or
//!    published (`newest_ns`, `nominated`). Where that is too far ahead of the clock, it is
//!    executed instead.
//! 2. **Publish at each**, or at none: all three have room.
//! 3. **Look last.** It counts if all three leases go on and all three acknowledge in one epoch.
//!    A backend that loses its memory copies from the other two under a higher epoch, and they
//!    execute what stood in their queues before they let it.
//!    Else the same mutation goes by messages, under the same version.
//! 4. **No CAS in between.** What depends on what is there (a CAS, a fill) and is executed
//!    between the question and the publishing would lie above the commit, and know nothing of
//!    it. Backends count those, and a commit during which one began does not count.
//!
//! `spec/Queue.tla` is the same, with each rule left out once.

use crate::client::{Client, check_key};
use crate::error::{Mutated, NotCommittable, OpError};
use crate::mutate::SetOptions;
use crate::seats::{self, Attempt, Known, Patience};
use crate::time;
use trefoil_client_core::mode::Mode;
use trefoil_driver::{Item, Owner};
use trefoil_fabric::shm::ConnectOptions;
use trefoil_layout::data::DataEntry;
use trefoil_layout::limits::CLOCK_AHEAD_NS_MAX;
use trefoil_layout::op::{Action, Mutation};
use trefoil_layout::{KeyHash, Version};

/// When a SET or an ERASE is done for its caller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Commit {
    /// When a quorum has executed it.
    #[default]
    Executed,
    /// When it stands in the queues of the key's backends: no GET that begins later misses it.
    /// With one copy it is lost if the backend's process dies before it has executed it, as
    /// everything is that such a backend holds; with three, one may die. What is too long for a
    /// slot of a queue, or finds one full or ending, is executed instead; so is whatever comes
    /// while one of three backends is away, or recovers.
    Acknowledged,
}

/// Versions from further ahead of the host's clock are not committed: backends refuse what is
/// 10 s ahead, and clocks may be set back a little before they execute it.
const AHEAD_NS_MAX: u64 = CLOCK_AHEAD_NS_MAX - 2_000_000_000;

/// Where somebody waits for places that are not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waits {
    Here,
    /// What is submitted waits for nobody.
    Nowhere,
}

/// What came of an attempt to commit.
enum Done {
    Committed,
    /// Nothing: it has to be executed instead.
    Nothing,
    /// It stands in the queues of some, and does not count.
    Perhaps(Version),
}

impl Client {
    /// When SETs and ERASEs of this client are done, unless a call says otherwise; also those
    /// that are submitted.
    pub fn set_commit(&mut self, commit: Commit) {
        self.commit = commit;
    }

    /// [`Client::set`], done when this says.
    pub fn set_by(
        &mut self,
        key: &[u8],
        value: &[u8],
        options: SetOptions,
        commit: Commit,
    ) -> Result<Mutated, OpError> {
        if commit == Commit::Executed {
            return self.set_executed(key, value, options);
        }
        let item = self.check(key, value, options)?;
        let begin_ns = time::monotonic_ns();
        match self.commit(Action::Set, (key, value, item), begin_ns, Waits::Here)? {
            Done::Committed => Ok(Mutated::Committed),
            Done::Nothing => {
                self.begun_at(begin_ns, |client| client.set_executed(key, value, options))
            }
            Done::Perhaps(version) => self.begun_at(begin_ns, |client| {
                client.execute((Action::Set, version), key, value, item)
            }),
        }
    }

    /// [`Client::erase`], done when this says.
    pub fn erase_by(&mut self, key: &[u8], commit: Commit) -> Result<Mutated, OpError> {
        if commit == Commit::Executed {
            return self.erase_executed(key);
        }
        check_key(key)?;
        self.check_process()?;
        self.settle_topology();
        let (value, item) = (&[], Item::default());
        let begin_ns = time::monotonic_ns();
        match self.commit(Action::Erase, (key, value, item), begin_ns, Waits::Here)? {
            Done::Committed => Ok(Mutated::Committed),
            Done::Nothing => self.begun_at(begin_ns, |client| client.erase_executed(key)),
            Done::Perhaps(version) => self.begun_at(begin_ns, |client| {
                client.execute((Action::Erase, version), key, value, item)
            }),
        }
    }

    /// [`Client::set_by`] for who waits for nobody: the outcome if that is known at once, as
    /// that of a commit is; else it is begun, and completes under `token`.
    pub fn set_or_submit(
        &mut self,
        key: &[u8],
        value: &[u8],
        options: SetOptions,
        commit: Commit,
        token: u64,
    ) -> Option<Result<Mutated, OpError>> {
        let item = match self.check(key, value, options) {
            Ok(item) => item,
            Err(error) => return Some(Err(error)),
        };
        self.mutate_or_submit(Action::Set, (key, value, item), commit, token)
    }

    /// The same for [`Client::erase_by`].
    pub fn erase_or_submit(
        &mut self,
        key: &[u8],
        commit: Commit,
        token: u64,
    ) -> Option<Result<Mutated, OpError>> {
        if let Err(error) = self.check_lookup(key) {
            return Some(Err(error));
        }
        self.settle_topology();
        let nothing: &[u8] = &[];
        self.mutate_or_submit(
            Action::Erase,
            (key, nothing, Item::default()),
            commit,
            token,
        )
    }

    fn mutate_or_submit(
        &mut self,
        action: Action,
        (key, value, item): (&[u8], &[u8], Item),
        commit: Commit,
        token: u64,
    ) -> Option<Result<Mutated, OpError>> {
        let owner = Owner::Token(token);
        let done = match commit {
            Commit::Executed => Ok(Done::Nothing),
            Commit::Acknowledged => {
                let begin_ns = time::monotonic_ns();
                self.commit(action, (key, value, item), begin_ns, Waits::Nowhere)
            }
        };
        match done {
            Ok(Done::Committed) => return Some(Ok(Mutated::Committed)),
            Ok(Done::Nothing) if action == Action::Erase => self.driver.begin_erase(key, owner),
            Ok(Done::Nothing) => self.driver.begin_set(key, value, item, owner),
            Ok(Done::Perhaps(version)) => {
                let as_published = (action, version);
                self.driver
                    .begin_again(as_published, key, value, item, owner)
            }
            Err(error) => return Some(Err(error)),
        };
        None
    }

    /// Executes what was begun then, and was not committed: the time that it took counts.
    #[cold]
    fn begun_at<T>(&mut self, begin_ns: u64, execute: impl FnOnce(&mut Self) -> T) -> T {
        let deadline_ns = self.driver.limits(begin_ns).deadline_ns;
        let before = self.driver.end_by(deadline_ns);
        let executed = execute(self);
        self.driver.end_by(before);
        executed
    }

    /// Has a mutation executed by messages that was published at some of three backends, or did
    /// not count: under its own version, so that it is the same wherever it stands already.
    #[cold]
    fn execute(
        &mut self,
        as_published: (Action, Version),
        key: &[u8],
        value: &[u8],
        item: Item,
    ) -> Result<Mutated, OpError> {
        let owner = Owner::Waiter;
        let at = self
            .driver
            .begin_again(as_published, key, value, item, owner);
        self.waited_mutation(at).map_err(perhaps)
    }

    /// Commits what was begun then, or says what is left to do.
    fn commit(
        &mut self,
        action: Action,
        (key, value, item): (&[u8], &[u8], Item),
        begin_ns: u64,
        waits: Waits,
    ) -> Result<Done, OpError> {
        let topology = self.driver.topology();
        if topology.mode() == Mode::R2Immutable {
            return Err(NotCommittable::Mode(topology.mode()).into());
        }
        let hash = topology.hash(key);
        let cohort = topology.cohort(hash);
        let (cohort, config_id) = (cohort.as_slice(), topology.id().config_id);
        let mutation = |version| Mutation {
            action,
            version,
            entry: DataEntry {
                key,
                value,
                expiry_ms: item.expiry_ms,
                client_flags: item.client_flags,
                item_flags: item.item_flags,
                unique: item.unique,
            },
        };
        // Before anybody is asked for a place, and waited for.
        if !seats::fits(mutation(Version::ZERO)) || !self.has_seats(cohort, begin_ns, waits)? {
            return Ok(Done::Nothing);
        }
        let (version, known) = match cohort.len() {
            1 => (self.driver.nominate(), Known::default()),
            _ => match self.nominate_for_all(cohort, hash, config_id) {
                Some(nominated) => nominated,
                None => return Ok(Done::Nothing),
            },
        };
        self.seats.write(mutation(version), config_id);
        let attempt = match *cohort {
            [backend] => self.seats.commit(backend, hash),
            _ => {
                let nominated = (&known, version.time_ns);
                self.seats.commit_to_all(cohort, hash, config_id, nominated)
            }
        };
        match attempt {
            Attempt::Committed => Ok(Done::Committed),
            Attempt::Refused => Ok(Done::Nothing),
            Attempt::Unknown if cohort.len() > 1 => Ok(Done::Perhaps(version)),
            // The only copy may be gone, with a queue that executes it no more.
            Attempt::Unknown => Err(OpError::Indeterminate(format!(
                "backend {} was away when this was committed to its queue",
                cohort[0]
            ))),
        }
    }

    /// Whether this client has a place at the queue of each. It asks for those that it has not:
    /// who waits, for half of the time that is left for what was begun then, as the rest is to
    /// have it executed. None at any of them, and never, is an error.
    #[inline]
    fn has_seats(&mut self, cohort: &[u32], begin_ns: u64, waits: Waits) -> Result<bool, OpError> {
        if self.seats.has_all(cohort, begin_ns) {
            return Ok(true);
        }
        let patience = match waits {
            Waits::Here => {
                let deadline_ns = self.driver.limits(begin_ns).deadline_ns;
                Patience::Until(begin_ns + deadline_ns.saturating_sub(begin_ns) / 2)
            }
            Waits::Nowhere => Patience::Beside,
        };
        let options = || ConnectOptions {
            servers: self.shared.servers.clone(),
            ..ConnectOptions::default()
        };
        let topology = self.driver.topology();
        Ok(self.seats.take_all(cohort, topology, options, patience)?)
    }

    /// A version above whatever is known of this key at all of its backends. `None`: none that
    /// they would all take.
    fn nominate_for_all(
        &mut self,
        cohort: &[u32],
        hash: KeyHash,
        config_id: u32,
    ) -> Option<(Version, Known)> {
        let known = self.seats.ask_all(cohort, hash, config_id)?;
        let version = self.driver.nominate_above(Version {
            time_ns: known.time_ns,
            origin: u64::MAX,
        });
        // The host's clock, whatever this client's says: it is what the backends go by.
        let latest_ns = time::unix_ns().saturating_add(AHEAD_NS_MAX);
        (version.time_ns <= latest_ns).then_some((version, known))
    }
}

/// Of what was published at some of three backends, or did not count, and went by messages then:
/// it may be executed where it stands, whatever the others say.
#[cold]
pub(crate) fn perhaps(error: OpError) -> OpError {
    let perhaps = |why: &dyn std::fmt::Display| {
        OpError::Indeterminate(format!(
            "it stands in queues of some of its backends, and by messages it was superseded, or \
             got no quorum: {why}"
        ))
    };
    match error {
        OpError::Failed(why) | OpError::Indeterminate(why) => perhaps(&why),
        OpError::Rejected(why) => perhaps(&why),
        error => error,
    }
}

#[cfg(test)]
#[path = "../tests/all/real.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod real;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cell, Expected, Lookup, Options};
    use std::io::{Read, Write};
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::{Duration, Instant};
    use trefoil_cell::Mode as CellMode;
    use trefoil_layout::hello::{HELLO_LEN, Hello, Reply, Status};

    const KEY: &[u8] = b"key";

    fn client(real: &real::Real) -> Client {
        let cell = Cell::connect(&real.address).unwrap();
        cell.client(Options {
            deadline: Duration::from_secs(20),
            ..Options::default()
        })
    }

    /// Has a place at all queues from then on.
    fn commits(client: &mut Client) {
        let by = Instant::now() + Duration::from_secs(60);
        let options = SetOptions::default();
        while client.set_by(KEY, b"first", options, Commit::Acknowledged) != Ok(Mutated::Committed)
        {
            assert!(Instant::now() < by, "it commits nothing");
        }
    }

    /// A commit by three, with something between its first and its second step.
    fn with_between(client: &mut Client, value: &[u8], between: impl FnOnce()) -> Attempt {
        let topology = client.driver.topology();
        let hash = topology.hash(KEY);
        let (cohort, id) = (topology.cohort(hash), topology.id().config_id);
        let cohort = cohort.as_slice();
        assert!(
            client
                .has_seats(cohort, time::monotonic_ns(), Waits::Here)
                .unwrap()
        );
        let nominated = client.nominate_for_all(cohort, hash, id);
        let (version, known) = nominated.expect("all three have room");
        between();
        let mutation = Mutation {
            action: Action::Set,
            version,
            entry: DataEntry {
                key: KEY,
                value,
                ..DataEntry::default()
            },
        };
        client.seats.write(mutation, id);
        let nominated = (&known, version.time_ns);
        client.seats.commit_to_all(cohort, hash, id, nominated)
    }

    /// What cannot be committed is executed at once: nobody is asked for a place, and waited
    /// for.
    #[test]
    fn what_fits_into_no_slot_asks_for_no_place() {
        for mode in [CellMode::R1, CellMode::R32] {
            let real = real::Real::start_with_queue(mode);
            let mut client = client(&real);
            let backends: &[u32] = match mode {
                CellMode::R1 => &[0],
                _ => &[0, 1, 2],
            };
            let has_any = |client: &mut Client| {
                let mut backends = backends.chunks(1);
                backends.any(|one| client.seats.has_all(one, time::monotonic_ns()))
            };
            let options = SetOptions::default();
            let stored = client.set_by(KEY, &[7; 2_000], options, Commit::Acknowledged);
            assert!(matches!(stored, Ok(Mutated::Stored { .. })), "{stored:?}");
            assert!(!has_any(&mut client));
            commits(&mut client);
            assert!(has_any(&mut client));
        }
    }

    #[test]
    fn a_commit_does_not_count_where_a_cas_came_between_its_steps() {
        let real = real::Real::start_with_queue(CellMode::R32);
        let (mut writer, mut other) = (client(&real), client(&real));
        commits(&mut writer);
        let undisturbed = with_between(&mut writer, b"second", || ());
        assert!(matches!(undisturbed, Attempt::Committed));
        let disturbed = with_between(&mut writer, b"lost", || {
            let Lookup::Hit(hit) = other.get(KEY).unwrap() else {
                panic!("it was committed");
            };
            let expected = Expected::Version(hit.version);
            let done = other.cas(KEY, expected, b"third", SetOptions::default());
            assert!(matches!(done, Ok(Mutated::Stored { .. })), "{done:?}");
        });
        assert!(matches!(disturbed, Attempt::Unknown));
        // The CAS lies above it: it is dropped where it stands.
        let found = other.get(KEY).unwrap();
        assert!(matches!(found, Lookup::Hit(hit) if hit.value == b"third"));
    }

    /// Calls `test` with a client of three backends, of which the last one has its places at a
    /// socket that answers so, and with when it was asked for one.
    fn with_one_that_says(status: Status, test: impl FnOnce(&mut Client, &Mutex<Vec<Instant>>)) {
        let home = tempfile::tempdir().unwrap();
        let (fabric, other) = (home.path().join("fabric"), home.path().join("other"));
        let listener = UnixListener::bind(&other).unwrap();
        let named = |backend| match backend {
            2 => other.clone(),
            _ => fabric.clone(),
        };
        let real = real::Real::start_with(home, CellMode::R32, named, (32, true));
        let (asked, is_over) = (Mutex::new(Vec::new()), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for stream in listener.incoming() {
                    if is_over.load(Ordering::Relaxed) {
                        return;
                    }
                    let (mut stream, mut hello) = (stream.unwrap(), [0; HELLO_LEN]);
                    if stream.read_exact(&mut hello).is_err() {
                        continue;
                    }
                    let wants_lane = Hello::parse(&hello).is_ok_and(|hello| hello.wants_lane);
                    let refused = match wants_lane {
                        true => status,
                        false => Status::Unavailable,
                    };
                    if wants_lane {
                        asked.lock().unwrap().push(Instant::now());
                    }
                    // Who has gone meanwhile does not matter.
                    let _ = stream.write_all(&Reply::Refused(refused).encode());
                }
            });
            let tested = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                test(&mut client(&real), &asked);
            }));
            is_over.store(true, Ordering::Relaxed);
            let _ = UnixStream::connect(&other);
            if let Err(panic) = tested {
                std::panic::resume_unwind(panic);
            }
        });
    }

    /// Has a SET executed, and says whether there are places at the first two backends, if the
    /// third one was asked by that.
    fn keeps_places(client: &mut Client, asked: &Mutex<Vec<Instant>>) -> Option<[bool; 2]> {
        let before = asked.lock().unwrap().len();
        let options = SetOptions::default();
        let done = client.set_by(KEY, b"value", options, Commit::Acknowledged);
        assert!(matches!(done, Ok(Mutated::Stored { .. })), "{done:?}");
        let is_asked = asked.lock().unwrap().len() > before;
        is_asked.then(|| [0, 1].map(|of| client.seats.has_all(&[of], time::monotonic_ns())))
    }

    /// Who gives back its places for a queue that has ended takes and gives them all the time.
    #[test]
    fn who_is_told_not_now_keeps_its_other_places_and_asks_less_and_less() {
        with_one_that_says(Status::Unavailable, |client, asked| {
            let by = Instant::now() + Duration::from_secs(60);
            let mut has_kept = false;
            while !has_kept || asked.lock().unwrap().len() < 4 {
                assert!(Instant::now() < by, "kept: {has_kept}, asked: {asked:?}");
                // On a machine that stands still their leases end.
                has_kept |= keeps_places(client, asked) == Some([true, true]);
                std::thread::sleep(Duration::from_millis(5));
            }
            let asked = asked.lock().unwrap();
            for (at, pair) in asked.windows(2).take(3).enumerate() {
                let pause = Duration::from_millis(100 << at);
                assert!(pair[1] - pair[0] >= pause, "{at}: {asked:?}");
            }
        });
    }

    #[test]
    fn who_finds_one_full_or_without_a_queue_gives_back_its_other_places() {
        for (status, times) in [(Status::NoLane, 3), (Status::NoQueue, 1)] {
            with_one_that_says(status, |client, asked| {
                let by = Instant::now() + Duration::from_secs(60);
                let mut sets = 0;
                // Also while nobody asks.
                while asked.lock().unwrap().len() < times || sets < 10 {
                    assert!(Instant::now() < by, "asked: {asked:?}");
                    let kept = keeps_places(client, asked);
                    assert!(matches!(kept, None | Some([false, false])), "{kept:?}");
                    sets += 1;
                    std::thread::sleep(Duration::from_millis(5));
                }
            });
        }
    }

    /// What went by messages alone has failed then.
    #[test]
    fn what_was_published_and_is_submitted_by_messages_is_never_said_to_have_failed() {
        let real = real::Real::start_with_queue(CellMode::R32);
        let mut client = client(&real);
        let version = client.driver.nominate();
        let item = Item::default();
        client.end_by(1);
        let published = (Action::Set, version);
        let owner = |token| Owner::Token(token);
        client
            .driver
            .begin_again(published, KEY, b"value", item, owner(1));
        client.driver.begin_set(KEY, b"value", item, owner(2));
        let mut ended = Vec::new();
        let by = Instant::now() + Duration::from_secs(60);
        while ended.len() < 2 {
            assert!(Instant::now() < by, "{ended:?}");
            client.poll(&mut |token, completion| match completion {
                crate::Completion::Mutated(Err(error)) => ended.push((token, error)),
                other => panic!("{other:?}"),
            });
        }
        ended.sort_by_key(|(token, _)| *token);
        assert!(
            matches!(&ended[0].1, OpError::Indeterminate(why) if why.contains("in queues")),
            "{ended:?}"
        );
        assert!(matches!(ended[1].1, OpError::Failed(_)), "{ended:?}");
    }

    /// The thread is about to be told: nobody is asked twice.
    #[test]
    fn who_waits_waits_for_the_thread_that_asks() {
        with_one_that_says(Status::Unavailable, |client, asked| {
            let (options, by) = (SetOptions::default(), Commit::Acknowledged);
            client.submit_set_by(KEY, b"first", options, by, 7);
            let done = client.set_by(KEY, b"second", options, by);
            assert!(matches!(done, Ok(Mutated::Stored { .. })), "{done:?}");
            assert_eq!(asked.lock().unwrap().len(), 1);
        });
    }

    /// Also while it is asked again: a backend may have a queue by then.
    #[test]
    fn where_there_is_no_queue_what_is_submitted_is_refused_until_there_is_one() {
        let real = real::Real::start(CellMode::R32);
        let mut client = client(&real);
        let options = SetOptions::default();
        let by = Instant::now() + Duration::from_secs(60);
        let mut refusals = 0;
        while refusals < 50 {
            assert!(Instant::now() < by, "{refusals} refusals");
            let done = client.set_or_submit(KEY, b"value", options, Commit::Acknowledged, 7);
            match done {
                Some(Err(OpError::NotCommittable(_))) => refusals += 1,
                None => assert_eq!(refusals, 0, "it is executed"),
                other => panic!("{other:?}"),
            }
            client.seats.ask_again_now();
            client.poll(&mut |_, _| ());
        }
    }

    /// The child publishes past the look that its calls begin with.
    #[test]
    fn a_forks_child_leaves_its_parents_marks_alone() {
        let real = real::Real::start_with_queue(CellMode::R1);
        let mut client = client(&real);
        commits(&mut client);
        let hash = client.driver.topology().hash(KEY);
        client.seats.write(
            Mutation {
                action: Action::Erase,
                version: client.driver.nominate(),
                entry: DataEntry {
                    key: KEY,
                    ..DataEntry::default()
                },
            },
            client.driver.topology().id().config_id,
        );
        let (mut word, mut go) = std::io::pipe().unwrap();
        // SAFETY: the child uses what this thread has made, and ends by `_exit`.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // SAFETY: ends this process alone, if nobody ever says the word.
            unsafe { libc::alarm(120) };
            let is_refused = word.read_exact(&mut [0]).is_ok()
                && matches!(client.seats.commit(0, hash), Attempt::Refused);
            // SAFETY: ends the process.
            unsafe { libc::_exit(if is_refused { 7 } else { 1 }) };
        }
        assert!(pid > 0, "no process left");
        commits(&mut client);
        let is_pending = |client: &mut Client| client.seats.is_pending(0, hash);
        let by = Instant::now() + Duration::from_secs(60);
        while is_pending(&mut client) != Some(false) {
            assert!(Instant::now() < by, "its mark stays");
            std::thread::sleep(Duration::from_millis(1));
        }
        go.write_all(&[1]).unwrap();
        let mut status = 0;
        // SAFETY: waits for a child that was made above.
        assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7);
        assert_eq!(is_pending(&mut client), Some(false));
    }
}
