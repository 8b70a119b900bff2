//! Keeps one membership: registers, sends keep-alives and reports, and finds
//! out when it is over.

use crate::clock::BootInstant;
use crate::error::{CoordinationError, Refusal};
use crate::limits::{BACKOFF_MAX, BACKOFF_MIN, KEEP_ALIVES_PER_LEASE, MAP_AGAIN};
use crate::link::{CallError, Grant, KeepAlive, Registration};
use crate::log::StatusLog;
use crate::session::{Inner, SessionEnd, Status};
use crate::view::ServerInfo;
use crate::wire::MemberRecord;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::{sleep, sleep_until, timeout};

/// Patience with a registration's being taken back, beyond that with joining.
const WITHDRAW_PATIENCE: Duration = Duration::from_millis(300);

pub(crate) struct Keeper {
    inner: Arc<Inner>,
    record: MemberRecord,
    lease: Duration,
    /// The last lease, told to an assigner that may have forgotten it.
    granted: Option<Grant>,
    /// When the whole map is to be told with a registration: an assigner whose
    /// store has nothing goes on from it.
    tell_map_at: Option<Instant>,
    log: StatusLog,
}

/// Attempts to become a member, under one id after the other.
pub(crate) struct Attempts {
    until: Instant,
    backoff: Duration,
    /// What came of the last one that was not only told that its id is used up.
    why: Option<CallError>,
}

impl Attempts {
    pub(crate) fn until(until: Instant) -> Self {
        Attempts {
            until,
            backoff: BACKOFF_MIN,
            why: None,
        }
    }

    /// Waits before the next one; `false` if there is no time for that.
    async fn pause(&mut self) -> bool {
        self.left() > self.backoff && self.pause_if_time().await
    }

    /// Waits as long, or until the end, for there is time for one more at any rate.
    async fn pause_if_time(&mut self) -> bool {
        let left = self.left();
        sleep(self.backoff.min(left)).await;
        self.backoff = (self.backoff * 2).min(BACKOFF_MAX);
        !left.is_zero()
    }

    fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }
}

/// What one exchange with the assigner came to.
enum Outcome {
    Granted(Duration),
    /// It does not know this member: register again.
    Unknown,
    Again,
    Over(SessionEnd),
}

impl Keeper {
    /// Becomes a member, as often as it takes. `None` if nobody can under this id: it was
    /// written down, nobody here was told, and it was struck off. Everybody holds it for dead.
    pub(crate) async fn register(
        inner: Arc<Inner>,
        info: ServerInfo,
        attempts: &mut Attempts,
    ) -> Result<Option<Self>, CoordinationError> {
        let record = MemberRecord {
            id: inner.id,
            life: inner.life,
            info,
        };
        let mut keeper = Keeper {
            inner,
            record,
            lease: Duration::ZERO,
            granted: None,
            tell_map_at: None,
            log: StatusLog::default(),
        };
        // An attempt that failed may have been carried out.
        let mut again = false;
        // Assigners in a row that have no such corpus.
        let mut without = 0;
        let error = loop {
            let error = match keeper.register_once(again).await {
                Ok(lease) => {
                    keeper.lease = lease;
                    return Ok(Some(keeper));
                }
                Err(error) => error,
            };
            again |= may_be_written(&error);
            without = match &error {
                CallError::Refused(Refusal::UnknownCorpus { .. }) => without + 1,
                _ => 0,
            };
            match error {
                CallError::Refused(refusal @ (Refusal::Expired | Refusal::IdInUse { .. })) => {
                    if attempts.pause_if_time().await {
                        return Ok(None);
                    }
                    // Nobody is a member under this id.
                    again = false;
                    break attempts.why.take().unwrap_or(CallError::Refused(refusal));
                }
                CallError::Refused(refusal)
                    if is_final_for_newcomers(&refusal)
                        || without >= keeper.inner.link.assigners() =>
                {
                    break CallError::Refused(refusal);
                }
                _ if without > 0 => {}
                error => {
                    attempts.why = Some(error.clone());
                    if !attempts.pause().await {
                        break error;
                    }
                }
            }
        };
        if again {
            keeper.withdraw().await;
        }
        Err(keeper.failed(error))
    }

    /// Nobody will serve what was perhaps written down.
    async fn withdraw(&self) {
        let inner = &self.inner;
        let leave = inner.link.leave(&inner.corpus, inner.id, inner.life);
        if let Ok(Err(error)) = timeout(WITHDRAW_PATIENCE, leave).await {
            tracing::debug!(server = %inner.id, %error, "a registration was not withdrawn");
        }
    }

    fn failed(&self, error: CallError) -> CoordinationError {
        match error {
            CallError::Refused(refusal)
                if tells_why(&refusal) || is_final_for_newcomers(&refusal) =>
            {
                CoordinationError::Refused {
                    corpus: self.inner.corpus.clone(),
                    refusal,
                }
            }
            error => CoordinationError::Unreachable {
                addresses: self.inner.link.to_string(),
                reason: error.to_string(),
            },
        }
    }

    /// Keeps the lease until the session is over.
    pub(crate) async fn run(mut self) {
        let mut state = self.inner.state.subscribe();
        let mut status = self.inner.status.subscribe();
        let mut failures: u32 = 0;
        let mut registered = true;
        let mut next = tokio::time::Instant::now() + self.pause(0);
        loop {
            if matches!(*status.borrow_and_update(), Status::Ended(_)) {
                return;
            }
            tokio::select! {
                () = sleep_until(next) => {}
                _ = status.changed() => continue,
                _ = state.changed() => {}
            }
            let outcome = if registered {
                self.keep_alive().await
            } else {
                let result = self.register_once(true).await;
                self.outcome(result)
            };
            match outcome {
                Outcome::Granted(lease) => {
                    self.lease = lease;
                    registered = true;
                    failures = 0;
                }
                Outcome::Unknown => {
                    registered = false;
                    failures += 1;
                }
                Outcome::Again => failures += 1,
                Outcome::Over(end) => {
                    self.inner.lease.finish();
                    self.tell(Status::Ended(end));
                    return;
                }
            }
            next = tokio::time::Instant::now() + self.pause(failures);
        }
    }

    /// Until the next keep-alive: after a failure it is sent sooner, and never
    /// later than usual. An assigner that has just been elected has to be found
    /// within the one lease that it gives everybody, also by those who ask its
    /// dead predecessor every other time.
    fn pause(&self, failures: u32) -> Duration {
        let regular = self.lease / KEEP_ALIVES_PER_LEASE;
        match failures {
            0 => regular,
            _ => (BACKOFF_MIN * 2u32.saturating_pow(failures.min(10) - 1)).min(regular),
        }
    }

    async fn register_once(&mut self, again: bool) -> Result<Duration, CallError> {
        let inner = Arc::clone(&self.inner);
        self.record.info.state = *inner.state.borrow();
        let now = Instant::now();
        let told = self.tell_map_at.filter(|&at| at <= now).and_then(|_| {
            self.tell_map_at = Some(now + MAP_AGAIN);
            inner.cell.subscribe().borrow().told()
        });
        let registration = Registration {
            record: self.record.clone(),
            known: inner.cell.version(),
            again,
            granted: self.granted.clone(),
            told,
        };
        let sent = BootInstant::now();
        let result = inner.link.register(&inner.corpus, registration).await;
        self.granted(sent, result)
    }

    fn granted(
        &mut self,
        sent: BootInstant,
        result: Result<Grant, CallError>,
    ) -> Result<Duration, CallError> {
        if let Err(CallError::Refused(Refusal::Behind { store: None, .. })) = &result {
            self.tell_map_at.get_or_insert_with(Instant::now);
        }
        let grant = result?;
        self.tell_map_at = None;
        self.inner.lease.extend(sent, grant.lease);
        let lease = grant.lease;
        self.granted = Some(grant);
        Ok(lease)
    }

    async fn keep_alive(&mut self) -> Outcome {
        let inner = Arc::clone(&self.inner);
        let call = KeepAlive {
            id: inner.id,
            life: inner.life,
            state: *inner.state.borrow(),
            known: inner.cell.version(),
        };
        let sent = BootInstant::now();
        let result = inner.link.keep_alive(&inner.corpus, call).await;
        let result = self.granted(sent, result);
        self.outcome(result)
    }

    fn outcome(&mut self, result: Result<Duration, CallError>) -> Outcome {
        match result {
            Ok(lease) => {
                self.tell(Status::Connected);
                Outcome::Granted(lease)
            }
            Err(CallError::Refused(Refusal::Unknown)) => Outcome::Unknown,
            // It may have forgotten the map, too, and goes on from what members
            // tell when they register.
            Err(error @ CallError::Refused(Refusal::Behind { store: None, .. })) => {
                self.tell(status_of(error));
                Outcome::Unknown
            }
            Err(CallError::Refused(Refusal::Expired)) => Outcome::Over(SessionEnd::Expired),
            Err(CallError::Refused(Refusal::Superseded { by })) => {
                Outcome::Over(SessionEnd::Superseded { by })
            }
            Err(CallError::Refused(refusal @ Refusal::IdInUse { .. })) => {
                Outcome::Over(SessionEnd::Refused(refusal))
            }
            Err(error) => {
                self.tell(status_of(error));
                Outcome::Again
            }
        }
    }

    fn tell(&mut self, now: Status) {
        self.log.note(&self.inner.corpus, &now);
        self.inner.status.send_if_modified(|was| {
            // The end is the end.
            let changed = *was != now && !matches!(was, Status::Ended(_));
            if changed {
                *was = now;
            }
            changed
        });
    }
}

/// What an answer of no use says of the assigners.
pub(crate) fn status_of(error: CallError) -> Status {
    match error {
        CallError::Refused(Refusal::Behind { store, seen }) => Status::Behind { store, seen },
        CallError::Refused(refusal @ (Refusal::UnknownCorpus { .. } | Refusal::Invalid(_))) => {
            Status::Refused(refusal)
        }
        error => Status::Unreachable {
            reason: error.to_string(),
        },
    }
}

/// Sends the newest report on, beside the keep-alives: neither waits for the
/// other.
pub(crate) async fn send_reports(inner: Arc<Inner>) {
    let mut report = inner.report.subscribe();
    while report.changed().await.is_ok() {
        let Some(report) = report.borrow_and_update().clone() else {
            continue;
        };
        if let Err(error) = inner.link.report(&inner.corpus, &report).await {
            tracing::debug!(server = %inner.id, %error, "a report was not delivered");
        }
    }
}

/// Whether a registration that failed so may have been written down.
fn may_be_written(error: &CallError) -> bool {
    match error {
        CallError::NotSent(_) => false,
        CallError::Unreachable(_) => true,
        // A store that is behind is told in any case; of one that fails nobody knows.
        CallError::Refused(Refusal::Behind { .. } | Refusal::Store(_)) => true,
        CallError::Refused(_) => false,
    }
}

/// Asking again would not help somebody who holds nothing yet. A member goes
/// by [`Keeper::outcome`]: it has something to lose, and an assigner that was
/// started with the wrong flags is no reason to.
fn is_final_for_newcomers(refusal: &Refusal) -> bool {
    match refusal {
        Refusal::Expired
        | Refusal::Superseded { .. }
        | Refusal::IdInUse { .. }
        | Refusal::Invalid(_) => true,
        // Another assigner may have it.
        Refusal::UnknownCorpus { .. }
        | Refusal::NotLeading { .. }
        | Refusal::Unknown
        | Refusal::Behind { .. }
        | Refusal::Store(_) => false,
    }
}

/// It says more than that nobody answers.
fn tells_why(refusal: &Refusal) -> bool {
    matches!(
        refusal,
        Refusal::UnknownCorpus { .. } | Refusal::Behind { .. }
    )
}

#[cfg(test)]
mod tests;
