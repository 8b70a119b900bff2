//! `assigner`: decides which server of a linked store has which keys; and what
//! steers it.

use crate::args::{AssignerAction, AssignerAddressArgs, AssignerArgs};
use crate::failure::{Failure, Outcome, print_line};
use std::net::{SocketAddr, TcpListener};
use std::process::ExitCode;
use std::time::Duration;
use tokio::runtime::Runtime;
use trefoil_coordination::{
    AssignerAddress, AssignerClient, AssignerServer, CoordinationError, EtcdAccess, NodeOptions,
    StoreAddress,
};
use trefoil_endpoint::Users;
use trefoil_sharder::{BalanceConfig, Freeze};
use trefoil_tls::CertUse;

pub(crate) fn run(args: AssignerArgs) -> Outcome {
    let runtime = Runtime::new().map_err(|e| Failure::doing("cannot start the runtime", e))?;
    match args.action {
        None => serve(&runtime, args),
        Some(AssignerAction::Status { address, json }) => runtime.block_on(status(&address, json)),
        Some(AssignerAction::Freeze {
            address,
            corpus,
            all,
        }) => {
            let freeze = if all { Freeze::All } else { Freeze::OnlyDead };
            runtime.block_on(set_freeze(&address, corpus, freeze))
        }
        Some(AssignerAction::Thaw { address, corpus }) => {
            runtime.block_on(set_freeze(&address, corpus, Freeze::Off))
        }
        Some(AssignerAction::BeginIncarnation { address, corpus }) => {
            runtime.block_on(begin_incarnation(&address, &corpus))
        }
    }
}

fn serve(runtime: &Runtime, args: AssignerArgs) -> Outcome {
    crate::logging::start();
    let certs = args.certs.as_deref();
    let security =
        crate::linked::security(certs, args.insecure, &args.allow_user, CertUse::Server)?;
    security.check_listen(args.listen).map_err(Failure::of)?;
    let store: StoreAddress = args.store.parse().map_err(usage)?;
    warn_of_a_short_lease(&store, args.lease);
    let mut options = NodeOptions {
        lease: args.lease,
        closed: !args.corpus.is_empty(),
        security,
        etcd: etcd_access(&store)?,
        ..NodeOptions::default()
    };
    if let Some(address) = args.advertise {
        options.address = address;
    } else if args.listen.ip().is_unspecified() {
        return Err(Failure::Usage(format!(
            "--listen {} is no address that others can reach: give one with --advertise HOST:PORT",
            args.listen
        )));
    }
    for text in &args.corpus {
        let (name, config) = corpus(text)?;
        options.corpora.insert(name, config);
    }
    let metrics = crate::linked::endpoint::take(&args.metrics, &args.plaintext)?;
    let drainers = crate::linked::drainers(&args.allow_user)?;
    let watched = (metrics, drainers);
    runtime.block_on(serve_until_signal(args.listen, &store, options, watched))
}

/// What the leases of servers have to outlast, where another assigner takes over: etcd
/// finds out in some five seconds that the one who led is dead, and a lease has been running
/// for a part of its time by then.
const LEASE_OVER_TAKEOVER: Duration = Duration::from_secs(12);

fn warn_of_a_short_lease(store: &StoreAddress, lease: Duration) {
    if matches!(store, StoreAddress::Etcd { .. }) && lease < LEASE_OVER_TAKEOVER {
        tracing::warn!(
            "--lease {}: when the assigner that leads dies, another one takes over after some 5 s. \
             Leases that are shorter than {} may end before, and servers with strong copies then \
             refuse reads and commits (NoLease) until it leads. --lease 15s outlasts it; then the \
             keys of a server that dies wait 15 s for their next owner",
            humantime::format_duration(lease),
            humantime::format_duration(LEASE_OVER_TAKEOVER),
        );
    }
}

async fn serve_until_signal(
    listen: SocketAddr,
    store: &StoreAddress,
    options: NodeOptions,
    (metrics, drainers): (Option<TcpListener>, Users),
) -> Outcome {
    use tokio::signal::unix::{SignalKind, signal};
    // Before the service is up, so that no signal is lost.
    let mut terminate = signal(SignalKind::terminate()).map_err(Failure::of)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Failure::of)?;
    let server = AssignerServer::start(listen, store, options)
        .await
        .map_err(|error| match error {
            error @ CoordinationError::Option { .. } => usage(error),
            error => Failure::of(error),
        })?;
    let watched = crate::linked::endpoint::serve(metrics, server.process(), drainers)?;
    let ready = serde_json::json!({
        "address": server.address().to_string(),
        "metrics": watched.as_ref().map(|watched| watched.address().to_string()),
        "store": store.to_string(),
        "pids": [std::process::id()],
    });
    print_line(&format!("ready {ready}"))?;
    tokio::select! {
        _ = terminate.recv() => tracing::info!("SIGTERM: stopping"),
        _ = interrupt.recv() => tracing::info!("SIGINT: stopping"),
    }
    server.shutdown().await;
    Ok(ExitCode::SUCCESS)
}

/// `NAME`, or `NAME:MIN..MAX` replicas.
fn corpus(text: &str) -> Result<(String, BalanceConfig), Failure> {
    let mut config = BalanceConfig::default();
    let Some((name, replicas)) = text.split_once(':') else {
        return Ok((text.to_owned(), config));
    };
    let (min, max) = replicas.split_once("..").unwrap_or((replicas, replicas));
    let number = |part: &str| {
        part.parse().map_err(|_| {
            Failure::Usage(format!(
                "--corpus {text}: \"{part}\" is no number of replicas; write NAME:MIN..MAX"
            ))
        })
    };
    config.replicas_min = number(min)?;
    config.replicas_max = number(max)?;
    Ok((name.to_owned(), config))
}

/// The documents of all assigners as they are; for people the same as
/// `linked status`.
async fn status(address: &AssignerAddressArgs, json: bool) -> Outcome {
    if !json {
        return crate::linked::status(address, false).await;
    }
    let mut documents = Vec::new();
    for (host, result) in client(address).await?.status().await {
        match result {
            Err(error) => eprintln!("trefoil: {error}"),
            Ok(text) => {
                let document: serde_json::Value = serde_json::from_str(&text)
                    .map_err(|e| Failure::doing(format!("{host} answers no document"), e))?;
                documents.push(document);
            }
        }
    }
    crate::failure::print_json(&documents)?;
    Ok(match documents.is_empty() {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    })
}

async fn set_freeze(
    address: &AssignerAddressArgs,
    corpus: Option<String>,
    freeze: Freeze,
) -> Outcome {
    let corpus = corpus.unwrap_or_default();
    let corpora = client(address)
        .await?
        .set_freeze(&corpus, freeze)
        .await
        .map_err(Failure::of)?;
    let what = match freeze {
        Freeze::Off => "thawed",
        Freeze::OnlyDead => "frozen, but for slices of dead servers",
        Freeze::All => "frozen",
    };
    for corpus in corpora {
        print_line(&format!("{corpus}: {what}"))?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn begin_incarnation(address: &AssignerAddressArgs, corpus: &str) -> Outcome {
    client(address)
        .await?
        .begin_incarnation(corpus)
        .await
        .map_err(Failure::of)?;
    print_line(&format!(
        "{corpus}: goes on from what the store has, under a new incarnation"
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// The assigners at an address, or those that lead by what a store says.
pub(crate) async fn client(address: &AssignerAddressArgs) -> Result<AssignerClient, Failure> {
    let certs = address.certs.as_deref();
    let users = &address.allow_user;
    let security = crate::linked::security(certs, address.insecure, users, CertUse::Client)?;
    if address.assigner.starts_with("etcd://") {
        let store: StoreAddress = address.assigner.parse().map_err(usage)?;
        let access = etcd_access(&store)?;
        let found = AssignerClient::of_store(&store, &access, security).await;
        return found.map_err(Failure::of);
    }
    let hosts: AssignerAddress = address.assigner.parse().map_err(usage)?;
    Ok(AssignerClient::with(hosts, security))
}

/// How this process comes into etcd, by the environment, like cells.
fn etcd_access(store: &StoreAddress) -> Result<EtcdAccess, Failure> {
    match store {
        StoreAddress::Etcd { .. } => EtcdAccess::from_environment().map_err(Failure::of),
        StoreAddress::Memory | StoreAddress::File(_) => Ok(EtcdAccess::default()),
    }
}

fn usage(error: CoordinationError) -> Failure {
    Failure::Usage(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn corpora_with_and_without_replicas() {
        let replicas = |text: &str| {
            let (name, config) = corpus(text).ok()?;
            Some((name, config.replicas_min, config.replicas_max))
        };
        assert_eq!(replicas("mail"), Some(("mail".to_owned(), 1, 1)));
        assert_eq!(replicas("mail:2"), Some(("mail".to_owned(), 2, 2)));
        assert_eq!(replicas("mail:1..3"), Some(("mail".to_owned(), 1, 3)));
        assert_eq!(replicas("mail:x"), None);
        assert_eq!(replicas("mail:1.."), None);
    }
}
