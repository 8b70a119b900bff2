//! Any bytes as input of a session: it never panics, consumes no more than
//! there is, asks for no more input than its limits allow, does not run away
//! with its output, and gives the same answers however the input is cut.
//!
//! The quick and repeatable version of `fuzz/fuzz_targets/memcache.rs` and
//! `resp.rs`: pieces of real requests, put together and spoilt by seed.

use crate::rig::Rig;
use crate::rig::random::Random;
use trefoil_gateway_core::memcache::MemcacheSession;
use trefoil_gateway_core::memcache::binary::BinarySession;
use trefoil_gateway_core::resp::RespSession;
use trefoil_gateway_core::session::{Session, Wants};

const ITEM_LEN_MAX: usize = 2000;
const SEEDS: u64 = 20_000;

/// Pieces of RESP, some of them nonsense.
const RESP_PIECES: &[&[u8]] = &[
    b"*1\r\n$4\r\nPING\r\n",
    b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n",
    b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$3\r\n123\r\n",
    b"*4\r\n$4\r\nMGET\r\n$1\r\na\r\n$1\r\nb\r\n$1\r\nc\r\n",
    b"*5\r\n$4\r\nMSET\r\n$1\r\na\r\n$1\r\n1\r\n$1\r\nb\r\n$1\r\n2\r\n",
    b"*3\r\n$3\r\nDEL\r\n$1\r\na\r\n$1\r\nb\r\n",
    b"*2\r\n$4\r\nINCR\r\n$1\r\na\r\n",
    b"*4\r\n$4\r\nSCAN\r\n$1\r\n0\r\n$5\r\nMATCH\r\n$3\r\n[a*\r\n",
    b"*5\r\n$3\r\nSET\r\n$1\r\na\r\n$1\r\nv\r\n$2\r\nPX\r\n$3\r\n100\r\n",
    b"*4\r\n$8\r\nSETRANGE\r\n$1\r\na\r\n$4\r\n1990\r\n$20\r\n01234567890123456789\r\n",
    b"*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n",
    b"*1\r\n$4\r\nINFO\r\n",
    b"*2\r\n$5\r\nWATCH\r\n$1\r\na\r\n",
    b"*1\r\n$5\r\nMULTI\r\n",
    b"*1\r\n$4\r\nEXEC\r\n",
    b"*1\r\n$7\r\nDISCARD\r\n",
    b"*5\r\n$6\r\nMSETNX\r\n$1\r\na\r\n$1\r\n1\r\n$1\r\nb\r\n$1\r\n2\r\n",
    b"*3\r\n$6\r\nRENAME\r\n$1\r\na\r\n$1\r\nb\r\n",
    b"*3\r\n$8\r\nRENAMENX\r\n$1\r\nb\r\n$1\r\na\r\n",
    b"*4\r\n$4\r\nCOPY\r\n$1\r\na\r\n$1\r\nc\r\n$7\r\nREPLACE\r\n",
    b"*2\r\n$4\r\nKEYS\r\n$1\r\n*\r\n",
    b"*3\r\n$6\r\nCLIENT\r\n$5\r\nREPLY\r\n$3\r\nOFF\r\n",
    b"*3\r\n$6\r\nCLIENT\r\n$5\r\nREPLY\r\n$4\r\nSKIP\r\n",
    b"*3\r\n$6\r\nCLIENT\r\n$5\r\nREPLY\r\n$2\r\nON\r\n",
    b"*5\r\n$6\r\nCLIENT\r\n$4\r\nLIST\r\n$2\r\nID\r\n$1\r\n7\r\n$1\r\nx\r\n",
    b"*4\r\n$4\r\nEVAL\r\n$8\r\nreturn 1\r\n$1\r\n1\r\n$1\r\na\r\n",
    b"*3\r\n$5\r\nFCALL\r\n$1\r\nf\r\n$1\r\n0\r\n",
    b"*2\r\n$8\r\nFUNCTION\r\n$4\r\nLIST\r\n",
    b"*5\r\n$7\r\nCOMMAND\r\n$7\r\nGETKEYS\r\n$4\r\nCOPY\r\n$1\r\na\r\n$1\r\nb\r\n",
    b"set a \"b\\x41\"\r\n",
    b"get a\r\n",
    b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$2500\r\n",
    b"*2\r\n$4\r\nECHO\r\n$2001\r\n",
    b"*99999\r\n$4\r\nMGET\r\n",
    b"*4000000\r\n",
    b"$5\r\nhello\r\n",
    b"$536870912\r\n",
    b"*-1\r\n",
    b"\r\n",
    b"'",
];

const TEXT_PIECES: &[&[u8]] = &[
    b"get a b c\r\n",
    b"set a 0 0 3\r\nabc\r\n",
    b"set a 0 0 2500\r\n",
    b"ms a 3 T0 c\r\nabc\r\n",
    b"mg a v t f s k O1\r\n",
    b"incr a 1\r\n",
    b"gat 10 a\r\n",
    b"stats\r\n",
    b"flush_all\r\n",
    b"mn\r\n",
    b"set a 0 0 -1\r\n",
    b"\r\n",
];

/// A request of the binary protocol, more or less.
fn binary_piece(random: &mut Random) -> Vec<u8> {
    let opcode = random.below(0x26) as u8;
    let key_len = random.below(4) as u16;
    let extras_len = *random.pick(&[0u8, 0, 4, 8, 20]);
    let value_len = *random.pick(&[0u32, 0, 3, 2001]);
    let mut bytes = vec![0x80, opcode];
    bytes.extend(key_len.to_be_bytes());
    bytes.extend([extras_len, 0, 0, 0]);
    let body_len = u32::from(key_len) + u32::from(extras_len) + value_len;
    bytes.extend(body_len.to_be_bytes());
    bytes.extend([0; 12]);
    bytes.extend((0..body_len).map(|_| *random.pick(b"ab0")));
    bytes
}

fn pieces(random: &mut Random, from: &[&[u8]]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..1 + random.below(8) {
        if from.is_empty() {
            bytes.extend(binary_piece(random));
        } else {
            bytes.extend_from_slice(from[random.below(from.len() as u64) as usize]);
        }
    }
    // Spoil some of it.
    for _ in 0..random.below(4) {
        let at = random.below(bytes.len() as u64) as usize;
        match random.below(3) {
            0 => bytes[at] = random.next() as u8,
            1 => {
                bytes.remove(at);
                if bytes.is_empty() {
                    bytes.push(0);
                }
            }
            _ => bytes.insert(at, *random.pick(b"\r\n $*0129\x80\xff")),
        }
    }
    bytes
}

/// Feeds the same bytes whole and in pieces.
fn feed<S: Session>(new: fn() -> S, bytes: &[u8], random: &mut Random) {
    let rig = || {
        let mut rig = Rig::new(new());
        rig.settings.item_len_max = ITEM_LEN_MAX;
        rig.keyspace.inner.value_len_max = Some(ITEM_LEN_MAX);
        rig.keyspace.inner.now_ms = 1_700_000_000_000;
        rig
    };
    let mut whole = rig();
    let all = whole.feed(bytes);
    let mut cut = rig();
    cut.out_len_max = 1 + random.below(300) as usize;
    let parts = cut.feed_in_pieces(bytes, random);
    let shown = bytes.escape_ascii();
    assert_eq!(
        all.escape_ascii().to_string(),
        parts.escape_ascii().to_string(),
        "cut differently: {shown}"
    );
    assert_eq!(whole.is_closed(), cut.is_closed(), "{shown}");
    for rig in [&whole, &cut] {
        assert!(
            rig.asked_max <= ITEM_LEN_MAX + 65_536 + 20_000,
            "asked for {} bytes: {shown}",
            rig.asked_max
        );
    }
    // No request of these gives back more than a few values and reports.
    assert!(
        all.len() <= 64 * 1024 + bytes.len() * ITEM_LEN_MAX,
        "{shown}"
    );
    assert!(whole.wants != Wants::Output, "{shown}");
}

fn feed_all<S: Session>(new: fn() -> S, from: &[&[u8]]) {
    for seed in 0..SEEDS {
        let mut random = Random::new(seed);
        let bytes = pieces(&mut random, from);
        feed(new, &bytes, &mut random);
    }
}

#[test]
fn as_resp() {
    feed_all(RespSession::new, RESP_PIECES);
}

#[test]
fn as_binary() {
    feed_all(BinarySession::new, &[]);
}

#[test]
fn as_text() {
    feed_all(MemcacheSession::default, TEXT_PIECES);
}

#[test]
fn as_noise() {
    for seed in 0..SEEDS {
        let mut random = Random::new(seed);
        let len = 1 + random.below(200);
        let bytes: Vec<u8> = (0..len).map(|_| random.next() as u8).collect();
        feed(RespSession::new, &bytes, &mut random);
        feed(BinarySession::new, &bytes, &mut random);
        feed(MemcacheSession::default, &bytes, &mut random);
    }
}
