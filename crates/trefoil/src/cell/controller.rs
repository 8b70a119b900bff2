//! `cell controller`: gives dead backends' places to spares ([`trefoil_cell::control`]
//! decides, the store carries out).
//!
//! One thread looks at the store again and again. Of several processes one decides, by a
//! key in etcd that goes with its lease; the others look on, so that they need not begin
//! to count when they are next. Nothing waits for this: a cell without a controller serves
//! as well, its dead backends stay dead.

use crate::args::{ControlArgs, ControllerArgs};
use crate::cell::{anew, home};
use crate::failure::{Failure, Outcome, print_line};
use crate::signals::Signals;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::TcpListener;
use std::process::ExitCode;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::Notify;
use trefoil_backend::{ListenError, take_port};
use trefoil_cell::control::{
    Controller, DEAD_AFTER_MIN, Health, Hindrance, Plan, Replacement, Rules, View,
};
use trefoil_cell::{ConfigStoreError, EtcdStore, Leadership};
use trefoil_client::{Cell, ConnectError, Tls};
use trefoil_endpoint::Endpoint;

/// The store is looked at so often in the time after which a backend counts as dead.
const LOOKS: u32 = 10;
const PERIOD_MIN: Duration = Duration::from_millis(100);
const PERIOD_MAX: Duration = Duration::from_secs(1);
/// What goes on is told again so often.
const TELL_AGAIN: Duration = Duration::from_secs(60);

pub(super) fn run(args: &ControllerArgs) -> Outcome {
    let rules = rules(&args.control)?;
    let metrics = metrics_listener(&args.metrics)?;
    crate::logging::start();
    let store = home::etcd(&args.store)?;
    // Whoever has mistyped the path learns it at once.
    let none = || ConfigStoreError::NoCellInEtcd(store.address().to_string());
    let view = store.view().map_err(Failure::of)?;
    let cell = view.ok_or_else(|| Failure::of(none()))?.config.cell;
    let signals = Signals::new()?;
    let tls = crate::connect::tls(args.certs.as_deref())?;
    let running = Running::begin(store, rules, tls)?;
    let endpoint = match metrics {
        None => None,
        Some(listener) => {
            let figures = Arc::clone(&running.figures);
            let text = move || text(&lock(&figures), &cell);
            Some(Endpoint::of(listener, Arc::new(text)).map_err(Failure::of)?)
        }
    };
    let ready = serde_json::json!({
        "cell": args.store,
        "metrics": endpoint.as_ref().map(|endpoint| endpoint.address().to_string()),
        "pids": [std::process::id()],
    });
    print_line(&format!("ready {ready}"))?;
    signals.wait(&Notify::new(), || Ok(()));
    drop(running);
    Ok(ExitCode::SUCCESS)
}

/// What the operator has chosen, if it can be.
pub(super) fn rules(args: &ControlArgs) -> Result<Rules, Failure> {
    if args.dead_after < DEAD_AFTER_MIN {
        return Err(Failure::Usage(format!(
            "--dead-after {}: give at least {}; a backend that is restarted should be back by then",
            humantime::format_duration(args.dead_after),
            humantime::format_duration(DEAD_AFTER_MIN)
        )));
    }
    Ok(Rules {
        dead_after: args.dead_after,
        replace_lost: args.replace_lost,
    })
}

fn metrics_listener(text: &str) -> Result<Option<TcpListener>, Failure> {
    let Some(address) = crate::serve::metrics_address(text)? else {
        return Ok(None);
    };
    if !address.ip().is_loopback() {
        let what = "metrics";
        return Err(Failure::of(ListenError::OffLoopback { address, what }));
    }
    let (listener, _) = take_port(address)
        .map_err(|error| error.with_option("metrics"))
        .map_err(Failure::of)?;
    Ok(Some(listener))
}

/// A controller of this process, until dropped.
pub(super) struct Running {
    figures: Arc<Mutex<Figures>>,
    /// Dropped to end it.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    pub(super) fn begin(store: EtcdStore, rules: Rules, tls: Option<Tls>) -> Result<Self, Failure> {
        let figures = Arc::<Mutex<Figures>>::default();
        let mut watch = Watch {
            address: store.address().to_string(),
            store,
            tls,
            controller: Controller::new(rules),
            began: Instant::now(),
            leadership: None,
            figures: Arc::clone(&figures),
            told: BTreeMap::new(),
        };
        let period = (rules.dead_after / LOOKS).clamp(PERIOD_MIN, PERIOD_MAX);
        let (stop, stopped) = channel::<()>();
        let thread = std::thread::Builder::new()
            .name("trefoil-control".to_owned())
            .spawn(move || {
                loop {
                    watch.look();
                    if stopped.recv_timeout(period) != Err(RecvTimeoutError::Timeout) {
                        return;
                    }
                }
            })
            .map_err(|e| Failure::doing("cannot start the controller's thread", e))?;
        Ok(Running {
            figures,
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Watch {
    store: EtcdStore,
    /// What is spoken with backends over TCP, if it is TLS.
    tls: Option<Tls>,
    address: String,
    controller: Controller,
    began: Instant,
    leadership: Option<Leadership>,
    figures: Arc<Mutex<Figures>>,
    /// What was said, and when.
    told: BTreeMap<String, Instant>,
}

impl Watch {
    fn look(&mut self) {
        // Before asking: what is seen is no older than this.
        let now = self.began.elapsed();
        let view = match self.store.view() {
            Ok(Some(view)) => view,
            Ok(None) => return self.cannot("there is no cell in etcd any more"),
            Err(error) => {
                // If it is, the next look sees it.
                anew::follow(&self.store, &error, self.tls.as_ref());
                return self.cannot(&error.to_string());
            }
        };
        let due = self.controller.look(now, &view);
        self.note(now, &view);
        if !self.leads(&view) {
            self.campaign(&view);
            return;
        }
        let result = match due.is_empty() {
            true => Ok(None),
            false => {
                let health = match ask(&self.address, self.tls.clone()) {
                    Ok(health) => health,
                    Err(why) => return self.cannot(&why),
                };
                let unix_ms = SystemTime::now().duration_since(UNIX_EPOCH);
                let unix_ms = unix_ms.map_or(0, |since| since.as_millis() as u64);
                self.controller.decide(&view, &due, &health, unix_ms)
            }
        };
        let hindrances = match result {
            Ok(None) => Vec::new(),
            Ok(Some(plan)) => {
                self.carry_out(&plan);
                Vec::new()
            }
            Err(hindrances) => hindrances,
        };
        for hindrance in &hindrances {
            let backend = hindrance.backend();
            self.tell(&hindrance.to_string(), || {
                tracing::error!(backend, why = %hindrance, "a dead backend is not replaced");
            });
        }
        if hindrances.is_empty() {
            self.told.clear();
        }
        lock(&self.figures).hindrances = hindrances;
    }

    /// The store says nothing that could be gone by.
    fn cannot(&mut self, why: &str) {
        self.controller.away();
        let mut figures = lock(&self.figures);
        (figures.is_away, figures.leads) = (true, false);
        drop(figures);
        self.tell(why, || {
            tracing::warn!(
                why,
                "the controller cannot look at the cell: nothing is replaced"
            );
        });
    }

    /// Whether this process decides, by what the store says.
    fn leads(&mut self, view: &View) -> bool {
        let Some(leadership) = &self.leadership else {
            return false;
        };
        if leadership.is_of(view) && !leadership.is_over() {
            return true;
        }
        tracing::warn!("this controller decides no longer: its lease has ended");
        self.leadership = None;
        let mut figures = lock(&self.figures);
        figures.leads = false;
        // Told by whoever decides.
        figures.hindrances.clear();
        false
    }

    fn campaign(&mut self, view: &View) {
        if view.revision(&trefoil_cell::control::Key::Leader) != 0 {
            return;
        }
        match self.store.campaign() {
            Ok(Some(leadership)) => {
                tracing::info!("this controller decides now");
                self.leadership = Some(leadership);
                lock(&self.figures).leads = true;
            }
            Ok(None) => {}
            Err(error) => self.cannot(&error.to_string()),
        }
    }

    fn carry_out(&mut self, plan: &Plan) {
        let Some(replacement) = plan.replacement() else {
            return;
        };
        let backend = replacement.backend;
        match self.store.replace(plan) {
            Ok(true) => {
                let (process, host) = (replacement.process, &replacement.host);
                let config_id = replacement.config_id;
                tracing::warn!(
                    backend,
                    process,
                    host,
                    config_id,
                    "a dead backend's place was given to a spare"
                );
                if replacement.is_loss {
                    tracing::error!(
                        backend,
                        "WHAT THE DEAD BACKEND HELD IS LOST: its place begins empty (--replace-lost)"
                    );
                }
                lock(&self.figures).replaced += 1;
            }
            Ok(false) => tracing::info!(
                backend,
                "not replaced: something has changed while that was decided"
            ),
            Err(error) => {
                tracing::warn!(backend, %error, "whether the backend was replaced is not known");
                self.cannot(&error.to_string());
            }
        }
    }

    fn note(&self, now: Duration, view: &View) {
        let mut figures = lock(&self.figures);
        figures.is_away = false;
        figures.spares = view.spares.len();
        figures.gone = self.controller.gone(now).collect();
        figures.last = view.replacements.last().cloned();
    }

    /// Says something that is new, or old enough to be said again.
    fn tell(&mut self, what: &str, say: impl FnOnce()) {
        let now = Instant::now();
        let is_old = |told: &Instant| now.saturating_duration_since(*told) >= TELL_AGAIN;
        if self.told.get(what).is_none_or(is_old) {
            self.told.insert(what.to_owned(), now);
            say();
        }
    }
}

/// How the backends are, by what they say themselves; nothing of those that do not answer.
/// `Err`: what etcd holds is not to be gone by, because they serve something newer.
fn ask(address: &str, tls: Option<Tls>) -> Result<BTreeMap<u32, Health>, String> {
    let cell = match Cell::connect_with(address, tls) {
        Ok(cell) => cell,
        Err(ConnectError::Config(error)) => return Err(error.to_string()),
        Err(_) => return Ok(BTreeMap::new()),
    };
    let health = |answer: trefoil_client::BackendStats| {
        let number = answer.number;
        let members = answer.stats.ok()?.members;
        let member = members.into_iter().find(|m| m.backend == number)?;
        let is_whole = member.recovery.is_none_or(|r| r.shards_left == 0);
        let health = if is_whole {
            Health::Votes
        } else {
            Health::Recovers
        };
        Some((number, health))
    };
    Ok(cell.stats().into_iter().filter_map(health).collect())
}

/// What metrics say.
#[derive(Default)]
struct Figures {
    leads: bool,
    is_away: bool,
    spares: usize,
    /// Backends that nobody is, and for how long.
    gone: Vec<(u32, Duration)>,
    /// By this process.
    replaced: u64,
    last: Option<Replacement>,
    hindrances: Vec<Hindrance>,
}

fn lock(figures: &Mutex<Figures>) -> MutexGuard<'_, Figures> {
    figures.lock().unwrap_or_else(PoisonError::into_inner)
}

fn text(figures: &Figures, cell: &str) -> Result<String, std::fmt::Error> {
    let mut text = String::new();
    let mut of = |name: &str, kind: &str, help: &str, samples: &[(String, f64)]| {
        writeln!(text, "# HELP trefoil_controller_{name} {help}")?;
        writeln!(text, "# TYPE trefoil_controller_{name} {kind}")?;
        let ending = if kind == "counter" { "_total" } else { "" };
        for (labels, value) in samples {
            writeln!(
                text,
                "trefoil_controller_{name}{ending}{{cell=\"{cell}\"{labels}}} {value}"
            )?;
        }
        Ok::<(), std::fmt::Error>(())
    };
    let one = |value: f64| [(String::new(), value)];
    let flag = |is: bool| one(if is { 1.0 } else { 0.0 });
    of(
        "leads",
        "gauge",
        "Whether this process decides.",
        &flag(figures.leads),
    )?;
    of(
        "store_away",
        "gauge",
        "Whether etcd does not answer, or is not believed.",
        &flag(figures.is_away),
    )?;
    of(
        "spares",
        "gauge",
        "Processes that stand by.",
        &one(figures.spares as f64),
    )?;
    let gone: Vec<(String, f64)> = figures
        .gone
        .iter()
        .map(|(number, gone)| (format!(",backend=\"{number}\""), gone.as_secs_f64()))
        .collect();
    of(
        "backend_gone_seconds",
        "gauge",
        "For how long nobody was seen as this backend.",
        &gone,
    )?;
    of(
        "replacements",
        "counter",
        "Places that this process has given to spares.",
        &one(figures.replaced as f64),
    )?;
    let last = figures
        .last
        .as_ref()
        .map_or(0.0, |last| last.at_ms as f64 / 1e3);
    of(
        "last_replacement_timestamp_seconds",
        "gauge",
        "When a place was given to a spare last, in seconds since 1970; 0 for never.",
        &one(last),
    )?;
    let hindrances: Vec<(String, f64)> = Hindrance::KINDS
        .iter()
        .map(|kind| {
            let count = figures
                .hindrances
                .iter()
                .filter(|h| h.kind() == *kind)
                .count();
            (format!(",why=\"{kind}\""), count as f64)
        })
        .collect();
    of(
        "hindered_backends",
        "gauge",
        "Dead backends that are not replaced, by the reason; told by the process that decides.",
        &hindrances,
    )?;
    text += "# EOF\n";
    Ok(text)
}
