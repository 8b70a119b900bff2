//! Commits that replicas confirm, when a replica says nothing: what a caller
//! is told, and what the next one sees.

use crate::cluster;
use crate::cluster::CORPUS;
use crate::metrics::value;
use bytes::Bytes;
use std::future::poll_fn;
use std::net::TcpListener;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;
use tokio::runtime::Runtime;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use trefoil_coordination::LocalCoordinator;
use trefoil_layout::hash::KeyHasher;
use trefoil_linklet::freshness::event::{Progress, Sink};
use trefoil_linklet::freshness::position::{History, Place};
use trefoil_linklet::freshness::table::SLOTS_DEFAULT;
use trefoil_linklet::{
    Builder, Error, Indeterminate, Linklet, Marshal, MarshalError, PlainMarshal, Replication,
};
use trefoil_sharder::{AssignmentVersion, Freeze};

/// Keys of the first linklet's of which the third one has the copies.
const ELSEWHERE: usize = 300;

/// Three linklets that have copies of each other's keys. The second one hears
/// nothing while it is stopped: it is alive, and confirms nothing.
pub(crate) struct Three {
    pub(crate) linklet: Linklet<String>,
    pub(crate) other: Linklet<String>,
    pub(crate) third: Linklet<String>,
    listener: TcpListener,
    /// What takes the second one's connections.
    serving: Option<Runtime>,
}

impl Drop for Three {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Three {
    async fn start() -> Self {
        Self::with(|| PlainMarshal).await
    }

    async fn with<M: Marshal<String>>(marshaller: impl Fn() -> M) -> Self {
        Self::built(|| Linklet::builder(CORPUS, marshaller())).await
    }

    pub(crate) async fn built(builder: impl Fn() -> Builder<String>) -> Self {
        cluster::log();
        let coordinator = cluster::coordinator(2);
        let switch = coordinator.clone();
        let build = || builder().replication(Replication::Strong);
        let linklet = build()
            .listen(coordinator.clone(), "127.0.0.1:0".parse().unwrap())
            .await
            .unwrap();
        linklet.settled().await;
        let third = build()
            .listen(coordinator.clone(), "127.0.0.1:0".parse().unwrap())
            .await
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let other = build()
            .join(coordinator, address.to_string())
            .await
            .unwrap();
        let mut fleet = Three {
            linklet,
            other,
            third,
            listener,
            serving: None,
        };
        fleet.go_on();
        fleet.copied().await;
        fleet.copied_at(&fleet.third, ELSEWHERE).await;
        // From now on the map stays as it is, whatever the load, unless a server dies or
        // cannot store something.
        let frozen = switch.set_freeze(CORPUS, Freeze::OnlyDead).await;
        frozen.unwrap();
        let key = fleet.copied().await;
        // Once this is through, the other one has its copy.
        let longer = fleet.linklet.patient(Duration::from_secs(60));
        longer.insert(&key, String::new()).await.unwrap();
        fleet
    }

    /// From now on the second one hears nothing.
    pub(crate) fn stop(&mut self) {
        if let Some(serving) = self.serving.take() {
            serving.shutdown_background();
        }
    }

    pub(crate) fn go_on(&mut self) {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let listener = self.listener.try_clone().unwrap();
        let service = self.other.service();
        runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            let server = Server::builder().add_service(service.into_server());
            server
                .serve_with_incoming(TcpIncoming::from(listener))
                .await
        });
        self.serving = Some(runtime);
    }

    /// The first key of which the first linklet is the owner, and the second
    /// one has a copy.
    pub(crate) async fn copied(&self) -> Vec<u8> {
        self.copied_at(&self.other, 1).await.remove(0)
    }

    /// Until a linklet has no copies of these keys, and none are on their way to it: one that
    /// it had by a former map it serves reads from until it has dropped it, and so long
    /// commits wait for it.
    async fn dropped_at(&self, rest: &Linklet<String>, keys: &[Vec<u8>]) {
        let rest = rest.patient(Duration::from_secs(60));
        for _ in 0..3_000 {
            // What the first one has sent by this map or a former one has arrived.
            let under_way = value(&self.linklet, "unconfirmed_bytes") != Some(0.0);
            let mut left = under_way || self.linklet.version() != self.version();
            for key in keys {
                let has = rest.read(key, |_| ()).await;
                left |= !matches!(has, Err(Error::NotMine(_)));
            }
            if !left {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!(
            "{:?} keeps copies that the map does not have",
            rest.server_id()
        );
    }

    /// The map in force, as the first linklet is told.
    fn version(&self) -> Option<AssignmentVersion> {
        self.linklet.view().unwrap().borrow().version()
    }

    /// Whether this one has a copy of a key of the first linklet's.
    fn is_copied_at(&self, other: &Linklet<String>, key: &[u8]) -> bool {
        let servers = [&self.linklet, other].map(|linklet| linklet.server_id().unwrap());
        let view = Arc::clone(&self.linklet.view().unwrap().borrow());
        let point = self.linklet.point(key);
        view.assignment.slice_of(point).servers == servers
    }

    /// Keys of which the first linklet is the owner, and this one has a copy.
    async fn copied_at(&self, other: &Linklet<String>, count: usize) -> Vec<Vec<u8>> {
        let servers = [&self.linklet, other].map(|linklet| linklet.server_id().unwrap());
        for _ in 0..3_000 {
            let view = Arc::clone(&self.linklet.view().unwrap().borrow());
            let mine = self.linklet.owned();
            let known = self.linklet.version() == view.version();
            let copied = (0..20 * count as u64).map(cluster::name).filter(|key| {
                let point = self.linklet.point(key);
                let owned = mine.iter().any(|slice| slice.contains(point));
                known && owned && view.assignment.slice_of(point).servers == servers
            });
            let copied: Vec<Vec<u8>> = copied.take(count).collect();
            if copied.len() == count {
                return copied;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("nothing is copied");
    }
}

/// Polls a future once: it must not be done yet.
async fn begin<F: Future>(mut future: std::pin::Pin<&mut F>) {
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Pending => Poll::Ready(()),
        Poll::Ready(_) => panic!("it is done at once"),
    })
    .await;
}

/// gRPC drops the future of a call that its client has cancelled. What it had
/// proposed goes on, and the next update has to see it.
#[tokio::test(flavor = "multi_thread")]
async fn an_update_that_was_dropped_is_seen_by_the_next_one() {
    let mut fleet = Three::start().await;
    let (linklet, key) = (fleet.linklet.clone(), fleet.copied().await);
    fleet.stop();
    let append = |text: &mut String| {
        text.push('b');
        text.clone()
    };
    {
        // Until it is under way: the key may just be moving.
        let computed = AtomicBool::new(false);
        let mut first = pin!(linklet.upsert(&key, String::new, |text| {
            computed.store(true, Ordering::SeqCst);
            text.push('a');
        }));
        poll_fn(|context| match first.as_mut().poll(context) {
            Poll::Ready(done) => panic!("it is done: {done:?}"),
            Poll::Pending if computed.load(Ordering::SeqCst) => Poll::Ready(()),
            Poll::Pending => Poll::Pending,
        })
        .await;
    }
    let mut second = pin!(linklet.upsert(&key, String::new, append));
    begin(second.as_mut()).await;
    fleet.go_on();
    assert_eq!(second.await.unwrap(), "ab");
    let seen = linklet.read(&key, String::clone).await.unwrap();
    assert_eq!(seen.as_deref(), Some("ab"));
}

/// Nobody waits for ever, nor for somebody else's trouble; and everybody is
/// told whom it hangs on.
#[tokio::test(flavor = "multi_thread")]
async fn who_has_not_confirmed_is_named_and_other_keys_go_on() {
    let mut fleet = Three::start().await;
    let map = fleet.version();
    let key = fleet.copied().await;
    // Keys whose copies are elsewhere: more than there were stripes.
    let keys = fleet.copied_at(&fleet.third, ELSEWHERE).await;
    fleet.dropped_at(&fleet.other, &keys).await;
    let own = std::slice::from_ref(&key);
    fleet.dropped_at(&fleet.third, own).await;
    let silent = fleet.other.server_id().unwrap();
    fleet.stop();
    let linklet = fleet.linklet.patient(Duration::from_millis(200));
    let push = |text: &mut String| text.push('a');
    match linklet.update(&key, push).await {
        Err(Error::Indeterminate(Indeterminate::Unconfirmed { by, .. })) => {
            assert_eq!(by, [silent]);
        }
        other => panic!("{other:?}"),
    }
    let seen = linklet.read(&key, String::clone).await.unwrap();
    assert_eq!(seen.as_deref(), Some(""), "nobody sees it before");
    match linklet.insert(&key, "b".to_owned()).await {
        Err(error @ Error::Unsettled { .. }) => {
            assert!(error.to_string().contains(&silent.to_string()), "{error}");
        }
        other => panic!("{other:?}"),
    }
    let longer = fleet.linklet.patient(Duration::from_secs(60));
    for (number, key) in keys.iter().enumerate() {
        let done = longer.insert(key, "x".to_owned()).await;
        if done.is_err() {
            // Only if the machine stood still for a whole lease.
            assert_ne!(map, fleet.version(), "{done:?} of key {number}");
            break;
        }
    }
    fleet.go_on();
    let push = |text: &mut String| text.push('c');
    longer.update(&key, push).await.unwrap();
    let seen = longer.read(&key, String::clone).await.unwrap();
    assert_eq!(seen.as_deref(), Some("ac"));
}

/// A replica that says nothing keeps a value from being stored, and from nobody who asks
/// for it: it is as the database has it.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_loaded_is_served_though_no_replica_confirms_it() {
    let build = || {
        let load = |_: Vec<u8>| async { Ok(Some("loaded".to_owned().into())) };
        Linklet::builder(CORPUS, PlainMarshal).loader(load)
    };
    let mut fleet = Three::built(build).await;
    let keys = fleet.copied_at(&fleet.other, 2).await;
    fleet.stop();
    let linklet = fleet.linklet.patient(Duration::from_millis(300));
    let loaded = linklet.read_or_load(&keys[1], String::clone).await;
    assert_eq!(loaded.unwrap().as_deref(), Some("loaded"));
}

/// A commit that waited long before it could begin is not given up as soon as it
/// has: nobody would know whether it counts.
#[tokio::test(flavor = "multi_thread")]
async fn replicas_have_all_of_the_patience() {
    let fleet = Three::start().await;
    let key = fleet.copied().await;
    let patience = Duration::from_secs(2);
    let linklet = fleet.linklet.patient(patience);
    let late = |text: &mut String| {
        // All of it is gone before the replica hears anything.
        std::thread::sleep(patience + Duration::from_millis(500));
        text.push('a');
    };
    let done = linklet.update(&key, late).await;
    assert!(done.is_ok(), "{done:?}");
}

/// Closures of the application's run under no lock of the protocol's.
#[tokio::test(flavor = "multi_thread")]
async fn a_closure_may_ask_what_the_server_has() {
    for replication in [
        Replication::None,
        Replication::Eventual,
        Replication::Strong,
    ] {
        let linklet = Linklet::builder(CORPUS, PlainMarshal)
            .replication(replication)
            .copies(1)
            .listen(LocalCoordinator::new(), "127.0.0.1:0".parse().unwrap())
            .await
            .unwrap();
        linklet.settled().await;
        linklet.insert(b"k", String::new()).await.unwrap();
        let asking = linklet.clone();
        let facts = move |_: &mut String| {
            let view = asking.view().unwrap().borrow().version();
            (
                asking.version(),
                view,
                asking.owned().len(),
                asking.server_id(),
            )
        };
        // Also where the protocol has to be asked for the key.
        let known = linklet.version();
        for linklet in [linklet.clone(), linklet.redirected(known)] {
            let told = linklet.update(b"k", facts.clone()).await.unwrap().unwrap();
            assert_eq!(told, (known, known, 1, linklet.server_id()));
        }
    }
}

/// A release that cannot read what newer ones write, until it can.
struct Old(Arc<AtomicBool>);

impl Marshal<String> for Old {
    fn marshal(&self, key: &[u8], value: &String, out: &mut Vec<u8>) -> Result<(), MarshalError> {
        PlainMarshal.marshal(key, value, out)
    }

    fn unmarshal(&self, key: &[u8], bytes: &[u8]) -> Result<String, MarshalError> {
        if bytes.starts_with(b"new") && self.0.load(Ordering::SeqCst) {
            return Err(MarshalError::new("what is this?"));
        }
        PlainMarshal.unmarshal(key, bytes)
    }
}

/// The assigner hears of it, and has somebody else keep the copy.
#[tokio::test(flavor = "multi_thread")]
async fn copies_that_cannot_be_stored_are_placed_elsewhere() {
    let made = AtomicUsize::new(0);
    let fleet = Three::with(|| {
        let is_last = made.fetch_add(1, Ordering::SeqCst) == 2;
        Old(Arc::new(AtomicBool::new(is_last)))
    })
    .await;
    let key = fleet.copied().await;
    let patient = fleet.linklet.patient(Duration::from_secs(60));
    patient.insert(&key, "new form".to_owned()).await.unwrap();
    assert!(fleet.linklet.stats().copies_refused > 0);
    assert!(fleet.is_copied_at(&fleet.third, &key));
}

/// A rolling deployment with another form of values: what a replica cannot read
/// is not acknowledged, and what was acknowledged before is not lost by it.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_replica_cannot_store_is_not_acknowledged() {
    let old = Arc::new(AtomicBool::new(true));
    let reads = Arc::clone(&old);
    let fleet = Three::with(|| Old(Arc::clone(&reads))).await;
    let key = fleet.copied().await;
    let silent = fleet.other.server_id().unwrap();
    let linklet = fleet.linklet.patient(Duration::from_millis(300));
    linklet.insert(&key, "before".to_owned()).await.unwrap();
    match linklet.insert(&key, "new form".to_owned()).await {
        Err(Error::Indeterminate(Indeterminate::Unconfirmed { by, .. })) => {
            assert_eq!(by, [silent]);
        }
        other => panic!("{other:?}"),
    }
    assert!(fleet.linklet.stats().copies_refused > 0);
    let seen = linklet.read(&key, String::clone).await.unwrap();
    assert_eq!(seen.as_deref(), Some("before"));
    // It is sent again; once it can be read, it is through.
    old.store(false, Ordering::SeqCst);
    let longer = fleet.linklet.patient(Duration::from_secs(60));
    let push = |text: &mut String| text.push('!');
    longer.update(&key, push).await.unwrap();
    // The replica serves it once it has heard that it is settled.
    for linklet in [&fleet.linklet, &fleet.other] {
        let seen = loop {
            match linklet.read(&key, String::clone).await {
                Err(Error::NotMine(_)) => tokio::time::sleep(Duration::from_millis(5)).await,
                seen => break seen.unwrap(),
            }
        };
        assert_eq!(seen.as_deref(), Some("new form!"));
    }
}

/// The stream of changes as both servers hear it, up to `position`.
fn follow(sink: &mut impl Sink, position: u64) {
    sink.begun(&Place {
        history: History("log".to_owned()),
        position,
    });
    sink.progress(Progress {
        position,
        as_of: None,
    });
}

/// Another key's change, which shares the memory of changes with this one, may
/// not take a copy away that was confirmed.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_replica_has_confirmed_it_has() {
    let fleet = Three::start().await;
    let mut sinks = [fleet.linklet.sink(), fleet.other.sink()];
    for sink in &mut sinks {
        follow(sink, 10);
    }
    let key = fleet.copied().await;
    fleet.linklet.insert(&key, "a".to_owned()).await.unwrap();
    let slot = |key: &[u8]| {
        let hash = KeyHasher::default().hash(key);
        (hash.place ^ hash.tag) % SLOTS_DEFAULT as u64
    };
    let neighbour = (0u64..)
        .map(|n| format!("neighbour {n}").into_bytes())
        .find(|neighbour| slot(neighbour) == slot(&key));
    // The replica hears of it first.
    sinks[1].invalidate(&Bytes::from(neighbour.unwrap()), 500);
    let push = |text: &mut String| text.push('b');
    fleet.linklet.update(&key, push).await.unwrap();
    for linklet in [&fleet.linklet, &fleet.other] {
        let seen = loop {
            match linklet.read(&key, String::clone).await {
                Err(Error::NotMine(_)) => tokio::time::sleep(Duration::from_millis(5)).await,
                seen => break seen.unwrap(),
            }
        };
        assert_eq!(seen.as_deref(), Some("ab"));
    }
}

/// What is told of a key while a refresh of it is on its way to the replicas.
#[tokio::test(flavor = "multi_thread")]
async fn the_last_of_several_changes_counts() {
    let mut fleet = Three::start().await;
    let mut sink = fleet.linklet.sink();
    follow(&mut sink, 10);
    let key = fleet.copied().await;
    let name = Bytes::from(key.clone());
    let longer = fleet.linklet.patient(Duration::from_secs(60));
    longer.insert(&key, "first".to_owned()).await.unwrap();
    let brief = fleet.linklet.patient(Duration::from_millis(20));
    // A commit of the key has begun.
    let under_way = async || {
        while !matches!(brief.remove(&key).await, Err(Error::Unsettled { .. })) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    fleet.stop();
    sink.refresh(&name, &Bytes::from_static(b"second"), 20);
    under_way().await;
    sink.refresh(&name, &Bytes::from_static(b"third"), 30);
    fleet.go_on();
    while longer.read(&key, String::clone).await.unwrap().as_deref() != Some("third") {
        let seen = longer.read(&key, String::clone).await.unwrap();
        assert_ne!(
            seen.as_deref(),
            Some("second"),
            "it is known to be out of date"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    fleet.stop();
    sink.refresh(&name, &Bytes::from_static(b"fourth"), 40);
    under_way().await;
    sink.invalidate(&name, 50);
    fleet.go_on();
    // Once it is this one's turn.
    let seen = longer.update(&key, |text| text.clone()).await.unwrap();
    assert_eq!(seen, None);
    assert_eq!(longer.read(&key, String::clone).await.unwrap(), None);
}
