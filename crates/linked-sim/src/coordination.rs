//! Who is alive and what the assignment is: leases, the real store, and the
//! real assigner or maps drawn at random.

use crate::ledger::Ledger;
use crate::profile::{Profile, SMALL};
use crate::rng::Rng;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use trefoil_linklet_core::mutants::{self, Mutant};
use trefoil_sharder::coordination::{
    CandidateId, EmbeddedStore, Forgotten, LeaseTerms, Recovery, Reply, Request, StoreError, Told,
};
use trefoil_sharder::{
    AssignedSlice, Assigner, AssignerOptions, Assignment, AssignmentVersion, BalanceConfig,
    Capacity, Freeze, KeyPoint, Load, Member, MemberState, ServerId, ServerReport, Slice,
    SliceLoad, Unstored,
};

/// What servers and callers are told.
#[derive(Clone, Debug)]
pub(crate) struct View {
    /// They are told in order: one that was overtaken is dropped.
    pub(crate) number: u64,
    pub(crate) assignment: Arc<Assignment>,
    pub(crate) alive: BTreeSet<ServerId>,
    /// Those of them that are known to be about to stop.
    pub(crate) draining: BTreeSet<ServerId>,
}

impl View {
    /// Whether a key has no second server.
    pub(crate) fn is_thin(&self, point: KeyPoint) -> bool {
        self.assignment.slice_of(point).servers.len() < 2
    }
}

pub(crate) const CAPACITY: Capacity = Capacity {
    cpu: 1.0,
    bytes: 1 << 30,
};

/// How a server comes back from the coordination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renewal {
    /// Its lease is this long from when it asked, by its own clock.
    Granted(Duration),
    /// The store has forgotten what this server knows: no lease for now.
    Behind,
    /// It is no member any more.
    Ended,
    /// Nobody answers.
    Away,
}

#[derive(Debug)]
pub(crate) struct Coordination {
    store: EmbeddedStore,
    assigner: Assigner,
    /// When each was heard last, and what it wants to be.
    members: BTreeMap<ServerId, (Duration, MemberState)>,
    /// What the assigner that leads has to respect.
    leases: LeaseTerms,
    /// The lengths of leases of the two assigners; the one that leads.
    lengths: [Duration; 2],
    leads: usize,
    /// The store keeps nothing when its process dies.
    forgetful: bool,
    forgotten: Option<Forgotten>,
    /// All leases from before it forgot everything have ended, and nobody has told
    /// anything.
    nobody_remembers: bool,
    /// Members when the store forgot everything.
    former: BTreeSet<ServerId>,
    pub(crate) recoveries: u64,
    /// How often everything was dealt anew, for nobody remembered anything.
    pub(crate) new_deals: u64,
    /// What the assigner that leads deals out first, if it knows of nothing.
    first: AssignmentVersion,
    /// Expired or left: these ids never come back.
    ended: BTreeSet<ServerId>,
    down_until: Duration,
    was_down: bool,
    wild: bool,
    changes: u32,
    replicas: usize,
    stays: bool,
    reports: u64,
    /// What each server says that others cannot store.
    pub(crate) unstored: BTreeMap<ServerId, Vec<(ServerId, KeyPoint)>>,
    pub(crate) view: Option<Arc<View>>,
}

pub(crate) fn config(replicas: usize, freeze: Freeze) -> BalanceConfig {
    BalanceConfig {
        freeze,
        replicas_min: replicas,
        replicas_max: replicas,
        churn_max: 0.4,
        cooldown: Duration::from_millis(400),
        no_return: Duration::from_millis(900),
        no_return_after_change: Duration::from_millis(500),
        merge_from: 2,
        split_until: 6,
        ..BalanceConfig::default()
    }
}

/// Has an assigner move what `freeze` leaves it, by the thresholds that it has.
pub(crate) fn configure(assigner: &mut Assigner, replicas: usize, freeze: Freeze) {
    if assigner.configure(config(replicas, freeze)).is_err() {
        unreachable!("the same thresholds");
    }
}

/// What an assigner that was started then deals out first.
fn first(now: Duration) -> AssignmentVersion {
    AssignmentVersion::deal(2 + now.as_millis() as u64)
}

fn new_assigner(replicas: usize, first: AssignmentVersion) -> Assigner {
    let options = AssignerOptions {
        step_every: Duration::from_millis(400),
        reply_timeout: Duration::from_millis(300),
        slices_per_server: 2,
        first,
        ..AssignerOptions::new(CandidateId(1))
    };
    match Assigner::new(options, config(replicas, Freeze::Off)) {
        Ok(assigner) => assigner,
        Err(error) => panic!("{error}"),
    }
}

impl Coordination {
    pub(crate) fn new(profile: &Profile) -> Self {
        let first = first(Duration::ZERO);
        let assigner = new_assigner(profile.replicas, first);
        Coordination {
            store: EmbeddedStore::new(),
            assigner,
            members: BTreeMap::new(),
            leases: LeaseTerms::new(profile.leases[0], Duration::ZERO, None),
            lengths: profile.leases,
            leads: 0,
            forgetful: profile.forgetful,
            forgotten: None,
            nobody_remembers: false,
            former: BTreeSet::new(),
            recoveries: 0,
            new_deals: 0,
            first,
            ended: BTreeSet::new(),
            down_until: Duration::ZERO,
            was_down: false,
            wild: profile.wild,
            changes: profile.changes,
            replicas: profile.replicas,
            stays: profile.stays,
            reports: 0,
            unstored: BTreeMap::new(),
            view: None,
        }
    }

    /// Whether the store has forgotten everything, and holds no map since.
    fn knows_nothing(&self) -> bool {
        self.forgotten.is_some() && self.store.version().is_none()
    }

    /// What it can tell whoever asks: what was told before it forgot everything it does
    /// not know any more.
    pub(crate) fn told(&self) -> Option<Arc<View>> {
        self.view.clone().filter(|_| !self.knows_nothing())
    }

    pub(crate) fn is_down(&self, now: Duration) -> bool {
        now < self.down_until
    }

    /// Whether it has struck this one off, or was left by it.
    pub(crate) fn has_ended(&self, server: ServerId) -> bool {
        self.ended.contains(&server)
    }

    pub(crate) fn fail_until(&mut self, until: Duration) {
        self.down_until = self.down_until.max(until);
        self.was_down = true;
    }

    pub(crate) fn recover(&mut self, now: Duration) {
        self.down_until = now;
    }

    /// From now on only dead servers' slices move.
    pub(crate) fn freeze(&mut self) {
        configure(&mut self.assigner, self.replicas, Freeze::OnlyDead);
    }

    /// Renews a lease. The server says what map it goes by, with the members
    /// that belong to it, and what its last lease was.
    pub(crate) fn renew(
        &mut self,
        now: Duration,
        server: ServerId,
        draining: bool,
        granted: Option<Duration>,
        knows: Option<&View>,
    ) -> Renewal {
        if self.is_down(now) {
            return Renewal::Away;
        }
        if self.ended.contains(&server) {
            return Renewal::Ended;
        }
        let state = if draining {
            MemberState::Draining
        } else {
            MemberState::Serving
        };
        let was_member = granted.is_some() && !self.members.contains_key(&server);
        if was_member && !self.knows_nothing() {
            // It went on, or was dealt anew, while this one was away for a
            // whole lease.
            self.leave(server);
            return Renewal::Ended;
        }
        self.members.insert(server, (now, state));
        let (Some(knows), None) = (knows, self.store.version()) else {
            return Renewal::Granted(self.leases.own());
        };
        let version = knows.assignment.version();
        if let Some(forgotten) = &mut self.forgotten {
            if let Some(granted) = granted {
                self.leases.heard_of(granted);
            }
            let told = Told {
                map: Assignment::clone(&knows.assignment),
                members: knows.alive.clone(),
            };
            forgotten.hear(server, version, Some(told), true);
        }
        Renewal::Behind
    }

    /// The assigner that was away is back: or the other one, which was started
    /// with another length of leases; or one whose store has forgotten
    /// everything.
    fn begin(&mut self, now: Duration, rng: &mut Rng) {
        let two = self.lengths[0] != self.lengths[1];
        if two && rng.chance(700) {
            self.leads = 1 - self.leads;
        }
        let own = self.lengths[self.leads];
        let recorded =
            Some(self.leases.recorded()).filter(|_| !mutants::is(Mutant::LeaseLengthForgotten));
        if self.forgetful && rng.chance(700) {
            self.store = EmbeddedStore::new();
            self.first = first(now);
            self.assigner = new_assigner(self.replicas, self.first);
            self.former.extend(self.members.keys());
            self.members.clear();
            self.ended.clear();
            self.leases = LeaseTerms::new(own, now, None);
            self.forgotten = Some(Forgotten::default());
        } else {
            self.leases = LeaseTerms::new(own, now, recorded);
            // Nobody could renew: everybody gets the time to.
            for (heard, _) in self.members.values_mut() {
                *heard = now;
            }
        }
    }

    /// Whether there is nothing to do yet for an assigner whose store has
    /// forgotten everything. Who is found to have been struck off is so again.
    fn waits(&mut self, now: Duration) -> bool {
        let Some(forgotten) = &self.forgotten else {
            return false;
        };
        let recovery = forgotten.recovery(now, &self.leases);
        // By the rules, whatever this assigner makes of them: nothing else excuses that
        // what there was is gone.
        self.nobody_remembers = recovery == Recovery::Nothing;
        let recovery = if mutants::is(Mutant::DealtAtOnce) {
            Recovery::Nothing
        } else {
            recovery
        };
        match recovery {
            Recovery::Wait | Recovery::ByHand => true,
            Recovery::Nothing => false,
            Recovery::GoOn { map, struck_off } => {
                if !mutants::is(Mutant::StruckOffReturns) {
                    for server in struck_off {
                        self.leave(server);
                    }
                }
                self.forgotten = None;
                self.recoveries += 1;
                self.recover_from(now, map);
                false
            }
        }
    }

    /// Puts a map that servers remember in force.
    fn recover_from(&mut self, now: Duration, map: Assignment) {
        let incarnation = (map.version().incarnation + 1).max(self.first.incarnation);
        let next = map.renumbered(AssignmentVersion::first_of(incarnation));
        let Some(term) = self.lead(now) else { return };
        let swap = Request::Swap {
            term,
            expected: None,
            next,
        };
        match self.ask(now, swap) {
            Some(Ok(_)) => {}
            other => panic!("{other:?}"),
        }
    }

    fn lead(&mut self, now: Duration) -> Option<u64> {
        let campaign = Request::Campaign {
            candidate: CandidateId(1),
            lease: Duration::from_secs(60),
        };
        match self.ask(now, campaign) {
            Some(Ok(Reply::Elected { term })) => Some(term),
            _ => None,
        }
    }

    pub(crate) fn leave(&mut self, server: ServerId) {
        self.members.remove(&server);
        self.ended.insert(server);
    }

    /// Lets leases expire and the assigner work; returns who expired.
    pub(crate) fn step(&mut self, now: Duration, rng: &mut Rng, calm: bool) -> Vec<ServerId> {
        if self.is_down(now) {
            return Vec::new();
        }
        if std::mem::take(&mut self.was_down) {
            self.begin(now, rng);
        }
        if let Some(shorter) = self.leases.shorter(now) {
            self.leases.record(shorter);
        }
        let expired: Vec<ServerId> = self
            .members
            .iter()
            .filter(|(_, (heard, _))| self.leases.ends(*heard) <= now)
            .map(|(&server, _)| server)
            .collect();
        for &server in &expired {
            self.leave(server);
        }
        if self.waits(now) {
            return expired;
        }
        if self.wild {
            self.step_wild(now, rng, calm);
        } else {
            self.step_balanced(now, rng, calm);
        }
        let mut expired = expired;
        if !self.knows_nothing() {
            // Who has not come back by now is dead.
            let former = std::mem::take(&mut self.former).into_iter();
            for server in former.filter(|server| !self.members.contains_key(server)) {
                self.ended.insert(server);
                expired.push(server);
            }
            let dealt_anew = self.forgotten.take().is_some() && self.nobody_remembers;
            self.new_deals += u64::from(dealt_anew);
        }
        self.refresh();
        expired
    }

    fn ask(&mut self, now: Duration, request: Request) -> Option<Result<Reply, StoreError>> {
        Some(self.store.request(now, request))
    }

    fn refresh(&mut self) {
        let members = self.members.iter();
        let members = members.map(|(&id, &(_, state))| (id, state)).collect();
        show(&mut self.view, self.store.current(), &members);
    }

    /// Shows what two assigners have put in force by themselves.
    pub(crate) fn follow(&mut self, ledger: &Ledger) {
        show(&mut self.view, ledger.store.current(), &ledger.roll);
    }

    /// What all servers say of their load, at random.
    pub(crate) fn reports(&mut self, rng: &mut Rng) -> Vec<ServerReport> {
        let Some(view) = self.view.clone() else {
            return Vec::new();
        };
        let report = |&server: &ServerId| {
            let served = view.assignment.slices().iter();
            let served = served.filter(|assigned| assigned.servers.contains(&server));
            // What has little memory is idle, so that it is given ever more.
            let idle = self.stays && server.0 <= SMALL as u64;
            let slices = served.map(|assigned| SliceLoad {
                slice: assigned.slice,
                load: Load {
                    cpu_shared: match rng.below(100) {
                        _ if idle => 0.0,
                        load => load as f64 / 200.0,
                    },
                    ..Load::default()
                },
            });
            self.reports += 1;
            ServerReport {
                server,
                sequence: self.reports,
                version: view.assignment.version(),
                slices: slices.collect(),
                hot_keys: Vec::new(),
                unstored: self
                    .unstored
                    .get(&server)
                    .into_iter()
                    .flatten()
                    .map(|&(server, point)| Unstored { point, server })
                    .collect(),
            }
        };
        view.alive.iter().map(report).collect()
    }

    fn step_balanced(&mut self, now: Duration, rng: &mut Rng, calm: bool) {
        if self.view.is_some() && !calm && rng.chance(600) {
            for report in self.reports(rng) {
                self.assigner.hear(now, report);
            }
        }
        let members: Vec<Member> = self
            .members
            .iter()
            .map(|(&id, &(_, state))| Member {
                id,
                capacity: CAPACITY,
                state,
            })
            .collect();
        while let Some((id, request)) = self.assigner.poll_request(now, &members) {
            let lost = !calm && rng.chance(40);
            if let Some(result) = self.ask(now, request).filter(|_| !lost) {
                self.assigner.handle_reply(now, id, result);
            } else {
                break;
            }
        }
        while self.assigner.poll_event().is_some() {}
    }

    fn step_wild(&mut self, now: Duration, rng: &mut Rng, calm: bool) {
        let serving: Vec<ServerId> = self
            .members
            .iter()
            .filter(|(_, (_, state))| *state == MemberState::Serving)
            .map(|(&server, _)| server)
            .collect();
        if serving.is_empty() {
            return;
        }
        let current = self.store.current().cloned().map(Arc::new);
        let next = match &current {
            None => Assignment::even(self.first, &serving, 2, self.replicas),
            Some(current) => {
                let mut slices = current.slices().to_vec();
                if !calm && rng.chance(self.changes) {
                    for _ in 0..=rng.below(2) {
                        mutate(&mut slices, &serving, rng);
                    }
                }
                self.repair(&mut slices, &serving, rng);
                if slices == current.slices() {
                    return;
                }
                match Assignment::new(current.version().next(), slices) {
                    Ok(next) => next,
                    Err(error) => panic!("{error}"),
                }
            }
        };
        let Some(term) = self.lead(now) else { return };
        let swap = Request::Swap {
            term,
            expected: current.map(|current| current.version()),
            next,
        };
        match self.ask(now, swap) {
            Some(Ok(_)) => {}
            other => panic!("{other:?}"),
        }
    }

    /// Everybody alive, nobody draining, and as many as there should be.
    fn repair(&self, slices: &mut [AssignedSlice], serving: &[ServerId], rng: &mut Rng) {
        let count = self.replicas.min(serving.len());
        for assigned in slices {
            assigned.servers.retain(|server| serving.contains(server));
            assigned.servers.truncate(count);
            while assigned.servers.len() < count {
                let server = rng.pick(serving);
                if !assigned.servers.contains(&server) {
                    assigned.servers.push(server);
                }
            }
        }
    }
}

/// Shows what is in force, if it is not what was shown last.
fn show(
    shown: &mut Option<Arc<View>>,
    current: Option<&Assignment>,
    members: &BTreeMap<ServerId, MemberState>,
) {
    let Some(current) = current else {
        return;
    };
    let alive: BTreeSet<ServerId> = members.keys().copied().collect();
    let draining = members.iter();
    let draining: BTreeSet<ServerId> = draining
        .filter(|(_, state)| **state == MemberState::Draining)
        .map(|(&server, _)| server)
        .collect();
    let known = shown.as_ref();
    let is_map = |view: &&Arc<View>| view.assignment.version() == current.version();
    let same_map = known.filter(is_map);
    if same_map.is_some_and(|view| view.alive == alive && view.draining == draining) {
        return;
    }
    *shown = Some(Arc::new(View {
        number: known.map_or(0, |view| view.number) + 1,
        assignment: match same_map {
            Some(view) => Arc::clone(&view.assignment),
            None => Arc::new(current.clone()),
        },
        alive,
        draining,
    }));
}

/// One change of a map at random.
fn mutate(slices: &mut Vec<AssignedSlice>, serving: &[ServerId], rng: &mut Rng) {
    let at = rng.below(slices.len());
    match rng.below(6) {
        0 | 1 => {
            let server = rng.pick(serving);
            slices[at].servers.retain(|&other| other != server);
            slices[at].servers.insert(0, server);
        }
        2 => {
            let server = rng.pick(serving);
            if let Some(first) = slices[at].servers.first_mut() {
                *first = server;
            }
            let mut seen = BTreeSet::new();
            slices[at].servers.retain(|&server| seen.insert(server));
        }
        3 => {
            slices[at].servers.truncate(1);
        }
        4 if slices.len() < 8 => {
            let middle = slices[at].slice.start().0 as u128 + slices[at].slice.width() / 2;
            if let Some((left, right)) = slices[at].slice.split_before(KeyPoint(middle as u64)) {
                let servers = slices[at].servers.clone();
                slices[at].slice = left;
                let right = AssignedSlice {
                    slice: right,
                    servers,
                };
                slices.insert(at + 1, right);
            }
        }
        _ if at + 1 < slices.len() => {
            let next = slices.remove(at + 1);
            slices[at].slice = Slice::spanning(slices[at].slice.start(), next.slice.last());
        }
        _ => {}
    }
}
