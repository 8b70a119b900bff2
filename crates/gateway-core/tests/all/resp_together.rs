//! MSETNX, RENAME, RENAMENX and COPY where there is nothing to compare with: before a
//! replicated cell, and amid failures.

use crate::corpus::command;
use crate::rig::Rig;
use trefoil_gateway_core::keyspace::{Access, Fault, Keyspace as _};
use trefoil_gateway_core::resp::RespSession;
use trefoil_gateway_core::world::{Command, Ending, Isolation};

fn rig() -> Rig<RespSession> {
    Rig::new(RespSession::new())
}

/// Executes a line of words.
fn ask(rig: &mut Rig<RespSession>, line: &str) -> String {
    let words: Vec<&str> = line.split(' ').collect();
    String::from_utf8(rig.feed(&command(&words))).expect("text")
}

/// What a cell cannot change as one it does not change at all.
#[test]
fn different_keys_are_refused_before_a_replicated_cell() {
    for isolation in [Isolation::Relaxed, Isolation::Strict] {
        let mut rig = rig();
        rig.keyspace.is_alone = false;
        rig.settings.transactions = isolation;
        ask(&mut rig, "SET a 1");
        for line in [
            "MSETNX b 1 c 2",
            "RENAME a b",
            "RENAMENX a b",
            "COPY a b",
            "COPY a b REPLACE",
        ] {
            let name = line.split(' ').next().unwrap();
            let refusal = format!("-ERR {name} of different keys is not here");
            let answer = ask(&mut rig, line);
            assert!(answer.starts_with(&refusal), "{answer}");
        }
        assert_eq!(
            ask(&mut rig, "MGET a b c"),
            "*3\r\n$1\r\n1\r\n$-1\r\n$-1\r\n"
        );
        // The same key twice is one.
        assert_eq!(ask(&mut rig, "RENAME a a"), "+OK\r\n");
        assert_eq!(ask(&mut rig, "RENAMENX a a"), ":0\r\n");
        assert_eq!(ask(&mut rig, "RENAME b b"), "-ERR no such key\r\n");
        assert_eq!(ask(&mut rig, "MSETNX b 1"), ":1\r\n");
        assert_eq!(ask(&mut rig, "MSETNX b 2 b 3"), ":0\r\n");
        assert_eq!(ask(&mut rig, "MSETNX c 2 c 3"), ":1\r\n");
        assert_eq!(ask(&mut rig, "MGET b c"), "*2\r\n$1\r\n1\r\n$1\r\n3\r\n");
        let same = ask(&mut rig, "COPY a a");
        assert_eq!(same, "-ERR source and destination objects are the same\r\n");
        assert_eq!(rig.keyspace.isolations, 0);
    }
    // So it is in the place of their answers in a transaction.
    let mut rig = rig();
    rig.keyspace.is_alone = false;
    for line in ["SET a 1", "MULTI", "RENAME a b", "SET b 2"] {
        ask(&mut rig, line);
    }
    let answer = ask(&mut rig, "EXEC");
    assert!(
        answer.starts_with("*2\r\n-ERR RENAME of different keys"),
        "{answer}"
    );
    assert_eq!(ask(&mut rig, "MGET a b"), "*2\r\n$1\r\n1\r\n$1\r\n2\r\n");
}

/// Others stand still for one step, once: also where a transaction has them stand still.
#[test]
fn others_stand_still_once() {
    let mut rig = rig();
    ask(&mut rig, "SET a 1");
    for (line, answer) in [
        ("MSETNX b 1 c 2", ":1\r\n"),
        ("RENAME a d", "+OK\r\n"),
        ("RENAMENX d e", ":1\r\n"),
        ("COPY e a", ":1\r\n"),
    ] {
        let before = rig.keyspace.isolations;
        assert_eq!(ask(&mut rig, line), answer);
        assert_eq!(rig.keyspace.isolations, before + 1, "{line}");
        assert!(!rig.keyspace.is_isolated);
    }
    let before = rig.keyspace.isolations;
    for line in ["MULTI", "RENAME a x", "COPY x y", "MSETNX v 1 w 2"] {
        ask(&mut rig, line);
    }
    assert_eq!(ask(&mut rig, "EXEC"), "*3\r\n+OK\r\n:1\r\n:1\r\n");
    assert_eq!(rig.keyspace.isolations, before + 1);
    assert!(!rig.keyspace.is_isolated);
}

/// Without memory for the third of them, none is stored.
#[test]
fn msetnx_stores_all_or_nothing() {
    for refused in 0..4 {
        let mut rig = rig();
        rig.keyspace.refuses_after = Some(refused);
        let answer = ask(&mut rig, "MSETNX a 1 b 2 c 3 d 4");
        assert!(answer.starts_with("-OOM"), "{answer}");
        assert_eq!(ask(&mut rig, "EXISTS a b c d"), ":0\r\n", "{refused}");
        assert!(!rig.keyspace.is_isolated);
        assert_eq!(ask(&mut rig, "MSETNX a 1 b 2 c 3 d 4"), ":1\r\n");
    }
}

/// What cannot be stored under its new key stays under the old one.
#[test]
fn a_value_is_not_lost_on_its_way() {
    let mut rig = rig();
    ask(&mut rig, "SET a 1");
    ask(&mut rig, "SET b 2");
    for line in ["RENAME a b", "RENAMENX a c", "COPY a c"] {
        rig.keyspace.refuses_after = Some(0);
        let answer = ask(&mut rig, line);
        assert!(answer.starts_with("-OOM"), "{line}: {answer}");
        let left = ask(&mut rig, "MGET a b c");
        assert_eq!(left, "*3\r\n$1\r\n1\r\n$1\r\n2\r\n$-1\r\n", "{line}");
    }
    // A fault of the second step is told, and the value is there.
    rig.keyspace.refuses_after = Some(1);
    assert!(ask(&mut rig, "RENAME a b").starts_with("-OOM"));
    assert_eq!(ask(&mut rig, "GET b"), "$1\r\n1\r\n");
    rig.keyspace.fault = Some(Fault::Inquorate);
    for line in [
        "RENAME a b",
        "RENAME a a",
        "COPY a b",
        "MSETNX x 1 y 2",
        "MSETNX x 1",
    ] {
        let answer = ask(&mut rig, line);
        assert!(answer.starts_with("-TRYAGAIN"), "{line}: {answer}");
    }
    assert!(!rig.keyspace.is_isolated);
}

#[test]
fn keys_and_values_that_do_not_fit() {
    let mut rig = rig();
    rig.keyspace.inner.value_len_max = Some(10);
    ask(&mut rig, "SET a 1");
    let long = "k".repeat(65_537);
    let (long, short) = (long.as_str(), "12345678901");
    let mut say = |words: &[&str]| String::from_utf8(rig.feed(&command(words))).expect("text");
    assert_eq!(say(&["RENAME", long, "a"]), "-ERR no such key\r\n");
    assert_eq!(say(&["RENAME", "", ""]), "-ERR no such key\r\n");
    assert_eq!(say(&["COPY", "", "a"]), ":0\r\n");
    for words in [
        &["RENAME", "a", long][..],
        &["RENAME", "a", ""],
        &["COPY", "a", long],
        &["MSETNX", "b", "1", "", "2"],
        &["MSETNX", "b", "1", long, "2"],
        &["MSETNX", "b", "1", "c", short],
    ] {
        let answer = say(words);
        assert!(answer.starts_with("-ERR "), "{answer}");
    }
    assert_eq!(say(&["MGET", "a", "b"]), "*2\r\n$1\r\n1\r\n$-1\r\n");
}

/// Flags of memcached's clients and the expiry go along; a CAS unique does not.
#[test]
fn an_item_goes_with_its_flags() {
    let mut rig = rig();
    let item = trefoil_gateway_core::keyspace::NewItem {
        value: b"v",
        client_flags: 7,
        expiry_ms: crate::rig::now_ms() + 1_000_000,
        unique: Some(99),
        ..Default::default()
    };
    rig.keyspace.set(b"a", &item).expect("stored");
    assert_eq!(ask(&mut rig, "RENAME a b"), "+OK\r\n");
    let mut seen = None;
    let read = rig.keyspace.get(b"b", Access::Peek, &mut |found| {
        seen = found.map(|found| (found.client_flags, found.expiry_ms, found.unique));
    });
    assert!(read.is_ok());
    assert_eq!(seen, Some((7, item.expiry_ms, None)));
    let told: Vec<_> = rig.notes.done.iter().map(|done| (done.0, done.1)).collect();
    let expected = [(Command::Delete, Ending::Hit), (Command::Set, Ending::Hit)];
    assert_eq!(told, expected);
}

/// Keys count that a command has, and not only commands.
#[test]
fn a_stretch_of_many_keys_is_long() {
    let mut pairs = String::from("MSETNX");
    for number in 0..511 {
        pairs += &format!(" k{number} v");
    }
    for (line, commands, is_long) in [
        (pairs.as_str(), 8, false),
        (pairs.as_str(), 9, true),
        ("RENAME a b", 2048, false),
        ("RENAME a b", 2049, true),
        ("RENAMENX a b", 2049, true),
        ("COPY a b", 2049, true),
    ] {
        let mut rig = rig();
        rig.settings.transactions = Isolation::Strict;
        ask(&mut rig, "MULTI");
        for _ in 0..commands {
            assert_eq!(ask(&mut rig, line), "+QUEUED\r\n");
        }
        let answer = ask(&mut rig, "EXEC");
        let refusal = "-EXECABORT Transaction refused, nothing was applied: more than 4096 keys";
        assert_eq!(answer.starts_with(refusal), is_long, "{answer}");
        let holds = rig.keyspace.holds;
        assert_eq!((rig.keyspace.isolations, holds), (0, usize::from(!is_long)));
    }
}

/// One step of the way back that fails does not keep the others from being taken.
#[test]
fn msetnx_goes_all_the_way_back() {
    let mut rig = rig();
    rig.keyspace.refuses_after = Some(3);
    rig.keyspace.refuses_then = Some(0);
    let answer = ask(&mut rig, "MSETNX a 1 b 2 c 3 d 4");
    assert!(answer.starts_with("-OOM"), "{answer}");
    assert_eq!(rig.keyspace.refuses_after, None);
    assert_eq!(ask(&mut rig, "EXISTS a b c d"), ":1\r\n");
}

/// Standing still costs others something: a pipeline of such steps is cut.
#[test]
fn a_pipeline_of_steps_is_cut() {
    for line in ["RENAMENX a b", "COPY a b", "MSETNX a 1 b 2"] {
        let mut rig = rig();
        let words: Vec<&str> = line.split(' ').collect();
        let answers = rig.feed(&command(&words).repeat(500));
        assert!(!answers.is_empty());
        assert!(rig.drives > 2, "{line}: {}", rig.drives);
    }
}
