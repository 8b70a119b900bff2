//! The GET machine's inside: whose vote is still wanted, whose data is read,
//! when another round begins and when it ends.

use super::machine::Get;
use super::{GetFailure, GetOutcome, MissReason, ONE_SIDED_FAULTS_MAX, Strategy};
use crate::mode::REPLICAS_MAX;
use crate::mutants::{self, Mutant};
use crate::quorum::{Vote, VoteDecision, decide_votes, differ_by_epoch};
use crate::retry::{GiveUp, RetryCause};
use trefoil_layout::Version;

/// What is to be done at one replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Work {
    /// Not asked in this round.
    Spare,
    /// Look up by its strategy.
    Lookup,
    /// Look up by message, whatever its strategy.
    Message,
    /// Read the data that its vote points at.
    Data,
    /// Refresh, because of the configuration.
    RefreshConfig,
    /// Refresh, because of the data window.
    RefreshWindow,
    Reconnect,
    Await,
    /// A step is outstanding.
    Busy,
    /// It has voted, or gives no vote.
    Settled,
}

/// What is known of the data that a replica's vote points at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Data {
    Unread,
    Reading,
    /// The same for longer than answers take: another member is read, too.
    Late,
    Sound,
    Expired,
    Flushed,
}

/// What is kept of each replica besides its vote and pointer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Replica {
    pub(super) strategy: Strategy,
    pub(super) work: Work,
    pub(super) data: Data,
    /// Torn and unstable reads, and reads under another configuration, so far.
    pub(super) faults: u8,
    /// Why it gives no vote, if so.
    pub(super) lacking: Option<RetryCause>,
}

impl Replica {
    pub(super) const SPARE: Replica = Replica {
        strategy: Strategy::TwoReads,
        work: Work::Spare,
        data: Data::Unread,
        faults: 0,
        lacking: None,
    };

    /// Whether its data are asked for next, by a read or by another lookup.
    pub(super) fn is_data_next(&self) -> bool {
        match self.work {
            Work::Data => true,
            Work::Lookup => self.data == Data::Reading,
            _ => false,
        }
    }
}

/// Rounds with the same votes after which those who disagree about whether there
/// is a value at all are asked by message: with the back-off between them about
/// 100 microseconds, many times what a mutation takes from its first replica to
/// its last, a hundredth of what the retry budget allows.
const STILL_ROUND_COUNT: u8 = 10;

/// The same where a replica gives no vote and its lease was over before: one more look.
const STILL_ROUND_COUNT_SURVIVORS: u8 = 2;

/// Looks for another configuration after which another copy is asked, if it alone is
/// enough.
const CONFIG_LOOK_COUNT: u8 = 1;

/// Any odd number with well spread bits will do.
const DIGEST_FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// A replica whose vote names no slot.
pub(super) const NO_SLOT: u32 = u32::MAX;

impl<const N: usize> Get<N> {
    /// Acts on the votes as they stand now.
    #[inline]
    pub(super) fn advance(&mut self) {
        if self.outcome.is_some() {
            return;
        }
        match self.decide() {
            VoteDecision::Present { version, members } => self.agreed(version, members),
            VoteDecision::Open => {
                self.speculate();
                self.recruit();
            }
            VoteDecision::Absent => self.finish_miss(MissReason::Absent),
            VoteDecision::Inquorate => self.inquorate(),
        }
    }

    #[inline(always)]
    fn decide(&self) -> VoteDecision {
        decide_votes(&self.votes, Self::quorum())
    }

    /// A quorum has agreed on `version`: its data must come from a member.
    #[inline]
    fn agreed(&mut self, version: Version, members: u8) {
        let mut wanted = None;
        for rank in 0..N {
            let number = self.at(rank);
            if members & 1 << number == 0 {
                continue;
            }
            match self.replicas[number].data {
                Data::Sound => {
                    let replica = number;
                    self.outcome = Some(GetOutcome::Hit { version, replica });
                    return;
                }
                Data::Expired => return self.finish_miss(MissReason::Expired),
                Data::Flushed => return self.finish_miss(MissReason::Flushed),
                Data::Reading => return,
                Data::Late => {}
                Data::Unread => wanted = wanted.or(Some(number)),
            }
        }
        if let Some(number) = wanted {
            self.read_data(number);
        }
    }

    /// The first vote that names a value has its data read before the quorum
    /// stands: it will most likely agree.
    #[inline]
    fn speculate(&mut self) {
        let mut first = None;
        for rank in 0..N {
            let number = self.at(rank);
            if self.replicas[number].data != Data::Unread {
                return;
            }
            // Whoever was asked for a vote alone was because another brings the data.
            if matches!(self.votes[number], Vote::Present { .. })
                && self.replicas[number].strategy != Strategy::Vote
            {
                first = first.or(Some(number));
            }
        }
        if let Some(number) = first {
            self.read_data(number);
        }
    }

    #[inline(always)]
    pub(super) fn read_data(&mut self, number: usize) {
        let replica = &mut self.replicas[number];
        if replica.strategy == Strategy::Vote {
            return self.vote_with_data(number);
        }
        replica.data = Data::Reading;
        replica.work = Work::Data;
    }

    /// Of one that was asked for its vote alone the data are wanted: they come with another
    /// vote. Until then the one that it has given stands: another's data may come first.
    #[cold]
    fn vote_with_data(&mut self, number: usize) {
        let replica = &mut self.replicas[number];
        replica.strategy = Strategy::Scar;
        replica.data = Data::Reading;
        replica.work = Work::Lookup;
    }

    /// Brings in spare replicas as long as those asked cannot decide it.
    #[inline]
    fn recruit(&mut self) {
        let mut voted = 0;
        let mut pending = 0;
        for (replica, vote) in self.replicas.iter().zip(&self.votes) {
            match vote {
                Vote::Open => pending += usize::from(replica.work != Work::Spare),
                Vote::None => {}
                Vote::Present { .. } | Vote::Absent { .. } => voted += 1,
            }
        }
        // The usual case: one vote, whatever it says, and the next on its way.
        if voted > 1 || voted + pending < Self::quorum() {
            self.recruit_until_decidable();
        }
    }

    #[cold]
    fn recruit_until_decidable(&mut self) {
        loop {
            // A spare counts as one that gives no vote: can the others do it?
            let mut votes = self.votes;
            for (vote, replica) in votes.iter_mut().zip(&self.replicas) {
                if replica.work == Work::Spare {
                    *vote = Vote::None;
                }
            }
            let decision = decide_votes(&votes, Self::quorum());
            if decision != VoteDecision::Inquorate || !self.recruit_one() {
                return;
            }
        }
    }

    fn recruit_one(&mut self) -> bool {
        for rank in 0..N {
            let number = self.at(rank);
            if self.replicas[number].work == Work::Spare {
                self.replicas[number].work = Work::Lookup;
                return true;
            }
        }
        false
    }

    /// All votes are in and no quorum stands.
    #[cold]
    fn inquorate(&mut self) {
        let replicas = &self.replicas;
        if replicas
            .iter()
            .any(|replica| !matches!(replica.work, Work::Settled | Work::Spare))
        {
            // Whoever is still at it may yet change its vote.
            return;
        }
        let votes = &self.votes;
        let voters = votes.iter().filter(|vote| **vote != Vote::None).count();
        if voters >= Self::quorum() {
            if let Some(reason) = self.absence_with_the_dead() {
                self.finish_miss(reason);
            } else if self.may_be_absence_with_the_dead() {
                self.read_all_data();
            } else {
                self.no_two_agree();
            }
            return;
        }
        let moves = self.is_any_moving();
        if self.spend_as(self.cause_of_silence(), moves) {
            if moves {
                // What the others say without one that is there in a moment is no loss of
                // quorum.
                self.mark_moving();
            }
            self.win_back();
        }
    }

    /// Whether one of three gives no vote because it moves to another process, or follows a
    /// configuration: it has its memory, and votes again in a moment.
    fn is_any_moving(&self) -> bool {
        N > 2 && self.is_lacking(RetryCause::ConfigChanged)
    }

    fn is_lacking(&self, cause: RetryCause) -> bool {
        let mut replicas = self.replicas.iter();
        replicas.any(|replica| replica.lacking == Some(cause))
    }

    /// Why too few vote, whichever of them comes first. One that moves is waited for,
    /// whatever the others lack. One that recovers needs the others for that: beside one
    /// that is gone it is not.
    fn cause_of_silence(&self) -> RetryCause {
        use RetryCause::{ConfigChanged, Connection, Recovering};
        if self.is_lacking(ConfigChanged) {
            return ConfigChanged;
        }
        let lacking = || self.replicas.iter().filter_map(|replica| replica.lacking);
        let gone = lacking().find(|cause| *cause != Recovering);
        gone.or_else(|| lacking().next()).unwrap_or(Connection)
    }

    fn mark_moving(&mut self) {
        for (number, replica) in self.replicas.iter().enumerate() {
            if replica.lacking == Some(RetryCause::ConfigChanged) {
                self.awaited |= 1 << number;
            }
        }
    }

    /// An entry whose time is over, or that was flushed, is there to be removed,
    /// and one replica removes it before another: it says the same as no entry.
    /// None unless that makes a quorum. (A miss needs no rule.)
    fn absence_with_the_dead(&self) -> Option<MissReason> {
        let mut reason = None;
        let mut absent = 0;
        for (replica, vote) in self.replicas.iter().zip(&self.votes) {
            match (vote, replica.data) {
                (Vote::Absent { .. }, _) => absent += 1,
                (Vote::Present { .. }, Data::Expired) => {
                    absent += 1;
                    reason = Some(MissReason::Expired);
                }
                (Vote::Present { .. }, Data::Flushed) => {
                    absent += 1;
                    reason = reason.or(Some(MissReason::Flushed));
                }
                _ => {}
            }
        }
        reason.filter(|_| absent >= Self::quorum())
    }

    /// Whether it could become one with data that nobody has read yet. A writer
    /// that erases by an item whose time is over leaves three different votes
    /// behind while one replica has removed that item and another one has not
    /// heard of it: the vote that decides is then not the first one.
    fn may_be_absence_with_the_dead(&self) -> bool {
        let mut unread = 0;
        let mut absent = 0;
        for (replica, vote) in self.replicas.iter().zip(&self.votes) {
            match (vote, replica.data) {
                (Vote::Absent { .. }, _) | (_, Data::Expired | Data::Flushed) => absent += 1,
                (Vote::Present { .. }, Data::Unread) => unread += 1,
                _ => {}
            }
        }
        unread > 0 && absent + unread >= Self::quorum()
    }

    fn read_all_data(&mut self) {
        for number in 0..N {
            let is_present = matches!(self.votes[number], Vote::Present { .. });
            if is_present && self.replicas[number].data == Data::Unread {
                self.read_data(number);
            }
        }
    }

    /// Whether none of those who disagree holds what may be on its way.
    pub(super) fn is_at_rest(&self) -> bool {
        let is_old = |vote: &Vote| match vote {
            Vote::Present { version, .. } => {
                version.time_ns < self.at_rest_ns || *version == self.own
            }
            _ => true,
        };
        self.votes.iter().all(is_old) || mutants::is_on(Mutant::RestAssumed)
    }

    /// Another round, or the end.
    ///
    /// Where a replica gives no vote, waiting would bring no third one, unless all have
    /// paused: one more look, and for who writes on the strength of it, or has found
    /// the lease over just now, what the survivors answer: one of them may have a
    /// message in its ring that it has not got round to. What is young may be on its way,
    /// acknowledged by a replica that has died since, or has moved: it is looked for as long
    /// as the retries last.
    /// Where a replica without the value goes on disagreeing with one that has it,
    /// it is most likely no mutation on its way, which ends within microseconds,
    /// and to the caller it is a miss either way. Three different values may be three
    /// mutations on their way: who is careful tells by their age.
    /// Two that agree but for the epoch are being told another one, because the third
    /// recovers: that is over in a moment. So is it where the third moves to another process.
    fn no_two_agree(&mut self) {
        if differ_by_epoch(&self.votes) {
            if self.spend(RetryCause::Epoch) {
                self.new_round();
            }
            return;
        }
        self.note_votes();
        let is_absent = |vote: &Vote| matches!(vote, Vote::Absent { .. });
        let is_short = self.votes.contains(&Vote::None);
        let may_stay = self.is_careful || is_short || self.votes.iter().any(is_absent);
        let has_lapsed = |replica: &Replica| replica.lacking == Some(RetryCause::Lease);
        let is_wary = self.is_careful || self.replicas.iter().any(has_lapsed);
        let is_at_rest = self.is_at_rest();
        let asks_survivors = is_short && is_wary && is_at_rest;
        // Three that vote: who reads does not wait for them all to agree.
        let may_end = is_at_rest || !self.is_careful && !is_short;
        let is_still = if asks_survivors {
            self.still_count > STILL_ROUND_COUNT_SURVIVORS
        } else if is_short {
            self.still_count >= STILL_ROUND_COUNT_SURVIVORS
        } else {
            may_stay && self.still_count > STILL_ROUND_COUNT
        };
        // What is young may be with one that has moved: it is asked as soon as the survivors
        // were, by message, or there is nothing left to look at them again.
        let is_long = self.still_count > STILL_ROUND_COUNT || self.retry.is_spent();
        if is_short && !may_end && is_long && self.await_missing() {
            return;
        }
        if is_still && may_end && self.is_any_moving() {
            // The third vote is there in a moment. Who writes may not take what one of two
            // holds for what nobody has; who reads waits as long as the retries last.
            if self.spend_as(RetryCause::ConfigChanged, self.is_careful) {
                self.win_back();
            }
        } else if is_still && may_end {
            if !self.await_missing() {
                self.retry.count(RetryCause::Inquorate);
                self.finish_miss(MissReason::Inquorate);
            }
        } else if asks_survivors && self.still_count == STILL_ROUND_COUNT_SURVIVORS
            || may_stay && self.still_count == STILL_ROUND_COUNT
        {
            self.ask_voters();
        } else if self.spend(RetryCause::Inquorate) {
            self.new_round();
        }
    }

    /// Counts the rounds in a row that ended with the same votes.
    fn note_votes(&mut self) {
        let mut digest = 0u64;
        for vote in &self.votes {
            let word = match *vote {
                Vote::Open | Vote::None => 1,
                Vote::Absent { epoch } => 2 + u64::from(epoch),
                Vote::Present { version, epoch } => {
                    version.time_ns ^ version.origin.rotate_left(32) ^ u64::from(epoch)
                }
            };
            digest = (digest.rotate_left(5) ^ word).wrapping_mul(DIGEST_FACTOR);
        }
        if digest == self.still_digest {
            self.still_count = self.still_count.saturating_add(1);
        } else {
            self.still_digest = digest;
            self.still_count = 1;
        }
    }

    /// What keeps them apart may still be a mutation that one of them has not got
    /// round to: a busy machine may let a backend stand still for much longer
    /// than we have waited. It answers a message when it gets round to it.
    fn ask_voters(&mut self) {
        self.retry.count(RetryCause::Inquorate);
        for number in 0..N {
            if self.votes[number] != Vote::None {
                self.clear(number);
                self.replicas[number].work = Work::Message;
            }
        }
    }

    /// Has the driver wait, once, for those that give no vote; `false` if there are
    /// none. The votes of the others stand.
    fn await_missing(&mut self) -> bool {
        if std::mem::replace(&mut self.has_awaited, true) {
            return false;
        }
        let mut is_any = false;
        for number in 0..N {
            let (vote, replica) = (&mut self.votes[number], &mut self.replicas[number]);
            let is_unheard = matches!(
                replica.lacking,
                Some(RetryCause::Lease | RetryCause::Connection)
            );
            if *vote == Vote::None && is_unheard {
                *vote = Vote::Open;
                replica.work = Work::Await;
                self.awaited |= 1 << number;
                is_any = true;
            }
        }
        is_any
    }

    /// Everybody who can vote votes again.
    fn new_round(&mut self) {
        let mut wanted = self.fan_out;
        for rank in 0..N {
            let number = self.at(rank);
            if self.votes[number] == Vote::None {
                continue;
            }
            if self.votes[number] != Vote::Open {
                self.awaited &= !(1 << number);
            }
            self.clear(number);
            self.replicas[number].work = if wanted > 0 {
                Work::Lookup
            } else {
                Work::Spare
            };
            wanted = wanted.saturating_sub(1);
        }
    }

    /// Too few replicas can vote: those that could not are tried again. The
    /// votes of the others stand.
    fn win_back(&mut self) {
        for number in 0..N {
            if self.votes[number] == Vote::None {
                self.votes[number] = Vote::Open;
                let replica = &mut self.replicas[number];
                replica.work = match replica.lacking {
                    Some(RetryCause::Lease | RetryCause::Connection) => Work::Reconnect,
                    Some(RetryCause::ConfigChanged) if N > 2 => Work::RefreshConfig,
                    _ => Work::Lookup,
                };
            }
        }
    }

    /// Reads this replica's index again, or asks it by message if racing its
    /// writers has failed too often.
    #[cold]
    pub(super) fn again(&mut self, replica: usize, cause: RetryCause) {
        self.clear(replica);
        let state = &mut self.replicas[replica];
        state.faults = state.faults.saturating_add(1);
        state.work = if state.faults < ONE_SIDED_FAULTS_MAX {
            Work::Lookup
        } else {
            Work::Message
        };
        self.spend(cause);
    }

    #[cold]
    pub(super) fn refresh(&mut self, replica: usize, cause: RetryCause) {
        self.refresh_as(replica, cause, false);
    }

    /// The same of a replica that has refused a question: it moves to another process, which
    /// serves in a moment, or follows a configuration that this client knows already.
    #[cold]
    ///
    /// Where others may decide it without this one, it holds nobody up for long.
    pub(super) fn refresh_refused(&mut self, replica: usize) {
        let cause = RetryCause::ConfigChanged;
        if N > 2 && self.replicas[replica].faults >= ONE_SIDED_FAULTS_MAX {
            return self.lacking(replica, cause);
        }
        self.refresh_as(replica, cause, true);
    }

    fn refresh_as(&mut self, replica: usize, cause: RetryCause, is_passing: bool) {
        let state = &mut self.replicas[replica];
        // At the end of its range it goes on changing between even and odd.
        state.faults = match state.faults {
            u8::MAX => u8::MAX - 1,
            faults => faults + 1,
        };
        // Of two copies of an immutable corpus one changes to the next before the other:
        // whichever is served under the configuration that is known now will do. Every
        // other time, so that what is in force is looked for, too.
        let has_other = N > 1 && Self::quorum() == 1;
        let is_fruitless = state.faults > CONFIG_LOOK_COUNT && !state.faults.is_multiple_of(2);
        if has_other && is_fruitless && cause == RetryCause::ConfigChanged {
            return self.lacking(replica, cause);
        }
        self.clear(replica);
        let state = &mut self.replicas[replica];
        state.work = if cause == RetryCause::Window {
            Work::RefreshWindow
        } else {
            Work::RefreshConfig
        };
        self.spend_as(cause, is_passing);
    }

    /// This replica gives no vote for now: the others must decide.
    #[cold]
    pub(super) fn lacking(&mut self, replica: usize, cause: RetryCause) {
        self.clear(replica);
        self.votes[replica] = Vote::None;
        let state = &mut self.replicas[replica];
        state.work = Work::Settled;
        state.lacking = Some(cause);
        self.retry.count(cause);
        self.advance();
    }

    /// Forgets what a replica has said.
    pub(super) fn clear(&mut self, replica: usize) {
        self.votes[replica] = Vote::Open;
        self.slot_numbers[replica] = NO_SLOT;
        let state = &mut self.replicas[replica];
        state.data = Data::Unread;
        state.lacking = None;
    }

    /// Takes a retry off the budget; `false` if that ended the GET.
    fn spend(&mut self, cause: RetryCause) -> bool {
        self.spend_as(cause, false)
    }

    /// The same; `is_passing` if what caused it is over in a moment.
    fn spend_as(&mut self, cause: RetryCause, is_passing: bool) -> bool {
        // Copies of an immutable corpus change one after the other, each all its buckets.
        let is_of_corpus = cause == RetryCause::ConfigChanged && N > 1 && Self::quorum() == 1;
        match self.retry.spend_as(cause, is_passing || is_of_corpus) {
            Ok(()) => {
                self.pause_ns = self.retry.pause_ns();
                true
            }
            Err(give_up) => {
                self.give_up(give_up);
                false
            }
        }
    }

    /// The deadline, or time for one more replica.
    #[cold]
    pub(super) fn alarm(&mut self, now_ns: u64) {
        if now_ns >= self.retry.deadline_ns() {
            self.give_up(self.retry.deadline());
            return;
        }
        self.wake_ns = self.retry.deadline_ns();
        let members = match self.decide() {
            VoteDecision::Present { members, .. } => members,
            _ => 0,
        };
        if members != 0 {
            // Whose data are wanted is known. They are late when their read is.
            let is_next = |replica: &Replica| replica.is_data_next();
            let since_ns = match self.replicas.iter().any(is_next) {
                true => now_ns,
                false => self.data_since_ns,
            };
            let due_ns = since_ns.saturating_add(self.hedge_after_ns);
            if now_ns < due_ns {
                self.wake_ns = self.wake_ns.min(due_ns);
                return;
            }
        }
        if self.read_elsewhere(members) || self.recruit_one() {
            self.retry.count(RetryCause::Slow);
            self.wake_ns = self.wake_ns.min(now_ns.saturating_add(self.hedge_after_ns));
        }
    }

    /// The data of those who agree are late where they are read. Whether another one of them is
    /// read now; what comes first is taken.
    fn read_elsewhere(&mut self, members: u8) -> bool {
        let mut is_late = false;
        for (number, replica) in self.replicas.iter_mut().enumerate() {
            if members & 1 << number != 0 && replica.data == Data::Reading {
                replica.data = Data::Late;
                is_late = true;
            }
        }
        let is_unread = |rank: &usize| {
            let number = self.at(*rank);
            members & 1 << number != 0 && self.replicas[number].data == Data::Unread
        };
        match (0..N).find(is_unread) {
            Some(rank) if is_late => {
                self.read_data(self.at(rank));
                true
            }
            _ => false,
        }
    }

    /// A loss of quorum is a miss to the caller; where nobody could be heard, one copy is
    /// all there is, or a replica is waited for that may have what was stored last, it is a
    /// failure.
    #[cold]
    fn give_up(&mut self, give_up: GiveUp) {
        if self.outcome.is_some() {
            return;
        }
        // With a quorum, only its data was still missing.
        let agreed = matches!(self.decide(), VoteDecision::Present { .. });
        let is_heard = |vote: &&Vote| matches!(vote, Vote::Present { .. } | Vote::Absent { .. });
        let heard = self.votes.iter().filter(is_heard).count();
        // Who asks carefully must not take what is on its way for a miss, nor what one
        // replica says while the others are silent for a disagreement, nor what two say
        // while the third may yet decide.
        let enough = if self.is_careful { Self::quorum() } else { 1 };
        let may_end = !self.is_careful || self.is_at_rest() && !self.may_third_vote();
        let is_miss = heard >= enough && !agreed && may_end && !self.is_awaiting();
        self.outcome = Some(if Self::quorum() > 1 && is_miss {
            GetOutcome::Miss {
                reason: MissReason::Inquorate,
            }
        } else {
            GetOutcome::Failed {
                cause: GetFailure::GaveUp(give_up),
            }
        });
    }

    /// Whether a replica is being asked, or moves to another process.
    fn may_third_vote(&self) -> bool {
        self.votes.contains(&Vote::Open) || self.is_any_moving()
    }

    /// Whether a replica is waited for that has not voted.
    fn is_awaiting(&self) -> bool {
        let is_unheard = |vote: &Vote| matches!(vote, Vote::Open | Vote::None);
        let is_awaited = |number: usize| self.awaited & 1 << number != 0;
        (0..N).any(|number| is_awaited(number) && is_unheard(&self.votes[number]))
    }

    fn finish_miss(&mut self, reason: MissReason) {
        self.outcome = Some(GetOutcome::Miss { reason });
    }
}

const _: () = assert!(REPLICAS_MAX <= u8::BITS as usize, "members are a bit set");
