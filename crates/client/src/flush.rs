//! Flushing a cell: every backend is asked for the highest version it has seen,
//! then told the floor; done when every live one serves it.
//!
//! A backend that is certainly down is passed over. Its memory may still be
//! read until its lease has ended, so that is waited for; a successor begins
//! under the configuration in force. One that merely does not answer is an error.

use crate::cell::Cell;
use crate::error::ConnectError;
use crate::rpc::is_nobody_there;
use crate::time;
use std::time::{Duration, Instant};
use trefoil_cell::CellConfig;
use trefoil_layout::Version;
use trefoil_rpc::{failure_text, handshake_error, v1};

/// Patience with a question.
const QUESTION_PATIENCE: Duration = Duration::from_secs(2);
/// Patience with a flush: every bucket of a backend is rewritten meanwhile.
const FLUSH_PATIENCE: Duration = Duration::from_secs(20);
/// How long a backend that breaks off is asked again: it may just have died.
const RETRY_PATIENCE: Duration = Duration::from_secs(2);
const RETRY_PAUSE: Duration = Duration::from_millis(20);
/// Longer than a lease (500 ms): nobody believes the memory of a backend that
/// was down that long ago.
const LEASE_OVER: Duration = Duration::from_millis(600);

/// Why a cell was not flushed.
#[derive(Debug, thiserror::Error)]
pub enum FlushError {
    /// The corpus comes from a file.
    #[error("an immutable cell is not flushed: load another file with `trefoil cell reload`")]
    Immutable,
    /// The configuration cannot be had.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// Nothing was changed.
    #[error("backend {number} does not answer, nothing was flushed: {reason}")]
    Unreachable {
        /// Which backend.
        number: u32,
        /// Why not.
        reason: String,
    },
    /// Some backends may have flushed.
    #[error("backend {number} may not have flushed: {reason}; flush again")]
    Incomplete {
        /// Which backend.
        number: u32,
        /// What it said.
        reason: String,
    },
}

/// What was flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flushed {
    /// Everything at or below is invisible.
    pub floor: Version,
    /// The configuration that says so.
    pub config_id: u32,
    /// Backends that have flushed; the others of the cell are down.
    pub backend_count: usize,
}

/// A backend's answer; `None` if it is certainly down.
type Answer = Option<v1::FlushResponse>;

impl Cell {
    /// Makes everything stored before `at_ms` (milliseconds since the Unix
    /// epoch, not in the future) invisible; everything that is there, if `at_ms`
    /// is less than a second ago. On return no client finds any of it.
    pub fn flush(&self, at_ms: u64) -> Result<Flushed, FlushError> {
        // Before anybody is asked, which may take seconds: a flush of this moment would become
        // one of an earlier time, and leave what a writer whose clock is ahead has stored.
        let asked_ms = time::unix_ns() / 1_000_000;
        let config = self.shared().reload_config()?;
        if config.mode.is_immutable() {
            return Err(FlushError::Immutable);
        }
        let mut newest = Version::ZERO;
        let mut any_up = false;
        for backend in &config.backends {
            let number = backend.number;
            let answer = self.flush_one(&config, number, None);
            let answer = answer.map_err(|reason| FlushError::Unreachable { number, reason })?;
            any_up |= answer.is_some();
            let seen = answer.and_then(|answer| answer.newest);
            newest = newest.max(seen.map_or(Version::ZERO, trefoil_rpc::decode_version));
        }
        if !any_up {
            let reason = "no backend of the cell is up".to_owned();
            return Err(FlushError::Unreachable { number: 0, reason });
        }
        let floor = trefoil_cell::flush_floor(at_ms, asked_ms, newest);
        let mut flushed = Flushed {
            floor,
            config_id: config.config_id,
            backend_count: 0,
        };
        for backend in &config.backends {
            let number = backend.number;
            let incomplete = |reason| FlushError::Incomplete { number, reason };
            let answer = self.flush_one(&config, number, Some(floor));
            let Some(answer) = answer.map_err(incomplete)? else {
                continue;
            };
            let served = answer.flush_floor.unwrap_or_default();
            if trefoil_rpc::decode_version(served) < floor {
                return Err(incomplete("it still serves an older floor".into()));
            }
            flushed.config_id = flushed.config_id.max(answer.config_id);
            flushed.backend_count += 1;
        }
        if flushed.backend_count < config.backends.len() {
            std::thread::sleep(LEASE_OVER);
        }
        if flushed.backend_count == 0 {
            let reason = "no backend of the cell is up any more".to_owned();
            return Err(FlushError::Incomplete { number: 0, reason });
        }
        self.shared().reload_config()?;
        Ok(flushed)
    }

    /// One call, repeated while its answer leaves open whether the backend is
    /// up: to flush twice is to flush once.
    fn flush_one(
        &self,
        config: &CellConfig,
        number: u32,
        floor: Option<Version>,
    ) -> Result<Answer, String> {
        let begin = Instant::now();
        let patience = match floor {
            Some(_) => FLUSH_PATIENCE,
            None => QUESTION_PATIENCE,
        };
        loop {
            let mut client = self.shared().rpc.backend(config, number)?;
            let request = v1::FlushRequest {
                backend: number,
                floor: floor.map(trefoil_rpc::encode_version),
                life: config.life,
            };
            let call = async { tokio::time::timeout(patience, client.flush(request)).await };
            let answer = self.shared().rpc.block_on(call)?;
            let status = match answer {
                Ok(Ok(answer)) => return Ok(Some(answer.into_inner())),
                Ok(Err(status)) => status,
                Err(_) => {
                    return Err(format!("no answer within {} s", patience.as_secs()));
                }
            };
            let is_decision = matches!(
                status.code(),
                tonic::Code::InvalidArgument
                    | tonic::Code::NotFound
                    | tonic::Code::FailedPrecondition
                    | tonic::Code::Unimplemented
                    // It runs, and does not take this caller's word.
                    | tonic::Code::Unauthenticated
                    | tonic::Code::PermissionDenied
            );
            // Whoever is there and does not believe this side's certificate, or is not
            // believed, is not down either.
            if is_decision || handshake_error(&status).is_some() {
                return Err(failure_text(&status));
            }
            if is_nobody_there(&status) {
                return Ok(None);
            }
            if begin.elapsed() >= RETRY_PATIENCE {
                return Err(failure_text(&status));
            }
            std::thread::sleep(RETRY_PAUSE);
        }
    }
}
