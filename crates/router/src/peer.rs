//! One server as its caller knows it: a connection, and how well it answers.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tonic::transport::Channel;
use trefoil_channel::Security;
use trefoil_sharder::ServerId;

/// Half of a change in latency is believed after this many answers.
const LATENCY_SHIFT: u32 = 2;
/// An unknown latency: about that of an empty call.
const LATENCY_FIRST: u64 = 100_000;
/// What a failure counts as.
const LATENCY_FAILED: Duration = Duration::from_millis(250);
/// A server that takes no connection for so long is away.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// Shared by all tables that name the server.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) id: ServerId,
    pub(crate) address: String,
    channel: Channel,
    outstanding: AtomicU32,
    /// Nanoseconds, smoothed.
    latency: AtomicU64,
}

impl Peer {
    /// Connects when it is first asked.
    pub(crate) fn new(
        id: ServerId,
        address: &str,
        security: &Security,
        corpus: &str,
    ) -> Result<Self, String> {
        let channel = security.channel(address, Some(corpus), |endpoint| {
            endpoint.connect_timeout(CONNECT_TIMEOUT)
        })?;
        Ok(Peer {
            id,
            address: address.to_owned(),
            channel,
            outstanding: AtomicU32::new(0),
            latency: AtomicU64::new(LATENCY_FIRST),
        })
    }

    pub(crate) fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// Requests that it has not answered yet.
    pub(crate) fn outstanding(&self) -> u32 {
        self.outstanding.load(Ordering::Relaxed)
    }

    /// What one more request would have to wait for.
    pub(crate) fn cost(&self) -> u64 {
        let ahead = u64::from(self.outstanding.load(Ordering::Relaxed)) + 1;
        ahead.saturating_mul(self.latency.load(Ordering::Relaxed))
    }

    /// A request begins; it ends when the guard is dropped.
    pub(crate) fn begin(&self) -> Outstanding<'_> {
        self.outstanding.fetch_add(1, Ordering::Relaxed);
        Outstanding {
            peer: self,
            since: Instant::now(),
        }
    }

    fn learn(&self, latency: Duration) {
        let latency = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX).max(1);
        let before = self.latency.load(Ordering::Relaxed);
        // Slower is believed at once, faster bit by bit: a server that has
        // just stalled is avoided, and tried again as its figure decays.
        let after = if latency > before {
            before / 2 + latency / 2
        } else {
            before - ((before - latency) >> LATENCY_SHIFT)
        };
        // Two answers at once: one of them is as good as the other.
        self.latency.store(after, Ordering::Relaxed);
    }
}

/// A request that has not been answered.
pub(crate) struct Outstanding<'a> {
    peer: &'a Peer,
    since: Instant,
}

impl Outstanding<'_> {
    /// It was answered.
    pub(crate) fn answered(self) {
        self.peer.learn(self.since.elapsed());
    }

    /// The caller has not waited for longer: it is at least as slow as that.
    pub(crate) fn given_up(self) {
        let waited = self.since.elapsed();
        let known = Duration::from_nanos(self.peer.latency.load(Ordering::Relaxed));
        if waited > known {
            self.peer.learn(waited);
        }
    }

    /// It failed, however fast.
    pub(crate) fn failed(self) {
        self.peer.learn(LATENCY_FAILED.max(self.since.elapsed()));
    }
}

impl Drop for Outstanding<'_> {
    fn drop(&mut self) {
        self.peer.outstanding.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_busy_and_the_slow_cost_more() {
        let idle = Peer::new(ServerId(1), "127.0.0.1:1", &Security::Loopback, "mail").unwrap();
        let busy = Peer::new(ServerId(2), "127.0.0.1:2", &Security::Loopback, "mail").unwrap();
        assert_eq!(idle.cost(), busy.cost());
        let request = busy.begin();
        assert!(busy.cost() > idle.cost());
        request.failed();
        // Whoever has little time says nothing of a server that failed long ago, or is well.
        let failed = busy.latency.load(Ordering::Relaxed);
        busy.begin().given_up();
        assert_eq!(busy.latency.load(Ordering::Relaxed), failed);
        idle.begin().given_up();
        let waited = Duration::from_nanos(idle.latency.load(Ordering::Relaxed));
        assert!(waited < LATENCY_FAILED / 2);
        assert!(busy.cost() > 100 * idle.cost(), "a failure is remembered");
        for _ in 0..50 {
            busy.begin().answered();
        }
        assert!(busy.cost() <= idle.cost(), "and forgotten");
        drop(busy.begin());
        assert!(busy.cost() <= idle.cost(), "given up is not failed");
    }

    #[tokio::test]
    async fn what_is_no_address_is_told() {
        assert!(Peer::new(ServerId(1), "no address", &Security::Loopback, "mail").is_err());
    }
}
