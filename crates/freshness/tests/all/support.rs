//! What the tests share: a server, tables, a sink that writes down what it is
//! told.

use bytes::Bytes;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};
use trefoil_freshness::throwaway::Throwaway;
use trefoil_freshness::{
    Connection, Database, Event, Gap, Place, Progress, RelayOptions, Sink, Slot, TableMap,
};

/// How long something may take that is going to happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A database of its own, in a server that tests of one process share.
pub(crate) struct Fixture {
    pub(crate) server: Arc<Throwaway>,
    pub(crate) name: String,
}

static SERVER: Mutex<Weak<Throwaway>> = Mutex::new(Weak::new());
static DATABASES: AtomicU32 = AtomicU32::new(0);

impl Fixture {
    /// A database in the shared server.
    pub(crate) async fn shared() -> Self {
        let server = {
            let mut shared = SERVER.lock().expect("nobody panics here");
            shared.upgrade().unwrap_or_else(|| {
                let server = Arc::new(Throwaway::start().expect("a server"));
                *shared = Arc::downgrade(&server);
                server
            })
        };
        Self::inside(server).await
    }

    /// A database in a server of its own, with these settings.
    pub(crate) async fn own(settings: &[(&str, &str)]) -> Self {
        let server = Throwaway::with_settings(settings).expect("a server");
        Self::inside(Arc::new(server)).await
    }

    async fn inside(server: Arc<Throwaway>) -> Self {
        let number = DATABASES.fetch_add(1, Ordering::Relaxed);
        let name = format!("test{number}");
        let postgres: Database = server.address("postgres").parse().expect("an address");
        let connection = postgres.connect().await.expect("a connection");
        let create = format!("CREATE DATABASE {name}");
        connection
            .client
            .batch_execute(&create)
            .await
            .expect("a database");
        Fixture { server, name }
    }

    pub(crate) fn database(&self) -> Database {
        self.server.address(&self.name).parse().expect("an address")
    }

    pub(crate) async fn connect(&self) -> Connection {
        self.database().connect().await.expect("a connection")
    }

    pub(crate) async fn run(&self, sql: &str) {
        self.connect()
            .await
            .client
            .batch_execute(sql)
            .await
            .expect(sql);
    }

    /// A table `item (id, body)` in a publication `changes`.
    pub(crate) async fn items(&self) {
        self.run(
            "CREATE TABLE item (id bigint PRIMARY KEY, body text);
             CREATE PUBLICATION changes FOR TABLE item",
        )
        .await;
    }

    /// Follows `item`, by a slot named like the database.
    pub(crate) fn options(&self) -> RelayOptions {
        let slot = Slot::Persistent(self.name.clone());
        let map = trefoil_freshness::KeyMap::new().table("item", template("item/{id}"));
        let mut options = RelayOptions::new(self.database(), "changes", slot, map);
        options.heartbeat = Duration::from_millis(20);
        options.retry_max = Duration::from_millis(200);
        options
    }
}

pub(crate) fn template(text: &str) -> TableMap {
    TableMap::template(text).expect(text)
}

/// Writes down what it is told.
#[derive(Clone, Default)]
pub(crate) struct Notes {
    noted: Arc<Mutex<Noted>>,
}

#[derive(Default)]
struct Noted {
    events: Vec<Event>,
    position: u64,
}

impl Notes {
    fn note(&self, event: Event) {
        self.noted
            .lock()
            .expect("nobody panics here")
            .events
            .push(event);
    }

    pub(crate) fn events(&self) -> Vec<Event> {
        self.noted
            .lock()
            .expect("nobody panics here")
            .events
            .clone()
    }

    pub(crate) fn position(&self) -> u64 {
        self.noted.lock().expect("nobody panics here").position
    }

    /// What was told but for progress, in short: `-key` an invalidation,
    /// `+key=value` a refresh, `!reason tables` a gap, `^` a beginning.
    pub(crate) fn told(&self) -> Vec<String> {
        let text = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
        let short = |event: Event| match event {
            Event::Begun(_) => Some("^".into()),
            Event::Invalidate { key, .. } => Some(format!("-{}", text(&key))),
            Event::Refresh { key, value, .. } => Some(format!("+{}={}", text(&key), text(&value))),
            Event::Gap(gap) => Some(
                format!("!{} {}", gap.reason, gap.tables.join(","))
                    .trim()
                    .into(),
            ),
            Event::Progress(_) => None,
        };
        self.events().into_iter().filter_map(short).collect()
    }

    /// Waits until everything has been told that is committed by now.
    pub(crate) async fn caught_up(&self, fixture: &Fixture) {
        let connection = fixture.connect().await;
        let position = trefoil_freshness::position_now(&connection.client).await;
        let position = position.expect("a position");
        until("the stream catches up", || self.position() >= position).await;
    }
}

/// Waits for something that is going to happen.
pub(crate) async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(
            begun.elapsed() < PATIENCE,
            "waited {PATIENCE:?} until {what}"
        );
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

impl Sink for Notes {
    fn begun(&mut self, place: &Place) {
        self.note(Event::Begun(place.clone()));
    }

    fn invalidate(&mut self, key: &Bytes, position: u64) {
        let key = key.clone();
        self.note(Event::Invalidate { key, position });
    }

    fn refresh(&mut self, key: &Bytes, value: &Bytes, position: u64) {
        let (key, value) = (key.clone(), value.clone());
        self.note(Event::Refresh {
            key,
            value,
            position,
        });
    }

    fn gap(&mut self, gap: &Gap) {
        self.note(Event::Gap(gap.clone()));
    }

    fn progress(&mut self, progress: Progress) {
        self.noted.lock().expect("nobody panics here").position = progress.position;
        self.note(Event::Progress(progress));
    }

    fn taken(&self) -> u64 {
        self.position()
    }
}
