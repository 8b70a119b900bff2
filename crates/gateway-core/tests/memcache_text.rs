//! memcached's text and meta commands as scripts: a request, its answer.
//!
//! Every script runs three times: as it stands, with its input cut at random
//! places, and with room for one byte of output at a time.

mod rig;

use rig::Rig;
use rig::random::Random;
use trefoil_gateway_core::keyspace::Fault;
use trefoil_gateway_core::memcache::MemcacheSession;
use trefoil_gateway_core::session::Wants;
use trefoil_gateway_core::world::{
    Command, Ending, ServerRequest, WATCH_FETCHERS, WATCH_MUTATIONS,
};
use trefoil_layout::op::Rejection;

type TextRig = Rig<MemcacheSession>;
type Script<'a> = &'a [(&'a str, &'a str)];

fn rig() -> TextRig {
    Rig::new(MemcacheSession::new())
}

fn run(script: Script<'_>) {
    run_on(rig, script);
}

fn run_on(rig: impl Fn() -> TextRig, script: Script<'_>) {
    let mut whole = rig();
    let mut pieces = rig();
    let mut narrow = rig();
    narrow.out_len_max = 1;
    let mut random = Random::new(1);
    for (request, answer) in script {
        let got = whole.feed(request.as_bytes());
        assert_eq!(String::from_utf8_lossy(&got), *answer, "to {request:?}");
        let got = pieces.feed_in_pieces(request.as_bytes(), &mut random);
        assert_eq!(
            String::from_utf8_lossy(&got),
            *answer,
            "to {request:?} in pieces"
        );
        let got = narrow.feed(request.as_bytes());
        assert_eq!(
            String::from_utf8_lossy(&got),
            *answer,
            "to {request:?} through a narrow output"
        );
    }
}

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

#[test]
fn meta_get() {
    let long = "k".repeat(251);
    let opaque = "O".repeat(32);
    run(&[
        ("mn\r\n", "MN\r\n"),
        ("mn what ever\r\n", "MN\r\n"),
        ("mg a\r\n", "EN\r\n"),
        ("mg a q\r\nmn\r\n", "MN\r\n"),
        ("mg a Oxy k\r\n", "EN Oxy ka\r\n"),
        ("mg YQ== Oxy b k\r\n", "EN Oxy kYQ== b\r\n"),
        ("ms a 3 F9 E50\r\nabc\r\n", "HD\r\n"),
        ("mg a h l\r\n", "HD h0 l0\r\n"),
        ("mg a h\r\n", "HD h1\r\n"),
        ("mg a\r\n", "HD\r\n"),
        ("mg a v\r\n", "VA 3\r\nabc\r\n"),
        (
            "mg a s v c f t k Oq\r\n",
            "VA 3 s3 c50 f9 t-1 ka Oq\r\nabc\r\n",
        ),
        ("mg a k Oq t\r\n", "HD ka Oq t-1\r\n"),
        ("mg YQ== b k v\r\n", "VA 3 kYQ== b\r\nabc\r\n"),
        ("mg a v q\r\n", "VA 3\r\nabc\r\n"),
        ("mg a v C50\r\n", "HD\r\n"),
        ("mg a v C51 c\r\n", "VA 3 c50\r\nabc\r\n"),
        ("mg a t T30\r\n", "HD t-1\r\n"),
        ("mg a T20 t\r\n", "HD t20\r\n"),
        ("mg a P/path Lhint\r\n", "HD\r\n"),
        ("mg a T-1\r\nmg a\r\n", "HD\r\nEN\r\n"),
        ("mg\r\n", "ERROR\r\n"),
        (
            &format!("mg {long}\r\n"),
            "CLIENT_ERROR bad command line format\r\n",
        ),
        ("mg a v v\r\n", "CLIENT_ERROR duplicate flag\r\n"),
        ("mg a !\r\n", "CLIENT_ERROR invalid flag\r\n"),
        ("mg a \u{e4}\r\n", "CLIENT_ERROR duplicate flag\r\n"),
        (
            "mg a Tx\r\n",
            "CLIENT_ERROR bad token in command line format\r\n",
        ),
        (
            "mg a N\r\n",
            "CLIENT_ERROR bad token in command line format\r\n",
        ),
        (
            "mg a Rx\r\n",
            "CLIENT_ERROR bad token in command line format\r\n",
        ),
        (
            "mg a Cx\r\n",
            "CLIENT_ERROR bad token in command line format\r\n",
        ),
        (
            "mg a Ex\r\n",
            "CLIENT_ERROR bad token in command line format\r\n",
        ),
        ("mg a Fx\r\n", "CLIENT_ERROR bad command line format\r\n"),
        (
            "mg a Mxx\r\n",
            "CLIENT_ERROR incorrect length for M token\r\n",
        ),
        (
            "mg a Jx\r\n",
            "CLIENT_ERROR invalid numeric initial value\r\n",
        ),
        (
            "mg a Dx\r\n",
            "CLIENT_ERROR invalid numeric delta value\r\n",
        ),
        ("mg a b\r\n", "CLIENT_ERROR error decoding key\r\n"),
        (&format!("mg a {opaque}\r\n"), &format!("EN {opaque}\r\n")),
        (
            &format!("mg a {opaque}O\r\n"),
            "CLIENT_ERROR opaque token too long\r\n",
        ),
        (
            "mg a b c f h k l q s t u v O1 N1 R1 T1 P L\r\n",
            "CLIENT_ERROR error decoding key\r\n",
        ),
        (
            "mg a b c f h k l q s t u v O1 N1 R1 T1 P L I\r\n",
            "CLIENT_ERROR options flags are too long\r\n",
        ),
        ("mx a\r\n", "ERROR\r\n"),
    ]);
}

#[test]
fn anti_dogpile() {
    run(&[
        // A miss makes an item, and one client wins.
        ("mg a s c E40 N30 t\r\n", "HD s0 c40 t30 W\r\n"),
        ("mg a s c N30 t\r\n", "HD s0 c40 t30 Z\r\n"),
        ("mg a v\r\n", "VA 0 Z\r\n\r\n"),
        ("ms a 3 T90 C40\r\nabc\r\n", "HD\r\n"),
        ("mg a v N30 t\r\n", "VA 3 t90\r\nabc\r\n"),
        // Before it expires, one client wins again.
        ("mg a t R30\r\n", "HD t90\r\n"),
        ("mg a t R100\r\n", "HD t90 W\r\n"),
        ("mg a t R100\r\n", "HD t90 Z\r\n"),
        ("ms a 3 E60\r\nabc\r\n", "HD\r\n"),
        ("mg a t R100\r\n", "HD t-1\r\n"),
        // A stale item is served, and one client wins.
        ("md a I T30 E70\r\n", "HD\r\n"),
        ("mg a t c v\r\n", "VA 3 t30 c70 X W\r\nabc\r\n"),
        ("mg a t c v\r\n", "VA 3 t30 c70 Z X\r\nabc\r\n"),
        ("get a\r\n", "VALUE a 0 3\r\nabc\r\nEND\r\n"),
        // An older value is better than none, but stays stale.
        ("ms a 2 C69 c\r\nxy\r\n", "EX c0\r\n"),
        ("ms a 2 C71 I c\r\nxy\r\n", "EX c0\r\n"),
        ("ms a 2 C69 I E71 c\r\nxy\r\n", "HD c71\r\n"),
        ("mg a t v\r\n", "VA 2 t30 Z X\r\nxy\r\n"),
        // The winner's makes it fresh.
        ("ms a 2 C71\r\nzz\r\n", "HD\r\n"),
        ("mg a t v\r\n", "VA 2 t-1\r\nzz\r\n"),
        // Once stale again, the right is given anew.
        ("md a I\r\n", "HD\r\n"),
        ("mg a\r\n", "HD X W\r\n"),
        ("md a I\r\n", "HD\r\n"),
        ("mg a\r\n", "HD X W\r\n"),
    ]);
}

#[test]
fn an_older_derived_cas_unique_may_store_a_stale_value() {
    let mut rig = rig();
    rig.feed(b"set a 0 0 3\r\nold\r\n");
    let answer = String::from_utf8(rig.feed(b"mg a c\r\n")).expect("text");
    let unique = answer.trim().trim_start_matches("HD c");
    rig.feed(b"md a I\r\n");
    rig.feed(b"mg a\r\n");
    let request = format!("ms a 3 I C{unique}\r\nnew\r\nmg a v\r\n");
    assert_eq!(rig.feed(request.as_bytes()), b"HD\r\nVA 3 Z X\r\nnew\r\n");
}

#[test]
fn meta_set() {
    let long = "k".repeat(251);
    run(&[
        ("ms a 2\r\nhi\r\n", "HD\r\n"),
        ("ms a 2 q\r\nhi\r\nmn\r\n", "MN\r\n"),
        ("ms a 2 k Oz c E7 s\r\nhi\r\n", "HD ka Oz c7 s2\r\n"),
        ("ms a 2 ME k c\r\nhi\r\n", "NS ka c0\r\n"),
        ("ms a 2 ME q\r\nhi\r\n", "NS\r\n"),
        ("ms b 2 MR\r\nhi\r\n", "NS\r\n"),
        ("ms b 2 ME F5\r\nhi\r\n", "HD\r\n"),
        ("ms b 2 MA s\r\nho\r\n", "HD s4\r\n"),
        ("ms b 2 MP s F9\r\nha\r\n", "HD s6\r\n"),
        ("mg b v f t\r\n", "VA 6 f5 t-1\r\nhahiho\r\n"),
        ("ms c 2 MA\r\nhi\r\n", "NS\r\n"),
        ("ms c 2 MA N20 T50\r\nhi\r\n", "HD\r\n"),
        ("ms c 2 MP N70\r\nhi\r\n", "HD\r\n"),
        ("mg c v t\r\n", "VA 4 t20\r\nhihi\r\n"),
        ("ms c 1 MS E9\r\nx\r\n", "HD\r\n"),
        ("ms c 1 C8\r\ny\r\n", "EX\r\n"),
        ("ms c 1 MA C8\r\ny\r\n", "EX\r\n"),
        ("ms c 1 MR C9 c E10\r\ny\r\n", "HD c10\r\n"),
        (
            "ms c 1 MA C10\r\ny\r\nget c\r\n",
            "HD\r\nVALUE c 0 2\r\nyy\r\nEND\r\n",
        ),
        ("ms d 1 C8\r\ny\r\n", "NF\r\n"),
        ("ms Zm9v 3 b k\r\nbar\r\n", "HD kZm9v b\r\n"),
        ("get foo\r\n", "VALUE foo 0 3\r\nbar\r\nEND\r\n"),
        ("ms\r\n", "ERROR\r\n"),
        ("ms a\r\n", "CLIENT_ERROR bad command line format\r\n"),
        ("ms a x\r\n", "CLIENT_ERROR bad command line format\r\n"),
        ("ms a -1\r\n", "CLIENT_ERROR bad command line format\r\n"),
        (
            &format!("ms {long} 1\r\n"),
            "CLIENT_ERROR bad command line format\r\n",
        ),
        ("ms a 2 c c\r\nhi\r\n", "CLIENT_ERROR duplicate flag\r\n"),
    ]);
    run(&[
        (
            "ms a 2 MX\r\nhi\r\n",
            "CLIENT_ERROR invalid mode for ms M token\r\n",
        ),
        ("ms a 2 b\r\nhi\r\n", "CLIENT_ERROR error decoding key\r\n"),
        ("ms a 2 !\r\nhi\r\n", "CLIENT_ERROR invalid flag\r\n"),
        (
            "ms a 2 Fx q\r\nhi\r\n",
            "CLIENT_ERROR bad command line format\r\n",
        ),
        ("ms a 2 q\r\nhixx", "CLIENT_ERROR bad data chunk\r\n"),
        ("mn\r\n", "MN\r\n"),
    ]);
}

#[test]
fn meta_delete() {
    run(&[
        ("md a\r\n", "NF\r\n"),
        ("md a q k O1\r\n", "NF ka O1\r\n"),
        ("ms a 1 E5 F3\r\nx\r\nmd a C6 O2\r\n", "HD\r\nEX O2\r\n"),
        ("md a C5 k\r\nmg a\r\n", "HD ka\r\nEN\r\n"),
        ("ms a 1\r\nx\r\nmd a q\r\nmg a\r\n", "HD\r\nEN\r\n"),
        // Only the value goes, and flags and expiry with it.
        (
            "ms a 1 E5 F3 T90\r\nx\r\nmd a x\r\nmg a v c f t\r\n",
            "HD\r\nHD\r\nVA 0 c5 f0 t-1\r\n\r\n",
        ),
        (
            "ms a 1 E5 F3\r\nx\r\nmd a x I E6 T30\r\nmg a v c f t\r\n",
            "HD\r\nHD\r\nVA 0 c6 f0 t30 X W\r\n\r\n",
        ),
        ("md\r\n", "ERROR\r\n"),
        ("md a ! \r\n", "CLIENT_ERROR invalid or duplicate flag\r\n"),
        ("md a q q\r\n", "CLIENT_ERROR invalid or duplicate flag\r\n"),
        ("md a Cx\r\n", "CLIENT_ERROR invalid or duplicate flag\r\n"),
    ]);
}

#[test]
fn meta_arithmetic() {
    run(&[
        ("ma n\r\n", "NF\r\n"),
        ("ma n k O1 q\r\n", "NF kn O1\r\n"),
        ("ma n N90 J13 v t\r\n", "VA 2 t90\r\n13\r\n"),
        ("ma n N90 J13 v t\r\n", "VA 2 t90\r\n14\r\n"),
        ("ma n D10 v\r\n", "VA 2\r\n24\r\n"),
        ("ma n MD D20 v\r\n", "VA 1\r\n4\r\n"),
        ("get n\r\n", "VALUE n 0 2\r\n4 \r\nEND\r\n"),
        ("ma n M- D20 v\r\n", "VA 1\r\n0\r\n"),
        (
            "ma n M+ D18446744073709551615 v\r\n",
            "VA 20\r\n18446744073709551615\r\n",
        ),
        ("ma n MI v\r\n", "VA 1\r\n0\r\n"),
        ("ma n E9 c k O3\r\n", "HD c9 kn O3\r\n"),
        ("ma n C8\r\n", "EX\r\n"),
        ("ma n C9 T30 t\r\n", "HD t30\r\n"),
        ("ma n q v\r\nmn\r\n", "MN\r\n"),
        ("ma bg== b k v\r\n", "VA 1 kbg== b\r\n4\r\n"),
        (
            "ms w 1\r\nx\r\nma w\r\n",
            "HD\r\nCLIENT_ERROR cannot increment or decrement non-numeric value\r\n",
        ),
        (
            "ma n MX\r\n",
            "CLIENT_ERROR invalid mode for ma M token\r\n",
        ),
        ("ma n Dx\r\n", "CLIENT_ERROR invalid or duplicate flag\r\n"),
        ("ma\r\n", "ERROR\r\n"),
        ("ma m N0 q\r\n", "HD\r\n"),
    ]);
}

#[test]
fn meta_debug() {
    run(&[
        ("me a\r\n", "EN\r\n"),
        ("ms a 2 E4 T30\r\nhi\r\n", "HD\r\n"),
        (
            "me a\r\n",
            "ME a exp=-30 la=0 cas=4 fetch=no cls=1 size=27\r\n",
        ),
        (
            "mg a\r\nme YQ== b\r\n",
            "HD\r\nME YQ== exp=-30 la=0 cas=4 fetch=yes cls=1 size=27\r\n",
        ),
        ("me\r\n", "CLIENT_ERROR bad command line format\r\n"),
        ("me a b\r\n", "CLIENT_ERROR bad command line format\r\n"),
    ]);
}

#[test]
fn the_server() {
    run(&[
        ("version\r\n", "VERSION 1.6.18\r\n"),
        ("verbosity\r\n", "ERROR\r\n"),
        ("verbosity 1\r\n", "OK\r\n"),
        (
            "verbosity x\r\n",
            "CLIENT_ERROR bad command line format\r\n",
        ),
        ("verbosity 1 noreply\r\nverbosity noreply\r\n", ""),
        ("stats\r\n", "STAT pid 1\r\nSTAT uptime 2\r\nEND\r\n"),
        ("stats settings\r\n", "STAT maxbytes 3\r\nEND\r\n"),
        ("stats items\r\n", "END\r\n"),
        ("stats nonsense\r\n", "ERROR\r\n"),
        ("stats reset\r\n", "RESET\r\n"),
        (
            "stats detail\r\n",
            "CLIENT_ERROR usage: stats detail on|off|dump\r\n",
        ),
        ("stats detail on\r\n", "OK\r\n"),
        (
            "stats detail dump\r\n",
            "SERVER_ERROR stats detail is not available here\r\n",
        ),
        ("cache_memlimit\r\n", "ERROR\r\n"),
        ("cache_memlimit x\r\n", "ERROR\r\n"),
        (
            "cache_memlimit 7\r\n",
            "MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m\r\n",
        ),
        (
            "cache_memlimit 2000000000\r\n",
            "MEMLIMIT_ADJUST_FAILED input value is megabytes not bytes\r\n",
        ),
        ("cache_memlimit 64\r\n", "OK\r\n"),
        (
            "set a 0 0 1\r\nx\r\nflush_all\r\nget a\r\n",
            "STORED\r\nOK\r\nEND\r\n",
        ),
        ("flush_all noreply\r\nflush_all 0 noreply\r\n", ""),
        (
            "flush_all x\r\n",
            "CLIENT_ERROR invalid exptime argument\r\n",
        ),
        ("flush_all -1\r\n", "OK\r\n"),
        ("flush_all 1 2 3\r\n", "ERROR\r\n"),
        ("shutdown\r\n", "ERROR: shutdown not enabled\r\n"),
        (
            "lru_crawler crawl all\r\nlru_crawler crawl 1,2\r\nlru_crawler crawl x\r\nlru_crawler crawl 64\r\n",
            "OK\r\nOK\r\nBADCLASS invalid class id\r\nBADCLASS invalid class id\r\n",
        ),
        (
            "lru_crawler sleep 1\r\nlru_crawler sleep x\r\nlru_crawler sleep 1000001\r\n",
            "OK\r\nCLIENT_ERROR bad command line format\r\nCLIENT_ERROR sleep must be one second or less\r\n",
        ),
        (
            "lru_crawler tocrawl 1\r\nlru_crawler tocrawl x\r\nlru_crawler enable\r\nlru_crawler disable\r\nlru_crawler\r\n",
            "OK\r\nCLIENT_ERROR bad command line format\r\nOK\r\nOK\r\nERROR\r\n",
        ),
        (
            "lru mode flat\r\nlru mode x\r\nlru\r\nlru temp_ttl 5\r\nlru temp_ttl x\r\n",
            "OK\r\nERROR\r\nERROR\r\nOK\r\nERROR\r\n",
        ),
        (
            "lru tune 10 20 0.2 2.0\r\nlru tune 60 60 1 1\r\nlru tune 1 1 0 1\r\nlru tune\r\n",
            "OK\r\nERROR hot and warm pcts must not exceed 80\r\nERROR hot/warm age factors must be greater than 0\r\nERROR\r\n",
        ),
        (
            "slabs reassign 1 2\r\nslabs reassign 1 1\r\nslabs reassign 1 99\r\nslabs reassign a b\r\nslabs reassign\r\n",
            "NOSPARE source class has no spare pages\r\nSAME src and dst class are identical\r\nBADCLASS invalid src or dst class id\r\nCLIENT_ERROR bad command line format\r\nERROR\r\n",
        ),
        (
            "slabs automove 1\r\nslabs automove 5\r\nslabs automove x\r\nslabs automove ratio 0.5\r\nslabs automove ratio\r\nslabs\r\n",
            "OK\r\nERROR\r\nCLIENT_ERROR bad command line format\r\nOK\r\nERROR\r\nERROR\r\n",
        ),
        ("watch nonsense\r\n", "ERROR\r\n"),
    ]);
}

#[test]
fn a_delayed_flush_is_the_servers() {
    let mut rig = rig();
    let now_ms = rig.keyspace.inner.now_ms;
    assert_eq!(
        rig.feed(b"flush_all 10\r\nverbosity 3\r\n"),
        b"OK\r\nOK\r\n"
    );
    assert_eq!(
        rig.notes.requests,
        [
            ServerRequest::FlushAt(now_ms + 10_000),
            ServerRequest::Verbosity(3)
        ]
    );
}

#[test]
fn endings() {
    for request in ["quit\r\n", "GET / HTTP/1.1\r\n", "quit now\r\n"] {
        let mut rig = rig();
        assert_eq!(rig.feed(request.as_bytes()), b"", "{request:?}");
        assert!(rig.is_closed(), "{request:?}");
    }
    let mut rig = rig();
    rig.settings.shutdown_allowed = true;
    assert_eq!(
        rig.feed(b"shutdown now\r\n"),
        b"CLIENT_ERROR invalid shutdown mode\r\n"
    );
    assert_eq!(rig.feed(b"shutdown graceful\r\n"), b"");
    assert!(rig.is_closed());
    assert_eq!(rig.notes.requests, [ServerRequest::Shutdown]);
}

#[test]
fn watching() {
    let mut rig = rig();
    assert_eq!(rig.feed(b"watch fetchers mutations\r\n"), b"OK\r\n");
    assert_eq!(rig.wants, Wants::Events);
    // Commands still work, and then events come again.
    assert_eq!(rig.feed(b"mn\r\n"), b"MN\r\n");
    assert_eq!(rig.wants, Wants::Events);
}

#[test]
fn what_changes_an_item_looks_it_up_for_those_who_watch() {
    let commands: &[(&[u8], Option<usize>)] = &[
        (b"set k 0 0 2\r\n10\r\n", None),
        (b"add k 0 0 1\r\n1\r\n", Some(2)),
        (b"append k 0 0 1\r\n0\r\n", Some(2)),
        (b"incr k 5\r\n", Some(3)),
        (b"decr k 5\r\n", Some(3)),
        (b"cas k 0 0 1 7\r\n1\r\n", Some(3)),
        (b"ms k 4\r\n1000\r\n", Some(3)),
        (b"ma k\r\n", Some(4)),
        (b"md k\r\n", Some(4)),
        (b"replace k 0 0 1\r\n1\r\n", None),
        (b"delete k\r\n", None),
    ];
    for watched in [0, WATCH_MUTATIONS, WATCH_FETCHERS] {
        let mut rig = rig();
        rig.notes.watched = watched;
        for (command, _) in commands {
            rig.feed(command);
        }
        let found = commands.iter().enumerate();
        let lookups: Vec<_> = found
            .map(|(before, (_, found))| (before, b"k".to_vec(), *found))
            .collect();
        let expected = if watched == WATCH_FETCHERS {
            lookups
        } else {
            Vec::new()
        };
        assert_eq!(rig.notes.lookups, expected);
    }
    // What only reads has one line of its own.
    let mut rig = rig();
    rig.notes.watched = WATCH_FETCHERS;
    rig.feed(b"get k\r\nmg k v\r\ntouch k 1\r\ngat 1 k\r\n");
    assert!(rig.notes.lookups.is_empty());
}

#[test]
fn a_flush_takes_the_place_of_one_that_was_put_off() {
    let mut rig = rig();
    rig.feed(b"flush_all 10\r\nflush_all\r\n");
    let at_ms = rig.keyspace.inner.now_ms / 1000 * 1000;
    let [
        ServerRequest::FlushAt(put_off_ms),
        ServerRequest::FlushNoMore,
    ] = rig.notes.requests[..]
    else {
        panic!("{:?}", rig.notes.requests);
    };
    assert!(
        (at_ms + 9000..at_ms + 11_000).contains(&put_off_ms),
        "{put_off_ms}"
    );
}

#[test]
fn lists_of_a_class() {
    let mut rig = rig();
    rig.feed(
        format!(
            "set a 0 0 2\r\nhi\r\nset b 0 0 66560\r\n{}\r\n",
            "x".repeat(66560)
        )
        .as_bytes(),
    );
    let keys = |answer: Vec<u8>| -> Vec<u8> {
        let lines = answer.split(|byte| *byte == b'\n');
        lines
            .filter_map(|line| line.strip_prefix(b"key=")?.first().copied())
            .collect()
    };
    assert_eq!(keys(rig.feed(b"lru_crawler metadump all\r\n")), b"ab");
    assert_eq!(keys(rig.feed(b"lru_crawler metadump 1\r\n")), b"a");
    assert_eq!(keys(rig.feed(b"lru_crawler metadump 31,5\r\n")), b"b");
    assert_eq!(rig.feed(b"lru_crawler metadump 2\r\n"), b"END\r\n");
    let cached = |class: u32| format!("stats cachedump {class} 0\r\n").into_bytes();
    assert!(rig.feed(&cached(31)).starts_with(b"ITEM b [66560 b; "));
    assert!(rig.feed(&cached(1)).starts_with(b"ITEM a [2 b; "));
    assert_eq!(rig.feed(&cached(30)), b"END\r\n");
}

#[test]
fn lists() {
    let mut rig = rig();
    rig.feed(b"ms b 2 E5 F3\r\nhi\r\nms YSBi 1 b E6 T30\r\nx\r\n");
    let now_s = rig.keyspace.inner.now_ms / 1000;
    let expires_s = (rig.keyspace.inner.now_ms + 30_000) / 1000;
    let lines = format!(
        "key=a%20b exp={expires_s} la={now_s} cas=6 fetch=no cls=1 size=28 flags=0\n\
         key=b exp=-1 la={now_s} cas=5 fetch=no cls=1 size=27 flags=3\nEND\r\n"
    );
    for request in [
        "metadump all",
        "metadump hash",
        "metadump 1",
        "metadump 2,1",
    ] {
        let got = rig.feed(format!("lru_crawler {request}\r\n").as_bytes());
        assert_eq!(String::from_utf8_lossy(&got), lines, "{request}");
    }
    let cases = [
        ("lru_crawler metadump 2\r\n", "END\r\n"),
        (
            "lru_crawler metadump x\r\n",
            "BADCLASS invalid class id\r\n",
        ),
        (
            "lru_crawler mgdump all\r\nmn\r\n",
            "mg YSBi b\r\nmg b\r\nEN\r\nMN\r\n",
        ),
        ("lru_crawler mgdump 3\r\n", "EN\r\n"),
        ("stats cachedump 1 0\r\n", "ITEM b [2 b; 0 s]\r\nEND\r\n"),
        ("stats cachedump 2 0\r\n", "END\r\n"),
        (
            "stats cachedump 64 0\r\n",
            "CLIENT_ERROR Illegal slab id\r\n",
        ),
        (
            "stats cachedump x 0\r\n",
            "CLIENT_ERROR bad command line format\r\n",
        ),
        ("stats cachedump 1\r\n", "CLIENT_ERROR bad command line\r\n"),
    ];
    for (request, answer) in cases {
        let got = rig.feed(request.as_bytes());
        assert_eq!(String::from_utf8_lossy(&got), answer, "{request:?}");
    }
    // Long lists leave in pieces.
    for n in 0..1000 {
        rig.feed(format!("set k{n} 0 0 1\r\nx\r\n").as_bytes());
    }
    rig.out_len_max = 100;
    let got = rig.feed(b"lru_crawler metadump all\r\nmn\r\n");
    assert_eq!(got.iter().filter(|&&byte| byte == b'\n').count(), 1004);
    let got = rig.feed(b"stats cachedump 1 10\r\n");
    assert_eq!(got.iter().filter(|&&byte| byte == b'\n').count(), 11);
}

#[test]
fn authentication() {
    let locked = || {
        let mut rig = rig();
        rig.settings.authentication = true;
        rig
    };
    run_on(
        locked,
        &[
            ("version\r\n", "CLIENT_ERROR unauthenticated\r\n"),
            ("get a\r\n", "CLIENT_ERROR unauthenticated\r\n"),
            ("set auth 0 0 x\r\n", "CLIENT_ERROR unauthenticated\r\n"),
            (
                "set auth 0 0 99999\r\n",
                "CLIENT_ERROR auth token too long\r\n",
            ),
            (
                "set auth 0 0 2\r\nme\r\n",
                "CLIENT_ERROR bad authentication token format\r\n",
            ),
            (
                "set auth 0 0 8\r\nme wrong\r\n",
                "CLIENT_ERROR authentication failure\r\n",
            ),
            (
                "set auth 0 0 9\r\nme secretxx",
                "CLIENT_ERROR bad command line termination\r\n",
            ),
            ("get a\r\n", "CLIENT_ERROR unauthenticated\r\n"),
            ("set auth 0 0 9\r\nme secret\r\n", "STORED\r\n"),
            ("get auth\r\n", "END\r\n"),
            ("set auth 0 0 2\r\nhi\r\n", "STORED\r\n"),
            ("get auth\r\n", "VALUE auth 0 2\r\nhi\r\nEND\r\n"),
        ],
    );
}

#[test]
fn faults_are_server_errors_and_keep_in_step() {
    let faults = [
        (
            Fault::Inquorate,
            "SERVER_ERROR no quorum of replicas agrees on this key\r\n",
        ),
        (
            Fault::Unavailable("backend 3\r\nis down".to_owned()),
            "SERVER_ERROR backend 3  is down\r\n",
        ),
        (
            Fault::Rejected(Rejection::NoMemory),
            "SERVER_ERROR out of memory storing object\r\n",
        ),
    ];
    for (fault, line) in faults {
        let mut rig = rig();
        rig.keyspace.fault = Some(fault);
        for request in [
            "get a\r\n",
            "get a b c\r\n",
            "gats 0 a b\r\n",
            "set a 0 0 1\r\nx\r\n",
            "add a 0 0 1\r\nx\r\n",
            "cas a 0 0 1 1\r\nx\r\n",
            "delete a\r\n",
            "touch a 1\r\n",
            "flush_all\r\n",
            "mg a v\r\n",
            "mg a q\r\n",
            "mg a N1 q\r\n",
            "ms a 1 q\r\nx\r\n",
            "md a q\r\n",
            "me a\r\n",
            "lru_crawler metadump all\r\n",
        ] {
            let got = rig.feed(format!("{request}mn\r\n").as_bytes());
            let expected = format!("{line}MN\r\n");
            assert_eq!(String::from_utf8_lossy(&got), expected, "{request:?}");
        }
        for request in ["incr a 1\r\n", "ma a\r\n"] {
            let got = rig.feed(format!("{request}mn\r\n").as_bytes());
            let expected = format!("{}MN\r\n", line.replace(" storing object", ""));
            assert_eq!(String::from_utf8_lossy(&got), expected, "{request:?}");
        }
        for request in ["set a 0 0 1 noreply\r\nx\r\n", "incr a 1 noreply\r\n"] {
            assert_eq!(rig.feed(format!("{request}mn\r\n").as_bytes()), b"MN\r\n");
        }
    }
}

#[test]
fn what_the_observer_is_told() {
    use Command::*;
    use Ending::*;
    let cases: [(&str, &[(Command, Ending)]); 19] = [
        ("get a b\r\n", &[(Get, Miss), (Get, Miss)]),
        ("set a 0 0 2\r\n10\r\n", &[(Set, Hit)]),
        ("gets a b\r\n", &[(Get, Hit), (Get, Miss)]),
        ("gat 0 a b\r\n", &[(GetAndTouch, Hit), (GetAndTouch, Miss)]),
        ("touch a 0\r\n", &[(Touch, Hit)]),
        ("add a 0 0 1\r\nx\r\n", &[(Set, Refused)]),
        ("replace b 0 0 1\r\nx\r\n", &[(Set, Miss)]),
        ("cas a 0 0 1 1\r\nx\r\n", &[(Cas, Refused)]),
        ("cas b 0 0 1 1\r\nx\r\n", &[(Cas, Miss)]),
        ("incr a 1\r\n", &[(Incr, Hit)]),
        ("decr b 1\r\n", &[(Decr, Miss)]),
        ("mg a v\r\n", &[(Get, Hit)]),
        ("mg a T0\r\n", &[(GetAndTouch, Hit)]),
        ("ms a 1\r\nx\r\n", &[(Set, Hit)]),
        ("ma a\r\n", &[(Incr, ClientError)]),
        ("md a\r\n", &[(Delete, Hit)]),
        ("delete a\r\n", &[(Delete, Miss)]),
        ("set a 0 0 9999999\r\n", &[(Set, ClientError)]),
        ("version\r\n", &[]),
    ];
    let mut rig = rig();
    for (request, expected) in cases {
        rig.notes.done.clear();
        rig.feed(request.as_bytes());
        let got: Vec<_> = rig
            .notes
            .done
            .iter()
            .map(|(command, ending, ..)| (*command, *ending))
            .collect();
        assert_eq!(got, expected, "{request:?}");
    }
}

#[test]
fn the_first_byte_decides() {
    let mut rig = rig();
    let mut noop = [0; 24];
    noop[..2].copy_from_slice(&[0x80, 0x0a]);
    let answer = rig.feed(&noop);
    assert_eq!((answer.len(), answer[0], answer[1]), (24, 0x81, 0x0a));
}
