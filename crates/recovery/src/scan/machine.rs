//! A scan: what to ask which replica next, and what to do with the answers.

use super::job::{self, Job, Wants};
use super::question::{Question, Reply};
use super::verdict::{Verdict, decide};
use crate::credible;
use crate::machine::Nonsense;
use crate::mutants::{self, Mutant};
use std::collections::{BTreeMap, VecDeque};
use trefoil_layout::limits::DATA_REGION_LEN_MAX;
use trefoil_layout::{KeyHash, KeyHasher, Version, epoch};
use trefoil_store::{KeyState, Now, PLACES};

/// Items of a range whose digest is compared first, about. A clean scan costs eight
/// bytes for as many, and what one key that differs costs grows with their logarithm.
const RANGE_ITEMS: u64 = 1024;
/// Such ranges in one question: what an answer takes is to be a millisecond.
const RANGES_AT_ONCE: u64 = 4;
/// Parts of a range that differs.
const PARTS: u32 = 16;
/// Times that a range is divided before its keys are named: some four of them.
const DIVISIONS: u32 = 2;
/// Ranges that are looked into with one question.
const STARTS_MAX: usize = 64;
/// Suspects at a time: then they are looked at before the walk goes on.
const SUSPECTS_MAX: usize = 2048;
/// Keys whose states are asked for with one question.
const STATES_MAX: usize = 256;

/// A replica has so many times the items of the others at most. One that has more, because
/// they have lost theirs, is looked at in parts that are too large for an answer.
const TIMES_MAX: u64 = 16;
/// No data region holds more: an item takes more than a few words.
const ITEM_COUNT_MAX: u64 = DATA_REGION_LEN_MAX / 64;

/// Jobs in a row without an answer, of two replicas that answer otherwise: such a value may
/// be too long for one of them.
const UNANSWERED_MAX: u32 = 4;

/// What may be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Between a key's two looks: longer than a mutation takes from its first replica to
    /// its last.
    pub pause_ns: u64,
    /// What was written longer ago is no mutation on its way.
    pub rest_ns: u64,
}

impl Default for Limits {
    /// A second; and as CAS has it, half of one.
    fn default() -> Self {
        Limits {
            pause_ns: 1_000_000_000,
            rest_ns: 500_000_000,
        }
    }
}

/// How a scan has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Every place was looked at.
    Through,
    /// A replica did not answer, or does not vote.
    Interrupted,
}

/// What was done about one key, for whoever keeps a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// A value has gone to the replica that lacked it, or an erasure to the one that
    /// lacked that, at its own version.
    Repaired,
    /// A CAS over the first version was stored at the second.
    Renewed(Version, Version),
    /// A CAS at this version has failed.
    NotRenewed(Version),
    /// What no two replicas held was evicted.
    Evicted,
    /// Something else came meanwhile, or there is no room.
    Nothing,
}

/// What came of the keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Items of the shard at the replica that has most, as far as that is believed.
    pub items: u64,
    /// Keys that differed at the first look.
    pub suspects: u64,
    /// Of these, those that were something else, or alike, at the second: in use.
    pub changed: u64,
    /// Keys of which two replicas agreed on a value, and the third differed, at both looks.
    pub dirty: u64,
    /// Keys of which no two agreed on a value, and some replica held one.
    pub inquorate: u64,
    /// Values that went to the third replica at their own version.
    pub installed: u64,
    /// Erasures that did.
    pub erased: u64,
    /// Values stored anew by CAS, because the third replica's bound was higher.
    pub renewed: u64,
    /// Keys evicted, because no two replicas held the same.
    pub evicted: u64,
    /// Dirty keys left alone, because the third replica is full and has none of them.
    pub full: u64,
    /// Keys left for the next time: too young, or something came in between.
    pub left: u64,
}

impl Counts {
    /// Both together.
    pub const fn plus(self, other: Counts) -> Counts {
        Counts {
            items: self.items + other.items,
            suspects: self.suspects + other.suspects,
            changed: self.changed + other.changed,
            dirty: self.dirty + other.dirty,
            inquorate: self.inquorate + other.inquorate,
            installed: self.installed + other.installed,
            erased: self.erased + other.erased,
            renewed: self.renewed + other.renewed,
            evicted: self.evicted + other.evicted,
            full: self.full + other.full,
            left: self.left + other.left,
        }
    }
}

/// A key that differed.
#[derive(Debug)]
struct Suspect {
    hash: KeyHash,
    seen: [Option<Version>; 3],
    since_ns: u64,
}

/// Ranges of places that are to be looked into.
#[derive(Debug)]
struct Ranges {
    starts: Vec<u64>,
    len: u64,
    /// Times that they may still be divided.
    divisions: u32,
}

#[derive(Debug)]
enum Step<D> {
    Begin,
    Digests(Ranges, u32),
    Held,
    FirstLook(Vec<KeyHash>),
    Pause(u64),
    SecondLook(Vec<Suspect>),
    Nominate(Job<D>, Version),
    Job(Job<D>),
    /// A replica has put it off until then.
    PutOff(Job<D>, u64),
    Ended(Ended),
}

/// The version at which what is known above `above` is stored anew: just above that, and not
/// of this moment. A flush that the pair has not heard of yet is of this moment or later, so it
/// covers what is stored anew, whoever hears of it when; and no clock is ahead of anybody's.
/// `client_id` and `sequence` make it nobody else's.
pub fn just_above(above: Version, client_id: u64, sequence: u32) -> Version {
    Version::new(above.time_ns.saturating_add(1), client_id, sequence)
}

/// Items of the shard at the replica that has most. By them the walk is paced: a number that
/// is none would have it wait for months. Who scans believes itself, and what two say; of the
/// third it believes so many times as much.
fn believed(items: [u64; 3]) -> u64 {
    let [own, one, other] = items;
    let sound = own.max(one.min(other));
    let highest = own.max(one).max(other);
    let most = sound.max(RANGE_ITEMS).saturating_mul(TIMES_MAX);
    highest.min(most).min(ITEM_COUNT_MAX)
}

/// Whether no clock explains a version in this state.
fn is_incredible(state: &KeyState, now: Now) -> bool {
    let versions = state.held.into_iter().chain([state.bound, state.flushed]);
    versions
        .into_iter()
        .any(|version| credible::is_too_far_ahead(version, now))
}

/// See [`Scan::take_half_done`].
#[derive(Debug)]
pub struct HalfDone<D>(Job<D>);

/// One scan of a shard. `D` holds the bytes of values.
#[derive(Debug)]
pub struct Scan<D> {
    hasher: KeyHasher,
    limits: Limits,
    /// Everything before was looked at, or is being looked at.
    next_place: u64,
    /// Everything before was looked at, and every suspect was seen to.
    place: u64,
    /// Where it ends: a scan of single keys looks at no places.
    end: u64,
    /// Places of a range that is compared first.
    len: u64,
    step: Step<D>,
    /// Questions of this step.
    questions: [Option<Question<D>>; 3],
    /// Of these, put and not answered.
    is_asked: [bool; 3],
    replies: [Option<Reply<D>>; 3],
    work: Vec<Ranges>,
    named: VecDeque<KeyHash>,
    suspects: VecDeque<Suspect>,
    /// The suspects come first, until none is left.
    settles: bool,
    jobs: Vec<Job<D>>,
    /// Jobs in a row that a replica gave no answer to.
    unanswered: u32,
    /// See [`Scan::take_half_done`].
    half_done: Option<Job<D>>,
    done: Vec<(KeyHash, Done)>,
    counts: Counts,
}

impl<D: AsRef<[u8]> + Clone> Scan<D> {
    /// Of all places from `place` on.
    pub fn from(hasher: KeyHasher, limits: Limits, place: u64) -> Self {
        Self::new(hasher, limits, place, PLACES.end)
    }

    /// Of keys that readers have named, and no others.
    pub fn of_keys(hasher: KeyHasher, limits: Limits, keys: Vec<KeyHash>) -> Self {
        let mut scan = Self::new(hasher, limits, 0, 0);
        scan.named = keys.into();
        scan
    }

    fn new(hasher: KeyHasher, limits: Limits, place: u64, end: u64) -> Self {
        Scan {
            hasher,
            limits,
            next_place: place,
            place,
            end,
            len: PLACES.end,
            step: Step::Begin,
            questions: [const { Some(Question::Begin) }; 3],
            is_asked: [false; 3],
            replies: [None, None, None],
            work: Vec::new(),
            named: VecDeque::new(),
            suspects: VecDeque::new(),
            settles: false,
            jobs: Vec::new(),
            unanswered: 0,
            half_done: None,
            done: Vec::new(),
            counts: Counts::default(),
        }
    }

    /// Whether keys that were named meanwhile may join it: while places are left to look at,
    /// and those that were named before have had their first look. Otherwise it would go on
    /// for as long as keys are named, and no other would begin.
    pub fn takes_names(&self) -> bool {
        self.named.is_empty() && self.next_place < self.end
    }

    /// Somebody has seen that replicas differ on these keys, too.
    pub fn name(&mut self, keys: Vec<KeyHash>) {
        if !matches!(self.step, Step::Ended(_)) {
            self.named.extend(keys);
        }
    }

    /// What to ask this replica of the cohort now; nothing while an answer of it is
    /// waited for. An answer, or [`Scan::failed`], has to follow.
    pub fn ask(&mut self, replica: usize) -> Option<Question<D>> {
        let question = self.questions[replica].take()?;
        self.is_asked[replica] = true;
        Some(question)
    }

    /// A replica could not be asked, or did not answer, or the scan is not to go on.
    pub fn failed(&mut self) {
        if !matches!(self.step, Step::Ended(_)) {
            self.end_with(Ended::Interrupted);
        }
    }

    /// A replica gave no answer to what it was asked last, and may be there all the same: if
    /// that was about a single key that is repaired, the key is left for the next time, and
    /// the scan goes on. `false`: it does not; [`Scan::failed`] has to follow.
    pub fn unanswered(&mut self, now: Now) -> bool {
        let Step::Job(job) = &mut self.step else {
            return false;
        };
        if self.unanswered >= UNANSWERED_MAX {
            job.ends_a_scan();
            return false;
        }
        self.unanswered += 1;
        (self.questions, self.is_asked) = ([None, None, None], [false; 3]);
        let step = std::mem::replace(&mut self.step, Step::Pause(0));
        if let Step::Job(mut job) = step {
            if job.asks_again() {
                self.step = Step::PutOff(job, now.unix_ns + job::PUT_OFF_PAUSE_NS);
                return true;
            }
            self.note(job.hash, job::Done::Nothing);
        }
        self.go_on(now);
        true
    }

    /// What an interrupted scan has begun and not ended, for [`Scan::finishing`]: a value that
    /// one of two replicas has stored anew.
    pub fn take_half_done(&mut self) -> Option<HalfDone<D>> {
        self.half_done.take().map(HalfDone)
    }

    /// Ends first what another scan of the shard has left half done.
    #[must_use]
    pub fn finishing(mut self, half_done: Option<HalfDone<D>>) -> Self {
        self.jobs.extend(half_done.map(|half_done| half_done.0));
        self
    }

    /// A replica's answer to what it was asked last.
    pub fn answer(&mut self, replica: usize, reply: Reply<D>, now: Now) -> Result<(), Nonsense> {
        if !std::mem::take(&mut self.is_asked[replica]) {
            return Ok(());
        }
        self.replies[replica] = Some(reply);
        let is_open = |at: usize| self.questions[at].is_some() || self.is_asked[at];
        if (0..3).any(is_open) {
            return Ok(());
        }
        let replies = std::mem::take(&mut self.replies);
        self.take(replies, now)?;
        self.go_on(now);
        Ok(())
    }

    /// When to call [`Scan::wake`], in nanoseconds since the Unix epoch: nothing is asked
    /// before.
    pub fn waits_until_ns(&self) -> Option<u64> {
        match self.step {
            Step::Pause(until_ns) | Step::PutOff(_, until_ns) => Some(until_ns),
            _ => None,
        }
    }

    /// Time has passed.
    pub fn wake(&mut self, now: Now) {
        match std::mem::replace(&mut self.step, Step::Pause(0)) {
            Step::Pause(_) => self.go_on(now),
            Step::PutOff(job, until_ns) if until_ns <= now.unix_ns => self.go_on_with(job),
            step => self.step = step,
        }
    }

    /// A version above this one is wanted: [`just_above`].
    pub fn wants_version_above(&self) -> Option<Version> {
        match self.step {
            Step::Nominate(_, above) => Some(above),
            _ => None,
        }
    }

    /// That version: one that nobody else has. If it is not above, because none is, the key
    /// is left as it stands.
    pub fn nominated(&mut self, version: Version) {
        let step = std::mem::replace(&mut self.step, Step::Ended(Ended::Interrupted));
        self.step = match step {
            Step::Nominate(mut job, above) if version > above => {
                job.nominated(version);
                return self.go_on_with(job);
            }
            Step::Nominate(job, _) => {
                self.note(job.hash, job::Done::Nothing);
                Step::Pause(0)
            }
            step => step,
        };
    }

    /// How it has ended, if it has.
    pub fn ended(&self) -> Option<Ended> {
        match self.step {
            Step::Ended(ended) => Some(ended),
            _ => None,
        }
    }

    /// The place before which everything was looked at, and every suspect was seen to:
    /// where another scan can go on.
    pub fn place(&self) -> u64 {
        self.place
    }

    /// What came of the keys so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Keys that wait for their second look, or to be repaired.
    pub fn backlog(&self) -> usize {
        self.named.len() + self.suspects.len() + self.jobs.len()
    }

    /// What was done since this was asked last.
    pub fn take_done(&mut self) -> Vec<(KeyHash, Done)> {
        std::mem::take(&mut self.done)
    }

    fn end_with(&mut self, ended: Ended) {
        let step = std::mem::replace(&mut self.step, Step::Ended(ended));
        let under_way = match step {
            Step::Job(job) | Step::PutOff(job, _) => Some(job),
            _ => None,
        };
        let mut begun = self.jobs.drain(..).chain(under_way);
        self.half_done = begun.find(Job::is_half_done);
        self.questions = [None, None, None];
        self.is_asked = [false; 3];
        self.replies = [None, None, None];
    }

    fn ask_all(&mut self, question: Question<D>, step: Step<D>) {
        self.questions = [
            Some(question.clone()),
            Some(question.clone()),
            Some(question),
        ];
        self.step = step;
    }

    /// All that were asked have answered.
    fn take(&mut self, replies: [Option<Reply<D>>; 3], now: Now) -> Result<(), Nonsense> {
        let step = std::mem::replace(&mut self.step, Step::Ended(Ended::Interrupted));
        match step {
            Step::Begin => self.begin(replies),
            Step::Digests(ranges, parts) => self.compare(ranges, parts, replies),
            Step::Held => self.compare_held(replies, now),
            Step::FirstLook(keys) => {
                let Some((states, _)) = self.states(replies, keys.len())? else {
                    return Ok(());
                };
                for (hash, states) in keys.into_iter().zip(states) {
                    self.suspect(hash, states.map(|state| state.held), now);
                }
                self.step = Step::Pause(0);
                Ok(())
            }
            Step::SecondLook(suspects) => {
                let Some((states, is_full)) = self.states(replies, suspects.len())? else {
                    return Ok(());
                };
                // By the clock that versions come from, which may have been set back.
                let at_rest_ns = now.host_ns().saturating_sub(self.limits.rest_ns);
                for (suspect, states) in suspects.into_iter().zip(states) {
                    let held = states.map(|state| state.held);
                    if held != suspect.seen && !mutants::is(Mutant::OneLook) {
                        self.counts.changed += 1;
                        continue;
                    }
                    if states.iter().any(|state| is_incredible(state, now)) {
                        // To repair it would spread such a version to replicas that know
                        // of none. It is one key's: the others are repaired.
                        self.counts.left += 1;
                        continue;
                    }
                    self.judge(suspect.hash, decide(states, is_full, at_rest_ns));
                }
                self.step = Step::Pause(0);
                Ok(())
            }
            Step::Job(mut job) => {
                let reply = replies.into_iter().flatten().next();
                let reply = reply.ok_or(Nonsense("no answer at all"))?;
                match job.answer(reply, &self.hasher) {
                    None if job.is_put_off() => {
                        self.step = Step::PutOff(job, now.unix_ns + job::PUT_OFF_PAUSE_NS);
                    }
                    None => self.go_on_with(job),
                    Some(done) => {
                        self.unanswered = 0;
                        self.note(job.hash, done);
                        self.step = Step::Pause(0);
                    }
                }
                Ok(())
            }
            step @ (Step::Pause(_) | Step::PutOff(..) | Step::Nominate(..) | Step::Ended(_)) => {
                self.step = step;
                Ok(())
            }
        }
    }

    fn begin(&mut self, replies: [Option<Reply<D>>; 3]) -> Result<(), Nonsense> {
        let mut items = [0; 3];
        for (items, reply) in items.iter_mut().zip(replies.into_iter().flatten()) {
            let Reply::Begin { epoch, items: here } = reply else {
                return Err(Nonsense("something else than how it stands"));
            };
            if epoch == epoch::NONE {
                self.end_with(Ended::Interrupted);
                return Ok(());
            }
            *items = here;
        }
        let items = believed(items);
        self.counts.items = items;
        // Powers of two, so that every part of a part is one.
        let ranges = items.div_ceil(RANGE_ITEMS).max(RANGES_AT_ONCE);
        let ranges = ranges.next_power_of_two().min(PLACES.end >> 16);
        self.len = PLACES.end / ranges;
        self.next_place -= self.next_place % self.len;
        self.step = Step::Pause(0);
        Ok(())
    }

    fn compare(
        &mut self,
        ranges: Ranges,
        parts: u32,
        replies: [Option<Reply<D>>; 3],
    ) -> Result<(), Nonsense> {
        let count = ranges.starts.len() * parts as usize;
        let mut all = [const { Vec::new() }; 3];
        for (all, reply) in all.iter_mut().zip(replies) {
            let Some(Reply::Digests { epoch, sums }) = reply else {
                return Err(Nonsense("something else than digests"));
            };
            if epoch == epoch::NONE {
                self.end_with(Ended::Interrupted);
                return Ok(());
            }
            if sums.len() != count {
                return Err(Nonsense("another number of digests"));
            }
            *all = sums;
        }
        let len = ranges.len / u64::from(parts);
        let part = |at: usize| {
            let (range, part) = (at / parts as usize, at % parts as usize);
            ranges.starts[range] + part as u64 * len
        };
        let differs = |at: &usize| all[0][*at] != all[1][*at] || all[1][*at] != all[2][*at];
        let starts: Vec<u64> = (0..count).filter(differs).map(part).collect();
        let divisions = ranges.divisions.saturating_sub(1);
        for starts in starts.chunks(STARTS_MAX) {
            let starts = starts.to_vec();
            self.work.push(Ranges {
                starts,
                len,
                divisions,
            });
        }
        self.step = Step::Pause(0);
        Ok(())
    }

    fn compare_held(&mut self, replies: [Option<Reply<D>>; 3], now: Now) -> Result<(), Nonsense> {
        let mut keys: BTreeMap<(u64, u64), [Option<Version>; 3]> = BTreeMap::new();
        for (replica, reply) in replies.into_iter().enumerate() {
            let Some(Reply::Held {
                epoch,
                is_cut,
                held,
            }) = reply
            else {
                return Err(Nonsense("something else than what it holds"));
            };
            if epoch == epoch::NONE {
                self.end_with(Ended::Interrupted);
                return Ok(());
            }
            self.step = Step::Pause(0);
            if is_cut {
                // There are many more than when it began: the next scan's ranges are smaller.
                return Ok(());
            }
            for (hash, version) in held {
                keys.entry((hash.place, hash.tag)).or_default()[replica] = Some(version);
            }
        }
        for ((place, tag), held) in keys {
            if held[0] != held[1] || held[1] != held[2] {
                self.suspect(KeyHash { place, tag }, held, now);
            }
        }
        Ok(())
    }

    /// The three replicas' states of keys; `None` if one gives no vote.
    #[expect(clippy::type_complexity, reason = "it has one reader")]
    fn states(
        &mut self,
        replies: [Option<Reply<D>>; 3],
        count: usize,
    ) -> Result<Option<(Vec<[trefoil_store::KeyState; 3]>, [bool; 3])>, Nonsense> {
        let mut all = Vec::new();
        let mut full = [false; 3];
        for (replica, reply) in replies.into_iter().enumerate() {
            let Some(Reply::States { is_full, states }) = reply else {
                return Err(Nonsense("something else than states"));
            };
            if states.len() != count {
                return Err(Nonsense("another number of states"));
            }
            if states.iter().any(|state| state.epoch == epoch::NONE) {
                self.end_with(Ended::Interrupted);
                return Ok(None);
            }
            full[replica] = is_full;
            all.push(states);
        }
        let of = |at: usize| [all[0][at], all[1][at], all[2][at]];
        Ok(Some(((0..count).map(of).collect(), full)))
    }

    fn suspect(&mut self, hash: KeyHash, seen: [Option<Version>; 3], now: Now) {
        if seen[0] == seen[1] && seen[1] == seen[2] {
            return;
        }
        self.counts.suspects += 1;
        self.suspects.push_back(Suspect {
            hash,
            seen,
            since_ns: now.unix_ns,
        });
    }

    /// A key was the same at both looks.
    fn judge(&mut self, hash: KeyHash, verdict: Verdict) {
        let counts = &mut self.counts;
        match verdict {
            Verdict::Clean => counts.changed += 1,
            Verdict::Install { .. } | Verdict::Renew { .. } => counts.dirty += 1,
            Verdict::Erase { .. } | Verdict::Evict { .. } => counts.inquorate += 1,
            Verdict::Full => {
                counts.dirty += 1;
                counts.full += 1;
            }
            Verdict::Young | Verdict::Apart => counts.left += 1,
        }
        self.jobs.extend(Job::new(hash, verdict));
    }

    /// A job has ended.
    fn note(&mut self, hash: KeyHash, done: job::Done) {
        let counts = &mut self.counts;
        let (count, done) = match done {
            job::Done::Installed => (&mut counts.installed, Done::Repaired),
            job::Done::Erased => (&mut counts.erased, Done::Repaired),
            job::Done::Evicted => (&mut counts.evicted, Done::Evicted),
            job::Done::Renewed(over, at) => (&mut counts.renewed, Done::Renewed(over, at)),
            job::Done::NotRenewed(at) => (&mut counts.left, Done::NotRenewed(at)),
            job::Done::Nothing => (&mut counts.left, Done::Nothing),
        };
        *count += 1;
        self.done.push((hash, done));
    }

    fn go_on_with(&mut self, job: Job<D>) {
        self.step = match job.wants() {
            Some(Wants::Ask(replica, question)) => {
                self.questions[replica] = Some(question);
                Step::Job(job)
            }
            Some(Wants::Version(above)) => Step::Nominate(job, above),
            None => Step::Pause(0),
        };
    }

    /// To the next step, if this one is over.
    fn go_on(&mut self, now: Now) {
        while matches!(self.step, Step::Pause(_)) {
            if let Some(job) = self.jobs.pop() {
                self.go_on_with(job);
                continue;
            }
            // Those that were named do not wait for the end of a walk. Some at a time: each
            // question has a head.
            let patience_ns = self.limits.pause_ns.saturating_mul(2);
            let waits = |suspect: &Suspect| suspect.since_ns.saturating_add(patience_ns);
            if (self.suspects.front()).is_some_and(|first| waits(first) <= now.unix_ns) {
                self.look_again(now);
                continue;
            }
            let is_through =
                self.named.is_empty() && self.work.is_empty() && self.next_place >= self.end;
            self.settles |= self.suspects.len() >= SUSPECTS_MAX || is_through;
            if self.settles
                && let Some(first) = self.suspects.front()
            {
                let due_ns = first.since_ns.saturating_add(self.limits.pause_ns);
                if due_ns > now.unix_ns && !mutants::is(Mutant::OneLook) {
                    self.step = Step::Pause(due_ns);
                    return;
                }
                self.look_again(now);
                continue;
            }
            self.settles = false;
            if !self.named.is_empty() {
                let count = self.named.len().min(STATES_MAX);
                let keys: Vec<KeyHash> = self.named.drain(..count).collect();
                let question = Question::States { keys: keys.clone() };
                self.ask_all(question, Step::FirstLook(keys));
                continue;
            }
            if let Some(ranges) = self.work.pop() {
                self.look_into(ranges);
                continue;
            }
            if self.suspects.is_empty() {
                self.place = self.next_place;
            }
            if self.next_place < self.end {
                let len = self.len * RANGES_AT_ONCE;
                let len = len.min(self.end - self.next_place);
                let starts = vec![self.next_place];
                self.next_place += len;
                let parts = (len / self.len) as u32;
                let ranges = Ranges {
                    starts: starts.clone(),
                    len,
                    divisions: DIVISIONS + 1,
                };
                let question = Question::Digests { starts, len, parts };
                self.ask_all(question, Step::Digests(ranges, parts));
            } else {
                self.end_with(Ended::Through);
            }
        }
    }

    fn look_into(&mut self, ranges: Ranges) {
        let (starts, len) = (ranges.starts.clone(), ranges.len);
        if ranges.divisions == 0 || !len.is_multiple_of(u64::from(PARTS)) {
            self.ask_all(Question::Held { starts, len }, Step::Held);
            return;
        }
        let parts = PARTS;
        let question = Question::Digests { starts, len, parts };
        self.ask_all(question, Step::Digests(ranges, parts));
    }

    /// Takes the second look at those that have waited long enough.
    fn look_again(&mut self, now: Now) {
        let is_due = |suspect: &Suspect| {
            suspect.since_ns.saturating_add(self.limits.pause_ns) <= now.unix_ns
                || mutants::is(Mutant::OneLook)
        };
        let due = self
            .suspects
            .iter()
            .take(STATES_MAX)
            .take_while(|s| is_due(s));
        let count = due.count();
        let suspects: Vec<Suspect> = self.suspects.drain(..count).collect();
        let keys = suspects.iter().map(|suspect| suspect.hash).collect();
        self.ask_all(Question::States { keys }, Step::SecondLook(suspects));
    }
}
