//! Several linklets in one process, over loopback gRPC, and a caller that
//! follows redirects.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::time::sleep;
use trefoil_coordination::{LocalCoordinator, NodeOptions, Watcher};
use trefoil_linklet::{
    Builder, Error, Eviction, Linklet, Listener, PlainMarshal, Replication, StateLoss,
};
use trefoil_sharder::{BalanceConfig, ServerId, Slice};

/// What the linklets were told, together.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    pub(crate) losses: Mutex<Vec<StateLoss>>,
    pub(crate) evictions: Mutex<Vec<Eviction>>,
    pub(crate) gained: AtomicU64,
    pub(crate) lost: AtomicU64,
}

impl Listener for Heard {
    fn gained(&self, slices: &[Slice]) {
        self.gained
            .fetch_add(slices.len() as u64, Ordering::Relaxed);
    }

    fn lost(&self, slices: &[Slice]) {
        self.lost.fetch_add(slices.len() as u64, Ordering::Relaxed);
    }

    fn state_loss(&self, loss: &StateLoss) {
        self.losses.lock().unwrap().push(loss.clone());
    }

    fn evicted(&self, evictions: &[Eviction]) {
        self.evictions.lock().unwrap().extend_from_slice(evictions);
    }
}

pub(crate) struct Cluster {
    pub(crate) coordinator: LocalCoordinator,
    pub(crate) replication: Replication,
    pub(crate) linklets: BTreeMap<ServerId, Linklet<Vec<u8>>>,
    pub(crate) heard: Arc<Heard>,
    pub(crate) watcher: Watcher,
    pub(crate) redirects: AtomicU64,
}

pub(crate) const CORPUS: &str = "test";

impl Cluster {
    pub(crate) async fn of(count: usize, replication: Replication) -> Self {
        let copies = if replication == Replication::None {
            1
        } else {
            2
        };
        Cluster::with(coordinator(copies), count, replication).await
    }

    pub(crate) async fn with(
        coordinator: LocalCoordinator,
        count: usize,
        replication: Replication,
    ) -> Self {
        log();
        let watcher = coordinator.watcher(CORPUS).await.unwrap();
        let mut cluster = Cluster {
            coordinator,
            replication,
            linklets: BTreeMap::new(),
            heard: Arc::default(),
            watcher,
            redirects: AtomicU64::new(0),
        };
        for _ in 0..count {
            cluster.join(|builder| builder).await;
        }
        if count > 0 {
            cluster.settle().await;
        }
        cluster
    }

    pub(crate) async fn join(
        &mut self,
        build: impl FnOnce(Builder<Vec<u8>>) -> Builder<Vec<u8>>,
    ) -> ServerId {
        let builder = Linklet::builder(CORPUS, PlainMarshal)
            .replication(self.replication)
            .listener(Arc::clone(&self.heard) as Arc<dyn Listener>);
        let linklet = build(builder)
            .listen(self.coordinator.clone(), "127.0.0.1:0".parse().unwrap())
            .await
            .unwrap();
        let id = linklet.server_id().unwrap();
        self.linklets.insert(id, linklet);
        id
    }

    /// Waits until every slice is where it is assigned.
    pub(crate) async fn settle(&self) {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let view = Arc::clone(&self.watcher.view().borrow());
            let all_there = view.is_assigned()
                && self.linklets.iter().all(|(&id, linklet)| {
                    let mine: u128 = view
                        .assignment
                        .slices()
                        .iter()
                        .filter(|assigned| assigned.servers.first() == Some(&id))
                        .map(|assigned| assigned.slice.width())
                        .sum();
                    let owned: u128 = linklet.owned().iter().map(|slice| slice.width()).sum();
                    linklet.version() == view.version() && owned == mine
                });
            if all_there {
                return;
            }
            assert!(
                Instant::now() < deadline,
                "not settled: {:?}; {:?}",
                view.version(),
                self.linklets
                    .iter()
                    .map(|(id, linklet)| (*id, linklet.version(), linklet.owned().len()))
                    .collect::<Vec<_>>()
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Who is to be asked for a key.
    pub(crate) fn owner(&self, key: &[u8]) -> Option<&Linklet<Vec<u8>>> {
        let any = self.linklets.values().next()?;
        let view = Arc::clone(&self.watcher.view().borrow());
        let servers = &view.assignment.slice_of(any.point(key)).servers;
        servers.iter().find_map(|id| self.linklets.get(id))
    }

    /// Has a key's server do something; follows one redirect.
    pub(crate) async fn call<R, F>(
        &self,
        key: &[u8],
        act: impl Fn(Linklet<Vec<u8>>) -> F,
    ) -> Result<R, Error>
    where
        F: Future<Output = Result<R, Error>>,
    {
        let version = self.watcher.view().borrow().version();
        let first = self.owner(key).ok_or(Error::NotMember)?;
        match act(first.knowing(version)).await {
            Err(Error::NotMine(redirect)) => {
                self.redirects.fetch_add(1, Ordering::Relaxed);
                let to = redirect.to.and_then(|to| self.linklets.get(&to));
                let to = to.ok_or(Error::NotMine(redirect.clone()))?;
                act(to.redirected(redirect.version)).await
            }
            other => other,
        }
    }

    pub(crate) async fn put(&self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        let act = |linklet: Linklet<Vec<u8>>| {
            let (key, value) = (key.to_vec(), value.to_vec());
            async move { linklet.insert(&key, value).await.map(|_| ()) }
        };
        self.call(key, act).await
    }

    pub(crate) async fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let act = |linklet: Linklet<Vec<u8>>| {
            let key = key.to_vec();
            async move { linklet.read(&key, Vec::clone).await }
        };
        self.call(key, act).await
    }

    pub(crate) fn losses(&self) -> Vec<StateLoss> {
        self.heard.losses.lock().unwrap().clone()
    }
}

/// An assigner in this process. It may move everything in one round: a drain
/// then takes as long as the moves, not as long as the budget for churn makes
/// it.
pub(crate) fn coordinator(copies: usize) -> LocalCoordinator {
    let options = NodeOptions {
        balance: BalanceConfig {
            replicas_min: copies,
            replicas_max: copies,
            churn_max: 1.0,
            ..BalanceConfig::default()
        },
        ..NodeOptions::default()
    };
    LocalCoordinator::with(options).unwrap()
}

pub(crate) fn name(n: u64) -> Vec<u8> {
    format!("session {n}").into_bytes()
}

/// What the crates log, where `RUST_LOG` asks for it.
pub(crate) fn log() {
    use tracing_subscriber::layer::SubscriberExt as _;
    use tracing_subscriber::util::SubscriberInitExt as _;
    let wanted = std::env::var("RUST_LOG").unwrap_or_else(|_| "error".to_owned());
    let filter: tracing_subscriber::filter::Targets = wanted.parse().expect("RUST_LOG");
    let _ = tracing_subscriber::registry()
        .with(tracing_subscriber::fmt::layer().with_test_writer())
        .with(filter)
        .try_init();
}

/// Waits until something is so.
pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let since = Instant::now();
    while !holds() {
        assert!(
            since.elapsed() < Duration::from_secs(60),
            "not true: {what}"
        );
        sleep(Duration::from_millis(20)).await;
    }
}
