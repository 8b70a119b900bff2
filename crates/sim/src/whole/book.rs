//! What was begun, and what came of it: the promise is checked on every end.
//!
//! Each operation that writes has a number, and its value carries it: so what a
//! lookup returns names the operation that wrote it, whatever its version.

use crate::history::{Broken, KeyHistory, Snapshot};
use crate::value;
use crate::violation::Property;
use trefoil_client_core::outcome::MutationOutcome;
use trefoil_layout::Version;
use trefoil_layout::op::Expected;

/// What a lookup must not fall behind, taken when it begins.
#[derive(Clone, Copy, Debug)]
pub(super) struct Basis {
    /// The cell's life, by number.
    life: usize,
    key: Snapshot,
    floor: Version,
}

/// When a mutation began, and, of a fill, when its miss had ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    pub(super) begun_ns: u64,
    pub(super) missed_ns: Option<u64>,
}

/// Whether what was written may be seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// It may.
    Open,
    /// It was reported as failed, a CAS.
    Failed,
    /// It was reported as not done at all.
    Undone,
}

#[derive(Clone, Copy, Debug)]
struct Write {
    key: usize,
    fate: Fate,
    /// The life in which its outcome was decided.
    ended_in: Option<usize>,
}

/// What one life of the cell has promised.
struct Life {
    id: u64,
    begun_ns: u64,
    keys: Vec<KeyHistory>,
    /// Flushed, and acknowledged.
    floor: Version,
}

/// See the module.
pub(super) struct Book {
    key_count: usize,
    /// A call's message may arrive twice.
    has_copies: bool,
    lives: Vec<Life>,
    writes: Vec<Write>,
}

/// The version that stands for an operation where values are made.
fn stand_in(number: usize) -> Version {
    Version::new(number as u64, 1, 1)
}

impl Book {
    pub(super) fn new(key_count: usize, has_copies: bool) -> Self {
        Book {
            key_count,
            has_copies,
            lives: Vec::new(),
            writes: Vec::new(),
        }
    }

    /// The cell begins another life; nothing of the former one is served any more.
    pub(super) fn begin_life(&mut self, id: u64, now_ns: u64) {
        self.lives.push(Life {
            id,
            begun_ns: now_ns,
            keys: (0..self.key_count).map(|_| KeyHistory::default()).collect(),
            floor: Version::ZERO,
        });
    }

    fn life(&self, id: u64) -> usize {
        self.lives
            .iter()
            .position(|life| life.id == id)
            .expect("clients know lives that were begun")
    }

    pub(super) fn basis(&self, key: usize) -> Basis {
        let life = self.lives.len() - 1;
        let now = &self.lives[life];
        Basis {
            life,
            key: now.keys[key].snapshot(),
            floor: now.floor,
        }
    }

    /// Everything at or below the floor was flushed.
    pub(super) fn flushed(&mut self, floor: Version) {
        let life = self.lives.last_mut().expect("a cell has a life");
        life.floor = life.floor.max(floor);
    }

    /// A write is begun; its value is put into `out`.
    pub(super) fn begin_write(&mut self, key: usize, len_max: usize, out: &mut Vec<u8>) -> usize {
        let number = self.writes.len();
        self.writes.push(Write {
            key,
            fate: Fate::Open,
            ended_in: None,
        });
        value::write(key, stand_in(number), len_max, out);
        number
    }

    /// A lookup that began at `basis` returned `bytes`, under life `id`.
    pub(super) fn hit(
        &mut self,
        key: usize,
        basis: &Basis,
        id: u64,
        version: Version,
        bytes: &[u8],
    ) -> Result<(), Broken> {
        let number = bytes
            .get(8..16)
            .and_then(|word| word.try_into().ok())
            .map_or(usize::MAX, |word| u64::from_le_bytes(word) as usize);
        let written = self.writes.get(number).copied();
        let Some(write) = written
            .filter(|write| write.key == key && value::is_right(key, stand_in(number), bytes))
        else {
            let message = format!("hit {version:?}: {}", value::describe(bytes));
            return Err((Property::Value, message));
        };
        let life = self.life(id);
        let message = |what: &str| format!("hit {version:?}, write {number}, {what}");
        match write.fate {
            Fate::Failed => {
                let message = message("a CAS that was reported failed");
                return Err((Property::Failed, message));
            }
            Fate::Undone => {
                let message = message("which was reported as not done");
                return Err((Property::Ghost, message));
            }
            Fate::Open => {}
        }
        if life < basis.life || write.ended_in.is_some_and(|ended| ended < basis.life) {
            return Err((Property::FormerLife, message("of a former life")));
        }
        // A lookup that has ended may be handed out when its client follows another life
        // already (of a get_many, the first is waited for): it is of its value's life.
        let life = match write.ended_in {
            None if life > basis.life => return Ok(()),
            ended => ended.map_or(life, |ended| ended.min(life)),
        };
        if life > basis.life {
            return self.lives[life].keys[key].hit(Snapshot::default(), version);
        }
        if version <= basis.floor {
            let message = message("which was flushed before the GET began");
            return Err((Property::Flushed, message));
        }
        self.lives[life].keys[key].hit(basis.key, version)
    }

    /// A mutation has ended under life `id`.
    pub(super) fn mutated(
        &mut self,
        number: Option<usize>,
        key: usize,
        expected: Option<Expected>,
        times: Times,
        id: u64,
        outcome: &MutationOutcome,
    ) -> Result<(), Broken> {
        let life = self.life(id);
        if let Some(number) = number {
            let write = &mut self.writes[number];
            write.ended_in = match outcome {
                // It may still arrive.
                MutationOutcome::Indeterminate => None,
                MutationOutcome::Rejected(_) if self.has_copies => None,
                _ => Some(life),
            };
            write.fate = match outcome {
                MutationOutcome::Exists { .. } => Fate::Failed,
                // A refusal of the moment does not bind a copy of the message.
                MutationOutcome::Rejected(_) if self.has_copies => Fate::Open,
                MutationOutcome::Rejected(_) | MutationOutcome::Failed { .. } => Fate::Undone,
                _ => Fate::Open,
            };
        }
        if let MutationOutcome::Stored { version } = *outcome {
            // Perhaps it was the former life that has acknowledged it, and this one does
            // not know it: its client follows another life by the time it ends.
            if times.begun_ns < self.lives[life].begun_ns {
                return Ok(());
            }
            let history = &mut self.lives[life].keys[key];
            match times.missed_ns {
                Some(missed_ns) => history.fills(version, missed_ns),
                None => history.written(version, times.begun_ns)?,
            }
            if let Some(Expected::Version(expected)) = expected {
                history.cas_stored(expected, version)?;
            }
            history.stored(version, number.is_some())?;
        }
        Ok(())
    }
}
