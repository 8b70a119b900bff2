//! What Prometheus reads of a linklet.

use crate::cluster::{self, CORPUS};
use std::time::{Duration, Instant};
use trefoil_linklet::freshness::event::{Progress, Sink};
use trefoil_linklet::freshness::position::{History, Place};
use trefoil_linklet::{Error, Linklet, PlainMarshal, Replication, TooFew};

/// A metric's value; `None` if it is not there.
pub(crate) fn value<V: Send + Sync + 'static>(linklet: &Linklet<V>, name: &str) -> Option<f64> {
    let page = linklet.metrics();
    let begin = format!("trefoil_linklet_{name}{{corpus=\"{CORPUS}\"}} ");
    let line = page.lines().find_map(|line| line.strip_prefix(&begin))?;
    Some(line.parse().expect("a number"))
}

async fn alone(too_few: TooFew) -> Linklet<String> {
    let builder = Linklet::builder(CORPUS, PlainMarshal)
        .replication(Replication::Strong)
        .too_few(too_few)
        .patience(Duration::from_millis(200));
    let linklet = builder
        .listen(cluster::coordinator(2), "127.0.0.1:0".parse().unwrap())
        .await
        .unwrap();
    linklet.settled().await;
    linklet
}

#[tokio::test(flavor = "multi_thread")]
async fn too_few_copies_are_seen_whether_they_are_refused_or_not() {
    let refusing = alone(TooFew::Refuse).await;
    let error = refusing.insert(b"a", String::new()).await.unwrap_err();
    assert!(matches!(error, Error::TooFewCopies { .. }), "{error}");
    assert_eq!(value(&refusing, "commits_refused_total"), Some(1.0));
    assert_eq!(value(&refusing, "commits_thin_total"), Some(0.0));
    assert!(value(&refusing, "slices_short") > Some(0.0));
    assert_eq!(value(&refusing, "copies_min"), Some(2.0));
    assert!(value(&refusing, "lease_seconds") > Some(0.0));

    let taking = alone(TooFew::Acknowledge).await;
    taking.insert(b"a", String::new()).await.unwrap();
    assert_eq!(value(&taking, "commits_refused_total"), Some(0.0));
    assert_eq!(value(&taking, "commits_thin_total"), Some(1.0));
    assert!(value(&taking, "slices_short") > Some(0.0));
}

#[tokio::test(flavor = "multi_thread")]
async fn staleness_is_a_metric_once_it_is_known() {
    let linklet = alone(TooFew::Acknowledge).await;
    assert_eq!(value(&linklet, "staleness_seconds"), None);
    let mut sink = linklet.sink();
    sink.begun(&Place {
        history: History("log".to_owned()),
        position: 5,
    });
    let second = Duration::from_secs(1);
    sink.progress(Progress {
        position: 6,
        as_of: Instant::now().checked_sub(second),
    });
    let staleness = value(&linklet, "staleness_seconds").expect("known by now");
    assert!((1.0..30.0).contains(&staleness), "{staleness}");
    linklet.leave().await;
    assert_eq!(value(&linklet, "member"), Some(0.0));
}
