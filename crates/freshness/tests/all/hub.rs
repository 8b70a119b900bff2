//! One relay and several subscribers: who is told what, who gets a gap, and
//! what the database may forget. No database here.

use crate::support::{Notes, until};
use bytes::Bytes;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use trefoil_freshness::{
    Event, Gap, GapReason, History, Hub, HubOptions, HubSink, Place, Progress, Scope, Sink,
    SubscribeOptions, Subscription,
};

/// A hub behind a real socket, and the relay's side of it.
struct Served {
    hub: Hub,
    sink: HubSink,
    relay: String,
    server: JoinHandle<()>,
    position: u64,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.server.abort();
    }
}

fn place(history: &str, position: u64) -> Place {
    Place {
        history: History(history.into()),
        position,
    }
}

impl Served {
    async fn start(options: HubOptions) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a socket");
        Self::start_at(listener, options)
    }

    fn start_at(listener: TcpListener, options: HubOptions) -> Self {
        let hub = Hub::new(options);
        let address = listener.local_addr().expect("an address");
        let service = hub.service();
        let server = tokio::spawn(async move {
            let incoming = tonic::transport::server::TcpIncoming::from(listener);
            let server = tonic::transport::Server::builder().add_service(service);
            server
                .serve_with_incoming(incoming)
                .await
                .expect("a server");
        });
        let mut sink = hub.sink();
        sink.begun(&place("h", 100));
        Served {
            sink,
            hub,
            relay: format!("http://{address}"),
            server,
            position: 100,
        }
    }

    fn subscribe(&self, at: Option<Place>) -> (Notes, Subscription) {
        let notes = Notes::default();
        let mut options = SubscribeOptions::new(&self.relay);
        options.ping = Duration::from_millis(5);
        let subscription = Subscription::start(options, notes.clone(), at);
        (notes, subscription)
    }

    fn change(&mut self, key: &str) {
        self.position += 1;
        let key = Bytes::copy_from_slice(key.as_bytes());
        self.sink.invalidate(&key, self.position);
        self.progress();
    }

    fn progress(&mut self) {
        self.sink.progress(Progress {
            position: self.position,
            as_of: Some(Instant::now()),
        });
    }

    async fn told(&self, notes: &Notes) {
        until("everything is told", || notes.position() >= self.position).await;
    }
}

fn options() -> HubOptions {
    HubOptions {
        linger: Duration::from_millis(60),
        ..HubOptions::default()
    }
}

#[tokio::test]
async fn all_are_told_everything_in_order() {
    let mut served = Served::start(options()).await;
    let early = served.subscribe(None);
    until("one begins", || early.1.status().connected).await;
    for number in 0..500 {
        served.change(&format!("k{number}"));
    }
    served
        .sink
        .refresh(&"r".into(), &"value".into(), served.position + 1);
    served.sink.gap(&Gap {
        from: 3,
        to: place("h", served.position + 1),
        reason: GapReason::Truncated,
        tables: vec!["t".into()],
        scope: Scope::Prefixes(vec![Bytes::from_static(b"k")]),
    });
    served.change("last");
    served.told(&early.0).await;
    let told = early.0.told();
    assert_eq!(told.len(), 504, "{told:?}");
    assert_eq!((told[0].as_str(), told[1].as_str()), ("^", "-k0"));
    assert_eq!(told[500..], ["-k499", "+r=value", "!truncated t", "-last"]);

    // One that was there before goes on; a new one begins now.
    let back = served.subscribe(Some(place("h", 599)));
    let new = served.subscribe(None);
    until("both begin", || {
        back.1.status().connected && new.1.status().connected
    })
    .await;
    served.change("more");
    served.told(&back.0).await;
    served.told(&new.0).await;
    let expected = ["^", "-k499", "+r=value", "!truncated t", "-last", "-more"];
    assert_eq!(back.0.told(), expected);
    assert_eq!(new.0.told(), ["^", "-more"]);
    assert_eq!(served.hub.status().subscribers, 3);
    drop(new);
    until("one has left", || served.hub.status().subscribers == 2).await;
}

#[tokio::test]
async fn who_comes_back_too_late_or_from_elsewhere_gets_a_gap() {
    let mut served = Served::start(HubOptions {
        log_bytes: 2000,
        ..options()
    })
    .await;
    for number in 0..100 {
        served.change(&format!("k{number}"));
    }
    let late = served.subscribe(Some(place("h", 120)));
    let other = served.subscribe(Some(place("other", 200)));
    let fine = served.subscribe(Some(place("h", 199)));
    for (notes, _) in [&late, &other, &fine] {
        until("they begin", || !notes.told().is_empty()).await;
    }
    served.change("more");
    for (notes, _) in [&late, &other, &fine] {
        served.told(notes).await;
    }
    assert_eq!(late.0.told(), ["!forgotten", "^", "-more"]);
    assert_eq!(other.0.told(), ["!history-changed", "^", "-more"]);
    assert_eq!(fine.0.told(), ["^", "-k99", "-more"]);
    let Some(Event::Gap(gap)) = late.0.events().into_iter().next() else {
        panic!("no gap: {:?}", late.0.events());
    };
    assert_eq!(
        (gap.from, gap.to, gap.scope),
        (120, place("h", 200), Scope::All)
    );
    assert_eq!(served.hub.status().forgotten, 2);
}

#[tokio::test]
async fn who_is_too_slow_gets_a_gap_and_memory_stays_bounded() {
    let log_bytes = 1 << 20;
    let mut served = Served::start(HubOptions {
        log_bytes,
        ..options()
    })
    .await;
    let slow = served.subscribe(None);
    until("it begins", || slow.1.status().connected).await;
    // This thread serves the subscriber, too: it hears nothing of all this.
    let value = Bytes::from(vec![7; 64 << 10]);
    for _ in 0..1000 {
        served.position += 1;
        served.sink.refresh(&"r".into(), &value, served.position);
        served.progress();
        assert!(served.hub.status().log_bytes <= log_bytes);
    }
    until("it is told of the gap", || slow.1.status().begun > 1).await;
    served.change("last");
    served.told(&slow.0).await;
    let told = slow.0.told();
    assert_eq!(told.last().map(String::as_str), Some("-last"));
    assert!(told.contains(&"!overrun".into()), "{} events", told.len());
    assert_eq!(served.hub.status().overruns, 1);
}

#[tokio::test]
async fn a_new_slot_is_a_gap_for_all() {
    let mut served = Served::start(options()).await;
    let (notes, subscription) = served.subscribe(None);
    until("it begins", || subscription.status().connected).await;
    served.change("before");
    served.told(&notes).await;
    let to = place("h", 1000);
    served.sink.gap(&Gap {
        from: served.position,
        to: to.clone(),
        reason: GapReason::SlotLost,
        tables: Vec::new(),
        scope: Scope::All,
    });
    served.sink.begun(&to);
    served.position = 1000;
    until("it is told of the gap", || subscription.status().begun > 1).await;
    served.change("after");
    served.told(&notes).await;
    assert_eq!(notes.told(), ["^", "-before", "!slot-lost", "^", "-after"]);
}

#[tokio::test]
async fn the_database_forgets_what_all_have_taken_and_some_time_later() {
    let mut served = Served::start(options()).await;
    let begun = Instant::now();
    served.change("a");
    assert_eq!(served.sink.taken(), 100, "it lingers");
    let (notes, subscription) = served.subscribe(Some(place("h", 100)));
    until("it begins", || subscription.status().connected).await;
    served.told(&notes).await;
    while served.sink.taken() < 101 {
        assert!(
            begun.elapsed() < crate::support::PATIENCE,
            "it lingers for ever"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
        served.progress();
    }
    assert!(
        begun.elapsed() >= Duration::from_millis(60),
        "{:?}",
        begun.elapsed()
    );
    // Pings come back with the progress after them: how soon depends on when this
    // thread, which serves both sides, gets to them.
    let timed = |event: &Event| matches!(event, Event::Progress(Progress { as_of: Some(_), .. }));
    while subscription.delays().is_empty() || !notes.events().iter().any(timed) {
        assert!(
            begun.elapsed() < crate::support::PATIENCE,
            "no ping comes back"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
        served.progress();
    }
}

/// A relay that takes connections and says nothing, and then works.
#[tokio::test]
async fn a_relay_that_says_nothing_is_tried_again() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a socket");
    let address = listener.local_addr().expect("an address");
    let mut options = SubscribeOptions::new(&format!("http://{address}"));
    options.silence_max = Duration::from_millis(200);
    options.retry_max = Duration::from_millis(50);
    let notes = Notes::default();
    let subscription = Subscription::start(options, notes.clone(), None);
    let (held, _) = listener.accept().await.expect("a connection");
    let silent = || {
        let trouble = subscription.status().trouble;
        trouble.is_some_and(|trouble| trouble.contains("said nothing for 200ms"))
    };
    until("the silence is noticed", silent).await;
    let mut served = Served::start_at(listener, self::options());
    // It comes back, while the first connection is still held.
    until("it begins", || {
        served.progress();
        subscription.status().connected
    })
    .await;
    drop(held);
}

/// Panics with each change, or holds its thread until it is let go.
struct Bad {
    notes: Notes,
    hold: Option<std::sync::mpsc::Receiver<()>>,
}

impl Sink for Bad {
    fn begun(&mut self, place: &Place) {
        self.notes.begun(place);
    }

    fn invalidate(&mut self, key: &Bytes, position: u64) {
        let hold = self.hold.as_ref().expect("told to panic");
        // Ends when the other end is gone.
        let _ = hold.recv();
        self.notes.invalidate(key, position);
    }

    fn refresh(&mut self, key: &Bytes, value: &Bytes, position: u64) {
        self.notes.refresh(key, value, position);
    }

    fn gap(&mut self, gap: &Gap) {
        self.notes.gap(gap);
    }

    fn progress(&mut self, progress: Progress) {
        self.notes.progress(progress);
    }

    fn taken(&self) -> u64 {
        self.notes.taken()
    }
}

#[tokio::test]
async fn a_subscription_whose_sink_panics_says_so() {
    let mut served = Served::start(options()).await;
    let sink = Bad {
        notes: Notes::default(),
        hold: None,
    };
    let subscription = Subscription::start(SubscribeOptions::new(&served.relay), sink, None);
    until("it begins", || subscription.status().connected).await;
    served.change("k");
    until("the end is told", || !subscription.status().connected).await;
    let trouble = subscription.status().trouble.expect("trouble");
    assert!(trouble.contains("panicked"), "{trouble}");
}

/// A process that stands still neither reads nor acknowledges. The database may
/// forget all the same, and it goes on where it was.
#[tokio::test]
async fn who_says_nothing_is_dropped_and_comes_back() {
    let mut served = Served::start(HubOptions {
        linger: Duration::ZERO,
        silence_max: Duration::from_millis(300),
        ..options()
    })
    .await;
    let (let_go, hold) = std::sync::mpsc::channel();
    let notes = Notes::default();
    let sink = Bad {
        notes: notes.clone(),
        hold: Some(hold),
    };
    let mut subscribing = SubscribeOptions::new(&served.relay);
    subscribing.ping = Duration::from_millis(5);
    let (status, statuses) = std::sync::mpsc::channel();
    // A thread of its own: all of it stands still.
    let other = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_all().build().expect("a runtime");
        runtime.block_on(async move {
            let subscription = Subscription::start(subscribing, sink, Some(place("h", 100)));
            status.send(subscription.watch()).expect("it is awaited");
            // Until this process has seen enough.
            let mut watch = subscription.watch();
            let back = watch.wait_for(|status| {
                status.begun > 1 && status.place.as_ref().is_some_and(|p| p.position >= 102)
            });
            let back = tokio::time::timeout(crate::support::PATIENCE, back).await;
            back.expect("it comes back").expect("it goes on");
        });
    });
    let watch = statuses.recv().expect("a subscription");
    until("it begins", || watch.borrow().connected).await;
    served.change("a");
    let also = served.subscribe(Some(place("h", 100)));
    served.told(&also.0).await;
    served.change("b");
    served.told(&also.0).await;
    let begun = Instant::now();
    while served.sink.taken() < served.position {
        assert!(begun.elapsed() < crate::support::PATIENCE, "it holds on");
        tokio::time::sleep(Duration::from_millis(5)).await;
        served.progress();
    }
    let status = served.hub.status();
    assert_eq!((status.silent, status.subscribers), (1, 1), "{status:?}");
    drop(let_go);
    let ended = || {
        served.progress();
        other.is_finished()
    };
    until("it goes on", ended).await;
    other.join().expect("it ends well");
    let told = notes.told();
    assert!(told.iter().all(|told| !told.starts_with('!')), "{told:?}");
    // Before it stood still, or afterwards.
    for change in ["-a", "-b"] {
        assert!(told.iter().any(|told| told == change), "{told:?}");
    }
    assert_eq!(served.hub.status().forgotten, 0);
}
