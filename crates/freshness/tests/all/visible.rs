//! A commit that is in the log but not yet visible: with synchronous
//! replication and no standby, for as long as one likes.

use crate::support::{Fixture, until};
use std::convert::Infallible;
use std::time::Duration;
use trefoil_freshness::{CacheOptions, FreshCache, Relay, place_now, position_now};

#[tokio::test]
async fn a_load_in_between_is_not_kept() {
    let fixture = Fixture::own(&[("wal_level", "logical")]).await;
    fixture.items().await;
    fixture.run("INSERT INTO item VALUES (1, 'old')").await;
    let cache = FreshCache::<String>::new(CacheOptions::default());
    let relay = Relay::start(fixture.options(), cache.sink(|_, _| None)).await;
    let relay = relay.expect("a relay");
    let connection = fixture.connect().await;
    let client = &connection.client;
    let key = bytes::Bytes::from_static(b"item/1");
    let load = async || {
        let row = client
            .query_one("SELECT body FROM item WHERE id = 1", &[])
            .await;
        Ok::<String, Infallible>(row.expect("a row").get(0))
    };
    let caught_up = async || {
        let position = position_now(client).await.expect("a position");
        let reached = tokio::time::timeout(crate::support::PATIENCE, cache.reached(position));
        reached.await.expect("the stream catches up");
    };
    caught_up().await;
    let read = async || {
        cache
            .get_or_load(&key, load)
            .await
            .expect("a row")
            .to_string()
    };
    assert_eq!((read().await.as_str(), cache.len()), ("old", 1));

    // From now on commits wait for a standby that does not exist.
    fixture
        .run("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
        .await;
    client
        .batch_execute("SELECT pg_reload_conf()")
        .await
        .expect("a reload");
    // Each server process learns of it by itself: it is in force for all once a
    // commit waits.
    let waits = async || {
        let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
        let row = client.query_one(waiting, &[]).await;
        row.expect("a count").get::<_, i64>(0) > 0
    };
    let mut probe = tokio::spawn(async {});
    while !waits().await {
        if probe.is_finished() {
            let other = fixture.connect().await;
            probe = tokio::spawn(async move {
                let insert = "INSERT INTO item SELECT max(id) + 1, 'other' FROM item";
                other.client.batch_execute(insert).await.expect("an insert");
            });
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let writer = fixture.connect().await;
    let update = tokio::spawn(async move {
        let update = "UPDATE item SET body = 'new' WHERE id = 1";
        writer
            .client
            .batch_execute(update)
            .await
            .expect("an update");
    });
    until("the change is told", || cache.is_empty()).await;
    // It is told, but not visible: what is read now must not be kept.
    for _ in 0..3 {
        assert_eq!((read().await.as_str(), cache.len()), ("old", 0));
    }
    assert_eq!(cache.counts().refused, 3);
    assert!(!update.is_finished());

    client
        .batch_execute("ALTER SYSTEM RESET synchronous_standby_names")
        .await
        .expect("a reset");
    client
        .batch_execute("SELECT pg_reload_conf()")
        .await
        .expect("a reload");
    update.await.expect("the update ends");
    caught_up().await;
    assert_eq!((read().await.as_str(), cache.len()), ("new", 1));
    relay.stop().await.expect("an orderly end");
}

#[tokio::test]
async fn reading_ones_own_writes() {
    let fixture = Fixture::shared().await;
    fixture.items().await;
    fixture.run("INSERT INTO item VALUES (1, '0')").await;
    let cache = FreshCache::<i64>::new(CacheOptions::default());
    let relay = Relay::start(fixture.options(), cache.sink(|_, _| None)).await;
    let relay = relay.expect("a relay");
    let connection = fixture.connect().await;
    let client = &connection.client;
    let key = bytes::Bytes::from_static(b"item/1");
    let load = async || {
        let row = client
            .query_one("SELECT body::bigint FROM item WHERE id = 1", &[])
            .await;
        Ok::<i64, Infallible>(row.expect("a row").get(0))
    };
    for written in 1..=200 {
        // Something is kept, most of the time.
        cache.get_or_load(&key, load).await.expect("a row");
        let update = format!("UPDATE item SET body = '{written}'");
        client.batch_execute(&update).await.expect("an update");
        let position = position_now(client).await.expect("a position");
        let patience = Duration::from_secs(30);
        let read = cache.get_at_least(&key, position, patience, load).await;
        assert_eq!(*read.expect("a row"), written);
    }
    assert!(cache.counts().invalidated > 0);
    // What writers ask the database for is of the history that the relay tells.
    let place = place_now(client).await.expect("a place");
    assert_eq!(cache.place().map(|at| at.history), Some(place.history));
    assert!(place.position >= cache.position());
    relay.stop().await.expect("an orderly end");
}
