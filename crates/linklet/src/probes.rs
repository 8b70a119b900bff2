//! What a linklet tells at a port for metrics: how it is, whether it is ready,
//! how far it is with giving everything away.

use crate::driver;
use crate::linklet::{Inner, Linklet};
use crate::metrics::Snapshot;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;
use trefoil_coordination::BootInstant;
use trefoil_endpoint::{Drain, Endpoint, EndpointError, Process, Reach, Samples};
use trefoil_linklet_core::Replication;

/// The driver looks at its lease twenty times a second, and waits ten seconds for
/// an assigner at most.
const SILENCE_MAX: Duration = Duration::from_secs(30);

impl<V: Send + Sync + 'static> Linklet<V> {
    /// Serves `/metrics`, `/livez`, `/readyz` and `/drain` at this address until the
    /// value is dropped: for Prometheus, and for an orchestrator that starts and
    /// stops servers ([`trefoil_endpoint`] says what each answers). Users of this host who
    /// are named by [`Security::users`](crate::Security::users) may drain it, too. An application
    /// with several linklets, or with metrics of its own, makes one [`Endpoint`] of
    /// their [`process`](Linklet::process)es.
    ///
    /// ```
    /// # use trefoil_linklet::Linklet;
    /// # use trefoil_linklet::endpoint::{Endpoint, EndpointError, Reach};
    /// # fn example(books: &Linklet<String>) -> Result<Endpoint, EndpointError> {
    /// let watched = books.serve_metrics("127.0.0.1:9413".parse().unwrap(), Reach::Loopback)?;
    /// # Ok(watched) }
    /// ```
    pub fn serve_metrics(
        &self,
        address: SocketAddr,
        reach: Reach,
    ) -> Result<Endpoint, EndpointError> {
        let drainers = self.inner().security.local_users();
        Endpoint::listen_for(address, reach, vec![self.process()], drainers)
    }

    /// What it tells at such a port.
    ///
    /// * Alive: the tasks behind it get on.
    /// * Ready: it is a member, goes by a map, everything that was assigned to it
    ///   has arrived once, and it is not being drained; with
    ///   [`Replication::Strong`] it holds its lease. While no assigner answers it
    ///   stays ready otherwise, for it goes on serving.
    /// * Drain: like [`Linklet::drain`].
    ///
    /// It does not keep the linklet.
    pub fn process(&self) -> Arc<dyn Process> {
        Arc::new(LinkletProcess(Arc::downgrade(self.inner())))
    }
}

struct LinkletProcess<V>(Weak<Inner<V>>);

impl<V: Send + Sync + 'static> Process for LinkletProcess<V> {
    fn collect(&self, samples: &mut Samples) -> std::fmt::Result {
        if let Some(inner) = self.0.upgrade() {
            Snapshot::of(&inner).collect(samples);
        }
        Ok(())
    }

    fn live(&self) -> Result<(), String> {
        // Without a lock: whoever holds one may be what hangs.
        let Some(inner) = self.0.upgrade() else {
            return Ok(());
        };
        let silence = inner.store.stood_still();
        if silence > SILENCE_MAX && !inner.progress.borrow().ended {
            let corpus = &inner.corpus;
            return Err(format!(
                "corpus {corpus} has not been seen to for {silence:.0?}"
            ));
        }
        Ok(())
    }

    fn ready(&self) -> Result<(), String> {
        let inner = self.0.upgrade().ok_or("the linklet is gone")?;
        let corpus = &inner.corpus;
        let not = |why: &str| Err(format!("corpus {corpus}: {why}"));
        if inner.progress.borrow().ended {
            return not("this server has left");
        }
        let guard = inner.life();
        let Some(life) = guard.as_ref() else {
            return not("this server was taken for dead, and joins anew");
        };
        if life.is_leaving() {
            return not("this server gives everything to others");
        }
        if life.version().is_none() {
            return not("there is no map yet");
        }
        if !life.arrived {
            return not("what is assigned to this server has not arrived yet");
        }
        let is_strong = inner.config.replication == Replication::Strong;
        if is_strong && life.session.lease_end() <= BootInstant::now() {
            return not("the lease of this server has ended, and no assigner renews it");
        }
        Ok(())
    }

    fn drain(&self) {
        if let Some(inner) = self.0.upgrade() {
            driver::begin_drain(&inner);
        }
    }

    fn drained(&self) -> Option<Drain> {
        let Some(inner) = self.0.upgrade() else {
            return Some(Drain::Done);
        };
        let progress = inner.progress.borrow().clone();
        if progress.drained {
            return Some(Drain::Done);
        }
        if progress.ended {
            return Some(Drain::Lost("was no member any more".to_owned()));
        }
        let is_leaving = inner.life().as_ref().is_some_and(|life| life.is_leaving());
        if !is_leaving {
            return Some(Drain::NotBegun);
        }
        let slices = inner.store.facts.owned().len();
        let values = inner.store.stats().entries;
        Some(Drain::UnderWay(format!(
            "corpus {}: {slices} slices and {values} values are left",
            inner.corpus
        )))
    }
}
