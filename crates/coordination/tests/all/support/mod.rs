//! What the tests share: short leases, servers, waiting.
#![allow(dead_code)] // Not every test needs everything.

pub(crate) mod etcd;
pub(crate) mod path;
pub(crate) mod processes;

use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::time::timeout;
use trefoil_coordination::{NodeOptions, ServerInfo, Session, View};
use trefoil_sharder::{Capacity, Load, ServerId, ServerReport, SliceLoad};

pub(crate) use etcd::PATIENCE;

/// Leases of a second, rounds of a tenth.
pub(crate) fn fast() -> NodeOptions {
    NodeOptions {
        lease: Duration::from_millis(1_000),
        leader_lease: Duration::from_secs(2),
        step_every: Duration::from_millis(100),
        gather: Duration::from_millis(800),
        slices_per_server: 8,
        ..NodeOptions::default()
    }
}

pub(crate) fn server(port: u16) -> ServerInfo {
    let capacity = Capacity {
        cpu: 1.0,
        bytes: 1 << 30,
    };
    ServerInfo::new(format!("127.0.0.1:{port}"), capacity)
}

/// Waits until what is watched is so.
pub(crate) async fn until<T: Clone + Debug>(
    mut watched: watch::Receiver<T>,
    what: &str,
    is_so: impl FnMut(&T) -> bool,
) -> T {
    let latest = watched.clone();
    match timeout(PATIENCE, watched.wait_for(is_so)).await {
        Ok(Ok(found)) => found.clone(),
        Ok(Err(_)) => panic!("nobody tells any more: {what}"),
        Err(_) => panic!("in vain: {what}; at last {:?}", *latest.borrow()),
    }
}

/// Waits until exactly these have slices, and are members.
pub(crate) async fn assigned_to(view: watch::Receiver<Arc<View>>, ids: &[ServerId]) -> Arc<View> {
    let mut wanted = ids.to_vec();
    wanted.sort_unstable();
    let settled = |view: &Arc<View>| {
        let mut owners: Vec<ServerId> = view
            .assignment
            .slices()
            .iter()
            .flat_map(|slice| slice.servers.iter().copied())
            .collect();
        owners.sort_unstable();
        owners.dedup();
        owners == wanted && wanted.iter().all(|id| view.servers.contains_key(id))
    };
    until(view, &format!("the slices are with {ids:?}"), settled).await
}

/// Waits until a server is no member and has no slice.
pub(crate) async fn replaced(view: watch::Receiver<Arc<View>>, id: ServerId) -> Arc<View> {
    let is_replaced = |view: &Arc<View>| {
        let slices = view.assignment.slices();
        view.is_gone(id) && slices.iter().all(|slice| !slice.servers.contains(&id))
    };
    until(view, &format!("{id} is replaced"), is_replaced).await
}

/// Waits for something.
pub(crate) async fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed() < PATIENCE, "in vain: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// An even load.
pub(crate) fn report(session: &Session, view: &View, sequence: u64) -> ServerReport {
    let id = session.server_id();
    ServerReport {
        server: id,
        sequence,
        version: view.assignment.version(),
        slices: view
            .assignment
            .slices()
            .iter()
            .filter(|slice| slice.servers.contains(&id))
            .map(|slice| SliceLoad {
                slice: slice.slice,
                load: Load {
                    cpu_shared: 0.3 * slice.slice.fraction(),
                    requests: 100.0,
                    ..Load::default()
                },
            })
            .collect(),
        hot_keys: Vec::new(),
        unstored: Vec::new(),
    }
}
