//! One membership of the server: the protocol's state, and what becomes of its
//! effects.
//!
//! A [`Life`] stands behind one lock, which is taken by whoever has something
//! for the protocol: the driver's task, the service that receives frames, and
//! requests for keys that are being moved. Nothing waits under it.

use crate::event::Event;
use crate::ops::Turn;
use crate::peers::Peers;
use crate::store::Store;
use crate::values::{Objects, Staged};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::oneshot;
use trefoil_channel::Security;
use trefoil_coordination::{Session, View};
use trefoil_linklet_core::{
    Commit, Config, ConfigError, Core, Effect, Message, NotStored, Ticket, Uncertain, Wire,
    WireError,
};
use trefoil_sharder::{
    AssignmentVersion, MemberState, REPORT_UNSTORED_MAX, ServerId, Slice, Unstored,
};

/// What was refused for so long, and sent again meanwhile, does not end by itself soon.
const REFUSED_FOR: Duration = Duration::from_millis(1_500);

/// What a commit that waits for its replicas comes to.
pub(crate) type Settlement = Result<Commit, Uncertain>;

/// A commit on its way to the replicas.
struct Proposed {
    /// Who began it, if he is still there.
    caller: oneshot::Sender<Settlement>,
    /// The key's turn: whoever changes the key next sees what this comes to.
    turn: Option<Turn>,
}

pub(crate) struct Life<V> {
    core: Core,
    pub(crate) objects: Objects<V>,
    pub(crate) session: Session,
    peers: Peers,
    waiting: HashMap<Ticket, oneshot::Sender<()>>,
    proposed: HashMap<Ticket, Proposed>,
    lease_told: Duration,
    /// Peers of releases that this one cannot talk with.
    not_understood: BTreeSet<ServerId>,
    /// About to stop, and has said so.
    leaving: bool,
    pub(crate) drained: bool,
    pub(crate) replaced: bool,
    /// Everything had arrived when the driver looked last.
    pub(crate) settled: bool,
    /// That was so once.
    pub(crate) arrived: bool,
}

impl<V> Drop for Life<V> {
    fn drop(&mut self) {
        self.objects.store.facts.end(self.core.id());
    }
}

impl<V: Send + Sync + 'static> Life<V> {
    pub(crate) fn new(
        store: Arc<Store<V>>,
        session: Session,
        security: Security,
        config: Config,
    ) -> Result<Self, ConfigError> {
        let id = session.server_id();
        let peers = Peers::new(&session, security);
        let core = Core::new(id, config)?;
        store.facts.begin(&session);
        Ok(Life {
            core,
            objects: Objects::new(store),
            session,
            peers,
            waiting: HashMap::new(),
            proposed: HashMap::new(),
            lease_told: Duration::ZERO,
            not_understood: BTreeSet::new(),
            leaving: false,
            drained: false,
            replaced: false,
            settled: false,
            arrived: false,
        })
    }

    /// Has the protocol do something, and sees to what comes of it.
    pub(crate) fn drive<R>(
        &mut self,
        act: impl FnOnce(&mut Core, Duration, &mut Objects<V>) -> R,
    ) -> R {
        let now = self.objects.store.clock();
        let result = act(&mut self.core, now, &mut self.objects);
        while let Some(effect) = self.core.poll() {
            self.carry_out(effect);
        }
        self.objects.store.facts.follow(&self.core);
        result
    }

    /// Hears what another server speaks, before its frames.
    pub(crate) fn meet(&mut self, peer: ServerId, wire: Wire) -> Result<(), WireError> {
        let agreed = self.core.meet(peer, wire);
        match agreed {
            Ok(agreed) if agreed < Wire::OWN => {
                tracing::info!(%peer, %agreed, "a peer of another release: both say what both know");
            }
            // It tries again and again.
            Err(error) if self.not_understood.insert(peer) => {
                tracing::error!(%peer, %error, "nothing of a peer is taken");
                self.objects.store.tell(Event::NotUnderstood(peer, error));
            }
            _ => {}
        }
        agreed.map(drop)
    }

    fn carry_out(&mut self, effect: Effect) {
        let store = &self.objects.store;
        match effect {
            Effect::Send { to, frame } => {
                if let Some(Message::Pass(pass)) = &frame.message
                    && pass.from != self.core.id()
                {
                    crate::stats::Counters::one(&store.counters.frames_passed);
                }
                if !self.peers.send(to, frame.encode()) {
                    crate::stats::Counters::one(&store.counters.frames_dropped);
                }
            }
            Effect::Wake(ticket) => {
                if let Some(waiting) = self.waiting.remove(&ticket) {
                    // Whoever waited may have gone.
                    let _ = waiting.send(());
                }
            }
            Effect::Settled { ticket, result } => {
                self.objects.unstage(ticket);
                if let Some(proposed) = self.proposed.remove(&ticket) {
                    let _ = proposed.caller.send(result);
                }
            }
            Effect::Loss(loss) => store.tell(Event::StateLoss(loss.into())),
            Effect::NotCopied { to, points } => {
                let counter = &store.counters.copies_refused;
                let before = counter.fetch_add(points.len() as u64, Ordering::Relaxed);
                let count = before + points.len() as u64;
                // At first often, then ever more rarely: it goes on until it can.
                if before == 0 || before.ilog2() < count.ilog2() {
                    tracing::warn!(%to, count, first = %points[0], "a replica cannot store values");
                }
            }
            Effect::NotMoved {
                from,
                to,
                why,
                points,
            } => {
                let counter = &store.counters.moves_refused;
                let before = counter.fetch_add(points.len() as u64, Ordering::Relaxed);
                let count = before + points.len() as u64;
                if before == 0 || before.ilog2() < count.ilog2() {
                    let why = match why {
                        NotStored::Unreadable => "it cannot read them",
                        NotStored::NoRoom => "it has no room for them",
                    };
                    tracing::warn!(
                        %from, %to, count, first = %points[0], why,
                        "values stay where they are: a server that is to own them cannot store them"
                    );
                }
            }
            Effect::Detour { to, via: Some(via) } => tracing::warn!(
                %to, %via,
                "a server cannot be reached directly, or does not reach this one: what is said \
                 goes through another server. Look at the network between the two"
            ),
            Effect::Detour { to, via: None } => {
                tracing::info!(%to, "what is said to a server goes directly again");
            }
            Effect::Gained(slices) => store.tell(Event::Gained(slices)),
            Effect::Gave(slices) => store.tell(Event::Lost(slices)),
            // The watch of the session brings it.
            Effect::Learn(version) => tracing::debug!(%version, "somebody goes by a newer map"),
            Effect::Drained => {
                self.drained = true;
                store.tell(Event::Drained);
            }
            Effect::Replaced => self.replaced = true,
        }
    }

    /// Hears of the newest map and members.
    pub(crate) fn learn(&mut self, view: &View) {
        // Members that are not known yet must not be taken for dead.
        if !view.is_assigned() || view.servers_as_of < view.assignment.version() {
            return;
        }
        let me = self.core.id();
        let mine: Vec<Slice> = view
            .assignment
            .slices()
            .iter()
            .filter(|assigned| assigned.servers.contains(&me))
            .map(|assigned| assigned.slice)
            .collect();
        if self.drained && !mine.is_empty() {
            // Made before the assigner took note: the next one gives this
            // server nothing again, and until then it claims nothing.
            return;
        }
        let alive: BTreeSet<ServerId> = view.servers.keys().copied().collect();
        self.drive(|core, now, values| core.learn(now, values, &view.assignment, &alive));
        let noted = view.servers.get(&me).map(|info| info.state);
        if self.leaving && noted == Some(MemberState::Draining) {
            self.drive(|core, now, values| core.drain(now, values));
        }
        let store = &self.objects.store;
        store.meters.follow(mine, std::time::Instant::now());
        self.peers.meet(view);
    }

    /// Whether it is about to stop.
    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving
    }

    /// Asks the assigner to give everything to others.
    pub(crate) fn leave(&mut self) {
        self.leaving = true;
        self.session.set_state(MemberState::Draining);
    }

    /// The membership has ended: reports what that has lost. Whether the server
    /// was about to stop.
    pub(crate) fn expire(mut self) -> bool {
        self.drive(|core, _, values| core.expire(values));
        self.leaving
    }

    /// Tells the protocol how long the lease lasts, and the time.
    pub(crate) fn tick(&mut self) {
        let until = self.objects.store.at(self.session.lease_end());
        if until != self.lease_told {
            self.lease_told = until;
            self.drive(|core, now, values| core.lease(now, values, until));
        }
        if self.is_due() {
            self.drive(|core, now, values| core.tick(now, values));
        }
    }

    /// Whether the protocol has something to do by now.
    pub(crate) fn is_due(&self) -> bool {
        let now = self.objects.store.clock();
        self.next_tick().is_some_and(|at| at <= now)
    }

    /// When it has to be driven at the latest.
    pub(crate) fn next_tick(&self) -> Option<Duration> {
        self.core.next_tick()
    }

    pub(crate) fn new_ticket(&self) -> Ticket {
        // Of the process, so that what is left of a former life is no other's.
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Ticket(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// To be told when the request with this ticket should be tried again.
    pub(crate) fn wait(&mut self, ticket: Ticket) -> oneshot::Receiver<()> {
        let (wake, woken) = oneshot::channel();
        self.waiting.insert(ticket, wake);
        woken
    }

    /// Nobody waits for this one any more.
    pub(crate) fn forget_request(&mut self, ticket: Ticket) {
        if self.waiting.remove(&ticket).is_some() {
            self.core.forget_request(ticket);
        }
    }

    /// To be told what a proposed commit comes to. Called before it is
    /// proposed.
    pub(crate) fn expect(
        &mut self,
        ticket: Ticket,
        turn: Option<Turn>,
        staged: Staged<V>,
    ) -> oneshot::Receiver<Settlement> {
        let (caller, settled) = oneshot::channel();
        self.proposed.insert(ticket, Proposed { caller, turn });
        self.objects.staged.insert(ticket, staged);
        settled
    }

    /// The commit was not accepted after all.
    pub(crate) fn forget(&mut self, ticket: Ticket) -> Option<Turn> {
        self.objects.unstage(ticket);
        self.proposed.remove(&ticket)?.turn
    }

    pub(crate) fn version(&self) -> Option<AssignmentVersion> {
        self.core.version()
    }

    /// Whether something has come up that the driver has to see to.
    pub(crate) fn news(&self) -> bool {
        self.replaced || self.drained || self.core.is_complete() != self.settled
    }

    /// Copies that others have been refusing for some time, for the assigner.
    pub(crate) fn unstored(&self) -> Vec<Unstored> {
        let refusals = self.core.refusals(self.objects.store.clock(), REFUSED_FOR);
        let refusals = refusals.into_iter().take(REPORT_UNSTORED_MAX);
        refusals
            .map(|(server, point)| Unstored { point, server })
            .collect()
    }

    /// Servers that are reached through others only.
    pub(crate) fn detours(&self) -> usize {
        self.core.detours(self.objects.store.clock())
    }

    pub(crate) fn core(&self) -> &Core {
        &self.core
    }
}
