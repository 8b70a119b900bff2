//! The server's side of all lanes of a queue, without I/O: which request is the next
//! of the order, and its execution. The time is passed in.
//!
//! The lowest position of all lanes' heads is the next if no lower one can come any
//! more: it follows the one executed last, or every lane has been *cleared* since that
//! lowest one (the target) was seen. Whoever held a lower ticket had claimed before it took
//! it, and the target's ticket was taken, published and seen later; so its claim is found, and
//! one that is made after that holds a higher ticket. What a lane had begun when it was looked
//! at may be several requests, the last of them an open claim: it is cleared when its head is
//! above the target, or all of these are executed or decided. A lane that was cleared stays so
//! for the target and for all below it: a client that claims anew after each skip holds nobody
//! up (invariants 1 to 3 of the crate).
//!
//! Heads below a position that was executed (*late* ones) are there only if somebody forges
//! positions. Their lanes take turns, and each turn of theirs follows one of the others: no
//! lane's forged positions keep another one from being executed.

use crate::consumer::{Consumer, Depth, Look, Next};
use crate::lane::{self, Terms, Turn};
use crate::mutants::{self, Mutant};
use crate::order::POSITION_FIRST;
use crate::service::{Answer, Request, Service};
use crate::slot;
use crate::words::Atomics;

/// How long the server waits for a claim while others wait behind it, in nanoseconds.
pub const PATIENCE_NS: u64 = 1_000_000;
/// Steps that look at marks alone between two that look at turns, too: a look at a turn
/// takes its cache line from the client. A request without a mark is that of a client that
/// died just after it had committed, or has no turn of the processor. It is looked for while
/// nothing else is there, when others wait for its position, and, as that may have been
/// passed over (somebody has forged a higher one), now and then after any gap.
const MARK_LOOKS: u32 = 64;
/// Requests of one lane in a row before all lanes are looked at.
const IN_ROW_MAX: u32 = 256;

/// Names a lane for as long as it is in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneId(usize);

/// What a step came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// One request was executed.
    Executed,
    /// Nothing is published.
    Idle,
    /// Something is published, and somebody may hold a lower position; decided at this
    /// time, on the caller's clock, at the latest.
    Waiting {
        /// Nanoseconds.
        until_ns: u64,
    },
}

/// What has happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests executed.
    pub executed: u64,
    /// Claims that were not published in time.
    pub skipped: u64,
    /// Lanes in which nonsense was found.
    pub broken: u64,
    /// Requests whose position was not above that of the one executed before: somebody
    /// writes nonsense into the order word.
    pub out_of_order: u64,
}

/// A request that was taken out of the order, to be acknowledged and executed by who has
/// taken it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Whose it is.
    pub lane: LaneId,
    /// Its place in its lane.
    pub sequence: u64,
    /// Its place in the order of this life of the queue.
    pub position: u64,
    /// Who sent it.
    pub client_id: u64,
    /// The client's name for it.
    pub request_id: u64,
    /// Whether its answer does not depend on its execution.
    pub nilext: bool,
}

/// All lanes of a queue.
#[derive(Debug)]
pub struct Merge<W> {
    lanes: Vec<Option<Consumer<W>>>,
    /// One above the position that was executed last.
    expected: u64,
    /// Positions were passed over: what comes of them later is late, and nobody waits for it.
    has_gap: bool,
    /// The position for which lanes are being cleared.
    target: Option<u64>,
    /// Where the last request came from.
    last: usize,
    /// Requests in a row that came from there.
    in_row: u32,
    /// Which lane has had the last turn of those with late heads.
    late: usize,
    /// The last turn was a late head's.
    was_late: bool,
    patience_ns: u64,
    mark_looks: u32,
    answer: Answer,
    counts: Counts,
}

impl<W: Atomics> Merge<W> {
    /// A queue without lanes.
    pub fn new(patience_ns: u64) -> Self {
        Merge {
            lanes: Vec::new(),
            expected: POSITION_FIRST,
            has_gap: false,
            target: None,
            last: 0,
            in_row: 0,
            late: 0,
            was_late: false,
            patience_ns,
            mark_looks: 0,
            answer: Answer::default(),
            counts: Counts::default(),
        }
    }

    /// What has happened so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Takes in a fresh lane.
    pub fn admit(&mut self, words: W, terms: Terms) -> LaneId {
        let mut lane = Consumer::new(words, terms);
        // Whatever it claims has a higher ticket than what others wait for now.
        if self.target.is_some() {
            lane.clear();
        }
        let free = self.lanes.iter().position(Option::is_none);
        let at = free.unwrap_or_else(|| {
            self.lanes.push(None);
            self.lanes.len() - 1
        });
        self.lanes[at] = Some(lane);
        LaneId(at)
    }

    fn lane(&self, id: LaneId) -> Option<&Consumer<W>> {
        self.lanes.get(id.0)?.as_ref()
    }

    /// The words of a lane.
    pub fn words(&self, id: LaneId) -> Option<&W> {
        self.lane(id).map(|lane| &lane.words)
    }

    /// Takes nothing more from this lane than what is published by now.
    pub fn close(&mut self, id: LaneId) {
        if let Some(lane) = self.lanes.get_mut(id.0).and_then(Option::as_mut) {
            lane.close();
        }
    }

    /// Takes nothing more than what is published by now.
    pub fn close_all(&mut self) {
        self.lanes.iter_mut().flatten().for_each(Consumer::close);
    }

    /// Whether nothing of this lane is left to execute, after [`Merge::close`].
    pub fn is_drained(&self, id: LaneId) -> bool {
        self.lane(id).is_none_or(|lane| {
            let is_empty = lane.end.is_some_and(|end| lane.cursor >= end);
            lane.next.is_none() && lane.taken == 0 && (lane.is_broken || is_empty)
        })
    }

    /// The client's name for the last request that was found in this lane.
    pub(crate) fn last_request_id(&self, id: LaneId) -> Option<u64> {
        self.lane(id).map(|lane| lane.last_request_id)
    }

    /// Before the first one: what that name was in a former lane of the same client.
    pub(crate) fn set_last_request_id(&mut self, id: LaneId, request_id: u64) {
        if let Some(lane) = self.lanes.get_mut(id.0).and_then(Option::as_mut) {
            lane.last_request_id = request_id;
        }
    }

    /// Requests of this lane that were taken and are not completed.
    pub(crate) fn taken(&self, id: LaneId) -> u64 {
        self.lane(id).map_or(0, |lane| lane.taken)
    }

    /// Forgets a lane.
    pub fn remove(&mut self, id: LaneId) {
        if let Some(lane) = self.lanes.get_mut(id.0) {
            *lane = None;
        }
    }

    /// Whether nonsense was found in this lane: nothing of it is executed any more.
    pub fn is_broken(&self, id: LaneId) -> bool {
        self.lane(id).is_none_or(|lane| lane.is_broken)
    }

    /// Whether this lane's client may wait for what has happened since the last call.
    #[inline]
    pub fn take_news(&mut self, id: LaneId) -> bool {
        let lane = self.lanes.get_mut(id.0).and_then(Option::as_mut);
        lane.is_some_and(|lane| std::mem::take(&mut lane.is_news))
    }

    /// Whether something is published. For who is about to sleep.
    pub fn has_work(&mut self) -> bool {
        self.look(Depth::Turns);
        self.lowest(0).is_some()
    }

    /// Executes the next request of the order, if it is known.
    pub fn step(&mut self, clock: impl Fn() -> u64, service: &mut impl Service) -> Step {
        match self.find_next(clock) {
            Ok(at) => self.execute(at, service),
            Err(step) => step,
        }
    }

    /// Takes the next request of the order, if it is known, and gives it to `into` with
    /// its bytes. Its slot is held until [`Merge::complete`].
    pub fn take(&mut self, clock: impl Fn() -> u64, into: impl FnOnce(Taken, &[u8])) -> Step {
        let at = match self.find_next(clock) {
            Ok(at) => at,
            Err(step) => return step,
        };
        let Next { position, head } = self.pass(at);
        let lane = self.lanes[at].as_mut().expect("a lane with a head");
        let taken = Taken {
            lane: LaneId(at),
            sequence: lane.cursor,
            position,
            client_id: head.client_id,
            request_id: head.request_id,
            nilext: head.nilext,
        };
        into(taken, slot::payload(&lane.image, head.len));
        lane.skips_in_row = lane.skips_in_row.saturating_sub(1);
        lane.take();
        Step::Executed
    }

    /// Tells the client that what was taken from its lane, up to this sequence, is
    /// committed.
    #[inline]
    pub fn acknowledge(&mut self, id: LaneId, sequence: u64) {
        if let Some(lane) = self.lanes.get_mut(id.0).and_then(Option::as_mut) {
            lane::set_acknowledged(&lane.words, sequence);
            lane.is_news = true;
        }
    }

    /// A request that was taken is executed: hands over its answer, if it has one, and
    /// frees its slot. Those of one lane are completed in the order in which they were taken.
    pub fn complete(&mut self, taken: Taken, answer: &Answer) {
        let Some(lane) = self.lanes.get_mut(taken.lane.0).and_then(Option::as_mut) else {
            return;
        };
        if !taken.nilext {
            let (words, len) = (answer.words(), answer.len());
            slot::write_answer(&lane.words, lane.terms, taken.sequence, words, len);
        }
        lane.complete(taken.sequence);
        self.counts.executed += 1;
    }

    /// The lane whose head is next.
    #[inline]
    fn find_next(&mut self, clock: impl Fn() -> u64) -> Result<usize, Step> {
        // Requests of one client often stand in a row.
        if self.in_row < IN_ROW_MAX {
            self.look_at(self.last, Depth::Marks);
            if let Some(next) = self.next_of(self.last)
                && next.position == self.expected
            {
                self.in_row += 1;
                return Ok(self.last);
            }
        }
        self.in_row = 0;
        self.look(Depth::Marks);
        let is_idle = self.lowest(0).is_none();
        if is_idle || self.has_gap {
            self.mark_looks += 1;
            if self.mark_looks >= MARK_LOOKS {
                self.mark_looks = 0;
                self.look(Depth::Turns);
            } else if is_idle {
                return Err(Step::Idle);
            }
        }
        let late = self.next_late();
        if let Some(at) = late
            && !self.was_late
        {
            return Ok(self.pass_late(at));
        }
        self.was_late = false;
        let Some((position, at)) = self.lowest(self.expected) else {
            return match late {
                Some(at) => Ok(self.pass_late(at)),
                None => Err(Step::Idle),
            };
        };
        if position <= self.expected || mutants::is(Mutant::GapIgnored) {
            return Ok(at);
        }
        let is_new = self.target.is_none_or(|target| position > target);
        if is_new || mutants::is(Mutant::ClearedAnew) {
            self.target = Some(position);
            if !mutants::is(Mutant::ClearedForGood) {
                for lane in self.lanes.iter_mut().flatten() {
                    lane.begun = None;
                }
            }
        }
        if let Some(until_ns) = self.clear(&clock) {
            return match late {
                Some(at) => Ok(self.pass_late(at)),
                None => Err(Step::Waiting { until_ns }),
            };
        }
        match self.lowest(self.expected) {
            Some((_, at)) => Ok(at),
            None => Err(Step::Idle),
        }
    }

    /// The lowest position of all heads that is not below `from`, and its lane.
    #[inline]
    fn lowest(&self, from: u64) -> Option<(u64, usize)> {
        let heads = self.lanes.iter().enumerate();
        heads
            .filter_map(|(at, lane)| Some((lane.as_ref()?.next?.position, at)))
            .filter(|(position, _)| *position >= from)
            .min()
    }

    /// The next lane in turn whose head is late.
    #[inline]
    fn next_late(&self) -> Option<usize> {
        let is_late = |at: &usize| {
            let next = self.next_of(*at);
            next.is_some_and(|next| next.position < self.expected)
        };
        let (after, before) = (self.late + 1..self.lanes.len(), 0..=self.late);
        after.chain(before).find(is_late)
    }

    /// A late head has its turn.
    #[cold]
    fn pass_late(&mut self, at: usize) -> usize {
        self.was_late = true;
        self.late = at;
        at
    }

    #[inline(always)]
    fn next_of(&self, at: usize) -> Option<Next> {
        self.lanes.get(at)?.as_ref()?.next
    }

    /// Looks for the heads of lanes.
    #[inline]
    fn look(&mut self, depth: Depth) {
        for at in 0..self.lanes.len() {
            self.look_at(at, depth);
        }
    }

    #[inline]
    fn look_at(&mut self, at: usize, depth: Depth) -> Look {
        let Some(lane) = self.lanes.get_mut(at).and_then(Option::as_mut) else {
            return Look::Nothing;
        };
        if lane.next.is_some() || lane.is_broken {
            return Look::Nothing;
        }
        let found = lane.look(depth);
        if found == Look::Broken {
            self.break_lane(at);
        }
        found
    }

    #[cold]
    fn break_lane(&mut self, at: usize) {
        let is_all = mutants::is(Mutant::AllBroken);
        for (index, lane) in self.lanes.iter_mut().enumerate() {
            if let Some(lane) = lane
                && (index == at || is_all)
            {
                lane.is_broken = true;
                let closed = Turn::Closed(lane.cursor).encode();
                lane.words.store_release(lane::WORD_TURN, closed);
            }
        }
        self.counts.broken += 1;
    }

    /// Clears lanes for the target: those that have nothing lower, and those whose claim
    /// others have waited for long enough. Until when to wait, if one is left. Lanes with a
    /// lower head are left too, and not waited for: it is executed before the target.
    fn clear(&mut self, clock: &impl Fn() -> u64) -> Option<u64> {
        let mut now_ns = None;
        let mut wait_ns: Option<u64> = None;
        for at in 0..self.lanes.len() {
            if self.has_cleared(at, &mut now_ns, clock) {
                continue;
            }
            if self.look_at(at, Depth::Turns) == Look::Claimed {
                let now_ns = *now_ns.get_or_insert_with(clock);
                if let Some(until_ns) = self.press(at, now_ns) {
                    wait_ns = Some(wait_ns.map_or(until_ns, |other| other.min(until_ns)));
                    continue;
                }
            }
            if let Some(lane) = self.lanes[at].as_mut()
                && lane.next.is_none()
            {
                // Its claim was skipped or withdrawn.
                lane.clear();
            }
        }
        wait_ns
    }

    /// Whether nothing is to be found out about this lane: it is cleared, or has a head that is
    /// executed first.
    fn has_cleared(
        &mut self,
        at: usize,
        now_ns: &mut Option<u64>,
        clock: &impl Fn() -> u64,
    ) -> bool {
        let Some(lane) = self.lanes[at].as_mut() else {
            return true;
        };
        let target = self.target.unwrap_or(0);
        if let Some(next) = lane.next
            && (next.position >= target || mutants::is(Mutant::HeadClears))
        {
            lane.clear();
        }
        if lane.begun.is_none()
            && let Some(claimed) = lane.see_begun()
            && lane.claimed.is_none_or(|(sequence, _)| sequence != claimed)
        {
            // Others wait for it, though others still are to be executed before.
            lane.claimed = Some((claimed, *now_ns.get_or_insert_with(clock)));
        }
        lane.is_cleared() || lane.next.is_some()
    }

    /// Decides a claim that others have waited for long enough; until when to wait, if
    /// it is not decided.
    fn press(&mut self, at: usize, now_ns: u64) -> Option<u64> {
        let lane = self.lanes[at].as_mut()?;
        let cursor = lane.cursor;
        if lane.begun.is_some_and(|begun| begun > cursor + 1) {
            // What comes before a claim is decided: it has been made since.
            return None;
        }
        let since = match lane.claimed {
            Some((sequence, since)) if sequence == cursor => since,
            _ => {
                lane.claimed = Some((cursor, now_ns));
                now_ns
            }
        };
        let until_ns = since.saturating_add(lane.patience_ns(self.patience_ns));
        if now_ns < until_ns || mutants::is(Mutant::Patient) {
            return Some(until_ns);
        }
        if lane.skip() {
            self.counts.skipped += 1;
            if mutants::is(Mutant::SkipForgotten) {
                lane.cursor = cursor;
            }
            return None;
        }
        // The client was faster: it has published, or withdrawn its claim.
        match self.look_at(at, Depth::Turns) {
            Look::Claimed => Some(now_ns),
            Look::Published | Look::Nothing | Look::Broken => None,
        }
    }

    /// The order goes on behind this lane's head.
    #[inline(always)]
    fn pass(&mut self, at: usize) -> Next {
        let lane = self.lanes[at].as_mut().expect("a lane with a head");
        let next = lane.next.take().expect("a lane with a head");
        let position = next.position;
        self.has_gap |= position > self.expected;
        if position < self.expected {
            self.counts.out_of_order += 1;
        }
        if self.target.is_some_and(|target| position >= target) {
            self.target = None;
        }
        self.expected = self.expected.max(position.saturating_add(1));
        self.last = at;
        next
    }

    #[inline]
    fn execute(&mut self, at: usize, service: &mut impl Service) -> Step {
        let Next { position, head } = self.pass(at);
        let lane = self.lanes[at].as_mut().expect("a lane with a head");
        self.answer.clear();
        let request = Request {
            position,
            client_id: head.client_id,
            request_id: head.request_id,
            nilext: head.nilext,
            payload: slot::payload(&lane.image, head.len),
        };
        service.execute(request, &mut self.answer);
        if !head.nilext {
            let (words, len) = (self.answer.words(), self.answer.len());
            slot::write_answer(&lane.words, lane.terms, lane.cursor, words, len);
        }
        lane.skips_in_row = lane.skips_in_row.saturating_sub(1);
        lane.free();
        self.counts.executed += 1;
        Step::Executed
    }
}
