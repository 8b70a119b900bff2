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
use crate::seats::{Attempt, Known, Place};
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

/// What came of an attempt to commit.
enum Done {
    Committed,
    /// Nothing: it has to be executed instead.
    Nothing,
    /// It stands in the queues of some, and does not count.
    Perhaps(Version),
}

impl Client {
    /// When SETs and ERASEs of this client are done, unless a call says otherwise.
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
        match self.commit(Action::Set, key, value, item)? {
            Done::Committed => Ok(Mutated::Committed),
            Done::Nothing => self.set_executed(key, value, options),
            Done::Perhaps(version) => self.execute((Action::Set, version), key, value, item),
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
        let item = Item::default();
        match self.commit(Action::Erase, key, &[], item)? {
            Done::Committed => Ok(Mutated::Committed),
            Done::Nothing => self.erase_executed(key),
            Done::Perhaps(version) => self.execute((Action::Erase, version), key, &[], item),
        }
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
        // It may be executed where it stands, whatever the others say.
        let perhaps = |why: &dyn std::fmt::Display| {
            OpError::Indeterminate(format!(
                "it stands in queues of some of its backends, and by messages it was superseded, or \
                 got no quorum: {why}"
            ))
        };
        self.waited_mutation(at).map_err(|error| match error {
            OpError::Failed(why) | OpError::Indeterminate(why) => perhaps(&why),
            OpError::Rejected(why) => perhaps(&why),
            error => error,
        })
    }

    /// Commits, or says what is left to do.
    fn commit(
        &mut self,
        action: Action,
        key: &[u8],
        value: &[u8],
        item: Item,
    ) -> Result<Done, OpError> {
        let topology = self.driver.topology();
        if topology.mode() == Mode::R2Immutable {
            return Err(NotCommittable::Mode(topology.mode()).into());
        }
        let hash = topology.hash(key);
        let cohort = topology.cohort(hash);
        let (cohort, config_id) = (cohort.as_slice(), topology.id().config_id);
        if !self.has_seats(cohort)? {
            return Ok(Done::Nothing);
        }
        let (version, known) = match cohort.len() {
            1 => (self.driver.nominate(), Known::default()),
            _ => match self.nominate_for_all(cohort, hash, config_id) {
                Some(nominated) => nominated,
                None => return Ok(Done::Nothing),
            },
        };
        let mutation = Mutation {
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
        if !self.seats.write(mutation, config_id) {
            return Ok(Done::Nothing);
        }
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

    /// Whether this client has a place at the queue of each; it asks for those that it has not.
    /// None at any of them, and never, is an error.
    #[inline]
    fn has_seats(&mut self, cohort: &[u32]) -> Result<bool, OpError> {
        let now_ns = time::monotonic_ns();
        let deadline_ns = self.driver.limits(now_ns).deadline_ns;
        let mut lacking = None;
        let mut may_have = false;
        for &backend in cohort {
            let topology = self.driver.topology();
            let options = || ConnectOptions {
                servers: self.shared.servers.clone(),
                ..ConnectOptions::default()
            };
            let times = (now_ns, deadline_ns);
            match self.seats.take(backend, topology, options, times) {
                Place::Taken => may_have = true,
                // Places at others would be held in vain.
                Place::Missing => return Ok(false),
                Place::None(why) => {
                    lacking.get_or_insert(why);
                }
            }
        }
        match lacking {
            Some(why) if !may_have => Err(why.into()),
            lacking => Ok(lacking.is_none()),
        }
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

#[cfg(test)]
#[path = "../tests/all/real.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod real;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cell, Expected, Lookup, Options};
    use std::time::{Duration, Instant};
    use trefoil_cell::Mode as CellMode;

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
        assert!(client.has_seats(cohort).unwrap());
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
        assert!(client.seats.write(mutation, id));
        let nominated = (&known, version.time_ns);
        client.seats.commit_to_all(cohort, hash, id, nominated)
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
}
