//! Every limit and duration, and how they relate.

use std::time::Duration;

/// How long a server is a member after it was last heard. From its death to
/// its slices being assigned anew it takes this, and a round where others go with it.
pub const LEASE: Duration = Duration::from_millis(2500);
/// A shorter lease is refused: the noise of one machine would end it.
pub const LEASE_MIN: Duration = Duration::from_millis(300);
/// A longer one is refused, and not believed whoever tells of it: a leader waits for the end
/// of what its predecessors granted.
pub const LEASE_MAX: Duration = Duration::from_secs(3600);
/// Keep-alives in the time of a lease.
pub const KEEP_ALIVES_PER_LEASE: u32 = 5;
/// Two clocks run differently by less than this part.
pub const CLOCK_DRIFT_MAX: f64 = 0.02;

/// How long an assigner leads after it was last heard by the store.
pub const LEADER_LEASE: Duration = Duration::from_secs(3);
/// etcd grants nothing below it, whatever is asked for.
pub const LEADER_LEASE_MIN: Duration = Duration::from_secs(2);
/// Between two rounds of balancing.
pub const STEP_EVERY: Duration = Duration::from_millis(500);
/// How long a first assignment waits for further servers once the first has
/// come: an even deal is cheaper than moves.
pub const GATHER: Duration = Duration::from_millis(500);
/// An answer of the store that takes longer is taken for lost.
pub const STORE_TIMEOUT: Duration = Duration::from_secs(1);
/// Between two looks of an assigner at its clocks.
pub const TICK: Duration = Duration::from_millis(50);

/// A watch says something at least this often.
pub const WATCH_BEAT: Duration = Duration::from_secs(1);
/// A watch that says nothing for so long is opened anew, elsewhere.
pub const WATCH_SILENCE_MAX: Duration = Duration::from_secs(4);
/// Waiting between attempts to reach an assigner.
pub const BACKOFF_MIN: Duration = Duration::from_millis(50);
/// It doubles up to this.
pub const BACKOFF_MAX: Duration = Duration::from_secs(1);
/// What goes on being wrong is said again in the log after so long.
pub const TOLD_AGAIN: Duration = Duration::from_secs(30);
/// A whole map is told to an assigner that has forgotten it this often.
pub const MAP_AGAIN: Duration = Duration::from_secs(1);
/// Names of corpora that are not served and were asked for, kept for people.
pub const TURNED_AWAY_MAX: usize = 64;
/// How long joining or opening may take before it fails.
pub const JOIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest name of a corpus, in bytes.
pub const CORPUS_LEN_MAX: usize = 64;
/// Longest address of a server, in bytes.
pub const ADDRESS_LEN_MAX: usize = 255;
/// Corpora of one assigner.
pub const CORPORA_MAX: usize = 1_000;
/// Members of one corpus.
pub const MEMBERS_MAX: usize = 10_000;
/// Replicas that a server may ask for.
pub const COPIES_MIN_MAX: usize = 16;
/// Longest text that a server says of itself for people, in characters.
pub const VITALS_TEXT_LEN_MAX: usize = 200;
/// Longest assignment in its stored form, in bytes: etcd takes requests up to
/// 1.5 MiB.
pub const ASSIGNMENT_LEN_MAX: usize = 1 << 20;
/// Longest message between assigner and servers, in bytes.
pub const MESSAGE_LEN_MAX: usize = 16 << 20;
/// Diffs kept for watches that come back.
pub const DIFFS_KEPT: usize = 64;

const _: () = assert!(ASSIGNMENT_LEN_MAX < MESSAGE_LEN_MAX);
const _: () = assert!(LEASE.as_millis() >= LEASE_MIN.as_millis());
const _: () = assert!(LEASE.as_millis() <= LEASE_MAX.as_millis());
// Owned again within 5 s: a lease, a round, and time for the store.
const _: () =
    assert!(LEASE.as_millis() + STEP_EVERY.as_millis() + STORE_TIMEOUT.as_millis() <= 5_000,);
const _: () = assert!(WATCH_BEAT.as_millis() * 2 <= WATCH_SILENCE_MAX.as_millis());
