//! `relay`: follows a Postgres database and tells the linked store's servers
//! which keys are out of date.

use crate::args::RelayArgs;
use crate::failure::{Failure, Outcome, print_line};
use std::collections::HashMap;
use std::net::TcpListener;
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};
use tokio::signal::unix::{SignalKind, signal};
use trefoil_backend::take_port;
use trefoil_coordination::Security;
use trefoil_endpoint::{Process, Samples};
use trefoil_freshness::{
    Database, HubOptions, KeyMap, RelayAccess, RelayOptions, RelayServer, Slot, TableMap,
};
use trefoil_tls::CertUse;

pub(crate) fn run(args: RelayArgs) -> Outcome {
    crate::logging::start();
    let security = Security::choose(args.certs.as_deref(), args.insecure, CertUse::Server)
        .map_err(Failure::of)?;
    security.check_listen(args.listen).map_err(Failure::of)?;
    let access = RelayAccess {
        security,
        corpus: args.corpus.clone(),
    };
    let options = options(&args)?;
    let hub = HubOptions {
        log_bytes: usize::try_from(args.memory.as_u64()).unwrap_or(usize::MAX),
        linger: args.linger,
        ..HubOptions::default()
    };
    let (listener, _) = take_port(args.listen).map_err(Failure::of)?;
    let metrics = crate::linked::endpoint::take(&args.metrics, &args.plaintext, args.insecure)?;
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|e| Failure::doing("cannot start the runtime", e))?
        .block_on(serve(options, hub, listener, access, metrics))
}

async fn serve(
    options: RelayOptions,
    hub: HubOptions,
    listener: TcpListener,
    access: RelayAccess,
    metrics: Option<TcpListener>,
) -> Outcome {
    // Before anything starts, so that no signal is lost.
    let mut terminate = signal(SignalKind::terminate()).map_err(Failure::of)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Failure::of)?;
    // Until the database has answered, too: an orchestrator sees that it lives.
    let process = Arc::<Starting>::default();
    let watched = crate::linked::endpoint::serve(metrics, Arc::clone(&process) as _)?;
    let server = tokio::select! {
        server = RelayServer::start_with(options, hub, listener, access) => server,
        _ = terminate.recv() => return Ok(ExitCode::SUCCESS),
        _ = interrupt.recv() => return Ok(ExitCode::SUCCESS),
    };
    let mut server = server.map_err(Failure::of)?;
    // Nobody else sets it.
    let _ = process.0.set(server.process());
    let ready = serde_json::json!({
        "listen": server.address().to_string(),
        "metrics": watched.as_ref().map(|watched| watched.address().to_string()),
        "pids": [std::process::id()],
    });
    print_line(&format!("ready {ready}"))?;
    tokio::select! {
        ended = server.ended() => return match ended {
            Ok(()) => Ok(ExitCode::SUCCESS),
            Err(error) => Err(Failure::of(error)),
        },
        _ = terminate.recv() => tracing::info!("SIGTERM: stopping"),
        _ = interrupt.recv() => tracing::info!("SIGINT: stopping"),
    }
    server.stop().await.map_err(Failure::of)?;
    Ok(ExitCode::SUCCESS)
}

/// A relay, which is not there at first.
#[derive(Default)]
struct Starting(OnceLock<Arc<dyn Process>>);

impl Process for Starting {
    fn collect(&self, samples: &mut Samples) -> std::fmt::Result {
        self.0.get().map_or(Ok(()), |relay| relay.collect(samples))
    }

    fn live(&self) -> Result<(), String> {
        self.0.get().map_or(Ok(()), |relay| relay.live())
    }

    fn ready(&self) -> Result<(), String> {
        let not_yet = || Err("it has not reached the database yet".to_owned());
        self.0.get().map_or_else(not_yet, |relay| relay.ready())
    }
}

/// What the command line asks for.
fn options(args: &RelayArgs) -> Result<RelayOptions, Failure> {
    let usage = |e: &dyn std::fmt::Display| Failure::Usage(e.to_string());
    let database: Database = args.postgres.parse().map_err(|e| usage(&e))?;
    let mut refreshes: HashMap<&str, Vec<String>> = HashMap::new();
    for text in &args.refreshes {
        let (table, columns) = pair("--refresh", text, "TABLE=COLUMN,COLUMN")?;
        let columns = columns.split(',').map(str::to_owned);
        refreshes.entry(table).or_default().extend(columns);
    }
    let mut map = KeyMap::new();
    for text in &args.maps {
        let (table, template) = pair("--map", text, "TABLE=TEMPLATE")?;
        let mut meaning = TableMap::template(template).map_err(|e| usage(&e))?;
        if let Some(columns) = refreshes.get(table) {
            meaning = meaning.refreshing_columns(columns.clone());
        }
        map = map.table(table, meaning);
    }
    for table in refreshes.keys() {
        let mapped = args
            .maps
            .iter()
            .any(|map| map.split_once('=').is_some_and(|m| m.0 == *table));
        if !mapped {
            let text = format!("--refresh {table}=…: the table has no --map with that name");
            return Err(Failure::Usage(text));
        }
    }
    let slot = match args.temporary {
        true => Slot::Temporary,
        false => Slot::Persistent(args.slot.clone()),
    };
    let mut options = RelayOptions::new(database, &args.publication, slot, map);
    options.heartbeat = args.heartbeat.max(std::time::Duration::from_millis(1));
    options.restart_is_gap = args.restart_is_gap;
    Ok(options)
}

fn pair<'a>(option: &str, text: &'a str, form: &str) -> Result<(&'a str, &'a str), Failure> {
    let pair = text.split_once('=');
    pair.ok_or_else(|| Failure::Usage(format!("{option} {text}: expected {form}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use clap::Parser as _;

    fn parsed(extra: &[&str]) -> Result<RelayOptions, Failure> {
        let fixed = ["trefoil", "relay", "--publication", "p"];
        let arguments = fixed.iter().chain(extra);
        match Cli::try_parse_from(arguments).expect("arguments").command {
            Command::Relay(args) => options(&args),
            other => panic!("another command: {other:?}"),
        }
    }

    #[test]
    fn maps_and_refreshes() {
        let postgres = ["--postgres", "host=/tmp user=me"];
        let with = |extra: &[&str]| parsed(&[&postgres, extra].concat());
        let fine = with(&["--map", "a=a/{id}", "--map", "a={x}", "--refresh", "a=b,c"]);
        let tables = fine.expect("options").map.tables().count();
        assert_eq!(tables, 1);
        for (extra, expected) in [
            (&["--map", "a"][..], "expected TABLE=TEMPLATE"),
            (&["--map", "a=b"], "names no column"),
            (&["--map", "a={b}", "--refresh", "c=d"], "has no --map"),
        ] {
            let error = with(extra).expect_err("a usage error");
            assert!(error.to_string().contains(expected), "{error}");
        }
        let secret = parsed(&["--postgres", "postgres://me:geheim@", "--map", "a={b}"]);
        let error = secret.expect_err("no address");
        assert!(!error.to_string().contains("geheim"), "{error}");
    }
}
