//! `gateway`: memcached's and Redis's clients served from any cell.

use crate::args::{GatewayArgs, Plaintext};
use crate::door;
use crate::failure::{Failure, Outcome, print_line};
use crate::fixed::Fixed;
use crate::signals::Signals;
use std::net::TcpListener;
use std::process::ExitCode;
use std::sync::Arc;
use tokio::sync::Notify;
use trefoil_backend::{ListenError, take_port};
use trefoil_client::Commit;
use trefoil_gateway::keyspace::{CellOptions, Committing, cell_keyspace};
use trefoil_gateway::observe::serve_metrics;
use trefoil_gateway::server::{Doors, Protocol};

/// Half of the places that a backend's queue has for all clients of its cell.
const COMMITTING_LOOPS_MAX: usize = 32;

pub(crate) const METRICS_DEFAULT: &str = "127.0.0.1:9412";

pub(crate) fn run(args: GatewayArgs) -> Outcome {
    let given = args.clone();
    let args = crate::settings::gateway_with_file(args)?;
    crate::logging::start();
    trefoil_backend::keep_heap_small()
        .map_err(|e| Failure::doing("cannot start the thread that tends the heap", e))?;
    let stop = Arc::new(Notify::new());
    let options = door::options(&args.doors, &args.plaintext, None, &stop)?;
    if options.doors.is_empty() {
        return Err(Failure::Usage(
            "the gateway would listen nowhere: give --memcached or --redis an address".into(),
        ));
    }
    let doors = Doors::open(&options).map_err(Failure::of)?;
    let metrics = metrics_listener(&args)?;
    let signals = Signals::new()?;
    let cell = crate::connect::cell(&args.address)?;
    let commit = Commit::from(args.commit.unwrap_or_default());
    if commit == Commit::Acknowledged && options.thread_count > COMMITTING_LOOPS_MAX {
        tracing::warn!(
            threads = options.thread_count,
            "each event loop needs one of the 64 places of each backend's queue, and SETs of one \
             without it are executed: choose fewer --threads, so that those of all gateways stay \
             below 64"
        );
    }
    let cell_options = CellOptions {
        spin: options.spin,
        commit: Committing::from(commit),
        ..CellOptions::default()
    };
    let keyspace = || cell_keyspace(cell.clone(), cell_options.clone());
    let front = door::open(&args.doors, options, doors, keyspace, false)?;
    front.observatory.tell_commits(&cell_options.commit);
    let metrics = match metrics {
        None => None,
        Some(listener) => {
            let name = cell.config().cell.clone();
            let observatory = Arc::clone(&front.observatory);
            let tls = cell.tls().cloned();
            Some(serve_metrics(listener, name, observatory, tls).map_err(Failure::of)?)
        }
    };
    let ready = serde_json::json!({
        "memcached": door::shown(Some(&front), Protocol::Memcached),
        "redis": door::shown(Some(&front), Protocol::Redis),
        "listening": door::all_shown(Some(&front)),
        "metrics": metrics.as_ref().map(|metrics| metrics.address().to_string()),
        "pids": [std::process::id()],
    });
    print_line(&format!("ready {ready}"))?;
    let fixed = Fixed::of_gateway(&args);
    signals.wait(&stop, || {
        let args = crate::settings::gateway_with_file(given.clone())?;
        fixed.tell_changed(&Fixed::of_gateway(&args));
        crate::serve::read_again(cell.tls())?;
        front.reload(&door::options(&args.doors, &args.plaintext, None, &stop)?)
    });
    front.gateway.shutdown();
    Ok(ExitCode::SUCCESS)
}

fn metrics_listener(args: &GatewayArgs) -> Result<Option<TcpListener>, Failure> {
    let text = args.metrics.as_deref().unwrap_or(METRICS_DEFAULT);
    let Some(address) = crate::serve::metrics_address(text)? else {
        return Ok(None);
    };
    if !address.ip().is_loopback() && !args.plaintext.contains(&Plaintext::Metrics) {
        let what = "metrics";
        return Err(Failure::of(ListenError::OffLoopback { address, what }));
    }
    let (listener, _) = take_port(address)
        .map_err(|error| error.with_option("metrics"))
        .map_err(Failure::of)?;
    Ok(Some(listener))
}
