//! How people write a cell in etcd: `etcd://host:port[,host:port…]/path`.

use crate::address::{AddressError, RpcAddress};
use std::fmt;
use std::str::FromStr;

/// A cell whose configuration is in etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdAddress {
    /// Members of etcd, in the order in which they are asked first.
    members: Vec<RpcAddress>,
    /// What the names of the cell's keys begin with; no slash at either end.
    path: String,
}

/// Longest path, in bytes.
const PATH_LEN_MAX: usize = 256;

impl EtcdAddress {
    /// etcd's members, each `host:port`.
    pub fn members(&self) -> Vec<String> {
        self.members.iter().map(ToString::to_string).collect()
    }

    /// What the names of the cell's keys begin with.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The last part of the path: the cell's name, unless it is told another one.
    pub fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }

    /// Whether all members are on this host.
    pub fn is_local(&self) -> bool {
        self.members.iter().all(RpcAddress::is_local)
    }
}

impl FromStr for EtcdAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = |reason: String| AddressError::Etcd {
            address: text.to_owned(),
            reason,
        };
        let rest = text
            .strip_prefix("etcd://")
            .ok_or_else(|| bad("it does not begin with etcd://".to_owned()))?;
        let (members, path) = rest
            .split_once('/')
            .ok_or_else(|| bad("the cell's path is missing after the hosts".to_owned()))?;
        if members.contains('@') {
            let user = "a user stands in TREFOIL_ETCD_USER, not in the address";
            return Err(bad(user.to_owned()));
        }
        let member = |member: &str| match member.parse() {
            Ok(address @ RpcAddress::Tcp { .. }) => Ok(address),
            Err(AddressError::PortMissing(host)) => {
                Err(bad(format!("\"{member}\" has no port: write {host}:2379")))
            }
            _ => Err(bad(format!("\"{member}\" is no host and port"))),
        };
        let members = members.split(',').map(member).collect::<Result<_, _>>()?;
        let path = path.trim_end_matches('/');
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
        let is_part = |part: &str| !part.is_empty() && part.bytes().all(plain);
        if path.len() > PATH_LEN_MAX || !path.split('/').all(is_part) {
            return Err(bad(format!(
                "the path \"{path}\" is not valid: use letters, digits, '.', '-' and '_', with \
                 '/' between parts, {PATH_LEN_MAX} bytes at most"
            )));
        }
        Ok(EtcdAddress {
            members,
            path: path.to_owned(),
        })
    }
}

impl fmt::Display for EtcdAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "etcd://{}/{}", self.members().join(","), self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back() {
        for (text, path, name) in [
            ("etcd://a:1,[::1]:2/cells/mail", "cells/mail", "mail"),
            ("etcd://127.0.0.1:2379/c", "c", "c"),
        ] {
            let address: EtcdAddress = text.parse().unwrap();
            assert_eq!(address.to_string(), text);
            assert_eq!((address.path(), address.name()), (path, name));
        }
        let address: EtcdAddress = "etcd://a:1,b:2/c/".parse().unwrap();
        assert_eq!(address.members(), ["a:1", "b:2"]);
        assert!(!address.is_local());
        let address: EtcdAddress = "etcd://127.0.0.1:1,[::1]:2/c".parse().unwrap();
        assert!(address.is_local());
    }

    #[test]
    fn mistakes_are_named() {
        for (text, hint) in [
            ("etcd://h:2379", "path is missing"),
            ("etcd://h:2379/", "path \"\" is not valid"),
            ("etcd://h/c", "write h:2379"),
            ("etcd://h:0/c", "is no host and port"),
            ("etcd:///c", "is no host and port"),
            ("etcd://a:1,/c", "is no host and port"),
            ("etcd://unix:x/c", "is no host and port"),
            ("etcd://a:1/c d", "is not valid"),
            ("etcd://a:1//c", "is not valid"),
            ("etcd://me:secret@a:1/c", "TREFOIL_ETCD_USER"),
        ] {
            let error = text.parse::<EtcdAddress>().unwrap_err().to_string();
            assert!(error.contains(hint), "{text:?}: {error}");
        }
    }
}
