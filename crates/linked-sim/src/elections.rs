//! Two assigners that both run, over one store that both reach by messages: they elect
//! one of them by the store's lease, lose it by pauses and links that are cut, and publish
//! through the store alone.
//!
//! ```text
//!   servers ── keep-alive ──► Candidate ── Ask ────► Ledger (the store)
//!      ▲                          ▲ ◄─── Answer ───┘    │
//!      └───────── view ───────────┴─────────────────────┘ what is in force
//! ```
//!
//! A third one may have been started without the corpus: it stands for nothing, and says
//! so to whoever asks it while nobody leads.

use crate::candidate::{Candidate, Granted, STORE_TIMEOUT, Told};
use crate::coordination::View;
use crate::ledger::{Answer, Ask, Done, Ledger};
use crate::profile::{DRIFT_PPM_MAX, LEASE, Profile, believed};
use crate::rng::Rng;
use crate::truth::Broken;
use crate::violation::Property;
use crate::world::{Event, World, trace};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use trefoil_linklet_core::mutants::{self, Mutant};
use trefoil_sharder::ServerId;

/// How often a candidate looks at what is due.
const TURN: Duration = Duration::from_millis(50);
/// Out of 1,024 messages to and from the store, those that stall for longer than anybody
/// leads.
const STALLED: u32 = 40;
/// Those that are lost.
const LOST: u32 = 20;

/// The two, their store, and who else says to be one.
#[derive(Debug)]
pub(crate) struct Elections {
    pub(crate) ledger: Ledger,
    pub(crate) candidates: Vec<Candidate>,
    /// One was started without the corpus.
    has_stranger: bool,
    /// Whom one that leads has told that its lease has ended.
    dismissed: BTreeSet<ServerId>,
}

impl Elections {
    pub(crate) fn new(profile: &Profile, rng: &mut Rng) -> Self {
        let candidate = |at| {
            let drift = rng.below(2 * DRIFT_PPM_MAX as usize) as i64 - DRIFT_PPM_MAX;
            Candidate::new(at, profile, drift, rng.micros(0, 1_000_000_000))
        };
        Elections {
            ledger: Ledger::default(),
            candidates: (0..2).map(candidate).collect(),
            has_stranger: profile.has_stranger,
            dismissed: BTreeSet::new(),
        }
    }

    /// Whom a server asks next, after one that was of no use.
    fn next(&self, after: usize) -> usize {
        (after + 1) % (self.candidates.len() + usize::from(self.has_stranger))
    }
}

/// How long a message to or from the store is under way; `None`: it is lost.
fn under_way(rng: &mut Rng, calm: bool) -> Option<Duration> {
    if !calm && rng.chance(LOST) {
        return None;
    }
    Some(match !calm && rng.chance(STALLED) {
        true => rng.micros(200_000, 2_000_000),
        false => rng.micros(200, 3_000),
    })
}

impl World<'_> {
    /// Both begin, where there are two.
    pub(crate) fn set_up_elections(&mut self) -> bool {
        if !self.profile.elections {
            return false;
        }
        self.elections = Some(Elections::new(&self.profile, &mut self.rng));
        for at in 0..2 {
            let first = self.rng.micros(0, 50_000);
            self.after(first, Event::Turn(at));
        }
        self.after(Duration::from_millis(700), Event::Topple);
        true
    }

    /// How many there are.
    fn candidates(&self) -> usize {
        let elections = self.elections.as_ref();
        elections.map_or(0, |elections| elections.candidates.len())
    }

    fn candidate(&mut self, at: usize) -> &mut Candidate {
        match &mut self.elections {
            Some(elections) => &mut elections.candidates[at],
            None => unreachable!("only where there are elections"),
        }
    }

    /// A candidate does what is due.
    pub(crate) fn candidate_turn(&mut self, at: usize) {
        self.after(TURN, Event::Turn(at));
        if self.candidate(at).paused {
            return;
        }
        let now = self.now;
        if !self.calm && self.rng.chance(200) {
            for report in self.coordination.reports(&mut self.rng) {
                self.candidate(at).hear(now, report);
            }
        }
        let led = self.candidate(at).leads(now);
        self.candidate(at).turn(now);
        let leads = self.candidate(at).leads(now);
        if led != leads {
            let id = self.candidate(at).id;
            trace!(self, "{id} leads: {leads}");
        }
        self.send_asks(at);
    }

    fn send_asks(&mut self, at: usize) {
        for ask in self.candidate(at).asks() {
            let id = self.candidate(at).id;
            trace!(self, "{id} asks the store: {ask:?}");
            let cut = self.candidate(at).cut;
            match under_way(&mut self.rng, self.calm).filter(|_| !cut) {
                Some(delay) => self.after(delay, Event::Asked(at, Box::new(ask))),
                None => self.lost_answer(at, ask.unanswered()),
            }
        }
    }

    fn lost_answer(&mut self, at: usize, failed: Option<Answer>) {
        if let Some(failed) = failed {
            self.after(STORE_TIMEOUT, Event::Answered(at, Box::new(failed)));
        }
    }

    /// The store takes a request.
    pub(crate) fn asked(&mut self, at: usize, ask: Ask) -> Result<(), Broken> {
        let now = self.now;
        let failed = ask.unanswered();
        let Some(elections) = &mut self.elections else {
            return Ok(());
        };
        let candidate = elections.candidates[at].id;
        let Done {
            answer,
            struck_off,
            usurped,
        } = elections.ledger.take(now, candidate, ask);
        if let Some(message) = usurped {
            return Err((Property::Leader, message));
        }
        let before = self.coordination.view.clone();
        if let Some(server) = struck_off {
            self.coordination.leave(server);
            self.expire(server);
        }
        if let Some(elections) = &self.elections {
            self.coordination.follow(&elections.ledger);
        }
        self.tell_news(before);
        let cut = self.candidate(at).cut;
        match under_way(&mut self.rng, self.calm).filter(|_| !cut) {
            Some(delay) => self.after(delay, Event::Answered(at, Box::new(answer))),
            None => self.lost_answer(at, failed),
        }
        Ok(())
    }

    /// A candidate has an answer of the store, if it was not stopped.
    pub(crate) fn answered(&mut self, at: usize, answer: Answer) {
        let now = self.now;
        let candidate = self.candidate(at);
        if candidate.paused {
            candidate.deferred.push(answer);
            return;
        }
        if let Some(granted) = candidate.take(now, answer) {
            self.grant(granted);
        }
        self.send_asks(at);
    }

    /// What has come into force is seen by both, some time later.
    pub(crate) fn tell_candidates(&mut self, view: &Arc<View>) {
        for at in 0..self.candidates() {
            let delay = self.rng.micros(500, 30_000);
            self.after(delay, Event::See(at, Arc::clone(view)));
        }
    }

    pub(crate) fn see(&mut self, at: usize, view: &Arc<View>) {
        let now = self.now;
        let candidate = self.candidate(at);
        if candidate.paused || candidate.cut {
            // It follows again when that is over.
            let again = Event::See(at, Arc::clone(view));
            self.after(TURN, again);
            return;
        }
        candidate.see(now, view);
    }

    /// A server asks whom it takes for the leader for its lease, and another one soon if
    /// that one is of no use.
    pub(crate) fn renew_by_election(&mut self, at: usize) {
        let lease = self.servers[at].granted.unwrap_or(LEASE);
        let lease = lease.as_micros() as u64;
        let regular = self.rng.micros(lease / 5, lease * 3 / 10);
        let soon = self.rng.micros(20_000, 60_000);
        let server = &mut self.servers[at];
        if server.cut {
            self.after(regular, Event::Renew(at));
            return;
        }
        let (id, draining) = (server.id, server.draining);
        let (asks, was_granted) = (server.asks, server.granted.is_some());
        // Whatever came of it, it may have been written down, and struck off since.
        let asked = std::mem::replace(&mut server.has_asked, true);
        let again = was_granted || (asked && !mutants::is(Mutant::NewcomerAsksAnew));
        let sent = server.clock(self.now);
        let knows = server.knows.as_ref().map(|view| view.assignment.version());
        let now = self.now;
        let Some(elections) = &mut self.elections else {
            return;
        };
        let is_written = elections.ledger.roll.contains_key(&id);
        let was_written = is_written || self.coordination.has_ended(id);
        let told = match elections.candidates.get_mut(asks) {
            Some(candidate) if candidate.paused => Told::NotHere,
            Some(candidate) => {
                match candidate.renew(now, id, draining, again, knows, sent) {
                    // A newcomer chooses another id. One that nobody has ever written down is
                    // as good as that.
                    Told::Ended if !was_granted && !was_written => {
                        self.servers[at].has_asked = false;
                        self.after(soon, Event::Renew(at));
                        return;
                    }
                    Told::Ended => {
                        elections.dismissed.insert(id);
                        self.stats.unheard += u64::from(!was_granted);
                        Told::Ended
                    }
                    told => told,
                }
            }
            // It says who leads, if anybody does.
            None if elections.ledger.is_led(now) => Told::NotHere,
            None => {
                trace!(self, "{id} hears that nobody knows its corpus");
                match was_granted && mutants::is(Mutant::UnknownIsFinal) {
                    true => Told::Ended,
                    false => Told::NotHere,
                }
            }
        };
        let of_no_use = told == Told::NotHere;
        if of_no_use && let Some(elections) = &self.elections {
            self.servers[at].asks = elections.next(asks);
        }
        let again = if of_no_use { soon } else { regular };
        self.after(again, Event::Renew(at));
        match told {
            Told::NotHere => {}
            Told::Later => self.send_asks(asks),
            Told::Ended => {
                let delay = self.delay();
                self.after(delay, Event::Ended(at));
            }
            Told::Granted(lease) => self.grant(Granted {
                server: id,
                lease,
                sent,
            }),
        }
    }

    fn grant(&mut self, granted: Granted) {
        let at = granted.server.0 as usize - 1;
        self.servers[at].granted = Some(granted.lease);
        let delay = self.delay();
        let until = granted.sent + believed(granted.lease);
        let event = match self.coordination.told() {
            Some(view) => Event::Told(at, Some(until), view),
            None => Event::Leased(at, until),
        };
        self.after(delay, event);
    }

    /// A server has left: whoever leads strikes it off, or its lease ends.
    pub(crate) fn leave_by_election(&mut self, server: ServerId) {
        let now = self.now;
        for at in 0..self.candidates() {
            if !self.candidate(at).paused {
                self.candidate(at).leave(now, server);
                self.send_asks(at);
            }
        }
    }

    /// A server has given up all that it had: it was told to by somebody who leads, or had
    /// been struck off.
    pub(crate) fn check_replaced(&self, server: ServerId) -> Result<(), Broken> {
        let Some(elections) = &self.elections else {
            return Ok(());
        };
        if elections.dismissed.contains(&server) || self.coordination.has_ended(server) {
            return Ok(());
        }
        let message = format!("{server} gave up all that it had, and nobody had struck it off");
        Err((Property::Struck, message))
    }

    /// A candidate, more often than not the one that leads, is stopped or cut off from the
    /// store.
    pub(crate) fn topple(&mut self) {
        if self.calm {
            return;
        }
        let next = self.rng.micros(300_000, 1_800_000);
        self.after(next, Event::Topple);
        let now = self.now;
        let leads = (0..2).find(|&at| self.candidate(at).leads(now));
        let at = match leads.filter(|_| self.rng.chance(800)) {
            Some(at) => at,
            None => self.rng.below(2),
        };
        let length = self.rng.micros(100_000, 2_500_000);
        let id = self.candidate(at).id;
        if self.rng.chance(512) {
            trace!(self, "{id} is stopped for {length:?}");
            self.candidate(at).paused = true;
        } else {
            trace!(self, "{id} is cut off from the store for {length:?}");
            self.candidate(at).cut = true;
        }
        self.after(length, Event::Restore(at));
    }

    /// It goes on, and reaches the store again.
    pub(crate) fn restore(&mut self, at: usize) {
        let candidate = self.candidate(at);
        candidate.cut = false;
        candidate.paused = false;
        for answer in std::mem::take(&mut candidate.deferred) {
            self.answered(at, answer);
        }
    }

    /// Nothing goes wrong any more with the two.
    pub(crate) fn calm_elections(&mut self) {
        for at in 0..self.candidates() {
            self.restore(at);
        }
    }

    /// From now on only dead servers' slices move.
    pub(crate) fn freeze(&mut self) {
        self.coordination.freeze();
        for candidate in self
            .elections
            .iter_mut()
            .flat_map(|both| &mut both.candidates)
        {
            candidate.freeze();
        }
    }
}
