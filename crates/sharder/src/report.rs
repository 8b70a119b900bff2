//! What servers say of their load.
//!
//! Rates are measured by the server, over the part of the interval during
//! which it held the slice, with its own monotonic clock. No time of day and
//! no server's clock is compared with anybody else's: a report is new if its
//! number is higher than the last one's, and as old as the assigner's own
//! clock says.

use crate::key::{KeyPoint, Slice};
use crate::server::ServerId;
use crate::version::AssignmentVersion;

/// Load of some keys on one server, or of all their servers together.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct Load {
    /// CPU-seconds per second spent on requests that any one replica can
    /// answer: it is divided by the number of replicas.
    pub cpu_shared: f64,
    /// CPU-seconds per second that every replica spends (applying writes).
    pub cpu_each: f64,
    /// Requests per second.
    pub requests: f64,
    /// Resident bytes of the values.
    pub bytes: f64,
}

impl Load {
    /// The CPU of one of `replicas` servers.
    pub fn cpu_of_one(&self, replicas: usize) -> f64 {
        self.cpu_shared / replicas.max(1) as f64 + self.cpu_each
    }

    /// The CPU of all of `replicas` servers.
    pub fn cpu_of_all(&self, replicas: usize) -> f64 {
        self.cpu_shared + self.cpu_each * replicas.max(1) as f64
    }

    /// Both together.
    pub fn plus(self, other: Load) -> Load {
        self.zip(other, |a, b| a + b)
    }

    /// What is left without `other`; nothing is less than 0.
    pub fn minus(self, other: Load) -> Load {
        self.zip(other, |a, b| (a - b).max(0.0))
    }

    /// A part or a multiple.
    pub fn times(self, factor: f64) -> Load {
        self.zip(self, |a, _| a * factor)
    }

    /// From this one towards `other` by `weight` (0 to 1).
    pub fn towards(self, other: Load, weight: f64) -> Load {
        self.zip(other, |a, b| a + (b - a) * weight)
    }

    fn zip(self, other: Load, f: impl Fn(f64, f64) -> f64) -> Load {
        Load {
            cpu_shared: f(self.cpu_shared, other.cpu_shared),
            cpu_each: f(self.cpu_each, other.cpu_each),
            requests: f(self.requests, other.requests),
            bytes: f(self.bytes, other.bytes),
        }
    }

    fn check(&self) -> Result<(), &'static str> {
        let parts = [
            (self.cpu_shared, "cpu_shared", RATE_MAX),
            (self.cpu_each, "cpu_each", RATE_MAX),
            (self.requests, "requests", RATE_MAX),
            (self.bytes, "bytes", BYTES_MAX),
        ];
        // NaN fails the comparison, too.
        match parts
            .iter()
            .find(|(value, _, max)| !(0.0..=*max).contains(value))
        {
            Some((_, name, _)) => Err(name),
            None => Ok(()),
        }
    }
}

/// Beyond it a rate is nonsense (a clock that jumped, a broken counter).
pub const RATE_MAX: f64 = 1e12;
/// Beyond it a size is nonsense: 2^60.
pub const BYTES_MAX: f64 = (1u64 << 60) as f64;
/// Slices in one report.
pub const REPORT_SLICES_MAX: usize = 100_000;
/// Hot keys in one report.
pub const REPORT_HOT_KEYS_MAX: usize = 1_000;
/// Copies that cannot be stored, in one report.
pub const REPORT_UNSTORED_MAX: usize = 1_000;

/// Load of one slice on the server that reports.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SliceLoad {
    /// Which, cut as in the assignment that the report names.
    pub slice: Slice,
    /// How much.
    pub load: Load,
}

/// One of the keys that a server spends most on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HotKey {
    /// Where it lies.
    pub point: KeyPoint,
    /// Its part of its slice's load.
    pub load: Load,
}

/// What a server could not store though it is to own it or to have a copy, for some seconds
/// already: unreadable to its release, or no room. Said by who has it; and by the server
/// itself of what it is to own and nobody else owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Unstored {
    /// A key point for which that is so.
    pub point: KeyPoint,
    /// Which server.
    pub server: ServerId,
}

/// What a server says about the last interval.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerReport {
    /// Who.
    pub server: ServerId,
    /// Higher with every report of this server.
    pub sequence: u64,
    /// The assignment that it went by.
    pub version: AssignmentVersion,
    /// Every slice that it served.
    pub slices: Vec<SliceLoad>,
    /// The keys that it spent most on, in any order.
    pub hot_keys: Vec<HotKey>,
    /// What others cannot store of what it has, and what it cannot store of what it is to own.
    pub unstored: Vec<Unstored>,
}

impl ServerReport {
    /// Checks what can be checked without knowing anything else.
    pub fn validate(&self) -> Result<(), ReportError> {
        let bad = |reason: String| {
            Err(ReportError {
                server: self.server,
                sequence: self.sequence,
                reason,
            })
        };
        if self.slices.len() > REPORT_SLICES_MAX || self.hot_keys.len() > REPORT_HOT_KEYS_MAX {
            return bad(format!(
                "{} slices and {} hot keys are more than the {REPORT_SLICES_MAX} and {REPORT_HOT_KEYS_MAX} allowed",
                self.slices.len(),
                self.hot_keys.len()
            ));
        }
        if self.unstored.len() > REPORT_UNSTORED_MAX {
            let count = self.unstored.len();
            return bad(format!(
                "{count} copies that cannot be stored are more than {REPORT_UNSTORED_MAX}"
            ));
        }
        for SliceLoad { slice, load } in &self.slices {
            if let Err(part) = load.check() {
                return bad(format!("{part} of {slice} is no possible figure"));
            }
        }
        for HotKey { point, load } in &self.hot_keys {
            if let Err(part) = load.check() {
                return bad(format!("{part} of key point {point} is no possible figure"));
            }
        }
        Ok(())
    }
}

/// A report that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("report {sequence} of {server} is not used: {reason}")]
pub struct ReportError {
    /// Who sent it.
    pub server: ServerId,
    /// Its number.
    pub sequence: u64,
    /// What is wrong with it.
    pub reason: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_that_cannot_be_are_refused() {
        for nonsense in [f64::NAN, f64::INFINITY, -0.1, 1e13] {
            let load = Load {
                cpu_shared: nonsense,
                ..Load::default()
            };
            let report = ServerReport {
                server: ServerId(3),
                sequence: 9,
                version: AssignmentVersion::first_of(1),
                slices: vec![SliceLoad {
                    slice: Slice::ALL,
                    load,
                }],
                hot_keys: Vec::new(),
                unstored: Vec::new(),
            };
            let error = report.validate().unwrap_err().to_string();
            assert_eq!(
                error,
                "report 9 of server 3 is not used: cpu_shared of [0000000000000000, 2^64) is no possible figure"
            );
        }
    }

    #[test]
    fn writes_are_not_divided_by_replicas() {
        let load = Load {
            cpu_shared: 6.0,
            cpu_each: 1.0,
            ..Load::default()
        };
        assert_eq!(load.cpu_of_one(3), 3.0);
        assert_eq!(load.cpu_of_all(3), 9.0);
    }
}
