//! The assigner: campaigns, loads, balances and publishes, one request to the
//! store at a time.
//!
//! ```text
//!   poll_request ─► Campaign ─► Load ─► (every step_every, or when a member has gone) Swap ─► … ─► Campaign (renews)
//!   handle_reply ◄──────────── whatever the store says, or nothing for reply_timeout
//! ```
//!
//! While the store does not answer, nothing is published: the map in force
//! stays and traffic flows by it. An answer that was lost is not guessed at:
//! the assignment is loaded again, and shows whether the swap was applied.

use crate::assignment::Assignment;
use crate::balance::{Balancer, Note, Plan, StepError};
use crate::config::{BalanceConfig, ConfigError};
use crate::coordination::{CandidateId, Reply, Request, StoreError};
use crate::mutants::{self, Mutant};
use crate::report::ServerReport;
use crate::server::{Member, ServerId};
use crate::version::AssignmentVersion;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// Events kept for somebody who does not fetch them.
const EVENTS_MAX: usize = 1_000;

/// How an assigner works.
#[derive(Clone, Debug, PartialEq)]
pub struct AssignerOptions {
    /// Who it is.
    pub candidate: CandidateId,
    /// For how long it asks to lead. It renews after a third, and no longer
    /// believes in it after two thirds: clocks may run differently.
    pub lease: Duration,
    /// How often it balances.
    pub step_every: Duration,
    /// After which it takes an answer for lost.
    pub reply_timeout: Duration,
    /// Slices for each server in a first assignment.
    pub slices_per_server: usize,
    /// The version of a first assignment, and the lowest incarnation to go on with from
    /// what servers remember. A store of which nothing is left when its process or file
    /// has gone needs one that is higher than all before
    /// ([`AssignmentVersion::deal`]): what comes back later is known by it as old.
    pub first: AssignmentVersion,
}

impl AssignerOptions {
    /// The usual ones.
    pub const fn new(candidate: CandidateId) -> Self {
        AssignerOptions {
            candidate,
            lease: Duration::from_secs(6),
            step_every: Duration::from_secs(1),
            reply_timeout: Duration::from_secs(1),
            slices_per_server: 32,
            first: AssignmentVersion::first_of(1),
        }
    }
}

/// What happened, for logs and metrics.
#[derive(Clone, Debug, PartialEq)]
pub enum AssignerEvent {
    /// It leads.
    Elected {
        /// In which term.
        term: u64,
    },
    /// It no longer leads.
    Deposed,
    /// It has balanced; what it wants is published next, if anything.
    Planned(Plan),
    /// An assignment of its own is in force.
    Published(AssignmentVersion),
    /// The store refused or failed.
    Store(StoreError),
    /// An answer did not come in time.
    Unanswered,
    /// Balancing failed.
    Step(StepError),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Leadership {
    term: u64,
    believed_until: Duration,
    renew_at: Duration,
}

/// Whether an assigner leads.
enum Lead {
    Has(Leadership),
    /// It asks to, under this number.
    Asks(u64, Request),
}

#[derive(Clone, Debug)]
enum Asked {
    Campaign,
    Load,
    Swap(Assignment),
}

#[derive(Clone, Debug)]
struct Pending {
    id: u64,
    sent: Duration,
    asked: Asked,
}

/// See the page of this module.
#[derive(Clone, Debug)]
pub struct Assigner {
    options: AssignerOptions,
    config: BalanceConfig,
    leadership: Option<Leadership>,
    balancer: Option<Balancer>,
    /// What was loaded is in use; otherwise it has to be loaded (again).
    loaded: bool,
    /// The newest version that anybody is known to go by.
    seen: Option<AssignmentVersion>,
    /// Told to go on above `seen` although the store is behind: until an
    /// incarnation above this one is in force.
    leaves_incarnation: Option<u64>,
    /// What to begin it with, where the store has nothing.
    recovered: Option<Assignment>,
    plan: Option<Plan>,
    /// The newest of each server, and when it came, until the next step.
    reports: BTreeMap<ServerId, (Duration, ServerReport)>,
    pending: Option<Pending>,
    requests: u64,
    not_before: Duration,
    step_at: Duration,
    /// Who was a member at the last step.
    met: BTreeSet<ServerId>,
    /// See [`Assigner::set_departing`].
    is_departing: bool,
    events: VecDeque<AssignerEvent>,
}

impl Assigner {
    /// One that does not lead yet.
    pub fn new(options: AssignerOptions, config: BalanceConfig) -> Result<Self, ConfigError> {
        config.validate()?;
        Ok(Assigner {
            options,
            config,
            leadership: None,
            balancer: None,
            loaded: false,
            seen: None,
            leaves_incarnation: None,
            recovered: None,
            plan: None,
            reports: BTreeMap::new(),
            pending: None,
            requests: 0,
            not_before: Duration::ZERO,
            step_at: Duration::ZERO,
            met: BTreeSet::new(),
            is_departing: false,
            events: VecDeque::new(),
        })
    }

    /// Other thresholds, the switch for deployments among them.
    pub fn configure(&mut self, config: BalanceConfig) -> Result<(), ConfigError> {
        config.validate()?;
        if let Some(balancer) = &mut self.balancer {
            balancer.configure(config.clone())?;
        }
        self.config = config;
        Ok(())
    }

    /// Whether it believes that it leads.
    pub fn leads(&self, now: Duration) -> bool {
        let for_ever = mutants::is(Mutant::FormerLeaderPublishes);
        self.leadership
            .is_some_and(|leadership| now < leadership.believed_until || for_ever)
    }

    /// The assignment that it goes by.
    pub fn assignment(&self) -> Option<&Assignment> {
        self.balancer.as_ref().map(Balancer::assignment)
    }

    /// Hears a server's report. Those that do not lead listen, too, so that
    /// they know the load when they are elected.
    pub fn hear(&mut self, now: Duration, report: ServerReport) {
        match self.reports.get(&report.server) {
            Some((_, kept)) if kept.sequence >= report.sequence => {}
            _ => {
                self.reports.insert(report.server, (now, report));
            }
        }
    }

    /// Sees an assignment come into force that somebody else published. Those
    /// that do not lead should be told of each, from a watch: they then know
    /// what moved not long ago, and do not move it back when they are elected.
    pub fn observe(&mut self, now: Duration, assignment: &Assignment) {
        self.seen = self.seen.max(Some(assignment.version()));
        match &mut self.balancer {
            Some(balancer) => {
                if balancer.adopt(assignment.clone(), now) {
                    self.plan = None;
                }
            }
            None => {
                self.balancer = Balancer::new(self.config.clone(), assignment.clone(), now).ok();
            }
        }
    }

    /// Hears that somebody goes by this version. If it is newer than what is
    /// known here, the store is asked again, and nothing is published until it
    /// has caught up.
    pub fn heard_of(&mut self, version: AssignmentVersion) {
        if self.seen < Some(version) {
            self.seen = Some(version);
            self.doubt();
        }
    }

    /// The store is not what it was: it is asked again before anything is
    /// published.
    pub fn doubt(&mut self) {
        self.loaded = false;
        self.plan = None;
    }

    /// Goes on from the store's assignment under a new incarnation, newer than
    /// anything in use: the answer to [`StoreError::Behind`] of a person who
    /// knows that the store will not catch up.
    pub fn begin_incarnation(&mut self) {
        let seen = self.seen.map_or(0, |seen| seen.incarnation);
        self.leaves_incarnation = Some(seen);
    }

    /// Likewise where the store has nothing: from this map, which servers have
    /// told, so that nothing moves.
    pub fn recover(&mut self, map: Assignment) {
        self.recovered = Some(map);
        self.begin_incarnation();
    }

    /// Whether members are about to leave that are still among them: who has gone is then
    /// replaced in the next round, lest one of those takes its place.
    pub fn set_departing(&mut self, is_departing: bool) {
        self.is_departing = is_departing;
    }

    /// What to ask of the store now, under a number that the answer is handed
    /// back with; `None` if nothing is to be asked yet.
    pub fn poll_request(&mut self, now: Duration, members: &[Member]) -> Option<(u64, Request)> {
        if let Some(balancer) = &mut self.balancer {
            balancer.meet(now, members);
        }
        let leadership = match self.lead(now)? {
            Lead::Has(leadership) => leadership,
            Lead::Asks(id, request) => return Some((id, request)),
        };
        if !self.loaded {
            return Some(self.ask(now, Asked::Load, Request::Load));
        }
        // The keys of who has gone have no owner: they wait for no round.
        let is_member = |id: &ServerId| members.iter().any(|member| member.id == *id);
        let waits = self.is_departing || self.met.iter().all(is_member);
        if now < self.step_at && waits {
            return None;
        }
        let (expected, next) = self.propose(now, members)?;
        let request = Request::Swap {
            term: leadership.term,
            expected,
            next: next.clone(),
        };
        Some(self.ask(now, Asked::Swap(next), request))
    }

    /// What to ask of the store while it is not known who is a member: to lead, or to lead
    /// on. Who has lost its lead in that time hears of it, and stands for election again.
    pub fn poll_campaign(&mut self, now: Duration) -> Option<(u64, Request)> {
        if mutants::is(Mutant::CampaignHeldUp) {
            return None;
        }
        match self.lead(now)? {
            Lead::Has(_) => None,
            Lead::Asks(id, request) => Some((id, request)),
        }
    }

    /// Whether it leads, or asks to; `None` if it waits for an answer, or for its time.
    fn lead(&mut self, now: Duration) -> Option<Lead> {
        if let Some(pending) = &self.pending {
            if now.saturating_sub(pending.sent) < self.options.reply_timeout {
                return None;
            }
            // It may have been carried out: the next load will tell.
            self.pending = None;
            self.loaded = false;
            self.plan = None;
            self.tell(AssignerEvent::Unanswered);
        }
        if self.leadership.is_some() && !self.leads(now) {
            self.depose();
        }
        if now < self.not_before {
            return None;
        }
        let for_ever = mutants::is(Mutant::FormerLeaderPublishes);
        let leadership = self.leadership;
        if let Some(leadership) = leadership.filter(|l| now < l.renew_at || for_ever) {
            return Some(Lead::Has(leadership));
        }
        let request = Request::Campaign {
            candidate: self.options.candidate,
            lease: self.options.lease,
        };
        let (id, request) = self.ask(now, Asked::Campaign, request);
        Some(Lead::Asks(id, request))
    }

    /// Takes the answer to the request with this number; late ones are ignored.
    pub fn handle_reply(&mut self, now: Duration, id: u64, result: Result<Reply, StoreError>) {
        let Some(pending) = self.pending.take_if(|pending| pending.id == id) else {
            return;
        };
        match (pending.asked, result) {
            (Asked::Campaign, Ok(Reply::Elected { term })) => self.elected(term, pending.sent),
            (Asked::Campaign, Ok(_)) => {
                self.depose();
                self.not_before = now + self.options.step_every;
            }
            (Asked::Load, Ok(Reply::Loaded(found))) => self.take_over(now, found),
            (Asked::Swap(next), Ok(Reply::Swapped(version))) => {
                self.published(now, next, version);
            }
            (_, Ok(_)) => self.loaded = false,
            (_, Err(error)) => {
                if matches!(error, StoreError::NotLeader { .. }) {
                    self.depose();
                }
                self.loaded = false;
                self.plan = None;
                self.not_before = now + self.options.step_every;
                self.tell(AssignerEvent::Store(error));
            }
        }
    }

    /// What has happened, in order.
    pub fn poll_event(&mut self) -> Option<AssignerEvent> {
        self.events.pop_front()
    }

    fn ask(&mut self, now: Duration, asked: Asked, request: Request) -> (u64, Request) {
        self.requests += 1;
        self.pending = Some(Pending {
            id: self.requests,
            sent: now,
            asked,
        });
        (self.requests, request)
    }

    fn tell(&mut self, event: AssignerEvent) {
        if self.events.len() == EVENTS_MAX {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    fn elected(&mut self, term: u64, sent: Duration) {
        let before = self.leadership.map(|leadership| leadership.term);
        // From when the question left: the store's lease ends no earlier.
        self.leadership = Some(Leadership {
            term,
            renew_at: sent + self.options.lease / 3,
            believed_until: sent + self.options.lease * 2 / 3,
        });
        if before != Some(term) {
            self.loaded = false;
            if let Some(balancer) = &mut self.balancer {
                balancer.look_first(sent);
            }
            self.tell(AssignerEvent::Elected { term });
        }
    }

    fn depose(&mut self) {
        if self.leadership.take().is_some() {
            self.loaded = false;
            self.plan = None;
            self.tell(AssignerEvent::Deposed);
        }
    }

    /// Goes on from what the store has.
    fn take_over(&mut self, now: Duration, found: Option<Assignment>) {
        let store = found.as_ref().map(Assignment::version);
        let heard = self.reports.values().map(|(_, report)| report.version);
        self.seen = self.seen.max(heard.max());
        if let Some(seen) = self.seen.filter(|&seen| store < Some(seen))
            && self.leaves_incarnation.is_none()
        {
            self.not_before = now + self.options.step_every;
            self.tell(AssignerEvent::Store(StoreError::Behind { store, seen }));
            return;
        }
        self.loaded = true;
        self.seen = self.seen.max(store);
        let Some(found) = found else {
            self.balancer = None;
            return;
        };
        match &mut self.balancer {
            Some(balancer) if balancer.assignment() == &found => {}
            Some(balancer) if balancer.assignment().version() < found.version() => {
                balancer.adopt(found, now);
            }
            _ => match Balancer::new(self.config.clone(), found, now) {
                Ok(balancer) => self.balancer = Some(balancer),
                // The thresholds were checked when they came in.
                Err(_) => self.loaded = false,
            },
        }
    }

    /// What has to be in force and what to put there.
    fn propose(
        &mut self,
        now: Duration,
        members: &[Member],
    ) -> Option<(Option<AssignmentVersion>, Assignment)> {
        self.step_at = now + self.options.step_every;
        self.met = members.iter().map(|member| member.id).collect();
        if let (Some(seen), Some(_)) = (self.seen, self.leaves_incarnation) {
            let next = seen.incarnation.saturating_add(1);
            let version = AssignmentVersion::first_of(next.max(self.options.first.incarnation));
            let expected = self.assignment().map(Assignment::version);
            let next = match self.assignment().or(self.recovered.as_ref()) {
                Some(assignment) => assignment.clone().renumbered(version),
                None => self.first(version, members)?,
            };
            return Some((expected, next));
        }
        // What came while nothing could be done is no word of the present: a
        // server that has fallen silent since must not look alive.
        let age_max = self.options.step_every * 3 / 2;
        let reports: Vec<ServerReport> = std::mem::take(&mut self.reports)
            .into_values()
            .inspect(|(_, report)| self.seen = self.seen.max(Some(report.version)))
            .filter(|(at, _)| now.saturating_sub(*at) <= age_max)
            .map(|(_, report)| report)
            .collect();
        let Some(balancer) = &mut self.balancer else {
            let first = self.first(self.options.first, members)?;
            return Some((None, first));
        };
        let plan = match balancer.step(now, members, &reports) {
            Ok(plan) => plan,
            Err(error) => {
                self.tell(AssignerEvent::Step(error));
                return None;
            }
        };
        if plan
            .notes
            .iter()
            .any(|note| matches!(note, Note::Ahead { .. }))
        {
            self.loaded = false;
        }
        let next = plan.next.clone().map(|next| (Some(plan.base), next));
        self.tell(AssignerEvent::Planned(plan.clone()));
        self.plan = Some(plan);
        next
    }

    /// A first assignment, once there is somebody to assign to.
    fn first(&self, version: AssignmentVersion, members: &[Member]) -> Option<Assignment> {
        let servers: Vec<ServerId> = members.iter().map(|member| member.id).collect();
        (!servers.is_empty()).then(|| {
            Assignment::even(
                version,
                &servers,
                self.options.slices_per_server,
                self.config.replicas_min,
            )
        })
    }

    fn published(&mut self, now: Duration, next: Assignment, version: AssignmentVersion) {
        self.seen = self.seen.max(Some(version));
        // The answer may be to a swap that was under way before.
        self.leaves_incarnation = self
            .leaves_incarnation
            .filter(|&left| version.incarnation <= left);
        self.recovered = None;
        match (&mut self.balancer, self.plan.take()) {
            (Some(balancer), Some(plan)) if plan.next.as_ref() == Some(&next) => {
                balancer.commit(&plan, now);
            }
            (Some(balancer), _) => {
                balancer.adopt(next, now);
            }
            (None, _) => self.loaded = false,
        }
        self.tell(AssignerEvent::Published(version));
    }
}
