//! `engine`: reads the backends of this host for clients elsewhere.

use crate::args::EngineArgs;
use crate::failure::{Failure, Outcome, print_line};
use crate::signals::Signals;
use std::fs::File;
use std::io::Read as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use trefoil_backend::take_port;
use trefoil_cell::{Token, TokenFile, read_token};
use trefoil_client::Cell;
use trefoil_softnic::{CellPlaces, Engine, EngineOptions, Place};

/// How long the engine may take to find the backends, before it says that it is ready
/// without some of them.
const FIND_PATIENCE: Duration = Duration::from_secs(1);

pub(crate) fn run(args: EngineArgs) -> Outcome {
    crate::logging::start();
    let stop = Arc::new(Notify::new());
    let listen = crate::serve::tcp_address("--listen", &args.listen)?;
    let is_local = listen.ip().is_loopback();
    if !is_local && (args.token_file.is_none() || !args.plaintext) {
        return Err(Failure::Usage(format!(
            "{listen} is reachable from other machines, and an engine has no TLS yet: listen on \
             127.0.0.1, or, if the network is trusted, pass --plaintext and --token-file FILE"
        )));
    }
    let token = match &args.token_file {
        Some(path) => read_token(path).map_err(Failure::of)?,
        None => drawn_token()?,
    };
    let signals = Signals::new()?;
    let cell = crate::connect::cell(&args.address)?;
    let (listener, address) = take_port(listen)
        .map_err(|error| error.with_option("listen"))
        .map_err(Failure::of)?;
    // Where this user's clients look for it.
    let left = match args.token_file {
        None => Some(TokenFile::leave(address, &token).map_err(Failure::of)?),
        Some(_) => None,
    };
    let options = EngineOptions {
        spin: args.spin.into(),
        ..EngineOptions::default()
    };
    let admits = Box::new(move |shown: &[u8]| token.is(shown));
    let known = cell.clone();
    let places = move |may_be_old| places(&known, may_be_old);
    let engine = Engine::start(listener, admits, places, options).map_err(Failure::of)?;
    await_backends(&engine, &cell);
    let ready = serde_json::json!({
        "engine": address.to_string(),
        "cell": args.address.cell,
        "pids": [std::process::id()],
    });
    print_line(&format!("ready {ready}"))?;
    signals.wait(&stop, || crate::serve::read_again(cell.tls()));
    for (name, count) in engine.counters().all() {
        tracing::info!("{name} {count}");
    }
    drop(engine);
    drop(left);
    Ok(ExitCode::SUCCESS)
}

/// 32 bytes of the system's.
fn drawn_token() -> Result<Token, Failure> {
    let mut bytes = [0; 32];
    File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(|e| Failure::doing("cannot draw a token", e))?;
    Ok(Token::of_bytes(bytes))
}

/// Where the backends are, as this process knows it, or as the cell says now.
fn places(cell: &Cell, may_be_old: bool) -> CellPlaces {
    let config = match may_be_old {
        // What is known is good until there is something newer.
        true => cell.learn().unwrap_or_else(|_| cell.config()),
        false => cell.config(),
    };
    let place = |backend: &trefoil_cell::BackendConfig| {
        let socket = backend.fabric_socket.clone()?;
        let number = backend.number;
        Some(Place { number, socket })
    };
    CellPlaces {
        life: config.life,
        backends: config.backends.iter().filter_map(place).collect(),
        servers: cell.servers().clone(),
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
        let mapped = &engine.counters().mapped_total;
        if mapped.load(std::sync::atomic::Ordering::Relaxed) >= count {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    tracing::warn!("not every backend of this host has been found yet; the others are looked for");
}
