//! The table of commands beside redis-server's `COMMAND`, and beside the documentation.
//! `TREFOIL_UPDATE_DOCS=1` writes the latter anew.

use crate::rig::Rig;
use crate::rig::server::Server;
use std::collections::BTreeMap;
use trefoil_gateway_core::resp::{RespSession, command_tables};

const DOCS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/memcached.md");
const BEGIN: &str = "<!-- The tables of commands: written by a test. -->\n";
const END: &str = "<!-- End of the tables. -->\n";

/// An answer of RESP 2.
#[derive(Clone, Debug, PartialEq)]
enum Value {
    Text(String),
    Integer(i64),
    Array(Vec<Value>),
    Null,
}

fn parse(bytes: &[u8], at: &mut usize) -> Value {
    let end = *at
        + bytes[*at..]
            .iter()
            .position(|&b| b == b'\n')
            .expect("a line");
    let line = std::str::from_utf8(&bytes[*at + 1..end - 1]).expect("text");
    let kind = bytes[*at];
    *at = end + 1;
    match (kind, line) {
        (b'$' | b'*', "-1") => Value::Null,
        (b':', line) => Value::Integer(line.parse().expect("a number")),
        (b'$', line) => {
            let len: usize = line.parse().expect("a length");
            let text = String::from_utf8_lossy(&bytes[*at..*at + len]).into_owned();
            *at += len + 2;
            Value::Text(text)
        }
        (b'*', line) => {
            let len: usize = line.parse().expect("a length");
            Value::Array((0..len).map(|_| parse(bytes, at)).collect())
        }
        _ => Value::Text(line.to_owned()),
    }
}

/// By name: the first six things that `COMMAND` says.
fn infos(answer: &[u8]) -> BTreeMap<String, Vec<Value>> {
    let Value::Array(infos) = parse(answer, &mut 0) else {
        panic!("no array");
    };
    let entry = |info| match info {
        Value::Array(mut things) => {
            things.truncate(6);
            if let Value::Array(flags) = &mut things[2] {
                flags.sort_by_key(|flag| format!("{flag:?}"));
            }
            match &things[0] {
                Value::Text(name) => (name.clone(), things),
                other => panic!("{other:?}"),
            }
        }
        other => panic!("{other:?}"),
    };
    infos.into_iter().map(entry).collect()
}

fn ours() -> Rig<RespSession> {
    Rig::new(RespSession::new())
}

fn real_infos() -> BTreeMap<String, Vec<Value>> {
    let arguments = [
        "--port",
        "{port}",
        "--bind",
        "127.0.0.1",
        "--save",
        "",
        "--dir",
        "/tmp",
    ];
    let server = Server::start("/usr/bin/redis-server", &arguments);
    let (answer, _) = server
        .connect()
        .ask(b"COMMAND\r\nECHO the-end\r\n", b"$7\r\nthe-end\r\n");
    infos(&answer)
}

#[test]
fn the_table_says_of_each_command_what_redis_says() {
    let real = real_infos();
    let ours = infos(&ours().feed(b"COMMAND\r\n"));
    assert!(ours.len() > 60, "{}", ours.len());
    for (name, info) in &ours {
        let mut real = real[name].clone();
        if name == "object" {
            // Redis says of its subcommands where their keys are; here they are all alike.
            real.splice(3..6, [2, 2, 1].map(Value::Integer));
        }
        assert_eq!(info, &real, "{name}: ours, and redis-server's");
    }
}

#[test]
fn every_command_of_redis_is_here_or_refused_by_name() {
    let mut rig = ours();
    let here = infos(&rig.feed(b"COMMAND\r\n"));
    for name in real_infos().keys().filter(|name| !here.contains_key(*name)) {
        let answer = String::from_utf8(rig.feed(format!("{name}\r\n").as_bytes())).expect("text");
        let words = format!("-ERR unknown command '{name}': this is a cache of strings, without ");
        assert!(answer.starts_with(&words), "{answer}");
    }
}

#[test]
fn the_documentation_has_the_table() {
    let text = std::fs::read_to_string(DOCS).expect("docs/memcached.md");
    let begin = text.find(BEGIN).expect("the table's beginning") + BEGIN.len();
    let end = text.find(END).expect("the table's end");
    let tables = command_tables();
    if std::env::var_os("TREFOIL_UPDATE_DOCS").is_some() {
        let text = [&text[..begin], &tables, &text[end..]].concat();
        std::fs::write(DOCS, text).expect("written");
        return;
    }
    assert!(
        text[begin..end] == tables,
        "docs/memcached.md differs from the parser's table: \
         TREFOIL_UPDATE_DOCS=1 cargo test -p trefoil-gateway-core --test all resp_commands::"
    );
}
