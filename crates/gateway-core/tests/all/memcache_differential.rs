//! Text and meta commands beside Debian's memcached 1.6.18: the same bytes in,
//! the same bytes out.
//!
//! Compared are every form of command of memcached's protocol document, its
//! errors, and random sequences by seed. CAS uniques are compared by the order
//! of their first appearance, remaining times to about a minute (the two have
//! clocks of different steps). Our side is also fed in pieces and through a
//! narrow output. What differs on purpose is the table `DIFFERENCES`, which a
//! test holds against both, too.

use crate::rig::random::Random;
use crate::rig::server::{Connection, Server};
use crate::rig::{Rig, now_ms};
use std::collections::HashMap;
use trefoil_gateway_core::memcache::MemcacheSession;
use trefoil_gateway_core::world::Release;

/// A command, its answer by memcached, ours, and why they differ. Before each,
/// `a` is 5 bytes with CAS unique unknown, `n` is 10.
const DIFFERENCES: &[(&str, &str, &str, &str)] = &[
    (
        "mg n v C0\r\nms n 2 c E7\r\n10\r\nmg n v C7\r\n",
        "VA 2\r\n10\r\nCLIENT_ERROR invalid flag\r\nVA 2\r\n10\r\n",
        "VA 2\r\n10\r\nHD c7\r\nHD\r\n",
        "newer specification: E supplies the CAS unique, C of mg leaves out a value that the client has",
    ),
    (
        "md a x\r\nmg a v\r\n",
        "CLIENT_ERROR invalid or duplicate flag\r\nVA 5\r\nhello\r\n",
        "HD\r\nVA 0\r\n\r\n",
        "newer specification: x removes the value and leaves the item",
    ),
    (
        "ms new 2 MA N90 s\r\nhi\r\nms a 1 s MA\r\n!\r\n",
        "NS\r\nHD\r\n",
        "HD s2\r\nHD s6\r\n",
        "newer specification: append creates with N, s returns the size",
    ),
    (
        "lru_crawler mgdump 5\r\n",
        "ERROR\r\n",
        "EN\r\n",
        "newer specification: lists as mg commands",
    ),
    (
        "mg bg== b k\r\n",
        "HD kn\r\n",
        "HD kbg== b\r\n",
        "a key is returned in base64 iff it was asked for in base64; memcached remembers how it was first stored",
    ),
    (
        "set a 4294967296 0 1\r\nset a 0 0 4294967297\r\n",
        "CLIENT_ERROR bad data chunk\r\nERROR\r\n",
        "CLIENT_ERROR bad command line format\r\nCLIENT_ERROR bad command line format\r\n",
        "flags and lengths over 32 bits are refused; 1.6.18 cuts them off, so that the next commands are taken for the value",
    ),
    (
        "set a 0 7258118400 1\r\nx\r\nget a\r\n",
        "STORED\r\nEND\r\n",
        "STORED\r\nVALUE a 0 1\r\nx\r\nEND\r\n",
        "dates after 2038 are dates",
    ),
    (
        "ma n T100 D990\r\nmg n t\r\n",
        "HD\r\nHD t-1\r\n",
        "HD\r\nHD t100\r\n",
        "T holds for a number that becomes longer, too",
    ),
    (
        "touch a 100\r\nmg a h\r\n",
        "TOUCHED\r\nHD h1\r\n",
        "TOUCHED\r\nHD h0\r\n",
        "a new expiry writes the item anew, and h and l count from the last write",
    ),
    (
        "mg a T100 Oooooooooooooooooooooooooooooooooo\r\nmg a t\r\n",
        "CLIENT_ERROR opaque token too long\r\nHD t100\r\n",
        "CLIENT_ERROR opaque token too long\r\nHD t-1\r\n",
        "a refused command changes nothing",
    ),
    (
        "lru_crawler enable\r\n",
        "ERROR failed to start lru crawler thread\r\n",
        "OK\r\n",
        "there is no crawler to be started twice",
    ),
    (
        "slabs reassign 1 50\r\n",
        "BADCLASS invalid src or dst class id\r\n",
        "NOSPARE source class has no spare pages\r\n",
        "there are no slab classes; every number that memcached could have is known",
    ),
    (
        "extstore item_size 5\r\n",
        "OK\r\n",
        "ERROR\r\n",
        "nothing is kept on disk",
    ),
    (
        "refresh_certs\r\n",
        "Error TLS not enabled\r\n",
        "ERROR\r\n",
        "certificates are not refreshed by clients",
    ),
    (
        "version\r\nwatch fetchers\r\n",
        "VERSION 1.6.18\r\nERROR cannot pipeline other commands before watch\r\n",
        "VERSION 1.6.18\r\nOK\r\n",
        "watch and metadump may follow other commands at once",
    ),
];

/// What cannot be a row of `DIFFERENCES`, because it is no answer or needs too
/// much input, with the test that shows our side.
///
/// | what | memcached | here | shown by |
/// |---|---|---|---|
/// | a line over 2,048 bytes without end that reads no keys | closed without a word | `CLIENT_ERROR line too long`, closed | `memcache_text::items::lines_without_end` |
/// | `gat`, `gats` with such a line | closed | answered | the same |
/// | a key without end | waits for ever | refused, skipped | the same |
/// | the greatest value | about 60 bytes and the key below `-I` | `-I` | `memcache_text::items::values_over_the_limit_are_swallowed_and_remove_the_old` |
/// | an error in a long get | also drops answers to earlier commands | drops its own | `memcache_text::items::a_key_that_is_too_long_ends_a_long_get` |
/// | a number counted down while answers wait, or soon after reads | may become shorter | keeps its length | `memcache_text::items::changes` |
/// | a number from 2^63 on | now and then non-numeric, for a `-` in memory behind the item | a number | – |
/// | `t` beside a `T` of the past | 2^32 less some seconds | 0 | – |
/// | slab classes | many | all items are of class 1 | `memcache_text::server::lists` |
/// | metadump | – | also `flags=`, as newer versions | the same |
const _TABLE: () = ();

/// CAS uniques of one side, in the order of their first appearance.
#[derive(Default)]
struct Uniques {
    in_order: Vec<u64>,
    numbers: HashMap<u64, usize>,
    of_key: HashMap<String, Vec<usize>>,
}

impl Uniques {
    fn number(&mut self, key: &str, unique: &str) -> String {
        let unique: u64 = unique.parse().expect("a CAS unique");
        if unique == 0 {
            return "0".to_owned();
        }
        let next = self.in_order.len();
        let number = *self.numbers.entry(unique).or_insert(next);
        if number == next {
            self.in_order.push(unique);
        }
        let of_key = self.of_key.entry(key.to_owned()).or_default();
        if of_key.last() != Some(&number) {
            of_key.push(number);
        }
        format!("#{number}")
    }

    /// Puts uniques in the places of `{number}`.
    fn fill(&self, request: &str) -> String {
        let mut filled = String::new();
        let mut rest = request;
        while let Some((before, after)) = rest.split_once('{') {
            let (number, after) = after.split_once('}').expect("a closed place");
            let number: usize = number.parse().expect("a number");
            filled.push_str(before);
            filled.push_str(&self.in_order[number].to_string());
            rest = after;
        }
        filled + rest
    }

    /// Answers with what legitimately differs replaced. `key` is the one that
    /// a meta command was for.
    fn normalise(&mut self, key: &str, answers: &[u8]) -> String {
        let mut normal = String::new();
        let mut rest = answers;
        while let Some(end) = rest.windows(2).position(|pair| pair == b"\r\n") {
            let line = String::from_utf8_lossy(&rest[..end]).into_owned();
            rest = &rest[end + 2..];
            let words: Vec<&str> = line.split(' ').collect();
            let mut value_len = None;
            let line: Vec<String> = match words[0] {
                "VALUE" => {
                    value_len = words.get(3).and_then(|len| len.parse().ok());
                    let key = words[1];
                    let with_unique = |(at, word): (usize, &&str)| match at {
                        4 => self.number(key, word),
                        _ => (*word).to_owned(),
                    };
                    words.iter().enumerate().map(with_unique).collect()
                }
                code @ ("VA" | "HD" | "EX" | "NS" | "NF" | "EN") => {
                    if code == "VA" {
                        value_len = words.get(1).and_then(|len| len.parse().ok());
                    }
                    words.iter().map(|word| self.flag(key, word)).collect()
                }
                "ME" => words.iter().map(|word| self.debug(key, word)).collect(),
                _ => words.iter().map(|&word| word.to_owned()).collect(),
            };
            normal += &line.join(" ");
            normal += "\r\n";
            if let Some(len) = value_len.filter(|len: &usize| len + 2 <= rest.len()) {
                normal += &String::from_utf8_lossy(&rest[..len + 2]);
                rest = &rest[len + 2..];
            }
        }
        normal + &String::from_utf8_lossy(rest)
    }

    fn flag(&mut self, key: &str, word: &str) -> String {
        let number = |digits: &str| digits.parse::<u64>().ok();
        match word.split_at_checked(1) {
            Some(("c", unique)) if number(unique).is_some() => {
                format!("c{}", self.number(key, unique))
            }
            Some(("t", seconds)) if number(seconds).is_some() => {
                format!("t{}", near(number(seconds).expect("checked")))
            }
            Some(("l", seconds)) if number(seconds).is_some() => "l~".to_owned(),
            _ => word.to_owned(),
        }
    }

    fn debug(&mut self, key: &str, word: &str) -> String {
        match word.split_once('=') {
            Some(("cas", unique)) => format!("cas={}", self.number(key, unique)),
            Some(("exp", "-1")) | None => word.to_owned(),
            Some(("exp", seconds)) => {
                let until: u64 = seconds.trim_start_matches('-').parse().expect("seconds");
                let sign = if seconds.starts_with('-') { "-" } else { "" };
                match near(until) {
                    0 => "exp=0".to_owned(),
                    until => format!("exp={sign}{until}"),
                }
            }
            Some((name @ ("la" | "size" | "cls"), _)) => format!("{name}=~"),
            Some(_) => word.to_owned(),
        }
    }
}

/// To the nearest hundred. A time that has passed is none; memcached, which
/// counts in 32 bits, then tells of a century.
fn near(seconds: u64) -> u64 {
    if seconds > u64::from(u32::MAX) / 2 {
        return 0;
    }
    (seconds + 50) / 100 * 100
}

/// The two sides.
pub(crate) struct Pair {
    server: Server,
    theirs: Connection,
    their_uniques: Uniques,
    ours: Rig<MemcacheSession>,
    our_uniques: Uniques,
    pieces: Option<Random>,
    history: Vec<String>,
    /// How to get the same again.
    replay: String,
}

/// Debian's.
const PROGRAM: &str = "/usr/bin/memcached";

const LAST: &[u8] = b"MN\r\n";

impl Pair {
    fn new(pieces: Option<Random>) -> Self {
        Self::with(pieces, &[])
    }

    fn with(pieces: Option<Random>, options: &[&str]) -> Self {
        Self::of(PROGRAM, Release::V1_6_18, pieces, options)
    }

    /// A memcached, and ours with the answers of this release.
    pub(crate) fn of(
        program: &str,
        release: Release,
        pieces: Option<Random>,
        options: &[&str],
    ) -> Self {
        let arguments = ["-U", "0", "-l", "127.0.0.1", "-p", "{port}", "-u", "nobody"];
        let server = Server::start(program, &[&arguments, options].concat());
        let mut theirs = server.connect();
        // CAS unique 1 is never anybody's again.
        theirs.ask(b"set a 0 0 0\r\n\r\ndelete a\r\nmn\r\n", LAST);
        let mut ours = Rig::new(MemcacheSession::new());
        ours.settings.release = release;
        if pieces.is_some() {
            ours.out_len_max = 1;
        }
        Pair {
            server,
            theirs,
            their_uniques: Uniques::default(),
            ours,
            our_uniques: Uniques::default(),
            pieces,
            history: Vec::new(),
            replay: String::new(),
        }
    }

    /// Asks both, and returns the normalised answers and whether the
    /// connection was closed: memcached's, ours.
    pub(crate) fn ask(&mut self, key: &str, request: &str) -> [(String, bool); 2] {
        self.history.push(request.to_owned());
        let their_request = self.their_uniques.fill(request) + "mn\r\n";
        let (answers, closed) = self.theirs.ask(their_request.as_bytes(), LAST);
        let theirs = self.their_uniques.normalise(key, &answers);
        if closed {
            self.theirs = self.server.connect();
        }
        self.ours.keyspace.inner.now_ms = now_ms();
        let our_request = self.our_uniques.fill(request);
        let answers = match &mut self.pieces {
            None => self.ours.feed(our_request.as_bytes()),
            Some(random) => self.ours.feed_in_pieces(our_request.as_bytes(), random),
        };
        let our_closed = self.ours.is_closed();
        if our_closed {
            self.ours.reconnect(MemcacheSession::new());
        } else {
            assert_eq!(self.ours.pending_len(), 0, "input left of {request:?}");
        }
        let ours = self.our_uniques.normalise(key, &answers);
        [(theirs, closed), (ours, our_closed)]
    }

    pub(crate) fn agree(&mut self, key: &str, request: &str) {
        let [theirs, ours] = self.ask(key, request);
        if theirs != ours {
            let from = self.history.len().saturating_sub(20);
            panic!(
                "to {request:?}\nmemcached {theirs:?}\nours      {ours:?}\nafter {:#?}\n{}",
                &self.history[from..],
                self.replay
            );
        }
    }
}

#[test]
fn differences_are_as_the_table_says() {
    for (request, their_answer, our_answer, why) in DIFFERENCES {
        let mut pair = Pair::new(None);
        pair.agree("", "set a 0 0 5\r\nhello\r\nset n 0 0 2\r\n10\r\n");
        let their_request = format!("{request}mn\r\n");
        let (theirs, _) = match request.contains("watch") {
            true => pair.theirs.ask(request.as_bytes(), b"watch\r\n"),
            false => pair.theirs.ask(their_request.as_bytes(), LAST),
        };
        let mut theirs = pair.their_uniques.normalise("a", &theirs);
        if request.contains("watch") {
            theirs += "watch\r\n";
        }
        let ours = pair.ours.feed(request.as_bytes());
        let ours = String::from_utf8_lossy(&ours).into_owned();
        assert_eq!(theirs, *their_answer, "memcached, {request:?}: {why}");
        assert_eq!(ours, *our_answer, "ours, {request:?}: {why}");
    }
}

/// Every form of command that memcached's protocol document tells of, section
/// by section, with each of its answers; then errors.
pub(crate) const FORMS: &[&str] = &[
    // Storage commands
    "set a 0 0 3\r\nabc\r\n",
    "set a 5 100 3\r\nabc\r\n",
    "set a 5 -1 3\r\nabc\r\n",
    "get a\r\n",
    "set a 5 100 0\r\n\r\n",
    "set a 65535 0 3 noreply\r\nabc\r\n",
    "get a\r\n",
    "add a 0 0 1\r\nx\r\n",
    "add b 0 0 1\r\nx\r\n",
    "add b2 0 0 1 noreply\r\nx\r\n",
    "replace b 1 0 1\r\ny\r\n",
    "replace none 1 0 1\r\ny\r\n",
    "append b 0 0 1\r\nz\r\n",
    "append none 0 0 1\r\nz\r\n",
    "prepend b 0 0 1\r\nx\r\n",
    "prepend none 0 0 1\r\nz\r\n",
    "gets b\r\n",
    "cas b 0 0 1 {0}\r\nu\r\n",
    "cas b 0 0 1 {0}\r\nu\r\n",
    "cas none 0 0 1 {0}\r\nu\r\n",
    "cas b 0 0 1 {0} noreply\r\nu\r\n",
    // Retrieval commands
    "get a b none\r\n",
    "gets a b none\r\n",
    "get none\r\n",
    "get a a a a a a a a a a a a a a a a a a a a a a a a a a a a a a b none\r\n",
    // Deletion
    "delete b\r\n",
    "delete b\r\n",
    "delete b2 noreply\r\n",
    "delete b2 0\r\n",
    "delete b2 0 noreply\r\n",
    "delete b2 1\r\n",
    "delete b2 x y\r\n",
    "delete b2 0 noreply x\r\n",
    // Increment and decrement
    "incr none 1\r\n",
    "decr none 1\r\n",
    "set n 0 0 1\r\n5\r\n",
    "incr n 5\r\n",
    "decr n 1\r\n",
    "get n\r\n",
    "decr n 100\r\n",
    "incr n 18446744073709551615\r\n",
    "incr n 1\r\n",
    "gets n\r\n",
    "incr n 1 noreply\r\n",
    "decr n 1 noreply\r\n",
    "incr n -1\r\n",
    "incr n 18446744073709551616\r\n",
    "incr n\r\n",
    "incr n 1 2 3\r\n",
    "incr a 1\r\n",
    "set n 0 0 2\r\n 7\r\n",
    "incr n 1\r\n",
    "set n 0 0 5\r\n7 abc\r\n",
    "incr n 1\r\n",
    "get n\r\n",
    "set n 0 0 2\r\n-7\r\n",
    "incr n 1\r\n",
    "set n 0 0 20\r\n99999999999999999999\r\n",
    "incr n 1\r\n",
    // Touch, get and touch
    "touch a 100\r\n",
    "touch none 100\r\n",
    "touch a 100 noreply\r\n",
    "touch a x\r\n",
    "mg a t\r\n",
    "gat 500 a none\r\n",
    "gats 500 a none\r\n",
    "gats 500 a\r\n",
    "mg a t\r\n",
    "gat x a\r\n",
    "gat 500\r\n",
    "gat\r\n",
    "gat -1 a\r\n",
    "get a\r\n",
    // Meta debug
    "ms a 5 T500 F9\r\nhello\r\n",
    "me a\r\n",
    "me none\r\n",
    "me a!! b\r\n",
    "me\r\n",
    // Meta get
    "mg a h l\r\n",
    "mg a v\r\n",
    "mg a h u l\r\n",
    "mg a s v c f t k Oopaque\r\n",
    "mg a q k\r\n",
    "mg a\r\n",
    "mg none k Oopaque\r\n",
    "mg none q k Oopaque\r\n",
    "mg bm9uZQ== b k Oopaque\r\n",
    "mg a T100\r\n",
    "mg a t\r\n",
    "mg a P/p Ll\r\n",
    "mg v N300 v c t k\r\n",
    "mg v N300 v c t k\r\n",
    "mg v R100 t\r\n",
    "ms v 3 T500\r\nabc\r\n",
    "mg v N300 R300 v t\r\n",
    "mg v N300 R1000 v t\r\n",
    "mg v N300 R1000 v t\r\n",
    "md v I T300\r\n",
    "mg v t c v\r\n",
    "mg v t c v\r\n",
    // Meta set
    "ms v 3 k b\r\nabc\r\n",
    "ms a 3 c k Oopaque\r\nabc\r\n",
    "ms a 3 q\r\nabc\r\n",
    "ms a 3 ME k\r\nabc\r\n",
    "ms a2 3 ME k\r\nabc\r\n",
    "ms a 3 MA\r\nabc\r\n",
    "ms a 3 MP\r\nxyz\r\n",
    "ms none 3 MA\r\nabc\r\n",
    "ms none 3 MP\r\nabc\r\n",
    "ms none 3 MR\r\nabc\r\n",
    "ms a 3 MR\r\nabc\r\n",
    "ms a 3 MS c\r\nabc\r\n",
    "ms a 3 C1\r\nabc\r\n",
    "ms a 3 C1 I\r\nabc\r\n",
    "mg a v\r\n",
    "mg a v\r\n",
    "ms a 3 C18446744073709551615 I\r\nabc\r\n",
    "ms a 3 C0\r\nabc\r\n",
    "ms none 3 C0\r\nabc\r\n",
    "ms a 3 MA C0\r\nabc\r\n",
    "ms a 3 MA C1\r\nabc\r\n",
    "ms none 3 C1 c k\r\nabc\r\n",
    "ms a 3 F7 T100\r\nabc\r\n",
    "mg a f t\r\n",
    "ms Zm9v 3 b k\r\nbar\r\n",
    "get foo\r\n",
    "mg Zm9v b k v\r\n",
    "me Zm9v b\r\n",
    // Meta delete
    "md a Oopaque k\r\n",
    "md a Oopaque k\r\n",
    "md a2 C1\r\n",
    "md a2 q\r\n",
    "md a2 q\r\n",
    "ms a 3 T500\r\nabc\r\n",
    "md a I\r\n",
    "mg a t v\r\n",
    "md a I q\r\n",
    // Meta arithmetic
    "ma none\r\n",
    "ma none q k O1\r\n",
    "ma m N500 J13 v t c\r\n",
    "ma m N100 J13 v t c\r\n",
    "ma m D10 v\r\n",
    "ma m MD v\r\n",
    "ma m MI v\r\n",
    "ma m M+ v k O1\r\n",
    "ma m M- D100 v\r\n",
    "ma m D18446744073709551615 v\r\n",
    "ma m v\r\n",
    "ma m C1\r\n",
    "ma m T100 t\r\n",
    "ma m q\r\n",
    "ma m q v\r\n",
    "ma m2 N0 q\r\n",
    "ma Zm9v b\r\n",
    "ma m MX\r\n",
    // Meta no-op ends every request here.
    // flush_all, version, verbosity
    "flush_all\r\n",
    "get a b n m foo\r\n",
    "flush_all 0\r\n",
    "flush_all noreply\r\n",
    "flush_all 0 noreply\r\n",
    "flush_all x\r\n",
    "flush_all 1 2 3\r\n",
    "verbosity 0\r\n",
    "verbosity 0 noreply\r\n",
    "verbosity\r\n",
    "verbosity x\r\n",
    "verbosity noreply\r\n",
    "version\r\n",
    "cache_memlimit 64\r\n",
    "cache_memlimit 64 noreply\r\n",
    "cache_memlimit 1\r\n",
    "cache_memlimit x\r\n",
    "cache_memlimit 1000000001\r\n",
    "cache_memlimit\r\n",
    "shutdown\r\n",
    "stats reset\r\n",
    "stats nonsense\r\n",
    "stats detail\r\n",
    "stats detail x\r\n",
    "stats cachedump\r\n",
    "stats cachedump x y\r\n",
    "stats cachedump 64 0\r\n",
    // Slabs, queues, crawler
    "slabs reassign 1 1\r\n",
    "slabs reassign 1 2\r\n",
    "slabs reassign -1 2\r\n",
    "slabs reassign x y\r\n",
    "slabs reassign\r\n",
    "slabs automove 0\r\n",
    "slabs automove 1\r\n",
    "slabs automove 3\r\n",
    "slabs automove x\r\n",
    "slabs automove ratio 0.9\r\n",
    "slabs automove ratio\r\n",
    "slabs\r\n",
    "lru tune 10 25 0.1 2.0\r\n",
    "lru tune 50 50 0.1 2.0\r\n",
    "lru tune 10 25 0 2.0\r\n",
    "lru tune x 25 0 2.0\r\n",
    "lru tune\r\n",
    "lru mode flat\r\n",
    "lru mode segmented\r\n",
    "lru mode x\r\n",
    "lru temp_ttl -1\r\n",
    "lru temp_ttl x\r\n",
    "lru\r\n",
    "lru_crawler\r\n",
    "lru_crawler sleep 100\r\n",
    "lru_crawler sleep 1000001\r\n",
    "lru_crawler sleep x\r\n",
    "lru_crawler tocrawl 100\r\n",
    "lru_crawler tocrawl x\r\n",
    "lru_crawler crawl all\r\n",
    "lru_crawler crawl x\r\n",
    "lru_crawler crawl 64\r\n",
    "lru_crawler crawl\r\n",
    "lru_crawler x\r\n",
    "lru_crawler x y\r\n",
    "lru_crawler metadump x\r\n",
    "lru_crawler metadump 64\r\n",
    "watch nonsense\r\n",
    // Errors of lines
    "\r\n",
    "\n",
    " \r\n",
    "x\r\n",
    "xyz\r\n",
    "GET a\r\n",
    "mx\r\n",
    "getx a\r\n",
    "get\r\n",
    "gets\r\n",
    "  get   a   b  \r\n",
    "get a\n",
    "get a\0b\r\n",
    "bget a\r\n",
    "set\r\n",
    "set a\r\n",
    "set a 0 0\r\n",
    "set a 0 0 1 2 3\r\n",
    "set a 0 0 noreply\r\n",
    "set a x 0 1\r\n",
    "set a 0 x 1\r\n",
    "set a 0 0 x\r\n",
    "set a 0 0 -1\r\n",
    "set a 0 0 2147483647\r\n",
    "set a -1 0 1\r\n",
    "set a +1 0 +1\r\nx\r\n",
    "set a 1\t 0 1\r\nx\r\n",
    "get a\r\n",
    "set a 0 0 3\r\nabcdef\r\n",
    "set a 0 0 3 noreply\r\nabcdef\r\n",
    "ms a 3 q\r\nabcdef\r\n",
    "cas a 0 0 1\r\n",
    "cas a 0 0 1 x\r\n",
    "cas a 0 0 1 -1\r\n",
    "touch\r\n",
    "touch a\r\n",
    "touch a noreply\r\n",
    "touch a 1 2 3\r\n",
    "delete\r\n",
    "mg\r\n",
    "mg a v v\r\n",
    "mg a !\r\n",
    "mg a \u{e4}\r\n",
    "mg a Tx\r\n",
    "mg a T\r\n",
    "mg a Nx\r\n",
    "mg a Rx\r\n",
    "mg a Cx\r\n",
    "mg a Fx\r\n",
    "mg a Fx Tx\r\n",
    "mg a Tx Fx\r\n",
    "mg a M\r\n",
    "mg a Mxx\r\n",
    "mg a Jx\r\n",
    "mg a Dx\r\n",
    "mg !!! b\r\n",
    "mg a 1 2 3 4 5 6 7 8 9 a b c d e f g h i j k l m n o p\r\n",
    "ms\r\n",
    "ms a\r\n",
    "ms a x\r\n",
    "ms a -1\r\n",
    "ms a 1 v v\r\nx\r\n",
    "ms a 1 !\r\nx\r\n",
    "ms a 1 Tx\r\nx\r\n",
    "ms a 1 Fx\r\nx\r\n",
    "ms a 1 MX\r\nx\r\n",
    "ms a 1 Mxx\r\nx\r\n",
    "ms !!! 1 b\r\nx\r\n",
    "ms a 1 Oooooooooooooooooooooooooooooooooo\r\nx\r\n",
    "ms a 1 1 2 3 4 5 6 7 8 9 a b c d e f g h i j k l m n o p\r\n",
    "md\r\n",
    "md a v v\r\n",
    "md a !\r\n",
    "md a Cx\r\n",
    "md a Oooooooooooooooooooooooooooooooooo\r\n",
    "md a 1 2 3 4 5 6 7 8 9 a b c d e f g h i j k l m n o p\r\n",
    "ma\r\n",
    "ma a Dx\r\n",
    "ma a Mxx\r\n",
    "ma a v v\r\n",
    "quit\r\n",
    "quit x\r\n",
    "GET / HTTP/1.1\r\n",
    "HTTP/1.1\r\n",
    "get / HTTP/1.1\r\n",
    "set / HTTP/1.1\r\n",
    "POST\r\n",
];

fn forms(pieces: Option<Random>) {
    let mut pair = Pair::new(pieces);
    for request in FORMS {
        let key = request.split([' ', '\r']).nth(1).unwrap_or_default();
        pair.agree(key, request);
    }
    for len in [250, 251] {
        let key = "k".repeat(len);
        for request in [
            format!("set {key} 0 0 1\r\nx\r\n"),
            format!("get {key}\r\n"),
            format!("get a {key}\r\n"),
            format!("gat 0 {key}\r\n"),
            format!("touch {key} 0\r\n"),
            format!("incr {key} 1\r\n"),
            format!("mg {key}\r\n"),
            format!("md {key} C1\r\n"),
            format!("ma {key}\r\n"),
            format!("me {key}\r\n"),
            format!("delete {key}\r\n"),
        ] {
            pair.agree(&key, &request);
        }
    }
    // Over the limit of both.
    for command in ["set", "add", "append"] {
        let value = "x".repeat(2 << 20);
        let request = format!("{command} big 0 0 {}\r\n{value}\r\n", value.len());
        pair.agree("big", "set big 0 0 1\r\nx\r\n");
        pair.agree("big", &request);
        pair.agree("big", "get big\r\n");
    }
    let big = format!(
        "ms big {} ME\r\n{}\r\nget big\r\n",
        2 << 20,
        "x".repeat(2 << 20)
    );
    pair.agree("big", &big);
    // A value of many pieces, and a long line of keys.
    let value = "y".repeat(900_000);
    pair.agree(
        "big",
        &format!("set big 0 0 {}\r\n{value}\r\n", value.len()),
    );
    pair.agree("big", "get big\r\n");
    pair.agree("big", &format!("get{}\r\n", " a none".repeat(2000)));
}

#[test]
fn every_form_of_command() {
    forms(None);
}

#[test]
fn a_list_of_items() {
    let mut pair = Pair::new(None);
    pair.agree("", "set a/b 0 0 5\r\nhello\r\nms YSBi 2 b\r\nhi\r\n");
    let list = b"lru_crawler metadump all\r\n";
    let (theirs, _) = pair.theirs.ask(list, b"END\r\n");
    let ours = pair.ours.feed(list);
    // Those words whose values are of the same kind, and the names of others.
    let lines = |answers: &[u8]| {
        let text = String::from_utf8_lossy(answers);
        let mut lines: Vec<String> = text
            .lines()
            .filter(|line| *line != "END")
            .map(|line| {
                let word = |word: &str| match word.split_once('=') {
                    Some((name @ ("la" | "cas" | "size" | "cls"), value)) => {
                        assert!(value.parse::<u64>().is_ok_and(|value| value > 0), "{line}");
                        name.to_owned()
                    }
                    _ => word.to_owned(),
                };
                let words: Vec<_> = line.split(' ').map(word).collect();
                words.join(" ").replace(" flags=0", "")
            })
            .collect();
        lines.sort();
        lines
    };
    assert_eq!(lines(&theirs).len(), 2);
    assert_eq!(lines(&theirs), lines(&ours));
}

#[test]
fn every_form_of_command_in_pieces() {
    forms(Some(Random::new(7)));
}

/// A random command: the key, and the bytes.
fn random_command(random: &mut Random, uniques: &Uniques) -> (String, String) {
    const KEYS: &[&str] = &["a", "b", "n", "m", "longer-key"];
    const TIMES: &[&str] = &["0", "100", "500", "1000", "-1"];
    let key = (*random.pick(KEYS)).to_owned();
    let time = *random.pick(TIMES);
    let noreply = if random.below(6) == 0 { " noreply" } else { "" };
    let value = match random.below(6) {
        0 => String::new(),
        // Of numbers from 2^63 on memcached looks for a sign behind the item,
        // in memory that is not the item's.
        1 => "9223372036854000000".to_owned(),
        2 => "line\r\nend\r\n".to_owned(),
        3 => "word".repeat(1 + random.below(30) as usize),
        _ => random.below(2000).to_string(),
    };
    let tail = if random.below(40) == 0 { "zz" } else { "" };
    let len = value.len();
    let flags = random.below(3);
    let delta = random.below(1500);
    let of_key = uniques.of_key.get(&key);
    let unique = match (random.below(8), of_key) {
        (0, _) => "1".to_owned(),
        (1, _) => "18446744073709551615".to_owned(),
        (2, _) => "0".to_owned(),
        (3, Some(all)) => format!("{{{}}}", random.pick(all)),
        (_, Some(all)) => format!("{{{}}}", all[all.len() - 1]),
        _ => "1".to_owned(),
    };
    let mut some = |all: &[&str]| {
        let mut chosen = String::new();
        let start = random.below(all.len() as u64) as usize;
        for at in 0..all.len() {
            if random.below(3) == 0 {
                chosen += " ";
                chosen += all[(start + at) % all.len()];
            }
        }
        chosen
    };
    let compare = format!("C{unique}");
    let ttl = format!("T{time}");
    let meta_get = some(&["v", "c", "t", "s", "f", "k", "O1", "q", "u"]);
    let meta_change = some(&["N500", "R300", &ttl]);
    let meta_set = some(&[&compare, "I", "c", "k", "O2", "q", &ttl, "F3"]);
    let meta_delete = some(&[&compare, "I", "q", "k", "O3", &ttl]);
    let meta_count = some(&["N100", "J7", "D100", &compare, "v", "c", "t", "q", "k"]);
    // With a number that does not become longer: see `DIFFERENCES`.
    let meta_touch = some(&[&ttl, "N500", "J7", "v", "t"]);
    let mode = *random.pick(&["", "", "", " ME", " MA", " MP", " MR", " MS"]);
    let sign = *random.pick(&["", " M+", " MD"]);
    let other = *random.pick(KEYS);
    let command = match random.below(22) {
        0 | 1 => format!("set {key} {flags} {time} {len}{noreply}\r\n{value}{tail}\r\n"),
        2 => format!("add {key} {flags} {time} {len}{noreply}\r\n{value}{tail}\r\n"),
        3 => format!("replace {key} {flags} {time} {len}{noreply}\r\n{value}\r\n"),
        4 => format!("append {key} {flags} {time} {len}{noreply}\r\n{value}\r\n"),
        5 => format!("prepend {key} {flags} {time} {len}{noreply}\r\n{value}\r\n"),
        6 => format!("cas {key} {flags} {time} {len} {unique}{noreply}\r\n{value}{tail}\r\n"),
        7 => format!("get {key} {other} {key}\r\n"),
        8 => format!("gets {key} {other}\r\n"),
        9 => format!("gats {time} {key} {other}\r\n"),
        10 => format!("touch {key} {time}{noreply}\r\n"),
        11 => format!("incr {key} {delta}{noreply}\r\n"),
        12 => format!("decr {key} {delta}{noreply}\r\n"),
        13 => format!("delete {key}{noreply}\r\n"),
        14 if delta < 100 => format!("flush_all{noreply}\r\n"),
        14 | 15 => format!("mg {key}{meta_get}\r\n"),
        16 | 17 => format!("mg {key}{meta_get}{meta_change}\r\n"),
        18 | 19 => format!("ms {key} {len}{mode}{meta_set}\r\n{value}{tail}\r\n"),
        20 => format!("md {key}{meta_delete}\r\n"),
        21 if delta < 500 => format!("ma {key} D0{meta_touch}\r\n"),
        _ => format!("ma {key}{sign}{meta_count}\r\n"),
    };
    (key, command)
}

fn random_sequence(seed: u64, count: usize) {
    let mut random = Random::new(seed);
    let pieces = (seed % 2 == 1).then(|| Random::new(seed));
    // Its queues hold on to items that were read, at random moments, and then
    // a number does not keep its length.
    let mut pair = Pair::with(pieces, &["-o", "no_lru_maintainer"]);
    pair.replay = format!("again with {SEED}={seed}");
    for _ in 0..count {
        let (key, command) = random_command(&mut random, &pair.our_uniques);
        pair.agree(&key, &command);
        // What it left behind.
        pair.agree(&key, &format!("mg {key} v c t f u\r\n"));
    }
}

/// Names the first of the seeds.
const SEED: &str = "TREFOIL_DIFFERENTIAL_SEED";

#[test]
fn random_sequences() {
    let first = std::env::var(SEED).map_or(0, |seed| seed.parse().expect("a number"));
    for seed in first..first + 8 {
        random_sequence(seed, 3000);
    }
}
