//! `cell backend`: one backend of a directory cell, started by `cell up`.

use crate::args::BackendArgs;
use crate::failure::{Failure, Outcome};
use crate::settings::StoreSettings;
use std::sync::Arc;
use trefoil_backend::{ListenOptions, Listeners, ServerOptions};
use trefoil_cell::{DirectoryStore, RpcAddress};

pub(super) fn run(args: BackendArgs) -> Outcome {
    crate::logging::start();
    // A backend does not outlive the process that watches it.
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM));
    let store = DirectoryStore::open(&args.dir).map_err(Failure::of)?;
    let lock = store.lock_backend(args.number).map_err(Failure::of)?;
    let RpcAddress::Unix(unix) = store.rpc_socket(args.number).map_err(Failure::of)? else {
        return Err(Failure::Failed(
            "a directory cell serves on Unix sockets".into(),
        ));
    };
    let listen = ListenOptions {
        unix: Some(unix),
        fabric: Some(store.fabric_socket(args.number).map_err(Failure::of)?),
        metrics: args.metrics,
        users: crate::users::policy(&args.allow_user)?,
        ..ListenOptions::default()
    };
    let listeners = Listeners::bind(&listen).map_err(Failure::of)?;
    let settings = StoreSettings::from(&args.store);
    let options = ServerOptions {
        locks: vec![lock],
        memory_limit: settings.memory,
        partition_count: settings.partition_count,
        huge_pages: settings.huge_pages,
        load: args.load,
        ..ServerOptions::new(Arc::new(store), vec![args.number])
    };
    crate::serve::serve(options, listeners, "ready")
}
