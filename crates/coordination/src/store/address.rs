//! Where the store is, as it is written on the command line.

use crate::address::parse_hosts;
use crate::error::CoordinationError;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// Where an assigner keeps what it must not forget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreAddress {
    /// In memory: a restart forgets everything.
    Memory,
    /// In a file, for one assigner.
    File(PathBuf),
    /// In etcd, for several.
    Etcd {
        /// Each `host:port`.
        hosts: Vec<String>,
        /// Keys begin with it; several installations may share one etcd.
        prefix: String,
    },
}

impl FromStr for StoreAddress {
    type Err = CoordinationError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = |reason: String| CoordinationError::Address {
            address: text.to_owned(),
            what: "coordination store",
            reason,
        };
        if text == "embedded" {
            return Ok(StoreAddress::Memory);
        }
        if let Some(path) = text.strip_prefix("embedded:") {
            if path.is_empty() {
                return Err(bad("the file has no name".to_owned()));
            }
            return Ok(StoreAddress::File(PathBuf::from(path)));
        }
        let Some(rest) = text.strip_prefix("etcd://") else {
            return Err(bad(
                "write embedded, embedded:FILE or etcd://host:port[,host:port…]/prefix".to_owned(),
            ));
        };
        let Some((hosts, prefix)) = rest.split_once('/') else {
            return Err(bad("a prefix is missing after the hosts".to_owned()));
        };
        let prefix = prefix.trim_end_matches('/');
        if prefix.is_empty() {
            return Err(bad("the prefix is empty".to_owned()));
        }
        Ok(StoreAddress::Etcd {
            hosts: parse_hosts(hosts).map_err(bad)?,
            prefix: prefix.to_owned(),
        })
    }
}

impl fmt::Display for StoreAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreAddress::Memory => f.write_str("embedded"),
            StoreAddress::File(path) => write!(f, "embedded:{}", path.display()),
            StoreAddress::Etcd { hosts, prefix } => {
                write!(f, "etcd://{}/{prefix}", hosts.join(","))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back() {
        for text in ["embedded", "embedded:/a/b", "etcd://h:1,i:2/p/q"] {
            let address: StoreAddress = text.parse().unwrap();
            assert_eq!(address.to_string(), text);
        }
    }

    #[test]
    fn what_is_no_store_is_told_why() {
        for (text, reason) in [
            ("", "write embedded"),
            ("redis://h:1/x", "write embedded"),
            ("embedded:", "the file has no name"),
            ("etcd://h:1", "a prefix is missing"),
            ("etcd://h:1/", "the prefix is empty"),
            ("etcd://h/p", "\"h\" has no port"),
        ] {
            let error = text.parse::<StoreAddress>().unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
