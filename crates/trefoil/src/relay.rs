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
use trefoil_endpoint::{Process, Samples, Users};
use trefoil_freshness::{
    Database, HubOptions, KeyMap, NotifyOptions, RelayAccess, RelayOptions, RelayServer,
    RelaySource, Slot, TableMap, notify_sql,
};
use trefoil_tls::CertUse;

pub(crate) fn run(args: RelayArgs) -> Outcome {
    if let Some(channel) = args.notify.as_deref().filter(|_| args.print_sql) {
        let sql = notify_sql(&key_map(&args)?, channel);
        let sql = sql.map_err(|error| Failure::Usage(error.to_string()))?;
        // What fails ends psql: the rest alone would be half a set-up.
        print_line(&format!("\\set ON_ERROR_STOP on\n{}", sql.trim_end()))?;
        return Ok(ExitCode::SUCCESS);
    }
    crate::logging::start();
    let certs = args.certs.as_deref();
    let security =
        crate::linked::security(certs, args.insecure, &args.allow_user, CertUse::Server)?;
    security.check_listen(args.listen).map_err(Failure::of)?;
    let access = RelayAccess {
        security,
        corpus: args.corpus.clone(),
    };
    let source = source(&args)?;
    let hub = HubOptions {
        log_bytes: usize::try_from(args.memory.as_u64()).unwrap_or(usize::MAX),
        linger: args.linger,
        ..HubOptions::default()
    };
    let (listener, _) = take_port(args.listen).map_err(Failure::of)?;
    let metrics = crate::linked::endpoint::take(&args.metrics, &args.plaintext)?;
    let drainers = crate::linked::drainers(&args.allow_user)?;
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|e| Failure::doing("cannot start the runtime", e))?
        .block_on(serve(source, hub, listener, access, (metrics, drainers)))
}

async fn serve(
    source: RelaySource,
    hub: HubOptions,
    listener: TcpListener,
    access: RelayAccess,
    (metrics, drainers): (Option<TcpListener>, Users),
) -> Outcome {
    // Before anything starts, so that no signal is lost.
    let mut terminate = signal(SignalKind::terminate()).map_err(Failure::of)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Failure::of)?;
    // Until the database has answered, too: an orchestrator sees that it lives.
    let process = Arc::<Starting>::default();
    let watched = crate::linked::endpoint::serve(metrics, Arc::clone(&process) as _, drainers)?;
    let server = tokio::select! {
        server = RelayServer::start_with(source, hub, listener, access) => server,
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
fn source(args: &RelayArgs) -> Result<RelaySource, Failure> {
    let missing = |option| Failure::Usage(format!("{option} is missing"));
    let postgres = args.postgres.as_deref();
    let postgres = postgres.ok_or_else(|| missing("--postgres"))?;
    let database: Database = postgres
        .parse()
        .map_err(|error| Failure::Usage(format!("{error}")))?;
    let map = key_map(args)?;
    let heartbeat = args.heartbeat.max(std::time::Duration::from_millis(1));
    if let Some(channel) = &args.notify {
        // What is wrong with the map shows before the database is asked for.
        notify_sql(&map, channel).map_err(|error| Failure::Usage(error.to_string()))?;
        let mut options = NotifyOptions::new(database, map);
        options.channel.clone_from(channel);
        options.heartbeat = heartbeat;
        return Ok(options.into());
    }
    let publication = args.publication.as_deref();
    let publication = publication.ok_or_else(|| missing("--publication"))?;
    let slot = match args.temporary {
        true => Slot::Temporary,
        false => Slot::Persistent(args.slot.clone()),
    };
    let mut options = RelayOptions::new(database, publication, slot, map);
    options.heartbeat = heartbeat;
    options.restart_is_gap = args.restart_is_gap;
    Ok(options.into())
}

/// Which keys the rows of which tables concern.
fn key_map(args: &RelayArgs) -> Result<KeyMap, Failure> {
    let usage = |e: &dyn std::fmt::Display| Failure::Usage(e.to_string());
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
    Ok(map)
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

    fn parsed(extra: &[&str]) -> Result<RelaySource, Failure> {
        let fixed = ["trefoil", "relay"];
        let arguments = fixed.iter().chain(extra);
        match Cli::try_parse_from(arguments).expect("arguments").command {
            Command::Relay(args) => source(&args),
            other => panic!("another command: {other:?}"),
        }
    }

    const POSTGRES: [&str; 2] = ["--postgres", "host=/tmp user=me"];

    #[test]
    fn maps_and_refreshes() {
        let publication = ["--publication", "p"];
        let with = |extra: &[&str]| parsed(&[&POSTGRES, &publication, extra].concat());
        let fine = with(&["--map", "a=a/{id}", "--map", "a={x}", "--refresh", "a=b,c"]);
        let RelaySource::Log(options) = fine.expect("options") else {
            panic!("another source");
        };
        assert_eq!(options.map.tables().count(), 1);
        for (extra, expected) in [
            (&["--map", "a"][..], "expected TABLE=TEMPLATE"),
            (&["--map", "a=b"], "names no column"),
            (&["--map", "a={b}", "--refresh", "c=d"], "has no --map"),
        ] {
            let error = with(extra).expect_err("a usage error");
            assert!(error.to_string().contains(expected), "{error}");
        }
        let secret = ["--postgres", "postgres://me:geheim@", "--map", "a={b}"];
        let secret = parsed(&[&secret[..], &publication].concat());
        let error = secret.expect_err("no address");
        assert!(!error.to_string().contains("geheim"), "{error}");
    }

    #[test]
    fn one_source_of_two() {
        let map = ["--map", "a=a/{id}"];
        let fine = parsed(&[&POSTGRES[..], &["--notify", "c"], &map].concat());
        let RelaySource::Notify(options) = fine.expect("options") else {
            panic!("another source");
        };
        assert_eq!(options.channel, "c");
        let long = "c".repeat(60);
        let refused = parsed(&[&POSTGRES[..], &["--notify", &long], &map].concat());
        let error = refused.expect_err("a usage error").to_string();
        assert!(error.contains("choose a shorter one"), "{error}");
        // Both, neither, and what only the log has.
        for wrong in [
            &["--notify", "c", "--publication", "p"][..],
            &[],
            &["--publication", "p", "--print-sql"],
            &["--notify", "c", "--slot", "s"],
            &["--notify", "c", "--temporary"],
            &["--notify", "c", "--refresh", "a=b"],
            &["--notify", "c", "--restart-is-gap"],
            &["--notify", "c", "--linger", "1s"],
        ] {
            let fixed = ["trefoil", "relay"];
            let arguments = [&fixed[..], &POSTGRES, &map, wrong].concat();
            assert!(Cli::try_parse_from(arguments).is_err(), "{wrong:?}");
        }
    }
}
