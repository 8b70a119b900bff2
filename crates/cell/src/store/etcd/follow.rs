//! Says *look* when the configuration may have changed.
//!
//! One watch for each store, opened when somebody first waits. It says so, too, when it
//! stands (again): what happened before then, it has not seen.

use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use trefoil_etcd::{EtcdClient, EtcdError, Happened};

/// A quiet watch is begun anew so often: one that waits for revisions which a restored
/// etcd has not reached again says nothing.
const BEGIN_ANEW: Duration = Duration::from_secs(10);
/// Between two attempts. A watch that has stood for as long as the longest is no failure.
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

/// The pause between two watches. One that ends soon is followed by one, whatever has ended
/// it: whoever cancels every watch is not to be asked as fast as it answers.
#[derive(Debug)]
struct Backoff(Duration);

impl Backoff {
    /// After a watch that stood for so long.
    fn after(&mut self, stood: Duration) -> Duration {
        if stood >= BACKOFF_MAX {
            self.0 = BACKOFF_MIN;
            return Duration::ZERO;
        }
        let pause = self.0;
        self.0 = (pause * 2).min(BACKOFF_MAX);
        pause
    }
}

/// Runs until nobody listens any more.
pub(super) async fn follow(client: Arc<EtcdClient>, key: String, bell: watch::Sender<Bell>) {
    let mut backoff = Backoff(BACKOFF_MIN);
    while !bell.is_closed() {
        let mut stands = None;
        let ended = follow_once(&client, &key, &bell, &mut stands).await;
        bell.send_if_modified(|bell| std::mem::replace(&mut bell.stands, false));
        if let Err(error) = ended {
            tracing::debug!(key, %error, "the watch of the cell's configuration has ended");
        }
        let stood = stands.map_or(Duration::ZERO, |since: Instant| since.elapsed());
        sleep(backoff.after(stood)).await;
    }
}

/// One watch; `Ok` when it is time for another. `stands` is since when it has stood.
async fn follow_once(
    client: &EtcdClient,
    key: &str,
    bell: &watch::Sender<Bell>,
    stands: &mut Option<Instant>,
) -> Result<(), EtcdError> {
    let found = client.get(key).await?;
    let mut watch = client.watch(key, found.revision + 1).await?;
    loop {
        let happened = match timeout(BEGIN_ANEW, watch.next()).await {
            Err(_) => return Ok(()),
            Ok(happened) => happened?,
        };
        match happened {
            Happened::Begun => {
                stands.get_or_insert_with(Instant::now);
                bell.send_modify(|bell| {
                    bell.stands = true;
                    bell.rings += 1;
                });
            }
            Happened::Changed => bell.send_modify(|bell| bell.rings += 1),
            Happened::Nothing => {}
            Happened::Over(reason) => {
                tracing::debug!(key, reason, "the watch was cancelled");
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An etcd that cancels every watch at once, as one behind a proxy may, is asked once a
    /// second at last.
    #[test]
    fn a_watch_that_ends_at_once_is_followed_by_a_pause() {
        let mut backoff = Backoff(BACKOFF_MIN);
        let mut pause = |stood_ms| backoff.after(Duration::from_millis(stood_ms)).as_millis();
        let pauses = [0, 0, 0, 999, 0, 0, 0].map(&mut pause);
        assert_eq!(pauses, [50, 100, 200, 400, 800, 1000, 1000]);
        // None behind one that has stood for long enough.
        assert_eq!([1000, 10_000, 1, 0].map(&mut pause), [0, 0, 50, 100]);
    }
}
