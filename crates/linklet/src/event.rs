//! What the application is told about its slices.

use crate::lifetime::Over;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::mpsc::{self, error::TrySendError};
use trefoil_linklet_core::{Extent, Loss, LossReason, WireError};
use trefoil_sharder::{AssignmentVersion, KeyPoint, ServerId, Slice};

/// Why values are gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateLossReason {
    /// A server died, or a value could not be moved.
    Protocol(LossReason),
    /// There was no room for them, and there is no loader that could bring
    /// them back.
    Evicted,
    /// They were spilled to disk ([`Builder::spill`](crate::Builder::spill)) and cannot be
    /// read back, and there is no loader that could bring them back.
    SpillUnreadable,
    /// The stream of database changes had a gap, and there is no loader that
    /// could bring them back.
    StreamGap,
    /// A closure of the application panicked while it changed the value.
    UpdatePanicked,
    /// This server was taken for dead and replaced. What its successors have
    /// not got is reported by them.
    Replaced,
}

impl fmt::Display for StateLossReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StateLossReason::Protocol(reason) => reason.fmt(f),
            StateLossReason::Evicted => write!(f, "they were evicted"),
            StateLossReason::SpillUnreadable => {
                write!(f, "they were on disk and cannot be read back")
            }
            StateLossReason::StreamGap => write!(f, "changes of the database were missed"),
            StateLossReason::UpdatePanicked => write!(f, "an update of theirs panicked"),
            StateLossReason::Replaced => write!(f, "this server was taken for dead"),
        }
    }
}

/// Values are lost. Every lost key is in exactly one report of one server, in
/// a range or by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateLoss {
    /// Why.
    pub reason: StateLossReason,
    /// Whether everything is gone or perhaps the last commits.
    pub extent: Extent,
    /// The assignment that the server went by, if the loss has to do with it.
    pub version: Option<AssignmentVersion>,
    /// Lost ranges: whatever was in them.
    pub ranges: Vec<Slice>,
    /// Lost keys that are known by name.
    pub keys: Vec<(KeyPoint, Vec<u8>)>,
}

/// In a line: how much and why, without names of keys.
impl fmt::Display for StateLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let extent = match self.extent {
            Extent::All => "",
            Extent::LastCommits => "the last commits of ",
        };
        let space: f64 = self.ranges.iter().map(|range| range.fraction()).sum();
        match (self.ranges.len(), self.keys.len()) {
            (0, keys) => write!(f, "{extent}{keys} keys")?,
            (ranges, 0) => write!(
                f,
                "{extent}{ranges} ranges, {:.2} % of the keys",
                100.0 * space
            )?,
            (ranges, keys) => write!(
                f,
                "{extent}{ranges} ranges, {:.2} % of the keys, and {keys} keys",
                100.0 * space
            )?,
        }
        write!(f, ": {}", self.reason)
    }
}

impl From<Loss> for StateLoss {
    fn from(loss: Loss) -> Self {
        StateLoss {
            reason: StateLossReason::Protocol(loss.reason),
            extent: loss.extent,
            version: Some(loss.version),
            ranges: loss.ranges,
            keys: loss
                .keys
                .into_iter()
                .map(|(point, key)| (point, key.to_vec()))
                .collect(),
        }
    }
}

/// Why an object has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvictionReason {
    /// There was no room for it.
    Memory,
    /// It has ended by its own account ([`Builder::expires`](crate::Builder::expires)).
    Ended,
    /// Nobody has used it ([`Builder::idle`](crate::Builder::idle)).
    Idle,
}

impl From<Over> for EvictionReason {
    fn from(over: Over) -> Self {
        match over {
            Over::Ended => EvictionReason::Ended,
            Over::Idle => EvictionReason::Idle,
        }
    }
}

/// An object has left this server, which was its owner. Copies of it follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Eviction {
    /// Its key.
    pub key: Vec<u8>,
    /// Why.
    pub reason: EvictionReason,
}

/// Hears what happens to the slices of a server. Called one at a time and in
/// order, from a task of the linklet's: it may take its time, but what it
/// waits for waits with it.
pub trait Listener: Send + Sync + 'static {
    /// The server now owns these; all of their values are here.
    fn gained(&self, slices: &[Slice]) {
        let _ = slices;
    }

    /// The server does not own these any more.
    fn lost(&self, slices: &[Slice]) {
        let _ = slices;
    }

    /// Values are gone.
    fn state_loss(&self, loss: &StateLoss) {
        let _ = loss;
    }

    /// Objects have left because of memory or their end: with
    /// [`Builder::notices`](crate::Builder::notices), each once. Not told are
    /// removals by the application, changes of the database, moves, and objects
    /// that have ended and were replaced before they were taken out.
    fn evicted(&self, evictions: &[Eviction]) {
        let _ = evictions;
    }

    /// The server was to be drained, and nothing is left.
    fn drained(&self) {}

    /// The server was taken for dead and has joined anew under this id.
    fn rejoined(&self, id: ServerId) {
        let _ = id;
    }

    /// Another server is of a release that this one cannot talk with: nothing of it is taken.
    /// Told once for each.
    fn not_understood(&self, peer: ServerId, error: WireError) {
        let _ = (peer, error);
    }

    /// The listeners were so slow that this many events could not be kept for
    /// them: slices may have been gained or lost, and values too.
    fn missed(&self, events: u64) {
        let _ = events;
    }
}

/// Events that wait for slow listeners.
const EVENTS_MAX: usize = 4_096;

/// Where events are put for the listeners.
#[derive(Debug)]
pub(crate) struct Events {
    queue: mpsc::Sender<Event>,
    missed: Arc<AtomicU64>,
}

/// Where they are taken out.
#[derive(Debug)]
pub(crate) struct Heard {
    queue: mpsc::Receiver<Event>,
    missed: Arc<AtomicU64>,
}

pub(crate) fn events() -> (Events, Heard) {
    let (sender, receiver) = mpsc::channel(EVENTS_MAX);
    let missed = Arc::new(AtomicU64::new(0));
    let events = Events {
        queue: sender,
        missed: Arc::clone(&missed),
    };
    let heard = Heard {
        queue: receiver,
        missed,
    };
    (events, heard)
}

impl Events {
    /// Never waits: whoever tells holds locks.
    pub(crate) fn tell(&self, event: Event) {
        // Nobody listens once the linklet is being dropped.
        if let Err(TrySendError::Full(event)) = self.queue.try_send(event) {
            let missed = self.missed.fetch_add(1, Ordering::Relaxed) + 1;
            if missed.is_power_of_two() {
                tracing::error!(missed, ?event, "the listeners are too slow to be told");
            }
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) enum Event {
    Gained(Vec<Slice>),
    Lost(Vec<Slice>),
    StateLoss(StateLoss),
    Evicted(Vec<Eviction>),
    Drained,
    Rejoined(ServerId),
    NotUnderstood(ServerId, WireError),
}

/// Calls the listeners until the linklet is gone.
pub(crate) async fn tell(mut events: Heard, listeners: Vec<Arc<dyn Listener>>) {
    while let Some(event) = events.queue.recv().await {
        let missed = events.missed.swap(0, Ordering::Relaxed);
        if missed > 0 {
            for listener in &listeners {
                let told = catch_unwind(AssertUnwindSafe(|| listener.missed(missed)));
                if told.is_err() {
                    tracing::error!(missed, "a listener panicked");
                }
            }
        }
        for listener in &listeners {
            let told = catch_unwind(AssertUnwindSafe(|| match &event {
                Event::Gained(slices) => listener.gained(slices),
                Event::Lost(slices) => listener.lost(slices),
                Event::StateLoss(loss) => listener.state_loss(loss),
                Event::Evicted(evictions) => listener.evicted(evictions),
                Event::Drained => listener.drained(),
                Event::Rejoined(id) => listener.rejoined(*id),
                Event::NotUnderstood(peer, error) => listener.not_understood(*peer, *error),
            }));
            if let Err(payload) = told {
                let text = crate::marshal::panic_text(&*payload);
                tracing::error!(panic = %text, ?event, "a listener panicked");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[derive(Default)]
    struct Slow {
        drained: Mutex<usize>,
        missed: Mutex<u64>,
    }

    impl Listener for Slow {
        fn drained(&self) {
            *self.drained.lock().unwrap() += 1;
        }

        fn missed(&self, events: u64) {
            *self.missed.lock().unwrap() += events;
        }
    }

    #[tokio::test]
    async fn slow_listeners_hear_that_they_have_missed_something() {
        let (events, heard) = events();
        for _ in 0..EVENTS_MAX + 7 {
            events.tell(Event::Drained);
        }
        drop(events);
        let slow = Arc::new(Slow::default());
        tell(heard, vec![Arc::clone(&slow) as Arc<dyn Listener>]).await;
        assert_eq!(*slow.drained.lock().unwrap(), EVENTS_MAX);
        assert_eq!(*slow.missed.lock().unwrap(), 7);
    }
}
