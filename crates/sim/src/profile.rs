//! What kind of trouble a seed makes. Each seed draws its own mixture, so that
//! some runs are all loss and no eviction and others the reverse: a uniform
//! mixture would reach few deep states of any one kind.

use crate::rng::Rng;
use trefoil_layout::Placement;
use trefoil_store::PolicyKind;

/// What was written longer ago is no mutation on its way, in the product.
const REST_NS: u64 = trefoil_client_core::cas::AT_REST_NS;

/// What repair draws from is a seed of its own, made from a run's.
const REPAIR_SALT: u64 = 0x7265_7061_6972;

/// The same for the crash in a run that is calm otherwise.
const BEREFT_SALT: u64 = 0x6265_7265_6674;

/// How long an operation tries there: longer than any takes that finds an end.
pub(crate) const BEREFT_PATIENCE_STEPS: u64 = 3_000;

/// Chances are of 1,024.
#[derive(Clone, Debug)]
pub(crate) struct Profile {
    /// Nothing fails and nothing is forgotten: what remains is delay, order,
    /// repetition and torn reads.
    pub(crate) calm: bool,
    /// A calm run in which one backend dies. What was acknowledged is not lost with it.
    pub(crate) bereft: bool,
    /// A calm run with one backend dead from the beginning, and keys on which the
    /// other two disagree: one was away, or has evicted.
    pub(crate) survivors: bool,
    /// Copies of each key: 1 or 3.
    pub(crate) replicas: usize,
    pub(crate) backends: usize,
    pub(crate) clients: usize,
    pub(crate) keys: usize,
    /// Partitions of each shard.
    pub(crate) partitions: usize,
    pub(crate) policy: PolicyKind,
    /// Operations of all clients together.
    pub(crate) operations: usize,
    /// Relative weights of GET, SET, ERASE, CAS, fill after a miss.
    pub(crate) weights: [u64; 5],
    /// A message never arrives.
    pub(crate) loss: u32,
    /// An answer never arrives.
    pub(crate) answer_loss: u32,
    /// A SET's or ERASE's message arrives once more.
    pub(crate) copies: u32,
    /// The next message to arrive is any one, however old, not a recent one.
    pub(crate) lateness: u32,
    /// A message or an answer takes up to `delay_steps` longer.
    pub(crate) delay: u32,
    pub(crate) delay_steps: u64,
    /// A client stands still for up to `stall_steps`, in mid-operation.
    pub(crate) stall: u32,
    /// The same, right after an index was read.
    pub(crate) vote_stall: u32,
    pub(crate) stall_steps: u64,
    /// Something happens at the backend in the middle of a read.
    pub(crate) torn: u32,
    /// A one-sided read fails although the backend lives.
    pub(crate) read_failure: u32,
    /// A waiting client gives up waiting for one answer.
    pub(crate) impatience: u32,
    /// A step is one of the surroundings, not of clients or messages.
    pub(crate) surroundings: u32,
    /// Whether a backend crashes, and whether it recovers (then another one may
    /// crash).
    pub(crate) crash: bool,
    pub(crate) recovery: bool,
    /// Steps until the first crash, and from a recovery to the next, at most.
    pub(crate) crash_interval: u64,
    /// A backend that has just executed something is the next to crash, and
    /// soon: what only it knows is what matters.
    pub(crate) spite: u32,
    /// How long a dead backend's lease lasts at most, in steps.
    pub(crate) lease_steps: u64,
    /// While there is one, a step is one of the recovery's.
    pub(crate) recovery_pace: u32,
    /// Where repair is at work, a step is one of its.
    pub(crate) repair: u32,
    /// Between its two looks, and from when on what is written is at rest.
    pub(crate) repair_pause_ns: u64,
    pub(crate) repair_rest_ns: u64,
    /// Another key is written at one replica, as one surrounding event.
    pub(crate) filler: u32,
    /// Other keys written before the run; all of one home bucket if `crowded`.
    pub(crate) fillers_first: usize,
    pub(crate) filler_keys: usize,
    pub(crate) crowded: bool,
    /// A replica's configuration number changes, as one surrounding event.
    pub(crate) config_change: u32,
    /// Capacity of a partition in objects, 0 for no bound.
    pub(crate) objects_max: u64,
    /// Bytes of a replica's memory, for each shard.
    pub(crate) memory_max: u64,
    pub(crate) tombstones: usize,
    /// Longest value of the watched keys and of the others, in bytes.
    pub(crate) value_len: usize,
    pub(crate) filler_len: usize,
    /// A SET carries an expiry so far ahead, in milliseconds; 0 for none.
    pub(crate) expiry_ms: u64,
    /// A CAS stores what has expired already, which is how one erases: each
    /// replica removes it in its own time.
    pub(crate) cas_erases: u32,
    /// Clients' clocks differ by up to this much, in nanoseconds.
    pub(crate) skew_ns: u64,
    /// Time passes by up to this much a step, in nanoseconds.
    pub(crate) step_ns: u64,
    /// An operation's deadline, in nanoseconds.
    pub(crate) deadline_ns: u64,
    pub(crate) retries_max: u16,
    pub(crate) fan_out: usize,
    /// Lookups by message, by SCAR.
    pub(crate) by_message: u32,
    pub(crate) by_scar: u32,
}

impl Profile {
    /// Where keys live.
    pub(crate) fn placement(&self) -> Placement {
        Placement::new(self.replicas, self.backends as u32)
    }

    /// The mixture of a seed: calm in a quarter, with a backend dead in a quarter
    /// of these; in a quarter of the others one of
    /// crashes, recoveries and delays alone, for what goes wrong with epochs takes
    /// many steps in the right order.
    pub(crate) fn draw(rng: &Rng) -> Self {
        let profile = Self::mix(rng);
        if rng.chance(256) {
            return if rng.chance(256) {
                profile.survived(rng)
            } else {
                profile.calmed(rng)
            };
        }
        if !rng.chance(256) {
            return profile;
        }
        Profile {
            replicas: 3,
            clients: 3 + rng.index(2),
            keys: 1,
            operations: 60,
            weights: rng.pick(&[[8, 8, 0, 0, 0], [20, 1, 0, 0, 0], [8, 6, 1, 1, 0]]),
            loss: rng.pick(&[0, 100]),
            answer_loss: rng.pick(&[0, 100]),
            copies: 0,
            delay: rng.pick(&[300, 900]),
            delay_steps: rng.pick(&[100, 300]),
            stall: rng.pick(&[20, 60]),
            vote_stall: rng.pick(&[0, 400]),
            stall_steps: rng.pick(&[60, 150]),
            torn: 0,
            read_failure: 0,
            impatience: rng.pick(&[1, 20]),
            surroundings: 0,
            crash: true,
            crash_interval: rng.pick(&[200, 600]),
            recovery: true,
            recovery_pace: rng.pick(&[300, 800]),
            spite: 60,
            lease_steps: 3,
            filler: 0,
            fillers_first: 0,
            crowded: false,
            config_change: 0,
            objects_max: 0,
            memory_max: 32 << 10,
            expiry_ms: 0,
            tombstones: 16,
            value_len: 0,
            skew_ns: rng.pick(&[0, 50_000, 2_000_000]),
            deadline_ns: 20_000_000,
            retries_max: rng.pick(&[0, 2]),
            fan_out: 1,
            ..profile
        }
    }

    /// In a quarter of most seeds the cohorts are repaired, too. Drawn from a source of its
    /// own: the other seeds are what they were.
    pub(crate) fn repaired(self, seed: u64) -> Self {
        let rng = Rng::new(seed ^ REPAIR_SALT);
        // Runs of crashes alone need all their steps for these.
        let is_of_crashes = self.spite > 0;
        if self.replicas != 3 || is_of_crashes || !rng.chance(256) {
            return self;
        }
        let rests = match self.calm {
            true => [REST_NS; 2],
            false => [0, REST_NS],
        };
        Profile {
            repair: rng.pick(&[150, 400, 700]),
            repair_pause_ns: rng.pick(&[0, 0, 20]) * self.step_ns,
            repair_rest_ns: rng.pick(&rests),
            ..self
        }
    }

    /// In a quarter of the seeds of writers who contend, one backend dies among them. Drawn
    /// from a source of its own, too.
    pub(crate) fn bereft(self, seed: u64) -> Self {
        let rng = Rng::new(seed ^ BEREFT_SALT);
        if !self.calm || self.survivors || !rng.chance(256) {
            return self;
        }
        Profile {
            bereft: true,
            crash: true,
            crash_interval: 40 * self.operations as u64,
            spite: rng.pick(&[5, 20, 60]),
            clients: 3 + rng.index(2),
            lease_steps: rng.pick(&[1, 50]),
            // With a SET, an ERASE or a repair between two replicas in the moment of the
            // death, the others may not know what was stored (docs/quorum.md).
            weights: [4, 0, 0, 10, 0],
            repair: 0,
            deadline_ns: BEREFT_PATIENCE_STEPS * self.step_ns,
            cas_erases: 0,
            delay: 0,
            ..self
        }
    }

    /// Two of three backends live. So short that nothing that is written comes
    /// to rest.
    fn survived(self, rng: &Rng) -> Self {
        Profile {
            survivors: true,
            backends: 3,
            keys: 1 + rng.index(2),
            weights: rng.pick(&[
                [8, 2, 1, 10, 1],
                [6, 0, 0, 10, 0],
                [2, 8, 0, 8, 0],
                [4, 4, 4, 2, 2],
            ]),
            operations: 24,
            copies: 0,
            step_ns: 10_000,
            ..self.calmed(rng)
        }
    }

    /// Writers who contend for one key, and nothing that loses or forgets.
    fn calmed(self, rng: &Rng) -> Self {
        Profile {
            calm: true,
            replicas: 3,
            clients: 2 + rng.index(3),
            keys: 1,
            operations: rng.pick(&[24, 60]),
            weights: rng.pick(&[
                [8, 2, 1, 10, 1],
                [6, 0, 0, 10, 0],
                [4, 2, 0, 4, 0],
                [4, 4, 4, 2, 2],
            ]),
            loss: 0,
            answer_loss: 0,
            lateness: 1024,
            delay_steps: rng.pick(&[50, 1_000]),
            read_failure: 0,
            impatience: 0,
            surroundings: rng.pick(&[0, 30, 120]),
            crash: false,
            recovery: false,
            filler: 0,
            fillers_first: 0,
            crowded: false,
            config_change: 0,
            objects_max: 0,
            memory_max: 64 << 10,
            tombstones: 16,
            value_len: 0,
            expiry_ms: 0,
            cas_erases: rng.pick(&[0, 100, 400]),
            skew_ns: rng.pick(&[0, 50_000, 2_000_000]),
            deadline_ns: u64::MAX >> 1,
            retries_max: 24,
            ..self
        }
    }

    fn mix(rng: &Rng) -> Self {
        let replicas = if rng.chance(128) { 1 } else { 3 };
        let often = |chance| rng.chance(chance);
        let level = |levels: &[u32]| rng.pick(levels);
        let crash = often(512);
        let crowded = often(48);
        let operations = rng.pick(&[24, 60, 120]);
        Profile {
            calm: false,
            bereft: false,
            survivors: false,
            replicas,
            backends: rng.pick(&[3, 3, 4, 5]),
            clients: 2 + rng.index(3),
            keys: 1 + rng.index(3),
            partitions: 1 + rng.index(2),
            policy: rng.pick(&[
                PolicyKind::Lru,
                PolicyKind::Lru,
                PolicyKind::Arc,
                PolicyKind::S3Fifo,
            ]),
            operations: operations as usize,
            weights: rng.pick(&[
                [8, 8, 1, 2, 2],
                [8, 4, 3, 4, 2],
                [10, 3, 1, 10, 1],
                [16, 6, 2, 0, 6],
                [8, 8, 0, 0, 0],
            ]),
            loss: level(&[0, 0, 30, 120, 300]),
            answer_loss: level(&[0, 20, 120, 300]),
            copies: level(&[0, 0, 60, 300]),
            lateness: level(&[20, 200, 1024]),
            delay: level(&[0, 0, 100, 300]),
            delay_steps: rng.pick(&[50, 300]),
            stall: level(&[0, 0, 10, 50]),
            vote_stall: 0,
            stall_steps: rng.pick(&[50, 300]),
            torn: level(&[0, 100, 400]),
            read_failure: level(&[0, 0, 5, 60]),
            impatience: level(&[40, 150, 400]),
            surroundings: level(&[30, 120, 250]),
            crash,
            recovery: replicas == 3 && crash && often(700),
            crash_interval: 8 * operations,
            spite: 0,
            lease_steps: 100,
            recovery_pace: level(&[30, 150, 500]),
            repair: 0,
            repair_pause_ns: 0,
            repair_rest_ns: REST_NS,
            filler: level(&[0, 200, 700]),
            fillers_first: if crowded { 78 } else { 0 },
            filler_keys: if crowded { 90 } else { rng.pick(&[3, 12, 100]) },
            crowded,
            config_change: level(&[0, 0, 0, 60]),
            objects_max: rng.pick(&[0, 0, 1, 2, 4]) * u64::from(!crowded),
            memory_max: if crowded {
                128 << 10
            } else {
                rng.pick(&[32 << 10, 64 << 10])
            },
            tombstones: rng.pick(&[0, 1, 2, 16]),
            value_len: rng.pick(&[0, 40, 400]),
            filler_len: rng.pick(&[30, 300, 2_000]) / if crowded { 20 } else { 1 },
            expiry_ms: rng.pick(&[0, 0, 0, 1, 2]),
            cas_erases: 0,
            skew_ns: rng.pick(&[0, 50_000, 2_000_000, 50_000_000, 15_000_000_000]),
            step_ns: rng.pick(&[2_000, 10_000, 40_000]),
            deadline_ns: rng.pick(&[300_000, 2_000_000, 20_000_000]),
            retries_max: rng.pick(&[0, 2, 8, 24]),
            fan_out: rng.pick(&[1, 1, 3]),
            by_message: level(&[0, 0, 0, 300]),
            by_scar: level(&[0, 0, 0, 300]),
        }
    }
}
