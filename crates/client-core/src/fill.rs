//! What a miss leaves for whoever computes the missing value: a ticket.
//!
//! A value is loaded after a miss and stored by a *fill*. Between the two anybody
//! may have written the key, and a fill must not replace that: it may be older.
//! Versions do not tell. They are nominated by clocks that may differ by seconds,
//! so a fill that is older can carry the higher version; and a bound that is read
//! at the miss is no help in a full cell, whose floor rises with every eviction.
//!
//! So each replica counts the mutations of a key that it applies, and the miss
//! reads these counts (`trefoil_layout::control::stamp`): one word for each
//! replica, one-sidedly where the votes were. A replica takes a fill only while
//! its count is what it was (`Action::Fill`).
//!
//! * **A fill never replaces what began after its miss and was acknowledged.** Two
//!   replicas took the fill, two took the other mutation, so one took both. There
//!   the mutation came second, or the count had changed. Coming second, it lies
//!   above the fill by rule 1. No clock is in this.
//! * Evictions, expiry and other fills do not count: a full cell takes fills, and
//!   of two fills after one miss the higher version stays, at every replica.
//! * Keys share counts: a fill may be refused for another key's sake.
//! * A fill that meets a higher floor goes again above it, under the same counts.
//! * A replica that was restarted, or whose shard is another's now, has other
//!   counts, and refuses.
//! * Where the count of a replica is not known (it was down), the fill is stored
//!   there once the two others have it, as a SET at its own version (rule 11).
//!
//! A ticket is for one key and one fill. Written down and used twice (it can be,
//! by other processes) it is harmless: each fill has a version of its own.

use crate::mode::REPLICAS_MAX;
use trefoil_layout::KeyHash;

/// Bytes of a ticket that is written down.
///
/// | offset | bytes | field |
/// |---|---|---|
/// | 0 | 1 | format, 1 |
/// | 1 | 1 | replicas whose stamp is known, as a bit set |
/// | 2 | 6 | reserved, zero |
/// | 8 | 16 | the key's hash |
/// | 24 | 3 x 8 | stamps |
pub const TICKET_LEN: usize = 24 + 8 * REPLICAS_MAX;

const FORMAT: u8 = 1;

const _: () = assert!(TICKET_LEN == 48);

/// See the module. Neither `Copy` nor `Clone`: it is used up by its fill.
#[derive(Debug, PartialEq, Eq)]
pub struct Ticket {
    hash: KeyHash,
    stamps: [Option<u64>; REPLICAS_MAX],
}

/// Bytes that are no ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a fill ticket of this release: take one from a miss")]
pub struct NoTicket;

impl Ticket {
    /// Of a miss of the key with this hash; the stamps by place in the cohort.
    pub const fn new(hash: KeyHash, stamps: [Option<u64>; REPLICAS_MAX]) -> Self {
        Ticket { hash, stamps }
    }

    /// Whether it was taken for the key with this hash.
    pub fn is_for(&self, hash: KeyHash) -> bool {
        self.hash == hash
    }

    /// By place in the cohort; `None` where the replica was not heard.
    pub const fn stamps(&self) -> [Option<u64>; REPLICAS_MAX] {
        self.stamps
    }

    /// Writes it down, for another process or language.
    pub fn to_bytes(&self) -> [u8; TICKET_LEN] {
        let mut bytes = [0; TICKET_LEN];
        bytes[0] = FORMAT;
        bytes[8..16].copy_from_slice(&self.hash.place.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.hash.tag.to_le_bytes());
        for (number, stamp) in self.stamps.iter().enumerate() {
            if let Some(stamp) = stamp {
                bytes[1] |= 1 << number;
                let at = 24 + 8 * number;
                bytes[at..at + 8].copy_from_slice(&stamp.to_le_bytes());
            }
        }
        bytes
    }

    /// One that was written down.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, NoTicket> {
        let bytes: &[u8; TICKET_LEN] = bytes.try_into().map_err(|_| NoTicket)?;
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        };
        let is_sound = bytes[0] == FORMAT && bytes[1] >> REPLICAS_MAX == 0 && bytes[2..8] == [0; 6];
        if !is_sound {
            return Err(NoTicket);
        }
        let hash = KeyHash {
            place: word(8),
            tag: word(16),
        };
        let known = |number: usize| bytes[1] & 1 << number != 0;
        let stamps = std::array::from_fn(|number| known(number).then(|| word(24 + 8 * number)));
        Ok(Ticket { hash, stamps })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_can_be_written_down_and_nothing_else_is_taken_for_one() {
        let hash = KeyHash { place: 7, tag: 9 };
        let ticket = Ticket::new(hash, [Some(5), None, Some(u64::MAX)]);
        assert!(ticket.is_for(hash) && !ticket.is_for(KeyHash { place: 8, tag: 9 }));
        let bytes = ticket.to_bytes();
        assert_eq!(Ticket::from_bytes(&bytes), Ok(ticket));
        assert_eq!(Ticket::from_bytes(&bytes[1..]), Err(NoTicket));
        for at in 0..8 {
            let mut other = bytes;
            other[at] = 0xff;
            assert_eq!(Ticket::from_bytes(&other), Err(NoTicket));
        }
    }
}
