//! Databases that are not set up as they have to be: errors that say what to
//! do, before anything goes missing silently.

use crate::support::{Fixture, Notes, PATIENCE, template};
use std::time::Duration;
use trefoil_freshness::{Database, DatabaseError, KeyMap, Relay, RelayOptions, Slot};

async fn refused(options: RelayOptions) -> DatabaseError {
    let relay = Relay::start(options, Notes::default()).await;
    relay.expect_err("a relay that cannot start")
}

#[tokio::test]
async fn without_logical_replication() {
    let fixture = Fixture::own(&[("wal_level", "replica")]).await;
    fixture.items().await;
    let error = refused(fixture.options()).await;
    assert!(matches!(&error, DatabaseError::NotLogical { found, .. } if found == "replica"));
    assert!(
        error
            .to_string()
            .contains("ALTER SYSTEM SET wal_level = 'logical'"),
        "{error}"
    );
    assert!(!error.passes());
}

#[tokio::test]
async fn publications() {
    let fixture = Fixture::shared().await;
    fixture.items().await;
    fixture
        .run(
            "CREATE TABLE other (id int PRIMARY KEY, mail text);
             CREATE PUBLICATION partly FOR TABLE item WITH (publish = 'insert, update');
             CREATE PUBLICATION \"Two\" FOR TABLE item, other",
        )
        .await;
    let with = |publication: &str, map: KeyMap| {
        let mut options = fixture.options();
        options.publication = publication.into();
        options.map = map;
        options
    };
    let map = |table: &str, text: &str| KeyMap::new().table(table, template(text));
    let cases = [
        (
            with("none", map("item", "{id}")),
            "CREATE PUBLICATION none FOR TABLE public.item",
        ),
        (
            with("partly", map("item", "{id}")),
            "ALTER PUBLICATION partly SET (publish =",
        ),
        (
            with("changes", map("other", "{id}")),
            "ALTER PUBLICATION changes ADD TABLE public.other",
        ),
        (
            with("Two", map("other", "{nothing}")),
            "no published column nothing",
        ),
        (
            with("Two", map("other", "{mail}")),
            "ALTER TABLE public.other REPLICA IDENTITY FULL",
        ),
    ];
    for (options, expected) in cases {
        let error = refused(options).await;
        assert!(error.to_string().contains(expected), "{error}");
        assert!(!error.passes(), "{error}");
    }
    fixture.run("ALTER TABLE other REPLICA IDENTITY FULL").await;
    let notes = Notes::default();
    let relay = Relay::start(with("Two", map("other", "{mail}")), notes.clone()).await;
    let relay = relay.expect("a relay");
    fixture
        .run("INSERT INTO other VALUES (1, 'a'); UPDATE other SET mail = 'b'")
        .await;
    notes.caught_up(&fixture).await;
    assert_eq!(notes.told(), ["!slot-new", "^", "-a", "-a", "-b"]);
    relay.stop().await.expect("an orderly end");
}

/// What is taken out of the publication while the relay follows it would go
/// missing silently; and what did is a gap for the next relay.
#[tokio::test]
async fn publications_that_change_while_they_are_followed() {
    let fixture = Fixture::shared().await;
    fixture.items().await;
    let slot = format!("changing_{}", fixture.name);
    let options = || {
        let mut options = fixture.options();
        options.slot = Slot::Persistent(slot.clone());
        options.check_every = Duration::from_millis(50);
        options
    };
    let followed = async |change: &str, expected: &str| {
        let notes = Notes::default();
        let mut relay = Relay::start(options(), notes.clone())
            .await
            .expect("a relay");
        notes.caught_up(&fixture).await;
        assert_eq!(notes.told()[0], "!slot-new");
        fixture.run(change).await;
        let error = tokio::time::timeout(PATIENCE, relay.ended()).await;
        let error = error.expect("it ends").expect_err("it says why");
        assert!(error.to_string().contains(expected), "{error}");
    };
    followed(
        "ALTER PUBLICATION changes DROP TABLE item",
        "ALTER PUBLICATION changes ADD TABLE public.item",
    )
    .await;
    fixture
        .run("ALTER PUBLICATION changes ADD TABLE item")
        .await;
    followed(
        "ALTER PUBLICATION changes SET TABLE item WHERE (id > 5)",
        "publishes only some rows of public.item",
    )
    .await;
    let error = refused(options()).await;
    assert!(
        matches!(error, DatabaseError::TableFiltered { .. }),
        "{error}"
    );
}

#[tokio::test]
async fn slots() {
    let fixture = Fixture::own(&[("wal_level", "logical"), ("max_replication_slots", "2")]).await;
    fixture.items().await;
    let named = |slot: &str| {
        let mut options = fixture.options();
        options.slot = Slot::Persistent(slot.into());
        options
    };
    for bad in ["", "Large", "a-b", "a'b", &"x".repeat(64)] {
        let error = refused(named(bad)).await;
        assert!(matches!(error, DatabaseError::SlotName { .. }), "{error}");
    }
    fixture
        .run("SELECT pg_create_physical_replication_slot('physical')")
        .await;
    let error = refused(named("physical")).await;
    assert!(
        matches!(error, DatabaseError::SlotForeign { .. }),
        "{error}"
    );
    let relay = Relay::start(named("one"), Notes::default())
        .await
        .expect("a relay");
    let error = {
        let mut again = named("one");
        again.busy_patience = Duration::from_millis(300);
        refused(again).await
    };
    assert!(
        matches!(error, DatabaseError::SlotBusy { .. }) && error.passes(),
        "{error}"
    );
    let error = refused(named("two")).await;
    assert!(matches!(error, DatabaseError::TooMany { .. }), "{error}");
    assert!(
        error.to_string().contains("raise max_replication_slots"),
        "{error}"
    );
    relay.stop().await.expect("an orderly end");
}

#[tokio::test]
async fn rights_and_addresses() {
    let fixture = Fixture::shared().await;
    fixture.items().await;
    let role = format!("nobody_{}", fixture.name);
    fixture
        .run(&format!("CREATE ROLE {role} LOGIN PASSWORD 'geheim'"))
        .await;
    let address = fixture.server.address(&fixture.name);
    let with = |address: &str| {
        let mut options = fixture.options();
        options.database = address.parse().expect("an address");
        options
    };
    let nobody = address.replace("user=postgres", &format!("user={role} password=geheim"));
    let error = refused(with(&nobody)).await;
    assert!(matches!(error, DatabaseError::Permission { .. }), "{error}");
    assert!(error.to_string().contains("ALTER ROLE") && !error.to_string().contains("geheim"));

    let missing = address.replace(&fixture.name, "missing");
    let error = refused(with(&missing)).await;
    assert!(matches!(error, DatabaseError::Login { .. }), "{error}");

    let nowhere = "postgres://someone:geheim@127.0.0.1:1/nowhere";
    let error = refused(with(nowhere)).await;
    assert!(
        matches!(error, DatabaseError::Unreachable { .. }) && error.passes(),
        "{error}"
    );
    let shown = format!("{error} {error:?} {:?}", with(nowhere));
    assert!(
        shown.contains("someone@127.0.0.1:1/nowhere") && !shown.contains("geheim"),
        "{shown}"
    );
    assert!("not an address".parse::<Database>().is_err());
}
