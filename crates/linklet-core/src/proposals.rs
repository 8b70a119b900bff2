//! Which strong commits are under way, and who has confirmed them.

use crate::effect::Ticket;
use crate::message::Operation;
use crate::mutants::{self, Mutant};
use crate::ranges::{RangeSet, keys_of};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use trefoil_sharder::{AssignmentVersion, KeyPoint, ServerId, Slice};

/// A commit that is to be confirmed.
#[derive(Debug)]
pub(crate) struct Begun {
    /// Who waits; nobody for the last commits of a dead owner, which are
    /// proposed again because copies may differ about them.
    pub(crate) ticket: Option<Ticket>,
    pub(crate) point: KeyPoint,
    pub(crate) key: Bytes,
    pub(crate) operation: Operation,
    pub(crate) token: AssignmentVersion,
    /// It counts only with enough copies.
    pub(crate) lasting: bool,
}

/// A commit that everybody has confirmed.
pub(crate) struct Settled {
    pub(crate) ticket: Option<Ticket>,
    pub(crate) point: KeyPoint,
    pub(crate) token: AssignmentVersion,
    pub(crate) lasting: bool,
    /// Servers that have it, this one counted.
    pub(crate) copies: usize,
}

/// One commit under way.
#[derive(Debug)]
struct Proposal {
    commit: Begun,
    /// Servers that have not confirmed.
    waits: BTreeSet<ServerId>,
    /// Of them, those that could not store it, and have kept what they had.
    refused: BTreeSet<ServerId>,
    /// Those that have, and are alive.
    confirmed: BTreeSet<ServerId>,
}

/// Commits of one key that were taken back.
#[derive(Debug, Default)]
struct TakenBack {
    numbers: Vec<u64>,
    /// Servers that could store none of them: their copies are what they were.
    unchanged: BTreeSet<ServerId>,
}

/// All commits under way. It touches no other part; the [followers](crate::followers) say who
/// has confirmed what, and [`settle`](crate::settle) what comes of it.
///
/// * Those of one key are settled in order, and none before everybody has confirmed that it
///   waits for.
/// * A key is not settled for as long as copies may differ about it: it is not served then.
#[derive(Debug, Default)]
pub(crate) struct Proposals {
    last: u64,
    pending: BTreeMap<u64, Proposal>,
    by_key: BTreeMap<(KeyPoint, Bytes), VecDeque<u64>>,
    /// Confirmed by everybody, as far as that was asked for.
    ready: BTreeSet<u64>,
    /// To be proposed again.
    fresh: Vec<(KeyPoint, Bytes)>,
    /// Until all copies are what they were before. Copies hear only then that these
    /// are settled: what they have of them is not to be read.
    taken_back: BTreeMap<(KeyPoint, Bytes), TakenBack>,
    /// Keys that are not served before all copies agree about them; how many
    /// at each point.
    unsettled: BTreeMap<KeyPoint, usize>,
    /// Points at which that has changed since the table was published.
    changed: Vec<KeyPoint>,
}

impl Proposals {
    pub(crate) fn unsettle(&mut self, keys: Vec<(KeyPoint, Bytes)>) {
        for (point, key) in keys {
            *self.unsettled.entry(point).or_default() += 1;
            self.changed.push(point);
            self.fresh.push((point, key));
        }
    }

    pub(crate) fn is_unsettled(&self, point: KeyPoint) -> bool {
        self.unsettled.contains_key(&point) && !mutants::is(Mutant::UnsettledServed)
    }

    pub(crate) fn unsettled_points(&self, within: Slice) -> impl Iterator<Item = KeyPoint> {
        let points = self.unsettled.range(within.start()..=within.last());
        points.map(|(&point, _)| point)
    }

    pub(crate) fn take_changed(&mut self) -> Vec<KeyPoint> {
        std::mem::take(&mut self.changed)
    }

    /// A range without the points of commits under way, and these.
    pub(crate) fn apart(&self, slice: Slice) -> (Vec<Slice>, Vec<Slice>) {
        let mut blocked: Vec<Slice> = Vec::new();
        let from = (slice.start(), Bytes::new());
        for (point, _) in self.by_key.range(from..).map(|(key, _)| key) {
            if *point > slice.last() {
                break;
            }
            if blocked.last().is_none_or(|last| last.start() != *point) {
                blocked.push(Slice::of_point(*point));
            }
        }
        if blocked.is_empty() {
            return (vec![slice], blocked);
        }
        let under_way = RangeSet::of(blocked.iter().copied());
        (under_way.gaps(slice), blocked)
    }

    /// The first point of a range with a commit under way.
    pub(crate) fn first_point_within(&self, slice: Slice) -> Option<KeyPoint> {
        let ((point, _), _) = self.by_key.range((slice.start(), Bytes::new())..).next()?;
        (*point <= slice.last()).then_some(*point)
    }

    /// The commits under way in a range: number, key and operation.
    pub(crate) fn within(&self, slice: Slice) -> Vec<(u64, KeyPoint, Bytes, Operation)> {
        let of = |number: &u64| {
            let proposal = self.pending.get(number)?;
            Some((
                *number,
                proposal.commit.point,
                proposal.commit.key.clone(),
                proposal.commit.operation.clone(),
            ))
        };
        let keys = self.by_key.range((slice.start(), Bytes::new())..);
        let mut found: Vec<_> = keys
            .take_while(|((point, _), _)| *point <= slice.last())
            .flat_map(|(_, numbers)| numbers.iter().filter_map(of))
            .collect();
        found.sort_unstable_by_key(|(number, ..)| *number);
        found
    }

    pub(crate) fn wait_for(&mut self, number: u64, server: ServerId) {
        if let Some(proposal) = self.pending.get_mut(&number) {
            proposal.waits.insert(server);
            proposal.refused.remove(&server);
            self.ready.remove(&number);
        }
    }

    /// It could not store this, and has kept what it had.
    pub(crate) fn refuse(&mut self, number: u64, server: ServerId) {
        if let Some(proposal) = self.pending.get_mut(&number)
            && proposal.waits.contains(&server)
        {
            proposal.refused.insert(server);
        }
    }

    /// The points in a range where a server could not store what is under way, and
    /// has answered all of it; whether anybody waits for that.
    pub(crate) fn refused_within(&self, slice: Slice, server: ServerId) -> Vec<(KeyPoint, bool)> {
        let mut found: BTreeMap<KeyPoint, (bool, bool, bool)> = BTreeMap::new();
        let keys = self.by_key.range((slice.start(), Bytes::new())..);
        for ((point, _), numbers) in keys.take_while(|((point, _), _)| *point <= slice.last()) {
            let (open, refused, asked) = found.entry(*point).or_default();
            for proposal in numbers.iter().filter_map(|number| self.pending.get(number)) {
                let refuses = proposal.refused.contains(&server);
                *open |= proposal.waits.contains(&server) && !refuses;
                *refused |= refuses;
                *asked |= proposal.commit.ticket.is_some();
            }
        }
        let stuck = found
            .into_iter()
            .filter(|(_, (open, refused, _))| *refused && !open);
        stuck.map(|(point, (.., asked))| (point, asked)).collect()
    }

    /// Ends the commits of a point; who waits for them. What is visible is to be
    /// proposed instead.
    pub(crate) fn take_back(&mut self, point: KeyPoint) -> Vec<Ticket> {
        let mut tickets = Vec::new();
        let mut keys = Vec::new();
        for (key, numbers) in self.by_key.range_mut((point, Bytes::new())..) {
            if key.0 != point {
                break;
            }
            let mut unchanged: Option<BTreeSet<ServerId>> = None;
            for number in &*numbers {
                self.ready.remove(number);
                let Some(proposal) = self.pending.remove(number) else {
                    continue;
                };
                tickets.extend(proposal.commit.ticket);
                unchanged = Some(match unchanged {
                    Some(before) => &before & &proposal.refused,
                    None => proposal.refused,
                });
            }
            let taken_back = TakenBack {
                numbers: std::mem::take(numbers).into(),
                unchanged: unchanged.unwrap_or_default(),
            };
            self.taken_back.insert(key.clone(), taken_back);
            keys.push(key.clone());
        }
        for key in &keys {
            self.by_key.remove(key);
        }
        self.unsettle(keys);
        tickets
    }

    /// `kept`: it is in a copy there. One that has dropped its copy has
    /// confirmed, too, but nobody can count on it.
    pub(crate) fn confirm(&mut self, number: u64, server: ServerId, kept: bool) {
        if let Some(proposal) = self.pending.get_mut(&number)
            && proposal.waits.remove(&server)
        {
            proposal.refused.remove(&server);
            if kept {
                proposal.confirmed.insert(server);
            }
            if proposal.waits.is_empty() {
                self.ready.insert(number);
            }
        }
    }

    /// A server has no copy of these, and is not to have one: commits do not wait
    /// for it.
    pub(crate) fn confirm_within(&mut self, server: ServerId, ranges: &[Slice]) {
        for &slice in ranges {
            for (number, ..) in self.within(slice) {
                self.confirm(number, server, false);
            }
        }
    }

    /// Whether a server has of a key what it had before its commits were taken back.
    pub(crate) fn is_unchanged(&self, point: KeyPoint, key: &Bytes, server: ServerId) -> bool {
        let taken_back = self.taken_back.get(&(point, key.clone()));
        let half = mutants::is(Mutant::TakenBackByHalf);
        taken_back.is_some_and(|taken_back| half || taken_back.unchanged.contains(&server))
    }

    /// It is told to drop its copies of these.
    pub(crate) fn dropped(&mut self, server: ServerId, ranges: &RangeSet) {
        let slices = ranges.iter().map(|(slice, ())| slice);
        let keys = slices.flat_map(|slice| self.by_key.range(keys_of(slice)));
        for number in keys.flat_map(|(_, numbers)| numbers) {
            if let Some(proposal) = self.pending.get_mut(number) {
                proposal.confirmed.remove(&server);
            }
        }
    }

    /// It is dead: nothing waits for it, and what it had confirmed it has no
    /// more.
    pub(crate) fn forget_server(&mut self, server: ServerId) {
        for (&number, proposal) in &mut self.pending {
            proposal.confirmed.remove(&server);
            proposal.refused.remove(&server);
            if proposal.waits.remove(&server) && proposal.waits.is_empty() {
                self.ready.insert(number);
            }
        }
    }

    /// Begins a commit that nobody waits for yet; its number.
    pub(crate) fn begin(&mut self, commit: Begun) -> u64 {
        self.last += 1;
        let number = self.last;
        let key = (commit.point, commit.key.clone());
        self.by_key.entry(key).or_default().push_back(number);
        self.ready.insert(number);
        let proposal = Proposal {
            commit,
            waits: BTreeSet::new(),
            refused: BTreeSet::new(),
            confirmed: BTreeSet::new(),
        };
        self.pending.insert(number, proposal);
        number
    }

    /// Who has not confirmed the commits of a key.
    pub(crate) fn awaited(&self, point: KeyPoint, key: &Bytes) -> BTreeSet<ServerId> {
        let numbers = self.by_key.get(&(point, key.clone()));
        let pending = numbers.into_iter().flatten();
        let waits = pending.filter_map(|number| Some(&self.pending.get(number)?.waits));
        waits.flatten().copied().collect()
    }

    /// Whether nothing is confirmed by everybody that was not settled.
    pub(crate) fn is_quiet(&self) -> bool {
        self.ready.is_empty()
    }

    /// The next commit that everybody has confirmed, and that is the first one of its key.
    /// Its number is added to `settled`, and those of commits that were taken back before it.
    pub(crate) fn next_settled(&mut self, settled: &mut Vec<u64>) -> Option<Settled> {
        let first = |number: &&u64| {
            let proposal = self.pending.get(number);
            let key = proposal.map(|p| (p.commit.point, p.commit.key.clone()));
            let queue = key.and_then(|key| self.by_key.get(&key));
            queue.and_then(VecDeque::front) == Some(*number)
        };
        let number = *self.ready.iter().find(first)?;
        self.ready.remove(&number);
        let Proposal {
            commit, confirmed, ..
        } = self.pending.remove(&number)?;
        let key = (commit.point, commit.key);
        if let Some(queue) = self.by_key.get_mut(&key) {
            queue.pop_front();
            if queue.is_empty() {
                self.by_key.remove(&key);
            }
        }
        settled.push(number);
        if let Some(taken_back) = self.taken_back.remove(&key) {
            settled.extend(taken_back.numbers);
        }
        Some(Settled {
            ticket: commit.ticket,
            point: commit.point,
            token: commit.token,
            lasting: commit.lasting,
            copies: 1 + confirmed.len(),
        })
    }

    /// All copies agree about a key of this point; whether about all that were not settled.
    pub(crate) fn settle_point(&mut self, point: KeyPoint) -> bool {
        let Some(count) = self.unsettled.get_mut(&point) else {
            return false;
        };
        *count -= 1;
        let all = *count == 0;
        if all {
            self.unsettled.remove(&point);
            self.changed.push(point);
        }
        all
    }

    /// What is to be proposed again.
    pub(crate) fn take_fresh(&mut self) -> Vec<(KeyPoint, Bytes)> {
        std::mem::take(&mut self.fresh)
    }

    /// Nothing is under way any more; who waits for what was.
    pub(crate) fn give_up(&mut self) -> impl Iterator<Item = Ticket> {
        let pending = std::mem::take(self).pending.into_values();
        pending.filter_map(|proposal| proposal.commit.ticket)
    }
}
