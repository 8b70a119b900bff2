//! A relay of a database that has no logical replication: triggers notify it. Every
//! interruption is a gap, and subscribers load anew what they kept.

use super::fleet::{PATIENCE, Running, http, trefoil};
use crate::support::PROGRAM;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use trefoil_coordination::LocalCoordinator;
use trefoil_freshness::throwaway::Throwaway;
use trefoil_freshness::{Connection, Database, SubscribeOptions, Subscription};
use trefoil_linklet::{Linklet, LoaderError, PlainMarshal};

const MAP: [&str; 4] = ["--notify", "items", "--map", "item=item/{id}"];

/// A database whose relay is nobody special in it.
struct Origin {
    server: Throwaway,
    owner: Connection,
}

impl Origin {
    async fn start() -> Self {
        let server = Throwaway::with_settings(&[("wal_level", "replica")]).unwrap();
        let owner = connect(&server.address("postgres")).await;
        let origin = Origin { server, owner };
        origin
            .run(
                "CREATE TABLE item (id bigint PRIMARY KEY, body text);
                 INSERT INTO item SELECT i, 'first' FROM generate_series(1, 9) i;
                 CREATE ROLE relay LOGIN PASSWORD 'p'",
            )
            .await;
        origin
    }

    async fn run(&self, sql: &str) {
        self.owner.client.batch_execute(sql).await.expect(sql);
    }

    fn options(&self, map: &[&str], more: &[&str]) -> Vec<String> {
        let address = self.server.address("postgres");
        let address = address.replace("user=postgres", "user=relay password=p");
        let own = ["relay", "--postgres", &address, "--heartbeat", "20ms"];
        let all = [&own[..], map, more].concat();
        all.into_iter().map(str::to_owned).collect()
    }

    /// What a relay says that does not start.
    fn refused(&self, map: &[&str]) -> String {
        let options = self.options(map, &["--listen", "127.0.0.1:0"]);
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let output = trefoil(&options);
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    fn relay(&self, listen: &str) -> Running {
        let more = ["--listen", listen, "--metrics", "127.0.0.1:0"];
        let options = self.options(&MAP, &more);
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        Running::start(PROGRAM, &options)
    }

    /// Ends the relay's connections, and lets none come back.
    async fn shut_out(&self) {
        self.run(
            "ALTER ROLE relay CONNECTION LIMIT 0;
             SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'relay'",
        )
        .await;
    }

    async fn let_in(&self) {
        self.run("ALTER ROLE relay CONNECTION LIMIT -1").await;
    }
}

async fn connect(address: &str) -> Connection {
    let database: Database = address.parse().unwrap();
    database.connect().await.unwrap()
}

/// A linklet that loads from the database.
async fn items(origin: &Origin) -> Linklet<String> {
    let rows = Arc::new(connect(&origin.server.address("postgres")).await);
    let load = move |key: Vec<u8>| {
        let rows = Arc::clone(&rows);
        async move {
            let id = key.strip_prefix(b"item/").unwrap_or_default();
            let id: i64 = String::from_utf8_lossy(id).parse().unwrap_or_default();
            let query = "SELECT body FROM item WHERE id = $1";
            let row = rows.client.query_opt(query, &[&id]).await;
            let row = row.map_err(LoaderError::from_error)?;
            Ok(row.map(|row| row.get::<_, String>(0).into()))
        }
    };
    let items = Linklet::builder("items", PlainMarshal)
        .loader(load)
        .listen(LocalCoordinator::new(), "127.0.0.1:0".parse().unwrap())
        .await
        .unwrap();
    items.settled().await;
    items
}

async fn read(items: &Linklet<String>, key: &str) -> String {
    let found = items.read_or_load(key.as_bytes(), String::clone).await;
    found.unwrap().expect("a row")
}

/// Reads until it finds what is to come.
async fn reads(items: &Linklet<String>, key: &str, expected: &str) {
    let begin = Instant::now();
    loop {
        let found = read(items, key).await;
        if found == expected {
            return;
        }
        assert!(begin.elapsed() < PATIENCE, "{found}, not {expected}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Waits until the relay answers like this when it is asked whether it is ready.
async fn ready(at: SocketAddr, expected: u16) -> String {
    let begin = Instant::now();
    loop {
        let (status, why) = tokio::task::spawn_blocking(move || http(at, "GET /readyz"))
            .await
            .unwrap();
        if status == expected {
            return why;
        }
        assert!(begin.elapsed() < PATIENCE, "{status} {why}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_are_told_and_every_interruption_is_a_gap() {
    let origin = Origin::start().await;
    let error = origin.refused(&MAP);
    assert!(
        error.contains("no triggers") && error.contains("trefoil relay --notify items --print-sql"),
        "{error}"
    );
    let printed = trefoil(&[&["relay", "--print-sql"][..], &MAP].concat());
    assert!(printed.status.success());
    let printed = String::from_utf8(printed.stdout).unwrap();
    // A word to psql alone: the server does not know it.
    let sql = printed.strip_prefix("\\set ON_ERROR_STOP on\n");
    origin.run(sql.expect("psql stops at an error")).await;
    let error = origin.refused(&["--notify", "items", "--map", "item=other/{id}"]);
    assert!(error.contains("made for another --map"), "{error}");

    let mut relay = origin.relay("127.0.0.1:0");
    let (listen, metrics) = (relay.at("listen").to_string(), relay.at("metrics"));
    let items = items(&origin).await;
    let _fresh = Subscription::start(SubscribeOptions::new(&listen), items.sink(), None);
    let begin = Instant::now();
    while items.staleness().is_none() {
        assert!(begin.elapsed() < PATIENCE, "it is not followed");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    for key in ["item/1", "item/2"] {
        assert_eq!(read(&items, key).await, "first");
    }
    let loads = items.stats().loads;
    assert_eq!(read(&items, "item/1").await, "first");
    assert_eq!(items.stats().loads, loads, "it is in memory");
    origin
        .run("UPDATE item SET body = 'second' WHERE id = 1")
        .await;
    reads(&items, "item/1", "second").await;

    // The connection ends, and the row is changed while there is none.
    origin.shut_out().await;
    let why = ready(metrics, 503).await;
    assert!(why.contains("does not follow the database"), "{why}");
    origin
        .run("UPDATE item SET body = 'third' WHERE id = 1")
        .await;
    assert_eq!(read(&items, "item/1").await, "second", "nobody tells");
    let loads = items.stats().loads;
    assert_eq!(read(&items, "item/2").await, "first");
    assert_eq!(items.stats().loads, loads, "it is in memory");
    origin.let_in().await;
    ready(metrics, 200).await;
    reads(&items, "item/1", "third").await;
    // What was not changed is loaded, too: nobody knows that it was not.
    let loads = items.stats().loads;
    let begin = Instant::now();
    while items.stats().loads == loads {
        assert_eq!(read(&items, "item/2").await, "first");
        assert!(begin.elapsed() < PATIENCE, "it stays in memory");
    }
    let (_, page) = tokio::task::spawn_blocking(move || http(metrics, "GET /metrics"))
        .await
        .unwrap();
    for line in [
        "trefoil_relay_connected{} 1",
        "trefoil_relay_streams_begun_total{} 2",
        "trefoil_relay_notifications_total{} 1",
        "trefoil_relay_gaps_total{} 0",
        // It was as fast as the relay.
        "trefoil_relay_subscribers_late_total{why=\"overrun\"} 0",
    ] {
        assert!(page.contains(line), "{line} is not in {page}");
    }

    // The relay itself is away meanwhile.
    relay.kill();
    origin
        .run("UPDATE item SET body = 'fourth' WHERE id = 1")
        .await;
    let mut relay = origin.relay(&listen);
    reads(&items, "item/1", "fourth").await;

    // Emptied tables are told of, too.
    origin.run("TRUNCATE item").await;
    let begin = Instant::now();
    while items
        .read_or_load(b"item/1", |_| ())
        .await
        .unwrap()
        .is_some()
    {
        assert!(begin.elapsed() < PATIENCE, "it is still there");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // Without its triggers changes would go missing: it ends.
    origin
        .run("ALTER TABLE item DISABLE TRIGGER trefoil_items_row")
        .await;
    let ended_well = tokio::task::spawn_blocking(move || relay.ended_well());
    assert!(!ended_well.await.unwrap());
    let error = origin.refused(&MAP);
    assert!(error.contains("no triggers"), "{error}");
}
