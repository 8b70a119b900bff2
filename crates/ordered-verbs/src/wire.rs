//! The bytes: what is said at set-up over TCP, and messages over RDMA. Numbers are
//! little-endian.
//!
//! HELLO, the client's first words, and WELCOME, the answer:
//!
//! | HELLO | | WELCOME | |
//! |---|---|---|---|
//! | 0 | magic, 8 bytes | 0 | magic, 8 bytes |
//! | 8 | version, 4 | 8 | status, 4 |
//! | 12 | length of the token, 4 | 12 | window: requests under way at most, 4 |
//! | 16 | the producer: a name drawn at random, 16 | 16 | the queue's life, 8 |
//! | 32 | the life in which it was here, or 0, 8 | 24 | the client's number, 8 |
//! | 40 | its attempts to come again, 8 | 32 | its last request that is in the queue, 8 |
//! | 48 | its connection, 28 | 40 | the server's connection, 28 |
//! | 76 | the token | 68 | |
//!
//! A connection: its number 4, first packet 4, address 16, MTU by the library's number 4. The
//! TCP connection stays: its end is that of the RDMA connection. The server says [`END`] before
//! an orderly one.
//!
//! A request, and an answer:
//!
//! | request | | answer | |
//! |---|---|---|---|
//! | 0 | checksum of what follows, seeded with the queue's life, 8 | 0 | the request's number, 8 |
//! | 8 | the client's number, 8 | 8 | length, 4 |
//! | 16 | the request's number, 8 | 12 | zero, 4 |
//! | 24 | length, 4 | 16 | the answer |
//! | 28 | flags, 4: 1 is nilext | | |
//! | 32 | the payload | | |

use trefoil_ordered::slot::{ANSWER_LEN_MAX, PAYLOAD_LEN_MAX};
use trefoil_verbs::{Mtu, Peer};
use twox_hash::XxHash3_64;

/// Of this protocol.
pub const VERSION: u32 = 1;
const MAGIC: [u8; 8] = *b"trefoilV";
/// The server's last word before an orderly end.
pub const END: u8 = b'E';

/// Bytes of a HELLO without its token.
pub const HELLO_LEN: usize = HELLO_PEER + PEER_LEN;
const HELLO_VERSION: usize = 8;
const HELLO_TOKEN_LEN: usize = 12;
const HELLO_PRODUCER: usize = 16;
const HELLO_EPOCH: usize = 32;
const HELLO_ATTEMPT: usize = 40;
const HELLO_PEER: usize = 48;
/// Longest token.
pub const TOKEN_LEN_MAX: usize = 256;

/// Bytes of a WELCOME.
pub const WELCOME_LEN: usize = WELCOME_PEER + PEER_LEN;
const WELCOME_STATUS: usize = 8;
const WELCOME_WINDOW: usize = 12;
const WELCOME_EPOCH: usize = 16;
const WELCOME_CLIENT: usize = 24;
const WELCOME_PLACED: usize = 32;
const WELCOME_PEER: usize = 40;

const PEER_LEN: usize = 28;

/// Bytes of a receive buffer, and of one to send from.
pub const BUFFER_LEN: usize = 1536;
/// What a packet has to hold: more than a buffer, so that no message has two (invariant 1).
pub const PACKET_LEN_MIN: usize = 2048;
/// Bytes before a request's payload.
pub const REQUEST_HEAD_LEN: usize = 32;
const REQUEST_CLIENT: usize = 8;
const REQUEST_NUMBER: usize = 16;
const REQUEST_LENGTH: usize = 24;
const REQUEST_FLAGS: usize = 28;
const FLAG_NILEXT: u32 = 1;
/// Bytes before an answer.
pub const ANSWER_HEAD_LEN: usize = 16;
const ANSWER_LENGTH: usize = 8;

const _: () = {
    assert!(HELLO_LEN == 76 && WELCOME_LEN == 68);
    assert!(REQUEST_FLAGS + 4 == REQUEST_HEAD_LEN && ANSWER_LENGTH + 8 == ANSWER_HEAD_LEN);
    assert!(REQUEST_HEAD_LEN + PAYLOAD_LEN_MAX <= BUFFER_LEN);
    assert!(ANSWER_HEAD_LEN + ANSWER_LEN_MAX <= BUFFER_LEN);
    assert!(BUFFER_LEN < PACKET_LEN_MIN && BUFFER_LEN.is_multiple_of(8));
};

/// A client that wants to be let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Who.
    pub producer: [u64; 2],
    /// The life of the queue in which it was here; 0: it comes for the first time.
    pub epoch: u64,
    /// Which attempt to come again this is.
    pub attempt: u64,
    /// Its side of the connection.
    pub peer: Peer,
}

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Status {
    /// It is in.
    In = 0,
    /// It may not come in.
    NotAdmitted,
    /// As many are in as may be.
    Full,
    /// Nothing is known of it: another life of the queue, or it was forgotten.
    Forgotten,
    /// A later attempt of the same client was heard.
    Superseded,
    /// Another version of this protocol.
    Version,
    /// The server's device could not connect.
    Device,
    /// The queue has ended.
    Ended,
}

/// The server's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// What follows counts if the client is in.
    pub status: Status,
    /// Requests under way at most, and answers that are not taken.
    pub window: u32,
    /// The queue's life.
    pub epoch: u64,
    /// The client's number.
    pub client_id: u64,
    /// Its last request that is in the queue, and executed.
    pub placed: u64,
    /// The server's side of the connection.
    pub peer: Peer,
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut value = [0; 4];
    value.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(value)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut value = [0; 8];
    value.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(value)
}

fn put_peer(bytes: &mut [u8], at: usize, peer: &Peer) {
    put(bytes, at, &peer.number.to_le_bytes());
    put(bytes, at + 4, &peer.sequence.to_le_bytes());
    put(bytes, at + 8, &peer.gid);
    put(bytes, at + 24, &(peer.mtu as u32).to_le_bytes());
}

fn peer_at(bytes: &[u8], at: usize) -> Option<Peer> {
    let mut gid = [0; 16];
    gid.copy_from_slice(&bytes[at + 8..at + 24]);
    Some(Peer {
        number: u32_at(bytes, at),
        sequence: u32_at(bytes, at + 4),
        gid,
        mtu: Mtu::of_number(u8::try_from(u32_at(bytes, at + 24)).ok()?)?,
    })
}

impl Hello {
    /// Its bytes, with the token.
    ///
    /// # Panics
    /// If the token is longer than [`TOKEN_LEN_MAX`].
    pub fn encode(&self, token: &[u8]) -> Vec<u8> {
        assert!(token.len() <= TOKEN_LEN_MAX);
        let mut bytes = vec![0; HELLO_LEN];
        put(&mut bytes, 0, &MAGIC);
        put(&mut bytes, HELLO_VERSION, &VERSION.to_le_bytes());
        put(
            &mut bytes,
            HELLO_TOKEN_LEN,
            &(token.len() as u32).to_le_bytes(),
        );
        put(&mut bytes, HELLO_PRODUCER, &self.producer[0].to_le_bytes());
        put(
            &mut bytes,
            HELLO_PRODUCER + 8,
            &self.producer[1].to_le_bytes(),
        );
        put(&mut bytes, HELLO_EPOCH, &self.epoch.to_le_bytes());
        put(&mut bytes, HELLO_ATTEMPT, &self.attempt.to_le_bytes());
        put_peer(&mut bytes, HELLO_PEER, &self.peer);
        bytes.extend_from_slice(token);
        bytes
    }

    /// What it says, and how long the token behind it is; `Err`: the answer to give, or
    /// `None` if it is none of this protocol.
    pub fn decode(bytes: &[u8; HELLO_LEN]) -> Result<(Self, usize), Option<Status>> {
        if bytes[..8] != MAGIC {
            return Err(None);
        }
        if u32_at(bytes, HELLO_VERSION) != VERSION {
            return Err(Some(Status::Version));
        }
        let token_len = u32_at(bytes, HELLO_TOKEN_LEN) as usize;
        if token_len > TOKEN_LEN_MAX {
            return Err(None);
        }
        let hello = Hello {
            producer: [
                u64_at(bytes, HELLO_PRODUCER),
                u64_at(bytes, HELLO_PRODUCER + 8),
            ],
            epoch: u64_at(bytes, HELLO_EPOCH),
            attempt: u64_at(bytes, HELLO_ATTEMPT),
            peer: peer_at(bytes, HELLO_PEER).ok_or(None)?,
        };
        Ok((hello, token_len))
    }
}

/// The bytes of a refusal.
pub fn refusal(status: Status) -> [u8; WELCOME_LEN] {
    let mut bytes = [0; WELCOME_LEN];
    put(&mut bytes, 0, &MAGIC);
    put(&mut bytes, WELCOME_STATUS, &(status as u32).to_le_bytes());
    bytes
}

impl Welcome {
    /// Its bytes.
    pub fn encode(&self) -> [u8; WELCOME_LEN] {
        let mut bytes = refusal(self.status);
        put(&mut bytes, WELCOME_WINDOW, &self.window.to_le_bytes());
        put(&mut bytes, WELCOME_EPOCH, &self.epoch.to_le_bytes());
        put(&mut bytes, WELCOME_CLIENT, &self.client_id.to_le_bytes());
        put(&mut bytes, WELCOME_PLACED, &self.placed.to_le_bytes());
        put_peer(&mut bytes, WELCOME_PEER, &self.peer);
        bytes
    }

    /// What it says; `Err`: the refusal, or `None` if it is nothing of this protocol.
    pub fn decode(bytes: &[u8; WELCOME_LEN]) -> Result<Self, Option<Status>> {
        if bytes[..8] != MAGIC {
            return Err(None);
        }
        match u32_at(bytes, WELCOME_STATUS) {
            0 => {}
            1 => return Err(Some(Status::NotAdmitted)),
            2 => return Err(Some(Status::Full)),
            3 => return Err(Some(Status::Forgotten)),
            4 => return Err(Some(Status::Superseded)),
            5 => return Err(Some(Status::Version)),
            6 => return Err(Some(Status::Device)),
            7 => return Err(Some(Status::Ended)),
            _ => return Err(None),
        }
        Ok(Welcome {
            status: Status::In,
            window: u32_at(bytes, WELCOME_WINDOW),
            epoch: u64_at(bytes, WELCOME_EPOCH),
            client_id: u64_at(bytes, WELCOME_CLIENT),
            placed: u64_at(bytes, WELCOME_PLACED),
            peer: peer_at(bytes, WELCOME_PEER).ok_or(None)?,
        })
    }
}

/// A request that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// Whose.
    pub client_id: u64,
    /// The client's number for it.
    pub number: u64,
    /// Whether it wants no answer.
    pub nilext: bool,
    /// Its bytes.
    pub payload: &'a [u8],
}

impl<'a> Request<'a> {
    /// Its bytes, in place of what `into` holds.
    ///
    /// # Panics
    /// If it is longer than a slot.
    pub fn encode(&self, epoch: u64, into: &mut Vec<u8>) {
        assert!(self.payload.len() <= PAYLOAD_LEN_MAX);
        into.clear();
        into.resize(REQUEST_HEAD_LEN, 0);
        put(into, REQUEST_CLIENT, &self.client_id.to_le_bytes());
        put(into, REQUEST_NUMBER, &self.number.to_le_bytes());
        put(
            into,
            REQUEST_LENGTH,
            &(self.payload.len() as u32).to_le_bytes(),
        );
        let flags = if self.nilext { FLAG_NILEXT } else { 0 };
        put(into, REQUEST_FLAGS, &flags.to_le_bytes());
        into.extend_from_slice(self.payload);
        let checksum = XxHash3_64::oneshot_with_seed(epoch, &into[8..]);
        put(into, 0, &checksum.to_le_bytes());
    }

    /// What a message says, if it is a request of this life of the queue.
    pub fn decode(epoch: u64, bytes: &'a [u8]) -> Option<Self> {
        let payload = bytes.get(REQUEST_HEAD_LEN..)?;
        let flags = u32_at(bytes, REQUEST_FLAGS);
        let is_sound = u32_at(bytes, REQUEST_LENGTH) as usize == payload.len()
            && payload.len() <= PAYLOAD_LEN_MAX
            && flags & !FLAG_NILEXT == 0
            && XxHash3_64::oneshot_with_seed(epoch, &bytes[8..]) == u64_at(bytes, 0);
        is_sound.then(|| Request {
            client_id: u64_at(bytes, REQUEST_CLIENT),
            number: u64_at(bytes, REQUEST_NUMBER),
            nilext: flags & FLAG_NILEXT != 0,
            payload,
        })
    }
}

/// The bytes of an answer, in place of what `into` holds.
///
/// # Panics
/// If it is longer than a slot.
pub fn encode_answer(number: u64, answer: &[u8], into: &mut Vec<u8>) {
    assert!(answer.len() <= ANSWER_LEN_MAX);
    into.clear();
    into.resize(ANSWER_HEAD_LEN, 0);
    put(into, 0, &number.to_le_bytes());
    put(into, ANSWER_LENGTH, &(answer.len() as u32).to_le_bytes());
    into.extend_from_slice(answer);
}

/// The number and the bytes of an answer.
pub fn decode_answer(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let answer = bytes.get(ANSWER_HEAD_LEN..)?;
    let is_sound = u64_at(bytes, ANSWER_LENGTH) == answer.len() as u64;
    is_sound.then(|| (u64_at(bytes, 0), answer))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: Peer = Peer {
        number: 7,
        sequence: 0x12_3456,
        gid: *b"0123456789abcdef",
        mtu: Mtu::B4096,
    };

    #[test]
    fn set_up_is_read_as_it_was_written() {
        let hello = Hello {
            producer: [1, 2],
            epoch: 3,
            attempt: 4,
            peer: PEER,
        };
        let bytes = hello.encode(b"token");
        let (head, token) = bytes.split_first_chunk().expect("whole");
        assert_eq!(Hello::decode(head), Ok((hello, token.len())));
        assert_eq!(token, b"token");
        let mut other = *head;
        other[HELLO_VERSION] += 1;
        assert_eq!(Hello::decode(&other), Err(Some(Status::Version)));
        other[0] = 0;
        assert_eq!(Hello::decode(&other), Err(None));
        let welcome = Welcome {
            status: Status::In,
            window: 5,
            epoch: 6,
            client_id: 7,
            placed: 8,
            peer: PEER,
        };
        assert_eq!(Welcome::decode(&welcome.encode()), Ok(welcome));
        for status in [
            Status::NotAdmitted,
            Status::Full,
            Status::Forgotten,
            Status::Superseded,
        ]
        .into_iter()
        .chain([Status::Version, Status::Device, Status::Ended])
        {
            assert_eq!(Welcome::decode(&refusal(status)), Err(Some(status)));
        }
    }

    #[test]
    fn every_byte_of_a_request_counts() {
        let request = Request {
            client_id: 1,
            number: 2,
            nilext: true,
            payload: b"payload",
        };
        let mut bytes = Vec::new();
        request.encode(9, &mut bytes);
        assert_eq!(Request::decode(9, &bytes), Some(request));
        assert_eq!(Request::decode(10, &bytes), None, "another life");
        assert_eq!(
            Request::decode(9, &bytes[..bytes.len() - 1]),
            None,
            "cut short"
        );
        for at in 0..bytes.len() {
            bytes[at] ^= 16;
            assert_eq!(Request::decode(9, &bytes), None, "byte {at}");
            bytes[at] ^= 16;
        }
    }

    #[test]
    fn answers_are_read_as_they_were_written() {
        let mut bytes = Vec::new();
        encode_answer(3, b"answer", &mut bytes);
        assert_eq!(decode_answer(&bytes), Some((3, &b"answer"[..])));
        assert_eq!(decode_answer(&bytes[..20]), None);
        assert_eq!(decode_answer(&bytes[..5]), None);
    }
}
