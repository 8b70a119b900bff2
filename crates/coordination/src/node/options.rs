//! How an assigner works.

use crate::error::CoordinationError;
use crate::limits;
use std::collections::BTreeMap;
use std::time::Duration;
use trefoil_channel::Security;
use trefoil_etcd::EtcdAccess;
use trefoil_sharder::BalanceConfig;

/// How an assigner works.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// `host:port` at which servers and other assigners' clients reach this
    /// one; empty if it has no service.
    pub address: String,
    /// How long a server is a member after it was last heard.
    pub lease: Duration,
    /// How long this assigner leads after the store has last heard it.
    pub leader_lease: Duration,
    /// Between two rounds of balancing.
    pub step_every: Duration,
    /// How long a first assignment waits for more servers.
    pub gather: Duration,
    /// Slices for each server in a first assignment.
    pub slices_per_server: usize,
    /// Thresholds of every corpus that has none of its own.
    pub balance: BalanceConfig,
    /// Thresholds of single corpora: how many replicas, how much may move.
    pub corpora: BTreeMap<String, BalanceConfig>,
    /// Only the corpora in `corpora` are served; others are refused.
    pub closed: bool,
    /// What protects its service.
    pub security: Security,
    /// How it comes into etcd, if its store is there. Nothing is sent in the clear to another
    /// host unless this says so.
    pub etcd: EtcdAccess,
}

impl Default for NodeOptions {
    fn default() -> Self {
        NodeOptions {
            address: String::new(),
            lease: limits::LEASE,
            leader_lease: limits::LEADER_LEASE,
            step_every: limits::STEP_EVERY,
            gather: limits::GATHER,
            slices_per_server: 32,
            balance: BalanceConfig::default(),
            corpora: BTreeMap::new(),
            closed: false,
            security: Security::default(),
            etcd: EtcdAccess::default(),
        }
    }
}

impl NodeOptions {
    /// The thresholds of a corpus.
    pub(crate) fn balance_of(&self, corpus: &str) -> BalanceConfig {
        self.corpora.get(corpus).unwrap_or(&self.balance).clone()
    }

    pub(crate) fn validate(&self) -> Result<(), CoordinationError> {
        let bad = |what: &'static str, reason: String| CoordinationError::Option { what, reason };
        for config in self.corpora.values().chain([&self.balance]) {
            config
                .validate()
                .map_err(|error| bad("thresholds", error.to_string()))?;
        }
        for name in self.corpora.keys() {
            check_name(name).map_err(|reason| bad("name of a corpus", reason))?;
        }
        if self.lease < limits::LEASE_MIN {
            return Err(bad(
                "lease",
                format!("{:?} is less than {:?}", self.lease, limits::LEASE_MIN),
            ));
        }
        if self.lease > limits::LEASE_MAX {
            return Err(bad(
                "lease",
                format!("{:?} is more than {:?}", self.lease, limits::LEASE_MAX),
            ));
        }
        if self.step_every.is_zero() || self.leader_lease < limits::LEADER_LEASE_MIN {
            return Err(bad(
                "timing",
                format!(
                    "rounds need a pause, and a leader {:?}",
                    limits::LEADER_LEASE_MIN
                ),
            ));
        }
        Ok(())
    }
}

/// Names are parts of keys, of metrics and of command lines.
pub(crate) fn check_name(name: &str) -> Result<(), String> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if name.is_empty() || name.len() > limits::CORPUS_LEN_MAX || !name.bytes().all(allowed) {
        return Err(format!(
            "\"{name}\" is no name of a corpus: 1 to {} letters, digits, '-', '_' and '.'",
            limits::CORPUS_LEN_MAX
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_together_is_refused() {
        assert_eq!(NodeOptions::default().validate(), Ok(()));
        let short = NodeOptions {
            lease: Duration::from_millis(10),
            ..NodeOptions::default()
        };
        assert!(short.validate().unwrap_err().to_string().contains("lease"));
        let longest = NodeOptions {
            lease: limits::LEASE_MAX,
            ..NodeOptions::default()
        };
        assert_eq!(longest.validate(), Ok(()));
        let long = NodeOptions {
            lease: limits::LEASE_MAX + Duration::from_millis(1),
            ..NodeOptions::default()
        };
        assert!(long.validate().unwrap_err().to_string().contains("lease"));
        let balance = BalanceConfig {
            replicas_min: 0,
            ..BalanceConfig::default()
        };
        let none = NodeOptions {
            corpora: [("c".to_owned(), balance)].into(),
            ..NodeOptions::default()
        };
        assert!(
            none.validate()
                .unwrap_err()
                .to_string()
                .contains("replicas_min")
        );
    }

    #[test]
    fn names_are_plain() {
        for name in ["a", "mail.v2", "A-b_c"] {
            assert_eq!(check_name(name), Ok(()));
        }
        for name in ["", "a/b", "a b", "ä", &"x".repeat(65)] {
            assert!(check_name(name).is_err(), "{name}");
        }
    }
}
