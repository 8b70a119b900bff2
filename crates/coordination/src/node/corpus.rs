//! One corpus of an assigner: a task that owns `sharder`'s assigner and the
//! table of members, and does one thing after the other.
//!
//! ```text
//!   commands (register, keep-alive, report, …) ─┐
//!   answers of the store ───────────────────────┼──► Driver ──► requests to the store
//!   the store's state, as it is followed ───────┤      │
//!   a tick every 50 ms ─────────────────────────┘      └──► replies
//! ```
//!
//! Nothing here waits for the store: requests run beside the task, and their
//! answers come back as events.

use super::options::NodeOptions;
use super::problems::{Seen, problems};
use super::said::Heard;
use super::status::{CorpusStatus, MemberStatus, Recent, SliceStatus, Totals};
use super::table::{Admission, MemberTable};
use crate::clock::BootInstant;
use crate::error::Refusal;
use crate::limits::{STORE_TIMEOUT, TICK};
use crate::link::{KeepAlive, Registration};
use crate::store::{CorpusState, CorpusStore, Roll, Writer};
use crate::vitals::Report;
use crate::wire::MemberRecord;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::{mpsc, oneshot, watch};
use trefoil_sharder::coordination::{
    Forgotten, LeaseTerms, Recovery, Reply as StoreReply, Request, StoreError,
};
use trefoil_sharder::{
    Assigner, AssignerEvent, AssignerOptions, AssignmentVersion, BalanceConfig, ConfigError,
    Freeze, Member, MemberState, Plan, ServerId, Slice,
};

/// Slices that are shown, of each order.
const HOTTEST_MAX: usize = 10;

/// An answer that somebody waits for.
pub(crate) type Reply<T> = oneshot::Sender<Result<T, Refusal>>;

/// What is asked of the task.
pub(crate) enum Command {
    Register {
        registration: Registration,
        /// Its last lease is from this assigner's address.
        granted_here: bool,
        reply: Reply<Duration>,
    },
    KeepAlive {
        call: KeepAlive,
        reply: Reply<Duration>,
    },
    Leave {
        id: ServerId,
        life: u64,
        reply: Reply<()>,
    },
    Report {
        report: Report,
        reply: Reply<()>,
    },
    SetFreeze {
        freeze: Freeze,
        reply: Reply<()>,
    },
    BeginIncarnation {
        reply: Reply<()>,
    },
    Status {
        reply: Reply<CorpusStatus>,
    },
    /// Stops leading, so that somebody else need not wait.
    Resign {
        reply: Reply<()>,
    },
}

impl Command {
    fn name(&self) -> &'static str {
        match self {
            Command::Register { .. } => "register",
            Command::KeepAlive { .. } => "keep-alive",
            Command::Leave { .. } => "leave",
            Command::Report { .. } => "report",
            Command::SetFreeze { .. } => "set-freeze",
            Command::BeginIncarnation { .. } => "begin-incarnation",
            Command::Status { .. } => "status",
            Command::Resign { .. } => "resign",
        }
    }
}

/// What the store has answered.
enum Answer {
    Request(u64, Result<StoreReply, StoreError>),
    Roll(u64, Result<Roll, StoreError>),
    /// With when it was asked for.
    Inserted(
        u64,
        Duration,
        MemberRecord,
        Reply<Duration>,
        Result<(), StoreError>,
    ),
    Updated(u64, MemberRecord, Reply<Duration>, Result<(), StoreError>),
    Removed(u64, ServerId, Option<Reply<()>>, Result<(), StoreError>),
    Frozen(u64, Freeze, Reply<()>, Result<(), StoreError>),
    Lease(u64, Duration, Result<(), StoreError>),
}

/// What a leader knows in his term.
struct Term {
    term: u64,
    /// Counts elections: the same term may be won again.
    election: u64,
    /// The store had an assignment when it began.
    resumes: bool,
    /// What servers tell, where it had none.
    forgotten: Forgotten,
    /// `None` until the store's roll has come, and the store says how long
    /// leases may be.
    table: Option<MemberTable>,
    asked_at: Option<Duration>,
    /// When the store was asked to record shorter leases.
    shortened_at: Option<Duration>,
    /// It goes on from what servers have told.
    recovering: bool,
}

pub(crate) struct Driver {
    corpus: String,
    options: Arc<NodeOptions>,
    config: BalanceConfig,
    assigner: Assigner,
    store: CorpusStore,
    writer: Writer,
    state: watch::Receiver<Arc<CorpusState>>,
    cut: watch::Receiver<bool>,
    origin: BootInstant,
    last_tick: Duration,
    term: Option<Term>,
    elections: u64,
    freeze: Freeze,
    /// The switch, and the replicas that members ask for, as the assigner has
    /// them.
    applied: (Freeze, usize),
    /// The store had nothing, nobody remembered anything, and this assigner has
    /// made the first assignment.
    dealt_anew: bool,
    /// Writes and removals of members that are under way.
    writing: BTreeMap<ServerId, usize>,
    gathering_since: Option<Duration>,
    /// It is about to end: it does not stand for election again.
    resigned: bool,
    /// As of the last round.
    plan: Option<Plan>,
    announced: BTreeSet<String>,
    error: Option<StoreError>,
    recent: Recent,
    totals: Totals,
    /// Nobody is heard any more, and that was said.
    is_deaf: bool,
    /// What servers have said last.
    heard: Heard,
    answers: (
        mpsc::UnboundedSender<Answer>,
        mpsc::UnboundedReceiver<Answer>,
    ),
}

impl Driver {
    /// Whether it never stands for election.
    pub(crate) fn resigned(self, resigned: bool) -> Self {
        Driver { resigned, ..self }
    }

    pub(crate) fn new(
        corpus: &str,
        options: Arc<NodeOptions>,
        store: CorpusStore,
        writer: Writer,
        cut: watch::Receiver<bool>,
    ) -> Result<Self, ConfigError> {
        let config = options.balance_of(corpus);
        let usual = AssignerOptions::new(writer.candidate);
        let assigner = Assigner::new(
            AssignerOptions {
                lease: options.leader_lease,
                step_every: options.step_every,
                // A little more, so that the store's own error is heard.
                reply_timeout: STORE_TIMEOUT * 3,
                slices_per_server: options.slices_per_server,
                first: match store.is_sole() {
                    true => AssignmentVersion::deal(incarnation_of_this_process()),
                    false => usual.first,
                },
                ..usual
            },
            config.clone(),
        )?;
        Ok(Driver {
            corpus: corpus.to_owned(),
            state: store.watch(),
            options,
            freeze: config.freeze,
            applied: (config.freeze, 1),
            config,
            assigner,
            store,
            writer,
            cut,
            origin: BootInstant::now(),
            last_tick: Duration::ZERO,
            term: None,
            elections: 0,
            dealt_anew: false,
            writing: BTreeMap::new(),
            gathering_since: None,
            resigned: false,
            plan: None,
            announced: BTreeSet::new(),
            error: None,
            recent: Recent::default(),
            totals: Totals::default(),
            is_deaf: false,
            heard: Heard::default(),
            answers: mpsc::unbounded_channel(),
        })
    }

    pub(crate) async fn run(mut self, mut commands: mpsc::Receiver<Command>) {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                Some(answer) = self.answers.1.recv() => self.take(answer),
                command = commands.recv() => match command {
                    Some(command) => self.handle(command),
                    None => return,
                },
                changed = self.state.changed() => match changed {
                    Ok(()) => self.look(),
                    Err(_) => return,
                },
                _ = ticks.tick() => {}
            }
            // Cut off for a test: it stands still, as a stopped process does.
            if !*self.cut.borrow() && !self.resigned {
                self.turn();
            }
        }
    }

    fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    /// The store's state has changed.
    fn look(&mut self) {
        let state = Arc::clone(&self.state.borrow_and_update());
        match (&state.assignment, &state.behind) {
            (Some(assignment), None) => self.assigner.observe(self.now(), assignment),
            (None, None) => {}
            // Replaced by an older one, perhaps between two requests.
            (_, Some(_)) => self.assigner.doubt(),
        }
    }

    /// Does what is due.
    fn turn(&mut self) {
        let _span = tracing::trace_span!("assigner.turn", corpus = self.corpus).entered();
        let now = self.now();
        let gap = now.saturating_sub(self.last_tick);
        self.last_tick = now;
        if gap > self.options.lease / 4
            && let Some(table) = self.term.as_mut().and_then(|term| term.table.as_mut())
        {
            tracing::warn!(corpus = self.corpus, ?gap, "this assigner has stood still");
            table.stood_still(gap);
        }
        self.call_roll(now);
        self.shorten_leases(now);
        self.strike_off(now);
        self.recover(now);
        let Some(members) = self.members(now) else {
            // Who has lost its lead before it knew who is a member stands for election again.
            if let Some((id, request)) = self.assigner.poll_campaign(now) {
                self.ask_for_assigner(id, request);
            }
            self.events(now);
            return;
        };
        self.configure(now);
        let table = self.term.as_ref().and_then(|term| term.table.as_ref());
        // Nobody is given what its owner has lost while it is being struck off itself.
        self.assigner
            .set_departing(table.is_some_and(MemberTable::has_dropped));
        if let Some((id, request)) = self.assigner.poll_request(now, &members) {
            self.ask_for_assigner(id, request);
        }
        self.events(now);
    }

    fn ask_for_assigner(&self, id: u64, request: Request) {
        self.ask(move |store| async move { Answer::Request(id, store.request(request).await) });
    }

    /// Whom the balancer may count on; `None` while that is not known.
    fn members(&mut self, now: Duration) -> Option<Vec<Member>> {
        let members = match &self.term {
            // It only campaigns.
            None => {
                let servers = &self.state.borrow().servers;
                servers.iter().map(|(&id, info)| info.member(id)).collect()
            }
            Some(term) => term.table.as_ref()?.members(),
        };
        if self.assigner.assignment().is_some() {
            self.gathering_since = None;
            return Some(members);
        }
        // Before the first assignment: wait for more than the first.
        if members.is_empty() {
            self.gathering_since = None;
            return Some(members);
        }
        let since = *self.gathering_since.get_or_insert(now);
        let gathering = now.saturating_sub(since) < self.options.gather;
        Some(if gathering || self.may_have_forgotten(now) {
            Vec::new()
        } else {
            members
        })
    }

    /// The store has nothing, which is also what a store has that has just
    /// forgotten everything: servers that nobody knows of may hold leases.
    fn may_have_forgotten(&self, now: Duration) -> bool {
        // Without a service there was nobody to grant any.
        let could = self.store.is_sole() && !self.options.address.is_empty();
        let table = self.term.as_ref().and_then(|term| term.table.as_ref());
        could && table.is_some_and(|table| !table.leases.settled(now))
    }

    /// A store that has forgotten everything, and belongs to this process
    /// alone: goes on from what servers tell, once all their leases have ended.
    fn recover(&mut self, now: Duration) {
        if !self.store.is_sole() || self.version().is_some() || !self.assigner.leads(now) {
            return;
        }
        let Some(Term {
            forgotten,
            table: Some(table),
            recovering,
            ..
        }) = &mut self.term
        else {
            return;
        };
        // Who is being written down is judged with the others.
        if *recovering || !self.writing.is_empty() {
            return;
        }
        if let Recovery::GoOn { map, struck_off } = forgotten.recovery(now, &table.leases) {
            *recovering = true;
            for &id in &struck_off {
                table.drop_member(id);
            }
            tracing::warn!(
                corpus = self.corpus,
                last = %map.version(),
                struck_off = struck_off.len(),
                "the store has forgotten everything; every lease that it may have granted has \
                 ended: the map goes on under a new incarnation"
            );
            self.totals.recoveries += 1;
            self.assigner.recover(map);
            self.error = None;
        }
    }

    /// Once the longer leases of a predecessor have ended the store need not
    /// say any more that there are some.
    fn shorten_leases(&mut self, now: Duration) {
        if !self.assigner.leads(now) {
            return;
        }
        let Some(Term {
            term,
            election,
            table: Some(table),
            shortened_at,
            ..
        }) = &mut self.term
        else {
            return;
        };
        let again = shortened_at.is_none_or(|at| now.saturating_sub(at) > STORE_TIMEOUT * 2);
        if let Some(lease) = table.leases.shorter(now).filter(|_| again) {
            *shortened_at = Some(now);
            let (term, election) = (*term, *election);
            self.ask(move |store| async move {
                Answer::Lease(election, lease, store.set_lease(term, lease).await)
            });
        }
    }

    /// A new leader asks the store who is a member, and sees to it that the
    /// store knows of leases as long as its own before it grants one.
    fn call_roll(&mut self, now: Duration) {
        let Some(term) = &mut self.term else { return };
        let again = term
            .asked_at
            .is_none_or(|at| now.saturating_sub(at) > STORE_TIMEOUT * 2);
        if term.table.is_none() && again {
            term.asked_at = Some(now);
            let (term, election) = (term.term, term.election);
            let own = self.options.lease;
            self.ask(move |store| async move {
                Answer::Roll(election, call_roll(&store, term, own).await)
            });
        }
    }

    /// Strikes off those whose leases have ended, and records in the store
    /// that nobody here has written.
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
        let (term, election) = (*term, *election);
        let is_deaf = table.deaf(now).is_some();
        if is_deaf && !std::mem::replace(&mut self.is_deaf, is_deaf) {
            tracing::warn!(
                corpus = self.corpus,
                "no server is heard any more: is this assigner cut off? Nobody is struck off \
                 while that is so"
            );
        }
        self.is_deaf = is_deaf;
        let mut ids = table.expire(now);
        let known = table.ids();
        {
            let state = self.state.borrow();
            if state.behind.is_none() {
                ids.extend(state.servers.keys().filter(|id| !known.contains(id)));
            }
        }
        ids.retain(|id| !self.writing.contains_key(id));
        for id in ids {
            tracing::info!(corpus = self.corpus, server = %id, "its lease has ended");
            self.remove(term, election, id, None);
        }
    }

    fn remove(&mut self, term: u64, election: u64, id: ServerId, reply: Option<Reply<()>>) {
        *self.writing.entry(id).or_default() += 1;
        self.ask(move |store| async move {
            Answer::Removed(election, id, reply, store.remove_member(term, id).await)
        });
    }

    /// Nothing moves before those who are alive have had the time to come back
    /// and to say what they know. The store may be an old copy: it may have
    /// forgotten servers, or have assignments that others were told of under
    /// the same version.
    ///
    /// Every slice has as many replicas as the members ask for, even where the
    /// flags say less: what a commit is worth is decided by the servers.
    fn configure(&mut self, now: Duration) {
        let freeze = if self.is_resuming(now) {
            Freeze::All
        } else {
            self.freeze
        };
        let table = self.term.as_ref().and_then(|term| term.table.as_ref());
        let asked = table.map_or(1, MemberTable::copies_min);
        if (freeze, asked) == self.applied {
            return;
        }
        let replicas_min = self.config.replicas_min.max(asked);
        let config = BalanceConfig {
            freeze,
            replicas_min,
            replicas_max: self.config.replicas_max.max(replicas_min),
            ..self.config.clone()
        };
        match self.assigner.configure(config) {
            Ok(()) => {
                if asked > self.config.replicas_min && asked != self.applied.1 {
                    tracing::info!(
                        corpus = self.corpus,
                        asked,
                        configured = self.config.replicas_min,
                        "servers ask for more replicas than this assigner was started with"
                    );
                }
                self.applied = (freeze, asked);
            }
            Err(error) => tracing::error!(corpus = self.corpus, %error, "thresholds"),
        }
    }

    /// Whether this assigner has taken up an assignment less than a lease ago.
    fn is_resuming(&self, now: Duration) -> bool {
        self.term.as_ref().is_some_and(|term| {
            let table = term.table.as_ref();
            term.resumes && table.is_none_or(|table| !table.leases.settled(now))
        })
    }

    /// Runs a request beside the task.
    fn ask<F>(&self, request: impl FnOnce(CorpusStore) -> F)
    where
        F: Future<Output = Answer> + Send + 'static,
    {
        let answers = self.answers.0.clone();
        let request = request(self.store.clone());
        tokio::spawn(async move {
            let _ = answers.send(request.await);
        });
    }

    fn events(&mut self, now: Duration) {
        while let Some(event) = self.assigner.poll_event() {
            match event {
                AssignerEvent::Elected { term } => {
                    tracing::info!(corpus = self.corpus, term, "this assigner leads");
                    self.elections += 1;
                    self.totals.elections += 1;
                    self.error = None;
                    self.term = Some(Term {
                        term,
                        election: self.elections,
                        resumes: false,
                        forgotten: Forgotten::default(),
                        table: None,
                        asked_at: None,
                        shortened_at: None,
                        recovering: false,
                    });
                }
                AssignerEvent::Deposed => {
                    tracing::info!(corpus = self.corpus, "this assigner does not lead any more");
                    self.term = None;
                }
                AssignerEvent::Planned(plan) => {
                    // A step is made only with what was loaded.
                    self.error = None;
                    self.announce(&plan);
                    self.plan = Some(plan);
                }
                AssignerEvent::Published(version) => self.published(now, version),
                AssignerEvent::Store(error) => self.failed(error),
                AssignerEvent::Unanswered => {
                    self.failed(StoreError::Unavailable("it does not answer".to_owned()));
                }
                AssignerEvent::Step(error) => {
                    tracing::error!(corpus = self.corpus, %error, "balancing");
                }
            }
        }
    }

    fn published(&mut self, now: Duration, version: AssignmentVersion) {
        self.totals.assignments += 1;
        self.error = None;
        self.dealt_anew |= version.is_deal() && self.store.is_sole();
        let name = shown(version);
        let changes = match &self.plan {
            Some(plan) if plan.next.as_ref().map(|next| next.version()) == Some(version) => {
                self.totals.moves += plan.move_count() as u64;
                self.totals.moved_bytes += plan.churn.bytes as u64;
                self.totals.lost_slices += plan.lost().count() as u64;
                plan.changes.iter().map(ToString::to_string).collect()
            }
            _ => vec!["a first deal".to_owned()],
        };
        for what in changes {
            tracing::info!(corpus = self.corpus, version = name, "{what}");
            self.recent.push(now, &name, what);
        }
    }

    fn failed(&mut self, error: StoreError) {
        self.totals.store_errors += 1;
        if self.error.as_ref() != Some(&error) {
            tracing::warn!(corpus = self.corpus, %error, "the map stays as it is");
        }
        self.error = Some(error);
    }

    /// What does not fit is logged when it begins, not every round.
    fn announce(&mut self, plan: &Plan) {
        let kinds: BTreeSet<String> = plan
            .overloaded
            .iter()
            .map(|overloaded| match overloaded {
                trefoil_sharder::Overloaded::Cluster { metric, .. } => format!("all {metric}"),
                trefoil_sharder::Overloaded::Server { server, metric, .. } => {
                    format!("{server} {metric}")
                }
                trefoil_sharder::Overloaded::Key { point, .. } => point.to_string(),
            })
            .collect();
        if !kinds.is_subset(&self.announced) {
            for overloaded in &plan.overloaded {
                tracing::warn!(corpus = self.corpus, "{overloaded}");
            }
        }
        self.announced = kinds;
    }

    fn take(&mut self, answer: Answer) {
        let now = self.now();
        match answer {
            Answer::Request(id, result) => {
                self.assigner.handle_reply(now, id, result);
                self.events(now);
            }
            Answer::Roll(election, result) => self.take_roll(now, election, result),
            Answer::Inserted(election, asked, record, reply, result) => {
                self.written(record.id);
                let is_written = result.is_ok();
                let answer = self.confirm(now, election, result, |table| {
                    table.insert(now, asked, record)
                });
                let answer = answer.map_err(|refusal| match refusal {
                    // Who is told that this one does not lead takes itself for no member.
                    Refusal::NotLeading { .. } if is_written => Refusal::Store(
                        "it was written, and this assigner does not lead any more: ask again"
                            .to_owned(),
                    ),
                    refusal => refusal,
                });
                let _ = reply.send(answer.map(|()| self.options.lease));
            }
            Answer::Updated(election, record, reply, result) => {
                self.written(record.id);
                let answer = self.confirm(now, election, result, |table| table.update(now, record));
                let _ = reply.send(answer.map(|()| self.options.lease));
            }
            Answer::Removed(election, id, reply, result) => {
                self.written(id);
                let left = reply.is_some();
                let answer = self.confirm(now, election, result, |table| {
                    table.remove(now, id);
                    Ok(())
                });
                if answer.is_ok() {
                    self.totals.expired += u64::from(!left);
                }
                if let Some(reply) = reply {
                    let _ = reply.send(answer);
                }
            }
            Answer::Lease(election, lease, result) => {
                // If it failed it is asked again; until then the store says
                // more than is so, which only takes time.
                let _ = self.confirm(now, election, result, |table| {
                    table.leases.record(lease);
                    Ok(())
                });
            }
            Answer::Frozen(election, freeze, reply, result) => {
                let answer = self.confirm(now, election, result, |_| Ok(()));
                if answer.is_ok() {
                    self.freeze = freeze;
                }
                let _ = reply.send(answer);
            }
        }
    }

    fn take_roll(&mut self, now: Duration, election: u64, result: Result<Roll, StoreError>) {
        let version = self.version();
        let Some(term) = self
            .term
            .as_mut()
            .filter(|term| term.election == election && term.table.is_none())
        else {
            return;
        };
        match result {
            Ok(roll) => {
                // Members that an old copy does not know are asked to register
                // again at once: it has to be known by then why it does not.
                if let Some(seen) = version.filter(|&seen| roll.version < Some(seen)) {
                    self.error = Some(StoreError::Behind {
                        store: roll.version,
                        seen,
                    });
                }
                term.resumes = roll.version.is_some();
                let leases = LeaseTerms::new(self.options.lease, now, roll.lease);
                if leases.recorded() > self.options.lease {
                    tracing::warn!(
                        corpus = self.corpus,
                        lease = ?self.options.lease,
                        former = ?leases.recorded(),
                        "the assigner before this one granted longer leases: they are waited for"
                    );
                }
                term.table = Some(MemberTable::new(leases, now, roll.members));
                self.freeze = roll.freeze;
            }
            Err(error) => self.failed(error),
        }
    }

    /// A write of this election has been answered: if it was carried out, and
    /// this assigner still leads, it counts.
    fn confirm(
        &mut self,
        now: Duration,
        election: u64,
        result: Result<(), StoreError>,
        apply: impl FnOnce(&mut MemberTable) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        result.map_err(|error| match error {
            StoreError::NotLeader { .. } => self.not_leading(),
            error => Refusal::from(error),
        })?;
        let not_leading = self.not_leading();
        let leads = self.assigner.leads(now);
        let table = self
            .term
            .as_mut()
            .filter(|term| term.election == election)
            .and_then(|term| term.table.as_mut())
            .ok_or(not_leading.clone())?;
        apply(table)?;
        if leads { Ok(()) } else { Err(not_leading) }
    }

    fn written(&mut self, id: ServerId) {
        if let Some(count) = self.writing.get_mut(&id) {
            *count -= 1;
            if *count == 0 {
                self.writing.remove(&id);
            }
        }
    }

    fn not_leading(&self) -> Refusal {
        let state = self.state.borrow();
        let address = state
            .leader
            .as_ref()
            .filter(|leader| leader.candidate != self.writer.candidate)
            .map(|leader| leader.address.clone())
            .filter(|address| !address.is_empty());
        Refusal::NotLeading { address }
    }

    /// The newest version that this assigner knows to be in force.
    fn version(&self) -> Option<AssignmentVersion> {
        let balanced = self.assigner.assignment().map(|found| found.version());
        self.state.borrow().version().max(balanced)
    }

    /// Somebody knows this much. While that is more than the store has,
    /// nobody's lease is extended: another store may be in use.
    fn compare(&mut self, known: Option<AssignmentVersion>) -> Result<(), Refusal> {
        let have = self.version();
        if let Some(seen) = known.filter(|&seen| Some(seen) > have) {
            self.assigner.heard_of(seen);
            return Err(Refusal::Behind { store: have, seen });
        }
        let told = self.state.borrow().behind.clone();
        match told.as_ref().or(self.error.as_ref()) {
            Some(StoreError::Behind { store, seen }) => Err(Refusal::Behind {
                store: *store,
                seen: *seen,
            }),
            _ => Ok(()),
        }
    }

    fn handle(&mut self, command: Command) {
        let name = command.name();
        let _span = tracing::debug_span!("assigner.command", corpus = self.corpus, name).entered();
        let now = self.now();
        match command {
            Command::Register {
                registration,
                granted_here,
                reply,
            } => self.register(now, registration, granted_here, reply),
            Command::KeepAlive { call, reply } => self.keep_alive(now, call, reply),
            Command::Leave { id, life, reply } => match self.leading(now) {
                Err(refusal) => drop(reply.send(Err(refusal))),
                Ok((term, election, table)) => {
                    if table.may_leave(id, life) {
                        self.remove(term, election, id, Some(reply));
                    } else {
                        table.has_left(now, id, life);
                        let _ = reply.send(Ok(()));
                    }
                }
            },
            Command::Report { report, reply } => {
                // Those that do not lead listen, too.
                self.totals.reports += 1;
                let members = Arc::clone(&self.state.borrow().servers);
                self.heard.hear(now, &report, &members);
                self.assigner.hear(now, report.load);
                let answer = self.leading(now).map(|_| ());
                let _ = reply.send(answer);
            }
            Command::SetFreeze { freeze, reply } => match self.leading(now) {
                Err(refusal) => drop(reply.send(Err(refusal))),
                Ok((term, election, _)) => self.ask(move |store| async move {
                    let result = store.set_freeze(term, freeze).await;
                    Answer::Frozen(election, freeze, reply, result)
                }),
            },
            Command::BeginIncarnation { reply } => {
                let answer = self.leading(now).map(|_| ());
                if answer.is_ok() {
                    self.assigner.begin_incarnation();
                    // The next answers are measured by what comes of it.
                    self.error = None;
                }
                let _ = reply.send(answer);
            }
            Command::Status { reply } => {
                let _ = reply.send(Ok(self.status(now)));
            }
            Command::Resign { reply } => {
                self.resigned = true;
                match self.term.take() {
                    None => drop(reply.send(Ok(()))),
                    Some(term) => {
                        let request = Request::Resign {
                            candidate: self.writer.candidate,
                            term: term.term,
                        };
                        let store = self.store.clone();
                        tokio::spawn(async move {
                            let result = store.request(request).await;
                            let _ = reply.send(result.map(|_| ()).map_err(Refusal::from));
                        });
                    }
                }
            }
        }
    }

    /// The table, if this assigner leads and knows it.
    fn leading(&mut self, now: Duration) -> Result<(u64, u64, &mut MemberTable), Refusal> {
        let not_leading = self.not_leading();
        let leads = self.assigner.leads(now);
        match &mut self.term {
            Some(Term {
                term,
                election,
                table: Some(table),
                ..
            }) if leads => Ok((*term, *election, table)),
            _ => Err(not_leading),
        }
    }

    fn register(
        &mut self,
        now: Duration,
        registration: Registration,
        granted_here: bool,
        reply: Reply<Duration>,
    ) {
        let Registration {
            record,
            known,
            again,
            granted,
            told,
        } = registration;
        let lease = self.options.lease;
        if self.was_dealt_to_others(now, &record, known, granted_here) {
            return drop(reply.send(Err(Refusal::Expired)));
        }
        // A store that is behind, or has nothing at all, may have forgotten a
        // member; one that is not, has not.
        let have = self.version();
        let trusted = known > have;
        let behind = self.compare(known);
        if let Err(refusal) = self.leading(now) {
            return drop(reply.send(Err(refusal)));
        }
        let Some(Term {
            term,
            election,
            forgotten,
            table: Some(table),
            ..
        }) = &mut self.term
        else {
            return drop(reply.send(Err(self.not_leading())));
        };
        let (term, election) = (*term, *election);
        let trusted = trusted || (behind.is_err() && known.is_some());
        if let Some(known) = known.filter(|_| have.is_none()) {
            if let Some(grant) = granted {
                table.leases.heard_of(grant.lease);
            }
            forgotten.hear(record.id, known, told, granted_here);
        }
        if self.writing.contains_key(&record.id) && !table.knows(record.id) {
            let why = "what was asked before of this server is being written: ask again";
            let not_yet = behind.and(Err(Refusal::Store(why.to_owned())));
            return drop(reply.send(not_yet));
        }
        let admission = table.admit(now, &record, again, trusted);
        match admission {
            Err(refusal) => drop(reply.send(Err(refusal))),
            Ok(Admission::Known) => drop(reply.send(behind.map(|()| lease))),
            Ok(admission) => {
                *self.writing.entry(record.id).or_default() += 1;
                // The record is written in any case, the lease is granted only
                // by a store that is up to date.
                let reply = match behind {
                    Ok(()) => reply,
                    Err(refusal) => {
                        let _ = reply.send(Err(refusal));
                        oneshot::channel().0
                    }
                };
                self.ask(move |store| async move {
                    let result = store.put_member(term, &record).await;
                    match admission {
                        Admission::Insert => Answer::Inserted(election, now, record, reply, result),
                        _ => Answer::Updated(election, record, reply, result),
                    }
                });
            }
        }
    }

    /// A server comes back that knows a map from before this store forgot
    /// everything. It was away for longer than its lease, and everything was
    /// dealt anew meanwhile: what it holds is somebody else's. Who knows a lower
    /// incarnation than that of the new deal is refused by the table; this is for one
    /// that knows a higher one, for the clock was set back in between.
    fn was_dealt_to_others(
        &mut self,
        now: Duration,
        record: &MemberRecord,
        known: Option<AssignmentVersion>,
        granted_here: bool,
    ) -> bool {
        let remembers = self.dealt_anew && granted_here && known > self.version();
        let leading = self.leading(now);
        let others = remembers && leading.is_ok_and(|(_, _, table)| !table.knows(record.id));
        if let Some(known) = known.filter(|_| others) {
            tracing::error!(
                corpus = self.corpus,
                server = %record.id,
                %known,
                dealt = ?self.version(),
                "a server knows a map from before everything was dealt anew that has a higher \
                 incarnation: this machine's clock has been set back. Callers that know it do \
                 not follow, and databases that keep tokens refuse the new ones. When you know \
                 that no other assigner is alive, set the clock right and start this one again"
            );
        }
        others
    }

    fn keep_alive(&mut self, now: Duration, call: KeepAlive, reply: Reply<Duration>) {
        let lease = self.options.lease;
        let behind = self.compare(call.known);
        let (term, election, table) = match self.leading(now) {
            Ok(leading) => leading,
            Err(refusal) => return drop(reply.send(Err(refusal))),
        };
        match table.keep_alive(now, call.id, call.life, call.state) {
            Err(refusal) => drop(reply.send(Err(refusal))),
            Ok(None) => drop(reply.send(behind.map(|()| lease))),
            Ok(Some(record)) => {
                if let Err(refusal) = behind {
                    return drop(reply.send(Err(refusal)));
                }
                *self.writing.entry(record.id).or_default() += 1;
                self.ask(move |store| async move {
                    let result = store.put_member(term, &record).await;
                    Answer::Updated(election, record, reply, result)
                });
            }
        }
    }

    fn status(&self, now: Duration) -> CorpusStatus {
        let state = Arc::clone(&self.state.borrow());
        let table = self.term.as_ref().and_then(|term| term.table.as_ref());
        let leads = self.assigner.leads(now) && table.is_some();
        let loads: BTreeMap<ServerId, f64> = self
            .plan
            .iter()
            .flat_map(|plan| &plan.loads)
            .map(|load| (load.server, load.after))
            .collect();
        let mut held: BTreeMap<ServerId, (usize, f64)> = BTreeMap::new();
        for assigned in state.assignment.iter().flat_map(|found| found.slices()) {
            for &server in &assigned.servers {
                let (slices, width) = held.entry(server).or_default();
                *slices += 1;
                *width += assigned.slice.fraction();
            }
        }
        let heard: BTreeMap<ServerId, Duration> = table
            .iter()
            .flat_map(|table| table.iter(now))
            .map(|(record, ago)| (record.id, ago))
            .collect();
        let members: Vec<MemberStatus> = state
            .servers
            .iter()
            .map(|(&id, info)| {
                // Those who do not lead hear nothing, or what was so once.
                let said = self.heard.of(id).filter(|_| leads);
                let (slices, key_space) = held.get(&id).copied().unwrap_or_default();
                MemberStatus {
                    id: id.0,
                    address: info.address.clone(),
                    state: match info.state {
                        MemberState::Serving => "serving",
                        MemberState::Frozen => "frozen",
                        MemberState::Draining => "draining",
                    },
                    slices,
                    key_space,
                    cpu: info.capacity.cpu,
                    bytes: info.capacity.bytes,
                    load: loads.get(&id).copied(),
                    heard_ms: heard.get(&id).map(|ago| ago.as_millis() as u64),
                    cpu_used: said.map(|said| said.cpu),
                    bytes_used: said.map(|said| said.bytes as u64),
                    requests: said.map(|said| said.requests),
                    vitals: said.and_then(|said| {
                        let mut vitals = said.vitals.clone()?;
                        if let Some(loss) = &mut vitals.last_loss {
                            loss.ago_ms += now.saturating_sub(said.at).as_millis() as u64;
                        }
                        Some(vitals)
                    }),
                }
            })
            .collect();
        let of_store = match (&state.unreadable, &self.error, &state.behind) {
            (Some(error), ..) => Some(error.to_string()),
            (None, Some(error), _) | (None, None, Some(error)) => Some(error.to_string()),
            (None, None, None) => None,
        };
        let of_leader = match of_store {
            Some(_) => None,
            None if self.is_resuming(now) => {
                Some("this assigner has just been elected: servers are coming back")
            }
            None if state.leader.is_none() => Some("nobody leads"),
            None => None,
        };
        let text = |items: &[String]| items.to_vec();
        let plan = self.plan.as_ref().filter(|_| leads);
        let problems = problems(&Seen {
            store: of_store.as_deref(),
            leader: of_leader,
            freeze: self.freeze,
            lease: self.options.lease,
            members: &members,
            plan,
        });
        CorpusStatus {
            corpus: self.corpus.clone(),
            leads,
            leader: match &state.leader {
                Some(leader) => leader.address.clone(),
                None => String::new(),
            },
            term: state.leader.as_ref().map_or(0, |leader| leader.term),
            version: state.version().map(shown),
            freeze: match self.freeze {
                Freeze::Off => "off",
                Freeze::OnlyDead => "only-dead",
                Freeze::All => "all",
            },
            frozen_because: of_store.or(of_leader.map(str::to_owned)),
            slices: state
                .assignment
                .as_ref()
                .map_or(0, |found| found.slices().len()),
            members,
            changes: self.recent.shown(now),
            overloaded: text(&shown_all(plan.map(|plan| plan.overloaded.as_slice()))),
            notes: text(&shown_all(plan.map(|plan| plan.notes.as_slice()))),
            problems,
            hottest: match leads {
                true => self.hottest(&state),
                false => Vec::new(),
            },
            totals: self.totals,
        }
    }

    /// The slices that cost most, of those of the map in force that their
    /// servers name among theirs.
    fn hottest(&self, state: &CorpusState) -> Vec<SliceStatus> {
        let mut known: BTreeMap<Slice, SliceStatus> = BTreeMap::new();
        let assigned = state.assignment.iter().flat_map(|found| found.slices());
        for assigned in assigned {
            for (place, &server) in assigned.servers.iter().enumerate() {
                let Some(said) = self.heard.of(server) else {
                    continue;
                };
                let mut named = said.hottest.iter();
                let Some(load) = named.find(|load| load.slice == assigned.slice) else {
                    continue;
                };
                let shown = known.entry(assigned.slice).or_insert_with(|| SliceStatus {
                    first: assigned.slice.start().to_string(),
                    last: assigned.slice.last().to_string(),
                    servers: assigned.servers.iter().map(|id| id.0).collect(),
                    ..SliceStatus::default()
                });
                shown.cpu += load.load.cpu_shared + load.load.cpu_each;
                shown.requests += load.load.requests;
                if place == 0 {
                    shown.bytes = load.load.bytes as u64;
                }
            }
        }
        let mut rest: Vec<SliceStatus> = known.into_values().collect();
        rest.sort_by(|a, b| b.cpu.total_cmp(&a.cpu));
        let mut hottest: Vec<SliceStatus> = rest.drain(..rest.len().min(HOTTEST_MAX)).collect();
        rest.sort_by_key(|slice| std::cmp::Reverse(slice.bytes));
        rest.truncate(HOTTEST_MAX);
        hottest.append(&mut rest);
        hottest
    }
}

/// An incarnation that is higher than all that earlier processes have begun:
/// milliseconds since 1970. A process that has a service deals nothing out before a
/// lease has gone by, which takes longer than that, and others are begun one by one
/// above what is known, which nobody does every millisecond. If the clock was set back
/// it may be lower: then what servers remember is gone on from all the same, but a new
/// deal has a lower number than those before.
fn incarnation_of_this_process() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    // With a clock that is of no use it is as good as a number can be. Not 1: that is
    // the first one of stores that forget nothing.
    since.map_or(2, |since| (since.as_millis() as u64).max(2))
}

/// The roll, once the store says that leases may be as long as `own`.
async fn call_roll(store: &CorpusStore, term: u64, own: Duration) -> Result<Roll, StoreError> {
    let roll = store.roll().await?;
    let recorded = LeaseTerms::new(own, Duration::ZERO, roll.lease).recorded();
    if roll.lease != Some(recorded) {
        store.set_lease(term, recorded).await?;
    }
    Ok(roll)
}

fn shown_all<T: ToString>(items: Option<&[T]>) -> Vec<String> {
    items
        .unwrap_or_default()
        .iter()
        .map(ToString::to_string)
        .collect()
}

fn shown(version: AssignmentVersion) -> String {
    format!("{}.{}", version.incarnation, version.generation)
}
