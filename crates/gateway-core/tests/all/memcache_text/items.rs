//! Storing, reading and changing items.

use super::{rig, run, run_on};
use trefoil_gateway_core::session::Wants;

#[test]
fn storage() {
    run(&[
        ("get a\r\n", "END\r\n"),
        ("set a 1 0 3\r\nabc\r\n", "STORED\r\n"),
        ("get a\r\n", "VALUE a 1 3\r\nabc\r\nEND\r\n"),
        ("set a 4294967295 0 0\r\n\r\n", "STORED\r\n"),
        ("get a\r\n", "VALUE a 4294967295 0\r\n\r\nEND\r\n"),
        ("add a 0 0 1\r\nx\r\n", "NOT_STORED\r\n"),
        ("add b 0 0 1\r\nx\r\n", "STORED\r\n"),
        ("replace c 0 0 1\r\nx\r\n", "NOT_STORED\r\n"),
        ("replace b 7 0 2\r\nyz\r\n", "STORED\r\n"),
        ("append b 9 0 2\r\n!!\r\n", "STORED\r\n"),
        ("prepend b 9 0 2\r\n??\r\n", "STORED\r\n"),
        ("get b\r\n", "VALUE b 7 6\r\n??yz!!\r\nEND\r\n"),
        ("append c 0 0 1\r\nx\r\n", "NOT_STORED\r\n"),
        ("prepend c 0 0 1\r\nx\r\n", "NOT_STORED\r\n"),
        ("cas c 0 0 1 5\r\nx\r\n", "NOT_FOUND\r\n"),
        ("ms b 2 E77\r\nhi\r\n", "HD\r\n"),
        ("gets b\r\n", "VALUE b 0 2 77\r\nhi\r\nEND\r\n"),
        ("cas b 0 0 1 78\r\nx\r\n", "EXISTS\r\n"),
        ("cas b 0 0 1 0\r\nx\r\n", "EXISTS\r\n"),
        ("cas b 3 0 1 77\r\nx\r\n", "STORED\r\n"),
        ("get b\r\n", "VALUE b 3 1\r\nx\r\nEND\r\n"),
        ("set a 0 0 6\r\na\r\nb\r\n\r\n", "STORED\r\n"),
        (
            "get a a b nope\r\n",
            "VALUE a 0 6\r\na\r\nb\r\n\r\nVALUE a 0 6\r\na\r\nb\r\n\r\nVALUE b 3 1\r\nx\r\nEND\r\n",
        ),
        ("  bget   b  \n", "VALUE b 3 1\r\nx\r\nEND\r\n"),
        (
            "set n 0 0 1 noreply\r\nx\r\nadd n 0 0 1 noreply\r\ny\r\nget n\r\n",
            "VALUE n 0 1\r\nx\r\nEND\r\n",
        ),
        (
            "cas n 0 0 1 1 noreply\r\nz\r\nget n\r\n",
            "VALUE n 0 1\r\nx\r\nEND\r\n",
        ),
        // A zero byte ends the words of a line.
        ("get n\0more\r\n", "VALUE n 0 1\r\nx\r\nEND\r\n"),
        // Control characters other than blank and line end are of the key.
        (
            "set t\tt 0 0 1\r\nx\r\nget t\tt\r\n",
            "STORED\r\nVALUE t\tt 0 1\r\nx\r\nEND\r\n",
        ),
    ]);
}

#[test]
fn storage_errors() {
    let long = "k".repeat(251);
    let longest = "k".repeat(250);
    run(&[
        ("set a 0 0\r\n", "ERROR\r\n"),
        ("set a 0 0 1 noreply x\r\n", "ERROR\r\n"),
        ("cas a 0 0 1\r\n", "ERROR\r\n"),
        (
            "set a x 0 1\r\n",
            "CLIENT_ERROR bad command line format\r\n",
        ),
        (
            "set a 0 x 1\r\n",
            "CLIENT_ERROR bad command line format\r\n",
        ),
        (
            "set a 0 0 x\r\n",
            "CLIENT_ERROR bad command line format\r\n",
        ),
        (
            "set a 0 0 -1\r\n",
            "CLIENT_ERROR bad command line format\r\n",
        ),
        (
            "set a 0 0 2147483646\r\n",
            "CLIENT_ERROR bad command line format\r\n",
        ),
        (
            "set a 4294967296 0 1\r\n",
            "CLIENT_ERROR bad command line format\r\n",
        ),
        (
            "cas a 0 0 1 x\r\n",
            "CLIENT_ERROR bad command line format\r\n",
        ),
        ("set a 0 0 noreply\r\n", ""),
        (
            &format!("set {long} 0 0 1\r\n"),
            "CLIENT_ERROR bad command line format\r\n",
        ),
        (&format!("set {longest} 0 0 1\r\nx\r\n"), "STORED\r\n"),
        (
            "set a 0 0 3\r\nabcde\r\n",
            "CLIENT_ERROR bad data chunk\r\nERROR\r\n",
        ),
        ("get a\r\n", "END\r\n"),
        (
            "set a 0 0 3 noreply\r\nabc\n\nversion\r\n",
            "VERSION 1.6.18\r\n",
        ),
        (
            &format!("get a {long}\r\n"),
            "CLIENT_ERROR bad command line format\r\n",
        ),
        ("get\r\n", "ERROR\r\n"),
        ("gets \r\n", "ERROR\r\n"),
        ("gat\r\n", "ERROR\r\n"),
        ("gat 1\r\n", "END\r\n"),
        ("gat x a\r\n", "CLIENT_ERROR invalid exptime argument\r\n"),
        ("\r\n", "ERROR\r\n"),
        ("a\r\n", "ERROR\r\n"),
        ("nonsense a b c\r\n", "ERROR\r\n"),
        ("SET a 0 0 1\r\n", "ERROR\r\n"),
    ]);
}

#[test]
fn a_key_that_is_too_long_ends_a_long_get() {
    let mut rig = rig();
    rig.out_len_max = 1;
    rig.feed(b"set a 0 0 1\r\nx\r\n");
    let line = format!("get {}{} a\r\n", "a ".repeat(100), "k".repeat(251));
    assert_eq!(
        rig.feed(line.as_bytes()),
        b"CLIENT_ERROR bad command line format\r\n"
    );
    assert_eq!(rig.feed(b"get a\r\n"), b"VALUE a 0 1\r\nx\r\nEND\r\n");
}

#[test]
fn values_over_the_limit_are_swallowed_and_remove_the_old() {
    let limited = || {
        let mut rig = rig();
        rig.settings.item_len_max = 10;
        rig
    };
    let too_large = "SERVER_ERROR object too large for cache\r\n";
    run_on(
        limited,
        &[
            ("set a 0 0 10\r\n0123456789\r\n", "STORED\r\n"),
            (
                "add a 0 0 11\r\n0123456789x\r\nget a\r\n",
                &format!("{too_large}VALUE a 0 10\r\n0123456789\r\nEND\r\n"),
            ),
            ("append a 0 0 1\r\nx\r\n", "NOT_STORED\r\n"),
            (
                "set a 0 0 11\r\n0123456789x\r\nget a\r\n",
                &format!("{too_large}END\r\n"),
            ),
            ("set a 0 0 1\r\nx\r\n", "STORED\r\n"),
            (
                "ms a 11\r\n0123456789x\r\nmg a v\r\n",
                &format!("{too_large}EN\r\n"),
            ),
            ("set a 0 0 11 noreply\r\n0123456789x\r\nmn\r\n", "MN\r\n"),
        ],
    );
    // Nothing of it is asked for at once or kept.
    let mut rig = limited();
    rig.feed(b"set a 0 0 2147483645\r\n");
    for _ in 0..100 {
        rig.feed(&[b'x'; 1000]);
        assert_eq!(rig.pending_len(), 0);
    }
    assert!(rig.asked_max <= 64, "asked for {}", rig.asked_max);
}

#[test]
fn a_value_is_asked_for_once() {
    let mut rig = rig();
    assert_eq!(rig.feed(b"set a 0 0 500000\r\nx"), b"");
    assert_eq!(rig.wants, Wants::Input(18 + 500_002));
    assert_eq!(rig.feed(&[b'y'; 499_999]), b"");
    assert_eq!(rig.feed(b"\r"), b"");
    assert_eq!(rig.feed(b"\n"), b"STORED\r\n");
    assert_eq!(rig.wants, Wants::Input(0));
}

#[test]
fn lines_without_end() {
    // A line that no command has closes the connection.
    let mut rig = rig();
    assert_eq!(rig.feed(&[b'x'; 2049]), b"CLIENT_ERROR line too long\r\n");
    assert!(rig.is_closed());
    // A line of keys may have any length, and is not kept.
    for (command, answer) in [("get", ""), ("gets", " 5"), ("gat 0", ""), ("gats 0", " 5")] {
        let mut rig = self::rig();
        rig.feed(b"ms a 1 E5\r\nx\r\n");
        let mut answers = rig.feed(command.as_bytes());
        for _ in 0..5000 {
            answers.extend(rig.feed(b" nope a"));
            assert!(rig.pending_len() <= 2048 + 10);
        }
        answers.extend(rig.feed(b"\r\n"));
        let value = format!("VALUE a 0 1{answer}\r\nx\r\n");
        assert_eq!(
            String::from_utf8_lossy(&answers),
            value.repeat(5000) + "END\r\n"
        );
        assert_eq!(rig.feed(b"mn\r\n"), b"MN\r\n");
    }
    // A key without end is refused as soon as that is known, and skipped.
    let mut rig = self::rig();
    let line = format!("get a {}", "k".repeat(3000));
    assert_eq!(
        rig.feed(line.as_bytes()),
        b"CLIENT_ERROR bad command line format\r\n"
    );
    assert_eq!(rig.feed(b"kkk get b\r\nmn\r\n"), b"MN\r\n");
}

#[test]
fn changes() {
    run(&[
        ("incr n 1\r\n", "NOT_FOUND\r\n"),
        ("set n 5 0 2\r\n10\r\n", "STORED\r\n"),
        ("incr n 5\r\n", "15\r\n"),
        ("decr n 6\r\n", "9\r\n"),
        ("get n\r\n", "VALUE n 5 2\r\n9 \r\nEND\r\n"),
        ("incr n 991\r\n", "1000\r\n"),
        ("get n\r\n", "VALUE n 5 4\r\n1000\r\nEND\r\n"),
        ("decr n 2000\r\n", "0\r\n"),
        ("get n\r\n", "VALUE n 5 4\r\n0   \r\nEND\r\n"),
        (
            "incr n 18446744073709551615\r\n",
            "18446744073709551615\r\n",
        ),
        ("incr n 2\r\n", "1\r\n"),
        (
            "incr n -1\r\n",
            "CLIENT_ERROR invalid numeric delta argument\r\n",
        ),
        (
            "incr n 18446744073709551616\r\n",
            "CLIENT_ERROR invalid numeric delta argument\r\n",
        ),
        (
            "incr n x\r\n",
            "CLIENT_ERROR invalid numeric delta argument\r\n",
        ),
        ("incr n\r\n", "ERROR\r\n"),
        ("incr n 1 noreply\r\nincr n 1\r\n", "3\r\n"),
        ("set w 0 0 3\r\nabc\r\n", "STORED\r\n"),
        (
            "incr w 1\r\n",
            "CLIENT_ERROR cannot increment or decrement non-numeric value\r\n",
        ),
        (
            "set w 0 0 0\r\n\r\nincr w 1\r\n",
            "STORED\r\nCLIENT_ERROR cannot increment or decrement non-numeric value\r\n",
        ),
        ("touch w 0\r\n", "TOUCHED\r\n"),
        ("touch nope 0\r\n", "NOT_FOUND\r\n"),
        ("touch w x\r\n", "CLIENT_ERROR invalid exptime argument\r\n"),
        ("touch w\r\n", "ERROR\r\n"),
        ("touch w 0 noreply\r\nmn\r\n", "MN\r\n"),
        ("gat 0 w\r\n", "VALUE w 0 0\r\n\r\nEND\r\n"),
        ("delete w 0\r\n", "DELETED\r\n"),
        ("delete w\r\n", "NOT_FOUND\r\n"),
        ("delete n noreply\r\nget n\r\n", "END\r\n"),
        ("delete n 0 noreply\r\nmn\r\n", "MN\r\n"),
        (
            "delete n 5\r\n",
            "CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]\r\n",
        ),
        (
            "delete n 0 0\r\n",
            "CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]\r\n",
        ),
        ("delete n 5 noreply\r\nmn\r\n", "MN\r\n"),
        ("delete\r\n", "ERROR\r\n"),
        ("delete a b c d\r\n", "ERROR\r\n"),
    ]);
}

#[test]
fn expiry() {
    let mut rig = rig();
    let start_ms = rig.keyspace.inner.now_ms;
    let mut at = |after_ms: u64, request: &str, answer: &str| {
        rig.keyspace.inner.now_ms = start_ms + after_ms;
        let got = rig.feed(request.as_bytes());
        assert_eq!(String::from_utf8_lossy(&got), answer, "to {request:?}");
    };
    let month_s = 60 * 60 * 24 * 30;
    at(0, "set a 0 10 1\r\nx\r\n", "STORED\r\n");
    at(0, "mg a t\r\n", "HD t10\r\n");
    at(1, "mg a t\r\n", "HD t10\r\n");
    at(9_999, "mg a t\r\n", "HD t1\r\n");
    at(10_000, "get a\r\n", "END\r\n");
    at(10_000, "set a 0 -1 1\r\nx\r\n", "STORED\r\n");
    at(10_000, "get a\r\n", "END\r\n");
    at(
        10_000,
        &format!("set a 0 {month_s} 1\r\nx\r\n"),
        "STORED\r\n",
    );
    at(10_000, "mg a t\r\n", &format!("HD t{month_s}\r\n"));
    // One second more is a date, in 1970.
    at(
        10_000,
        &format!("set a 0 {} 1\r\nx\r\n", month_s + 1),
        "STORED\r\n",
    );
    at(10_000, "get a\r\n", "END\r\n");
    let date_s = start_ms / 1000 + 100;
    at(
        10_000,
        &format!("set a 0 {date_s} 1\r\nx\r\n"),
        "STORED\r\n",
    );
    at(80_000, "get a\r\n", "VALUE a 0 1\r\nx\r\nEND\r\n");
    at(80_000, "touch a 30\r\n", "TOUCHED\r\n");
    at(109_999, "gat 50 a\r\n", "VALUE a 0 1\r\nx\r\nEND\r\n");
    at(159_000, "get a\r\n", "VALUE a 0 1\r\nx\r\nEND\r\n");
    at(160_000, "get a\r\n", "END\r\n");
    // append keeps what is left, a later century is a date.
    at(160_000, "set a 0 20 1\r\nx\r\n", "STORED\r\n");
    at(
        165_000,
        "append a 0 0 1\r\ny\r\nmg a t v\r\n",
        "STORED\r\nVA 2 t15\r\nxy\r\n",
    );
    at(
        165_000,
        "set a 0 7258118400 1\r\nx\r\nget a\r\n",
        "STORED\r\nVALUE a 0 1\r\nx\r\nEND\r\n",
    );
}

#[test]
fn touching_keeps_the_cas_unique() {
    let mut rig = rig();
    rig.feed(b"set a 0 0 1\r\nx\r\n");
    let before = rig.feed(b"gets a\r\n");
    for touch in [
        "touch a 100\r\n",
        "gat 100 a\r\n",
        "mg a T100\r\n",
        "mg a R200\r\n",
    ] {
        rig.feed(touch.as_bytes());
        assert_eq!(rig.feed(b"gets a\r\n"), before, "{touch:?}");
    }
    rig.feed(b"md a I\r\n");
    assert_ne!(rig.feed(b"gets a\r\n"), before);
}
