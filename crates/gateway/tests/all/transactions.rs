//! Transactions through a front door: of the store of this process, with several
//! event loops, and of a replicated cell.

use crate::cell::TestCell;
use crate::support::{self, Client, connect};
use std::net::TcpStream;
use trefoil_cell::Mode;
use trefoil_gateway::keyspace::{CellOptions, Gates, LocalKeyspace, cell_keyspace};
use trefoil_gateway::server::{Doors, Gateway, GatewayOptions, Protocol};
use trefoil_gateway_core::keyspace::Keyspace;

fn open<K: Keyspace + Send + 'static>(loops: usize, keyspace: impl Fn() -> K) -> Gateway {
    let mut options: GatewayOptions = support::options();
    options.doors[0].protocol = Protocol::Redis;
    options.thread_count = loops;
    let doors = Doors::open(&options).unwrap();
    Gateway::start(options, doors, |_| keyspace(), |_| support::Nobody).unwrap()
}

/// Sends lines at once; as many lines of the answers.
fn ask(client: &mut Client<TcpStream>, lines: &[String], count: usize) -> Vec<String> {
    client.send(lines.join("\r\n") + "\r\n");
    (0..count)
        .map(|_| client.line().trim_end_matches('\r').to_owned())
        .collect()
}

fn lines(words: &[&str]) -> Vec<String> {
    words.iter().map(|line| (*line).to_owned()).collect()
}

/// Everybody stores the same under all keys, and nobody ever sees them differ.
#[test]
fn several_keys_change_as_one_on_all_event_loops() {
    let cell = TestCell::start(Mode::R1);
    let (local, gates) = (cell.local_store(), Gates::default());
    let gateway = open(3, || LocalKeyspace::beside(local.clone(), &gates));
    std::thread::scope(|scope| {
        for writer in 0..3 {
            let mut client = connect(&gateway);
            scope.spawn(move || {
                for round in 0..200 {
                    let value = format!("{writer}-{round:03}");
                    let set = |key: &str| format!("SET {key} {value}");
                    let queued = [
                        lines(&["MULTI"]),
                        vec![set("a"), set("b"), format!("MSET c {value} d {value}")],
                        lines(&["EXEC"]),
                    ];
                    let answers = ask(&mut client, &queued.concat(), 8);
                    assert_eq!(answers[4..], ["*3", "+OK", "+OK", "+OK"]);
                }
            });
        }
        for _ in 0..2 {
            let mut client = connect(&gateway);
            scope.spawn(move || {
                for _ in 0..200 {
                    let read = lines(&["MULTI", "MGET a b", "GET c", "GET d", "EXEC"]);
                    client.send(read.join("\r\n") + "\r\n");
                    let head: Vec<String> = (0..5).map(|_| client.line()).collect();
                    assert_eq!(head[4], "*3\r");
                    let mut values = Vec::new();
                    assert_eq!(client.line(), "*2\r");
                    while values.len() < 4 {
                        let len = client.line();
                        values.push(match len.as_str() {
                            "$-1\r" => len,
                            _ => client.line(),
                        });
                    }
                    values.dedup();
                    assert_eq!(values.len(), 1, "{values:?}");
                }
            });
        }
    });
}

/// Who counts by WATCH, GET and SET counts everything, or is told that it did not.
fn count_by_watching(gateway: &Gateway, clients: usize, rounds: usize) {
    let counted: usize = std::thread::scope(|scope| {
        let all: Vec<_> = (0..clients)
            .map(|_| {
                let mut client = connect(gateway);
                scope.spawn(move || {
                    let mut counted = 0;
                    for _ in 0..rounds {
                        let watched = ask(&mut client, &lines(&["WATCH n", "INCRBY m 0"]), 2);
                        assert_eq!(watched[0], "+OK");
                        client.send("GET n\r\n");
                        let number: usize = match client.line().as_str() {
                            "$-1\r" => 0,
                            _ => client.line().trim().parse().unwrap(),
                        };
                        let set = format!("SET n {}", number + 1);
                        let commands = [lines(&["MULTI"]), vec![set], lines(&["STRLEN n", "EXEC"])];
                        let answers = ask(&mut client, &commands.concat(), 4);
                        match answers[3].as_str() {
                            "*-1" => {}
                            "*2" => {
                                counted += 1;
                                assert_eq!(client.line(), "+OK\r");
                                client.line();
                            }
                            other => panic!("{other}"),
                        }
                    }
                    counted
                })
            })
            .collect();
        all.into_iter().map(|one| one.join().unwrap()).sum()
    });
    let mut client = connect(gateway);
    client.send("GET n\r\n");
    client.line();
    assert_eq!(client.line().trim(), counted.to_string());
    assert!(counted > 0);
}

#[test]
fn a_watched_key_changes_once_for_each_exec() {
    let cell = TestCell::start(Mode::R1);
    let (local, gates) = (cell.local_store(), Gates::default());
    let gateway = open(2, || LocalKeyspace::beside(local.clone(), &gates));
    count_by_watching(&gateway, 4, 100);
}

#[test]
fn a_watched_key_changes_once_for_each_exec_of_a_replicated_cell() {
    let running = TestCell::start(Mode::R32);
    let cell = running.client();
    let gateway = open(2, || cell_keyspace(cell.clone(), CellOptions::default()));
    count_by_watching(&gateway, 4, 50);
    // Commands of one key count as one; those of several are executed in order.
    let mut client = connect(&gateway);
    let one = lines(&["MULTI", "SET k 1", "INCR k", "APPEND k 0", "EXEC"]);
    let answers = ask(&mut client, &one, 8);
    assert_eq!(answers[4..], ["*3", "+OK", ":2", ":2"]);
    let several = lines(&["MULTI", "MSET x 1 y 2", "INCR x", "DEL y k none", "EXEC"]);
    let answers = ask(&mut client, &several, 8);
    assert_eq!(answers[4..], ["*3", "+OK", ":2", ":2"]);
    let refused = ask(
        &mut client,
        &lines(&["WATCH x", "MULTI", "SET y 1", "EXEC"]),
        4,
    );
    assert!(refused[3].starts_with("-EXECABORT"), "{refused:?}");
    assert_eq!(ask(&mut client, &lines(&["EXISTS y"]), 1), [":0"]);
}

/// Commands of one key that take long are executed by a thread: the same promises hold.
fn long_ones_change_a_key_as_one(gateway: &Gateway) {
    let mut client = connect(gateway);
    let value = "v".repeat(10_000);
    let long = || {
        let mut queued = vec!["MULTI".to_owned()];
        queued.extend((0..100).map(|_| "APPEND long x".to_owned()));
        queued.extend(lines(&["INCR long", "STRLEN long", "EXEC"]));
        queued
    };
    let set = format!("SET long {value}");
    let answers = ask(&mut client, &[vec![set.clone()], long()].concat(), 207);
    assert_eq!(answers[104..106], ["*102", ":10001"]);
    assert_eq!(answers[204], ":10100");
    assert!(answers[205].starts_with("-ERR value is not an integer"));
    assert_eq!(answers[206], ":10100");
    // Under WATCH: nothing has changed, and then something has.
    let watched = [lines(&["WATCH long"]), long()].concat();
    let answers = ask(&mut client, &watched, 207);
    assert_eq!(answers[104], "*102");
    assert_eq!(answers[206], ":10200");
    let mut other = connect(gateway);
    assert_eq!(ask(&mut client, &lines(&["WATCH long"]), 1), ["+OK"]);
    assert_eq!(ask(&mut other, &[set], 1), ["+OK"]);
    let answers = ask(&mut client, &long(), 104);
    assert_eq!(answers[103], "*-1");
    // Too much for any place: nothing of it is stored.
    let mut too_long = lines(&["MULTI"]);
    too_long.push("SETRANGE long 1000000 x".to_owned());
    too_long.extend((0..80).map(|_| "APPEND long x".to_owned()));
    too_long.push("EXEC".to_owned());
    let answers = ask(&mut client, &too_long, 83);
    assert!(answers[82].starts_with("-EXECABORT"), "{}", answers[82]);
    assert_eq!(ask(&mut client, &lines(&["STRLEN long"]), 1), [":10000"]);
    // Several clients: each long one counts once.
    let count = |mut client: Client<TcpStream>| {
        for _ in 0..20 {
            ask(&mut client, &long(), 207 - 1);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..3 {
            let client = connect(gateway);
            scope.spawn(|| count(client));
        }
    });
    assert_eq!(ask(&mut client, &lines(&["STRLEN long"]), 1), [":16000"]);
}

#[test]
fn a_long_transaction_of_one_key_is_one() {
    let cell = TestCell::start(Mode::R1);
    let (local, gates) = (cell.local_store(), Gates::default());
    long_ones_change_a_key_as_one(&open(2, || LocalKeyspace::beside(local.clone(), &gates)));
}

#[test]
fn a_long_transaction_of_one_key_of_a_replicated_cell_is_one() {
    let running = TestCell::start(Mode::R32);
    let cell = running.client();
    let keyspace = || cell_keyspace(cell.clone(), CellOptions::default());
    long_ones_change_a_key_as_one(&open(2, keyspace));
}
