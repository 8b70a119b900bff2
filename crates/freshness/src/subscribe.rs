//! The other end of a hub: tells a sink what a remote relay tells.
//!
//! Reconnects for ever, and goes on where the sink is. While there is no
//! connection nothing is told; what is kept then grows stale, which
//! [`FreshTable::staleness`](crate::FreshTable::staleness) shows.

use crate::event::{Event, Sink};
use crate::generated::v1;
use crate::generated::v1::freshness_client::FreshnessClient;
use crate::position::Place;
use crate::wire::{event_in, place_out};
use hdrhistogram::Histogram;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::Channel;
use trefoil_channel::{Security, failure_text};

/// Largest message that is accepted: a batch of events, whose last one may
/// carry a large row.
const MESSAGE_MAX: usize = 1 << 30;

/// Pings on their way at a time.
const PINGS_MAX: usize = 256;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const RETRY_MIN: Duration = Duration::from_millis(20);

/// How to follow a relay.
#[derive(Clone, Debug)]
pub struct SubscribeOptions {
    /// Its address: `host:port`, with or without `http://` before it.
    pub relay: String,
    /// What protects the connection.
    pub security: Security,
    /// With certificates: the corpus for which the relay's has to be, if any.
    pub corpus: Option<String>,
    /// How often to ask how old what is kept may be.
    pub ping: Duration,
    /// How long the relay may say nothing before the connection counts as
    /// dead. It tells progress with each of its heartbeats. Connecting and
    /// being let in take no longer either.
    pub silence_max: Duration,
    /// Longest wait before connecting again.
    pub retry_max: Duration,
}

impl SubscribeOptions {
    /// The usual settings.
    pub fn new(relay: &str) -> Self {
        SubscribeOptions {
            relay: relay.into(),
            security: Security::default(),
            corpus: None,
            ping: Duration::from_millis(100),
            silence_max: Duration::from_secs(10),
            retry_max: Duration::from_secs(2),
        }
    }
}

/// How a subscription is.
#[derive(Clone, Debug, Default)]
pub struct SubscriptionStatus {
    /// Whether it follows at the moment.
    pub connected: bool,
    /// Where the sink is.
    pub place: Option<Place>,
    /// Times that the stream began.
    pub begun: u64,
    /// Why the last connection ended, or the subscription.
    pub trouble: Option<String>,
}

/// What is said to the relay.
type Requests = mpsc::Sender<v1::SubscribeRequest>;

/// A subscription at work; ends with the value.
#[derive(Debug)]
pub struct Subscription {
    task: JoinHandle<()>,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    status: watch::Sender<SubscriptionStatus>,
    /// Microseconds from a ping until everything from before it was told.
    delays: Mutex<Histogram<u64>>,
}

/// What ended a connection.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error("no connection to the relay at {0}: {1}")]
    Connect(String, String),
    #[error("the relay ended the subscription: {}", failure_text(.0))]
    Status(#[from] tonic::Status),
    #[error("the relay ended the subscription")]
    Ended,
    #[error("the relay said nothing for {0:?}")]
    Silent(Duration),
    #[error(transparent)]
    Wire(#[from] crate::wire::WireError),
}

impl Subscription {
    /// Follows a relay from where the sink is; from what comes next, if it
    /// holds nothing. Connecting goes on in the background until it works.
    pub fn start<S: Sink + 'static>(
        options: SubscribeOptions,
        sink: S,
        place: Option<Place>,
    ) -> Self {
        let status = SubscriptionStatus {
            place: place.clone(),
            ..SubscriptionStatus::default()
        };
        let shared = Arc::new(Shared {
            status: watch::Sender::new(status),
            delays: Mutex::new(crate::relay::delays()),
        });
        let mut follower = Follower {
            options,
            sink,
            place,
            shared: Arc::clone(&shared),
            ping: 0,
        };
        let ending = Ending(Arc::clone(&shared));
        let task = tokio::spawn(async move {
            let _ending = ending;
            follower.run().await;
        });
        Subscription { task, shared }
    }

    /// How it is.
    pub fn status(&self) -> SubscriptionStatus {
        self.shared.status.borrow().clone()
    }

    /// How it is, and how it becomes.
    pub fn watch(&self) -> watch::Receiver<SubscriptionStatus> {
        self.shared.status.subscribe()
    }

    /// How long it took from a ping until everything that had been committed
    /// before it was told, in microseconds: how old what is kept has been.
    pub fn delays(&self) -> Histogram<u64> {
        let delays = self.shared.delays.lock();
        delays.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Tells that nothing is followed any more, whatever ended the task.
struct Ending(Arc<Shared>);

impl Drop for Ending {
    fn drop(&mut self) {
        let text = match std::thread::panicking() {
            true => "the subscription has ended for good: what it tells panicked",
            false => "the subscription has ended",
        };
        if std::thread::panicking() {
            tracing::error!(trouble = text, "not following the relay");
        }
        self.0.status.send_modify(|status| {
            status.connected = false;
            status.trouble = Some(text.to_owned());
        });
    }
}

struct Follower<S> {
    options: SubscribeOptions,
    sink: S,
    place: Option<Place>,
    shared: Arc<Shared>,
    ping: u64,
}

impl<S: Sink> Follower<S> {
    async fn run(&mut self) {
        let mut wait = RETRY_MIN;
        loop {
            let before = self.place.clone();
            let Err(trouble) = self.follow().await;
            if self.place != before {
                wait = RETRY_MIN;
            }
            let text = trouble.to_string();
            self.shared.status.send_modify(|status| {
                status.connected = false;
                if status.trouble.as_ref() != Some(&text) {
                    tracing::warn!(trouble = text, "not following the relay");
                }
                status.trouble = Some(text);
            });
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(self.options.retry_max);
        }
    }

    async fn follow(&mut self) -> Result<std::convert::Infallible, Trouble> {
        let patience = self.options.silence_max;
        // Somebody may take the connection, even answer its pings, and no more.
        let begun = timeout(patience, begin(&self.options, self.place.as_ref())).await;
        let (requests, mut events) = begun.unwrap_or(Err(Trouble::Silent(patience)))?;
        let mut pings: VecDeque<(u64, Instant)> = VecDeque::new();
        let mut ticks = tokio::time::interval(self.options.ping);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut heard = Instant::now();
        loop {
            tokio::select! {
                message = events.message() => {
                    let message = message?.ok_or(Trouble::Ended)?;
                    heard = Instant::now();
                    for event in message.events {
                        let event = event_in(event, |echo| answered(&mut pings, echo))?;
                        self.take(&event);
                    }
                    self.publish();
                }
                _ = ticks.tick() => {
                    if heard.elapsed() > self.options.silence_max {
                        return Err(Trouble::Silent(self.options.silence_max));
                    }
                    if let Ok(room) = requests.try_reserve() {
                        let mut ping = 0;
                        if pings.len() < PINGS_MAX {
                            self.ping += 1;
                            ping = self.ping;
                            pings.push_back((ping, Instant::now()));
                        }
                        // Also without a ping: the relay drops who says nothing.
                        room.send(v1::SubscribeRequest {
                            start: None,
                            acknowledged: self.sink.taken(),
                            ping,
                        });
                    }
                }
            }
        }
    }

    fn take(&mut self, event: &Event) {
        match event {
            Event::Begun(place) => {
                self.place = Some(place.clone());
                self.shared.status.send_modify(|status| {
                    status.connected = true;
                    status.begun += 1;
                });
            }
            Event::Progress(progress) => {
                if let Some(place) = &mut self.place {
                    place.position = progress.position;
                }
                if let Some(as_of) = progress.as_of {
                    let micros = u64::try_from(as_of.elapsed().as_micros()).unwrap_or(u64::MAX);
                    let delays = self.shared.delays.lock();
                    let mut delays = delays.unwrap_or_else(PoisonError::into_inner);
                    delays.saturating_record(micros);
                }
            }
            Event::Gap(gap) => {
                tracing::warn!(reason = %gap.reason, tables = ?gap.tables, "changes may be missing");
            }
            Event::Invalidate { .. } | Event::Refresh { .. } => {}
        }
        event.tell(&mut self.sink);
    }

    fn publish(&self) {
        self.shared.status.send_modify(|status| {
            status.place.clone_from(&self.place);
        });
    }
}

/// Connects, and begins at a place.
async fn begin(
    options: &SubscribeOptions,
    place: Option<&Place>,
) -> Result<(Requests, Streaming<v1::SubscribeResponse>), Trouble> {
    let client = connect(options).await;
    let mut client = client.map_err(|e| Trouble::Connect(options.relay.clone(), e))?;
    let (requests, receiver) = mpsc::channel(4);
    let start = v1::SubscribeRequest {
        start: Some(v1::Start {
            place: place.map(place_out),
        }),
        acknowledged: 0,
        ping: 0,
    };
    // There is room, and the receiver is right here.
    let _ = requests.try_send(start);
    let events = client.subscribe(ReceiverStream::new(receiver)).await?;
    Ok((requests, events.into_inner()))
}

async fn connect(options: &SubscribeOptions) -> Result<FreshnessClient<Channel>, String> {
    let relay = options.relay.trim_end_matches('/');
    let address = relay.strip_prefix("http://").unwrap_or(relay);
    let channel = options
        .security
        .connect(address, options.corpus.as_deref(), |endpoint| {
            endpoint.connect_timeout(CONNECT_TIMEOUT)
        })
        .await?;
    let client = FreshnessClient::new(channel);
    Ok(client.max_decoding_message_size(MESSAGE_MAX))
}

/// When the ping was sent that is answered.
fn answered(pings: &mut VecDeque<(u64, Instant)>, echo: u64) -> Option<Instant> {
    let mut sent = None;
    while let Some(&(ping, at)) = pings.front()
        && ping <= echo
    {
        sent = Some(at);
        pings.pop_front();
    }
    sent
}
