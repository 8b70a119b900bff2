//! Why etcd did not do what it was asked.

use std::path::PathBuf;

/// Why a call has no result.
#[derive(Clone, Debug, thiserror::Error)]
pub enum EtcdError {
    /// No member answered, or none that could. What was asked may have been done.
    #[error("etcd cannot be reached: {0}")]
    Unavailable(String),
    /// It answers that it does nothing for now: it has too much to do, or no room left.
    #[error("etcd does nothing for now: {0}")]
    Exhausted(String),
    /// It knows the caller and does not let it, or does not know the caller.
    #[error("etcd refuses: {0}")]
    Refused(String),
    /// It answers something that no call here expects.
    #[error("etcd answers: {0}")]
    Unexpected(String),
    /// A file with a certificate or a key.
    #[error("cannot read the {what} {path}: {reason}")]
    File {
        /// What is in it.
        what: &'static str,
        /// Which.
        path: PathBuf,
        /// The system's reason, or what is wrong with its content.
        reason: String,
    },
    /// Settings that do not fit together.
    #[error("{0}")]
    Settings(String),
}

impl EtcdError {
    /// Whether trying again later may help without anybody doing anything.
    pub fn is_outage(&self) -> bool {
        matches!(self, EtcdError::Unavailable(_) | EtcdError::Exhausted(_))
    }

    /// Whether a connection ended early, as with one that speaks TLS where the other side does
    /// not, or shows no certificate that is taken.
    pub fn is_broken_off(&self) -> bool {
        let EtcdError::Unavailable(reason) = self else {
            return false;
        };
        ["broken pipe", "closed", "reset", "alert"]
            .iter()
            .any(|word| reason.contains(word))
    }
}
