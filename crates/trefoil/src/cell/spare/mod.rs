//! `cell spare`: a process that stands by, and becomes a backend when it is given the place
//! of one that is dead.
//!
//! ```text
//! registered as a spare ─► the configuration names its addresses ─► registered as the
//! backend ─► one more incarnation ─► recovers ─► votes
//!       ▲                                                              │
//!       └────────────── the place is another's by now ◄────────────────┘
//! ```
//!
//! It does not take any place by itself: it waits until the configuration says that it has
//! one, and gives it up when the configuration says that another process has.
//!
//! Nobody starts a spare again. So a mistake of whoever starts it ends it at once, and from
//! its `ready` on nothing does that may pass: an etcd that is away, or refuses, or holds
//! what is old, is waited for ([`stand`]).

mod patience;
mod stand;

use crate::args::{SpareArgs, StoreArgs};
use crate::cell::rehearsal::Rehearsal;
use crate::cell::spread::Spread;
use crate::cell::{controller, home};
use crate::failure::{Failure, Outcome, print_line};
use crate::settings::StoreSettings;
use crate::signals::Signals;
use stand::{Given, Registered, SPARE, Stand};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::Notify;
use trefoil_cell::{ConfigStore as _, ConfigStoreError, DirectoryStore};

pub(super) fn run(args: SpareArgs) -> Outcome {
    let rules = controller::rules(&args.control)?;
    let settings = settings(&args);
    settings.check()?;
    let users = crate::users::policy(&args.allow_user)?;
    let metrics = crate::serve::metrics_address(&args.metrics)?;
    crate::logging::start();
    // Without an address it is of a cell on one host.
    let number: &[u32] = match args.host.listen {
        Some(_) => &[SPARE],
        None => &[],
    };
    let site = Spread::of(&args.host, number)?;
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
    // Before others are asked, whom one of another kind does not reach.
    if site.is_some() != config.is_spread() {
        return Err(Failure::of(ConfigStoreError::OtherKind {
            address: store.address().to_string(),
            is_spread: config.is_spread(),
        }));
    }
    if !args.allow_user.is_empty() {
        directory.let_others_pass(true).map_err(Failure::of)?;
    }
    if let Some(site) = &site {
        site.use_token();
        // What is wrong with it shows now, and not when it is needed.
        drop(Rehearsal::begin(site)?);
    }
    let tls = site.as_ref().and_then(|site| site.tls.clone());
    let stand = Arc::new(Stand {
        store,
        directory,
        site,
        settings,
        metrics,
        users,
    });
    let registered = stand.register().map_err(Failure::of)?;
    let name = registered.spare.name.clone();
    let mut signals = Signals::new()?;
    let _running = match args.no_controller {
        true => None,
        false => Some(controller::Running::begin(
            home::etcd(&args.store)?,
            rules,
            tls,
        )?),
    };
    let ready = serde_json::json!({
        "cell": args.store,
        "spare": name,
        "pids": [std::process::id()],
    });
    print_line(&format!("ready {ready}"))?;
    let mut registered = Some(registered);
    loop {
        // Made before the others are used up, so that no signal is lost in between.
        let signals_then = Signals::new()?;
        let Some(given) = await_place(&stand, registered.take(), signals)? else {
            // A signal: nobody needed it.
            return Ok(ExitCode::SUCCESS);
        };
        let (number, server) = given?;
        let serves = serde_json::json!({ "backend": number });
        let over = crate::serve::until_over(server, signals_then, &format!("serves {serves}"))?;
        let Some(why) = over else {
            return Ok(ExitCode::SUCCESS);
        };
        tracing::warn!(backend = number, why, "this process stands by again");
        signals = Signals::new()?;
    }
}

fn settings(args: &SpareArgs) -> StoreSettings {
    StoreSettings::from(&StoreArgs {
        memory: args.memory,
        partitions: args.partitions,
        huge_pages: args.huge_pages,
        repair_interval: args.repair_interval,
        repair_rate: args.repair_rate,
        recovery_rate: args.recovery_rate,
        // The cell's configuration says the rest.
        ..StoreArgs::default()
    })
}

/// Waits for a place, and serves there; nothing if a signal came before.
fn await_place(
    stand: &Arc<Stand>,
    registered: Option<Registered>,
    signals: Signals,
) -> Result<Option<Given>, Failure> {
    let (given, bell) = (Arc::new(Mutex::new(None)), Arc::new(Notify::new()));
    let registered = Arc::new(Mutex::new(registered));
    let (place, rings) = (Arc::clone(&given), Arc::clone(&bell));
    let (stand, standing) = (Arc::clone(stand), Arc::clone(&registered));
    // It ends with the process, if a signal comes first.
    std::thread::Builder::new()
        .name("trefoil-spare".to_owned())
        .spawn(move || {
            let taken = stand.await_place(&standing);
            *place.lock().unwrap_or_else(PoisonError::into_inner) = Some(taken);
            rings.notify_one();
        })
        .map_err(|e| Failure::doing("cannot start a thread", e))?;
    signals.wait(&bell, || Ok(()));
    let given = given.lock().unwrap_or_else(PoisonError::into_inner).take();
    if given.is_none() {
        // Nobody need wait for the lease's end.
        drop(stand::lock(&registered).take());
    }
    Ok(given)
}
