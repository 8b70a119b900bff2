//! `engine`: reads the backends of this host for clients elsewhere.

mod count;
mod metrics;
mod metrics_port;
mod service;

pub(crate) use count::EngineCount;
pub(crate) use metrics::Metrics;
pub(crate) use service::{Service, Setup, check_reach};

use crate::args::{EngineArgs, EngineSize};
use crate::failure::{Failure, Outcome, print_line};
use crate::signals::Signals;
use metrics_port::MetricsPort;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use trefoil_backend::raise_descriptor_limit;
use trefoil_client::Cell;
use trefoil_softnic::{
    CellPlaces, ENGINE_COUNT_MAX, Engine, EngineOptions, Place, SESSION_COUNT_MAX,
};
use trefoil_tls::Right;

pub(crate) const ENGINES_DEFAULT: EngineCount = EngineCount { least: 1, most: 1 };
pub(crate) const SESSIONS_DEFAULT: usize = 256;
pub(crate) const METRICS_DEFAULT: &str = "off";
/// Of an engine's process: backends, strangers, its own.
const OTHER_DESCRIPTORS: u64 = 1024;

/// How long the engine may take to find the backends, before it says that it is ready
/// without some of them.
const FIND_PATIENCE: Duration = Duration::from_secs(1);

pub(crate) fn run(args: EngineArgs) -> Outcome {
    crate::logging::start();
    if args.is_bound {
        end_with_parent()?;
    }
    let stop = Arc::new(Notify::new());
    let tls = crate::serve::server_tls(args.address.certs.as_deref())?;
    let setup = Setup {
        listen: crate::serve::tcp_address("--listen", &args.listen)?,
        tls: tls.clone(),
        // One that is drawn is for this user, and the cell's own is its backends', too. Whoever
        // was given another one was to read.
        token_right: match args.is_bound || args.token_file.is_none() {
            true => Right::Admin,
            false => Right::Read,
        },
        token_file: args.token_file.clone(),
        is_plain: args.plaintext,
        options: EngineOptions {
            spin: args.spin.into(),
            ..engine_options(args.size)?
        },
    };
    let metrics = crate::serve::metrics_address(&args.metrics)?;
    if let Some(at) = metrics
        && !at.ip().is_loopback()
        && !args.plaintext
        && !args.plaintext_metrics
    {
        return Err(Failure::Usage(format!(
            "--metrics {at} is reachable from other machines without TLS: listen on 127.0.0.1, or pass --plaintext"
        )));
    }
    let metrics = MetricsPort::take(metrics, args.metrics_may_come_later)?;
    let signals = Signals::new()?;
    let cell = crate::connect::cell(&args.address)?;
    let known = cell.clone();
    let service = Service::start(setup, move |may_be_old| places(&known, may_be_old))?;
    let service = Arc::new(service);
    let (told, name) = (Metrics::of(&service), cell.config().cell.clone());
    let served = metrics.serve(Arc::new(move || metrics::text(&told, &name)))?;
    let engine = service.engine();
    await_backends(engine, &cell);
    let ready = serde_json::json!({
        "engine": engine.address().to_string(),
        "cell": args.address.cell,
        "metrics": served.as_ref().map(|served| served.address().to_string()),
        "pids": [std::process::id()],
    });
    print_line(&format!("ready {ready}"))?;
    signals.wait(&stop, || {
        crate::serve::read_again(tls.as_ref())?;
        crate::serve::read_again(cell.tls())
    });
    for count in engine.counted().all() {
        tracing::info!("{} {}", count.name, count.value);
    }
    Ok(ExitCode::SUCCESS)
}

/// How an engine of this size behaves.
pub(crate) fn engine_options(size: EngineSize) -> Result<EngineOptions, Failure> {
    let engines = size.engines.unwrap_or(ENGINES_DEFAULT);
    let EngineCount { least, most } = engines;
    if least < 1 || most < least || most > ENGINE_COUNT_MAX {
        return Err(Failure::Usage(format!(
            "--engines {engines}: threads that read, each of which takes a core under load; choose 1 to {ENGINE_COUNT_MAX}, or the fewest and the most, as in 1..4"
        )));
    }
    let sessions_max = size.engine_sessions.unwrap_or(SESSIONS_DEFAULT);
    if !(1..=SESSION_COUNT_MAX).contains(&sessions_max) {
        return Err(Failure::Usage(format!(
            "--engine-sessions {sessions_max}: choose 1 to {SESSION_COUNT_MAX}"
        )));
    }
    if let Some(share) = size.engine_share
        && !(1..=sessions_max).contains(&share)
    {
        return Err(Failure::Usage(format!(
            "--engine-share {share}: choose 1 to {sessions_max}, which is what --engine-sessions says"
        )));
    }
    // Each has a descriptor; what else there is fits into what is usual.
    let wanted = sessions_max as u64 + OTHER_DESCRIPTORS;
    if let Err(most) = raise_descriptor_limit(wanted) {
        tracing::warn!(
            "this process may have {most} files open, fewer than an engine's {sessions_max} \
             sessions need: raise the limit (ulimit -n)"
        );
    }
    Ok(EngineOptions {
        engines: least,
        engines_max: most,
        sessions_max,
        sessions_of_one_max: size.engine_share,
        ..EngineOptions::default()
    })
}

/// Where the backends are, as this process knows it, or as the cell says now.
fn places(cell: &Cell, may_be_old: bool) -> CellPlaces {
    let config = match may_be_old {
        // What is known is good until there is something newer.
        true => cell.learn().unwrap_or_else(|_| cell.config()),
        false => cell.config(),
    };
    CellPlaces {
        servers: cell.servers().clone(),
        ..places_of(&config)
    }
}

/// Where a configuration's backends hand their memory over.
pub(crate) fn places_of(config: &trefoil_cell::CellConfig) -> CellPlaces {
    let place = |backend: &trefoil_cell::BackendConfig| {
        let socket = backend.fabric_socket.clone()?;
        let number = backend.number;
        Some(Place { number, socket })
    };
    CellPlaces {
        life: config.life,
        backends: config.backends.iter().filter_map(place).collect(),
        ..CellPlaces::default()
    }
}

/// This process ends with the one that has started it.
fn end_with_parent() -> Result<(), Failure> {
    let parent = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get());
    match parent.and_then(|pid| u32::try_from(pid).ok()) {
        Some(parent) => crate::supervised::end_with(parent),
        None => Ok(()),
    }
}

/// Waits a moment for those whose sockets are there.
fn await_backends(engine: &Engine, cell: &Cell) {
    let begin = Instant::now();
    let config = cell.config();
    let is_here = |backend: &&trefoil_cell::BackendConfig| {
        backend
            .fabric_socket
            .as_ref()
            .is_some_and(|path| path.exists())
    };
    let count = config.backends.iter().filter(is_here).count() as u64;
    while begin.elapsed() < FIND_PATIENCE {
        if engine.counted().get("mapped_total") >= count {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    tracing::warn!("not every backend of this host has been found yet; the others are looked for");
}
