//! What concerns the server and its connections, not one item.

use super::{rig, run, run_on};
use trefoil_gateway_core::keyspace::Fault;
use trefoil_gateway_core::session::Wants;
use trefoil_gateway_core::world::{
    Command, Ending, ServerRequest, WATCH_FETCHERS, WATCH_MUTATIONS,
};
use trefoil_layout::op::Rejection;

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
        "key=a%20b exp={expires_s} la={now_s} cas=6 fetch=no cls=1 size=20 flags=0\n\
         key=b exp=-1 la={now_s} cas=5 fetch=no cls=1 size=19 flags=3\nEND\r\n"
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
