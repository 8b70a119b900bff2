//! Two assigners, one store, servers that come and go: everything between them
//! can be late, lost, repeated or cut, and no two clocks agree.
//!
//! Time goes in steps of a tenth of a second. Who is alive is learned with a
//! delay, by each assigner on its own. What is checked whenever an assignment
//! comes into force is judged by what its author could know.

use super::link::Link;
use super::load::Keys;
use super::rng::Rng;
use super::server::{Server, report_all};
use super::track::Tracker;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use trefoil_sharder::coordination::{CandidateId, EmbeddedStore, Reply, Request, StoreError};
use trefoil_sharder::{
    Assigner, AssignerEvent, AssignerOptions, Assignment, AssignmentDiff, AssignmentVersion,
    BalanceConfig, Capacity, KnownAssignment, Learned, Member, MemberState, ServerId, ServerReport,
};

pub const STEP: f64 = 0.1;
/// A watch that was not answered for so long is asked again.
const WATCH_TIMEOUT: f64 = 2.0;
/// For those who were away; beyond that they are told everything.
const DIFFS_KEPT: usize = 16;

/// What an assigner knew when it proposed.
#[derive(Clone, Debug)]
struct Knowledge {
    members: Vec<Member>,
    /// Who was heard within `stale_after`.
    heard: BTreeSet<ServerId>,
}

#[derive(Clone, Debug)]
struct Question {
    from: usize,
    id: u64,
    request: Request,
    knowledge: Knowledge,
}

#[derive(Clone, Debug)]
struct Answer {
    id: u64,
    result: Result<Reply, StoreError>,
}

/// What somebody is told who follows the store.
#[derive(Clone, Debug)]
enum News {
    /// They follow one another.
    Diffs(Vec<AssignmentDiff>),
    Whole(Assignment),
}

/// Somebody who follows the store: a server, a router, an assigner.
#[derive(Clone, Debug)]
struct Follower {
    known: KnownAssignment,
    /// Watch requests, and their answers.
    ask: Link<Option<AssignmentVersion>>,
    answers: Link<News>,
    asked: Option<f64>,
}

impl Follower {
    fn new() -> Self {
        Follower {
            known: KnownAssignment::none(),
            ask: Link::new(0.1),
            answers: Link::new(0.1),
            asked: None,
        }
    }
}

/// Who waits for an answer of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Who {
    Server(ServerId),
    Assigner(usize),
    Router,
}

struct Control {
    assigner: Assigner,
    clock: f64,
    offset: f64,
    paused_until: f64,
    questions: Link<Question>,
    answers: Link<Answer>,
    reports: BTreeMap<ServerId, Link<ServerReport>>,
    heard: BTreeMap<ServerId, f64>,
    /// When it learns of each server's coming, going and draining.
    view: BTreeMap<ServerId, Member>,
    news: Vec<(f64, ServerId, Option<Member>)>,
}

impl Control {
    fn local(&self, now: f64) -> Duration {
        Duration::from_secs_f64(self.offset + now * self.clock)
    }
}

#[derive(Clone, Debug, Default)]
pub struct Tally {
    pub published: usize,
    pub elections: usize,
    /// Swaps that the store refused: of a former term, or from a map that is
    /// no longer in force.
    pub refused: usize,
    pub unanswered: usize,
    pub churn_max: f64,
    pub lost_ranges: usize,
}

pub struct Cluster {
    pub rng: Rng,
    pub now: f64,
    pub keys: Keys,
    pub servers: Vec<Server>,
    pub tally: Tally,
    pub config: BalanceConfig,
    store: EmbeddedStore,
    store_clock: f64,
    controls: Vec<Control>,
    followers: BTreeMap<Who, Follower>,
    /// Who waits for something newer than this.
    watches: BTreeMap<Who, Option<AssignmentVersion>>,
    /// The last ones, for those who were away.
    diffs: VecDeque<AssignmentDiff>,
    current: Option<Assignment>,
    tracker: Tracker,
    next_server: u64,
    violations: Vec<String>,
}

impl Cluster {
    pub fn new(seed: u64, servers: usize) -> Self {
        let mut rng = Rng::new(seed);
        let keys = Keys::new(&mut rng, 1_000, servers as f64 * 2.0 * 0.5 / 100e-6);
        let config = BalanceConfig {
            replicas_max: 3,
            replicas_min: 1 + rng.below(2),
            ..BalanceConfig::default()
        };
        let controls = (0..2)
            .map(|i| {
                // A swap that went astray turns up when its sender may long
                // have been replaced.
                let mut questions = Link::new(0.2);
                questions.repeat = 0.1;
                questions.late_max = 20.0;
                questions.loss = 0.02;
                let mut options = AssignerOptions::new(CandidateId(i as u64 + 1));
                options.slices_per_server = 16;
                Control {
                    assigner: Assigner::new(options, config.clone())
                        .expect("the thresholds fit together"),
                    clock: rng.range(0.9, 1.1),
                    offset: rng.range(0.0, 1e6),
                    paused_until: 0.0,
                    questions,
                    answers: Link::new(0.2),
                    reports: BTreeMap::new(),
                    heard: BTreeMap::new(),
                    view: BTreeMap::new(),
                    news: Vec::new(),
                }
            })
            .collect();
        let store_clock = rng.range(0.9, 1.1);
        let mut cluster = Cluster {
            rng,
            now: 0.0,
            keys,
            servers: Vec::new(),
            tally: Tally::default(),
            config,
            store: EmbeddedStore::new(),
            store_clock,
            controls,
            followers: BTreeMap::new(),
            watches: BTreeMap::new(),
            diffs: VecDeque::new(),
            current: None,
            tracker: Tracker::new(),
            next_server: 1,
            violations: Vec::new(),
        };
        cluster.followers.insert(Who::Router, Follower::new());
        for i in 0..2 {
            cluster.followers.insert(Who::Assigner(i), Follower::new());
        }
        for _ in 0..servers {
            cluster.start_server();
        }
        cluster
    }

    pub fn start_server(&mut self) -> ServerId {
        let capacity = Capacity {
            cpu: 2.0,
            bytes: 64 << 20,
        };
        let mut server = Server::new(self.next_server, capacity);
        server.drift = self.rng.range(0.98, 1.02);
        self.next_server += 1;
        let id = server.id;
        self.tell(id, Some(server.member()), 1.0);
        self.servers.push(server);
        self.followers.insert(Who::Server(id), Follower::new());
        for control in &mut self.controls {
            // Some are always late, and overtake one another.
            let late = self.rng.chance(0.2);
            let mut link = Link::new(if late { 2.0 } else { 0.3 });
            link.loss = 0.05;
            link.repeat = 0.05;
            control.reports.insert(id, link);
        }
        id
    }

    /// It is gone at once; that is noticed when its lease is over.
    pub fn kill(&mut self, id: ServerId) {
        self.servers.retain(|server| server.id != id);
        self.followers.remove(&Who::Server(id));
        self.tell(id, None, 3.0);
    }

    pub fn set_state(&mut self, id: ServerId, state: MemberState) {
        let changed = self.servers.iter_mut().find(|server| server.id == id);
        if let Some(server) = changed {
            server.state = state;
            let member = server.member();
            self.tell(id, Some(member), 1.0);
        }
    }

    fn tell(&mut self, id: ServerId, member: Option<Member>, delay_max: f64) {
        for control in &mut self.controls {
            // What is said of one server arrives in order.
            let before = control.news.iter().filter(|news| news.1 == id);
            let before = before.map(|news| news.0).fold(self.now, f64::max);
            let at = before.max(self.now + delay_max * self.rng.unit());
            control.news.push((at, id, member));
        }
    }

    /// Cuts an assigner off from the store.
    pub fn cut_assigner(&mut self, i: usize, seconds: f64) {
        self.controls[i].questions.cut_until = self.now + seconds;
        self.controls[i].answers.cut_until = self.now + seconds;
    }

    /// The store is away for everybody.
    pub fn cut_store(&mut self, seconds: f64) {
        for i in 0..self.controls.len() {
            self.cut_assigner(i, seconds);
        }
        for follower in self.followers.values_mut() {
            follower.ask.cut_until = self.now + seconds;
            follower.answers.cut_until = self.now + seconds;
        }
    }

    /// Reports of a server do not get through to anybody.
    pub fn cut_reports(&mut self, id: ServerId, seconds: f64) {
        for control in &mut self.controls {
            if let Some(link) = control.reports.get_mut(&id) {
                link.cut_until = self.now + seconds;
            }
        }
    }

    /// An assigner stands still, and goes on as if nothing had been.
    pub fn pause_assigner(&mut self, i: usize, seconds: f64) {
        self.controls[i].paused_until = self.now + seconds;
    }

    pub fn freeze(&mut self, freeze: trefoil_sharder::Freeze) {
        self.config.freeze = freeze;
        for control in &mut self.controls {
            control
                .assigner
                .configure(self.config.clone())
                .expect("the thresholds fit together");
        }
    }

    /// Everything is mended.
    pub fn heal(&mut self) {
        for control in &mut self.controls {
            control.questions.cut_until = 0.0;
            control.questions.loss = 0.0;
            control.questions.repeat = 0.0;
            control.answers.cut_until = 0.0;
            control.paused_until = 0.0;
            for link in control.reports.values_mut() {
                link.cut_until = 0.0;
            }
        }
        for follower in self.followers.values_mut() {
            follower.ask.cut_until = 0.0;
            follower.answers.cut_until = 0.0;
        }
    }

    pub fn assignment(&self) -> Option<&Assignment> {
        self.current.as_ref()
    }

    pub fn version(&self) -> Option<AssignmentVersion> {
        self.store.version()
    }

    /// Whether the store's assignment names a server.
    pub fn serves(&self, id: ServerId) -> bool {
        self.current.as_ref().is_some_and(|current| {
            current
                .slices()
                .iter()
                .any(|assigned| assigned.servers.contains(&id))
        })
    }

    /// Whether everybody who follows the store is where it is.
    pub fn all_know(&self) -> bool {
        self.followers
            .values()
            .all(|follower| follower.known.version() == self.store.version())
    }

    /// Anything that was found wrong.
    pub fn violations(&self) -> &[String] {
        &self.violations
    }

    /// A tenth of a second.
    pub fn step(&mut self) {
        let before = (self.now + 1e-9).floor();
        self.now += STEP;
        if (self.now + 1e-9).floor() > before {
            self.report();
        }
        for i in 0..self.controls.len() {
            self.run_assigner(i);
        }
        self.run_store();
        self.follow();
    }

    fn report(&mut self) {
        let reports = report_all(&mut self.servers, &self.keys, &mut self.rng);
        for report in reports {
            for control in &mut self.controls {
                if let Some(link) = control.reports.get_mut(&report.server) {
                    link.send(self.now, &mut self.rng, report.clone());
                }
            }
        }
    }

    fn run_assigner(&mut self, i: usize) {
        let now = self.now;
        let control = &mut self.controls[i];
        if now < control.paused_until {
            return;
        }
        let mut news: Vec<_> = control
            .news
            .iter()
            .filter(|news| news.0 <= now)
            .cloned()
            .collect();
        news.sort_by(|a, b| a.0.total_cmp(&b.0));
        control.news.retain(|news| news.0 > now);
        for (_, id, member) in news {
            // Word of a start never undoes word of a death.
            match member {
                Some(member) if control.reports.contains_key(&id) => {
                    control.view.insert(id, member);
                }
                Some(_) => {}
                None => {
                    control.view.remove(&id);
                    control.reports.remove(&id);
                    control.heard.remove(&id);
                }
            }
        }
        let local = control.local(now);
        for (id, link) in &mut control.reports {
            for report in link.receive(now) {
                control.heard.insert(*id, now);
                control.assigner.hear(local, report);
            }
        }
        for answer in control.answers.receive(now) {
            control
                .assigner
                .handle_reply(local, answer.id, answer.result);
        }
        let members: Vec<Member> = control.view.values().copied().collect();
        if let Some((id, request)) = control.assigner.poll_request(local, &members) {
            // Reports wait in the assigner for up to one and a half steps.
            let limit = (self.config.stale_after.as_secs_f64() + 1.5) / control.clock;
            let heard = control
                .heard
                .iter()
                .filter(|(_, at)| now - **at <= limit)
                .map(|(id, _)| *id)
                .collect();
            let question = Question {
                from: i,
                id,
                request,
                knowledge: Knowledge { members, heard },
            };
            control.questions.send(now, &mut self.rng, question);
        }
        while let Some(event) = control.assigner.poll_event() {
            match event {
                AssignerEvent::Elected { .. } => self.tally.elections += 1,
                AssignerEvent::Unanswered => self.tally.unanswered += 1,
                AssignerEvent::Planned(plan) => {
                    self.tally.lost_ranges += plan.lost().count();
                    if std::env::var_os("SHARDER_VERBOSE").is_some() {
                        println!("{:.1} s: assigner {i}: {plan}", self.now);
                    }
                }
                AssignerEvent::Step(error) => self.violations.push(error.to_string()),
                AssignerEvent::Deposed | AssignerEvent::Published(_) | AssignerEvent::Store(_) => {}
            }
        }
    }

    fn run_store(&mut self) {
        let clock = Duration::from_secs_f64(self.now * self.store_clock);
        for i in 0..self.controls.len() {
            for question in self.controls[i].questions.receive(self.now) {
                let before = self.store.version();
                let next = match &question.request {
                    Request::Swap { next, .. } => Some(next.clone()),
                    _ => None,
                };
                let result = self.store.request(clock, question.request.clone());
                self.tally.refused += usize::from(result.is_err());
                let answer = Answer {
                    id: question.id,
                    result,
                };
                self.controls[question.from]
                    .answers
                    .send(self.now, &mut self.rng, answer);
                if self.store.version() != before {
                    match next {
                        Some(next) => self.published(next, &question.knowledge),
                        None => self.violations.push("changed without a swap".to_owned()),
                    }
                }
            }
        }
        let who: Vec<Who> = self.followers.keys().copied().collect();
        for who in who {
            let Some(follower) = self.followers.get_mut(&who) else {
                continue;
            };
            for after in follower.ask.receive(self.now) {
                self.watches.insert(who, after);
            }
        }
        let waiting = std::mem::take(&mut self.watches);
        for (who, after) in waiting {
            let news = self.news(after);
            match (news, self.followers.get_mut(&who)) {
                (Some(news), Some(follower)) => {
                    follower.answers.send(self.now, &mut self.rng, news);
                }
                (None, Some(_)) => {
                    self.watches.insert(who, after);
                }
                (_, None) => {}
            }
        }
    }

    /// What is newer than `after`.
    fn news(&self, after: Option<AssignmentVersion>) -> Option<News> {
        let current = self.current.as_ref()?;
        if after >= Some(current.version()) {
            return None;
        }
        let known = self.diffs.iter().position(|diff| Some(diff.from) == after);
        Some(match known {
            Some(from) => News::Diffs(self.diffs.iter().skip(from).cloned().collect()),
            None => News::Whole(current.clone()),
        })
    }

    fn follow(&mut self) {
        let now = self.now;
        for (who, follower) in &mut self.followers {
            for answer in follower.answers.receive(now) {
                follower.asked = None;
                let learned: Vec<Learned> = match answer {
                    News::Whole(whole) => vec![follower.known.offer(whole)],
                    News::Diffs(diffs) => diffs
                        .iter()
                        .map(|diff| follower.known.offer_diff(diff))
                        .collect(),
                };
                for learned in learned {
                    if let Learned::Refused(why) = learned {
                        self.violations.push(why);
                    }
                }
                if let (Who::Assigner(i), Some(current)) = (*who, follower.known.current()) {
                    let control = &mut self.controls[i];
                    if now >= control.paused_until {
                        let local = control.local(now);
                        control.assigner.observe(local, current);
                    }
                }
            }
            if follower.asked.is_none_or(|at| now - at > WATCH_TIMEOUT) {
                follower.asked = Some(now);
                let after = follower.known.version();
                follower.ask.send(now, &mut self.rng, after);
            }
        }
        for server in &mut self.servers {
            if let Some(follower) = self.followers.get(&Who::Server(server.id)) {
                server.known = follower.known.clone();
            }
        }
    }

    /// An assignment has come into force.
    fn published(&mut self, next: Assignment, knowledge: &Knowledge) {
        self.tally.published += 1;
        let members: BTreeMap<ServerId, Member> = knowledge
            .members
            .iter()
            .map(|member| (member.id, *member))
            .collect();
        let alive = |id: ServerId| members.contains_key(&id);
        if let Some(before) = &self.current {
            if next.version() <= before.version() {
                self.violations.push(format!(
                    "{} came after {}",
                    next.version(),
                    before.version()
                ));
            }
            self.violations
                .extend(wrong_gains(before, &next, &members, &knowledge.heard));
            if let Err(error) = next.validate(alive, !members.is_empty()) {
                self.violations.push(error.to_string());
            }
        }
        if let Some(before) = &self.current {
            if self.diffs.len() == DIFFS_KEPT {
                self.diffs.pop_front();
            }
            self.diffs.push_back(AssignmentDiff::between(before, &next));
        }
        let window = self.config.no_return.as_secs_f64();
        let rules = (window, self.config.replicas_min);
        let moved = self.tracker.see(&next, &self.keys, self.now, rules, alive);
        self.tally.churn_max = self.tally.churn_max.max(moved.unforced);
        if moved.unforced > self.config.churn_max + 1e-9 {
            self.violations.push(format!(
                "{} moved {:.4} of the key space of its own accord",
                next.version(),
                moved.unforced
            ));
        }
        self.current = Some(next);
    }
}

/// Key space given, though nothing forced it, to somebody who is not serving
/// or has not been heard of.
fn wrong_gains(
    before: &Assignment,
    next: &Assignment,
    members: &BTreeMap<ServerId, Member>,
    heard: &BTreeSet<ServerId>,
) -> Vec<String> {
    let mut wrong = Vec::new();
    for new in next.slices() {
        for old in before.slices() {
            let Some(common) = old.slice.intersection(new.slice) else {
                continue;
            };
            let forced = !old
                .servers
                .iter()
                .any(|server| members.contains_key(server));
            for server in new.servers.iter().filter(|id| !old.servers.contains(id)) {
                let state = members.get(server).map(|member| member.state);
                let fit = state == Some(MemberState::Serving) && heard.contains(server);
                if state.is_none() || (!forced && !fit) {
                    wrong.push(format!(
                        "{}: {common} was given to {server}, which is {state:?} (heard of: {})",
                        next.version(),
                        heard.contains(server)
                    ));
                }
            }
        }
    }
    wrong
}
