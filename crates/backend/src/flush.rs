//! Flushing: a configuration with a higher floor is put in force, then served.
//!
//! ```text
//! configuration store: compare and swap (the first backend; others find it)
//!   stores: floors raised           nothing at or below is found or stored
//!   configuration answered          clients who ask learn of it
//!   config ids: requests, buckets   clients who do not ask are made to
//! acknowledged
//! ```

use crate::clock;
use crate::resize;
use crate::state::State;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};
use trefoil_cell::{CONFIG_ID_CHANGING, CellConfig, ConfigStoreError};
use trefoil_layout::Version;
use trefoil_layout::limits::FLOOR_AHEAD_NS_MAX;

/// Why a flush did not happen here. It may be in force at other backends.
#[derive(Debug, thiserror::Error)]
pub enum FlushError {
    /// A corpus that is loaded from a file has nothing to flush.
    #[error("an immutable cell is not flushed: load another file with `trefoil cell reload`")]
    Immutable,
    /// Everything stored from now on would be invisible, too.
    #[error(
        "the flush is of a time {ahead_s} s in the future by this backend's clock, at most {max_s} s are taken: compare the hosts' clocks"
    )]
    Ahead {
        /// Seconds ahead.
        ahead_s: u64,
        /// Most that is taken.
        max_s: u64,
    },
    /// The configuration cannot be read or changed.
    #[error(transparent)]
    ConfigStore(#[from] ConfigStoreError),
    /// It is gone.
    #[error("the cell's configuration is gone")]
    NoConfig,
    /// Somebody has put an older one in the place of what this process serves. By it the
    /// cell may have another size: nothing follows from that.
    #[error(
        "the configuration was put back: its store holds config id {found}, and this backend serves {served}. It serves on, and the cell cannot be changed: put the newer configuration in place, or end the cell"
    )]
    PutBack {
        /// In the store.
        found: u32,
        /// Served here, so it was in force.
        served: u32,
    },
    /// The store on other machines is away, or has lost what this process knows.
    #[error(
        "the configuration store is away, or holds older data than this backend serves (trefoil cell status says which): wait until it is back, or mend it"
    )]
    StoreTrouble,
    /// The cell was started anew, without this process.
    #[error(
        "the cell was started anew (config id {0}): what this backend holds belongs to its former life; stop this process"
    )]
    OtherLife(u32),
    /// More than a flush has changed: backends, mode, hash, limits.
    #[error(
        "the configuration in force (config id {0}) differs in more than a flush from the one that this backend serves: restart the backend"
    )]
    OtherConfig(u32),
    /// Another process was given this backend's place.
    #[error(
        "the place of backend {number} was given to another process, at {holder} (config id {config_id}): this one serves nothing any more. Start it as a spare (`trefoil cell spare`)"
    )]
    PlaceTaken {
        /// Which backend.
        number: u32,
        /// Where the other one is.
        holder: String,
        /// The configuration that says so.
        config_id: u32,
    },
    /// What was committed before a flush has to be executed before it.
    #[error("the queue of backend {0} is hindered, so that it is not flushed: try again")]
    QueueHindered(u32),
    /// Every flush takes one.
    #[error("the cell's config ids are used up: start it anew")]
    NoConfigId,
}

/// Whether a floor of this moment could be so high. Stored once, a higher one
/// would make every key a miss until that time has come.
fn check_floor(floor: Version, now_ns: u64) -> Result<(), FlushError> {
    let ahead_ns = floor.time_ns.saturating_sub(now_ns);
    if ahead_ns <= FLOOR_AHEAD_NS_MAX {
        return Ok(());
    }
    Err(FlushError::Ahead {
        ahead_s: ahead_ns / 1_000_000_000,
        max_s: FLOOR_AHEAD_NS_MAX / 1_000_000_000,
    })
}

impl State {
    /// Serves a configuration whose floor is at least `floor`, making one if
    /// need be; that configuration.
    pub(crate) fn raise_flush_floor(&self, floor: Version) -> Result<Arc<CellConfig>, FlushError> {
        if self.config().mode.is_immutable() {
            return Err(FlushError::Immutable);
        }
        check_floor(floor, clock::now().unix_ns)?;
        // What is executed once the floor is raised lies above it.
        self.settle_queues()?;
        loop {
            let stored = self.in_force()?;
            if stored.flush_floor >= floor {
                return self.adopt(stored);
            }
            let next = stored.flushed(floor).ok_or(FlushError::NoConfigId)?;
            let swapped = self
                .config_store
                .compare_and_swap(Some(stored.topology_id()), &next);
            match swapped {
                Ok(()) => return self.adopt(next),
                // Somebody else was first, perhaps with this very floor.
                Err(ConfigStoreError::Conflict { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Has everything executed that was committed by now.
    pub(crate) fn settle_queues(&self) -> Result<(), FlushError> {
        let hindered = self.members.iter().find(|member| !member.settle_all());
        hindered.map_or(Ok(()), |member| {
            Err(FlushError::QueueHindered(member.number))
        })
    }

    /// The configuration that is in force. Whoever follows it or changes it asks here: one
    /// that is older than what is served was put back, by hand or from a backup, and
    /// neither retires a backend nor takes a flush back.
    pub(crate) fn in_force(&self) -> Result<CellConfig, FlushError> {
        // Before the look: another thread may follow a change meanwhile.
        let served = self.config();
        let stored = self.config_store.load()?.ok_or(FlushError::NoConfig)?;
        match stored.is_older_than(&served) {
            true => Err(FlushError::PutBack {
                found: stored.config_id,
                served: served.config_id,
            }),
            false => Ok(stored),
        }
    }

    /// Why no other process may take over what is served here, or go on with it: it would go
    /// by a configuration that was put back, or could not learn of any. Of a store on other
    /// machines it is known from those who follow it whether it is away, or has lost something.
    pub(crate) fn hindered_by_config(&self) -> Option<FlushError> {
        if !self.config_store.is_remote() {
            return self.in_force().err();
        }
        let is_away = self.store_away.load(Ordering::Relaxed);
        let is_refused = self.store_refused.load(Ordering::Relaxed);
        (is_away || is_refused).then_some(FlushError::StoreTrouble)
    }

    /// Serves the configuration that is in force, if a flush has changed it
    /// without telling this process. An error says what cannot be followed.
    pub(crate) fn catch_up(&self) -> Result<(), FlushError> {
        let stored = match self.in_force() {
            // One that is to be a backend of a resized cell knows what is not in force yet.
            Err(FlushError::PutBack { .. }) if self.doors().locks.is_empty() => return Ok(()),
            stored => stored?,
        };
        let current = self.config();
        if current.differs_by_resize(&stored) {
            resize::heed(self, stored);
            return Ok(());
        }
        let is_reload = current.differs_by_reload(&stored) && stored.corpus != current.corpus;
        if is_reload && stored.config_id > current.config_id {
            // Its commit may be on the way; else it is fetched.
            if !self.members.iter().any(|m| m.corpus_turn.is_reload()) {
                self.note_newer(stored);
            }
            return Ok(());
        }
        self.adopt(stored).map(drop)
    }

    /// The same for a process that holds the only copy of what it has taken over.
    pub(crate) fn catch_up_at_last(&self) -> Result<(), FlushError> {
        // What it holds is lost if it ends. It does where nobody asks for that any more:
        // another life of the cell has begun, or another process is the backend.
        let may_pass = |error: &FlushError| {
            !matches!(
                error,
                FlushError::PlaceTaken { .. }
                    | FlushError::OtherLife(_)
                    | FlushError::OtherConfig(_)
                    | FlushError::ConfigStore(
                        ConfigStoreError::StartedAnew { .. } | ConfigStoreError::PlaceTaken { .. }
                    )
            )
        };
        let tell = |error: &FlushError| {
            tracing::warn!(%error, "nothing is served before the configuration is known");
        };
        let pause = |pause| self.ending.pause(pause);
        trefoil_cell::wait_out(|| self.catch_up(), may_pass, tell, pause)
    }

    fn adopt(&self, next: CellConfig) -> Result<Arc<CellConfig>, FlushError> {
        // One at a time: ids and floors only grow.
        let adopting = self.adopting();
        let current = self.config();
        let id = next.config_id;
        if next.life != current.life {
            return Err(FlushError::OtherLife(id));
        }
        if id <= current.config_id {
            return Ok(current);
        }
        if !current.differs_by_flush(&next) && !current.differs_by_places(&next) {
            return Err(FlushError::OtherConfig(id));
        }
        let has_lost_place = |number: &u32| next.backend(*number) != current.backend(*number);
        if let Some(number) = self.members.iter().map(|m| m.number).find(has_lost_place) {
            return Err(self.lose_place(number, &next, &adopting));
        }
        // It takes nothing any more, whatever is in force: others are its backends.
        if self.has_retired() {
            return Ok(current);
        }
        for (before, after) in current.backends.iter().zip(&next.backends) {
            if before != after {
                let (backend, now_at) = (before.number, addresses(&next, before.number));
                tracing::warn!(backend, now_at, "the backend's place has changed hands");
            }
        }
        let is_flush = next.flush_floor > current.flush_floor;
        for member in &self.members {
            member.store.raise_flush_floor(next.flush_floor);
        }
        self.set_config(next);
        for member in &self.members {
            member.change_config(id);
        }
        match is_flush {
            true => tracing::info!(config_id = id, "flushed"),
            false => tracing::info!(config_id = id, "the configuration was written anew"),
        }
        Ok(self.config())
    }

    /// Ends everything that this process does as a backend: nothing is taken, nothing can
    /// be read, and the process is told to end. Whoever has the place recovers from the
    /// others; what this one held is of no use to anybody.
    fn lose_place(
        &self,
        number: u32,
        next: &CellConfig,
        adopting: &MutexGuard<'_, ()>,
    ) -> FlushError {
        let error = FlushError::PlaceTaken {
            number,
            holder: addresses(next, number),
            config_id: next.config_id,
        };
        if self.place_taken.set(error.to_string()).is_ok() {
            tracing::error!(%error, "this process ends");
            for member in &self.members {
                member.change_config(CONFIG_ID_CHANGING);
            }
            self.retire(adopting);
            self.retirement.notify_one();
        }
        error
    }
}

/// Where a backend is, for people.
fn addresses(config: &CellConfig, number: u32) -> String {
    let backend = config.backend(number);
    let addresses = backend.into_iter().flat_map(|b| &b.addresses);
    let texts: Vec<String> = addresses.map(ToString::to_string).collect();
    texts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_floor_far_in_the_future_is_refused() {
        const SECOND: u64 = 1_000_000_000;
        let now = 1_000 * SECOND;
        let floor = |seconds| Version::new(seconds * SECOND, 1, 0);
        for fine in [0, 900, 1_000, 1_011] {
            assert!(check_floor(floor(fine), now).is_ok(), "{fine}");
        }
        let error = check_floor(floor(5_000), now).unwrap_err().to_string();
        assert!(error.contains("4000 s in the future"), "{error}");
        assert!(
            check_floor(
                Version {
                    time_ns: u64::MAX,
                    origin: u64::MAX
                },
                now
            )
            .is_err()
        );
    }
}
