//! One relay, many subscribers: a sink that keeps the last events, and a
//! service that sends them to whoever subscribes.
//!
//! A subscriber who is slower than the log is long gets a gap. What the
//! database may forget is what every subscriber has acknowledged, as far as the
//! log still holds it (who says nothing for `silence_max` is dropped), and what is
//! older than `linger`: a relay that was killed begins again there, so those who
//! come back to it find where they were.

use crate::event::{Event, Gap, GapReason, Progress, Scope, Sink};
use crate::generated::v1;
use crate::generated::v1::freshness_server::{Freshness, FreshnessServer};
use crate::log::{Cursor, Log, size};
use crate::position::Place;
use crate::wire::{event_out, place_in};
use bytes::Bytes;
use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

/// Bounds of a hub.
#[derive(Clone, Copy, Debug)]
pub struct HubOptions {
    /// Memory for the last events.
    pub log_bytes: usize,
    /// How long the database keeps changes after they were told, in case that
    /// the relay is killed.
    pub linger: Duration,
    /// Subscribers at a time.
    pub subscribers_max: usize,
    /// How long a subscriber may neither ping nor acknowledge. One that does
    /// not is dropped, so that it keeps the database from forgetting no longer;
    /// it may come back, and goes on where it was or gets a gap.
    pub silence_max: Duration,
}

impl Default for HubOptions {
    fn default() -> Self {
        HubOptions {
            log_bytes: 64 << 20,
            linger: Duration::from_secs(5),
            subscribers_max: 10_000,
            silence_max: Duration::from_secs(30),
        }
    }
}

/// Messages on their way to one subscriber.
const MESSAGES_MAX: usize = 4;

/// Bytes of events in one message, and their number.
const MESSAGE_BYTES: usize = 256 << 10;
const MESSAGE_EVENTS: usize = 4096;

/// Pings that wait for their echo.
const PINGS_MAX: usize = 64;

/// How exactly `linger` is kept.
const LINGER_STEP: Duration = Duration::from_millis(50);

/// What a hub has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HubStatus {
    /// Subscribers now.
    pub subscribers: usize,
    /// Subscribers that were slower than the log is long.
    pub overruns: u64,
    /// Subscribers that came back too late.
    pub forgotten: u64,
    /// Subscribers that were dropped because they said nothing.
    pub silent: u64,
    /// Bytes of the log.
    pub log_bytes: usize,
    /// Their bound.
    pub log_bytes_max: usize,
}

/// The last events, and who gets them. Cheap to clone.
#[derive(Clone)]
pub struct Hub {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    /// Moves whenever the log does.
    moved: watch::Sender<u64>,
    options: HubOptions,
}

struct State {
    log: Log,
    subscribers: HashMap<u64, Subscriber>,
    subscriber_next: u64,
    /// Progress of the last moments, and the one from `linger` ago.
    lingering: VecDeque<(Instant, u64)>,
    ripe: u64,
    overruns: u64,
    forgotten: u64,
    silent: u64,
}

#[derive(Default)]
struct Subscriber {
    acknowledged: u64,
    pings: VecDeque<(u64, Instant)>,
}

impl std::fmt::Debug for Hub {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Hub").field(&self.status()).finish()
    }
}

impl Hub {
    /// A hub that has been told nothing.
    pub fn new(options: HubOptions) -> Self {
        let state = State {
            log: Log::new(options.log_bytes),
            subscribers: HashMap::new(),
            subscriber_next: 0,
            lingering: VecDeque::new(),
            ripe: 0,
            overruns: 0,
            forgotten: 0,
            silent: 0,
        };
        Hub {
            shared: Arc::new(Shared {
                state: Mutex::new(state),
                moved: watch::Sender::new(0),
                options,
            }),
        }
    }

    /// What the relay tells.
    pub fn sink(&self) -> HubSink {
        HubSink { hub: self.clone() }
    }

    /// The service, to be added to a server.
    pub fn service(&self) -> FreshnessServer<impl Freshness> {
        FreshnessServer::new(Service { hub: self.clone() })
    }

    /// What was done so far.
    pub fn status(&self) -> HubStatus {
        let state = self.state();
        HubStatus {
            subscribers: state.subscribers.len(),
            overruns: state.overruns,
            forgotten: state.forgotten,
            silent: state.silent,
            log_bytes: state.log.bytes(),
            log_bytes_max: self.shared.options.log_bytes,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing foreign is called under the lock.
        let state = self.shared.state.lock();
        state.unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, event: Event) {
        let end = {
            let mut state = self.state();
            state.log.push(event);
            state.log.end()
        };
        self.shared.moved.send_replace(end);
    }
}

/// Puts what a relay tells into a [`Hub`].
pub struct HubSink {
    hub: Hub,
}

impl Sink for HubSink {
    fn begun(&mut self, place: &Place) {
        let end = {
            let mut state = self.hub.state();
            state.log.begun(place);
            if state.ripe == 0 || state.ripe > place.position {
                state.ripe = place.position;
                state.lingering.clear();
            }
            state.log.end()
        };
        self.hub.shared.moved.send_replace(end);
    }

    fn invalidate(&mut self, key: &Bytes, position: u64) {
        let key = key.clone();
        self.hub.push(Event::Invalidate { key, position });
    }

    fn refresh(&mut self, key: &Bytes, value: &Bytes, position: u64) {
        self.hub.push(Event::Refresh {
            key: key.clone(),
            value: value.clone(),
            position,
        });
    }

    fn gap(&mut self, gap: &Gap) {
        match gap.reason {
            // Before a stream: nobody goes on without being told.
            GapReason::SlotNew
            | GapReason::SlotLost
            | GapReason::HistoryChanged
            | GapReason::Disconnected => {
                self.hub.state().log.cut(gap.reason);
            }
            _ => self.hub.push(Event::Gap(gap.clone())),
        }
    }

    fn progress(&mut self, progress: Progress) {
        {
            let mut state = self.hub.state();
            let now = Instant::now();
            let last = state.lingering.back();
            if last.is_none_or(|(last, _)| now.duration_since(*last) >= LINGER_STEP) {
                state.lingering.push_back((now, progress.position));
            }
            let linger = self.hub.shared.options.linger;
            while let Some(&(told, position)) = state.lingering.front()
                && now.duration_since(told) >= linger
            {
                state.ripe = position;
                state.lingering.pop_front();
            }
        }
        self.hub.push(Event::Progress(progress));
    }

    fn taken(&self) -> u64 {
        let state = self.hub.state();
        let kept = state.log.start();
        let subscribers = state.subscribers.values();
        // What the log has forgotten is lost to a subscriber anyway.
        let taken = subscribers.map(|subscriber| subscriber.acknowledged.max(kept));
        taken.min().unwrap_or(u64::MAX).min(state.ripe)
    }
}

struct Service {
    hub: Hub,
}

#[tonic::async_trait]
impl Freshness for Service {
    type SubscribeStream = ReceiverStream<Result<v1::SubscribeResponse, Status>>;

    async fn subscribe(
        &self,
        request: Request<Streaming<v1::SubscribeRequest>>,
    ) -> Result<Response<Self::SubscribeStream>, Status> {
        let mut requests = request.into_inner();
        let patience = self.hub.shared.options.silence_max;
        let first = timeout(patience, requests.message()).await;
        let first =
            first.map_err(|_| Status::deadline_exceeded("the subscription is not begun"))??;
        let Some(start) = first.and_then(|first| first.start) else {
            return Err(Status::invalid_argument(
                "the first request of a subscription says where to start",
            ));
        };
        let place = start.place.map(place_in);
        let number = {
            let mut state = self.hub.state();
            if state.subscribers.len() >= self.hub.shared.options.subscribers_max {
                return Err(Status::resource_exhausted(
                    "the relay has as many subscribers as it may have: raise its limit",
                ));
            }
            state.subscriber_next += 1;
            let number = state.subscriber_next;
            let acknowledged = place.as_ref().map_or(u64::MAX, |place| place.position);
            let subscriber = Subscriber {
                acknowledged,
                ..Subscriber::default()
            };
            state.subscribers.insert(number, subscriber);
            number
        };
        let (sender, receiver) = mpsc::channel(MESSAGES_MAX);
        let membership = Membership {
            hub: self.hub.clone(),
            number,
        };
        tokio::spawn(async move {
            let told = sender.clone();
            let left = tokio::select! {
                left = listen(&membership, &mut requests) => left,
                Err(left) = send(&membership, place, sender) => left,
            };
            if let Left::Silent = left {
                membership.hub.state().silent += 1;
                tracing::warn!(
                    subscriber = membership.number,
                    "a subscriber said nothing for {patience:?}, and is dropped"
                );
                // If there is room: it may not read either.
                let silent = format!("you said nothing for {patience:?}: subscribe again");
                let _ = told.try_send(Err(Status::deadline_exceeded(silent)));
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}

/// A subscriber's entry; gone with the value.
struct Membership {
    hub: Hub,
    number: u64,
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.hub.state().subscribers.remove(&self.number);
    }
}

/// Takes acknowledgements and pings until the subscriber leaves, or says nothing
/// for too long.
async fn listen(membership: &Membership, requests: &mut Streaming<v1::SubscribeRequest>) -> Left {
    let patience = membership.hub.shared.options.silence_max;
    loop {
        let request = match timeout(patience, requests.message()).await {
            Ok(Ok(Some(request))) => request,
            Ok(_) => return Left::Gone,
            Err(_) => return Left::Silent,
        };
        let mut state = membership.hub.state();
        let Some(subscriber) = state.subscribers.get_mut(&membership.number) else {
            return Left::Gone;
        };
        if request.acknowledged > 0 {
            subscriber.acknowledged = request.acknowledged;
        }
        if request.ping > 0 {
            if subscriber.pings.len() >= PINGS_MAX {
                subscriber.pings.pop_front();
            }
            let ping = (request.ping, Instant::now());
            subscriber.pings.push_back(ping);
        }
    }
}

/// Why a subscriber is none any more.
enum Left {
    /// It has ended the subscription, or its connection has ended.
    Gone,
    /// It said nothing for too long.
    Silent,
}

/// Sends events for as long as somebody takes them.
async fn send(
    membership: &Membership,
    place: Option<Place>,
    sender: mpsc::Sender<Result<v1::SubscribeResponse, Status>>,
) -> Result<Infallible, Left> {
    let hub = &membership.hub;
    let mut moved = hub.shared.moved.subscribe();
    let mut cursor: Option<Cursor> = None;
    // Where the subscriber is, if it is anywhere.
    let mut at = place;
    loop {
        moved.mark_unchanged();
        let mut batch = Vec::new();
        {
            let mut state = hub.state();
            let lost = match &cursor {
                None => true,
                Some(cursor) => state.log.from(cursor.next).is_none(),
            };
            if lost {
                cursor = state.enter(at.as_ref(), cursor.is_some(), &mut batch);
            }
            if let Some(cursor) = &mut cursor {
                state.collect(membership.number, cursor, &mut batch);
                at = Some(cursor.place.clone());
            }
        }
        if !batch.is_empty() {
            let message = v1::SubscribeResponse { events: batch };
            sender.send(Ok(message)).await.map_err(|_| Left::Gone)?;
            continue;
        }
        tokio::select! {
            // The hub lives as long as the membership.
            _ = moved.changed() => {}
            () = sender.closed() => return Err(Left::Gone),
        }
    }
}

impl State {
    /// Where a subscriber goes on who is at a place, with the events that say
    /// so; none while the log has no such place.
    fn enter(
        &mut self,
        at: Option<&Place>,
        following: bool,
        batch: &mut Vec<v1::Event>,
    ) -> Option<Cursor> {
        let resumed = at.filter(|_| !following).and_then(|at| self.log.resume(at));
        let missed = resumed.is_none() && at.is_some();
        let cursor = resumed.or_else(|| self.log.newest())?;
        let mut tell = |event: Event| batch.push(event_out(&event, |_| 0));
        if let Some(at) = at.filter(|_| missed) {
            let reason = match self.log.reason() {
                _ if at.history != cursor.place.history => GapReason::HistoryChanged,
                GapReason::Overrun if !following => GapReason::Forgotten,
                reason => reason,
            };
            match following {
                // Otherwise it was as fast as anybody: the relay itself has missed something.
                true => self.overruns += u64::from(reason == GapReason::Overrun),
                false => self.forgotten += 1,
            }
            tell(Event::Gap(Gap {
                from: at.position,
                to: cursor.place.clone(),
                reason,
                tables: Vec::new(),
                scope: Scope::All,
            }));
        }
        tell(Event::Begun(cursor.place.clone()));
        Some(cursor)
    }

    /// Takes the next events of the log, a message full at the most.
    fn collect(&mut self, number: u64, cursor: &mut Cursor, batch: &mut Vec<v1::Event>) {
        let Some(events) = self.log.from(cursor.next) else {
            return;
        };
        let Some(subscriber) = self.subscribers.get_mut(&number) else {
            return;
        };
        let mut bytes = 0;
        for event in events {
            if bytes >= MESSAGE_BYTES || batch.len() >= MESSAGE_EVENTS {
                break;
            }
            bytes += size(event);
            batch.push(event_out(event, |as_of| subscriber.echo(as_of)));
            cursor.next += 1;
            if let Event::Progress(progress) = event {
                cursor.place.position = progress.position;
            }
        }
    }
}

impl Subscriber {
    /// The newest ping that came before a moment; 0 if there is none.
    fn echo(&mut self, as_of: Instant) -> u64 {
        let mut echo = 0;
        while let Some(&(ping, received)) = self.pings.front()
            && received <= as_of
        {
            echo = ping;
            self.pings.pop_front();
        }
        echo
    }
}
