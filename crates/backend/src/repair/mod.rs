//! Repair in the background of the shard of which a backend is the first: asks the three
//! replicas what the machine wants to know ([`trefoil_recovery::scan`]).
//!
//! ```text
//! interval over, or keys named by others ─► scan ─► own store
//!                                            │ └──► the other two, by gRPC
//!                                       pace: bytes and keys a second
//! ```
//!
//! The first replica of a cohort alone repairs it, and only while all three answer and
//! vote. While it is away there is nothing that could be repaired: two replicas are left,
//! and what they disagree on has no quorum.

mod named;
mod peer;
mod tally;

pub(crate) use named::Named;
pub(crate) use peer::answer;
pub(crate) use tally::Tally;

use crate::background;
use crate::clock;
use crate::member::Member;
use crate::pace::Pace;
use crate::recovery::{Peer, Setback};
use crate::state::State;
use crate::stop::Stop;
use bytes::Bytes;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use trefoil_layout::{KeyHash, Version};
use trefoil_recovery::scan::{self, Ended, Limits, Question, Reply, Scan};
use trefoil_store::PLACES;

/// How often a thread that waits looks whether a key was named, or the server stops.
const LOOK_PERIOD: Duration = Duration::from_millis(100);
/// After a scan was broken off, because a replica is away or recovers: at first, and at most.
/// A shorter interval is shorter. When it is back, what it has missed is soon looked at.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// Named keys that are kept for the next scan if this one is broken off.
const NAMED_COUNT_MAX: usize = 1024;
/// Bits of a client's id.
const CLIENT_ID_BITS: u32 = 40;

/// How cohorts are repaired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepairOptions {
    /// Between the beginnings of two scans; zero: this backend repairs nothing.
    pub interval: Duration,
    /// Bytes a second that a scan and its repairs may cost between backends; at least
    /// [`REPAIR_RATE_MIN`](crate::REPAIR_RATE_MIN).
    pub rate: u64,
}

/// Where an operator does not say.
pub const REPAIR_DEFAULT: RepairOptions = RepairOptions {
    interval: Duration::from_secs(60),
    rate: 8 << 20,
};

impl Default for RepairOptions {
    fn default() -> Self {
        REPAIR_DEFAULT
    }
}

/// Repairs the member's own shard until stopped.
pub(crate) fn run(
    state: &Arc<State>,
    stop: &Stop,
    member: &Arc<Member>,
    (options, runtime): (RepairOptions, &Runtime),
) {
    let shards = &member.store.config().shards;
    let (Some(tally), Some(shard)) = (&member.repair, shards.local_of(member.number)) else {
        return;
    };
    let mut repairer = Repairer {
        state,
        stop,
        member,
        tally,
        shard,
        pace: Pace::new(options.rate, Instant::now()),
        versions: Versions::default(),
        named: Keys::new(),
    };
    // Backends that were started together do not all scan at the same time.
    let part = rand::random_range(0.2..1.0);
    let mut due = Instant::now() + options.interval.mul_f64(part);
    let (mut place, mut failures) = (0, 0);
    let mut half_done = None;
    loop {
        if stop.wait(LOOK_PERIOD) {
            return;
        }
        if tally.is_wanted() {
            (place, due) = (0, Instant::now());
        }
        let is_due = Instant::now() >= due;
        let hasher = member.store.config().hasher;
        let limits = Limits::default();
        let named = tally.named.take();
        let mut scan = match is_due {
            true => Scan::from(hasher, limits, place),
            false if named.is_empty() && half_done.is_none() => continue,
            false => Scan::of_keys(hasher, limits, named.clone()),
        };
        if is_due {
            scan.name(named.clone());
        }
        repairer.named = named;
        scan = scan.finishing(half_done.take());
        let begin = Instant::now();
        let result = runtime.block_on(repairer.scan(&mut scan));
        half_done = scan.take_half_done();
        tally.ends(&scan, is_due.then(|| begin.elapsed()), &result);
        match result {
            Err(Setback::Stopping) => return,
            Ok(()) if is_due => {
                (place, failures) = (0, 0);
                due = begin + options.interval;
            }
            Ok(()) => {}
            Err(_) => {
                if is_due {
                    place = scan.place();
                }
                let pause = pause_after(failures);
                failures += 1;
                tally.named.put_back(std::mem::take(&mut repairer.named));
                // Keys that were named meanwhile are not asked about either.
                due = due.max(Instant::now() + pause.min(options.interval));
                if wait_until(stop, due.min(Instant::now() + pause)) {
                    return;
                }
            }
        }
    }
}

/// After so many scans in a row that were broken off before this one.
fn pause_after(failures: u32) -> Duration {
    (PAUSE_MIN * (1 << failures.min(16))).min(PAUSE_MAX)
}

/// Notes keys that a scan was told of meanwhile, the latest where there are too many.
fn note(noted: &mut Keys, named: &[KeyHash]) {
    for key in named {
        if !noted.contains(key) {
            noted.push(*key);
        }
    }
    noted.drain(..noted.len().saturating_sub(NAMED_COUNT_MAX));
}

/// Whether it was stopped meanwhile.
fn wait_until(stop: &Stop, until: Instant) -> bool {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if stop.wait(left) {
            return true;
        }
        if left.is_zero() {
            return false;
        }
    }
}

/// One member's.
struct Repairer<'r> {
    state: &'r Arc<State>,
    stop: &'r Stop,
    member: &'r Arc<Member>,
    tally: &'r Tally,
    /// The member's own number of the shard.
    shard: usize,
    pace: Pace,
    versions: Versions,
    /// What the scan under way was told to look at by name.
    named: Keys,
}

impl Repairer<'_> {
    /// Until it is through, or somebody does not answer.
    async fn scan(&mut self, scan: &mut Scan<Bytes>) -> Result<(), Setback> {
        let result = self.drive(scan).await;
        if result.is_err() {
            scan.failed();
        }
        result
    }

    async fn drive(&mut self, scan: &mut Scan<Bytes>) -> Result<(), Setback> {
        let [second, third] = self.others()?;
        loop {
            if self.state.is_stopping() {
                return Err(Setback::Stopping);
            }
            match scan.ended() {
                None => {}
                Some(Ended::Through) => return Ok(()),
                Some(Ended::Interrupted) => return Err(Setback::Recovering),
            }
            if scan.takes_names() {
                let named = self.tally.named.take();
                note(&mut self.named, &named);
                scan.name(named);
            }
            self.tally.is_at(scan);
            for (hash, done) in scan.take_done() {
                tracing::debug!(place = hash.place, ?done, "repair");
            }
            if let Some(until_ns) = scan.waits_until_ns() {
                self.wait(until_ns.saturating_sub(clock::now().unix_ns))?;
                scan.wake(clock::now());
            }
            if let Some(above) = scan.wants_version_above() {
                scan.nominated(self.versions.next(above));
            }
            let questions = [0, 1, 2].map(|replica| scan.ask(replica));
            let keys = keys_of(&questions[0], scan);
            self.pace.looks_at(keys, Instant::now());
            let [of_own, of_second, of_third] = questions;
            let own = async { of_own.map(|question| self.own(question)) };
            // All at about the same moment: a write in between differs.
            let (two, three, one) =
                tokio::join!(ask(&second, of_second), ask(&third, of_third), own);
            for (replica, reply) in [Ok(one), two, three].into_iter().enumerate() {
                background::leave_core();
                let reply = match reply {
                    Err(setback) if may_go_on(&setback) && scan.unanswered(clock::now()) => {
                        tracing::debug!(%setback, "a key is left for the next time");
                        break;
                    }
                    reply => reply?,
                };
                let Some(peer::Answered { reply, bytes }) = reply else {
                    continue;
                };
                if bytes > 0 {
                    self.pace.moved(bytes, Instant::now());
                    self.tally.called(bytes);
                }
                let taken = scan.answer(replica, reply, clock::now());
                taken.map_err(|nonsense| {
                    let peer = if replica == 2 { &third } else { &second };
                    peer.cannot(nonsense.to_string())
                })?;
            }
            self.wait(self.pace.owes(Instant::now()).as_nanos() as u64)?;
        }
    }

    /// Sleeps, but not beyond the server's end.
    fn wait(&self, ns: u64) -> Result<(), Setback> {
        let until = Instant::now() + Duration::from_nanos(ns);
        match ns > 0 && wait_until(self.stop, until) {
            true => Err(Setback::Stopping),
            false => Ok(()),
        }
    }

    /// The own store's answer.
    fn own(&self, question: Question<Bytes>) -> peer::Answered {
        let member = self.member;
        let reply = match question {
            Question::Mutate(order) => {
                let ack = order
                    .mutation()
                    .map(|mutation| member.mutate(member.topology(), &mutation));
                ack.map_or(Reply::Item(None), Reply::Ack)
            }
            Question::Item {
                hash,
                version,
                key_only,
            } => Reply::Item(peer::own_item(member, hash, version, key_only, self.shard)),
            question => {
                let now = clock::now();
                scan::answer(&member.store, now, self.shard, &question).map(Bytes::from)
            }
        };
        peer::Answered { reply, bytes: 0 }
    }

    /// The second and the third of the shard's cohort.
    fn others(&self) -> Result<[Peer; 2], Setback> {
        let config = self.state.config();
        let shard = self.member.number;
        let cohort = config.placement().cohort_of_shard(shard);
        let mut peers = Vec::new();
        for number in cohort.as_slice().iter().filter(|number| **number != shard) {
            peers.push(Peer::new(self.state, &config, *number, shard)?);
        }
        peers.try_into().map_err(|_| Setback::Unreachable {
            number: shard,
            why: "its cohort has no two others".into(),
        })
    }
}

/// Whether something else may be asked of who has not answered this.
fn may_go_on(setback: &Setback) -> bool {
    !matches!(setback, Setback::Stopping)
}

async fn ask(
    peer: &Peer,
    question: Option<Question<Bytes>>,
) -> Result<Option<peer::Answered>, Setback> {
    match question {
        Some(question) => peer.scan(question).await.map(Some),
        None => Ok(None),
    }
}

/// Keys that a replica has to look at for an answer, about.
fn keys_of(question: &Option<Question<Bytes>>, scan: &Scan<Bytes>) -> u64 {
    let (Question::Digests { starts, len, .. } | Question::Held { starts, len }) = (match question {
        Some(question) => question,
        None => return 0,
    }) else {
        return 0;
    };
    let places = starts.len() as u128 * u128::from(*len);
    (u128::from(scan.counts().items) * places / u128::from(PLACES.end)) as u64
}

/// Versions of a client that is this backend, for what is stored anew.
#[derive(Debug)]
struct Versions {
    client_id: u64,
    sequence: u32,
}

impl Default for Versions {
    fn default() -> Self {
        Versions {
            client_id: random_client_id(),
            sequence: 0,
        }
    }
}

fn random_client_id() -> u64 {
    rand::random::<u64>() >> (u64::BITS - CLIENT_ID_BITS)
}

impl Versions {
    /// One that nobody else has, just above `above`.
    fn next(&mut self, above: Version) -> Version {
        self.sequence += 1;
        if self.sequence >> (u64::BITS - CLIENT_ID_BITS) != 0 {
            (self.client_id, self.sequence) = (random_client_id(), 0);
        }
        scan::just_above(above, self.client_id, self.sequence)
    }
}

/// Keys that others have named, by their hashes.
pub(crate) type Keys = Vec<KeyHash>;

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn a_scan_that_was_broken_off_begins_again_soon() {
        let pauses = [0, 1, 2, 100].map(|failures| pause_after(failures).as_secs());
        assert_eq!(pauses, [1, 2, 2, 2]);
    }

    #[test]
    fn keys_named_during_a_scan_are_kept_with_those_before() {
        let keys = |places: std::ops::Range<u64>| -> Keys {
            places.map(|place| KeyHash { place, tag: 1 }).collect()
        };
        let mut noted = keys(0..3);
        note(&mut noted, &keys(2..5));
        assert_eq!(noted, keys(0..5));
        note(&mut noted, &keys(5..1_100));
        assert_eq!(noted, keys(1_100 - 1_024..1_100));
    }

    #[test]
    fn versions_are_just_above_and_never_the_same() {
        let mut versions = Versions::default();
        let above = Version::new(1_000_000_000, 5, 5);
        let mut seen = HashSet::new();
        for _ in 0..1000 {
            let next = versions.next(above);
            assert!(next > above && next.time_ns == above.time_ns + 1);
            assert!(seen.insert(next));
        }
        versions.sequence = (1 << 24) - 1;
        let last = versions.client_id;
        let renewed = versions.next(above);
        assert!(renewed > above && renewed.client_id() != last);
    }
}
