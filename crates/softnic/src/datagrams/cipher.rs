//! AES-128-GCM with the keys of one TLS session.
//!
//! One key seals [`KEY_COUNT_MAX`] datagrams at most. The number of a datagram says by
//! which key it is sealed: those of the first period by the one that was drawn, those of
//! each later one by the next, which both ends derive from a secret of the same TLS (HKDF,
//! RFC 5869). Nobody has to agree on anything, and numbers, which are nonces, go on.
//!
//! What bounds a key is not datagrams but blocks of the cipher, of which a long datagram has
//! many. Who has sealed as many as belong to a period passes over the numbers that are left of
//! it. The other end, of whichever release, takes that for datagrams that were lost. What the
//! key before has sealed and what comes after the first datagram of the next period is opened
//! only so long as its number is remembered: behind numbers that were passed over it is dropped,
//! as if it had been lost, and asked again.

use crate::channel::Channel;
use ring::aead::{AES_128_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Prk};
use trefoil_softnic_core::datagram::{Cipher, Sealed};

const KEY_LEN: usize = 16;
const LABEL: &[u8] = b"EXPORTER-trefoil-engine-datagrams";
/// Bytes drawn: a key for each direction, and the session's name.
const DRAWN_LEN: usize = 2 * KEY_LEN + 8;
const SECRET_LABEL: &[u8] = b"EXPORTER-trefoil-engine-datagrams-later-keys";
const SECRET_LEN: usize = 32;

/// Datagrams of one key, if they are no longer than 2 KiB.
const KEY_COUNT_MAX: u64 = 1 << 27;
const BLOCK_LEN: usize = 16;
/// Blocks of each of these: payload, head, lengths. So a key seals less than 2^34.1 blocks. Up
/// to 2^35 nobody can tell what is sealed from noise with a chance above 2^-57 (RFC 9001,
/// appendix B.1: 2^28 packets of 2^7 blocks, or 2^23 of 2^12).
const KEY_BLOCKS_EACH: u64 = blocks_of(2048);

/// What sealing a payload of this length takes.
const fn blocks_of(len: usize) -> u64 {
    (len.div_ceil(BLOCK_LEN) + 2) as u64
}

const _: () = assert!((KEY_COUNT_MAX * KEY_BLOCKS_EACH) < 1 << 35);

/// Which end of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Client,
    Engine,
}

impl Side {
    /// Names the direction of what it sends, for later keys.
    fn label(self) -> &'static [u8] {
        match self {
            Side::Client => b"from client",
            Side::Engine => b"from engine",
        }
    }
}

/// What both ends draw from their TLS.
pub(crate) struct Keys {
    /// Names the session in datagrams.
    pub(crate) session: u64,
    from_client: [u8; KEY_LEN],
    from_engine: [u8; KEY_LEN],
    secret: [u8; SECRET_LEN],
}

impl Keys {
    /// `None` without TLS, or before its handshake has ended.
    pub(crate) fn draw(channel: &Channel) -> Option<Keys> {
        let drawn: [u8; DRAWN_LEN] = channel.export(LABEL)?;
        let (mut from_client, mut from_engine) = ([0; KEY_LEN], [0; KEY_LEN]);
        let mut session = [0; 8];
        from_client.copy_from_slice(&drawn[..KEY_LEN]);
        from_engine.copy_from_slice(&drawn[KEY_LEN..2 * KEY_LEN]);
        session.copy_from_slice(&drawn[2 * KEY_LEN..]);
        Some(Keys {
            session: u64::from_le_bytes(session),
            from_client,
            from_engine,
            secret: channel.export(SECRET_LABEL)?,
        })
    }

    /// One end. Once only: the numbers that are nonces begin anew with it.
    pub(crate) fn into_end(self, side: Side) -> Option<Sealed<Aes>> {
        self.into_end_renewed_after(KEY_COUNT_MAX, side)
    }

    fn into_end_renewed_after(self, count: u64, side: Side) -> Option<Sealed<Aes>> {
        let direction = |from: Side, bytes: &[u8]| Direction::new(from, bytes, &self.secret, count);
        let from_client = direction(Side::Client, &self.from_client)?;
        let from_engine = direction(Side::Engine, &self.from_engine)?;
        let (seals, opens) = match side {
            Side::Client => (from_client, from_engine),
            Side::Engine => (from_engine, from_client),
        };
        Some(Sealed::new(self.session, Aes { seals, opens }))
    }
}

/// The keys of one direction.
struct Direction {
    label: &'static [u8],
    secret: Prk,
    /// Datagrams of one key.
    key_count: u64,
    /// Blocks that the newest key has sealed, or will have with the datagram that is next.
    block_count: u64,
    /// The period of the newest key that was used, and that key.
    period: u64,
    key: LessSafeKey,
    /// Of the period before: datagrams change places.
    key_before: Option<LessSafeKey>,
}

impl Direction {
    fn new(from: Side, key: &[u8], secret: &[u8], key_count: u64) -> Option<Self> {
        let key = UnboundKey::new(&AES_128_GCM, key).ok()?;
        Some(Direction {
            label: from.label(),
            secret: Prk::new_less_safe(HKDF_SHA256, secret),
            key_count,
            block_count: 0,
            period: 0,
            key: LessSafeKey::new(key),
            key_before: None,
        })
    }

    fn period_of(&self, number: u64) -> u64 {
        number / self.key_count
    }

    /// The key of a period that is not the first.
    #[cold]
    fn derive(&self, period: u64) -> Option<LessSafeKey> {
        let period = period.to_le_bytes();
        let info = [self.label, &period];
        let derived = self.secret.expand(&info, &AES_128_GCM).ok()?;
        Some(LessSafeKey::new(derived.into()))
    }

    /// From now on a later period's key is the newest one.
    #[cold]
    fn renew(&mut self, period: u64, key: LessSafeKey) {
        let before = std::mem::replace(&mut self.key, key);
        self.key_before = (self.period + 1 == period).then_some(before);
        self.period = period;
        self.block_count = 0;
    }

    /// The number of the next datagram, of which the payload is so long.
    fn number_after(&mut self, before: u64, len: usize) -> u64 {
        let (next, blocks) = (before + 1, blocks_of(len));
        let is_spent = self.block_count + blocks > self.key_count.saturating_mul(KEY_BLOCKS_EACH);
        let next = match is_spent && self.period_of(next) == self.period {
            true => (self.period + 1) * self.key_count,
            false => next,
        };
        if self.period_of(next) == self.period {
            self.block_count += blocks;
        }
        next
    }

    /// The key that seals the datagram with this number; they only grow.
    fn sealing(&mut self, number: u64, len: usize) -> Option<&LessSafeKey> {
        let period = self.period_of(number);
        if period != self.period {
            let key = self.derive(period)?;
            self.renew(period, key);
            self.block_count = blocks_of(len);
        }
        Some(&self.key)
    }

    /// Opens what came with this number. Only what is true renews a key.
    fn open<'a>(&mut self, number: u64, head: &[u8], sealed: &'a mut [u8]) -> Option<&'a [u8]> {
        let period = self.period_of(number);
        let open = |key: &LessSafeKey, sealed: &'a mut [u8]| {
            let opened = key.open_in_place(nonce(number), Aad::from(head), sealed);
            opened.ok().map(|bytes| &*bytes)
        };
        match period {
            _ if period == self.period => open(&self.key, sealed),
            _ if period + 1 == self.period => open(self.key_before.as_ref()?, sealed),
            // Whoever was silent may be any number of periods ahead.
            _ if period > self.period => {
                let key = self.derive(period)?;
                let opened = open(&key, sealed)?;
                self.renew(period, key);
                Some(opened)
            }
            _ => None,
        }
    }
}

/// See the module.
pub(crate) struct Aes {
    seals: Direction,
    opens: Direction,
}

fn nonce(number: u64) -> Nonce {
    let mut bytes = [0; NONCE_LEN];
    bytes[NONCE_LEN - 8..].copy_from_slice(&number.to_be_bytes());
    Nonce::assume_unique_for_key(bytes)
}

impl Cipher for Aes {
    fn number_after(&mut self, before: u64, len: usize) -> u64 {
        self.seals.number_after(before, len)
    }

    fn seal(&mut self, number: u64, head: &[u8], bytes: &mut Vec<u8>, from: usize) {
        let len = bytes.len().saturating_sub(from);
        let sealed = self.seals.sealing(number, len).and_then(|key| {
            let (nonce, head) = (nonce(number), Aad::from(head));
            let sealed = key.seal_in_place_separate_tag(nonce, head, &mut bytes[from..]);
            sealed.ok()
        });
        match sealed {
            Some(tag) => bytes.extend_from_slice(tag.as_ref()),
            // Only for what is longer than any datagram. Nothing goes out unsealed.
            None => bytes.clear(),
        }
    }

    fn open<'a>(&mut self, number: u64, head: &[u8], sealed: &'a mut [u8]) -> Option<&'a [u8]> {
        self.opens.open(number, head, sealed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: u64 = 8;

    fn keys() -> Keys {
        Keys {
            session: 7,
            from_client: [1; KEY_LEN],
            from_engine: [2; KEY_LEN],
            secret: [3; SECRET_LEN],
        }
    }

    /// Two ends that seal so many datagrams with one key.
    fn ends(count: u64) -> (Sealed<Aes>, Sealed<Aes>) {
        let end = |side| keys().into_end_renewed_after(count, side).unwrap();
        (end(Side::Client), end(Side::Engine))
    }

    fn sealed(end: &mut Sealed<Aes>, payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        end.seal(payload, &mut out);
        out
    }

    #[test]
    fn keys_are_renewed_while_datagrams_go_both_ways() {
        let (mut client, mut engine) = ends(PERIOD);
        for number in 0..PERIOD * 20 {
            let payload = number.to_le_bytes();
            let mut asked = sealed(&mut client, &payload);
            assert_eq!(engine.open(&mut asked.clone()), Ok(&payload[..]));
            // Once only, whichever key it was.
            assert!(engine.open(&mut asked).is_err());
            // Three answers for each: the directions have periods of their own.
            for _ in 0..3 {
                let mut answer = sealed(&mut engine, &payload);
                assert_eq!(client.open(&mut answer), Ok(&payload[..]));
            }
        }
    }

    #[test]
    fn what_is_late_is_opened_by_the_key_before() {
        let (mut client, mut engine) = ends(PERIOD);
        let mut all: Vec<_> = (0..PERIOD + 3).map(|_| sealed(&mut client, b"x")).collect();
        let mut late = all.remove(0);
        for datagram in &mut all {
            assert!(engine.open(datagram).is_ok());
        }
        assert!(engine.open(&mut late).is_ok());
    }

    #[test]
    fn who_was_not_heard_for_periods_is_heard_again() {
        let (mut client, mut engine) = ends(PERIOD);
        let lost = (0..PERIOD * 5).map(|_| sealed(&mut client, b"x"));
        let lost: Vec<_> = lost.collect();
        assert!(engine.open(&mut sealed(&mut client, b"heard")).is_ok());
        // What comes now of long ago is not believed, and takes no key away.
        assert!(engine.open(&mut lost[0].clone()).is_err());
        assert!(engine.open(&mut sealed(&mut client, b"and again")).is_ok());
    }

    #[test]
    fn no_key_seals_more_than_it_may() {
        // The same numbers, sealed by ends of which one never renews.
        let (mut renews, _) = ends(PERIOD);
        let (mut never, _) = ends(u64::MAX);
        for number in 1..PERIOD * 3 {
            let (one, other) = (sealed(&mut renews, b"same"), sealed(&mut never, b"same"));
            assert_eq!(one[..16], other[..16]);
            assert_eq!(one == other, number < PERIOD, "datagram {number}");
        }
        // Each period's key is another one, and so is each direction's.
        let from = |side, period| {
            let direction = Direction::new(side, &[1; KEY_LEN], &[3; SECRET_LEN], PERIOD).unwrap();
            let key = direction.derive(period).unwrap();
            let mut bytes = *b"something to seal";
            let tag = key.seal_in_place_separate_tag(nonce(1), Aad::empty(), &mut bytes);
            (bytes, tag.unwrap().as_ref().to_vec())
        };
        let mut seen = Vec::new();
        for side in [Side::Client, Side::Engine] {
            for period in 1..5 {
                let made = from(side, period);
                assert!(!seen.contains(&made), "{side:?} {period}");
                seen.push(made);
            }
        }
    }

    #[test]
    fn long_datagrams_have_their_key_renewed_sooner() {
        const COUNT: u64 = 64;
        let (mut client, mut engine) = ends(COUNT);
        // Blocks by period.
        let mut blocks = std::collections::BTreeMap::<u64, u64>::new();
        let mut before = 0;
        for number in 0..COUNT * 10 {
            let payload = vec![7; if number % 3 == 0 { 100 } else { 8928 }];
            let mut datagram = sealed(&mut client, &payload);
            let number = u64::from_le_bytes(datagram[8..16].try_into().unwrap());
            assert!(number > before);
            before = number;
            *blocks.entry(number / COUNT).or_default() += payload.len() as u64 / 16 + 2;
            assert_eq!(engine.open(&mut datagram), Ok(&payload[..]));
        }
        let most = *blocks.values().max().unwrap();
        // 2 KiB and two blocks for each.
        assert!(most <= COUNT * 130, "{most}");
        assert!(most > COUNT * 120, "{most}");
        // As many datagrams as there may be of a key are sealed by one if they are short.
        let (mut client, _) = ends(COUNT);
        for number in 1..COUNT * 3 {
            let datagram = sealed(&mut client, &[7; 2048]);
            assert_eq!(datagram[8..16], number.to_le_bytes());
        }
    }

    #[test]
    fn what_is_forged_renews_nothing() {
        let (mut client, mut engine) = ends(PERIOD);
        let mut forged = sealed(&mut client, b"x");
        // Of a far period.
        forged[8..16].copy_from_slice(&(PERIOD * 1000).to_le_bytes());
        assert!(engine.open(&mut forged).is_err());
        assert!(engine.open(&mut sealed(&mut client, b"true")).is_ok());
    }
}
