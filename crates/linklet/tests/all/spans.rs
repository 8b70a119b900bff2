//! What a subscriber sees of a linklet, its assigner and a caller.

use crate::cluster::{self, CORPUS};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use tonic::Status;
use tracing::span::{Attributes, Id};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt as _};
use trefoil_linklet::{Linklet, PlainMarshal, Replication, TooFew};
use trefoil_router::Router;

/// Names of spans that were begun.
#[derive(Clone, Default)]
struct Begun(Arc<Mutex<BTreeSet<&'static str>>>);

impl<S: tracing::Subscriber> Layer<S> for Begun {
    fn on_new_span(&self, attributes: &Attributes<'_>, _: &Id, _: Context<'_, S>) {
        self.0.lock().unwrap().insert(attributes.metadata().name());
    }
}

// One thread, so that a subscriber of this test's own sees everything.
#[tokio::test]
async fn loads_commits_and_memberships_are_spans() {
    let begun = Begun::default();
    let subscriber = tracing_subscriber::registry().with(begun.clone());
    let _here = tracing::subscriber::set_default(subscriber);
    let coordinator = cluster::coordinator(1);
    let linklet: Linklet<String> = Linklet::builder(CORPUS, PlainMarshal)
        .replication(Replication::Strong)
        .too_few(TooFew::Acknowledge)
        .loader(|_: Vec<u8>| async { Ok(Some(String::new().into())) })
        .listen(coordinator.clone(), "127.0.0.1:0".parse().unwrap())
        .await
        .unwrap();
    linklet.settled().await;
    linklet.insert(b"a", "one".to_owned()).await.unwrap();
    linklet.read_or_load(b"b", |_| ()).await.unwrap();
    // Alone it has nobody to give to; that it was asked to is a span already.
    let limit = std::time::Duration::from_millis(50);
    assert!(tokio::time::timeout(limit, linklet.drain()).await.is_err());
    let router = Router::new(coordinator.watcher(CORPUS).await.unwrap());
    let call = router.call(b"a", |_, _| async { Ok::<_, Status>(()) });
    call.await.unwrap();
    let begun = begun.0.lock().unwrap().clone();
    for name in [
        "linklet.member",
        "linklet.commit",
        "linklet.load",
        "linklet.drain",
        "assigner.command",
        "assigner.turn",
        "router.call",
    ] {
        assert!(begun.contains(name), "no {name} in {begun:?}");
    }
    let stats = linklet.stats();
    assert!(stats.commits >= 1 && stats.commit_us > 0, "{stats:?}");
}
