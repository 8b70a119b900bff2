//! One relay and several subscribers: who is told what, who gets a gap, and
//! what the database may forget. No database here.

use crate::support::{Notes, until};
use bytes::Bytes;
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;
use trefoil_freshness::{
    Event, Gap, GapReason, History, Hub, HubOptions, HubSink, Place, Progress, Scope, Sink as _,
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
        let hub = Hub::new(options);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a socket");
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
