//! How sessions and watchers say in the log that something is wrong: when it
//! begins, again while it lasts, and when it is over.

use crate::limits::TOLD_AGAIN;
use crate::session::Status;
use std::time::Instant;

#[derive(Debug, Default)]
pub(crate) struct StatusLog {
    /// What was said last, and when.
    told: Option<(Status, Instant)>,
}

impl StatusLog {
    pub(crate) fn note(&mut self, corpus: &str, now: &Status) {
        let same = |was: &Status| std::mem::discriminant(was) == std::mem::discriminant(now);
        match &self.told {
            Some((was, at)) if same(was) && at.elapsed() < TOLD_AGAIN => return,
            None if *now == Status::Connected => return,
            _ => {}
        }
        match now {
            Status::Connected => {
                tracing::info!(corpus, "the assigner answers again");
                self.told = None;
                return;
            }
            Status::Unreachable { reason } => {
                tracing::warn!(
                    corpus,
                    reason,
                    "no assigner answers: the map stays as it is"
                );
            }
            Status::Behind { store, seen } => tracing::error!(
                corpus,
                store = %store.map_or_else(|| "nothing".to_owned(), |store| store.to_string()),
                %seen,
                "the coordination store is behind what is in use: no lease is extended and the \
                 map stays as it is until it has caught up, or `trefoil assigner \
                 begin-incarnation --corpus {corpus}` says that it will not"
            ),
            Status::Refused(refusal) => tracing::error!(
                corpus,
                %refusal,
                "the assigner refuses what another one allowed: is it started with the right \
                 flags? What is held is kept, but no lease is extended"
            ),
            Status::Ended(end) => tracing::warn!(corpus, ?end, "the membership has ended"),
        }
        self.told = Some((now.clone(), Instant::now()));
    }
}
