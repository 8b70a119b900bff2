//! What was found, and what to do about it.

use serde::Serialize;

/// One finding. Its fields are part of what `--json` promises.
#[derive(Serialize, Clone, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    /// See docs/operations.md for all of them.
    pub(super) kind: &'static str,
    /// The backend that it is about, if it is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) backend: Option<u32>,
    /// The shard that it is about, if it is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) shard: Option<u32>,
    /// Keys that it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) keys: Option<u64>,
    /// How the backend differs, of dirty keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) how: Option<&'static str>,
    /// For people.
    pub(super) what: String,
    /// One sentence, for people.
    #[serde(rename = "do")]
    pub(super) advice: String,
}

impl Finding {
    pub(super) fn new(
        kind: &'static str,
        what: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Finding {
            kind,
            backend: None,
            shard: None,
            keys: None,
            how: None,
            what: what.into(),
            advice: advice.into(),
        }
    }

    pub(super) fn of_backend(self, number: u32) -> Self {
        let backend = Some(number);
        Finding { backend, ..self }
    }

    pub(super) fn of_shard(self, number: u32) -> Self {
        let shard = Some(number);
        Finding { shard, ..self }
    }

    pub(super) fn of_keys(self, count: u64) -> Self {
        let keys = Some(count);
        Finding { keys, ..self }
    }

    /// Whether it says the same as another one, perhaps with other figures.
    pub(super) fn is_same(&self, other: &Finding) -> bool {
        (self.kind, self.backend, self.shard) == (other.kind, other.backend, other.shard)
    }
}
