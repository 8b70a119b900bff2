//! The relay against a real server: what it tells of every kind of change, and
//! what it does when something breaks.

use crate::support::{Fixture, Notes, template, until};
use std::time::Duration;
use trefoil_freshness::{Event, KeyMap, Relay, Slot};

#[tokio::test]
async fn every_kind_of_change() {
    let fixture = Fixture::shared().await;
    fixture.items().await;
    fixture
        .run(
            "CREATE TABLE event (id int PRIMARY KEY, owner int, body text);
             ALTER TABLE event REPLICA IDENTITY FULL;
             ALTER TABLE event ALTER body SET STORAGE EXTERNAL;
             CREATE TABLE other (id int PRIMARY KEY);
             ALTER PUBLICATION changes ADD TABLE event, other",
        )
        .await;
    let mut options = fixture.options();
    let body = |row: &trefoil_freshness::Row<'_>| Ok(row.get("body")?.cloned());
    options.map = KeyMap::new()
        .table("item", template("item/{id}").refreshing(body))
        .table("event", template("events-of/{owner}"));
    let notes = Notes::default();
    let relay = Relay::start(options, notes.clone()).await.expect("a relay");
    let mut told_before = 0;
    let mut expect = async |sql: &str, expected: &[&str]| {
        fixture.run(sql).await;
        notes.caught_up(&fixture).await;
        let told = notes.told();
        assert_eq!(told[told_before..], *expected, "{sql}");
        told_before = told.len();
    };
    expect("SELECT 1", &["!slot-new", "^"]).await;
    expect(
        "INSERT INTO item VALUES (1, 'a'), (2, NULL)",
        &["-item/2", "+item/1=a"],
    )
    .await;
    expect("UPDATE item SET body = 'b' WHERE id = 1", &["+item/1=b"]).await;
    expect(
        "UPDATE item SET id = 3 WHERE id = 1",
        &["-item/1", "+item/3=b"],
    )
    .await;
    expect("DELETE FROM item WHERE id = 3", &["-item/3"]).await;
    expect(
        "BEGIN; UPDATE item SET body = 'c' WHERE id = 2; UPDATE item SET body = 'd' WHERE id = 2; COMMIT",
        &["+item/2=d"],
    )
    .await;
    expect("BEGIN; UPDATE item SET body = 'e'; ROLLBACK", &[]).await;
    expect(
        "INSERT INTO event VALUES (1, 7, repeat('x', 9000))",
        &["-events-of/7"],
    )
    .await;
    expect(
        "UPDATE event SET owner = 8",
        &["-events-of/7", "-events-of/8"],
    )
    .await;
    expect("DELETE FROM event", &["-events-of/8"]).await;
    expect("INSERT INTO event VALUES (2, NULL, 'x')", &[]).await;
    expect("INSERT INTO other VALUES (1)", &[]).await;
    expect("TRUNCATE item, other", &["!truncated public.item"]).await;
    expect(
        "ALTER TABLE item ADD more int DEFAULT 5; INSERT INTO item VALUES (9, 'z')",
        &["!schema-changed public.item", "+item/9=z"],
    )
    .await;
    expect(
        "ALTER TABLE event REPLICA IDENTITY DEFAULT; UPDATE event SET owner = 5; DELETE FROM event",
        &["!key-unknown public.event"],
    )
    .await;
    relay.stop().await.expect("an orderly end");
}

#[tokio::test]
async fn positions_grow_and_progress_covers_them() {
    let fixture = Fixture::shared().await;
    fixture.items().await;
    let notes = Notes::default();
    let relay = Relay::start(fixture.options(), notes.clone())
        .await
        .expect("a relay");
    for id in 0..50 {
        fixture
            .run(&format!("INSERT INTO item VALUES ({id})"))
            .await;
    }
    notes.caught_up(&fixture).await;
    let (mut last, mut progress) = (0, 0);
    for event in notes.events() {
        match event {
            Event::Invalidate { position, .. } => {
                assert!(position > last && position > progress);
                last = position;
            }
            Event::Progress(told) => {
                assert!(told.position >= progress);
                progress = told.position;
            }
            Event::Begun(place) => progress = place.position,
            Event::Refresh { .. } | Event::Gap(_) => {}
        }
    }
    assert!(progress >= last && last > 0);
    until("heartbeats are measured", || !relay.delays().is_empty()).await;
    let delays = relay.delays();
    let of = |quantile| delays.value_at_quantile(quantile);
    println!(
        "from a heartbeat's beginning until it is told: p50 {} us, p99 {} us",
        of(0.5),
        of(0.99)
    );
    relay.stop().await.expect("an orderly end");
}

#[tokio::test]
async fn a_stopped_relay_goes_on_where_it_was() {
    let fixture = Fixture::shared().await;
    fixture.items().await;
    let notes = Notes::default();
    let relay = Relay::start(fixture.options(), notes.clone())
        .await
        .expect("a relay");
    fixture.run("INSERT INTO item VALUES (1)").await;
    notes.caught_up(&fixture).await;
    relay.stop().await.expect("an orderly end");
    fixture.run("INSERT INTO item VALUES (2)").await;
    let relay = Relay::start(fixture.options(), notes.clone())
        .await
        .expect("a relay");
    notes.caught_up(&fixture).await;
    let told = notes.told();
    assert!(
        !told[2..].iter().any(|told| told.starts_with('!')),
        "{told:?}"
    );
    assert_eq!(told.last().map(String::as_str), Some("-item/2"), "{told:?}");
    relay.stop().await.expect("an orderly end");
}

#[tokio::test]
async fn a_temporary_slot_begins_with_a_gap() {
    let fixture = Fixture::shared().await;
    fixture.items().await;
    let mut options = fixture.options();
    options.slot = Slot::Temporary;
    let notes = Notes::default();
    for _ in 0..2 {
        let relay = Relay::start(options.clone(), notes.clone())
            .await
            .expect("a relay");
        fixture
            .run("INSERT INTO item VALUES (1); DELETE FROM item")
            .await;
        notes.caught_up(&fixture).await;
        relay.stop().await.expect("an orderly end");
    }
    let round = ["!slot-new", "^", "-item/1", "-item/1"];
    assert_eq!(notes.told(), [round, round].concat());
}

#[tokio::test]
async fn the_database_restarts_and_crashes() {
    let fixture = Fixture::own(&[("wal_level", "logical")]).await;
    fixture.items().await;
    let notes = Notes::default();
    let relay = Relay::start(fixture.options(), notes.clone())
        .await
        .expect("a relay");
    fixture.run("INSERT INTO item VALUES (1)").await;
    notes.caught_up(&fixture).await;
    fixture.server.crash().expect("a crash");
    until("the loss is noticed", || !relay.status().connected).await;
    fixture.server.launch().expect("a start");
    fixture.run("INSERT INTO item VALUES (2)").await;
    notes.caught_up(&fixture).await;
    assert_eq!(notes.told(), ["!slot-new", "^", "-item/1", "^", "-item/2"]);
    assert!(relay.status().begun == 2 && relay.status().trouble.is_some());
    relay.stop().await.expect("an orderly end");
}

#[tokio::test]
async fn a_lost_slot_is_a_gap() {
    let fixture = Fixture::shared().await;
    fixture.items().await;
    let notes = Notes::default();
    let relay = Relay::start(fixture.options(), notes.clone())
        .await
        .expect("a relay");
    notes.caught_up(&fixture).await;
    let slot = &fixture.name;
    fixture
        .run(&format!(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '{slot}';
             DO $$ BEGIN LOOP
               BEGIN PERFORM pg_drop_replication_slot('{slot}'); EXIT;
               EXCEPTION WHEN object_in_use THEN
                 PERFORM pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '{slot}';
                 PERFORM pg_sleep(0.005);
               END;
             END LOOP; END $$"
        ))
        .await;
    until("the stream begins again", || {
        notes.told().contains(&"!slot-lost".into())
    })
    .await;
    fixture.run("INSERT INTO item VALUES (5)").await;
    notes.caught_up(&fixture).await;
    let told = notes.told();
    assert_eq!(
        told[told.len() - 3..],
        ["!slot-lost", "^", "-item/5"],
        "{told:?}"
    );
    relay.stop().await.expect("an orderly end");
}

#[tokio::test]
async fn what_is_acknowledged_is_what_the_sink_has_taken() {
    let fixture = Fixture::shared().await;
    fixture.items().await;
    let notes = Notes::default();
    let relay = Relay::start(fixture.options(), notes.clone())
        .await
        .expect("a relay");
    fixture.run("INSERT INTO item VALUES (1)").await;
    notes.caught_up(&fixture).await;
    let connection = fixture.connect().await;
    let query = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = $1";
    let begun = std::time::Instant::now();
    let told = notes.position();
    loop {
        let row = connection.client.query_one(query, &[&fixture.name]).await;
        let confirmed: String = row.expect("a slot").get(0);
        let confirmed = trefoil_freshness::parse_position(&confirmed).expect("a position");
        assert!(confirmed <= notes.position());
        if confirmed >= told {
            break;
        }
        assert!(
            begun.elapsed() < crate::support::PATIENCE,
            "nothing is acknowledged"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    relay.stop().await.expect("an orderly end");
}

/// An older state of the disk is put back: the same cluster and timeline, and
/// positions that were told already, of other changes.
#[tokio::test]
async fn a_database_that_went_back_is_another_history() {
    let fixture = Fixture::own(&[("wal_level", "logical")]).await;
    fixture.items().await;
    let notes = Notes::default();
    let relay = Relay::start(fixture.options(), notes.clone())
        .await
        .expect("a relay");
    fixture.run("INSERT INTO item VALUES (1)").await;
    notes.caught_up(&fixture).await;
    fixture.server.crash().expect("a crash");
    let address = fixture.server.address("postgres");
    let folder = address
        .split(' ')
        .find_map(|part| part.strip_prefix("host="));
    let folder = std::path::PathBuf::from(folder.expect("a folder"));
    let copied = std::process::Command::new("cp")
        .arg("-a")
        .args([folder.join("data"), folder.join("copy")])
        .status();
    assert!(copied.expect("cp").success());
    fixture.server.launch().expect("a start");
    fixture
        .run("INSERT INTO item SELECT i, repeat('x', 500) FROM generate_series(2, 2000) i")
        .await;
    notes.caught_up(&fixture).await;
    assert_eq!(relay.status().begun, 2);
    fixture.server.crash().expect("a crash");
    std::fs::rename(folder.join("data"), folder.join("former")).expect("a rename");
    std::fs::rename(folder.join("copy"), folder.join("data")).expect("a rename");
    let told_before = notes.told().len();
    fixture.server.launch().expect("a start");
    until("the stream begins again", || relay.status().begun == 3).await;
    // Below all that was told before.
    fixture.run("INSERT INTO item VALUES (2)").await;
    until("the change is told", || {
        notes.told().last().is_some_and(|last| last == "-item/2")
    })
    .await;
    let told = notes.told();
    // The slot may be a little earlier.
    assert_eq!(told[told_before..][..2], ["!history-changed", "^"]);
    let told_before = told.len();
    let begun = notes.events().into_iter().filter_map(|event| match event {
        Event::Begun(place) => Some(place.history),
        _ => None,
    });
    let begun: Vec<_> = begun.collect();
    assert!(begun[0] == begun[1] && begun[1] != begun[2], "{begun:?}");
    // An interruption is none any more.
    fixture.server.crash().expect("a crash");
    until("the loss is noticed", || !relay.status().connected).await;
    fixture.server.launch().expect("a start");
    fixture.run("INSERT INTO item VALUES (3)").await;
    until("the change is told", || {
        notes.told().last().is_some_and(|last| last == "-item/3")
    })
    .await;
    let told = notes.told();
    let gap = told[told_before..]
        .iter()
        .find(|told| told.starts_with('!'));
    assert_eq!(gap, None, "{told:?}");
    relay.stop().await.expect("an orderly end");
}
