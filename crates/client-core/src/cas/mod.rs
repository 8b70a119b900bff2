//! Compare-and-swap: rules 13 to 15, and what becomes of a key on which the
//! living replicas disagree.
//!
//! # Calling order
//!
//! ```text
//! let mut cas = Cas::new(mode, expected, version, limits);
//! if a replica of the cohort is known to be down { cas.look_first() }
//! loop {
//!     match cas.poll(now) {
//!         Send { replica, version }    => message -> handle_ack, or handle_failure
//!         Install { replica, version } => a SET of the same value at this version; its
//!                                         answer is nobody's
//!         Evict { replica, version }   => an ERASE at this version, to this replica alone
//!                                         -> handle_ack, or handle_failure
//!         Nominate { above }           => clock.observe(above); clock.next(wall clock)
//!                                         -> handle_version
//!         Pause { ns }                 => let so much time pass
//!         Later                        => learn the topology; let some time pass
//!         Look                         => a careful GET (Plan::careful) -> handle_look
//!         Wait { until_ns }            => feed the answer, or poll again at that time
//!         Done(outcome)                => ends it
//!     }
//! }
//! ```
//!
//! Answers carry the version of the message that they answer; those to anything
//! but what is open now are ignored.
//!
//! # One CAS
//!
//! * The replicas are asked in the order of the cohort, each after the one
//!   before has answered or was found down: contenders meet at one replica
//!   instead of splitting three ways.
//! * **Each process gets the message at most once, and no layer below may
//!   repeat it** (rule 14): a copy that finds the first one's work would be
//!   refused, and a refusal must mean that it does not hold. A lost answer
//!   stays unknown. One that has *put it off*, or has refused it, has done nothing,
//!   says so, and may be asked again.
//! * Once two have applied it, the others get it before `Done` by rule 11: as a
//!   SET at its own version, which also takes the place of what a contender has
//!   left there. A copy of its own on one replica of three would leave the key
//!   without a quorum when another one dies.
//! * **A refusal that comes before any replica has applied it stops it for a
//!   look**: only if a quorum still agrees on what is expected (the replica that
//!   refused was the odd one out) does it begin anew, under a new version, and
//!   then goes on after one refusal. Going on at once would let two contenders
//!   hold one replica each where the third lags behind or has something else:
//!   three replicas with three versions, and no quorum ever again. After the
//!   look, the other two held what both contenders expect, so one of them wins.
//! * **It gives way to a contender that is ahead**: one that has come first at a
//!   replica, by a version that is newer than what is expected and not at rest. It
//!   asks that replica again after a pause. Going on to the next one would take
//!   away the copy that the contender needs next: of what is acknowledged then
//!   there are two copies, and the one that failed cannot give the third back (its
//!   bound is too high). One death, and nobody has a quorum. The same where it
//!   holds one replica itself and meets the contender at a later one: with the
//!   first one dead, who has a place behind it is ahead. Whoever gives way does so
//!   for half of [`AT_REST_NS`] at most, or of the time that is left: the
//!   contender's client may have died, and what it holds itself is not to be at rest
//!   when it goes on.
//! * One that a replica holds goes on, for the same reason: ending there would
//!   leave its version in nobody's care. So it waits for those that have put it
//!   off: replicas freeze one after the other while a cell is resized. Each attempt
//!   that is given up there would take a copy of what is expected away, at
//!   another replica each time.
//! * One that a replica holds waits for one that lags behind, too, where the third
//!   has died: what is expected was there and where this has taken its place, and
//!   is on its way to the last.
//! * **A replica that moves stays the same replica**, in a cohort of another size,
//!   too: what it has said counts on. If it has forgotten meanwhile, it is in
//!   another epoch (rule 4).
//! * **A message that the move has cost is sent again**, to the process that the replica
//!   is now: the one before takes nothing any more. One that had taken it refuses it for
//!   its own version, which says so; one that refuses it for anything as new or newer may
//!   have taken it and evicted it since, and stays unknown. To pass it over would cost
//!   the value itself, where the third replica lags behind: it had frozen when the
//!   last mutation came.
//! * **Before anything is evicted, a replica that holds what is expected, and that this
//!   version was not sent to, is asked**: it was not reached for a moment. It may be the only
//!   one of three that still has what was acknowledged.
//! * What it says is there instead is what a quorum agrees on, found by a look:
//!   a version that one replica named may be another contender's that is given
//!   up, and who built on it would take away a copy that is still needed.
//!
//! # Survivors that disagree
//!
//! Replicas evict by themselves, and one that was away has missed writes. With
//! another one dead such a key has no quorum: to readers it is a miss. A CAS
//! that expects no value must succeed there, and one that failed must not leave
//! such a key behind. The one tool for both is **an eviction of exactly what a
//! replica was seen to hold**: an ERASE at that entry's own version, sent to that
//! replica alone.
//!
//! * It applies only while the replica holds that version (or, after it lost its
//!   memory, something older): what has come since lies above it and stays. So
//!   an acknowledged mutation that runs beside it is never undone: two replicas
//!   hold it, and neither evicts it.
//! * To the replica it is an eviction like any other: its bound stays where it
//!   was (rule 3), nothing older comes back, and no rule is added. An eviction
//!   may always turn a hit into a miss.
//! * It needs no quorum, no epoch and no answer: the CAS that follows it, at a
//!   new version, has its own.
//! * It waits until what is evicted is *at rest*: older than [`AT_REST_NS`] by
//!   its version. A younger one may be a mutation between its first replica and
//!   its second. Clocks decide nothing here but how gentle it is.
//! * A replica is known to be down: it looks before it sends anything. What it
//!   would put in the place of one of two good copies, were it to fail, is not
//!   lost then.
//! * **One that has failed evicts the copy that it left**, and, where its look
//!   has found the survivors to disagree, whatever else is at rest there: both
//!   then say that nothing is there. This copy is never the current value: it
//!   was refused by so many that no quorum holds it, now or later. Left there,
//!   it would be one of three different votes as soon as a mutation is late at
//!   another replica, or that replica dies.
//! * **A message that is lost costs the version, too**: the replicas that follow
//!   get the CAS at a new one, and the lost one's is passed over. A contender that
//!   had waited for a replica that died would else leave a copy at the next one
//!   that is at rest by its version, though it is just on its way; whoever looks
//!   then would evict it, and the acknowledged value beside it. One lost copy is
//!   no quorum, so nobody has seen it. It looks before it goes on: a survivor
//!   that has yet to take what is expected would refuse it, and the other's copy
//!   were gone by then.
//! * It begins anew only if it certainly was not seen: refused, unsent or down
//!   at so many that its copies never were a quorum. So it takes effect once.

mod machine;

pub use machine::Cas;

use crate::mode::REPLICAS_MAX;
use crate::outcome::MutationOutcome;
use trefoil_layout::Version;
use trefoil_layout::op::Expected;

/// From this age on what a replica holds is no mutation on its way: hundreds of
/// times what one takes from its first replica to its last on a busy machine.
pub const AT_REST_NS: u64 = 500_000_000;

/// What the driver does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CasStep {
    /// Send it to this replica, once.
    Send {
        /// Place in the cohort.
        replica: usize,
        /// To be handed back with the answer.
        version: Version,
    },
    /// Send the same value at this version as a SET, and wait for nothing.
    Install {
        /// Place in the cohort.
        replica: usize,
        /// At which it was stored.
        version: Version,
    },
    /// Send an ERASE at this version, to this replica alone.
    Evict {
        /// Place in the cohort.
        replica: usize,
        /// Of what is there; to be handed back with the answer.
        version: Version,
    },
    /// Issue a new version above this one.
    Nominate {
        /// The highest that was seen.
        above: Version,
    },
    /// Let this time pass: whoever was first may be through then.
    Pause {
        /// Nanoseconds.
        ns: u64,
    },
    /// A replica stands still, serves another configuration or is moving: learn the
    /// topology, and let some time pass.
    Later,
    /// Find out by a careful GET what a quorum agrees on, then
    /// [`Cas::handle_look`].
    Look,
    /// Nothing to start before the answer or this time.
    Wait {
        /// On the caller's monotonic clock; `u64::MAX` if there is no such time.
        until_ns: u64,
    },
    /// Finished; any further poll says the same.
    Done(MutationOutcome),
}

/// What a look has found out ([`crate::get::Get::looked`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Looked {
    /// A quorum agrees on this.
    Agreed(Expected),
    /// A quorum has voted, no two agree, and what they hold is at rest.
    Disagree {
        /// What each of them holds, by place in the cohort.
        present: [Option<Version>; REPLICAS_MAX],
    },
    /// Neither: too few could be heard, or something is on its way.
    Unknown,
}
