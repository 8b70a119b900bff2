//! Says *look* when the configuration may have changed.
//!
//! One watch for each store, opened when somebody first waits. It says so, too, when it
//! stands (again): what happened before then, it has not seen.

use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use trefoil_etcd::{EtcdClient, EtcdError, Happened};

/// A quiet watch is begun anew so often: one that waits for revisions which a restored
/// etcd has not reached again says nothing.
const BEGIN_ANEW: Duration = Duration::from_secs(10);
/// Between two attempts.
const BACKOFF_MIN: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(1);

/// How matters stand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Bell {
    /// Grows whenever one should look.
    pub(super) rings: u64,
    /// Whether it will ring at the next change.
    pub(super) stands: bool,
}

/// Runs until nobody listens any more.
pub(super) async fn follow(client: Arc<EtcdClient>, key: String, bell: watch::Sender<Bell>) {
    let mut backoff = BACKOFF_MIN;
    while !bell.is_closed() {
        let ended = follow_once(&client, &key, &bell).await;
        bell.send_if_modified(|bell| std::mem::replace(&mut bell.stands, false));
        match ended {
            Ok(()) => backoff = BACKOFF_MIN,
            Err(error) => {
                tracing::debug!(key, %error, "the watch of the cell's configuration has ended");
                sleep(backoff).await;
                backoff = (backoff * 2).min(BACKOFF_MAX);
            }
        }
    }
}

/// One watch; `Ok` when it is time for another.
async fn follow_once(
    client: &EtcdClient,
    key: &str,
    bell: &watch::Sender<Bell>,
) -> Result<(), EtcdError> {
    let found = client.get(key).await?;
    let mut watch = client.watch(key, found.revision + 1).await?;
    loop {
        let happened = match timeout(BEGIN_ANEW, watch.next()).await {
            Err(_) => return Ok(()),
            Ok(happened) => happened?,
        };
        match happened {
            Happened::Begun => bell.send_modify(|bell| {
                bell.stands = true;
                bell.rings += 1;
            }),
            Happened::Changed => bell.send_modify(|bell| bell.rings += 1),
            Happened::Nothing => {}
            Happened::Over(reason) => {
                tracing::debug!(key, reason, "the watch was cancelled");
                return Ok(());
            }
        }
    }
}
