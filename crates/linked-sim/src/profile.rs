//! What goes wrong in a run, and how often: drawn from the seed.

use crate::rng::Rng;
use std::time::Duration;
use trefoil_linklet_core::Replication;
use trefoil_sharder::ServerId;

/// Until when things go wrong.
pub(crate) const TROUBLE: Duration = Duration::from_millis(5_000);
/// From then on nothing moves but for death.
pub(crate) const FREEZE: Duration = Duration::from_millis(7_200);
/// From then on everything has to be well again; one server dies then.
pub(crate) const PEACE: Duration = Duration::from_millis(9_000);
/// By when everything has to be owned again.
pub(crate) const OWNED_AGAIN: Duration = Duration::from_secs(5);
/// The end.
pub(crate) const END: Duration = Duration::from_millis(14_200);
/// For how long a server is a member without being heard of.
pub(crate) const LEASE: Duration = Duration::from_millis(1_500);
/// What a server believes of a lease, on its own clock.
pub(crate) fn believed(lease: Duration) -> Duration {
    lease * 9 / 10
}
/// Servers with little memory, where there are some.
pub(crate) const SMALL: usize = 2;
/// How long a link is cut, where it is for long: seconds, from and to.
pub(crate) const CUT_S: [u64; 2] = [3, 7];
/// How much clocks differ at most, in millionths; the difference between the
/// two leases covers it.
pub(crate) const DRIFT_PPM_MAX: i64 = 20_000;

/// One run's.
#[derive(Clone, Debug)]
pub(crate) struct Profile {
    pub(crate) replication: Replication,
    pub(crate) lease_required: bool,
    pub(crate) servers: usize,
    /// What two assigners that lead in turn grant.
    pub(crate) leases: [Duration; 2],
    /// Their store forgets everything now and then.
    pub(crate) forgetful: bool,
    /// The assigner dies just when a server comes back that it has struck off. A heir
    /// that has forgotten everything has to know of it.
    pub(crate) dies_when_back: bool,
    /// Only outages of the coordination, and servers that are cut off from it.
    pub(crate) outages_only: bool,
    /// Servers of a slice.
    pub(crate) replicas: usize,
    /// Of them, those that have a strong commit when it is acknowledged.
    pub(crate) copies_min: usize,
    pub(crate) keys: usize,
    pub(crate) callers: usize,
    /// Of 16 requests, those that are content with a copy; at most 8.
    pub(crate) copy_reads: usize,
    /// Maps are drawn at random instead of by the balancer.
    pub(crate) wild: bool,
    /// How often they are drawn, out of 1,024 steps of the coordination.
    pub(crate) changes: u32,
    /// Out of 1,024 frames.
    pub(crate) lost: u32,
    pub(crate) repeated: u32,
    /// Late by up to 300 ms instead of 3.
    pub(crate) late: u32,
    /// Values whose marshalling fails, out of 1,024.
    pub(crate) unmarshallable: u32,
    /// Values that cannot be stored where they arrive.
    pub(crate) unreadable: u32,
    /// Servers that cannot store some values (an older release) until everything is
    /// well again; in strong mode.
    pub(crate) picky: u32,
    /// Hundreds of keys, which callers fill one after the other at first.
    pub(crate) crowd: bool,
    /// Two assigners run and elect one of them.
    pub(crate) elections: bool,
    /// A third one was started without the corpus.
    pub(crate) has_stranger: bool,
    /// Keys that a server has room for until everything is well again; in strong mode.
    pub(crate) room: Option<usize>,
    /// The pause between two things going wrong; none if zero.
    pub(crate) fault_every: Duration,
    /// Only pauses of single servers, around the length of the lease.
    pub(crate) pauses_only: bool,
    /// The rate of handover, bytes per second.
    pub(crate) bytes_per_second: u64,
    pub(crate) chunk_entries: usize,
    /// Bytes on the way from one server to another, above which nothing but what is
    /// urgent is sent. A value and its frame are some eighty bytes.
    pub(crate) window_bytes: usize,
    /// Changes depend on what was there, and callers that give up say so.
    pub(crate) updates: bool,
    /// The first servers have little memory, and of the others one dies or drains at a time,
    /// when all is whole again.
    pub(crate) stays: bool,
    /// Only servers that stand still for less than their lease: commits of which they are
    /// to have a copy wait for that, and nothing else does.
    pub(crate) hangs: bool,
    /// Only links that are cut for long, one at a time, and deaths meanwhile.
    pub(crate) cuts: bool,
    /// The assigner hears what servers cannot store.
    pub(crate) unstored_told: bool,
    /// Servers with even numbers speak as those did that did not say what they speak, and
    /// nobody says more to them. What they do else is this release's.
    pub(crate) former: bool,
    /// For how much longer than otherwise things go wrong.
    pub(crate) longer: Duration,
}

/// More than there ever is to send.
const WINDOW_WIDE: usize = 4 << 20;
/// Less than two messages, and a few of them.
const WINDOWS_SMALL: [usize; 2] = [60, 200];

impl Profile {
    /// Whether a server is of a release of before versions were said.
    pub(crate) fn is_former(&self, server: ServerId) -> bool {
        self.former && server.0.is_multiple_of(2)
    }

    pub(crate) fn draw(rng: &mut Rng) -> Self {
        use Replication::{Eventual, None, Strong};
        let replication = rng.pick(&[None, Eventual, Strong, Strong]);
        let clean = rng.chance(128);
        let rate = |rng: &mut Rng, max| {
            if clean || rng.chance(400) {
                0
            } else {
                rng.below(max) as u32
            }
        };
        let values = replication != Strong && rng.chance(200);
        let profile = Profile {
            replication,
            lease_required: rng.chance(200),
            leases: [LEASE; 2],
            forgetful: false,
            dies_when_back: false,
            outages_only: false,
            servers: 2 + rng.below(4),
            replicas: match replication {
                None => 1,
                _ => 2 + rng.below(2),
            },
            keys: 4 + rng.below(12),
            callers: 2 + rng.below(3),
            copy_reads: 3,
            wild: rng.chance(640),
            changes: 250,
            lost: rate(rng, 100),
            repeated: rate(rng, 60),
            late: rate(rng, 150),
            unmarshallable: if values { 100 } else { 0 },
            unreadable: if values { 60 } else { 0 },
            picky: 0,
            crowd: false,
            elections: false,
            has_stranger: false,
            room: Option::None,
            fault_every: rng.pick(&[0, 300, 700, 1_500].map(Duration::from_millis)),
            pauses_only: false,
            bytes_per_second: rng.pick(&[u64::MAX, u64::MAX, 2_000, 200]),
            chunk_entries: rng.pick(&[1, 2, 100]),
            copies_min: rng.pick(&[1, 2, 2, 2]),
            window_bytes: WINDOW_WIDE,
            updates: false,
            stays: false,
            hangs: false,
            cuts: false,
            unstored_told: false,
            former: false,
            longer: Duration::ZERO,
        };
        // Of every second seed; without another draw, so that seeds stay what they are.
        let window_bytes = match profile.keys % 4 {
            1 => WINDOWS_SMALL[0],
            3 => WINDOWS_SMALL[1],
            _ => WINDOW_WIDE,
        };
        let small = replication == Strong && profile.keys.is_multiple_of(3);
        let room = small.then_some(profile.keys / 2);
        let profile = Profile {
            window_bytes,
            room,
            former: small && profile.keys.is_multiple_of(2),
            ..profile
        };
        if replication == Strong && rng.chance(300) {
            return Profile {
                unreadable: 150,
                picky: 500,
                ..profile
            };
        }
        profile
    }

    /// Owners that are stopped past their lease, and continued.
    pub(crate) fn pauses(rng: &mut Rng) -> Self {
        Profile {
            replication: Replication::Strong,
            servers: 3 + rng.below(3),
            fault_every: Duration::from_millis(900),
            pauses_only: true,
            unmarshallable: 0,
            unreadable: 0,
            picky: 0,
            replicas: 2,
            ..Profile::draw(rng)
        }
    }

    /// Assigners that were started with different leases and lead in turn, or
    /// whose store forgets everything, while servers are stopped or cut off.
    pub(crate) fn assigners(rng: &mut Rng) -> Self {
        let forgetful = rng.chance(512);
        let other = if forgetful && rng.chance(512) {
            LEASE
        } else {
            rng.pick(&[LEASE / 3, LEASE / 2, LEASE * 3 / 2])
        };
        let profile = Profile {
            replication: Replication::Strong,
            leases: [LEASE, other],
            forgetful,
            outages_only: true,
            servers: 3 + rng.below(3),
            fault_every: Duration::from_millis(500),
            unmarshallable: 0,
            unreadable: 0,
            replicas: 2,
            ..Profile::draw(rng)
        };
        Profile {
            // Of half the seeds, without another draw.
            dies_when_back: forgetful && matches!(profile.keys, 5 | 8..=11 | 13),
            ..profile
        }
    }

    /// Two assigners that both run, elect one of them, and are stopped or cut off from
    /// their store.
    pub(crate) fn elections(rng: &mut Rng) -> Self {
        use Replication::{Eventual, Strong};
        let other = rng.pick(&[LEASE, LEASE, LEASE / 2, LEASE * 3 / 2]);
        Profile {
            replication: rng.pick(&[Strong, Strong, Eventual]),
            elections: true,
            has_stranger: rng.chance(400),
            leases: [LEASE, other],
            servers: 3 + rng.below(3),
            replicas: 2,
            wild: false,
            fault_every: Duration::from_millis(900),
            unmarshallable: 0,
            unreadable: 0,
            picky: 0,
            former: false,
            ..Profile::draw(rng)
        }
    }

    /// Copies, many keys, maps that change all the time, and windows that are always
    /// full: what is to be sent waits for its turn, and meanwhile things change.
    pub(crate) fn windows(rng: &mut Rng) -> Self {
        use Replication::{Eventual, Strong};
        Profile {
            replication: rng.pick(&[Strong, Strong, Eventual]),
            servers: 3 + rng.below(3),
            replicas: 2 + rng.below(2),
            keys: 8 + rng.below(8),
            callers: 4 + rng.below(4),
            wild: true,
            changes: 500,
            unmarshallable: 0,
            unreadable: 0,
            picky: 0,
            window_bytes: rng.pick(&[60, 120, 200, 400]),
            ..Profile::draw(rng)
        }
    }

    /// Hundreds of keys at few servers: what moves takes many chunks, copies that are made
    /// anew fill windows, and every split or merge is of many keys.
    pub(crate) fn crowd(rng: &mut Rng) -> Self {
        use Replication::{Eventual, Strong};
        Profile {
            replication: rng.pick(&[Strong, Strong, Strong, Eventual]),
            crowd: true,
            servers: 3 + rng.below(2),
            replicas: 2,
            keys: 200 + rng.below(1_200),
            callers: 16,
            changes: 300,
            lost: rng.pick(&[0, 10, 40]),
            unmarshallable: 0,
            unreadable: 0,
            picky: 0,
            room: Option::None,
            fault_every: Duration::from_millis(1_500),
            bytes_per_second: rng.pick(&[u64::MAX, u64::MAX, 200_000]),
            chunk_entries: rng.pick(&[4, 16, 64]),
            window_bytes: rng.pick(&[400, 2_000, WINDOW_WIDE]),
            ..Profile::draw(rng)
        }
    }

    /// Many callers that change few keys, each from what is there, while maps change,
    /// servers die and callers give up.
    pub(crate) fn updates(rng: &mut Rng) -> Self {
        Profile {
            replication: Replication::Strong,
            servers: 3 + rng.below(3),
            replicas: 2,
            keys: 1 + rng.below(2),
            callers: 6 + rng.below(6),
            copy_reads: 2,
            changes: 200 + rng.below(500) as u32,
            unmarshallable: 0,
            unreadable: 0,
            picky: 0,
            updates: true,
            ..Profile::draw(rng)
        }
    }

    /// Callers that change keys from what is there, while one server after another stands
    /// still for less than its lease: what it is not to confirm does not wait for it.
    pub(crate) fn hangs(rng: &mut Rng) -> Self {
        let profile = Profile::draw(rng).whole();
        Profile {
            replication: Replication::Strong,
            servers: 4 + rng.below(2),
            replicas: 2,
            copies_min: 2,
            keys: 6 + rng.below(6),
            callers: 8,
            copy_reads: 1,
            wild: false,
            room: None,
            updates: true,
            hangs: true,
            longer: Duration::from_millis(3_000),
            fault_every: Duration::from_millis(1_600),
            bytes_per_second: u64::MAX,
            window_bytes: WINDOW_WIDE,
            former: false,
            ..profile
        }
    }

    /// Some servers have little memory, so keys stay where they were; and servers die, or
    /// drain, each when all is whole again after the last one.
    pub(crate) fn stays(rng: &mut Rng) -> Self {
        let profile = Profile::draw(rng).whole();
        Profile {
            replication: Replication::Strong,
            servers: 6,
            replicas: 2,
            copies_min: 2,
            keys: 6 + rng.below(10),
            wild: false,
            room: Some(rng.below(2)),
            // A lease ends, and what had copies at the dead has others.
            fault_every: Duration::from_millis(2_400),
            longer: Duration::from_millis(7_000),
            bytes_per_second: u64::MAX,
            window_bytes: WINDOW_WIDE,
            stays: true,
            unstored_told: rng.chance(512),
            former: false,
            ..profile
        }
    }

    /// Nothing is lost or late on its way, and every server can store and read every value.
    fn whole(self) -> Self {
        Profile {
            lost: 0,
            repeated: 0,
            late: 0,
            unmarshallable: 0,
            unreadable: 0,
            picky: 0,
            ..self
        }
    }

    /// Links between two servers that are cut for long, in both directions or in one, while
    /// all of them have their leases: no request waits for that.
    pub(crate) fn cuts(rng: &mut Rng) -> Self {
        let profile = Profile::draw(rng).whole();
        Profile {
            replication: Replication::Strong,
            servers: 3 + rng.below(3),
            replicas: 2,
            copies_min: 2,
            callers: 4 + rng.below(4),
            changes: 100,
            room: None,
            fault_every: Duration::from_millis(1_000),
            longer: Duration::from_millis(10_000),
            bytes_per_second: u64::MAX,
            window_bytes: WINDOW_WIDE,
            cuts: true,
            former: false,
            ..profile
        }
    }

    /// Few keys, many callers, and maps that change before the last change is
    /// through: what is rare elsewhere because it takes a request, or a third
    /// owner, within one round trip.
    pub(crate) fn rush(rng: &mut Rng) -> Self {
        Profile {
            keys: 1 + rng.below(3),
            callers: 4 + rng.below(4),
            copy_reads: 6,
            wild: true,
            changes: 900,
            lost: rng.below(200) as u32,
            fault_every: Duration::from_millis(300),
            bytes_per_second: u64::MAX,
            ..Profile::draw(rng)
        }
    }
}
