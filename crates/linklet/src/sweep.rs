//! The task that takes out what is over.
//!
//! It takes at most a twentieth of a thread, as long as a sweep takes less than half a
//! second: it rests for twenty times as long as that has worked, up to ten seconds. Nothing depends on how often it comes:
//! what has ended counts as absent from then on.

use crate::Linklet;
use crate::lifetime::Over;
use crate::linklet::Inner;
use crate::table::Window;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tokio::task::{JoinSet, yield_now};
use tokio::time::sleep;

const REST_MIN: Duration = Duration::from_millis(500);
const REST_FACTOR: u32 = 20;
/// Also if the whole machine stood still amid a sweep.
const REST_MAX: Duration = Duration::from_secs(10);
/// Removals under way that wait for their replicas.
const REMOVALS_MAX: usize = 64;
/// They are not waited for longer: the next sweep sees what has become of them.
const PATIENCE: Duration = Duration::from_millis(200);

pub(crate) async fn sweep<V: Send + Sync + 'static>(weak: Weak<Inner<V>>) {
    let mut rest = REST_MIN;
    let mut removals = JoinSet::new();
    loop {
        sleep(rest).await;
        let mut worked = Duration::ZERO;
        let mut next = Some(Window::default());
        while let Some(window) = next {
            let Some(inner) = weak.upgrade() else { return };
            let began = Instant::now();
            let store = &inner.store;
            let clocks = store.table.lifetimes().clocks();
            let served = |until| store.clock() < until;
            let in_change = |key: &[u8]| inner.turns.is_taken(key);
            let (swept, after) = store.table.sweep(window, clocks, served, in_change);
            for (entry, over) in swept.taken {
                store.ended(&entry, over);
            }
            worked += began.elapsed();
            for (key, over) in swept.proposed {
                if removals.len() >= REMOVALS_MAX {
                    removals.join_next().await;
                }
                removals.spawn(remove(Arc::clone(&inner), key, over));
            }
            drop(inner);
            yield_now().await;
            next = after;
        }
        while removals.join_next().await.is_some() {}
        rest = (worked * REST_FACTOR).clamp(REST_MIN, REST_MAX);
    }
}

async fn remove<V: Send + Sync + 'static>(inner: Arc<Inner<V>>, key: Arc<[u8]>, over: Over) {
    let linklet = Linklet::new(inner, Vec::new(), PATIENCE);
    linklet.remove_over(&key, over).await;
}
