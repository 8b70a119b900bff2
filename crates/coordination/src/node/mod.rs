//! An assigner: one task for each corpus, over one store.

mod corpus;
mod metrics;
mod options;
mod problems;
mod said;
mod status;
mod table;

pub use metrics::METRICS;
pub(crate) use metrics::collect;
pub use options::NodeOptions;
pub use problems::{PROBLEM_KINDS, Problem};
pub use status::{
    ChangeStatus, CorpusStatus, MemberStatus, NodeStatus, SliceStatus, Totals, TurnedAway,
};

use crate::error::{CoordinationError, Refusal};
use crate::limits::{CORPORA_MAX, TURNED_AWAY_MAX};
use crate::link::{Grant, KeepAlive, Registration};
use crate::session::Tasks;
use crate::store::{CorpusState, Store, Writer};
use crate::vitals::Report;
use corpus::{Command, Driver, Reply};
use options::check_name;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use trefoil_sharder::coordination::CandidateId;
use trefoil_sharder::{Freeze, ServerId};

/// Commands that wait at one corpus; beyond it, askers wait.
const COMMANDS_MAX: usize = 1_024;

/// An assigner in this process; it ends when it is dropped.
pub(crate) struct Node {
    options: Arc<NodeOptions>,
    store: Store,
    writer: Writer,
    cut: watch::Sender<bool>,
    corpora: Mutex<BTreeMap<String, Corpus>>,
    /// Corpora that were asked for and are not served here, and how often.
    turned_away: Mutex<BTreeMap<String, u64>>,
    /// The store has said which corpora it has.
    resumed: AtomicBool,
    resigned: watch::Sender<Resigned>,
    ended: AtomicBool,
}

/// Whether it has stopped leading so that others can.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Resigned {
    #[default]
    No,
    UnderWay,
    Done,
}

struct Corpus {
    commands: mpsc::Sender<Command>,
    state: watch::Receiver<Arc<CorpusState>>,
    _task: Tasks,
}

impl Node {
    /// Begins to stand for election for every corpus that is configured; the
    /// others follow when they are first asked for.
    pub(crate) fn start(store: Store, options: NodeOptions) -> Result<Self, CoordinationError> {
        options.validate()?;
        let writer = Writer {
            candidate: CandidateId(rand::random()),
            address: options.address.clone(),
        };
        let node = Node {
            options: Arc::new(options),
            store,
            writer,
            cut: watch::Sender::new(false),
            corpora: Mutex::new(BTreeMap::new()),
            turned_away: Mutex::new(BTreeMap::new()),
            resumed: AtomicBool::new(false),
            resigned: watch::Sender::new(Resigned::No),
            ended: AtomicBool::new(false),
        };
        for name in node.options.corpora.keys() {
            node.corpus(name, |_| ())
                .map_err(|refusal| CoordinationError::Refused {
                    corpus: name.clone(),
                    refusal,
                })?;
        }
        Ok(node)
    }

    /// Takes up the corpora that the store has something of.
    pub(crate) async fn resume(&self) -> Result<(), Refusal> {
        for name in self.store.corpora().await.map_err(Refusal::from)? {
            if !self.options.closed || self.options.corpora.contains_key(&name) {
                self.corpus(&name, |_| ())?;
            }
        }
        self.resumed.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Whether the store has answered, so that it is of use to others.
    pub(crate) fn has_resumed(&self) -> bool {
        self.resumed.load(Ordering::Relaxed)
    }

    /// How far it is with stopping to lead.
    pub(crate) fn resigned(&self) -> Resigned {
        *self.resigned.borrow()
    }

    pub(crate) fn cut_off(&self, cut: bool) {
        self.cut.send_replace(cut);
    }

    pub(crate) fn is_cut_off(&self) -> bool {
        *self.cut.borrow()
    }

    pub(crate) async fn register(
        &self,
        corpus: &str,
        registration: Registration,
    ) -> Result<Grant, Refusal> {
        let granted_here = registration
            .granted
            .as_ref()
            .is_some_and(|grant| grant.by == self.options.address);
        let register = |reply| Command::Register {
            registration,
            granted_here,
            reply,
        };
        let lease = self.ask(corpus, register).await?;
        Ok(self.grant(lease))
    }

    fn grant(&self, lease: Duration) -> Grant {
        Grant {
            lease,
            by: self.options.address.clone(),
        }
    }

    pub(crate) async fn keep_alive(&self, corpus: &str, call: KeepAlive) -> Result<Grant, Refusal> {
        let lease = self
            .ask(corpus, |reply| Command::KeepAlive { call, reply })
            .await?;
        Ok(self.grant(lease))
    }

    pub(crate) async fn leave(&self, corpus: &str, id: ServerId, life: u64) -> Result<(), Refusal> {
        self.ask(corpus, |reply| Command::Leave { id, life, reply })
            .await
    }

    pub(crate) async fn report(&self, corpus: &str, report: Report) -> Result<(), Refusal> {
        self.ask(corpus, |reply| Command::Report { report, reply })
            .await
    }

    /// The state of a corpus, now and whenever it changes.
    pub(crate) async fn watch(
        &self,
        corpus: &str,
    ) -> Result<watch::Receiver<Arc<CorpusState>>, Refusal> {
        self.check_served(corpus).await?;
        self.corpus(corpus, |corpus| corpus.state.clone())
    }

    /// For one corpus, or all of them (an empty name); which ones.
    pub(crate) async fn set_freeze(
        &self,
        corpus: &str,
        freeze: Freeze,
    ) -> Result<Vec<String>, Refusal> {
        let names = match corpus {
            "" => self.names(),
            name => vec![name.to_owned()],
        };
        for name in &names {
            self.ask(name, |reply| Command::SetFreeze { freeze, reply })
                .await?;
        }
        Ok(names)
    }

    pub(crate) async fn begin_incarnation(&self, corpus: &str) -> Result<(), Refusal> {
        self.ask(corpus, |reply| Command::BeginIncarnation { reply })
            .await
    }

    pub(crate) async fn status(&self, store: &str) -> Result<NodeStatus, Refusal> {
        let mut status = NodeStatus {
            address: self.options.address.clone(),
            store: store.to_owned(),
            lease_ms: self.options.lease.as_millis() as u64,
            turned_away: self.turned_away(),
            corpora: Vec::new(),
        };
        for name in self.names() {
            status
                .corpora
                .push(self.ask(&name, |reply| Command::Status { reply }).await?);
        }
        Ok(status)
    }

    fn turned_away(&self) -> Vec<TurnedAway> {
        let turned_away = self
            .turned_away
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        turned_away
            .iter()
            .map(|(corpus, &requests)| TurnedAway {
                corpus: corpus.clone(),
                requests,
            })
            .collect()
    }

    /// It is to stop leading: says so at once, and whether nobody has said it
    /// before. Who does has to see to it by [`Node::give_up`].
    pub(crate) fn begin_to_resign(&self) -> bool {
        self.resigned.send_if_modified(|was| {
            let begins = *was == Resigned::No;
            if begins {
                *was = Resigned::UnderWay;
            }
            begins
        })
    }

    /// Stops leading, so that others need not wait for the lease.
    pub(crate) async fn resign(&self) {
        if !self.begin_to_resign() {
            let mut resigned = self.resigned.subscribe();
            let _ = resigned.wait_for(|now| *now == Resigned::Done).await;
            return;
        }
        self.give_up().await;
    }

    /// Has every corpus stop leading. One that begins later does not begin to.
    pub(crate) async fn give_up(&self) {
        for name in self.names() {
            if let Err(refusal) = self.ask(&name, |reply| Command::Resign { reply }).await {
                tracing::debug!(corpus = name, %refusal, "resigning");
            }
        }
        self.resigned.send_replace(Resigned::Done);
    }

    /// Ends at once, whoever still holds it: as if the process had died.
    pub(crate) fn end(&self) {
        let mut corpora = self.lock();
        self.ended.store(true, Ordering::SeqCst);
        corpora.clear();
    }

    fn names(&self) -> Vec<String> {
        self.lock().keys().cloned().collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Corpus>> {
        self.corpora.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the flags allow a corpus.
    fn serves(&self, name: &str) -> bool {
        !self.options.closed || self.options.corpora.contains_key(name)
    }

    fn unknown(&self) -> Refusal {
        let known: Vec<&str> = self.options.corpora.keys().map(String::as_str).collect();
        Refusal::UnknownCorpus {
            known: known.join(", "),
        }
    }

    /// Somebody asks for a corpus that the flags do not have: another assigner
    /// may have been started with other ones, and lead it. Only where nobody
    /// does is the corpus said to be unknown.
    async fn check_served(&self, name: &str) -> Result<(), Refusal> {
        if self.serves(name) {
            return Ok(());
        }
        check_name(name).map_err(Refusal::Invalid)?;
        let leader = self.store.leader(name).await.map_err(Refusal::from)?;
        if let Some(leader) = leader.filter(|leader| leader.candidate != self.writer.candidate) {
            return Err(Refusal::NotLeading {
                address: Some(leader.address).filter(|address| !address.is_empty()),
            });
        }
        self.note_turned_away(name);
        Err(self.unknown())
    }

    fn note_turned_away(&self, name: &str) {
        let mut turned_away = self
            .turned_away
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if turned_away.len() >= TURNED_AWAY_MAX && !turned_away.contains_key(name) {
            return;
        }
        let count = turned_away.entry(name.to_owned()).or_default();
        *count += 1;
        if count.is_power_of_two() {
            tracing::error!(
                corpus = name,
                requests = *count,
                "servers ask for a corpus that this assigner was not started with, and nobody \
                 else leads it: is --corpus {name} missing?"
            );
        }
    }

    /// Looks at a corpus, which begins now if it has not yet.
    fn corpus<T>(&self, name: &str, look: impl FnOnce(&Corpus) -> T) -> Result<T, Refusal> {
        let mut corpora = self.lock();
        if self.ended.load(Ordering::SeqCst) {
            return Err(ending());
        }
        if let Some(corpus) = corpora.get(name) {
            return Ok(look(corpus));
        }
        check_name(name).map_err(Refusal::Invalid)?;
        if !self.serves(name) {
            return Err(self.unknown());
        }
        if corpora.len() >= CORPORA_MAX {
            return Err(Refusal::Invalid(format!(
                "there are {CORPORA_MAX} corpora, which is the limit"
            )));
        }
        let store = self.store.corpus(name, self.writer.clone());
        let state = store.watch();
        let driver = Driver::new(
            name,
            Arc::clone(&self.options),
            store,
            self.writer.clone(),
            self.cut.subscribe(),
        )
        .map_err(|error| Refusal::Invalid(error.to_string()))?
        // Under the lock: whoever resigns sees this corpus, or this sees that.
        .resigned(self.resigned() != Resigned::No);
        let (commands, receiver) = mpsc::channel(COMMANDS_MAX);
        let task = tokio::spawn(driver.run(receiver));
        let corpus = Corpus {
            commands,
            state,
            _task: Tasks(vec![task.abort_handle()]),
        };
        let seen = look(&corpus);
        corpora.insert(name.to_owned(), corpus);
        Ok(seen)
    }

    async fn ask<T>(
        &self,
        corpus: &str,
        command: impl FnOnce(Reply<T>) -> Command,
    ) -> Result<T, Refusal> {
        self.check_served(corpus).await?;
        let commands = self.corpus(corpus, |corpus| corpus.commands.clone())?;
        let (reply, answer) = oneshot::channel();
        let ended = || Refusal::Store("the assigner is ending".to_owned());
        commands.send(command(reply)).await.map_err(|_| ended())?;
        answer.await.map_err(|_| ended())?
    }
}

fn ending() -> Refusal {
    Refusal::Store("the assigner is ending".to_owned())
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Node({})", self.writer.candidate)
    }
}

#[cfg(test)]
mod tests;
