//! The system under test, as the load runner sees it. A target is one client
//! connection (or mapping) used by one thread; a new system is measured by
//! implementing this trait in a file of its own and nothing else.

pub mod trefoil;

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

/// What became of a lookup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GetOutcome<'a> {
    /// The value, in the target's own buffer until its next call.
    Hit(&'a [u8]),
    /// Not there, or not to be had without a wrong answer.
    Miss,
}

/// What became of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetOutcome {
    /// Acknowledged: from now on no reader may see anything older.
    Stored,
    /// A newer write was there first.
    Superseded,
    /// Sent, but its fate is unknown.
    Indeterminate,
}

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// The connection broke or could not be made.
    #[error("{what}: {source}")]
    Io {
        /// What was being done.
        what: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// The other side answered in a way that its protocol does not allow.
    #[error("unexpected answer from {system}: {answer:?}")]
    Protocol {
        /// Who answered.
        system: &'static str,
        /// The beginning of what came.
        answer: String,
    },
    /// The other side said no.
    #[error("{system} refused: {message}")]
    Refused {
        /// Who refused.
        system: &'static str,
        /// Its words.
        message: String,
    },
    /// No answer within the deadline.
    #[error("no answer from {system} within {after:?}")]
    Timeout {
        /// Who did not answer.
        system: &'static str,
        /// How long was waited.
        after: Duration,
    },
    /// This target has no such operation.
    #[error("{system} has no {operation}")]
    Unsupported {
        /// Which target.
        system: &'static str,
        /// Which operation.
        operation: &'static str,
    },
}

/// A key and its value, to be written.
pub type Item<'a> = (&'a [u8], &'a [u8]);

/// One client of the system under test. Calls are timed from outside; none of
/// them should allocate once its buffers have grown.
pub trait Target {
    /// Looks one key up.
    fn get(&mut self, key: &[u8]) -> Result<GetOutcome<'_>, TargetError>;

    /// Looks many keys up in one go and calls `each` exactly once per key, with
    /// the key's index, in any order.
    fn get_many(
        &mut self,
        keys: &[&[u8]],
        each: &mut dyn FnMut(usize, GetOutcome<'_>),
    ) -> Result<(), TargetError> {
        for (index, key) in keys.iter().enumerate() {
            let outcome = self.get(key)?;
            each(index, outcome);
        }
        Ok(())
    }

    /// Writes one value, to expire after `ttl` where given.
    fn set(
        &mut self,
        key: &[u8],
        value: &[u8],
        ttl: Option<Duration>,
    ) -> Result<SetOutcome, TargetError>;

    /// Writes many values: for loading a corpus, not for measuring.
    fn set_many(&mut self, items: &[Item<'_>]) -> Result<(), TargetError> {
        for (key, value) in items {
            self.set(key, value, None)?;
        }
        Ok(())
    }

    /// Removes one key; removing what is absent is fine.
    fn erase(&mut self, key: &[u8]) -> Result<SetOutcome, TargetError>;

    /// Adds to `counts` how often this client has retried so far, by cause.
    fn count_retries(&self, counts: &mut BTreeMap<String, u64>) {
        let _ = counts;
    }
}

/// A client that is lent for one run.
impl<T: Target + ?Sized> Target for &mut T {
    #[inline]
    fn get(&mut self, key: &[u8]) -> Result<GetOutcome<'_>, TargetError> {
        (**self).get(key)
    }

    fn get_many(
        &mut self,
        keys: &[&[u8]],
        each: &mut dyn FnMut(usize, GetOutcome<'_>),
    ) -> Result<(), TargetError> {
        (**self).get_many(keys, each)
    }

    fn set(
        &mut self,
        key: &[u8],
        value: &[u8],
        ttl: Option<Duration>,
    ) -> Result<SetOutcome, TargetError> {
        (**self).set(key, value, ttl)
    }

    fn set_many(&mut self, items: &[Item<'_>]) -> Result<(), TargetError> {
        (**self).set_many(items)
    }

    fn erase(&mut self, key: &[u8]) -> Result<SetOutcome, TargetError> {
        (**self).erase(key)
    }

    fn count_retries(&self, counts: &mut BTreeMap<String, u64>) {
        (**self).count_retries(counts);
    }
}
