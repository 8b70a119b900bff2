//! `cell backend`: one backend of a directory cell, started by `cell up`.

use crate::args::BackendArgs;
use crate::failure::{Failure, Outcome};
use crate::settings::StoreSettings;
use serde::{Deserialize, Serialize};
use std::io::BufRead as _;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use trefoil_backend::{ListenOptions, Listeners, ServerOptions};
use trefoil_cell::{DirectoryStore, RpcAddress};

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
    let store = DirectoryStore::open(&args.dir).map_err(Failure::of)?;
    let takes_over = args.take_over || args.spare;
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
    let RpcAddress::Unix(unix) = store.rpc_socket(number).map_err(Failure::of)? else {
        return Err(Failure::Failed(
            "a directory cell serves on Unix sockets".into(),
        ));
    };
    let listen = ListenOptions {
        unix: Some(unix),
        fabric: Some(store.fabric_socket(number).map_err(Failure::of)?),
        metrics: to_be.metrics,
        users: crate::users::policy(&args.allow_user)?,
        ..ListenOptions::default()
    };
    let options = ServerOptions {
        memory_limit: to_be.memory,
        partition_count: settings.partition_count,
        huge_pages: settings.huge_pages,
        load: args.load,
        ..ServerOptions::new(Arc::new(store.clone()), vec![number])
    };
    if takes_over {
        let lock = || store.lock_backend(number);
        return crate::serve::take_over(options, &listen, lock, "ready");
    }
    let lock = store.lock_backend(number).map_err(Failure::of)?;
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
