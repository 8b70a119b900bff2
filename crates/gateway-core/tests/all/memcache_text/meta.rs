//! The meta commands.

use super::{rig, run};

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
            "ME a exp=-30 la=0 cas=4 fetch=no cls=1 size=19\r\n",
        ),
        (
            "mg a\r\nme YQ== b\r\n",
            "HD\r\nME YQ== exp=-30 la=0 cas=4 fetch=yes cls=1 size=19\r\n",
        ),
        ("me\r\n", "CLIENT_ERROR bad command line format\r\n"),
        ("me a b\r\n", "CLIENT_ERROR bad command line format\r\n"),
    ]);
}
