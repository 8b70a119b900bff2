//! Which datagrams are believed.
//!
//! | offset | bytes | datagram | why |
//! |---|---|---|---|
//! | 0 | 8 | session | whose key opens it |
//! | 8 | 8 | number | grows from 1 in each direction, by more than 1 where a key has sealed enough: the nonce; never twice |
//! | 16 | … | payload and tag | sealed; the first 16 bytes are authenticated with it |

use super::{DATAGRAM_HEAD_LEN, DATAGRAM_LEN_MAX, PAYLOAD_LEN_MAX, TAG_LEN};

/// Numbers below the highest one that are still told apart.
pub const REPLAY_COUNT: u64 = 2048;
const WORDS: usize = (REPLAY_COUNT / 64) as usize;

/// Authenticated encryption with the keys of one session: those of a direction seal by
/// the datagram's number, and a key no more of them than it safely may.
pub trait Cipher {
    /// The number of a datagram with so many bytes of payload behind that which had number
    /// `before`: the next one, unless another key is to seal it.
    fn number_after(&mut self, before: u64, len: usize) -> u64;

    /// Seals the bytes from `from` on in place, and appends the tag ([`TAG_LEN`] bytes).
    /// `head` is authenticated, too.
    fn seal(&mut self, number: u64, head: &[u8], bytes: &mut Vec<u8>, from: usize);

    /// Opens in place; what remains is the payload. `None` if it is not what was sealed.
    fn open<'a>(&mut self, number: u64, head: &[u8], sealed: &'a mut [u8]) -> Option<&'a [u8]>;
}

/// Why a datagram is not looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Dropped {
    /// Shorter or longer than any.
    #[error("of a length that no datagram has")]
    Length,
    /// Another session's.
    #[error("of another session")]
    Session,
    /// Not sealed with this session's key, or changed since.
    #[error("forged or damaged")]
    Forged,
    /// Its number was seen, or is too old to know.
    #[error("seen before, or too late")]
    Replayed,
}

/// One side of a session.
#[derive(Debug)]
pub struct Sealed<C> {
    session: u64,
    cipher: C,
    /// Of the datagram sent last.
    sent: u64,
    /// Highest that was believed.
    highest: u64,
    /// A bit for each of the [`REPLAY_COUNT`] numbers up to the highest one.
    seen: [u64; WORDS],
}

/// The session that a datagram names, if it is long enough to name one.
pub fn session_of(datagram: &[u8]) -> Option<u64> {
    datagram
        .first_chunk()
        .map(|bytes| u64::from_le_bytes(*bytes))
}

impl<C: Cipher> Sealed<C> {
    /// With fresh keys: numbers begin anew.
    pub fn new(session: u64, cipher: C) -> Self {
        Sealed {
            session,
            cipher,
            sent: 0,
            highest: 0,
            seen: [0; WORDS],
        }
    }

    /// The datagram that carries a payload, in `out`, whose former content goes.
    pub fn seal(&mut self, payload: &[u8], out: &mut Vec<u8>) {
        assert!(payload.len() <= PAYLOAD_LEN_MAX, "payloads are cut to fit");
        // At a billion a second, it ends in centuries; keys are renewed long before.
        self.sent = self.cipher.number_after(self.sent, payload.len());
        let mut head = [0; DATAGRAM_HEAD_LEN];
        head[..8].copy_from_slice(&self.session.to_le_bytes());
        head[8..].copy_from_slice(&self.sent.to_le_bytes());
        out.clear();
        out.extend_from_slice(&head);
        out.extend_from_slice(payload);
        self.cipher.seal(self.sent, &head, out, DATAGRAM_HEAD_LEN);
        debug_assert_eq!(out.len(), DATAGRAM_HEAD_LEN + payload.len() + TAG_LEN);
    }

    /// The payload, opened in place, if the datagram is to be believed.
    pub fn open<'a>(&mut self, datagram: &'a mut [u8]) -> Result<&'a [u8], Dropped> {
        let len = datagram.len();
        if !(DATAGRAM_HEAD_LEN + TAG_LEN..=DATAGRAM_LEN_MAX).contains(&len) {
            return Err(Dropped::Length);
        }
        let (head, sealed) = datagram.split_at_mut(DATAGRAM_HEAD_LEN);
        if session_of(head) != Some(self.session) {
            return Err(Dropped::Session);
        }
        let mut number = [0; 8];
        number.copy_from_slice(&head[8..]);
        let number = u64::from_le_bytes(number);
        // Cheap, and before the cipher; noted only after it: a forged one takes no
        // number away from the true one.
        if !self.is_new(number) {
            return Err(Dropped::Replayed);
        }
        let payload = self.cipher.open(number, head, sealed);
        let payload = payload.ok_or(Dropped::Forged)?;
        self.note(number);
        Ok(payload)
    }

    fn is_new(&self, number: u64) -> bool {
        match number {
            0 => false,
            _ if number > self.highest => true,
            _ if self.highest - number >= REPLAY_COUNT => false,
            _ => self.seen[word(number)] & bit(number) == 0,
        }
    }

    fn note(&mut self, number: u64) {
        if number > self.highest {
            let gone = (number - self.highest).min(REPLAY_COUNT);
            // Places of numbers that are too old now are those of the next ones.
            for next in number - gone + 1..=number {
                self.seen[word(next)] &= !bit(next);
            }
            self.highest = number;
        }
        self.seen[word(number)] |= bit(number);
    }
}

fn word(number: u64) -> usize {
    (number % REPLAY_COUNT / 64) as usize
}

fn bit(number: u64) -> u64 {
    1 << (number % 64)
}
