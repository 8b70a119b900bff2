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

/// By name, subcommands by both: everything that `COMMAND` says. What is a set there is in
/// order here.
fn infos(answer: &[u8]) -> BTreeMap<String, Vec<Value>> {
    let Value::Array(infos) = parse(answer, &mut 0) else {
        panic!("no array");
    };
    let mut all = BTreeMap::new();
    for info in infos {
        collect(info, &mut all);
    }
    all
}

fn collect(info: Value, all: &mut BTreeMap<String, Vec<Value>>) {
    /// Flags, groups of rights, tips.
    const SETS: [usize; 3] = [2, 6, 7];
    let Value::Array(mut things) = info else {
        panic!("{info:?}");
    };
    assert_eq!(things.len(), 10, "{things:?}");
    for at in SETS {
        if let Value::Array(words) = &mut things[at] {
            words.sort_by_key(|word| format!("{word:?}"));
        }
    }
    if let Some(Value::Array(within)) = things.pop() {
        within.into_iter().for_each(|info| collect(info, all));
    }
    match &things[0] {
        Value::Text(name) => all.insert(name.clone(), things),
        other => panic!("{other:?}"),
    };
}

fn ours() -> Rig<RespSession> {
    Rig::new(RespSession::new())
}

fn real_server() -> Server {
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
    Server::start("/usr/bin/redis-server", &arguments)
}

fn ask_real(server: &Server, request: &str) -> Vec<u8> {
    let request = format!("{request}ECHO the-end\r\n");
    let mut connection = server.connect();
    connection.ask(request.as_bytes(), b"$7\r\nthe-end\r\n").0
}

#[test]
fn the_table_says_of_each_command_what_redis_says() {
    let real = infos(&ask_real(&real_server(), "COMMAND\r\n"));
    let ours = infos(&ours().feed(b"COMMAND\r\n"));
    let within = ours.keys().filter(|name| name.contains('|')).count();
    assert!(ours.len() - within > 60 && within > 40, "{}", ours.len());
    // Of Redis 7.2, which clients send to any server.
    let newer = ["client|no-touch", "client|setinfo"];
    for (name, info) in &ours {
        match real.get(name) {
            Some(real) => assert_eq!(info, real, "{name}: ours, and redis-server's"),
            None => assert!(newer.contains(&name.as_str()), "{name} is not Redis's"),
        }
    }
}

#[test]
fn commands_about_commands_answer_byte_for_byte() {
    let server = real_server();
    let requests = [
        "COMMAND INFO get\r\n",
        "COMMAND INFO GET nothing mset object|encoding object|nothing eval\r\n",
        "HELLO 3\r\nCOMMAND INFO get set object|idletime fcall\r\n",
        "COMMAND GETKEYS\r\n",
        "COMMAND GETKEYS nothing a\r\n",
        "COMMAND GETKEYS get\r\n",
        "COMMAND GETKEYS get a b\r\n",
        "COMMAND GETKEYS ping x\r\n",
        "COMMAND GETKEYS mset a 1 b 2\r\n",
        "COMMAND GETKEYS object encoding k\r\n",
        "COMMAND GETKEYS object help\r\n",
        "COMMAND GETKEYS object nothing k\r\n",
        "COMMAND GETKEYS memory usage k samples 5\r\n",
        "COMMAND GETKEYS eval x 2 a b c\r\n",
        "COMMAND GETKEYS eval x 0 c\r\n",
        "COMMAND GETKEYS eval x 5 a b c\r\n",
        "COMMAND GETKEYS eval x y a b c\r\n",
        "COMMAND GETKEYS rename a b\r\n",
        "COMMAND GETKEYSANDFLAGS rename a b\r\n",
        "COMMAND GETKEYSANDFLAGS set a b\r\n",
        "COMMAND GETKEYSANDFLAGS set a b EX 5 get\r\n",
        "COMMAND GETKEYSANDFLAGS mset a 1 b 2\r\n",
        "COMMAND GETKEYSANDFLAGS fcall_ro f 2 a b c\r\n",
        "HELLO 3\r\nCOMMAND GETKEYSANDFLAGS copy a b\r\n",
        "COMMAND LIST FILTERBY PATTERN object*\r\n",
        "COMMAND LIST FILTERBY PATTERN ttl\r\n",
        "COMMAND LIST FILTERBY nothing ttl\r\n",
        "MEMORY\r\n",
        "MEMORY USAGE\r\n",
        "MEMORY NOTHING\r\n",
        "MEMORY USAGE nothing\r\n",
        "SET k v\r\nMEMORY USAGE k SAMPLES\r\n",
        "MEMORY USAGE k SAMPLES x\r\n",
        "MEMORY USAGE k SAMPLES -1\r\n",
        "MEMORY USAGE k NOTHING 1\r\n",
        "SCRIPT EXISTS\r\n",
        "CONFIG SET maxmemory\r\n",
        "CONFIG SET nothing 1\r\n",
        "CONFIG SET maxmemory 100mb\r\n",
        "CONFIG SET maxmemory x\r\n",
        "CONFIG SET maxmemory 100mb maxmemory 200mb\r\n",
        "CONFIG SET save '' appendonly no\r\n",
    ];
    for request in requests {
        // Its sets have no order, and who says HELLO has a number.
        let answer = |bytes: Vec<u8>| {
            let text = String::from_utf8_lossy(&bytes).into_owned();
            let text = match text.split_once("modules\r\n*0\r\n") {
                Some((_, behind)) => behind.to_owned(),
                None => text,
            };
            if request.contains("LIST") {
                let mut lines: Vec<&str> = text.lines().collect();
                lines.sort_unstable();
                return lines.join("\n");
            }
            text
        };
        let theirs = answer(ask_real(&server, request));
        let ours = answer(ours().feed(request.as_bytes()));
        assert_eq!(ours, theirs, "{request:?}: ours, and redis-server's");
    }
}

#[test]
fn what_an_item_takes_grows_with_it() {
    let mut rig = ours();
    let mut usage = |len: usize| {
        let value = "v".repeat(len);
        let request = format!("SET k {value}\r\nMEMORY USAGE k\r\n");
        let answer = String::from_utf8(rig.feed(request.as_bytes())).expect("text");
        let number = answer.strip_prefix("+OK\r\n:").expect(&answer);
        number.trim_end().parse::<usize>().expect("a number")
    };
    let (small, large) = (usage(1), usage(10_001));
    assert!((32..128).contains(&small), "{small}");
    assert!(
        (10_000..10_016).contains(&(large - small)),
        "{small} {large}"
    );
}

#[test]
fn the_memory_limit_is_an_admins_to_set() {
    let mut rig = ours();
    // All that is set before is 64 MiB.
    let limit = "*2\r\n$9\r\nmaxmemory\r\n$8\r\n67108864\r\n";
    for (request, wanted) in [
        ("CONFIG SET maxmemory 64mb\r\n", "+OK\r\n"),
        ("CONFIG SET maxmemory 67108864\r\n", "+OK\r\n"),
        (
            "CONFIG SET MAXMEMORY 1mb\r\n",
            "-ERR CONFIG SET failed (possibly related to argument 'maxmemory') - at least 33554432: a cell has a limit\r\n",
        ),
        ("CONFIG SET databases 1\r\n", "+OK\r\n"),
        (
            "CONFIG SET databases 16\r\n",
            "-ERR CONFIG SET failed (possibly related to argument 'databases') - not for clients to change: the operator's options do\r\n",
        ),
        (
            "CONFIG SET maxmemory 48mb databases 2\r\n",
            "-ERR CONFIG SET failed (possibly related to argument 'databases') - not for clients to change: the operator's options do\r\n",
        ),
        (
            "CONFIG REWRITE\r\n",
            "-ERR CONFIG REWRITE is not here: settings are the operator's, in a file or options\r\n",
        ),
    ] {
        let answer = rig.feed(request.as_bytes());
        assert_eq!(String::from_utf8_lossy(&answer), wanted, "{request:?}");
        let answer = rig.feed(b"CONFIG GET maxmemory\r\n");
        assert_eq!(String::from_utf8_lossy(&answer), limit, "after {request:?}");
    }
    rig.settings.admin_commands = false;
    let answer = rig.feed(b"CONFIG SET maxmemory 96mb\r\n");
    assert!(answer.starts_with(b"-NOPERM "), "{answer:?}");
    let answer = rig.feed(b"CONFIG GET maxmemory\r\n");
    assert_eq!(String::from_utf8_lossy(&answer), limit);
}

#[test]
fn every_command_of_redis_is_here_or_refused_by_name() {
    let mut rig = ours();
    let here = infos(&rig.feed(b"COMMAND\r\n"));
    let real = infos(&ask_real(&real_server(), "COMMAND\r\n"));
    let absent = |name: &&String| !here.contains_key(*name) && !name.contains('|');
    for name in real.keys().filter(absent) {
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
