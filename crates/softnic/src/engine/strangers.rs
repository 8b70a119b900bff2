//! What strangers get of an engine: who has not shown whose they are. Few connections at a
//! time, shared among the addresses that they come from, and few in vain in a second from
//! one address. Who is let in costs their address nothing.
//!
//! No sockets and no clock.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

/// Connections at a time, of all addresses.
pub(super) const GUESTS_MAX: usize = 256;
/// Of one address. An address that has more loses its own oldest one.
pub(super) const GUESTS_OF_ADDRESS_MAX: usize = 64;
/// Connections of one address that may come to nothing, at once and in a second: what
/// their handshakes cost is a small part of a core.
const IN_VAIN_MAX: f64 = 512.0;
const IN_VAIN_PER_S: f64 = 100.0;
/// Addresses that are remembered; beyond it, those without connections are forgotten.
const ADDRESSES_MAX: usize = 4096;

const _: () = assert!(GUESTS_OF_ADDRESS_MAX < GUESTS_MAX && GUESTS_MAX < ADDRESSES_MAX);

/// Where a stranger comes from. Networks of IPv6 are given out whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Origin(IpAddr);

impl From<IpAddr> for Origin {
    fn from(ip: IpAddr) -> Self {
        Origin(match ip.to_canonical() {
            IpAddr::V4(ip) => ip.into(),
            IpAddr::V6(ip) => {
                let network = u128::from(ip) & !u128::from(u64::MAX);
                Ipv6Addr::from(network).into()
            }
        })
    }
}

#[derive(Debug)]
struct Record {
    /// Names of its connections, the oldest first.
    guests: BTreeSet<u64>,
    /// How many more may come to nothing, as of a moment.
    left: f64,
    as_of: Instant,
}

impl Record {
    fn refill(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.as_of).as_secs_f64();
        self.left = (self.left + passed * IN_VAIN_PER_S).min(IN_VAIN_MAX);
        self.as_of = now;
    }
}

/// What becomes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It has a place.
    Stays,
    /// It has a place, and this one none any more.
    InsteadOf(u64),
    /// Too many of its address came to nothing lately.
    TurnedAway,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Strangers {
    records: HashMap<Origin, Record>,
    /// Where each comes from. Names grow.
    origins: BTreeMap<u64, Origin>,
}

impl Strangers {
    /// A connection has come, and is to have this name.
    pub(super) fn arrives(&mut self, name: u64, origin: Origin, now: Instant) -> Verdict {
        if self.records.len() >= ADDRESSES_MAX && !self.records.contains_key(&origin) {
            self.records.retain(|_, record| !record.guests.is_empty());
        }
        let record = self.records.entry(origin).or_insert_with(|| Record {
            guests: BTreeSet::new(),
            left: IN_VAIN_MAX,
            as_of: now,
        });
        record.refill(now);
        if record.left < 1.0 {
            return Verdict::TurnedAway;
        }
        record.left -= 1.0;
        let out = match record.guests.len() >= GUESTS_OF_ADDRESS_MAX {
            true => record.guests.first().copied(),
            false if self.origins.len() >= GUESTS_MAX => self.to_evict(),
            false => None,
        };
        if let Some(out) = out {
            self.leaves(out);
        }
        if let Some(record) = self.records.get_mut(&origin) {
            record.guests.insert(name);
        }
        self.origins.insert(name, origin);
        out.map_or(Verdict::Stays, Verdict::InsteadOf)
    }

    /// The oldest one of the address that has most.
    pub(super) fn to_evict(&self) -> Option<u64> {
        let records = self.records.values();
        let crowd = records.max_by_key(|record| record.guests.len())?;
        crowd.guests.first().copied()
    }

    /// It has shown whose it is, and was let in.
    pub(super) fn comes_in(&mut self, name: u64) {
        let origin = self.leaves(name);
        if let Some(record) = origin.and_then(|origin| self.records.get_mut(&origin)) {
            record.left = (record.left + 1.0).min(IN_VAIN_MAX);
        }
    }

    /// It has ended.
    pub(super) fn leaves(&mut self, name: u64) -> Option<Origin> {
        let origin = self.origins.remove(&name)?;
        if let Some(record) = self.records.get_mut(&origin) {
            record.guests.remove(&name);
        }
        Some(origin)
    }

    /// Forgets addresses that owe nothing.
    pub(super) fn tidy(&mut self, now: Instant) {
        const AFTER: Duration = Duration::from_secs((IN_VAIN_MAX / IN_VAIN_PER_S) as u64 + 1);
        self.records.retain(|_, record| {
            !record.guests.is_empty() || now.saturating_duration_since(record.as_of) < AFTER
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(last: u8) -> Origin {
        IpAddr::from([10, 0, 0, last]).into()
    }

    /// The names that are there.
    fn crowd(strangers: &mut Strangers, of: Origin, names: std::ops::Range<u64>, now: Instant) {
        for name in names {
            assert_ne!(strangers.arrives(name, of, now), Verdict::TurnedAway);
        }
    }

    #[test]
    fn an_address_that_has_many_loses_its_own_oldest() {
        let (mut strangers, now) = (Strangers::default(), Instant::now());
        strangers.arrives(1, origin(1), now);
        crowd(&mut strangers, origin(2), 2..100, now);
        let most = GUESTS_OF_ADDRESS_MAX as u64;
        assert_eq!(
            strangers.arrives(100, origin(2), now),
            Verdict::InsteadOf(100 - most)
        );
        // The other one's is older, and stays.
        assert!(strangers.origins.contains_key(&1));
        assert_eq!(strangers.origins.len(), GUESTS_OF_ADDRESS_MAX + 1);
    }

    #[test]
    fn of_many_addresses_the_one_with_most_makes_room() {
        let (mut strangers, now) = (Strangers::default(), Instant::now());
        let mut next = 0;
        let mut more = |strangers: &mut Strangers, of, count| {
            crowd(strangers, of, next..next + count, now);
            next += count;
        };
        more(&mut strangers, origin(9), GUESTS_OF_ADDRESS_MAX as u64);
        for last in 10..200 {
            more(&mut strangers, origin(last), 1);
        }
        more(&mut strangers, origin(200), 2);
        assert_eq!(strangers.origins.len(), GUESTS_MAX);
        assert_eq!(
            strangers.arrives(next, origin(3), now),
            Verdict::InsteadOf(0)
        );
        assert_eq!(strangers.origins.len(), GUESTS_MAX);
    }

    #[test]
    fn who_comes_in_vain_too_often_is_turned_away_for_a_while() {
        let (mut strangers, mut now) = (Strangers::default(), Instant::now());
        let mut next = 0..;
        let mut fails = |strangers: &mut Strangers, now| {
            let name = next.next().unwrap();
            let verdict = strangers.arrives(name, origin(1), now);
            strangers.leaves(name);
            verdict != Verdict::TurnedAway
        };
        let passed = (0..2000).filter(|_| fails(&mut strangers, now)).count();
        assert_eq!(passed, IN_VAIN_MAX as usize);
        now += Duration::from_secs(1);
        let passed = (0..2000).filter(|_| fails(&mut strangers, now)).count();
        assert_eq!(passed, IN_VAIN_PER_S as usize);
        // Others are not concerned.
        assert_eq!(strangers.arrives(5000, origin(2), now), Verdict::Stays);
    }

    #[test]
    fn who_comes_in_costs_nothing() {
        let (mut strangers, now) = (Strangers::default(), Instant::now());
        for name in 0..10_000 {
            assert_eq!(strangers.arrives(name, origin(1), now), Verdict::Stays);
            strangers.comes_in(name);
        }
        assert!(strangers.origins.is_empty());
    }

    #[test]
    fn addresses_are_not_remembered_without_bound() {
        let (mut strangers, now) = (Strangers::default(), Instant::now());
        for number in 0..10_000_u64 {
            let ip = Ipv6Addr::from(u128::from(number) << 64);
            strangers.arrives(number, IpAddr::from(ip).into(), now);
            assert!(strangers.records.len() <= ADDRESSES_MAX);
            assert!(strangers.origins.len() <= GUESTS_MAX);
        }
        for name in 0..10_000 {
            strangers.leaves(name);
        }
        strangers.tidy(now + Duration::from_secs(60));
        assert!(strangers.records.is_empty());
        // One network of IPv6 is one address.
        let of = |text: &str| Origin::from(text.parse::<IpAddr>().unwrap());
        assert_eq!(of("fd00::1"), of("fd00::2:3:4:5"));
        assert_ne!(of("fd00::1"), of("fd00:0:0:1::1"));
        assert_eq!(of("::ffff:10.0.0.1"), origin(1));
    }
}
