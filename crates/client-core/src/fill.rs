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
//! * A fill that is applied counts, too: one of an earlier miss would be older.
//! * Evictions and expiry do not count: a full cell takes fills.
//! * Keys share counts: a fill may be refused for another key's sake.
//! * A fill that meets a higher floor goes again above it, under the same counts. A
//!   replica that had taken it below is then one of those that refuse.
//! * A replica that was restarted has other counts, and refuses.
//! * **A replica whose count is not known** (it was down at the miss, or is reached
//!   by a carrier that does not bring it), or that refused, proves nothing, so it
//!   does not count: it gets nothing before two others have taken the fill. Then it
//!   gets the same value as a SET at its own version (rule 11). With fewer than two
//!   counts known the fill gives way at once.
//! * A fill that gives way evicts what it has left, as a failed CAS does: an ERASE at
//!   that entry's own version, to that replica alone.
//! * **A fill takes nobody's place.** Where a replica holds a value all the same
//!   ([`leaves_room`]), its count does not go into the ticket: it is most likely a
//!   mutation between its first replica and its second, and with another replica down
//!   this copy is needed. So the count is read first, then the index once more: at
//!   the miss, if it has found something (dead, or no quorum); where it has found
//!   nothing, only when the fill comes ([`Stamps::is_unseen`]). Later is as good, for
//!   what was applied meanwhile has changed the count; and most misses read no index
//!   of a third replica, nor two others twice.
//!
//! A ticket is for one key, one topology and one fill: under another configuration
//! (a flush makes one, too) its fill gives way. Written down and used twice (it can
//! be, by other processes) it is harmless: each fill has a version of its own.

use crate::cas::AT_REST_NS;
use crate::mode::REPLICAS_MAX;
use crate::mutants::{self, Mutant};
use crate::vote::IndexVote;
use trefoil_layout::{KeyHash, TopologyId, Version};

/// Bytes of a ticket that is written down.
///
/// | offset | bytes | field |
/// |---|---|---|
/// | 0 | 1 | format, 1 |
/// | 1 | 1 | replicas whose stamp is known, as a bit set |
/// | 2 | 1 | 1 if the replicas' indexes are still to be looked at, else 0 |
/// | 3 | 1 | reserved, zero |
/// | 4 | 4 | config id |
/// | 8 | 8 | life |
/// | 16 | 16 | the key's hash |
/// | 32 | 3 x 8 | stamps |
pub const TICKET_LEN: usize = 32 + 8 * REPLICAS_MAX;

const FORMAT: u8 = 1;

const _: () = assert!(TICKET_LEN == 56);

/// Whether a replica's stamp may go into a ticket: it holds nothing, or what the miss
/// has found dead, or what is at rest and has no quorum. `present` is what it was
/// seen to hold after its stamp was read.
pub fn leaves_room(
    present: Option<Version>,
    dead: Version,
    now_unix_ns: impl FnOnce() -> u64,
) -> bool {
    let Some(version) = present else {
        return true;
    };
    version == dead
        || version.time_ns < now_unix_ns().saturating_sub(AT_REST_NS)
        || mutants::is_on(Mutant::FillAnywhere)
}

/// The same, of what its index says after its stamp was read. What only a message
/// finds is taken for absent, as the miss did: else a key whose bucket has
/// overflowed could not be filled. Whether something is committed and not executed, which
/// takes a message too, is asked before.
pub fn index_leaves_room(
    vote: IndexVote,
    dead: Version,
    now_unix_ns: impl FnOnce() -> u64,
) -> bool {
    match vote {
        IndexVote::Absent { .. } | IndexVote::AskByMessage { .. } => true,
        IndexVote::Present { entry, .. } => leaves_room(Some(entry.version), dead, now_unix_ns),
        IndexVote::Unstable | IndexVote::Recovering | IndexVote::ConfigChanged { .. } => false,
    }
}

/// Whether a replica's stamp, read at a miss that had found nothing, counts for the
/// fill that comes now: its index, too, says that nothing is there. Nobody asks
/// whether a value is at rest: at the miss it may not have been.
pub fn index_is_vacant(vote: IndexVote) -> bool {
    match vote {
        IndexVote::Absent { .. } | IndexVote::AskByMessage { .. } => true,
        IndexVote::Present { .. } => mutants::is_on(Mutant::FillAnywhere),
        IndexVote::Unstable | IndexVote::Recovering | IndexVote::ConfigChanged { .. } => false,
    }
}

/// What a miss has read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamps {
    /// The topology under which it missed.
    pub under: TopologyId,
    /// Of its key, in that topology.
    pub hash: KeyHash,
    /// By place in the cohort; `None` where the count is not known.
    pub by_place: [Option<u64>; REPLICAS_MAX],
    /// The indexes were not looked at after the counts were read: a count is good
    /// only where the fill finds that nothing is there.
    pub is_unseen: bool,
}

/// See the module. Neither `Copy` nor `Clone`: it is used up by its fill.
#[derive(Debug, PartialEq, Eq)]
pub struct FillTicket(Stamps);

/// Bytes that are no ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a fill ticket of this release: take one from a miss")]
pub struct NoTicket;

/// The ticket of one key's miss, for another key's fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the fill ticket was taken at another key's miss")]
pub struct OtherKey;

impl FillTicket {
    /// Of a miss that has read these.
    pub const fn new(stamps: Stamps) -> Self {
        FillTicket(stamps)
    }

    /// The stamps for a fill of the key with this hash; none under another topology
    /// than the miss's, for there is no telling what they count there. `is_vacant`
    /// looks at a replica's index, where the miss has left that to the fill.
    pub fn redeem(
        self,
        under: TopologyId,
        hash: KeyHash,
        mut is_vacant: impl FnMut(usize) -> bool,
    ) -> Result<[Option<u64>; REPLICAS_MAX], OtherKey> {
        let mut stamps = self.0;
        match (stamps.under == under, stamps.hash == hash) {
            (true, true) => {
                for (place, stamp) in stamps.by_place.iter_mut().enumerate() {
                    if stamps.is_unseen && stamp.is_some() && !is_vacant(place) {
                        *stamp = None;
                    }
                }
                Ok(stamps.by_place)
            }
            (true, false) => Err(OtherKey),
            (false, _) => Ok([None; REPLICAS_MAX]),
        }
    }

    /// Writes it down, for another process or language.
    pub fn to_bytes(&self) -> [u8; TICKET_LEN] {
        let Stamps {
            under,
            hash,
            by_place,
            is_unseen,
        } = self.0;
        let mut bytes = [0; TICKET_LEN];
        bytes[0] = FORMAT;
        bytes[2] = u8::from(is_unseen);
        bytes[4..8].copy_from_slice(&under.config_id.to_le_bytes());
        bytes[8..16].copy_from_slice(&under.life.to_le_bytes());
        bytes[16..24].copy_from_slice(&hash.place.to_le_bytes());
        bytes[24..32].copy_from_slice(&hash.tag.to_le_bytes());
        for (number, stamp) in by_place.iter().enumerate() {
            if let Some(stamp) = stamp {
                bytes[1] |= 1 << number;
                let at = 32 + 8 * number;
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
        let is_sound =
            bytes[0] == FORMAT && bytes[1] >> REPLICAS_MAX == 0 && bytes[2] <= 1 && bytes[3] == 0;
        if !is_sound {
            return Err(NoTicket);
        }
        let known = |number: usize| bytes[1] & 1 << number != 0;
        Ok(FillTicket(Stamps {
            under: TopologyId {
                life: word(8),
                config_id: u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
            },
            hash: KeyHash {
                place: word(16),
                tag: word(24),
            },
            by_place: std::array::from_fn(|number| known(number).then(|| word(32 + 8 * number))),
            is_unseen: bytes[2] == 1,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNDER: TopologyId = TopologyId {
        life: 11,
        config_id: 3,
    };
    const HASH: KeyHash = KeyHash { place: 7, tag: 9 };
    const BY_PLACE: [Option<u64>; REPLICAS_MAX] = [Some(5), None, Some(u64::MAX)];

    fn ticket() -> FillTicket {
        of_a_miss(false)
    }

    fn of_a_miss(is_unseen: bool) -> FillTicket {
        FillTicket::new(Stamps {
            under: UNDER,
            hash: HASH,
            by_place: BY_PLACE,
            is_unseen,
        })
    }

    fn not_asked(_: usize) -> bool {
        panic!("the miss has looked, or the ticket is good for nothing")
    }

    #[test]
    fn it_is_for_one_key_under_one_topology() {
        assert_eq!(ticket().redeem(UNDER, HASH, not_asked), Ok(BY_PLACE));
        let other = KeyHash { place: 8, tag: 9 };
        assert_eq!(ticket().redeem(UNDER, other, not_asked), Err(OtherKey));
        for under in [
            TopologyId { life: 12, ..UNDER },
            TopologyId {
                config_id: 4,
                ..UNDER
            },
        ] {
            for hash in [HASH, other] {
                // Another life may hash another way: no mistake of the caller's.
                let redeemed = of_a_miss(true).redeem(under, hash, not_asked);
                assert_eq!(redeemed, Ok([None; REPLICAS_MAX]));
            }
        }
    }

    #[test]
    fn counts_whose_index_nobody_has_seen_are_good_where_nothing_is_there() {
        for (vacant, left) in [
            (0, [Some(5), None, None]),
            (2, [None, None, Some(u64::MAX)]),
        ] {
            let redeemed = of_a_miss(true).redeem(UNDER, HASH, |place| place == vacant);
            assert_eq!(redeemed, Ok(left));
        }
        assert_eq!(of_a_miss(true).redeem(UNDER, HASH, |_| true), Ok(BY_PLACE));
    }

    #[test]
    fn it_can_be_written_down_and_nothing_else_is_taken_for_one() {
        let bytes = ticket().to_bytes();
        assert_eq!(FillTicket::from_bytes(&bytes), Ok(ticket()));
        let unseen = of_a_miss(true);
        assert_eq!(FillTicket::from_bytes(&unseen.to_bytes()), Ok(unseen));
        assert_eq!(FillTicket::from_bytes(&bytes[1..]), Err(NoTicket));
        for at in 0..4 {
            let mut other = bytes;
            other[at] = 0xff;
            assert_eq!(FillTicket::from_bytes(&other), Err(NoTicket));
        }
    }
}
