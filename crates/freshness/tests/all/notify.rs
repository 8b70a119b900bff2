//! The fallback: triggers, LISTEN and NOTIFY, also where the server has no
//! logical replication.

use crate::support::{Fixture, Notes, template, until};
use std::time::Duration;
use trefoil_freshness::{KeyMap, NotifyError, NotifyOptions, NotifyRelay, notify_sql};

fn options(fixture: &Fixture, map: &KeyMap) -> NotifyOptions {
    let mut options = NotifyOptions::new(fixture.database(), map.clone());
    options.heartbeat = Duration::from_millis(10);
    options
}

#[tokio::test]
async fn changes_and_interruptions() {
    let fixture = Fixture::own(&[("wal_level", "replica")]).await;
    fixture
        .run("CREATE TABLE item (id bigint PRIMARY KEY, owner text, here bool)")
        .await;
    let map = KeyMap::new()
        .table("item", template("item/{id}"))
        .table("item", template("o'f/{owner}/{here}"));
    let error = NotifyRelay::start(options(&fixture, &map), Notes::default()).await;
    assert!(matches!(error, Err(NotifyError::NoTrigger(table)) if table == "public.item"));
    let sql = notify_sql(&map, "trefoil").expect("statements");
    fixture.run(&sql).await;
    // Again, as after a change of the map.
    fixture.run(&sql).await;

    let notes = Notes::default();
    let relay = NotifyRelay::start(options(&fixture, &map), notes.clone()).await;
    let relay = relay.expect("a relay");
    let mut told_before = 0;
    let mut expect = async |sql: &str, expected: &[&str]| {
        fixture.run(sql).await;
        notes.caught_up(&fixture).await;
        let told = notes.told();
        assert_eq!(told[told_before..], *expected, "{sql}");
        told_before = told.len();
    };
    expect("SELECT 1", &["^"]).await;
    expect(
        "INSERT INTO item VALUES (1, 'me', true)",
        &["-item/1", "-o'f/me/t"],
    )
    .await;
    expect(
        "UPDATE item SET owner = 'you'",
        &["-item/1", "-o'f/me/t", "-o'f/you/t"],
    )
    .await;
    expect("BEGIN; DELETE FROM item; ROLLBACK", &[]).await;
    expect("UPDATE item SET owner = NULL", &["-item/1", "-o'f/you/t"]).await;
    expect("DELETE FROM item", &["-item/1"]).await;
    expect("TRUNCATE item", &["!truncated public.item"]).await;
    expect(
        "INSERT INTO item VALUES (2, repeat('x', 7990), false)",
        &["-item/2", "!truncated public.item"],
    )
    .await;

    let begun = relay.status().begun;
    fixture
        .run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND query LIKE 'LISTEN%'")
        .await;
    until("it listens again", || relay.status().begun > begun).await;
    notes.caught_up(&fixture).await;
    let told = notes.told();
    assert_eq!(told[told.len() - 2..], ["!disconnected", "^"]);
}

#[tokio::test]
async fn a_cache_behind_it_is_fresh() {
    let fixture = Fixture::shared().await;
    fixture.items().await;
    fixture
        .run("INSERT INTO item SELECT i, '0' FROM generate_series(0, 9) i")
        .await;
    let map = KeyMap::new().table("item", template("item/{id}"));
    fixture
        .run(&notify_sql(&map, "trefoil").expect("statements"))
        .await;
    let cache = trefoil_freshness::FreshCache::<i64>::new(Default::default());
    let relay = NotifyRelay::start(options(&fixture, &map), cache.sink(|_, _| None)).await;
    let _relay = relay.expect("a relay");
    until("the cache is followed", || cache.staleness().is_some()).await;
    let connection = fixture.connect().await;
    let client = &connection.client;
    for written in 1..300_i64 {
        let id = written % 10;
        let key = bytes::Bytes::from(format!("item/{id}"));
        let load = async || {
            let query = "SELECT body::bigint FROM item WHERE id = $1";
            Ok::<i64, tokio_postgres::Error>(client.query_one(query, &[&id]).await?.get(0))
        };
        cache.get_or_load(&key, load).await.expect("a row");
        let update = format!("UPDATE item SET body = '{written}' WHERE id = {id}");
        client.batch_execute(&update).await.expect("an update");
        let position = trefoil_freshness::position_now(client)
            .await
            .expect("a position");
        let patience = Duration::from_secs(5);
        let read = cache.get_at_least(&key, position, patience, load).await;
        assert_eq!(*read.expect("a row"), written);
    }
    assert!(cache.counts().invalidated > 0 && cache.counts().sweeps == 1);
}
