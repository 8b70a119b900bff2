//! What changes from a revision on.

use crate::error::EtcdError;
use crate::generated as pb;
use tokio::sync::mpsc;
use tonic::Streaming;

/// An open watch of one key. Closed when dropped.
#[derive(Debug)]
pub struct Watch {
    /// Keeps it open.
    pub(crate) _requests: mpsc::Sender<pb::WatchRequest>,
    pub(crate) answers: Streaming<pb::WatchResponse>,
}

/// What a watch has to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Happened {
    /// It stands: what happens from its revision on will be said.
    Begun,
    /// The key was written or deleted.
    Changed,
    /// Nothing; it is still there.
    Nothing,
    /// It is over: what happened before has to be read. After a compaction, mostly.
    Over(String),
}

impl Watch {
    /// Waits for the next word.
    pub async fn next(&mut self) -> Result<Happened, EtcdError> {
        let answer = match self.answers.message().await {
            Ok(Some(answer)) => answer,
            Ok(None) => return Ok(Happened::Over("etcd has closed the stream".to_owned())),
            Err(status) => return Err(crate::client::judge(&status)),
        };
        if answer.canceled {
            let reason = match answer.compact_revision {
                0 => answer.cancel_reason,
                revision => format!("compacted at revision {revision}"),
            };
            return Ok(Happened::Over(reason));
        }
        Ok(match (answer.events.is_empty(), answer.created) {
            (false, _) => Happened::Changed,
            (true, true) => Happened::Begun,
            (true, false) => Happened::Nothing,
        })
    }
}
