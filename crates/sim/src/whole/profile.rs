//! What kind of trouble a seed makes. Each seed draws its own mixture.

use crate::rng::Rng;
use trefoil_driver::Carrier;

const US: u64 = 1_000;
const MS: u64 = 1_000_000;

/// How a backend is reached, of those that a client does not choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// Mapped memory and rings.
    Rings,
    /// Mapped memory; there were no rings left.
    Reads,
    /// An engine beside the backend scans and reads; messages go to the backend.
    Engine,
    /// Calls only.
    Calls,
}

/// Chances are of 1,024.
#[derive(Clone, Debug)]
pub(super) struct Profile {
    /// Copies of each key: 1 or 3.
    pub(super) replicas: usize,
    pub(super) backends: usize,
    pub(super) clients: usize,
    /// Keys whose histories are checked.
    pub(super) keys: usize,
    /// Partitions of each shard.
    pub(super) partitions: usize,
    /// Operations of all clients together.
    pub(super) operations: usize,
    /// Relative weights of GET, get_many, SET, erase, increment, add, CAS, fill.
    pub(super) weights: [u64; 8],
    /// Operations that an event loop has under way at most.
    pub(super) window: usize,
    /// A client waits for each operation before it begins the next.
    pub(super) blocking: u32,
    /// What an event loop has begun is abandoned.
    pub(super) abandon: u32,
    /// A client pauses up to `pause_ns` between two operations.
    pub(super) pause: u32,
    pub(super) pause_ns: u64,
    pub(super) deadline_ns: u64,
    pub(super) retries_max: u16,
    /// Wall clocks differ by up to this much, either way.
    pub(super) skew_ns: u64,
    pub(super) reach: Reach,
    /// A link is of another kind than `reach`.
    pub(super) other_reach: u32,
    /// What clients want to be carried by.
    pub(super) carrier: Carrier,
    /// Requests that a ring holds, and calls of a client that may be under way to one
    /// backend.
    pub(super) ring_len: usize,
    /// Longest message of a ring, in bytes.
    pub(super) message_len_max: usize,
    /// A ring is found full.
    pub(super) full: u32,
    /// A message or call takes up to `late_ns` longer.
    pub(super) late: u32,
    pub(super) late_ns: u64,
    /// A call fails before it is sent, or its answer is lost.
    pub(super) call_failure: u32,
    /// A call's message arrives twice.
    pub(super) twice: u32,
    /// A connection cannot be made although the backend lives.
    pub(super) connect_failure: u32,
    /// Something happens at a backend beside a read.
    pub(super) torn: u32,
    /// Backends are killed so often, one after another, and come back empty.
    pub(super) kills: usize,
    /// Backends move to other processes so often.
    pub(super) moves: usize,
    /// The cell gets another size so often.
    pub(super) resizes: usize,
    /// Places are given to other processes so often; who learns of it, does so up to
    /// `cut_off_ns` later.
    pub(super) replaces: usize,
    pub(super) cut_off_ns: u64,
    /// Backends are stopped so often.
    pub(super) stops: usize,
    pub(super) stop_ns: u64,
    /// The whole cell is started anew.
    pub(super) restarts: usize,
    pub(super) flushes: usize,
    pub(super) client_deaths: usize,
    pub(super) disconnects: usize,
    /// The span in which these happen, in nanoseconds.
    pub(super) span_ns: u64,
    /// Memory of a store, in bytes.
    pub(super) memory_max: u64,
    /// Begins with full memory.
    pub(super) is_full: bool,
    /// Begins with so many keys that nobody watches.
    pub(super) fillers_first: u64,
    /// Those of which some are written later on.
    pub(super) filler_keys: u64,
    /// Something is written at a backend by nobody that is watched, while it tends.
    pub(super) filler: u32,
    /// So often at a time.
    pub(super) burst: usize,
    /// A SET's item expires within milliseconds.
    pub(super) expiry: u32,
    pub(super) value_len: usize,
    pub(super) filler_len: usize,
    pub(super) tombstones: usize,
}

/// A mixture of one trouble, many times in each run: what some rule exists for, and
/// what the usual mixtures meet once in many thousand runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scene {
    /// The cell is started anew, perhaps with fewer backends, and its clients reach
    /// backends by calls.
    SmallerCell,
    /// Rings are short and often full, callers abandon what waits for room, and keys
    /// have different cohorts.
    FullRings,
    /// Indexes so large that to take one out of service is many steps grow while few
    /// keys are written and read all the time.
    GrowingIndexes,
    /// Of five backends some move to other processes while they, or others, are killed
    /// again and again; memory is full, or has room.
    Moves,
    /// A cell of five backends gets four, or three, and others again, while backends of
    /// both are killed, hang or move, and it is flushed.
    Resizes,
    /// Places are given to other processes, while those that had them live, hang, or are
    /// killed and recover, and others learn of it late.
    Replaces,
}

impl Scene {
    /// Bends a drawn profile.
    pub(super) fn apply(self, profile: &mut Profile) {
        let drawn = profile.clone();
        let quiet = Profile {
            kills: 0,
            stops: 0,
            restarts: 0,
            flushes: 0,
            client_deaths: 0,
            disconnects: 0,
            skew_ns: 0,
            expiry: 0,
            ..drawn.clone()
        };
        *profile = match self {
            Scene::SmallerCell => Profile {
                replicas: 1,
                backends: 5,
                restarts: 1,
                reach: match drawn.reach {
                    Reach::Rings | Reach::Reads => Reach::Reads,
                    Reach::Engine | Reach::Calls => Reach::Calls,
                },
                other_reach: 0,
                carrier: match drawn.carrier {
                    Carrier::Auto => Carrier::Rpc,
                    carrier => carrier,
                },
                ..quiet
            },
            Scene::FullRings => Profile {
                replicas: 3,
                backends: 4,
                clients: 3,
                keys: 4,
                operations: 200,
                weights: [8, 0, 8, 0, 0, 0, 0, 0],
                window: 12,
                blocking: 0,
                abandon: 400,
                pause: 100,
                pause_ns: 200 * US,
                reach: Reach::Rings,
                other_reach: 0,
                carrier: Carrier::Message,
                ring_len: 2,
                message_len_max: 68 << 10,
                full: 600,
                stops: 2,
                stop_ns: 100 * MS,
                span_ns: 50 * MS,
                is_full: false,
                filler: 0,
                value_len: 40,
                ..quiet
            },
            Scene::Moves => Profile {
                replicas: 3,
                backends: 5,
                operations: 120,
                moves: 4,
                kills: drawn.kills.min(2),
                stops: drawn.stops,
                stop_ns: drawn.stop_ns,
                flushes: drawn.flushes,
                disconnects: drawn.disconnects,
                memory_max: match drawn.is_full {
                    true => drawn.memory_max,
                    false => 1 << 20,
                },
                span_ns: drawn.span_ns.min(50 * MS),
                ..quiet
            },
            Scene::Resizes => Profile {
                replicas: 3,
                backends: 5,
                operations: 150,
                resizes: 4,
                moves: drawn.kills.min(1),
                kills: drawn.kills.min(2),
                stops: drawn.stops,
                stop_ns: drawn.stop_ns,
                flushes: drawn.flushes,
                disconnects: drawn.disconnects,
                skew_ns: drawn.skew_ns.min(5 * MS),
                memory_max: match drawn.is_full {
                    true => drawn.memory_max,
                    false => 1 << 20,
                },
                span_ns: drawn.span_ns.max(1_000 * MS),
                pause_ns: 20 * MS,
                ..quiet
            },
            Scene::Replaces => Profile {
                replicas: 3,
                backends: drawn.backends.max(3),
                operations: 150,
                replaces: 3,
                cut_off_ns: drawn.stop_ns,
                kills: drawn.kills.min(2),
                stops: drawn.stops,
                stop_ns: drawn.stop_ns,
                flushes: drawn.flushes,
                disconnects: drawn.disconnects,
                span_ns: drawn.span_ns.max(1_000 * MS),
                ..quiet
            },
            Scene::GrowingIndexes => Profile {
                replicas: 1,
                backends: 1,
                partitions: 1,
                keys: 4,
                operations: 400,
                weights: [8, 0, 8, 0, 0, 0, 0, 0],
                pause: 1_024,
                pause_ns: 30 * MS,
                reach: Reach::Rings,
                other_reach: 0,
                carrier: Carrier::Auto,
                full: 0,
                torn: 0,
                memory_max: 8 << 20,
                is_full: false,
                fillers_first: 18_000,
                filler_keys: 1 << 40,
                filler: 512,
                burst: 800,
                value_len: 40,
                filler_len: 40,
                ..quiet
            },
        };
    }
}

impl Profile {
    /// Bytes that a client leaves waiting for a ring: where rings are smallest, so
    /// little that it is often too much.
    pub(super) fn waiting_len_max(&self) -> usize {
        match self.ring_len {
            2 => 2 << 10,
            _ => 16 << 20,
        }
    }

    pub(super) fn draw(rng: &Rng) -> Self {
        let replicas = if rng.chance(100) { 1 } else { 3 };
        let backends = match replicas {
            1 => rng.pick(&[1, 2, 3]),
            _ => rng.pick(&[3, 3, 3, 4, 5]),
        };
        let seldom = |rng: &Rng, chance| if rng.chance(chance) { 1 } else { 0 };
        let reach = rng.pick(&[
            Reach::Rings,
            Reach::Rings,
            Reach::Rings,
            Reach::Rings,
            Reach::Reads,
            Reach::Engine,
            Reach::Engine,
            Reach::Calls,
        ]);
        Profile {
            replicas,
            backends,
            clients: 2 + rng.index(2),
            keys: rng.pick(&[1, 2, 4]),
            partitions: rng.pick(&[1, 2]),
            operations: rng.pick(&[30, 60, 90]),
            weights: rng.pick(&[
                [8, 1, 8, 2, 2, 1, 1, 1],
                [12, 2, 4, 1, 1, 1, 1, 2],
                [6, 1, 3, 1, 8, 2, 2, 0],
                [8, 0, 8, 0, 0, 0, 0, 0],
            ]),
            window: rng.pick(&[1, 4, 12]),
            blocking: rng.pick(&[0, 300, 1024]),
            abandon: rng.pick(&[0, 30, 200]),
            pause: rng.pick(&[100, 400]),
            pause_ns: rng.pick(&[200 * US, 20 * MS, 200 * MS]),
            deadline_ns: rng.pick(&[20 * MS, 200 * MS, 1_000 * MS]),
            retries_max: rng.pick(&[16, 64]),
            skew_ns: rng.pick(&[0, 0, 5 * MS, 5_000 * MS, 15_000 * MS]),
            reach,
            other_reach: rng.pick(&[0, 0, 200]),
            carrier: rng.pick(&[
                Carrier::Auto,
                Carrier::Auto,
                Carrier::Auto,
                Carrier::Auto,
                Carrier::Auto,
                Carrier::Message,
                Carrier::Rpc,
            ]),
            ring_len: rng.pick(&[2, 8, 64]),
            message_len_max: rng.pick(&[300, 68 << 10]),
            full: rng.pick(&[0, 0, 20]),
            late: rng.pick(&[0, 20, 200]),
            late_ns: rng.pick(&[200 * US, 5 * MS, 300 * MS]),
            call_failure: rng.pick(&[0, 20, 100]),
            twice: rng.pick(&[0, 0, 100]),
            connect_failure: rng.pick(&[0, 0, 100]),
            torn: rng.pick(&[0, 30, 200]),
            kills: rng.pick(&[0, 1, 2, 4]),
            moves: 0,
            resizes: 0,
            replaces: 0,
            cut_off_ns: 0,
            stops: rng.pick(&[0, 0, 1, 2]),
            stop_ns: rng.pick(&[100 * MS, 900 * MS, 3_000 * MS]),
            restarts: seldom(rng, 256),
            flushes: seldom(rng, 200),
            client_deaths: seldom(rng, 200),
            disconnects: seldom(rng, 200),
            span_ns: rng.pick(&[2 * MS, 50 * MS, 1_000 * MS]),
            memory_max: rng.pick(&[96 << 10, 160 << 10]),
            is_full: rng.chance(700),
            fillers_first: 0,
            filler_keys: 1_000,
            filler: rng.pick(&[0, 300, 900]),
            burst: rng.pick(&[2, 40]),
            expiry: rng.pick(&[0, 0, 100]),
            value_len: rng.pick(&[0, 40, 400, 1_500]),
            filler_len: rng.pick(&[700, 1_500]),
            tombstones: rng.pick(&[0, 2, 1024]),
        }
    }
}
