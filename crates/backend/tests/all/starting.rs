//! What keeps a server from starting, and what it says then.

use crate::support::Setup;
use std::net::TcpListener;
use trefoil_backend::{Listeners, ServerOptions, StartError};
use trefoil_cell::Mode;

fn fails(setup: Setup, hint: &str) {
    let error = match setup.try_start() {
        Ok(_) => panic!("started; expected: {hint}"),
        Err(error) => error.to_string(),
    };
    assert!(error.contains(hint), "{hint:?}: {error}");
}

#[test]
fn a_port_in_use_is_named_with_its_holder() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let mut setup = Setup::new(Mode::R1, 1);
    setup.listen.tcp = Some(address);
    let hint = format!("port {} is in use by ", address.port());
    fails(setup, &hint);
    let mut setup = Setup::new(Mode::R1, 1);
    setup.listen.metrics = Some(address);
    fails(setup, &format!("(process {})", std::process::id()));
}

#[test]
fn other_machines_are_not_served_by_accident() {
    let mut setup = Setup::new(Mode::R1, 1);
    setup.listen.tcp = Some("0.0.0.0:0".parse().unwrap());
    fails(setup, "--plaintext");
    let mut setup = Setup::new(Mode::R1, 1);
    setup.listen.metrics = Some("[::]:0".parse().unwrap());
    fails(setup, "--plaintext");
    let mut setup = Setup::new(Mode::R1, 1);
    setup.listen.tcp = Some("0.0.0.0:0".parse().unwrap());
    setup.listen.plaintext_rpc = true;
    Listeners::bind(&setup.listen).unwrap();
}

#[test]
fn sockets_in_use_and_other_files_are_kept() {
    let setup = Setup::new(Mode::R1, 1);
    let _first = Listeners::bind(&setup.listen).unwrap();
    let mut second = Setup::new(Mode::R1, 1);
    second.listen.unix = setup.listen.unix.clone();
    fails(second, "another server listens there");
    let mut setup = Setup::new(Mode::R1, 1);
    setup.listen.unix = Some(setup.write("notes", "precious"));
    fails(setup, "is not a socket");
    let mut setup = Setup::new(Mode::R1, 1);
    setup.listen.fabric = Some(setup.home.path().join("d".repeat(120)));
    fails(setup, "shorter directory");
}

/// Only root can make files of other users.
#[test]
fn a_socket_of_another_user_is_not_used() {
    let mut setup = Setup::new(Mode::R1, 1);
    let path = setup.home.path().join("theirs");
    let _theirs = std::os::unix::net::UnixListener::bind(&path).unwrap();
    if std::os::unix::fs::chown(&path, Some(12_345), None).is_err() {
        return;
    }
    setup.listen.unix = Some(path);
    fails(setup, "belongs to user 12345");
}

#[test]
fn limits_and_numbers_that_cannot_be() {
    let mut setup = Setup::new(Mode::R1, 1);
    setup.options.memory_limit = 8 << 20;
    fails(setup, "too small");
    let mut setup = Setup::new(Mode::R1, 1);
    setup.options.memory_limit = 1 << 62;
    fails(setup, "on this machine");
    let mut setup = Setup::new(Mode::R32, 3);
    setup.options.members = vec![0, 3];
    fails(
        setup,
        "backend 3 cannot run here: the cell has backends 0 to 2",
    );
    let mut setup = Setup::new(Mode::R32, 3);
    setup.options.members = vec![1, 1];
    fails(setup, "each runs once");
    let mut setup = Setup::new(Mode::R1, 1);
    setup.options.partition_count = Some(65);
    fails(setup, "65 partitions");
    let mut setup = Setup::new(Mode::R1, 1);
    setup.options.members.clear();
    fails(setup, "no backend number");
}

#[test]
fn a_corpus_belongs_to_immutable_cells() {
    fails(Setup::new(Mode::R2, 2), "needs a corpus");
    fails(
        Setup::new(Mode::R1, 1).corpus("c.jsonl", ""),
        "immutable cells",
    );
    fails(
        Setup::new(Mode::R2, 2).corpus("c.jsonl", "{\"key\":\"a\",\"value\":\"b\"}\noops\n"),
        "c.jsonl: line 2: expected",
    );
    let mut missing = Setup::new(Mode::R2, 2);
    missing.options.load = Some(missing.home.path().join("no.csv"));
    fails(missing, "cannot open");
}

#[test]
fn a_cell_without_configuration_is_not_served() {
    let setup = Setup::new(Mode::R1, 1);
    let listeners = Listeners::bind(&setup.listen).unwrap();
    let options = ServerOptions::new(setup.store, vec![0]);
    let error = trefoil_backend::Server::start(options, listeners).unwrap_err();
    assert!(matches!(error, StartError::NoConfig));
}
