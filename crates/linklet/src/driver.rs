//! The tasks behind a linklet: one drives the protocol, one reports load, one
//! tells the listeners.
//!
//! ```text
//!   view, lease, time, errands ─► drive ─► Life
//!   session ended ─► a new session, a new life (nothing of the old one is kept)
//! ```

use crate::event::{Event, StateLossReason};
use crate::life::Life;
use crate::linklet::{Inner, Progress};
use crate::metrics::Snapshot;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until};
use tracing::Instrument as _;
use trefoil_coordination::{CoordinationError, ServerInfo, Session, SessionEnd};
use trefoil_linklet_core::Replication;
use trefoil_sharder::{MemberState, Slice};

/// The lease and the clock are looked at this often.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// For how long a refresh stands in line before its key is dropped instead.
const REFRESH_PATIENCE: Duration = Duration::from_secs(5);
/// What could not be withdrawn is tried again after this.
const WITHDRAW_AGAIN: Duration = Duration::from_millis(50);
/// And not more often, whatever the protocol waits for.
const LOOK_SOONEST: Duration = Duration::from_millis(1);
const REJOIN_EVERY: Duration = Duration::from_millis(500);

/// How sessions are made.
pub(crate) type Join = Arc<
    dyn Fn(
            ServerInfo,
        )
            -> std::pin::Pin<Box<dyn Future<Output = Result<Session, CoordinationError>> + Send>>
        + Send
        + Sync,
>;

/// Drives the protocol for as long as the linklet exists, over as many
/// memberships as it takes.
pub(crate) async fn drive<V: Send + Sync + 'static>(
    inner: Weak<Inner<V>>,
    mut session: Session,
    join: Join,
    mut info: ServerInfo,
) {
    loop {
        let span = tracing::info_span!(
            "linklet.member",
            corpus = session.corpus(),
            server = %session.server_id()
        );
        match one_life(&inner, &session).instrument(span).await {
            Ended::Dropped => return,
            Ended::Left => {
                end(&inner);
                return;
            }
            Ended::Expired => {}
        }
        // Nothing is served and nothing is kept: others have it.
        let Some(present) = inner.upgrade() else {
            return;
        };
        let ended = present.life().take();
        let leaving = ended.is_some_and(Life::expire);
        let nothing = Arc::new(trefoil_linklet_core::Table::nothing());
        present.store.table.publish(&nothing);
        present.store.table.remove_slice(Slice::ALL, |_, _| true);
        drop(present);
        if leaving {
            // It was about to stop anyway.
            end(&inner);
            return;
        }
        info.state = MemberState::Serving;
        session = loop {
            if let Some(inner) = inner.upgrade() {
                inner.store.turned();
            }
            match join(info.clone()).await {
                Ok(session) => break session,
                Err(error) => {
                    tracing::warn!(%error, "this server cannot join anew");
                    sleep(REJOIN_EVERY).await;
                }
            }
            if is_over(&inner) {
                return;
            }
        };
        let Some(present) = inner.upgrade() else {
            return;
        };
        let life = Life::new(
            Arc::clone(&present.store),
            session.clone(),
            present.security.clone(),
            present.config.clone(),
        );
        let life = match life {
            Ok(life) => life,
            // The limits were checked when the linklet was started.
            Err(error) => {
                tracing::error!(%error, "this server cannot serve anew");
                return;
            }
        };
        if !present.begin(life) {
            if let Err(error) = session.leave().await {
                tracing::warn!(%error, "the assigner was not told: the lease has to run out");
            }
            return;
        }
        present.store.tell(Event::Rejoined(session.server_id()));
    }
}

/// Whether nobody needs a membership any more.
fn is_over<V>(inner: &Weak<Inner<V>>) -> bool {
    inner
        .upgrade()
        .is_none_or(|present| present.progress.borrow().ended)
}

enum Ended {
    /// The linklet is gone.
    Dropped,
    /// It has left.
    Left,
    /// It was taken for dead.
    Expired,
}

async fn one_life<V: Send + Sync + 'static>(weak: &Weak<Inner<V>>, session: &Session) -> Ended {
    let mut view = session.view();
    // What is known already is news here.
    let mut news = true;
    let mut status = session.status();
    loop {
        let (wake_at, store) = {
            let Some(inner) = weak.upgrade() else {
                return Ended::Dropped;
            };
            if let trefoil_coordination::Status::Ended(end) = &*status.borrow_and_update() {
                return match end {
                    SessionEnd::Left => Ended::Left,
                    _ => Ended::Expired,
                };
            }
            let mut guard = inner.life();
            let Some(life) = guard.as_mut() else {
                return Ended::Left;
            };
            if std::mem::take(&mut news) {
                let now = Arc::clone(&view.borrow_and_update());
                life.learn(&now);
            }
            inner.store.turned();
            run_errands(&inner, life);
            life.tick();
            if life.replaced {
                return Ended::Expired;
            }
            show_progress(&inner, life);
            let next = life.next_tick();
            let now = inner.store.clock();
            let wait = next.map_or(LOOK_EVERY, |at| at.saturating_sub(now));
            let wait = wait.clamp(LOOK_SOONEST, LOOK_EVERY);
            drop(guard);
            (Instant::now() + wait, Arc::clone(&inner.store))
        };
        tokio::select! {
            _ = view.changed() => news = true,
            _ = status.changed() => {}
            () = store.errand.notified() => {}
            () = sleep_until(wake_at) => {}
        }
    }
}

/// Does what threads have left to be done.
fn run_errands<V: Send + Sync + 'static>(inner: &Arc<Inner<V>>, life: &mut Life<V>) {
    let errands = inner.store.take_errands();
    if !errands.touched.is_empty() {
        life.drive(|core, now, values| {
            for (point, key) in errands.touched {
                core.touched(now, values, point, key);
            }
        });
    }
    let withdrawals = !errands.withdrawn.is_empty() || !errands.refreshed.is_empty();
    if inner.config.replication == Replication::Strong && withdrawals {
        let linklet = crate::Linklet::new(Arc::clone(inner), Vec::new(), LOOK_EVERY);
        for (key, value, stamp) in errands.refreshed {
            // Each for itself: it stands in line behind the commit before it, and
            // before the withdrawal of what that brings.
            let linklet = linklet.patient(REFRESH_PATIENCE);
            tokio::spawn(async move {
                if linklet.refresh_copied(&key, value, stamp).await {
                    let again = (linklet.point(&key), key);
                    let store = &linklet.inner().store;
                    store.leave(|errands| errands.withdrawn.push(again));
                }
            });
        }
        tokio::spawn(async move {
            let mut again = Vec::new();
            for (point, key) in errands.withdrawn {
                if linklet.withdraw_absent(&key).await {
                    again.push((point, key));
                }
            }
            if !again.is_empty() {
                tokio::time::sleep(WITHDRAW_AGAIN).await;
                let store = &linklet.inner().store;
                store.leave(|errands| errands.withdrawn.extend(again));
            }
        });
    }
    let store = &inner.store;
    if !errands.left.is_empty() {
        store.tell(Event::Evicted(errands.left));
    }
    store.lose(StateLossReason::Evicted, errands.evicted);
    store.lose(StateLossReason::SpillUnreadable, errands.unreadable);
    store.lose(StateLossReason::StreamGap, errands.dropped);
    store.lose(StateLossReason::UpdatePanicked, errands.panicked);
}

fn show_progress<V: Send + Sync + 'static>(inner: &Inner<V>, life: &mut Life<V>) {
    life.settled = life.core().is_complete();
    life.arrived |= life.settled && life.version().is_some();
    let now = Progress {
        version: life.version(),
        drained: life.drained,
        ended: false,
        settled: life.version().is_some() && life.settled,
    };
    inner.progress.send_if_modified(|was| {
        let changed = *was != now;
        *was = now;
        changed
    });
}

fn end<V: Send + Sync + 'static>(weak: &Weak<Inner<V>>) {
    if let Some(inner) = weak.upgrade() {
        *inner.life() = None;
        let nothing = Arc::new(trefoil_linklet_core::Table::nothing());
        inner.store.table.publish(&nothing);
        inner.progress.send_modify(|progress| progress.ended = true);
    }
}

/// Says that the server is to give everything away. The protocol hears of it
/// when the assigner is known to have taken note. Between two memberships there
/// is nothing to give: no further one begins.
pub(crate) fn begin_drain<V: Send + Sync + 'static>(inner: &Inner<V>) {
    match inner.life().as_mut() {
        Some(life) => life.leave(),
        None => inner.progress.send_modify(|progress| progress.ended = true),
    }
}

/// Ends the membership.
pub(crate) async fn leave<V: Send + Sync + 'static>(inner: &Inner<V>) {
    // Without a life nothing can publish another table after this one, and no
    // further one begins.
    let session = {
        let mut life = inner.life();
        inner.progress.send_modify(|progress| progress.ended = true);
        life.take().map(|life| life.session.clone())
    };
    let nothing = Arc::new(trefoil_linklet_core::Table::nothing());
    inner.store.table.publish(&nothing);
    if let Some(session) = session
        && let Err(error) = session.leave().await
    {
        tracing::warn!(%error, "the assigner was not told: the lease has to run out");
    }
}

/// Tells the assigner what the slices cost.
pub(crate) async fn report<V: Send + Sync + 'static>(weak: Weak<Inner<V>>, every: Duration) {
    loop {
        sleep(every).await;
        let Some(inner) = weak.upgrade() else { return };
        let said = inner
            .life()
            .as_ref()
            .and_then(|life| Some((life.session.clone(), life.version()?, life.unstored())));
        if let Some((session, version, unstored)) = said {
            let store = &inner.store;
            let mut report = store.meters.report(
                session.server_id(),
                version,
                std::time::Instant::now(),
                |slice| store.table.bytes_in(slice),
            );
            report.unstored = unstored;
            session.report_with(report, Snapshot::of(&inner).vitals());
        }
    }
}
