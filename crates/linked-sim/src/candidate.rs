//! An assigner of two: the real one with its election, and around it what the process of
//! an assigner does as the crate `coordination` has it: the roll, keep-alives, striking off.

use crate::coordination::{CAPACITY, View, config, configure};
use crate::ledger::{Answer, Ask};
use crate::profile::Profile;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use trefoil_linklet_core::mutants::{self, Mutant};
use trefoil_sharder::coordination::{CandidateId, LeaseTerms};
use trefoil_sharder::{
    Assigner, AssignerEvent, AssignerOptions, Assignment, AssignmentVersion, Freeze, Member,
    MemberState, ServerId, ServerReport,
};

/// For how long who leads is elected.
const LEADER_LEASE: Duration = Duration::from_millis(900);
/// After which an assigner takes an answer of the store for lost.
pub(crate) const STORE_TIMEOUT: Duration = Duration::from_millis(350);
/// Before a first map it waits for more than the first server.
const GATHER: Duration = Duration::from_millis(150);

/// What a server hears when it asks for its lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    Granted(Duration),
    /// It is written down first.
    Later,
    Ended,
    /// Somebody else leads, or nobody, or this one is not sure.
    NotHere,
}

/// What a leader knows in his term.
#[derive(Debug)]
struct Term {
    term: u64,
    /// The same term may be won again.
    election: u64,
    /// The store had a map when it began.
    resumes: bool,
    /// Once the store has said who is a member.
    table: Option<Table>,
    asked_at: Option<Duration>,
    shortened_at: Option<Duration>,
}

/// Who is a member, by the leases that this one has granted.
#[derive(Debug)]
struct Table {
    leases: LeaseTerms,
    entries: BTreeMap<ServerId, Entry>,
}

#[derive(Debug)]
struct Entry {
    heard: Duration,
    state: MemberState,
    /// It is being struck off.
    dropped: bool,
}

/// An assigner: one that leads, or would.
#[derive(Debug)]
pub(crate) struct Candidate {
    pub(crate) id: CandidateId,
    assigner: Assigner,
    drift_ppm: i64,
    offset: Duration,
    /// The length of the leases that it grants.
    lease: Duration,
    replicas: usize,
    pub(crate) paused: bool,
    /// The store cannot be reached.
    pub(crate) cut: bool,
    last_turn: Duration,
    term: Option<Term>,
    elections: u64,
    /// Only dead servers' slices move.
    frozen: bool,
    applied: Freeze,
    /// What it has seen come into force.
    view: Option<Arc<View>>,
    gathering_since: Option<Duration>,
    /// Writes and removals of members that are under way.
    writing: BTreeMap<ServerId, usize>,
    /// What is to be asked of the store.
    asks: Vec<Ask>,
    /// What has come while it was stopped.
    pub(crate) deferred: Vec<Answer>,
}

impl Candidate {
    pub(crate) fn new(at: usize, profile: &Profile, drift_ppm: i64, offset: Duration) -> Self {
        let id = CandidateId(at as u64 + 1);
        let options = AssignerOptions {
            lease: LEADER_LEASE,
            step_every: Duration::from_millis(300),
            reply_timeout: STORE_TIMEOUT,
            slices_per_server: 2,
            ..AssignerOptions::new(id)
        };
        let assigner = match Assigner::new(options, config(profile.replicas, Freeze::Off)) {
            Ok(assigner) => assigner,
            Err(error) => panic!("{error}"),
        };
        Candidate {
            id,
            assigner,
            drift_ppm,
            offset,
            lease: profile.leases[at],
            replicas: profile.replicas,
            paused: false,
            cut: false,
            last_turn: Duration::ZERO,
            term: None,
            elections: 0,
            frozen: false,
            applied: Freeze::Off,
            view: None,
            gathering_since: None,
            writing: BTreeMap::new(),
            asks: Vec::new(),
            deferred: Vec::new(),
        }
    }

    /// What its clock shows, which does not stand still while it is stopped.
    pub(crate) fn clock(&self, now: Duration) -> Duration {
        let micros = now.as_micros() as i64;
        self.offset + Duration::from_micros((micros + micros * self.drift_ppm / 1_000_000) as u64)
    }

    pub(crate) fn leads(&self, now: Duration) -> bool {
        self.assigner.leads(self.clock(now))
    }

    pub(crate) fn freeze(&mut self) {
        self.frozen = true;
    }

    /// What it wants to ask of the store.
    pub(crate) fn asks(&mut self) -> Vec<Ask> {
        std::mem::take(&mut self.asks)
    }

    /// Sees what has come into force.
    pub(crate) fn see(&mut self, now: Duration, view: &Arc<View>) {
        if self
            .view
            .as_ref()
            .is_some_and(|known| known.number >= view.number)
        {
            return;
        }
        self.assigner.observe(self.clock(now), &view.assignment);
        self.view = Some(Arc::clone(view));
    }

    pub(crate) fn hear(&mut self, now: Duration, report: ServerReport) {
        self.assigner.hear(self.clock(now), report);
    }

    /// Does what is due.
    pub(crate) fn turn(&mut self, now: Duration) {
        let now = self.clock(now);
        let gap = now.saturating_sub(std::mem::replace(&mut self.last_turn, now));
        if gap > self.lease / 4
            && let Some(table) = self.term.as_mut().and_then(|term| term.table.as_mut())
        {
            table.leases.stood_still(gap);
            for entry in table.entries.values_mut() {
                entry.heard += gap;
            }
        }
        self.call_roll(now);
        self.shorten_leases(now);
        self.strike_off(now);
        let Some(members) = self.members(now) else {
            if let Some((id, request)) = self.assigner.poll_campaign(now) {
                self.asks.push(Ask::Request(id, request));
            }
            self.events();
            return;
        };
        self.configure(now);
        let table = self.term.as_ref().and_then(|term| term.table.as_ref());
        let departing = table.is_some_and(|table| table.entries.values().any(|e| e.dropped));
        self.assigner.set_departing(departing);
        if let Some((id, request)) = self.assigner.poll_request(now, &members) {
            self.asks.push(Ask::Request(id, request));
        }
        self.events();
    }

    fn events(&mut self) {
        while let Some(event) = self.assigner.poll_event() {
            match event {
                AssignerEvent::Elected { term } => {
                    self.elections += 1;
                    self.term = Some(Term {
                        term,
                        election: self.elections,
                        resumes: false,
                        table: None,
                        asked_at: None,
                        shortened_at: None,
                    });
                }
                AssignerEvent::Deposed => self.term = None,
                _ => {}
            }
        }
    }

    fn members(&mut self, now: Duration) -> Option<Vec<Member>> {
        let member = |id: ServerId, state| Member {
            id,
            capacity: CAPACITY,
            state,
        };
        let members: Vec<Member> = match (&self.term, &self.view) {
            // It only campaigns.
            (None, None) => Vec::new(),
            (None, Some(view)) => {
                let state = |id| match view.draining.contains(id) {
                    true => MemberState::Draining,
                    false => MemberState::Serving,
                };
                view.alive.iter().map(|id| member(*id, state(id))).collect()
            }
            (Some(term), _) => {
                let entries = term.table.as_ref()?.entries.iter();
                entries
                    .map(|(&id, entry)| member(id, entry.state))
                    .collect()
            }
        };
        if self.assigner.assignment().is_some() || members.is_empty() {
            self.gathering_since = None;
            return Some(members);
        }
        let since = *self.gathering_since.get_or_insert(now);
        Some(match now.saturating_sub(since) < GATHER {
            true => Vec::new(),
            false => members,
        })
    }

    fn call_roll(&mut self, now: Duration) {
        let Some(term) = &mut self.term else { return };
        let again = |at: Duration| now.saturating_sub(at) > STORE_TIMEOUT;
        if term.table.is_none() && term.asked_at.is_none_or(again) {
            term.asked_at = Some(now);
            self.asks.push(Ask::Roll {
                election: term.election,
                term: term.term,
                own: self.lease,
            });
        }
    }

    fn shorten_leases(&mut self, now: Duration) {
        if !self.assigner.leads(now) {
            return;
        }
        let Some(term) = &mut self.term else { return };
        let Some(table) = &term.table else { return };
        let again = |at: Duration| now.saturating_sub(at) > STORE_TIMEOUT;
        if let Some(lease) = table.leases.shorter(now)
            && term.shortened_at.is_none_or(again)
        {
            term.shortened_at = Some(now);
            self.asks.push(Ask::Shorten {
                election: term.election,
                term: term.term,
                lease,
            });
        }
    }

    /// Those whose leases have ended, and whom somebody else has written down.
    fn strike_off(&mut self, now: Duration) {
        if !self.assigner.leads(now) {
            return;
        }
        let Some(Term {
            term,
            election,
            table: Some(table),
            ..
        }) = &mut self.term
        else {
            return;
        };
        let leases = &table.leases;
        for entry in table.entries.values_mut() {
            entry.dropped |= leases.ends(entry.heard) <= now;
        }
        let dropped = table.entries.iter().filter(|(_, entry)| entry.dropped);
        let mut ids: BTreeSet<ServerId> = dropped.map(|(&id, _)| id).collect();
        let seen = self.view.iter().flat_map(|view| &view.alive);
        ids.extend(seen.filter(|id| !table.entries.contains_key(id)));
        ids.retain(|id| !self.writing.contains_key(id));
        let (election, term) = (*election, *term);
        for server in ids {
            self.remove(election, term, server);
        }
    }

    fn remove(&mut self, election: u64, term: u64, server: ServerId) {
        *self.writing.entry(server).or_default() += 1;
        self.asks.push(Ask::Remove {
            election,
            term,
            server,
        });
    }

    /// Nothing moves before those who are alive have had the time to come back.
    fn configure(&mut self, now: Duration) {
        let resuming = self.term.as_ref().is_some_and(|term| {
            let table = term.table.as_ref();
            term.resumes && table.is_none_or(|table| !table.leases.settled(now))
        });
        let freeze = match (resuming, self.frozen) {
            (true, _) => Freeze::All,
            (false, true) => Freeze::OnlyDead,
            (false, false) => Freeze::Off,
        };
        if freeze != self.applied {
            self.applied = freeze;
            configure(&mut self.assigner, self.replicas, freeze);
        }
    }

    /// A server asks for its lease. It says when it asks, by its clock, whether it has asked
    /// before, so that it may be written down, and what map it knows.
    pub(crate) fn renew(
        &mut self,
        now: Duration,
        server: ServerId,
        draining: bool,
        again: bool,
        knows: Option<AssignmentVersion>,
        sent: Duration,
    ) -> Told {
        let now = self.clock(now);
        let behind = knows.filter(|&seen| Some(seen) > self.version());
        if let Some(seen) = behind {
            self.assigner.heard_of(seen);
        }
        let leads = self.assigner.leads(now);
        let Some(Term {
            term,
            election,
            table: Some(table),
            ..
        }) = self.term.as_mut().filter(|_| leads)
        else {
            return Told::NotHere;
        };
        let state = match draining {
            true => MemberState::Draining,
            false => MemberState::Serving,
        };
        match table.entries.get_mut(&server) {
            Some(entry) if entry.dropped => return Told::Ended,
            Some(entry) => {
                entry.heard = now;
                if entry.state == state {
                    return match behind {
                        Some(_) => Told::NotHere,
                        None => Told::Granted(self.lease),
                    };
                }
            }
            // What comes of that is not known yet.
            None if self.writing.contains_key(&server) => return Told::Later,
            None if again && behind.is_none() => return Told::Ended,
            None => {}
        }
        if behind.is_some() {
            return Told::NotHere;
        }
        *self.writing.entry(server).or_default() += 1;
        self.asks.push(Ask::Put {
            election: *election,
            term: *term,
            server,
            state,
            sent,
        });
        Told::Later
    }

    /// A server has left.
    pub(crate) fn leave(&mut self, now: Duration, server: ServerId) {
        let leads = self.leads(now);
        if let Some(term) = self.term.as_ref().filter(|_| leads) {
            self.remove(term.election, term.term, server);
        }
    }

    fn version(&self) -> Option<AssignmentVersion> {
        let seen = self.view.as_ref().map(|view| view.assignment.version());
        seen.max(self.assigner.assignment().map(Assignment::version))
    }

    /// Takes an answer of the store; whom it grants a lease, which asked then by its clock.
    pub(crate) fn take(&mut self, now: Duration, answer: Answer) -> Option<Granted> {
        let now = self.clock(now);
        match answer {
            Answer::Request(id, result) => {
                self.assigner.handle_reply(now, id, result);
                self.events();
            }
            Answer::Roll(election, roll) => {
                let own = self.lease;
                let term = self.term.as_mut();
                let term = term.filter(|term| term.election == election && term.table.is_none());
                let (term, roll) = (term?, roll?);
                term.resumes = roll.version.is_some();
                let recorded = roll.lease;
                let recorded = recorded.filter(|_| !mutants::is(Mutant::LeaseLengthForgotten));
                let entries = roll.members.into_iter();
                let entries = entries.map(|(id, state)| (id, Entry::new(now, state)));
                term.table = Some(Table {
                    leases: LeaseTerms::new(own, now, recorded),
                    entries: entries.collect(),
                });
            }
            Answer::Put {
                election,
                server,
                state,
                sent,
                done,
            } => {
                self.written(server);
                let leads = self.assigner.leads(now);
                let table = self.table_of(election).filter(|_| done)?;
                match table.entries.get_mut(&server) {
                    Some(entry) => entry.state = state,
                    None => {
                        table.entries.insert(server, Entry::new(now, state));
                    }
                }
                let is_alive = table.entries.get(&server).is_some_and(|e| !e.dropped);
                return (leads && is_alive).then_some(Granted {
                    server,
                    lease: self.lease,
                    sent,
                });
            }
            Answer::Removed {
                election,
                server,
                done,
            } => {
                self.written(server);
                let table = self.table_of(election).filter(|_| done)?;
                table.entries.remove(&server);
            }
            Answer::Lease(election, lease) => {
                let lease = lease?;
                self.table_of(election)?.leases.record(lease);
            }
        }
        None
    }

    fn table_of(&mut self, election: u64) -> Option<&mut Table> {
        let term = self.term.as_mut();
        let term = term.filter(|term| term.election == election)?;
        term.table.as_mut()
    }

    fn written(&mut self, server: ServerId) {
        if let Some(count) = self.writing.get_mut(&server) {
            *count -= 1;
            if *count == 0 {
                self.writing.remove(&server);
            }
        }
    }
}

impl Entry {
    fn new(now: Duration, state: MemberState) -> Self {
        Entry {
            heard: now,
            state,
            dropped: false,
        }
    }
}

/// A lease for who was written down first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Granted {
    pub(crate) server: ServerId,
    pub(crate) lease: Duration,
    pub(crate) sent: Duration,
}
