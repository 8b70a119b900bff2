//! Requests of another life or configuration are refused before anything is
//! done, whatever carried them; a backend that is behind catches up.

use crate::support::{CONFIG_ID, Cell, LIFE, Setup, request};
use std::time::{Duration, Instant};
use trefoil_cell::{CellConfig, ConfigStore as _, Mode};
use trefoil_fabric::shm::{ConnectOptions, Connection};
use trefoil_layout::Version;
use trefoil_layout::data::DataEntry;
use trefoil_layout::message::{Answer, Request};
use trefoil_layout::op::{Action, Found, Mutation, Outcome, Rejection};

/// What a SET under `config_id` comes to.
fn set_by_ring(connection: &mut Connection, config_id: u32) -> Outcome {
    let request = Request::Mutate(Mutation {
        action: Action::Set,
        version: crate::support::next_version(),
        entry: DataEntry {
            key: b"by ring",
            value: b"value",
            ..DataEntry::default()
        },
    });
    match ask(connection, config_id, &request) {
        Said::Outcome(outcome) => outcome,
        Said::Rejected(_) => panic!("answered as a lookup"),
    }
}

enum Said {
    Outcome(Outcome),
    Rejected(Option<Rejection>),
}

fn ask(connection: &mut Connection, config_id: u32, request: &Request<'_>) -> Said {
    connection.send_next(config_id, request).unwrap();
    let mut said = None;
    while said.is_none() {
        connection.wait(Duration::from_secs(10));
        connection
            .poll(|_, answer| {
                said = Some(match answer {
                    Answer::Ack(ack) => Said::Outcome(ack.outcome),
                    Answer::Lookup(answer) => Said::Rejected(match answer.found {
                        Found::Rejected(rejection) => Some(rejection),
                        _ => None,
                    }),
                    other => panic!("{other:?}"),
                });
            })
            .unwrap();
    }
    said.unwrap()
}

fn connect(cell: &Cell) -> Connection {
    Connection::connect(cell.fabric(), 0, &ConnectOptions::default()).unwrap()
}

#[test]
fn another_topology_is_refused_by_name() {
    let cell = Setup::new(Mode::R1, 1).start();
    let mut connection = connect(&cell);
    let met = connection.agreement().topology;
    assert_eq!((met.life, met.config_id), (LIFE, CONFIG_ID));

    let mut caller = cell.client();
    let cases = [
        (LIFE + 1, CONFIG_ID, Rejection::OtherLife),
        (0, CONFIG_ID, Rejection::OtherLife),
        (LIFE, CONFIG_ID - 1, Rejection::StaleConfig),
        (LIFE, 0, Rejection::StaleConfig),
        (LIFE, CONFIG_ID + 1, Rejection::UnknownConfig),
    ];
    for (life, config_id, rejection) in cases {
        let mut set = request(0, Action::Set, b"by rpc", b"value");
        (set.life, set.config_id) = (life, config_id);
        let outcome = caller.mutate(set).unwrap().outcome;
        assert_eq!(
            outcome,
            Outcome::Rejected(rejection),
            "{life:x} {config_id}"
        );
        if life != LIFE {
            continue;
        }
        let refused = Outcome::Rejected(rejection);
        assert_eq!(set_by_ring(&mut connection, config_id), refused);
        let lookup = Request::Lookup { key: b"by ring" };
        let Said::Rejected(found) = ask(&mut connection, config_id, &lookup) else {
            panic!("answered as a mutation");
        };
        assert_eq!(found, Some(rejection));
    }
    assert_eq!(caller.get(0, CONFIG_ID, b"by rpc"), None);
    assert_eq!(caller.get(0, CONFIG_ID, b"by ring"), None);
    assert_eq!(set_by_ring(&mut connection, CONFIG_ID), Outcome::Applied);
}

/// Somebody else has flushed; the first request that names the new configuration
/// is refused for a moment only.
#[test]
fn a_backend_that_is_behind_catches_up() {
    let cell = Setup::new(Mode::R1, 1).start();
    let mut connection = connect(&cell);
    let flushed = cell.config.flushed(Version::new(1, 2, 3)).unwrap();
    cell.store
        .compare_and_swap(Some(cell.config.topology_id()), &flushed)
        .unwrap();
    let begin = Instant::now();
    loop {
        match set_by_ring(&mut connection, flushed.config_id) {
            Outcome::Applied => break,
            Outcome::Rejected(Rejection::UnknownConfig) => {}
            other => panic!("{other:?}"),
        }
        assert!(begin.elapsed() < Duration::from_secs(60));
    }
    let stale = Outcome::Rejected(Rejection::StaleConfig);
    assert_eq!(set_by_ring(&mut connection, CONFIG_ID), stale);
}

/// What this process holds belongs to its own life, whatever the store says.
#[test]
fn another_life_in_the_store_is_not_followed() {
    let cell = Setup::new(Mode::R1, 1).start();
    let mut connection = connect(&cell);
    let anew = CellConfig {
        life: LIFE + 1,
        config_id: CONFIG_ID + 1,
        ..cell.config.clone()
    };
    cell.store
        .compare_and_swap(Some(cell.config.topology_id()), &anew)
        .unwrap();
    let unknown = Outcome::Rejected(Rejection::UnknownConfig);
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(100) {
        assert_eq!(set_by_ring(&mut connection, CONFIG_ID + 1), unknown);
    }
    assert_eq!(set_by_ring(&mut connection, CONFIG_ID), Outcome::Applied);
    assert_eq!(connect(&cell).agreement().topology.life, LIFE);
}
