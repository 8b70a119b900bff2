//! What one connection's commands cost the others: a drive ends after so much work
//! of the keyspace, however short the commands and their answers are.

use crate::rig::Rig;
use trefoil_gateway_core::keyspace::{
    Access, Decide, HOME_WORK, Halt, Item, Keyspace, LOOKUP_WORK, ListedItem, NewItem, Totals,
    Updated,
};
use trefoil_gateway_core::memcache::MemcacheSession;
use trefoil_gateway_core::memory::MemoryKeyspace;
use trefoil_gateway_core::resp::RespSession;
use trefoil_gateway_core::session::{DRIVE_WORK_MAX, Session, Wants};
use trefoil_gateway_core::world::{Introduction, Now, Progress, World};
use trefoil_layout::Version;

const VALUE_LEN: usize = 1 << 20;
const COMMAND_COUNT: usize = 50;
/// Pages of an index that holds nothing, and the places that each looks at.
const EMPTY_PAGES: u64 = 200;
const PAGE_HOMES: u64 = 4096;

/// A keyspace whose index is large and holds one item, which no listing shows.
struct Sparse {
    inner: MemoryKeyspace,
    work: u64,
}

impl Sparse {
    fn new() -> Self {
        let mut inner = MemoryKeyspace::new(1_700_000_000_000);
        let value = vec![b'v'; VALUE_LEN];
        let item = NewItem {
            value: &value,
            ..NewItem::default()
        };
        inner.set(b"k", &item).unwrap();
        Sparse { inner, work: 0 }
    }
}

impl Keyspace for Sparse {
    fn get(
        &mut self,
        key: &[u8],
        access: Access,
        with: &mut dyn FnMut(Option<&Item<'_>>),
    ) -> Result<(), Halt> {
        self.work += LOOKUP_WORK;
        self.inner.get(key, access, with)
    }

    fn set(&mut self, key: &[u8], item: &NewItem<'_>) -> Result<Version, Halt> {
        self.inner.set(key, item)
    }

    fn update(&mut self, key: &[u8], decide: &mut Decide<'_>) -> Result<Updated, Halt> {
        self.work += LOOKUP_WORK;
        self.inner.update(key, decide)
    }

    fn flush(&mut self, at_ms: u64) -> Result<(), Halt> {
        self.inner.flush(at_ms)
    }

    fn list(
        &mut self,
        cursor: u64,
        _count: usize,
        _each: &mut dyn FnMut(&ListedItem<'_>),
    ) -> Result<u64, Halt> {
        self.work += PAGE_HOMES * HOME_WORK;
        Ok(Some(cursor + 1)
            .filter(|next| *next < EMPTY_PAGES)
            .unwrap_or(0))
    }

    fn totals(&mut self) -> Result<Totals, Halt> {
        self.inner.totals()
    }

    fn set_memory_limit(&mut self, bytes: u64) -> Result<(), Halt> {
        self.inner.set_memory_limit(bytes)
    }

    fn value_len_max(&self) -> usize {
        self.inner.value_len_max()
    }

    fn work(&self) -> u64 {
        self.work + self.inner.work()
    }

    fn charge(&mut self, work: u64) {
        self.work += work;
    }
}

/// The answers to `input`, and the work of each drive.
fn drives(session: impl Session, input: &[u8]) -> (Vec<u8>, Vec<u64>) {
    drives_beside(0, session, input)
}

/// The same while there are so many other connections.
fn drives_beside(others: u64, mut session: impl Session, input: &[u8]) -> (Vec<u8>, Vec<u64>) {
    let rig = Rig::new(RespSession::new());
    let (settings, mut notes) = (rig.settings, rig.notes);
    for number in 0..others {
        let said = Introduction::default();
        notes.introduced.insert(1000 + number, said);
    }
    let mut keyspace = Sparse::new();
    let now = Now {
        unix_ms: 1_700_000_000_000,
        monotonic_ns: 1,
    };
    let (mut rest, mut out, mut works) = (input, Vec::new(), Vec::new());
    loop {
        let before = keyspace.work();
        let mut world = World {
            keyspace: &mut keyspace,
            observer: &mut notes,
            settings: &settings,
            now,
            next_now: now,
            progress: Progress::Begun,
            connection: 7,
        };
        let out_len_max = out.len() + (64 << 10);
        let driven = session.drive(rest, &mut out, out_len_max, &mut world);
        rest = &rest[driven.consumed..];
        works.push(keyspace.work() - before);
        match driven.wants {
            Wants::Turn => {}
            wants => {
                assert_eq!((wants, rest.len()), (Wants::Input(0), 0));
                return (out, works);
            }
        }
    }
}

/// No drive does more than it should but for its last command, and all are answered.
fn assert_bounded(session: impl Session, command: &[u8], answer: &[u8], command_work: u64) {
    let (out, works) = drives(session, &command.repeat(COMMAND_COUNT));
    assert_eq!(out, answer.repeat(COMMAND_COUNT));
    let most = works.iter().max().unwrap();
    assert!(
        *most < DRIVE_WORK_MAX + command_work,
        "{} did {most} in one drive",
        String::from_utf8_lossy(command),
    );
}

#[test]
fn short_answers_of_long_values_leave_others_their_turn() {
    let long = 2 * VALUE_LEN as u64;
    let resp = [
        ("GETRANGE k 0 0\r\n", "$1\r\nv\r\n"),
        ("EXPIRE k 100\r\n", ":1\r\n"),
        ("SETRANGE k 0 v\r\n", ":1048576\r\n"),
        ("MGET none\r\nSTRLEN k\r\n", "*1\r\n$-1\r\n:1048576\r\n"),
    ];
    for (command, answer) in resp {
        assert_bounded(
            RespSession::new(),
            command.as_bytes(),
            answer.as_bytes(),
            long,
        );
    }
    let text = [
        ("touch k 100\r\n", "TOUCHED\r\n"),
        ("mg k t\r\n", "HD t-1\r\n"),
    ];
    for (command, answer) in text {
        assert_bounded(
            MemcacheSession::new(),
            command.as_bytes(),
            answer.as_bytes(),
            long,
        );
    }
    // Touch, of the binary protocol: header, expiry, key.
    let mut touch = vec![0; 24];
    touch[..6].copy_from_slice(&[0x80, 0x1c, 0, 1, 4, 0]);
    touch[11] = 5;
    touch.extend_from_slice(&[0, 0, 0, 100, b'k']);
    let (out, works) = drives(MemcacheSession::new(), &touch.repeat(COMMAND_COUNT));
    assert_eq!(
        out.iter().filter(|byte| **byte == 0x81).count(),
        COMMAND_COUNT
    );
    assert!(*works.iter().max().unwrap() < DRIVE_WORK_MAX + long);
}

/// What is stored counts, also where nothing was there before.
#[test]
fn values_that_are_made_leave_others_their_turn() {
    let command_work = 2 * VALUE_LEN as u64;
    let input: String = (0..COMMAND_COUNT)
        .map(|number| format!("SETRANGE fresh{number} 1048575 x\r\n"))
        .collect();
    let (out, works) = drives(RespSession::new(), input.as_bytes());
    assert_eq!(out, b":1048576\r\n".repeat(COMMAND_COUNT));
    let lookups = COMMAND_COUNT as u64 * LOOKUP_WORK;
    assert_eq!(
        works.iter().sum::<u64>(),
        (COMMAND_COUNT * VALUE_LEN) as u64 + lookups
    );
    assert!(*works.iter().max().unwrap() < DRIVE_WORK_MAX + command_work);
}

/// Commands that ask for neither answers nor items, all of which are here.
#[test]
fn commands_without_effect_leave_others_their_turn() {
    const LEN: usize = 2 << 20;
    let drives_of = |session: &dyn Fn(&[u8]) -> usize, command: &[u8], before: &[u8]| {
        let many = command.repeat(LEN / command.len());
        let count = session(&[before, &many].concat());
        assert!(count > 8, "{count} for {command:?}");
    };
    let resp = |input: &[u8]| drives(RespSession::new(), input).1.len();
    let memcache = |input: &[u8]| drives(MemcacheSession::new(), input).1.len();
    drives_of(&resp, b"\r\n", b"");
    drives_of(&resp, b"*0\r\n", b"");
    drives_of(&resp, b"PING\r\n", b"CLIENT REPLY OFF\r\n");
    drives_of(&memcache, b"verbosity 1 noreply\r\n", b"");
    drives_of(&memcache, b"flush_all 99999 noreply\r\n", b"");
    // A quiet flush of the binary protocol, that is put off.
    let mut flush = [0; 28];
    flush[..5].copy_from_slice(&[0x80, 0x18, 0, 0, 4]);
    flush[11] = 4;
    flush[26] = 0x7f;
    drives_of(&memcache, &flush, b"");
    // The same in a transaction, whose bytes have come before.
    let ping = b"*1\r\n$4\r\nPING\r\n".repeat(60_000);
    let transaction = [&b"CLIENT REPLY OFF\r\nMULTI\r\n"[..], &ping].concat();
    let exec = [&transaction[..], b"EXEC\r\n"].concat();
    let executed = resp(&exec) - resp(&transaction);
    assert!(executed > 4, "{executed}");
}

/// A line of many keys is read in parts.
#[test]
fn many_keys_in_a_line_leave_others_their_turn() {
    let keys = " a".repeat(30_000);
    let batch = 32 * 2 * LOOKUP_WORK;
    for command in ["get", "gets", "gat 100", "gats 100"] {
        let input = format!("{command}{keys}\r\n");
        let (out, works) = drives(MemcacheSession::new(), input.as_bytes());
        assert_eq!(out, b"END\r\n");
        let (most, all) = (works.iter().max().unwrap(), works.iter().sum::<u64>());
        assert!(*most < DRIVE_WORK_MAX + batch, "{command}: {most}");
        assert!(all >= 30_000 * LOOKUP_WORK, "{command}: {all}");
    }
}

/// Reports and flushes look at far more than they answer.
#[test]
fn reports_and_flushes_leave_others_their_turn() {
    for command in [
        "INFO",
        "CONFIG GET maxmemory",
        "CONFIG RESETSTAT",
        "DBSIZE",
        "SLOWLOG LEN",
        "SLOWLOG GET",
        "COMMAND LIST",
        "COMMAND INFO get",
        "COMMAND DOCS get",
        "COMMAND",
        "FLUSHALL",
    ] {
        let input = format!("{command}\r\n").repeat(COMMAND_COUNT);
        let (_, works) = drives(RespSession::new(), input.as_bytes());
        assert!(
            works.len() > COMMAND_COUNT / 5,
            "{command}: {}",
            works.len()
        );
    }
    // However few of them are shown.
    let input = "CLIENT LIST ID 5\r\n".repeat(COMMAND_COUNT);
    let (_, works) = drives_beside(100, RespSession::new(), input.as_bytes());
    assert!(works.len() > COMMAND_COUNT / 5, "{}", works.len());
    for command in ["stats", "stats reset", "stats settings", "flush_all"] {
        let input = format!("{command}\r\n").repeat(COMMAND_COUNT);
        let (_, works) = drives(MemcacheSession::new(), input.as_bytes());
        assert!(
            works.len() > COMMAND_COUNT / 5,
            "{command}: {}",
            works.len()
        );
    }
    // Stat and flush of the binary protocol.
    for opcode in [0x10, 0x08] {
        let mut request = [0; 24];
        request[..2].copy_from_slice(&[0x80, opcode]);
        let (_, works) = drives(MemcacheSession::new(), &request.repeat(COMMAND_COUNT));
        assert!(works.len() > COMMAND_COUNT / 5, "{opcode}: {}", works.len());
    }
}

/// A list of all keys is whole before it is answered, and leaves in parts.
#[test]
fn a_long_list_of_keys_leaves_others_their_turn() {
    const KEYS: usize = 20_000;
    let mut rig = Rig::new(RespSession::new());
    // Else a transaction is executed at a stretch.
    rig.keyspace.is_alone = false;
    for number in 0..KEYS {
        let key = format!("{number:0>50}");
        rig.keyspace
            .set(key.as_bytes(), &NewItem::default())
            .unwrap();
    }
    let transaction = "MULTI\r\nGET a\r\nKEYS *\r\nPING\r\nEXEC\r\n";
    for (command, rest) in [
        ("KEYS *\r\nPING\r\n", "+PONG\r\n"),
        (transaction, "+PONG\r\n"),
    ] {
        let answer = rig.feed(command.as_bytes());
        assert!(answer.ends_with(rest.as_bytes()));
        let lines = answer.split(|byte| *byte == b'\n');
        assert_eq!(lines.filter(|line| line.len() == 51).count(), KEYS);
        // Twice what is answered at once, and what stands before it.
        assert!(rig.answered_max < 400 << 10, "{}", rig.answered_max);
    }
}

/// Long keys under a pattern that is tried at each of their bytes.
#[test]
fn patterns_on_long_keys_leave_others_their_turn() {
    const KEY_LEN: usize = 8 << 10;
    const KEYS: usize = 200;
    let pattern = format!("*{}b", "a".repeat(1000));
    let key_work = (KEY_LEN * 1001) as u64;
    let command = format!("KEYS {pattern}\r\n");
    let mut rig = Rig::new(RespSession::new());
    for number in 0..KEYS {
        let key = format!("{}{number}", "a".repeat(KEY_LEN));
        rig.keyspace
            .set(key.as_bytes(), &NewItem::default())
            .unwrap();
    }
    let hit = format!("{}b", "a".repeat(1500));
    rig.keyspace
        .set(hit.as_bytes(), &NewItem::default())
        .unwrap();
    let work = rig.keyspace.inner.work();
    let answer = rig.feed(command.as_bytes());
    let expected = format!("*1\r\n${}\r\n{hit}\r\n", hit.len());
    assert_eq!(answer, expected.as_bytes());
    // A drive ends behind each step, and a step after so much that it is over.
    let did = rig.keyspace.inner.work() - work;
    assert!(did >= KEYS as u64 * key_work / 2, "{did}");
    assert!(
        rig.drives as u64 >= did / (2 * key_work),
        "{} drives",
        rig.drives
    );
    // SCAN lists all, a part at a time.
    let (mut cursor, mut found, mut calls) = ("0".to_owned(), 0, 0);
    while calls == 0 || cursor != "0" {
        calls += 1;
        let work = rig.keyspace.inner.work();
        let command = format!("SCAN {cursor} COUNT 1000 MATCH {pattern}\r\n");
        let answer = String::from_utf8(rig.feed(command.as_bytes())).unwrap();
        let lines: Vec<&str> = answer.split("\r\n").collect();
        cursor = lines[2].to_owned();
        found += lines[3][1..].parse::<usize>().unwrap();
        let did = rig.keyspace.inner.work() - work;
        assert!(did < 4 * key_work + (1 << 21), "{did}");
    }
    assert_eq!(found, 1);
}

/// Lines of many fields take longer than as many bytes of values: lists of them are told in
/// short pieces, also where a cell is asked for many items at a time.
#[test]
fn lists_of_items_leave_others_their_turn() {
    const KEYS: usize = 10_000;
    for page_len in [64, 512] {
        let mut rig = Rig::new(MemcacheSession::new());
        rig.keyspace.page_len = page_len;
        for number in 0..KEYS {
            let key = format!("key:{number:08}");
            rig.keyspace
                .set(key.as_bytes(), &NewItem::default())
                .unwrap();
        }
        let answer = rig.feed(b"lru_crawler metadump all\r\n");
        let lines = answer.split(|byte| *byte == b'\n');
        assert_eq!(lines.filter(|line| line.starts_with(b"key=")).count(), KEYS);
        // Of some 200 items each.
        assert!(rig.drives > KEYS / 200, "{page_len}: {}", rig.drives);
    }
}

#[test]
fn a_listing_that_finds_nothing_leaves_others_their_turn() {
    let page = PAGE_HOMES * HOME_WORK;
    for command in [
        "lru_crawler metadump all\r\n",
        "lru_crawler mgdump hash\r\n",
    ] {
        let (out, works) = drives(MemcacheSession::new(), command.as_bytes());
        assert!(out.ends_with(b"END\r\n") || out.ends_with(b"EN\r\n"));
        assert_eq!(works.iter().sum::<u64>(), EMPTY_PAGES * page);
        assert!(*works.iter().max().unwrap() < DRIVE_WORK_MAX + page);
    }
    let (out, works) = drives(RespSession::new(), b"KEYS *\r\nPING\r\n");
    assert_eq!(out, b"*0\r\n+PONG\r\n");
    assert_eq!(works.iter().sum::<u64>(), EMPTY_PAGES * page);
    assert!(*works.iter().max().unwrap() < DRIVE_WORK_MAX + page);
    // SCAN ends early; its client asks again.
    let (out, works) = drives(RespSession::new(), b"SCAN 0 COUNT 10000\r\n");
    assert!(
        out.starts_with(b"*2\r\n$1\r\n"),
        "{}",
        String::from_utf8_lossy(&out)
    );
    assert!(works.iter().sum::<u64>() <= (1 << 20) + page, "{works:?}");
}

/// Tools ask for one class after the other; only the first question goes through all
/// items, unless something else was said in between, or it was too long ago.
#[test]
fn classes_that_were_found_to_be_empty_are_not_looked_for_again() {
    let ask = |input: &str| {
        let (out, works) = drives(MemcacheSession::new(), input.as_bytes());
        let pages = works.iter().sum::<u64>() / (PAGE_HOMES * HOME_WORK);
        (String::from_utf8(out).unwrap(), pages)
    };
    let many: String = (1..64)
        .map(|class| format!("stats cachedump {class} 0\r\n"))
        .collect();
    assert_eq!(ask(&many), ("END\r\n".repeat(63), EMPTY_PAGES));
    let (_, pages) = ask("stats cachedump 1 0\r\nmn\r\nstats cachedump 2 0\r\n");
    assert_eq!(pages, 2 * EMPTY_PAGES);
}
