//! The fallback: triggers, LISTEN and NOTIFY, also where the server has no
//! logical replication.

use crate::support::{Fixture, Notes, PATIENCE, template, until};
use std::time::Duration;
use trefoil_freshness::{
    Event, History, KeyMap, NotifyError, NotifyOptions, NotifyRelay, notify_sql,
};

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
    assert!(matches!(error, Err(NotifyError::NoTrigger { table, .. }) if table == "public.item"));
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
        let patience = Duration::from_secs(30);
        let read = cache.get_at_least(&key, position, patience, load).await;
        assert_eq!(*read.expect("a row"), written);
    }
    assert!(cache.counts().invalidated > 0 && cache.counts().sweeps == 1);
}

/// What nobody would be told of ends the listener.
#[tokio::test]
async fn triggers_that_are_missing_or_of_another_map() {
    let fixture = Fixture::shared().await;
    fixture.items().await;
    let of = |text: &str| KeyMap::new().table("item", template(text));
    let map = of("item/{id}");
    let start = async |map: &KeyMap| {
        let mut options = options(&fixture, map);
        options.check_every = Duration::from_millis(20);
        NotifyRelay::start(options, Notes::default()).await
    };
    let sql = notify_sql(&map, "trefoil").expect("statements");
    fixture.run(&sql).await;
    let error = start(&of("other/{id}")).await.expect_err("another map");
    assert!(matches!(error, NotifyError::OtherTrigger { .. }), "{error}");
    for (change, mended) in [
        (
            "ALTER TABLE item DISABLE TRIGGER trefoil_trefoil_row",
            "ALTER TABLE item ENABLE TRIGGER trefoil_trefoil_row",
        ),
        // Not in ordinary sessions.
        (
            "ALTER TABLE item ENABLE REPLICA TRIGGER trefoil_trefoil_all",
            "ALTER TABLE item ENABLE ALWAYS TRIGGER trefoil_trefoil_all",
        ),
        ("DROP TRIGGER trefoil_trefoil_all ON item", &sql),
        (
            "CREATE OR REPLACE TRIGGER trefoil_trefoil_row AFTER INSERT OR DELETE ON item \
             FOR EACH ROW EXECUTE FUNCTION trefoil_trefoil_item()",
            &sql,
        ),
        (
            "CREATE OR REPLACE TRIGGER trefoil_trefoil_row AFTER INSERT OR DELETE OR UPDATE OF id \
             ON item FOR EACH ROW EXECUTE FUNCTION trefoil_trefoil_item()",
            &sql,
        ),
        (
            "CREATE OR REPLACE TRIGGER trefoil_trefoil_row AFTER INSERT OR DELETE OR UPDATE \
             ON item FOR EACH ROW WHEN (pg_trigger_depth() = 0) \
             EXECUTE FUNCTION trefoil_trefoil_item()",
            &sql,
        ),
        ("ALTER FUNCTION trefoil_trefoil_item() RESET TimeZone", &sql),
        (
            "ALTER FUNCTION trefoil_trefoil_item() SECURITY DEFINER",
            &sql,
        ),
        ("CREATE TABLE part () INHERITS (item)", "DROP TABLE part"),
    ] {
        let mut relay = start(&map).await.expect(mended);
        fixture.run(change).await;
        let ended = tokio::time::timeout(PATIENCE, relay.ended()).await;
        let error = ended.expect("it ends").expect_err("it says why");
        assert!(
            matches!(
                error,
                NotifyError::NoTrigger { .. }
                    | NotifyError::OtherTrigger { .. }
                    | NotifyError::Parts { .. }
            ) && !error.passes(),
            "{error}"
        );
        let advice = error.to_string();
        assert!(
            advice.contains("--print-sql") || advice.contains("--publication"),
            "{error}"
        );
        fixture.run(mended).await;
    }
    // Two tables would share a function whose name is cut off.
    let error = notify_sql(&map, &"c".repeat(51)).expect_err("a long name");
    assert!(
        matches!(error, NotifyError::Channel { bytes: 64, .. }),
        "{error}"
    );
    assert!(notify_sql(&map, &"c".repeat(50)).is_ok());
    assert!(matches!(notify_sql(&map, ""), Err(NotifyError::NoChannel)));
}

fn histories(notes: &Notes) -> Vec<History> {
    let begun = |event: Event| match event {
        Event::Begun(place) => Some(place.history),
        _ => None,
    };
    notes.events().into_iter().filter_map(begun).collect()
}

/// Every role may notify, and sees which processes there are.
#[tokio::test]
async fn what_somebody_else_says_is_no_heartbeat() {
    let fixture = Fixture::shared().await;
    fixture.items().await;
    let map = KeyMap::new().table("item", template("item/{id}"));
    let sql = notify_sql(&map, "trefoil").expect("statements");
    fixture.run(&sql).await;
    let listener = Notes::default();
    let relay = NotifyRelay::start(options(&fixture, &map), listener.clone()).await;
    let relay = relay.expect("a relay");
    listener.caught_up(&fixture).await;
    // The same text as the relay's own, but for the position.
    let (overheard, mut connection) = tokio_postgres::connect(
        &fixture.server.address(&fixture.name),
        tokio_postgres::NoTls,
    )
    .await
    .expect("a connection");
    let (sender, mut heard) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(Ok(message)) = std::future::poll_fn(|cx| connection.poll_message(cx)).await {
            if let tokio_postgres::AsyncMessage::Notification(note) = message {
                let _ = sender.send(note.payload().to_owned());
            }
        }
    });
    overheard
        .batch_execute("LISTEN trefoil")
        .await
        .expect("it listens");
    let beat = heard.recv().await.expect("a heartbeat");
    let (mine, _) = beat.rsplit_once(':').expect("a nonce and a position");
    let forged = format!("NOTIFY trefoil, '{mine}:FFFFFFFF/FFFFFFF0'");
    fixture.run(&forged).await;
    // By the number of the process and of the session, as it was once.
    fixture
        .run("SELECT pg_notify('trefoil', 'h' || pid || '.1:FFFFFFFF/FFFFFFF0') FROM pg_stat_activity")
        .await;
    fixture.run("INSERT INTO item VALUES (1, 'a')").await;
    until("the change is told", || relay.status().notifications > 0).await;
    assert_eq!(relay.status().notifications, 1);
    assert!(relay.status().position < 1 << 63, "{:?}", relay.status());
    listener.caught_up(&fixture).await;
    assert!(relay.status().connected);
}

/// A change's position says something to the session only that has told it.
#[tokio::test]
async fn every_session_has_a_history_of_its_own() {
    let fixture = Fixture::own(&[]).await;
    fixture.items().await;
    let map = KeyMap::new().table("item", template("item/{id}"));
    let sql = notify_sql(&map, "trefoil").expect("statements");
    fixture.run(&sql).await;
    let (one, other) = (Notes::default(), Notes::default());
    let first = NotifyRelay::start(options(&fixture, &map), one.clone()).await;
    let first = first.expect("a relay");
    let second = NotifyRelay::start(options(&fixture, &map), other.clone()).await;
    let second = second.expect("another one");
    one.caught_up(&fixture).await;
    other.caught_up(&fixture).await;
    // Heartbeats of others are no changes.
    assert_eq!(first.status().notifications, 0);
    assert_eq!(second.status().notifications, 0);
    fixture
        .run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND query LIKE 'LISTEN%'")
        .await;
    until("it listens again", || first.status().begun > 1).await;
    let mut all = [histories(&one), histories(&other)].concat();
    let count = all.len();
    assert!(
        count >= 3 && all.iter().all(History::is_notified),
        "{all:?}"
    );
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all.dedup();
    assert_eq!(all.len(), count, "{all:?}");
}

/// Whoever writes, with whatever settings, the keys are the same.
#[tokio::test]
async fn keys_do_not_depend_on_the_writer_and_texts_break_out_of_nothing() {
    let fixture = Fixture::shared().await;
    fixture
        .run(
            "CREATE TABLE visit (at timestamptz PRIMARY KEY, took interval, raw bytea, num float8);
             CREATE SCHEMA own;
             CREATE FUNCTION own.pg_notify(text, text) RETURNS void LANGUAGE sql AS ''",
        )
        .await;
    let text = "$trefoil$'\\;/{at}/{took}/{raw}/{num}";
    let map = KeyMap::new().table("visit", template(text));
    let sql = notify_sql(&map, "visits").expect("statements");
    fixture.run(&sql).await;
    let notes = Notes::default();
    let mut options = options(&fixture, &map);
    options.channel = "visits".into();
    let relay = NotifyRelay::start(options, notes.clone()).await;
    let _relay = relay.expect("a relay");
    fixture
        .run(
            "INSERT INTO visit VALUES ('2026-02-01 12:00:00+00', '90 minutes', '\\x00ff', 0.1);
             SET DateStyle = 'german'; SET TimeZone = 'Asia/Tokyo'; SET IntervalStyle = 'iso_8601';
             SET bytea_output = 'escape'; SET extra_float_digits = -10;
             SET search_path = own, pg_catalog, public;
             UPDATE visit SET num = 1.0 / 3",
        )
        .await;
    notes.caught_up(&fixture).await;
    let key = |num: &str| format!("-$trefoil$'\\;/2026-02-01 12:00:00+00/01:30:00/\\x00ff/{num}");
    let (before, after) = (key("0.1"), key("0.3333333333333333"));
    assert_eq!(notes.told(), ["^", &before, &after]);
}
