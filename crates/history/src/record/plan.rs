//! What a round consists of. Whatever is not wished for is drawn from the seed,
//! so that a seed and the wishes replay a round's configuration (not its
//! interleaving, which is the machine's).

use crate::check::Promise;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// Operations of a round, unless fewer are asked for.
const ROUND_OPERATIONS: u64 = 250_000;
/// How wrong clocks may be.
const SKEW_MS_MAX: i64 = 5_000;

/// How a client reaches the cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CarrierKind {
    /// One-sided reads and rings.
    Rings,
    /// Lookups by message, too.
    Message,
    /// gRPC.
    Rpc,
    /// memcached's protocol through a gateway.
    Gateway,
    /// One-sided reads; SETs and ERASEs are acknowledged before they are executed, where it is
    /// asked for. Then those of gateways are, too.
    Queue,
}

impl CarrierKind {
    /// Those of any cell.
    fn usual() -> Vec<CarrierKind> {
        let all = CarrierKind::ALL.iter().copied();
        all.filter(|kind| *kind != CarrierKind::Queue).collect()
    }
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// A backend is killed.
    Kill,
    /// A killed backend is started again, by `cell up`, with nothing in its memory.
    Restart,
    /// Backends stand still for a while, one at a time.
    Stop,
    /// Clients' clocks are up to 5 s off.
    Skew,
    /// The cell is flushed.
    Flush,
    /// Clients are killed.
    ClientKill,
    /// The gateway is killed and started again.
    GatewayRestart,
    /// The memory limit changes.
    Memory,
    /// A backend moves to another process: `cell restart`.
    Move,
    /// All backends move to another program: `cell upgrade`.
    Upgrade,
    /// A backend moves to a spare: `cell drain`, `cell undrain`.
    Drain,
    /// etcd, which keeps the configuration, is killed and started again.
    EtcdKill,
    /// It stands still for a while.
    EtcdStop,
    /// There is no room where the configuration is kept.
    DiskFull,
    /// The network between the gateway and its clients is cut, or loses packets.
    Network,
    /// The cell gets another number of backends: `cell resize`.
    Resize,
    /// A backend is killed and not started again; its place goes to a `cell spare`.
    Replace,
}

impl Fault {
    /// It needs a cell whose configuration is in etcd.
    pub const fn is_of_etcd(self) -> bool {
        matches!(self, Fault::EtcdKill | Fault::EtcdStop | Fault::Replace)
    }

    /// It needs the processes that `cell up` has started, and starts again: a spare that has
    /// taken a place is none of these.
    const fn is_of_supervisor(self) -> bool {
        matches!(
            self,
            Fault::Kill
                | Fault::Restart
                | Fault::Move
                | Fault::Upgrade
                | Fault::Drain
                | Fault::Resize
        )
    }

    /// It may happen while backends move to another release: it moves none, takes nothing
    /// that this needs, and no operation may fail or miss by it.
    pub const fn is_beside_upgrades(self) -> bool {
        matches!(self, Fault::ClientKill | Fault::Memory)
    }

    /// It needs a cell of a process for each backend that is started again, of three
    /// copies.
    const fn is_of_three(self) -> bool {
        matches!(
            self,
            Fault::Kill | Fault::Restart | Fault::Resize | Fault::Replace
        )
    }
}

/// A name that stands for nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name:?} is none of {all}")]
pub struct PlanError {
    name: String,
    all: String,
}

macro_rules! named {
    ($type:ident, $($variant:ident = $name:literal),+) => {
        impl $type {
            /// Every one.
            pub const ALL: &[$type] = &[$($type::$variant),+];

            /// Its name on the command line.
            pub const fn name(self) -> &'static str {
                match self {
                    $($type::$variant => $name),+
                }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }

        impl FromStr for $type {
            type Err = PlanError;

            fn from_str(name: &str) -> Result<Self, PlanError> {
                Self::ALL.iter().find(|one| one.name() == name).copied().ok_or_else(|| PlanError {
                    name: name.to_owned(),
                    all: names(Self::ALL),
                })
            }
        }
    };
}

named!(
    CarrierKind,
    Rings = "rings",
    Message = "message",
    Rpc = "rpc",
    Gateway = "gateway",
    Queue = "queue"
);
named!(
    Fault,
    Kill = "kill",
    Restart = "restart",
    Stop = "stop",
    Skew = "skew",
    Flush = "flush",
    ClientKill = "client-kill",
    GatewayRestart = "gateway-restart",
    Memory = "memory",
    Move = "move",
    Upgrade = "upgrade",
    Drain = "drain",
    EtcdKill = "etcd-kill",
    EtcdStop = "etcd-stop",
    DiskFull = "disk-full",
    Network = "network",
    Resize = "resize",
    Replace = "replace"
);

fn names<T: fmt::Display>(all: &[T]) -> String {
    let names: Vec<String> = all.iter().map(T::to_string).collect();
    names.join(",")
}

/// Lengths of values, from and to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lens {
    /// The shortest.
    pub min: usize,
    /// The longest.
    pub max: usize,
}

impl FromStr for Lens {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (min, max) = text.split_once("..").unwrap_or((text, text));
        let parse = |text: &str| {
            let len = text
                .parse()
                .map_err(|_| format!("{text:?} is no length in bytes"));
            len.and_then(|len: usize| match len {
                0 => Err("a value has at least one byte".to_owned()),
                len => Ok(len),
            })
        };
        let lens = Lens {
            min: parse(min)?,
            max: parse(max)?,
        };
        match lens.min <= lens.max {
            true => Ok(lens),
            false => Err(format!("{text}: the shortest is longer than the longest")),
        }
    }
}

impl fmt::Display for Lens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.min, self.max)
    }
}

/// What is asked for; the rest is drawn.
#[derive(Clone, Debug, Default)]
pub struct Wish {
    /// More keys than fit, written before anything goes wrong, and everything that this
    /// machine can do to a cell: rounds of so many seconds, if any are given.
    pub chaos: bool,
    /// Seconds of all rounds, in the place of `operations`.
    pub seconds: Option<f64>,
    /// Backends that may be away at a time; 0 counts as 1.
    pub overlap: usize,
    /// Operations of all rounds.
    pub operations: u64,
    /// First round's seed.
    pub seed: u64,
    /// How many rounds.
    pub rounds: Option<u64>,
    /// Keys.
    pub keys: Option<u32>,
    /// Lengths of values.
    pub value_len: Option<Lens>,
    /// Bytes of each backend's memory.
    pub memory: Option<u64>,
    /// Clients at a time.
    pub clients: Option<usize>,
    /// How they reach the cell.
    pub carriers: Option<Vec<CarrierKind>>,
    /// What goes wrong.
    pub faults: Option<Vec<Fault>>,
    /// `R=1` or `R=3.2`.
    pub mode: Option<String>,
    /// The program of another release, between which and this one backends move to and fro.
    pub previous: Option<PathBuf>,
}

/// One round.
#[derive(Clone, Debug, Serialize)]
pub struct RoundPlan {
    /// What all dice are thrown with.
    pub seed: u64,
    /// Operations, about, if it does not end by time.
    pub operations: u64,
    /// Seconds after which it ends.
    pub seconds: Option<f64>,
    /// Whether every key is written before anything goes wrong.
    pub chaos: bool,
    /// Backends that may be away at a time.
    pub overlap: usize,
    /// Copies.
    pub mode: &'static str,
    /// Bytes of each backend's memory.
    pub memory: u64,
    /// Keys with values.
    pub keys: u32,
    /// Lengths of the values.
    pub value_len: Lens,
    /// Clients at a time.
    pub clients: usize,
    /// How they reach the cell, in turn.
    pub carriers: Vec<CarrierKind>,
    /// What goes wrong.
    pub faults: Vec<Fault>,
    /// The program of another release, if backends move to it and back.
    pub previous: Option<PathBuf>,
}

/// Seconds of a round, unless fewer are asked for: what is recorded has to fit into memory.
const ROUND_SECONDS: f64 = 60.0;
/// Seconds of chaos, unless told otherwise.
const CHAOS_SECONDS: f64 = 120.0;

/// Some three times what fits.
const CHAOS_SHAPE: (u32, Lens, u64) = (
    60_000,
    Lens {
        min: 100,
        max: 5_000,
    },
    32 << 20,
);

/// Of a round with another release: everything fits, so that no hit is lost but by it.
const UPGRADE_SHAPE: (u32, Lens, u64) = (
    1_000,
    Lens {
        min: 24,
        max: 100_000,
    },
    256 << 20,
);

/// Keys, lengths and memory that make a round interesting: one or two keys on
/// which all meet, and corpora larger than the memory.
const SHAPES: [(u32, Lens, u64); 7] = [
    (2, Lens { min: 100, max: 100 }, 64 << 20),
    (
        2,
        Lens {
            min: 100,
            max: 300_000,
        },
        64 << 20,
    ),
    (
        50,
        Lens {
            min: 24,
            max: 300_000,
        },
        64 << 20,
    ),
    (500, Lens { min: 100, max: 100 }, 32 << 20),
    (
        2_000,
        Lens {
            min: 100,
            max: 300_000,
        },
        32 << 20,
    ),
    (
        60_000,
        Lens {
            min: 100,
            max: 5_000,
        },
        32 << 20,
    ),
    (
        100_000,
        Lens {
            min: 100,
            max: 1_000,
        },
        32 << 20,
    ),
];

impl Wish {
    /// The rounds.
    pub fn rounds(&self) -> Vec<RoundPlan> {
        let seconds = self.seconds.or(self.chaos.then_some(CHAOS_SECONDS));
        let usual = match seconds {
            Some(seconds) => (seconds / ROUND_SECONDS).ceil() as u64,
            None => self.operations.div_ceil(ROUND_OPERATIONS),
        };
        let count = self.rounds.unwrap_or(usual).max(1);
        let seconds = seconds.map(|seconds| seconds / count as f64);
        let round = |at| self.round(self.seed + at, self.operations / count, seconds);
        (0..count).map(round).collect()
    }

    fn round(&self, seed: u64, operations: u64, seconds: Option<f64>) -> RoundPlan {
        let mut rng = SmallRng::seed_from_u64(seed);
        // Neighbouring seeds have different shapes.
        let shape = match self.previous {
            Some(_) => UPGRADE_SHAPE,
            None if self.chaos => CHAOS_SHAPE,
            None => SHAPES[(seed % SHAPES.len() as u64) as usize],
        };
        let mode = match self.mode.as_deref() {
            Some("R=1") => "R=1",
            Some(_) => "R=3.2",
            None if self.chaos => "R=3.2",
            None => ["R=3.2", "R=3.2", "R=3.2", "R=3.2", "R=1"]
                .choose(&mut rng)
                .copied()
                .unwrap_or("R=3.2"),
        };
        let mut faults: Vec<Fault> = Fault::ALL
            .iter()
            .copied()
            .filter(|_| rng.random_bool(0.5) || self.chaos)
            .collect();
        if mode == "R=1" {
            // The only copy has nobody to take over from it.
            faults.retain(|fault| !fault.is_of_three());
        }
        if self.previous.is_some() {
            // What clients notice is to be the upgrade's alone.
            faults.clear();
        }
        let clients = rng.random_range(4..=10);
        let mut faults = self.faults.clone().unwrap_or(faults);
        // A cell keeps its configuration in one place: etcd, or a directory.
        let is_in_etcd = match faults.contains(&Fault::DiskFull) {
            true => seed.is_multiple_of(2),
            false => true,
        };
        faults.retain(|fault| match fault {
            Fault::DiskFull => !is_in_etcd || !faults_of_etcd(self.faults.as_deref()),
            fault => is_in_etcd || !fault.is_of_etcd(),
        });
        // Who dies is started again, or its place is given away.
        let is_replaced = mode != "R=1"
            && faults.contains(&Fault::Replace)
            && (seed / 2 % 2 == 1 || !faults.iter().any(|fault| fault.is_of_supervisor()));
        faults.retain(|fault| match is_replaced {
            true => !fault.is_of_supervisor(),
            false => *fault != Fault::Replace,
        });
        let carriers = (self.carriers.clone()).unwrap_or_else(CarrierKind::usual);
        // One of each release by each way.
        let clients = match self.previous {
            Some(_) => 2 * carriers.len(),
            None => clients,
        };
        RoundPlan {
            seed,
            operations,
            seconds,
            chaos: self.chaos,
            overlap: self.overlap.max(1),
            mode,
            memory: self.memory.unwrap_or(shape.2),
            keys: self.keys.unwrap_or(shape.0),
            value_len: self.value_len.unwrap_or(shape.1),
            clients: self.clients.unwrap_or(clients),
            carriers,
            faults,
            previous: self.previous.clone(),
        }
    }
}

/// Whether any of those wished for needs etcd; all are, unless some are named.
fn faults_of_etcd(wished: Option<&[Fault]>) -> bool {
    wished.is_none_or(|faults| faults.iter().any(|fault| fault.is_of_etcd()))
}

impl RoundPlan {
    /// Counters beside the keys with values.
    pub fn counters(&self) -> u32 {
        match self.carriers.contains(&CarrierKind::Gateway) {
            true => (self.keys / 10).clamp(2, 20),
            false => 0,
        }
    }

    /// Everything fits, several times.
    pub(super) fn fits(&self) -> bool {
        u64::from(self.keys) * self.value_len.max as u64 * 4 < self.memory
    }

    /// The keys are more than fit, by half at least.
    pub(super) fn is_full(&self) -> bool {
        // Each order of magnitude of lengths has its share.
        let Lens { min, max } = self.value_len;
        let (min, max) = (min as f64, max as f64);
        let mean = match max > min {
            true => (max - min) / (max / min).ln(),
            false => min,
        };
        self.chaos && f64::from(self.keys) * mean > self.memory as f64 * 1.5
    }

    /// What holds while it is recorded.
    pub fn promise(&self) -> Promise {
        // A dead backend's keys are with the other two, if there are any.
        let has_others = self.mode == "R=3.2";
        let loses_nothing = |fault: &Fault| match fault {
            Fault::Kill | Fault::Restart | Fault::Replace => has_others,
            Fault::Move
            | Fault::Upgrade
            | Fault::Drain
            | Fault::EtcdKill
            | Fault::EtcdStop
            | Fault::DiskFull
            | Fault::Resize => true,
            _ => false,
        };
        let is_restarted =
            !self.faults.contains(&Fault::Kill) || self.faults.contains(&Fault::Restart);
        match self.overlap {
            0 | 1 if self.fits() && is_restarted && self.faults.iter().all(loses_nothing) => {
                Promise::Kept
            }
            0 | 1 => Promise::Fresh,
            _ => Promise::Weakened,
        }
    }

    /// A client's clock.
    pub(super) fn clock_offset_ms(&self, rng: &mut SmallRng) -> i64 {
        match self.faults.contains(&Fault::Skew) {
            true => rng.random_range(-SKEW_MS_MAX..=SKEW_MS_MAX),
            false => 0,
        }
    }

    /// The command that runs a round like this again.
    pub fn command(&self) -> String {
        let faults = match self.faults.is_empty() {
            true => "none".to_owned(),
            false => names(&self.faults),
        };
        let length = match self.seconds {
            Some(seconds) => format!("--seconds {seconds}"),
            None => format!("--operations {}", self.operations),
        };
        let chaos = if self.chaos { "--chaos " } else { "" };
        let overlap = match self.overlap {
            0 | 1 => String::new(),
            count => format!("--overlap {count} "),
        };
        let previous = self.previous.as_ref().map_or_else(String::new, |previous| {
            format!(" --previous {}", previous.display())
        });
        format!(
            "trefoil histories {chaos}{overlap}--seed {} --rounds 1 {length} --mode {} --memory {} \
             --keys {} --value-len {} --clients {} --carriers {} --faults {faults}",
            self.seed,
            self.mode,
            self.memory,
            self.keys,
            self.value_len,
            self.clients,
            names(&self.carriers),
        ) + &previous
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_replays_its_round_and_wishes_come_first() {
        let wish = Wish {
            operations: 1_000_000,
            seed: 5,
            ..Wish::default()
        };
        let rounds = wish.rounds();
        assert_eq!(rounds.len(), 4);
        assert_eq!(rounds[0].command(), wish.rounds()[0].command());
        assert_ne!(rounds[0].command(), rounds[1].command());
        let narrow = Wish {
            keys: Some(3),
            faults: Some(vec![]),
            mode: Some("R=1".into()),
            rounds: Some(1),
            ..wish
        };
        let round = &narrow.rounds()[0];
        assert_eq!((round.keys, round.mode), (3, "R=1"));
        assert_eq!(round.operations, 1_000_000);
        assert!(round.command().ends_with("--faults none"));
    }

    #[test]
    fn chaos_is_drawn_in_rounds_of_a_minute_at_most_each_with_one_store() {
        let wish = Wish {
            chaos: true,
            seconds: Some(150.0),
            seed: 4,
            ..Wish::default()
        };
        let rounds = wish.rounds();
        assert_eq!(rounds.len(), 3);
        for round in &rounds {
            let has = |fault| round.faults.contains(&fault);
            assert_eq!(round.mode, "R=3.2");
            assert!(has(Fault::Stop) && has(Fault::Network) && has(Fault::Memory));
            // Who dies in the third is replaced by a spare.
            assert_eq!(has(Fault::Replace), round.seed == 6, "{round:?}");
            for fault in [Fault::Kill, Fault::Restart, Fault::Drain, Fault::Resize] {
                assert_ne!(has(Fault::Replace), has(fault), "{round:?}");
            }
            assert_ne!(has(Fault::DiskFull), has(Fault::EtcdKill), "{round:?}");
            assert!(
                round.command().contains("--chaos --seed"),
                "{}",
                round.command()
            );
            assert!(
                round.command().contains("--seconds 50"),
                "{}",
                round.command()
            );
            // What a command names is what it does.
            let again = Wish {
                faults: Some(round.faults.clone()),
                seed: round.seed,
                rounds: Some(1),
                seconds: round.seconds,
                ..wish.clone()
            };
            assert_eq!(again.rounds()[0].command(), round.command());
        }
        let alone = Wish {
            faults: Some(vec![Fault::DiskFull]),
            ..wish
        };
        assert!(alone.rounds().iter().all(|r| r.faults == [Fault::DiskFull]));
    }

    #[test]
    fn places_are_given_to_spares_where_nobody_starts_the_dead_again() {
        let wish = |faults: &[Fault], mode: &str, seed| Wish {
            faults: Some(faults.to_vec()),
            mode: Some(mode.to_owned()),
            seed,
            ..Wish::default()
        };
        let drawn = |faults: &[Fault], mode: &str, seed| {
            let mut round = wish(faults, mode, seed).rounds().remove(0);
            std::mem::take(&mut round.faults)
        };
        let both = [Fault::Kill, Fault::Restart, Fault::Stop, Fault::Replace];
        assert_eq!(drawn(&both, "R=3.2", 2), [Fault::Stop, Fault::Replace]);
        assert_eq!(drawn(&both, "R=3.2", 4), both[..3]);
        // Alone it is what is done, whatever the seed.
        let alone = [Fault::Replace, Fault::EtcdKill];
        assert_eq!(drawn(&alone, "R=3.2", 4), alone);
        // At R=1 a spare would begin empty.
        assert_eq!(drawn(&alone, "R=1", 2), [Fault::EtcdKill]);
    }

    #[test]
    fn nothing_may_be_lost_where_there_is_room_and_faults_lose_nothing() {
        let promise = |mode: &str, faults: &[Fault], keys| {
            let wish = Wish {
                keys: Some(keys),
                value_len: "100..1000".parse().ok(),
                memory: Some(64 << 20),
                mode: Some(mode.to_owned()),
                faults: Some(faults.to_vec()),
                ..Wish::default()
            };
            wish.rounds()[0].promise()
        };
        let kill = [Fault::Kill, Fault::Restart];
        let moves = [Fault::Move, Fault::Drain, Fault::Upgrade];
        assert_eq!(promise("R=3.2", &kill, 2_000), Promise::Kept);
        assert_eq!(promise("R=3.2", &[Fault::Replace], 2_000), Promise::Kept);
        assert_eq!(promise("R=3.2", &moves, 2_000), Promise::Kept);
        assert_eq!(promise("R=1", &moves, 2_000), Promise::Kept);
        // The only copy dies; it never comes back; it does not fit; a limit evicts.
        assert_eq!(promise("R=1", &kill, 2_000), Promise::Fresh);
        assert_eq!(promise("R=3.2", &kill[..1], 2_000), Promise::Fresh);
        assert_eq!(promise("R=1", &moves, 60_000), Promise::Fresh);
        assert_eq!(promise("R=1", &[Fault::Memory], 2_000), Promise::Fresh);
    }

    #[test]
    fn chaos_is_at_full_memory_unless_fewer_keys_are_wished_for() {
        let full = |keys, chaos| {
            let wish = Wish {
                chaos,
                keys,
                seconds: Some(5.0),
                ..Wish::default()
            };
            wish.rounds()[0].is_full()
        };
        assert!(full(None, true) && full(Some(50_000), true));
        assert!(!full(Some(20_000), true) && !full(Some(1_000_000), false));
    }

    #[test]
    fn a_round_with_another_release_has_nothing_else_go_wrong() {
        let wish = Wish {
            operations: 500_000,
            seed: 3,
            previous: Some("/old".into()),
            ..Wish::default()
        };
        for round in wish.rounds() {
            assert!(round.faults.is_empty());
            assert_eq!(round.clients, 2 * CarrierKind::usual().len());
            let command = round.command();
            assert!(
                command.ends_with("--faults none --previous /old"),
                "{command}"
            );
        }
        let beside = Fault::ALL.iter().filter(|fault| fault.is_beside_upgrades());
        assert_eq!(
            names(&beside.copied().collect::<Vec<_>>()),
            "client-kill,memory"
        );
    }

    #[test]
    fn names_and_lengths_are_read_as_they_are_written() {
        for fault in Fault::ALL {
            assert_eq!(fault.name().parse(), Ok(*fault));
        }
        assert!("fire".parse::<Fault>().is_err());
        assert_eq!("7".parse(), Ok(Lens { min: 7, max: 7 }));
        assert_eq!("7..9".parse::<Lens>().unwrap().to_string(), "7..9");
        for bad in ["9..7", "0", "x", "1..", ""] {
            assert!(bad.parse::<Lens>().is_err(), "{bad}");
        }
    }
}
