//! A whole call: route, send, follow one redirect.

use crate::error::CallError;
use crate::metadata::Redirect;
use crate::metrics::Counters;
use crate::router::{Access, Router, Target};
use std::time::{Duration, Instant};
use tonic::metadata::MetadataMap;
use tonic::transport::Channel;
use tonic::{Code, Status};
use tracing::Instrument as _;
use trefoil_sharder::KeyPoint;

/// Between two attempts to reach somebody.
const RETRY_EVERY: Duration = Duration::from_millis(25);
/// How long a redirected call waits for the map that its redirect names.
const LEARN_PATIENCE: Duration = Duration::from_millis(500);

/// How a call is made.
#[derive(Clone, Copy, Debug, Default)]
pub struct CallOptions {
    /// Who may answer.
    pub access: Access,
    /// For requests that may be sent more than once: for so long an
    /// unreachable server, or one whose keys are just being given to another,
    /// is asked again, by the newest map. Zero: each request is sent once,
    /// redirects aside, which were not carried out.
    pub patience: Duration,
    /// How long the whole call may take, the attempt under way included; `None` has no
    /// bound. When it is over, the call is given up and ends as
    /// [`CallError::Status`] with `DEADLINE_EXCEEDED`; whether the server has carried the
    /// request out is not known then.
    pub limit: Option<Duration>,
}

impl CallOptions {
    /// A read from any replica that may be repeated for so long.
    pub const fn read(patience: Duration) -> Self {
        CallOptions {
            access: Access::AnyReplica,
            patience,
            limit: None,
        }
    }

    /// A request to the primary that may be repeated for so long.
    pub const fn repeatable(patience: Duration) -> Self {
        CallOptions {
            access: Access::Primary,
            patience,
            limit: None,
        }
    }

    /// Likewise, and the whole call is given up after so long: for callers who have a
    /// deadline of their own. A server that hangs holds none of them for longer.
    #[must_use]
    pub const fn within(mut self, limit: Duration) -> Self {
        self.limit = Some(limit);
        self
    }
}

impl Router {
    /// Sends a request for a key to its primary. `request` gets a connection
    /// and what has to be sent beside the message, and may be called a second
    /// time, when it was redirected.
    pub async fn call<T, F>(
        &self,
        key: &[u8],
        request: impl FnMut(Channel, MetadataMap) -> F,
    ) -> Result<T, CallError>
    where
        F: Future<Output = Result<T, Status>>,
    {
        self.call_with(key, CallOptions::default(), request).await
    }

    /// Likewise, as `options` say.
    pub async fn call_with<T, F>(
        &self,
        key: &[u8],
        options: CallOptions,
        mut request: impl FnMut(Channel, MetadataMap) -> F,
    ) -> Result<T, CallError>
    where
        F: Future<Output = Result<T, Status>>,
    {
        let point = self.point(key);
        let span = tracing::debug_span!("router.call", corpus = self.inner.corpus(), %point);
        let call = self.inner.counters.begin();
        let result = self
            .attempts(point, options, &mut request)
            .instrument(span)
            .await;
        call.ended(&result);
        result
    }

    async fn attempts<T, F>(
        &self,
        point: KeyPoint,
        options: CallOptions,
        request: &mut impl FnMut(Channel, MetadataMap) -> F,
    ) -> Result<T, CallError>
    where
        F: Future<Output = Result<T, Status>>,
    {
        let begun = Instant::now();
        let limit = options.limit.and_then(|limit| Limit::from(begun, limit));
        // `None` if that is beyond the clock.
        let until = options.patience.min(options.limit.unwrap_or(Duration::MAX));
        let until = begun.checked_add(until);
        loop {
            let error = match self.attempt(point, options.access, limit, request).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let is_over = until.is_some_and(|until| Instant::now() + RETRY_EVERY >= until);
            if !passes(&error) || is_over {
                return Err(error);
            }
            tracing::debug!(%error, "tried again");
            Counters::one(&self.inner.counters.retries);
            // A new view may come sooner.
            let mut view = self.view();
            view.mark_unchanged();
            let _ = tokio::time::timeout(RETRY_EVERY, view.changed()).await;
        }
    }

    async fn attempt<T, F>(
        &self,
        point: KeyPoint,
        access: Access,
        limit: Option<Limit>,
        request: &mut impl FnMut(Channel, MetadataMap) -> F,
    ) -> Result<T, CallError>
    where
        F: Future<Output = Result<T, Status>>,
    {
        let first = self.route_point(point, access)?;
        let redirect = match send(&first, limit, request).await {
            Ok(answer) => return Ok(answer),
            Err(status) => match Redirect::of(&status) {
                Some(redirect) => redirect,
                None => return Err(failed(&first, status)),
            },
        };
        tracing::debug!(server = %first.server(), to = ?redirect.to, "redirected");
        Counters::one(&self.inner.counters.redirects);
        let learn = limit.map_or(LEARN_PATIENCE, |limit| limit.left().min(LEARN_PATIENCE));
        let second = self.redirected(point, access, redirect, learn).await?;
        match send(&second, limit, request).await {
            Ok(answer) => Ok(answer),
            Err(status) => match Redirect::of(&status) {
                None => Err(failed(&second, status)),
                Some(redirect) => {
                    if let Some(assignment) = redirect.assignment {
                        self.learn(assignment);
                    }
                    Err(CallError::RedirectedTwice {
                        address: second.address().to_owned(),
                    })
                }
            },
        }
    }
}

/// When a call is given up.
#[derive(Clone, Copy)]
struct Limit {
    whole: Duration,
    at: Instant,
}

impl Limit {
    /// `None` if that is beyond the clock.
    fn from(begun: Instant, whole: Duration) -> Option<Self> {
        let at = begun.checked_add(whole)?;
        Some(Limit { whole, at })
    }

    fn left(self) -> Duration {
        self.at.saturating_duration_since(Instant::now())
    }
}

async fn send<T, F>(
    target: &Target,
    limit: Option<Limit>,
    request: &mut impl FnMut(Channel, MetadataMap) -> F,
) -> Result<T, Status>
where
    F: Future<Output = Result<T, Status>>,
{
    let mut metadata = MetadataMap::new();
    target.routed.apply(&mut metadata);
    let outstanding = target.peer.begin();
    let request = request(target.channel(), metadata);
    let result = match limit {
        None => request.await,
        Some(limit) => match tokio::time::timeout_at(limit.at.into(), request).await {
            Ok(result) => result,
            Err(_) => {
                outstanding.given_up();
                return Err(Status::deadline_exceeded(format!(
                    "{} has not answered, and the call may take {:?}: whether it was carried \
                     out is not known",
                    target.address(),
                    limit.whole
                )));
            }
        },
    };
    match &result {
        Err(status) if status.code() == Code::Unavailable => outstanding.failed(),
        _ => outstanding.answered(),
    }
    result
}

fn failed(target: &Target, status: Status) -> CallError {
    CallError::Status {
        address: target.address().to_owned(),
        status,
    }
}

/// It may be well again soon.
fn passes(error: &CallError) -> bool {
    match error {
        CallError::Route(_) | CallError::RedirectedTwice { .. } => true,
        CallError::Status { status, .. } => status.code() == Code::Unavailable,
    }
}
