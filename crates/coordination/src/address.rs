//! Where assigners are: `host:port[,host:port…]`, with or without
//! `trefoil-assigner://` before it.

use crate::error::CoordinationError;
use std::fmt;
use std::str::FromStr;

const SCHEME: &str = "trefoil-assigner://";

/// The addresses of the assigners of one installation, in the order in which
/// they are tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AssignerAddress {
    hosts: Vec<String>,
}

impl AssignerAddress {
    /// Each `host:port`.
    pub fn hosts(&self) -> &[String] {
        &self.hosts
    }
}

impl FromStr for AssignerAddress {
    type Err = CoordinationError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = |reason: String| CoordinationError::Address {
            address: text.to_owned(),
            what: "address of an assigner",
            reason,
        };
        let list = text.strip_prefix(SCHEME).unwrap_or(text);
        if let Some((scheme, _)) = list.split_once("://") {
            return Err(bad(format!(
                "{scheme}:// is not served; write host:port[,host:port…]"
            )));
        }
        let hosts = parse_hosts(list).map_err(bad)?;
        Ok(AssignerAddress { hosts })
    }
}

impl fmt::Display for AssignerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.hosts.join(","))
    }
}

/// `host:port`s with commas between them.
pub(crate) fn parse_hosts(list: &str) -> Result<Vec<String>, String> {
    list.split(',')
        .map(|host_port| {
            let (host, port) = host_port
                .rsplit_once(':')
                .ok_or_else(|| format!("\"{host_port}\" has no port"))?;
            if host.is_empty() || host.contains(['/', ' ', '@']) {
                return Err(format!("\"{host}\" is no host"));
            }
            match port.parse::<u16>() {
                Ok(1..) => Ok(host_port.to_owned()),
                _ => Err(format!("\"{port}\" is no port")),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_or_several_with_or_without_the_scheme() {
        for text in ["a:1,[::1]:2", "trefoil-assigner://a:1,[::1]:2"] {
            let address: AssignerAddress = text.parse().unwrap();
            assert_eq!(address.hosts(), ["a:1", "[::1]:2"]);
            assert_eq!(address.to_string(), "a:1,[::1]:2");
        }
    }

    #[test]
    fn what_is_no_address_is_told_why() {
        for (text, reason) in [
            ("", "\"\" has no port"),
            ("host", "\"host\" has no port"),
            ("a:1,", "\"\" has no port"),
            (":1", "\"\" is no host"),
            ("a:0", "\"0\" is no port"),
            ("a:70000", "\"70000\" is no port"),
            ("etcd://a:1/x", "etcd:// is not served"),
            ("a:1/x", "\"1/x\" is no port"),
        ] {
            let error = text.parse::<AssignerAddress>().unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
