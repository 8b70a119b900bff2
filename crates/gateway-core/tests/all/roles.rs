//! What users of each role may do, and what they are answered otherwise.

use crate::rig::Rig;
use trefoil_gateway_core::memcache::MemcacheSession;
use trefoil_gateway_core::resp::RespSession;
use trefoil_gateway_core::session::Session;

/// A request, and whether readers and writers may; admins may everything.
const TEXT: &[(&str, bool, bool)] = &[
    ("get a", true, true),
    ("gets a b", true, true),
    ("mg a v t", true, true),
    ("me a", true, true),
    ("stats", true, true),
    ("version", true, true),
    ("lru_crawler metadump all", true, true),
    ("mg a v T30", false, true),
    ("mg a v N30", false, true),
    ("set a 0 0 1\r\nx", false, true),
    ("set a 0 0 9999999", false, true),
    ("add a 0 0 1\r\nx", false, true),
    ("cas a 0 0 1 1\r\nx", false, true),
    ("append a 0 0 1\r\nx", false, true),
    ("ms a 1\r\nx", false, true),
    ("md a", false, true),
    ("ma a", false, true),
    ("delete a", false, true),
    ("incr a 1", false, true),
    ("touch a 1", false, true),
    ("gat 1 a", false, true),
    ("flush_all", false, false),
    ("cache_memlimit 64", false, false),
    ("stats reset", false, false),
    ("stats detail on", false, false),
    ("shutdown", false, false),
];

const REDIS: &[(&str, bool, bool)] = &[
    ("GET a", true, true),
    ("MGET a b", true, true),
    ("TTL a", true, true),
    ("SCAN 0", true, true),
    ("INFO", true, true),
    ("CONFIG GET maxmemory", true, true),
    ("SLOWLOG GET", true, true),
    ("SET a b", false, true),
    ("MSET a b c d", false, true),
    ("DEL a b", false, true),
    ("EXPIRE a 10", false, true),
    ("GETEX a EX 10", false, true),
    ("INCR a", false, true),
    ("FLUSHALL", false, false),
    ("FLUSHDB", false, false),
    ("CONFIG RESETSTAT", false, false),
    ("CONFIG SET maxmemory 64mb", false, false),
    ("SLOWLOG RESET", false, false),
];

fn rig<S: Session>(session: S, has_users: bool, admin_commands: bool) -> Rig<S> {
    let mut rig = Rig::new(session);
    rig.settings.authentication = has_users;
    rig.settings.admin_commands = admin_commands;
    rig.settings.shutdown_allowed = true;
    rig
}

fn is_refused(answer: &[u8]) -> bool {
    let text = String::from_utf8_lossy(answer);
    text.contains(" not allowed\r\n") || text.starts_with("-NOPERM ")
}

/// Asks, and then for something that shows that the connection is in step.
fn ask<S: Session>(rig: &mut Rig<S>, request: &str, ping: &str, pong: &str) -> Vec<u8> {
    let mut answer = rig.feed(format!("{request}\r\n").as_bytes());
    // A value that is too long is skipped.
    if request.ends_with("9999999") {
        rig.feed(&vec![b'x'; 9_999_999]);
        rig.feed(b"\r\n");
    }
    if request == "shutdown" && !is_refused(&answer) {
        return answer;
    }
    let after = rig.feed(ping.as_bytes());
    assert_eq!(String::from_utf8_lossy(&after), pong, "after {request}");
    answer.truncate(200);
    answer
}

#[test]
fn users_of_memcached_do_what_their_role_allows() {
    for (name, level) in [("reader", 0), ("writer", 1), ("me", 2)] {
        for (request, may_read, may_write) in TEXT {
            let mut rig = rig(MemcacheSession::new(), true, true);
            let login = format!("set auth 0 0 {}\r\n{name} secret\r\n", name.len() + 7);
            assert_eq!(rig.feed(login.as_bytes()), b"STORED\r\n");
            let answer = ask(&mut rig, request, "mn\r\n", "MN\r\n");
            let may = [*may_read, *may_write, true][level];
            let shown = String::from_utf8_lossy(&answer);
            assert_eq!(!is_refused(&answer), may, "{name}: {request}: {shown}");
        }
    }
}

#[test]
fn users_of_redis_do_what_their_role_allows() {
    for (name, level) in [("reader", 0), ("writer", 1), ("me", 2)] {
        for (request, may_read, may_write) in REDIS {
            let mut rig = rig(RespSession::new(), true, true);
            let login = format!("AUTH {name} secret\r\n");
            assert_eq!(rig.feed(login.as_bytes()), b"+OK\r\n");
            let answer = ask(&mut rig, request, "PING\r\n", "+PONG\r\n");
            let may = [*may_read, *may_write, true][level];
            let shown = String::from_utf8_lossy(&answer);
            assert_eq!(!is_refused(&answer), may, "{name}: {request}: {shown}");
        }
    }
}

#[test]
fn administrative_commands_can_be_switched_off_without_users() {
    for (request, _, may) in TEXT {
        let mut rig = rig(MemcacheSession::new(), false, false);
        let answer = ask(&mut rig, request, "mn\r\n", "MN\r\n");
        assert_eq!(!is_refused(&answer), *may, "{request}");
    }
    for (request, _, may) in REDIS {
        let mut rig = rig(RespSession::new(), false, false);
        let answer = ask(&mut rig, request, "PING\r\n", "+PONG\r\n");
        assert_eq!(!is_refused(&answer), *may, "{request}");
    }
    // memcached's own words under its option -F.
    let mut rig = rig(MemcacheSession::new(), false, false);
    let answer = rig.feed(b"flush_all\r\nflush_all noreply\r\nmn\r\n");
    assert_eq!(answer, b"CLIENT_ERROR flush_all not allowed\r\nMN\r\n");
}

#[test]
fn the_binary_protocol_answers_an_authentication_error() {
    let mut rig = rig(MemcacheSession::new(), false, false);
    let mut flush = vec![0x80, 0x08];
    flush.resize(24, 0);
    let answer = rig.feed(&flush);
    assert_eq!(answer[6..8], [0, 0x20]);
    assert!(!rig.is_closed());
    let mut noop = vec![0x80, 0x0a];
    noop.resize(24, 0);
    assert_eq!(rig.feed(&noop).len(), 24);
}
