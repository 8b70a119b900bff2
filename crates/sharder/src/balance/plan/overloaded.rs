//! What does not fit anywhere.

use crate::key::{KeyPoint, Slice};
use crate::server::ServerId;
use std::fmt;

/// One of the two things that are balanced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    /// CPU-seconds per second.
    Cpu,
    /// Resident bytes.
    Bytes,
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Metric::Cpu => "CPU",
            Metric::Bytes => "memory",
        })
    }
}

/// More than there is room for: no assignment helps, only capacity or less
/// load does.
#[derive(Clone, Debug, PartialEq)]
pub enum Overloaded {
    /// All servers together cannot carry it.
    Cluster {
        /// Which of the two.
        metric: Metric,
        /// What is needed.
        needed: f64,
        /// What there is.
        capacity: f64,
    },
    /// One server holds more than it can carry.
    Server {
        /// Which.
        server: ServerId,
        /// Which of the two.
        metric: Metric,
        /// What is needed.
        needed: f64,
        /// What it has.
        capacity: f64,
        /// Its heaviest slices, enough to make up the difference (at most 8).
        does_not_fit: Vec<Slice>,
    },
    /// One key, which cannot be divided, is more than its servers can carry.
    Key {
        /// Which.
        point: KeyPoint,
        /// What each of its servers has to carry.
        needed: f64,
        /// The CPU of the smallest of them.
        capacity: f64,
        /// How many they are.
        replicas: usize,
    },
}

impl fmt::Display for Overloaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = |needed: f64, capacity: f64| 100.0 * needed / capacity;
        match self {
            Overloaded::Cluster {
                metric,
                needed,
                capacity,
            } => write!(
                f,
                "overloaded: all servers together need {:.0} % of their {metric}: add servers or shed load",
                part(*needed, *capacity)
            ),
            Overloaded::Server {
                server,
                metric,
                needed,
                capacity,
                does_not_fit,
            } => {
                write!(
                    f,
                    "overloaded: {server} needs {:.0} % of its {metric}; what does not fit:",
                    part(*needed, *capacity)
                )?;
                for (i, slice) in does_not_fit.iter().enumerate() {
                    write!(f, "{} {slice}", if i == 0 { "" } else { "," })?;
                }
                Ok(())
            }
            Overloaded::Key {
                point,
                needed,
                capacity,
                replicas,
            } => write!(
                f,
                "overloaded: key point {point} alone needs {:.0} % of the CPU of each of its {replicas} server(s): allow more replicas or divide the key",
                part(*needed, *capacity)
            ),
        }
    }
}
