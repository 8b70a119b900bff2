//! `cell up`: a process for each backend, watched, and started again when it dies.

use crate::args::{Plaintext, Restart, UpArgs};
use crate::cell::engine::EngineProcess;
use crate::cell::founding::{self, CellPlan};
use crate::cell::home::Home;
use crate::cell::maintenance::{Ground, Plan};
use crate::cell::order_error::OrderError;
use crate::cell::orders::{Event, Ordered, Orders};
use crate::cell::program::{Begins, Program, Starter};
use crate::cell::rehearsal::Rehearsal;
use crate::cell::resize::{self, Resizing, Stage};
use crate::cell::revival::{Backend, Revival};
use crate::cell::spares::Spares;
use crate::cell::spread::Spread;
use crate::failure::{Failure, Outcome, print_line};
use crate::fixed::Fixed;
use crate::settings::{MemoryLimit, StoreSettings};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::process::Child;
use tokio::signal::unix::{SignalKind, signal};
use trefoil_cell::{CellConfig, CorpusDigester, CorpusId, LimitNote, Mode};
use trefoil_layout::{KeyHasher, Version};

pub(crate) const MODE_DEFAULT: &str = "R=3.2";
pub(crate) const NAME_DEFAULT: &str = "cell";
pub(crate) const METRICS_DEFAULT: &str = "off";
pub(crate) const SPARES_DEFAULT: u32 = 0;
pub(crate) const RESTART_DEFAULT: Restart = Restart::Always;
/// Most backends of one cell on one machine.
pub(super) const BACKEND_COUNT_MAX: u32 = 256;
/// How often backends are looked at, even if nothing is heard of their end.
const LOOK_PERIOD: Duration = Duration::from_secs(1);
/// The same while backends are moved.
const PLAN_PERIOD: Duration = Duration::from_millis(5);
/// Client id of the versions that a corpus' items get: no client draws 0 bits.
const CORPUS_LOADER_ID: u64 = 1;
/// How long a backend may take to end after it was asked to.
const STOP_PATIENCE: Duration = Duration::from_secs(10);

pub(super) fn run(args: UpArgs) -> Outcome {
    let given = args.clone();
    let args = crate::settings::up_with_file(args)?;
    let mode_text = args.mode.as_deref().unwrap_or(MODE_DEFAULT);
    let mode: Mode = mode_text
        .parse()
        .map_err(|e| Failure::Usage(format!("--mode {mode_text}: {e}")))?;
    let Some(dir) = &args.dir else {
        return Err(Failure::Usage(
            "no directory for the cell: give --dir, or dir in the configuration file".into(),
        ));
    };
    let copies = mode.copy_count() as u32;
    if args.queue && mode.is_immutable() {
        return Err(Failure::Usage(format!(
            "--queue: nobody writes to a cell of --mode {mode}"
        )));
    }
    if !args.here.is_empty() || args.host.listen.is_some() {
        return on_several_hosts(&given, args, mode);
    }
    // What else is said of other hosts is said in vain.
    Spread::of(&args.host, &args.here)?;
    let known = || backends_before(dir, args.config_store.as_deref(), mode);
    let count = args.backends.or_else(known).unwrap_or(copies);
    if count < copies {
        return Err(Failure::Usage(format!(
            "--backends {count}: {mode} needs at least {copies}"
        )));
    }
    if count > BACKEND_COUNT_MAX {
        return Err(Failure::Usage(format!(
            "--backends {count}: each is a process of this machine; choose {copies} to {BACKEND_COUNT_MAX}"
        )));
    }
    match (mode, &args.load) {
        (Mode::R2, None) => {
            return Err(Failure::Usage(
                "an immutable cell (R=2) needs --load FILE".into(),
            ));
        }
        (Mode::R1 | Mode::R32, Some(_)) => {
            return Err(Failure::Usage(format!(
                "--load is for immutable cells: use --mode R=2, not {mode}"
            )));
        }
        _ => {}
    }
    let corpus = args.load.as_deref().map(corpus).transpose()?;
    let metrics = check_settings(&args)?;
    crate::logging::start();
    let (home, config) = configure(&args, dir, (mode, corpus), count)?;
    let numbers = (0..count).collect();
    watch(&given, (args, home, metrics), &config, numbers)
}

/// Checks what every cell's backends are started with; where metrics are served.
fn check_settings(args: &UpArgs) -> Result<Option<SocketAddr>, Failure> {
    StoreSettings::from(&args.store).check()?;
    crate::users::policy(&args.allow_user)?;
    if let Some(listen) = crate::serve::engine_address(args.engine.as_deref())? {
        let host = &args.host;
        let is_plain = host.plaintext.contains(&Plaintext::Rpc);
        let has_token = is_plain && host.token_file.is_some();
        crate::engine::check_reach(listen, host.certs.is_some(), has_token)?;
    }
    crate::engine::engine_options(args.engine_size)?;
    engine_metrics(args)?;
    let metrics = args.metrics.as_deref().unwrap_or(METRICS_DEFAULT);
    crate::serve::metrics_address(metrics)
}

/// Where the metrics of the engine are served.
pub(super) fn engine_metrics(args: &UpArgs) -> Result<Option<SocketAddr>, Failure> {
    let text = args.engine_metrics.as_deref();
    let text = text.unwrap_or(crate::engine::METRICS_DEFAULT);
    if text == "off" {
        return Ok(None);
    }
    let at = crate::serve::tcp_address("--engine-metrics", text)?;
    if crate::serve::engine_address(args.engine.as_deref())?.is_none() {
        return Err(Failure::Usage(format!(
            "--engine-metrics {at}: there is no engine; start one with --engine HOST:PORT"
        )));
    }
    if !at.ip().is_loopback() && !args.host.plaintext.contains(&Plaintext::Metrics) {
        return Err(Failure::Usage(format!(
            "--engine-metrics {at} is reachable from other machines without TLS: listen on 127.0.0.1, or pass --plaintext metrics"
        )));
    }
    Ok(Some(at))
}

/// Runs this host's backends of a cell that has others on other hosts.
fn on_several_hosts(given: &UpArgs, args: UpArgs, mode: Mode) -> Outcome {
    let usage = |what: String| Err(Failure::Usage(what));
    if args.here.is_empty() {
        return usage(
            "--listen is for a cell on several hosts: say by --here which backends are on this one"
                .into(),
        );
    }
    if mode.is_immutable() || args.load.is_some() {
        return usage("immutable cells (R=2) are on one host in this release".into());
    }
    let copies = mode.copy_count() as u32;
    let count = args.backends.unwrap_or(copies);
    if !(copies..=BACKEND_COUNT_MAX).contains(&count) {
        return usage(format!(
            "--backends {count}: all hosts together; {mode} needs {copies} to {BACKEND_COUNT_MAX}"
        ));
    }
    if let Some(number) = args.here.iter().find(|number| **number >= count) {
        let last = count - 1;
        return usage(format!(
            "--here {number}: the cell's backends are 0 to {last} (--backends {count})"
        ));
    }
    let metrics = check_settings(&args)?;
    let spread = Spread::of(&args.host, &args.here)?;
    crate::logging::start();
    let Some(dir) = &args.dir else {
        return usage("no directory for the cell: give --dir".into());
    };
    // In a directory of its own, another cell's is not marked.
    if args.config_store.is_none() {
        return usage(
            "a cell on several hosts has its configuration in etcd: give --store etcd://host:port/path".into(),
        );
    }
    let home = Home::open(dir, args.config_store.as_deref())?.on_several_hosts(spread)?;
    let (Some(spread), Some(store)) = (home.spread(), home.etcd()) else {
        return usage("give --store and --listen".into());
    };
    let plan = CellPlan::of(&args, mode, count);
    spread.use_token();
    let rehearsal = Rehearsal::begin(spread)?;
    let Some((config, numbers)) = founding::join(&home, store, &plan, &rehearsal)? else {
        return Ok(ExitCode::SUCCESS);
    };
    drop(rehearsal);
    warn_of_neighbours(&config, &numbers);
    if !args.allow_user.is_empty() {
        home.let_others_look(true)?;
    }
    watch(given, (args, home, metrics), &config, numbers)
}

/// Says which backends of this host hold copies of the same keys: what the host's end costs.
fn warn_of_neighbours(config: &CellConfig, here: &[u32]) {
    let placement = config.placement();
    for shard in 0..config.backends.len() as u32 {
        let cohort = placement.cohort_of_shard(shard);
        let cohort = cohort.as_slice().iter();
        let together: Vec<u32> = cohort.copied().filter(|n| here.contains(n)).collect();
        if together.len() > 1 {
            tracing::warn!(
                backends = ?together,
                "backends that hold copies of the same keys are on this host: with it, both are lost"
            );
        }
    }
}

fn watch(
    given: &UpArgs,
    (args, home, metrics): (UpArgs, Home, Option<SocketAddr>),
    config: &CellConfig,
    numbers: Vec<u32>,
) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Failure::doing("cannot start the runtime", e))?;
    let starter = Arc::new(Starter {
        args,
        home,
        metrics,
    });
    let outcome = runtime.block_on(supervise(given, starter, config, numbers));
    // What still asks a backend that has ended is not waited for.
    runtime.shutdown_background();
    outcome
}

/// How many backends the cell that was here before had last; it may have been resized.
fn backends_before(dir: &Path, store: Option<&str>, mode: Mode) -> Option<u32> {
    let home = Home::open(dir, store).ok()?;
    // What cannot be read is told of when it is written.
    let config = home.registry().load().ok().flatten()?;
    (config.mode == mode).then_some(config.backends.len() as u32)
}

/// What the file of an immutable cell is.
fn corpus(file: &Path) -> Result<CorpusId, Failure> {
    let fail = |e| Failure::doing(format!("cannot read {}", file.display()), e);
    let (digest, len) = std::fs::File::open(file)
        .and_then(CorpusDigester::of)
        .map_err(fail)?;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now_ns = now.map_err(Failure::of)?.as_nanos() as u64;
    let path = std::path::absolute(file).map_err(fail)?;
    Ok(CorpusId {
        digest,
        len,
        first: Version::new(now_ns, CORPUS_LOADER_ID, 0),
        path: path.to_str().map(str::to_owned),
    })
}

/// Writes the cell's configuration, and returns it and where it is.
fn configure(
    args: &UpArgs,
    dir: &Path,
    (mode, corpus): (Mode, Option<CorpusId>),
    count: u32,
) -> Result<(Home, CellConfig), Failure> {
    let home = Home::create(dir, args.config_store.as_deref())?;
    let store = home.registry();
    // Whoever runs there keeps its configuration.
    let known = store.load().map_err(Failure::of)?;
    // Even if nobody is registered there: its hosts are off, or cut off from etcd.
    if known.as_ref().is_some_and(CellConfig::is_spread) {
        let address = home.address();
        return Err(Failure::Usage(format!(
            "the cell in {address} is on several hosts: give --here and --listen, or choose another path for one on this host"
        )));
    }
    let ever = known
        .as_ref()
        .map_or(0, |config| config.backends.len() as u32);
    for number in 0..count.max(ever) {
        drop(store.claim(number).map_err(Failure::of)?);
    }
    let settings = StoreSettings::from(&args.store);
    let expected = known.as_ref().map(CellConfig::topology_id);
    // Ids in one store grow through all lives.
    let last_id = known.as_ref().map_or(0, |config| config.config_id);
    let config = CellConfig {
        life: crate::settings::random_life(),
        config_id: last_id + 1,
        cell: args.name.clone().unwrap_or_else(|| NAME_DEFAULT.into()),
        mode,
        backends: home.backends(count).map_err(Failure::of)?,
        hash: KeyHasher {
            kind: settings.hash,
            seed: crate::settings::random_seed(),
        },
        value_len_max: settings.value_len_max,
        eviction: settings.eviction.name().into(),
        flush_floor: Version::ZERO,
        corpus,
    };
    store
        .compare_and_swap(expected, &config)
        .map_err(Failure::of)?;
    home.let_others_look(!args.allow_user.is_empty())?;
    Ok((home, config))
}

async fn supervise(
    given: &UpArgs,
    starter: Arc<Starter>,
    config: &CellConfig,
    numbers: Vec<u32>,
) -> Outcome {
    let args = &starter.args;
    let mut hangup = signal(SignalKind::hangup()).map_err(Failure::of)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(Failure::of)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Failure::of)?;
    let mut child_ended = signal(SignalKind::child()).map_err(Failure::of)?;
    let program = Program::this()?;
    let first_memory = StoreSettings::from(&args.store).memory;
    let limit_note = LimitNote::in_directory(starter.home.directory().directory());
    // What was set under the one before.
    limit_note.forget();
    // All at once: each waits out its predecessor's lease.
    let mut backends = Vec::new();
    for number in numbers {
        let child = starter.start(&program, Begins::Alone(number), first_memory)?;
        backends.push(Backend::new(number, &program, child));
    }
    let spare_count = args.spares.unwrap_or(SPARES_DEFAULT);
    let mut spares = Spares::new(Arc::clone(&program), spare_count as usize);
    for _ in 0..spare_count {
        let added = spares.add(&starter, first_memory);
        added.map_err(Failure::of)?;
    }
    for backend in &mut backends {
        backend.await_ready().await?;
    }
    let listen = crate::serve::engine_address(args.engine.as_deref())?;
    let mut engine = match listen {
        None => None,
        Some(listen) => Some(EngineProcess::start(&program, &starter, listen).await?),
    };
    let mut orders = Orders::listen(starter.home.directory().directory())?;
    let address = starter.home.address();
    let pids: Vec<u32> = backends.iter().map(Backend::pid).collect();
    print_line(&format!(
        "ready {}",
        match &engine {
            Some(engine) => serde_json::json!({
                "cell": address,
                "pids": pids,
                "engine": engine.address().to_string(),
                "engine_metrics": engine.metrics().map(|at| at.to_string()),
                "engine_pid": engine.pid(),
            }),
            None => serde_json::json!({ "cell": address, "pids": pids }),
        }
    ))?;
    let mut memory = match starter.home.spread() {
        None => MemoryLimit::new(&address, first_memory),
        Some(_) => {
            let sockets = starter.home.sockets_here().map_err(Failure::of)?;
            MemoryLimit::of(sockets, first_memory)
        }
    }
    .with_note(limit_note);
    let revival = Revival::new(args, &starter.home, config);
    let mut drained = BTreeSet::new();
    let mut plan: Option<Plan> = None;
    let mut resizing: Option<Resizing> = None;
    let mut ordered: Option<Ordered> = None;
    loop {
        // Those who have ended, and those whose pause before the next start is over.
        let now = Instant::now();
        let limit = memory.chosen();
        let stage = resizing.as_ref().map(Resizing::stage).unwrap_or_default();
        for backend in &mut backends {
            if stage < Stage::Committed {
                backend.look(now, &revival);
            }
            if stage < Stage::Critical
                && let Some(number) = backend.start_if_due(now, &revival, &starter, limit)
            {
                // The spare that it was has died.
                drained.remove(&number);
            }
        }
        if let Some(engine) = &mut engine {
            engine.look(now, &starter);
        }
        let has_spare = plan.as_ref().is_some_and(Plan::has_spare);
        let taken = drained.len() + usize::from(has_spare);
        spares.look(now, &starter, limit, taken);
        if backends.iter().all(Backend::is_over) {
            return Err(Failure::Failed("the last backend has died".into()));
        }
        let mut ground = Ground {
            starter: &starter,
            address: &address,
            mode: config.mode,
            memory: limit,
            backends: &mut backends,
            spares: &mut spares,
            drained: &mut drained,
        };
        let (given_now, is_moving) = (ordered.take(), plan.is_some());
        let order = resize::take(given_now, &mut resizing, is_moving, &ground).await;
        if let Some((order, events)) = order {
            match plan {
                None => plan = Plan::of((order, events), &mut ground).await,
                Some(_) => {
                    let _ = events.send(Event::failed(&OrderError::Busy)).await;
                }
            }
        }
        if let Some(going) = &mut plan
            && !going.goes_on(now, &mut ground).await
        {
            plan = None;
        }
        let due = backends.iter().filter_map(Backend::due).min();
        let due = due.filter(|_| stage == Stage::Copies);
        let engine_due = engine.as_ref().and_then(EngineProcess::due);
        let due = due.into_iter().chain(engine_due).min();
        let pause = due.map_or(LOOK_PERIOD, |due| due.saturating_duration_since(now));
        let longest = if plan.is_some() {
            PLAN_PERIOD
        } else {
            LOOK_PERIOD
        };
        tokio::select! {
            // Whoever ends us may have ended the backends, too.
            biased;
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            _ = hangup.recv() => crate::signals::tell(reload(given, args, &mut memory)),
            _ = child_ended.recv() => {}
            order = orders.next() => ordered = order,
            ended = resize::ended(&mut resizing) => {
                if let Some(joined) = ended {
                    resize::set_memory(&mut memory, &joined);
                    resize::replace(&mut backends, joined);
                    drained.clear();
                }
            }
            () = tokio::time::sleep(pause.min(longest)) => {}
        }
    }
    drop(spares);
    if let Some(engine) = engine {
        engine.stop().await;
    }
    stop(backends).await
}

/// Takes what the configuration file says now.
fn reload(given: &UpArgs, begun: &UpArgs, memory: &mut MemoryLimit) -> Result<(), Failure> {
    let args = crate::settings::up_with_file(given.clone())?;
    Fixed::of_up(begun).tell_changed(&Fixed::of_up(&args));
    let settings = StoreSettings::from(&args.store);
    settings.check()?;
    memory.change(settings.memory)
}

async fn stop(backends: Vec<Backend>) -> Outcome {
    let mut children: Vec<(u32, Child)> = backends
        .into_iter()
        .flat_map(Backend::into_children)
        .collect();
    for (_, child) in &children {
        let pid = child.id().and_then(|pid| Pid::from_raw(pid as i32));
        if let Some(pid) = pid {
            let _ = kill_process(pid, Signal::TERM);
        }
    }
    let mut code = ExitCode::SUCCESS;
    for (number, child) in &mut children {
        match tokio::time::timeout(STOP_PATIENCE, child.wait()).await {
            // One that was killed before is no failure of the stop.
            Ok(_) => {}
            Err(_) => {
                tracing::error!(backend = number, "does not stop; killing it");
                let _ = child.kill().await;
                code = ExitCode::FAILURE;
            }
        }
    }
    Ok(code)
}
