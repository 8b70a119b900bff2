//! `cell spare`: a process that stands by, and becomes a backend when it is given the place
//! of one that is dead.
//!
//! ```text
//! registered as a spare ─► the configuration names its addresses ─► registered as the
//! backend ─► one more incarnation ─► recovers ─► votes
//! ```
//!
//! It does not take any place by itself: it waits until the configuration says that it has
//! one.

use crate::args::{SpareArgs, StoreArgs};
use crate::cell::{backend, controller, home};
use crate::failure::{Failure, Outcome, print_line};
use crate::settings::StoreSettings;
use crate::signals::Signals;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use trefoil_backend::{ListenOptions, Listeners, ServerOptions};
use trefoil_cell::control::Spare;
use trefoil_cell::{
    BackendLock, BackendRegistry as _, CellConfig, ConfigStore as _, ConfigStoreError,
    DirectoryStore, EtcdStore, RpcAddress,
};

/// How long one wait for the configuration takes at most.
const WAIT: Duration = Duration::from_secs(1);
/// Between two attempts, while the store or a predecessor's registration is in the way.
const PAUSE: Duration = Duration::from_millis(200);
/// Digits of the name that its sockets have: paths of sockets are short.
const SOCKET_NAME_LEN: usize = 8;

pub(super) fn run(args: SpareArgs) -> Outcome {
    let rules = controller::rules(&args.control)?;
    let settings = settings(&args);
    settings.check()?;
    let users = crate::users::policy(&args.allow_user)?;
    let metrics = crate::serve::metrics_address(&args.metrics)?;
    crate::logging::start();
    let store = home::etcd(&args.store)?;
    let directory = DirectoryStore::create(&args.dir).map_err(Failure::of)?;
    store.check_directory(&directory).map_err(Failure::of)?;
    let none = || ConfigStoreError::NoCellInEtcd(store.address().to_string());
    let config = store.load().map_err(Failure::of)?;
    let config = config.ok_or_else(|| Failure::of(none()))?;
    if config.mode.is_immutable() {
        let mode = config.mode;
        return Err(Failure::Failed(format!(
            "backends of an immutable cell ({mode}) are not replaced by spares: start a dead one again with its file"
        )));
    }
    if !args.allow_user.is_empty() {
        directory.let_others_pass(true).map_err(Failure::of)?;
    }
    let mut spare = store.spare();
    let name = &spare.name[..SOCKET_NAME_LEN.min(spare.name.len())];
    let (address, fabric) = directory.spare_sockets(name).map_err(Failure::of)?;
    let RpcAddress::Unix(unix) = address.clone() else {
        return Err(Failure::of(
            "a spare serves on a Unix socket of its directory",
        ));
    };
    spare.addresses = vec![address];
    spare.fabric_socket = Some(fabric.clone());
    spare.memory = settings.memory;
    let signals = Signals::new()?;
    let registration = store.register_spare(&spare).map_err(Failure::of)?;
    let running = match args.no_controller {
        true => None,
        false => Some(controller::Running::begin(home::etcd(&args.store)?, rules)?),
    };
    let ready = serde_json::json!({
        "cell": args.store,
        "spare": spare.name,
        "pids": [std::process::id()],
    });
    print_line(&format!("ready {ready}"))?;
    let Some(place) = await_place(&store, &spare, signals)? else {
        // A signal: nobody needed it.
        drop(running);
        return Ok(ExitCode::SUCCESS);
    };
    let place = place?;
    drop(registration);
    let number = place.number();
    let listen = ListenOptions {
        unix: Some(unix),
        fabric: Some(fabric),
        metrics,
        users,
        ..ListenOptions::default()
    };
    let listeners = Listeners::bind(&listen).map_err(Failure::of)?;
    let options = ServerOptions {
        memory_limit: settings.memory,
        partition_count: settings.partition_count,
        huge_pages: settings.huge_pages,
        repair: settings.repair,
        locks: vec![place],
        ..ServerOptions::new(Arc::new(store), vec![number])
    };
    let serves = serde_json::json!({ "backend": number });
    let served = crate::serve::serve(options, listeners, &format!("serves {serves}"));
    drop(running);
    served
}

fn settings(args: &SpareArgs) -> StoreSettings {
    StoreSettings::from(&StoreArgs {
        memory: args.memory,
        partitions: args.partitions,
        huge_pages: args.huge_pages,
        repair_interval: args.repair_interval,
        repair_rate: args.repair_rate,
        // The cell's configuration says the rest.
        ..StoreArgs::default()
    })
}

type Given = Result<BackendLock, Failure>;

/// Waits for a place, and registers there; nothing if a signal came before.
fn await_place(
    store: &EtcdStore,
    spare: &Spare,
    signals: Signals,
) -> Result<Option<Given>, Failure> {
    let (given, bell) = (Arc::new(Mutex::new(None)), Arc::new(Notify::new()));
    let (place, rings) = (Arc::clone(&given), Arc::clone(&bell));
    let (store, spare) = (store.clone(), spare.clone());
    // It ends with the process, if a signal comes first.
    std::thread::Builder::new()
        .name("trefoil-spare".to_owned())
        .spawn(move || {
            let taken = take_place(&store, &spare);
            *place.lock().unwrap_or_else(PoisonError::into_inner) = Some(taken);
            rings.notify_one();
        })
        .map_err(|e| Failure::doing("cannot start a thread", e))?;
    signals.wait(&bell, || Ok(()));
    let mut given = given.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(given.take())
}

/// The backend whose place this process has.
fn place_of(config: &CellConfig, spare: &Spare) -> Option<u32> {
    let mut backends = config.backends.iter();
    let place = backends.find(|backend| backend.addresses == spare.addresses);
    place.map(|backend| backend.number)
}

fn take_place(store: &EtcdStore, spare: &Spare) -> Given {
    let mut known = None;
    let mut trouble = String::new();
    loop {
        let config = match store.wait_for_change(known, WAIT) {
            Ok(Some(config)) => config,
            Ok(None) => continue,
            Err(error) => {
                let text = error.to_string();
                if text != trouble {
                    tracing::warn!(%error, "the spare cannot look at the cell's configuration");
                    trouble = text;
                }
                std::thread::sleep(PAUSE);
                continue;
            }
        };
        trouble.clear();
        let Some(number) = place_of(&config, spare) else {
            known = Some(config.topology_id());
            continue;
        };
        tracing::info!(backend = number, "this spare was given a place");
        return become_backend(store, spare, number);
    }
}

/// Registers as the backend, unless the place is another's by now.
fn become_backend(store: &EtcdStore, spare: &Spare, number: u32) -> Given {
    loop {
        let lock = match store.claim(number) {
            Ok(lock) => Some(lock),
            // A predecessor that does not know yet, or an etcd that comes and goes.
            Err(error @ ConfigStoreError::Registered { .. }) => {
                tracing::warn!(backend = number, %error, "the place is not free yet");
                None
            }
            Err(error) if error.is_outage() => None,
            Err(error) => return Err(Failure::of(error)),
        };
        // While it is registered nobody gives the place away.
        let config = match store.load() {
            Ok(config) => config,
            Err(error) if error.is_outage() => {
                std::thread::sleep(PAUSE);
                continue;
            }
            Err(error) => return Err(Failure::of(error)),
        };
        let config = config.filter(|config| place_of(config, spare) == Some(number));
        let Some(config) = config else {
            let holder = "a later spare, which was quicker".to_owned();
            return Err(Failure::of(ConfigStoreError::PlaceTaken { number, holder }));
        };
        if let Some(lock) = lock {
            backend::check_peers(store, &store.address().to_string(), number)?;
            // The server begins another one. So it is never the first: whoever takes a
            // dead backend's place has something to learn, even if nobody has counted.
            lock.begin_incarnation(config.life).map_err(Failure::of)?;
            return Ok(lock);
        }
        std::thread::sleep(PAUSE);
    }
}
