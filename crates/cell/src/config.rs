//! A cell's configuration: what every client and backend of it must agree on.

use crate::address::RpcAddress;
use crate::corpus::CorpusId;
use crate::mode::Mode;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use trefoil_layout::limits::{VALUE_LEN_LIMIT, VALUE_LEN_MAX_DEFAULT};
pub use trefoil_layout::topology::CONFIG_ID_CHANGING;
use trefoil_layout::{HashKind, KeyHasher, Placement, TopologyId, Version};

/// Most backends of one cell.
pub const BACKEND_COUNT_MAX: usize = 4096;

const _: () = assert!(BACKEND_COUNT_MAX <= trefoil_layout::epoch::BACKEND_COUNT_MAX as usize);

/// Longest cell name, in bytes.
const CELL_NAME_LEN_MAX: usize = 64;

/// One configuration of one cell. A change is a new configuration with a
/// higher config id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CellConfig {
    /// One existence of the cell's data: drawn at random by whoever starts it
    /// empty; 0 is never issued. A config id means something only together with
    /// it.
    #[serde(default, with = "life_text")]
    pub life: u64,
    /// Grows with every change within a life; 0 is never issued, because zeroed
    /// memory must not look like a bucket of this cell.
    pub config_id: u32,
    /// Name, for people and metrics.
    pub cell: String,
    /// Copies and quorum.
    pub mode: Mode,
    /// In order of number, from 0 without gaps.
    pub backends: Vec<BackendConfig>,
    /// Hash function of the keys.
    #[serde(with = "hash_text")]
    pub hash: KeyHasher,
    /// Longest value, in bytes.
    #[serde(default = "value_len_max_default")]
    pub value_len_max: u64,
    /// Name of the eviction policy.
    pub eviction: String,
    /// Items at or below this version were flushed.
    #[serde(default, with = "version_text", skip_serializing_if = "is_no_floor")]
    pub flush_floor: Version,
    /// Of an immutable cell: what it serves. `None` where nobody has said so, as in cells
    /// of older releases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub corpus: Option<CorpusId>,
}

/// One backend of a cell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackendConfig {
    /// Its shard number.
    pub number: u32,
    /// Where its RPC service listens, the preferred address first. Backends
    /// of one process share addresses.
    pub addresses: Vec<RpcAddress>,
    /// Unix socket where its shared memory is handed over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fabric_socket: Option<PathBuf>,
    /// Which process it is, of all that may ever serve at these addresses. Over TCP another
    /// host may be given the same address; there it is the boot of the host and the lock of
    /// the backend, or the name of a spare. `None` where the addresses tell: sockets that no
    /// other process ever has, or that a lock in their directory guards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<String>,
}

impl BackendConfig {
    /// The address to call from here: a Unix socket before TCP, because it is cheaper
    /// and there only if the backend is on this host.
    pub fn nearest_address(&self) -> Option<&RpcAddress> {
        let mut addresses = self.addresses.iter();
        let is_here = |a: &&RpcAddress| matches!(a, RpcAddress::Unix(path) if path.exists());
        addresses
            .clone()
            .find(is_here)
            .or_else(|| addresses.find(|a| matches!(a, RpcAddress::Tcp { .. })))
            .or_else(|| self.addresses.first())
    }
}

/// Why a configuration cannot be served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Life 0: a configuration of the first release, or an incomplete one.
    #[error(
        "the configuration names no life of the cell: it was written by an older release: remove it and start the cell anew"
    )]
    LifeZero,
    /// Config id 0.
    #[error("the config id is 0: ids begin with 1, because zeroed memory must not look valid")]
    ConfigIdZero,
    /// The id that marks a change.
    #[error("the config id {CONFIG_ID_CHANGING} is reserved")]
    ConfigIdReserved,
    /// A name that metrics and paths cannot carry.
    #[error("the cell's name \"{0}\" is not valid: use 1 to 64 letters, digits, '.', '-' and '_'")]
    Name(String),
    /// Not enough backends for the mode.
    #[error("{mode} needs at least {needed} backends, the configuration has {found}")]
    TooFewBackends {
        /// Mode asked for.
        mode: Mode,
        /// Its copies.
        needed: usize,
        /// Backends configured.
        found: usize,
    },
    /// More than anybody has tested.
    #[error("the configuration has {0} backends, the most possible is {BACKEND_COUNT_MAX}")]
    TooManyBackends(usize),
    /// A gap, a duplicate, or a wrong order.
    #[error(
        "backend number {found} stands where {expected} belongs: backends are numbered from 0 without gaps, in order"
    )]
    Number {
        /// Where it stands.
        expected: u32,
        /// What stands there.
        found: u32,
    },
    /// A backend that nobody can reach.
    #[error("backend {0} has no address")]
    NoAddress(u32),
    /// Outside the formats.
    #[error("the longest value is configured as {0} bytes: choose 1 to {VALUE_LEN_LIMIT}")]
    ValueLenMax(u64),
    /// A corpus in a cell that takes mutations.
    #[error("a corpus is named, and the cell is {0}: only an immutable one (R=2) has one")]
    CorpusOfMutable(Mode),
    /// Versions of items begin above zero.
    #[error("the corpus' first version is zero, which no item has")]
    CorpusVersion,
    /// No policy.
    #[error("no eviction policy is named: choose slru, lru, arc or s3fifo")]
    Eviction,
}

impl CellConfig {
    /// Checks everything that can be checked without looking at the system.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if self.life == 0 {
            return Err(ConfigError::LifeZero);
        }
        if self.config_id == 0 {
            return Err(ConfigError::ConfigIdZero);
        }
        if self.config_id == CONFIG_ID_CHANGING {
            return Err(ConfigError::ConfigIdReserved);
        }
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
        if !(1..=CELL_NAME_LEN_MAX).contains(&self.cell.len()) || !self.cell.bytes().all(plain) {
            return Err(ConfigError::Name(self.cell.clone()));
        }
        let found = self.backends.len();
        let needed = self.mode.copy_count();
        if found < needed {
            let mode = self.mode;
            return Err(ConfigError::TooFewBackends {
                mode,
                needed,
                found,
            });
        }
        if found > BACKEND_COUNT_MAX {
            return Err(ConfigError::TooManyBackends(found));
        }
        for (expected, backend) in (0u32..).zip(&self.backends) {
            if backend.number != expected {
                let found = backend.number;
                return Err(ConfigError::Number { expected, found });
            }
            if backend.addresses.is_empty() {
                return Err(ConfigError::NoAddress(expected));
            }
        }
        if !(1..=VALUE_LEN_LIMIT as u64).contains(&self.value_len_max) {
            return Err(ConfigError::ValueLenMax(self.value_len_max));
        }
        if self.eviction.is_empty() {
            return Err(ConfigError::Eviction);
        }
        match &self.corpus {
            Some(_) if !self.mode.is_immutable() => Err(ConfigError::CorpusOfMutable(self.mode)),
            Some(corpus) => corpus.validate(),
            None => Ok(()),
        }
    }

    /// What identifies this configuration among all that any cell ever had.
    pub fn topology_id(&self) -> TopologyId {
        TopologyId {
            life: self.life,
            config_id: self.config_id,
        }
    }

    /// Whether this was in force before `other`, in a store that keeps its promises:
    /// ids grow there through all lives. Of one life or not, a store that holds this
    /// one when `other` is served has lost what came between.
    pub fn is_older_than(&self, other: &CellConfig) -> bool {
        self.config_id < other.config_id
    }

    /// Whether a store that holds this one, when `other` is served, has lost what came
    /// between: it is older, or it is another configuration of the same id. Then the store
    /// was restored from a backup, and somebody has changed what was there.
    pub fn is_overruled_by(&self, other: &CellConfig) -> bool {
        let is_same_id = self.topology_id() == other.topology_id();
        self.is_older_than(other) || (is_same_id && self != other)
    }

    /// The same cell with everything at or below `floor` flushed; `None` if
    /// there is no config id left for it.
    pub fn flushed(&self, floor: Version) -> Option<CellConfig> {
        let config_id = self.config_id.checked_add(1)?;
        (config_id != CONFIG_ID_CHANGING).then(|| CellConfig {
            config_id,
            flush_floor: self.flush_floor.max(floor),
            ..self.clone()
        })
    }

    /// The same cell with other backends; `None` if there is no config id left for it.
    pub fn resized(&self, backends: Vec<BackendConfig>) -> Option<CellConfig> {
        let next = self.flushed(Version::ZERO)?;
        Some(CellConfig { backends, ..next })
    }

    /// Whether this is a configuration of the same cell with another number of backends:
    /// who is a backend of one of both is none of the other.
    pub fn differs_by_resize(&self, other: &CellConfig) -> bool {
        self.life == other.life && self.placement() != other.placement()
    }

    /// Whether `next` is this configuration but for what a flush changes: the floor,
    /// and the id. A configuration that was written anew after its store had lost it
    /// has another id only.
    pub fn differs_by_flush(&self, next: &CellConfig) -> bool {
        let same = CellConfig {
            config_id: next.config_id,
            flush_floor: next.flush_floor,
            ..self.clone()
        };
        same == *next && next.flush_floor >= self.flush_floor
    }

    /// The same cell with backend `number` at another process's addresses; `None` if
    /// there is no config id left for it, or no such backend.
    pub fn with_place(
        &self,
        number: u32,
        addresses: &[RpcAddress],
        fabric_socket: Option<&Path>,
    ) -> Option<CellConfig> {
        self.with_backend(BackendConfig {
            number,
            addresses: addresses.to_vec(),
            fabric_socket: fabric_socket.map(Path::to_owned),
            place: None,
        })
    }

    /// The same with all that the configuration says of a backend.
    pub fn with_backend(&self, backend: BackendConfig) -> Option<CellConfig> {
        let config_id = self.config_id.checked_add(1)?;
        let mut next = CellConfig {
            config_id,
            ..self.clone()
        };
        let place = next.backends.get_mut(backend.number as usize)?;
        *place = backend;
        (config_id != CONFIG_ID_CHANGING).then_some(next)
    }

    /// Whether its backends may be on several hosts.
    pub fn is_spread(&self) -> bool {
        self.backends.iter().any(|backend| backend.place.is_some())
    }

    /// Whether `next` is this configuration but for places that have changed hands, and
    /// for what flushes have changed: who keeps its own place goes on with it.
    pub fn differs_by_places(&self, next: &CellConfig) -> bool {
        let same = CellConfig {
            config_id: next.config_id,
            flush_floor: next.flush_floor,
            backends: next.backends.clone(),
            ..self.clone()
        };
        same == *next
            && next.flush_floor >= self.flush_floor
            && next.backends.len() == self.backends.len()
            && !self.mode.is_immutable()
    }

    /// Whether `next` is this configuration but for what a reload of an immutable
    /// cell changes: the corpus, and the id. With the same corpus it is the same
    /// configuration that was written anew.
    pub fn differs_by_reload(&self, next: &CellConfig) -> bool {
        let same = CellConfig {
            config_id: next.config_id,
            corpus: next.corpus.clone(),
            ..self.clone()
        };
        self.mode.is_immutable() && same == *next
    }

    /// Whether `stored` puts the corpus of this configuration in force: it is this one, or
    /// this one written anew under a higher id.
    pub fn is_in_force_by(&self, stored: &CellConfig) -> bool {
        stored.config_id >= self.config_id
            && stored.corpus == self.corpus
            && self.differs_by_reload(stored)
    }

    /// The same configuration written anew; `None` if there is no config id left for it.
    pub fn anew(&self) -> Option<CellConfig> {
        self.flushed(self.flush_floor)
    }

    /// Where keys are placed. For validated configurations.
    pub fn placement(&self) -> Placement {
        Placement::new(self.mode.copy_count(), self.backends.len() as u32)
    }

    /// The backend with this number.
    pub fn backend(&self, number: u32) -> Option<&BackendConfig> {
        self.backends.get(number as usize)
    }
}

fn value_len_max_default() -> u64 {
    VALUE_LEN_MAX_DEFAULT as u64
}

fn is_no_floor(floor: &Version) -> bool {
    floor.is_zero()
}

/// A life in JSON: 16 hexadecimal digits.
mod life_text {
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(life: &u64, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&format_args!("{life:016x}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
        let text = String::deserialize(from)?;
        Some(&text)
            .filter(|text| text.len() == 16 && text.bytes().all(|b| b.is_ascii_hexdigit()))
            .and_then(|text| u64::from_str_radix(text, 16).ok())
            .ok_or_else(|| D::Error::custom("a life is exactly 16 hexadecimal digits"))
    }
}

/// A version in JSON: 32 hexadecimal digits.
pub(crate) mod version_text {
    use super::Version;
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(version: &Version, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(version)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Version, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map_err(D::Error::custom)
    }
}

/// The hash function in JSON: 64-bit numbers do not survive every reader, so
/// the seed is text.
mod hash_text {
    use super::{HashKind, KeyHasher};
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    struct HashText {
        kind: String,
        seed: String,
    }

    pub(super) fn serialize<S: Serializer>(hash: &KeyHasher, to: S) -> Result<S::Ok, S::Error> {
        let kind = match hash.kind {
            HashKind::Xxh3 => "xxh3",
            HashKind::Sip13 => "sip13",
        };
        HashText {
            kind: kind.to_owned(),
            seed: format!("{:016x}{:016x}", hash.seed[0], hash.seed[1]),
        }
        .serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<KeyHasher, D::Error> {
        let text = HashText::deserialize(from)?;
        let kind = match text.kind.as_str() {
            "xxh3" => HashKind::Xxh3,
            "sip13" => HashKind::Sip13,
            other => {
                let message = format!("unknown hash function \"{other}\": xxh3 or sip13");
                return Err(D::Error::custom(message));
            }
        };
        let seed = Some(&text.seed)
            .filter(|seed| seed.len() == 32 && seed.bytes().all(|b| b.is_ascii_hexdigit()))
            .and_then(|seed| u128::from_str_radix(seed, 16).ok())
            .ok_or_else(|| D::Error::custom("a hash seed is exactly 32 hexadecimal digits"))?;
        Ok(KeyHasher {
            kind,
            seed: [(seed >> 64) as u64, seed as u64],
        })
    }
}
