//! `cell backend`: one backend of a cell, started by `cell up`.

use crate::args::BackendArgs;
use crate::cell::home::Home;
use crate::cell::resize;
use crate::cell::spread::Spread;
use crate::failure::{Failure, Outcome};
use crate::settings::StoreSettings;
use serde::{Deserialize, Serialize};
use std::io::BufRead as _;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use trefoil_backend::{ListenOptions, Listeners, ServerOptions};
use trefoil_cell::{BackendRegistry, CellConfig, ConfigStoreError, LimitNote, RpcAddress};
use trefoil_client::Served;
use trefoil_tls::Tls;

/// What a spare is told, as a line of JSON.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct TakeOver {
    /// The backend to be.
    pub(super) number: u32,
    /// Where its metrics are served.
    pub(super) metrics: Option<SocketAddr>,
    /// The bound on its memory, which may have changed since the spare was started.
    pub(super) memory: u64,
}

pub(super) fn run(args: BackendArgs) -> Outcome {
    crate::logging::start();
    // A backend does not outlive the process that watches it.
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM));
    let spread = Spread::of(&args.host, &args.here)?;
    let home = Home::open(&args.dir, args.config_store.as_deref())?.on_several_hosts(spread)?;
    let (store, directory) = (home.registry(), home.directory());
    let takes_over = args.take_over || args.spare;
    if takes_over || args.join {
        trefoil_backend::oom::put_first();
    }
    let settings = StoreSettings::from(&args.store);
    let to_be = match args.number {
        Some(number) => TakeOver {
            number,
            metrics: args.metrics,
            memory: settings.memory,
        },
        None => match await_word()? {
            Some(to_be) => to_be,
            // Nobody needed it.
            None => return Ok(ExitCode::SUCCESS),
        },
    };
    let number = to_be.number;
    let RpcAddress::Unix(unix) = directory.rpc_socket(number).map_err(Failure::of)? else {
        return Err(Failure::Failed(
            "a backend serves on a Unix socket of its directory".into(),
        ));
    };
    let listen = ListenOptions {
        unix: Some(unix),
        fabric: Some(directory.fabric_socket(number).map_err(Failure::of)?),
        metrics: to_be.metrics,
        users: crate::users::policy(&args.allow_user)?,
        ..ListenOptions::default()
    };
    let listen = match home.spread() {
        None => listen,
        Some(spread) => spread.listen(number, listen),
    };
    let own_socket = || directory.rpc_socket(number).map_err(Failure::of);
    let options = ServerOptions {
        memory_limit: to_be.memory,
        limit_note: Some(LimitNote::in_directory(directory.directory())),
        partition_count: settings.partition_count,
        huge_pages: settings.huge_pages,
        repair: settings.repair,
        recovery_rate: settings.recovery_rate,
        queue: args.queue,
        load: args.load,
        place: home.own_place(number).map_err(Failure::of)?,
        local: home.spread().map(|_| own_socket()).transpose()?,
        ..ServerOptions::new(Arc::clone(&store) as _, vec![number])
    };
    if args.join {
        let Some(join) = resize::await_join()? else {
            return Ok(ExitCode::SUCCESS);
        };
        let claim = || store.claim_at_last(number);
        let begun = || {
            let counted = store.incarnations()?;
            Ok(counted.get(&number).copied().unwrap_or(1))
        };
        return resize::run(options, &listen, join, (claim, begun));
    }
    if store.is_remote() {
        check_place(&home, number)?;
    }
    if takes_over {
        // On one host the lock of the directory decides, which the predecessor gives back:
        // whatever etcd takes or does not, nobody else there is the backend.
        let claim = || match home.spread() {
            None => store.claim_at_last(number),
            Some(_) => store.claim(number),
        };
        return crate::serve::take_over(options, &listen, claim, "ready");
    }
    let lock = store.claim(number).map_err(Failure::of)?;
    if store.is_remote() {
        check_peers(&*store, &home.address(), &[number], home.tls()).map_err(Failure::of)?;
        // Again: from now on, whoever would give the place away finds that somebody has it.
        check_place(&home, number)?;
    }
    let listeners = Listeners::bind(&listen).map_err(Failure::of)?;
    let options = ServerOptions {
        locks: vec![lock],
        ..options
    };
    crate::serve::serve(options, listeners, "ready")
}

/// Waits to be told what to be; nothing if whoever would tell it is gone.
fn await_word() -> Result<Option<TakeOver>, Failure> {
    let mut line = String::new();
    let read = std::io::stdin().lock().read_line(&mut line);
    read.map_err(|e| Failure::doing("cannot read what to be from standard input", e))?;
    if line.trim().is_empty() {
        return Ok(None);
    }
    let word = serde_json::from_str(&line);
    word.map(Some)
        .map_err(|e| Failure::doing("cannot understand what to be", e))
}

/// Refuses to be a backend whose place another process was given meanwhile.
fn check_place(home: &Home, number: u32) -> Result<(), Failure> {
    let config = home.registry().load().map_err(Failure::of)?;
    let holder = config
        .as_ref()
        .and_then(|config| home.other_holder(config, number));
    match holder {
        None => Ok(()),
        Some(holder) => Err(Failure::of(ConfigStoreError::PlaceTaken { number, holder })),
    }
}

/// Refuses what is older than what the cell's backends serve, but for those that are `own`:
/// its configuration, and how often they have begun. Then etcd was restored from an old
/// backup, and this process has not seen what was there.
pub(super) fn check_peers(
    store: &dyn BackendRegistry,
    address: &str,
    own: &[u32],
    tls: Option<&Tls>,
) -> Result<(), ConfigStoreError> {
    let none = || ConfigStoreError::NoCellInEtcd(address.to_owned());
    let config = store.load()?.ok_or_else(none)?;
    let others = config.backends.iter().filter(|b| !own.contains(&b.number));
    let addresses: Vec<RpcAddress> = others.flat_map(|b| b.addresses.first().cloned()).collect();
    let answers = trefoil_client::served(&addresses, tls);
    let is_none = answers.iter().all(Result::is_err);
    let refusals = answers.iter().filter_map(|answer| answer.as_ref().err());
    if let Some(refusal) = refusals
        .clone()
        .find(|refusal| refusal.handshake.is_some() || refusal.is_refusal)
    {
        // One that reaches nobody recovers from nobody, and nobody reaches it.
        match is_none {
            true => {
                return Err(ConfigStoreError::Refused {
                    address: address.to_owned(),
                    reason: format!("no other backend of the cell is reached: {refusal}"),
                });
            }
            false => tracing::error!(why = %refusal, "another backend of the cell is not reached"),
        }
    }
    let answers: Vec<Served> = answers.into_iter().flatten().collect();
    let Some(served) = answers.iter().max_by_key(|served| served.config.config_id) else {
        return Ok(());
    };
    // It may have been changed since it was looked at.
    let config = store.load()?;
    let is_overruled = |config: &CellConfig| {
        let mut others = answers.iter();
        others.any(|other| config.is_overruled_by(&other.config))
    };
    let Some(config) = config.as_ref().filter(|config| !is_overruled(config)) else {
        let address = address.to_owned();
        let found = config.as_ref();
        return Err(ConfigStoreError::overruled(address, found, &served.config));
    };
    // The configuration may be the same, and starts forgotten.
    let counted = store.incarnations()?;
    let of_this_life = answers.iter().filter(|a| a.config.life == config.life);
    for (&number, &known) in of_this_life.flat_map(|answer| &answer.begun) {
        let found = counted.get(&number).copied().unwrap_or(0);
        if found < known {
            return Err(ConfigStoreError::OlderCount {
                address: address.to_owned(),
                number,
                found,
                known,
            });
        }
    }
    Ok(())
}
