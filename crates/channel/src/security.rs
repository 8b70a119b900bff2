//! What protects a connection, and what may be done without.

use crate::dial::split;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use trefoil_socket_owner::Users;
use trefoil_tls::{CertError, CertFiles, CertUse, Tls};

/// What protects the connections of a part of a linked store.
#[derive(Clone, Debug, Default)]
pub enum Security {
    /// Nothing: so only loopback addresses are listened at and dialled, and both sides
    /// have the kernel say which user the other one is: this process's own, or root.
    #[default]
    Loopback,
    /// Likewise, and other users of the host, who are named.
    Users(Users),
    /// Nothing, off the host, too, and nobody is asked who it is: whoever reaches a port
    /// reads and changes everything. For networks that are protected otherwise.
    Plaintext,
    /// TLS 1.3; both sides show certificates.
    Certificates(Tls),
}

/// An address off the host, which would be spoken with in the clear.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{address} is not a loopback address, and everything would be sent in the clear: \
     use certificates (--certs DIR), or allow it (--insecure)"
)]
pub struct ExposedError {
    /// Which.
    pub address: String,
}

impl Security {
    /// From what is chosen on a command line: `ca.pem`, `cert.pem` and `key.pem` of
    /// a directory, or plain text by name, or neither. Certificates win.
    ///
    /// # Errors
    /// The files cannot be used, or are not those of a server where one is needed.
    pub fn choose(certs: Option<&Path>, insecure: bool, usage: CertUse) -> Result<Self, CertError> {
        match certs {
            Some(certs) => {
                Tls::read(&CertFiles::in_directory(certs), usage).map(Self::Certificates)
            }
            None if insecure => Ok(Security::Plaintext),
            None => Ok(Security::Loopback),
        }
    }

    /// Without certificates, and so only within this host: its own user, root, and these
    /// users, by their numbers.
    pub fn users(named: impl IntoIterator<Item = u32>) -> Self {
        Security::Users(Users::and(named))
    }

    /// Of a server, by its certificates in a directory.
    ///
    /// # Errors
    /// The files cannot be used, or are not those of a server (role `backend`).
    pub fn of_server(certs: &Path) -> Result<Self, CertError> {
        Security::choose(Some(certs), false, CertUse::Server)
    }

    /// Of a caller, by its certificates in a directory.
    ///
    /// # Errors
    /// The files cannot be used.
    pub fn of_caller(certs: &Path) -> Result<Self, CertError> {
        Security::choose(Some(certs), false, CertUse::Client)
    }

    /// The users of this host who are believed for what they are, without certificates:
    /// this process's own and root, and those who were named.
    pub fn local_users(&self) -> Users {
        match self {
            Security::Users(users) => users.clone(),
            Security::Loopback | Security::Plaintext | Security::Certificates(_) => {
                Users::default()
            }
        }
    }

    /// Whether certificates are shown.
    pub fn is_encrypted(&self) -> bool {
        matches!(self, Security::Certificates(_))
    }

    /// Whether a port may be opened there.
    ///
    /// # Errors
    /// It is off the host, and nothing protects it.
    pub fn check_listen(&self, address: SocketAddr) -> Result<(), ExposedError> {
        self.check(address.ip().is_loopback(), || address.to_string())
    }

    /// Whether others may be told to dial `address` (`host:port`).
    ///
    /// # Errors
    /// It is off the host, and nothing protects what they would send.
    pub fn check_address(&self, address: &str) -> Result<(), ExposedError> {
        let host = split(address).map_or_else(|_| address.to_owned(), |(host, _)| host);
        self.check_dial(&host, address)
    }

    /// Whether `host` (a name, or an address without brackets) may be dialled.
    pub(crate) fn check_dial(&self, host: &str, address: &str) -> Result<(), ExposedError> {
        let ip = host.parse::<IpAddr>();
        let is_loopback = ip.map_or(host == "localhost", |ip| ip.is_loopback());
        self.check(is_loopback, || address.to_owned())
    }

    fn check(&self, is_loopback: bool, address: impl Fn() -> String) -> Result<(), ExposedError> {
        match self {
            Security::Loopback | Security::Users(_) if !is_loopback => {
                Err(ExposedError { address: address() })
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_the_clear_only_loopback_unless_it_was_said() {
        for (host, is_here) in [
            ("127.0.0.1", true),
            ("127.9.9.9", true),
            ("::1", true),
            ("localhost", true),
            ("10.0.0.7", false),
            ("0.0.0.0", false),
            ("db1.example", false),
            ("localhost.example", false),
            ("", false),
        ] {
            let dialled = Security::Loopback.check_dial(host, host).is_ok();
            assert_eq!(dialled, is_here, "{host}");
            let named = Security::users([1]).check_dial(host, host);
            assert_eq!(named.is_ok(), is_here, "{host}");
            assert!(Security::Plaintext.check_dial(host, host).is_ok());
        }
        let anywhere = "0.0.0.0:1".parse().unwrap();
        let error = Security::Loopback.check_listen(anywhere).unwrap_err();
        assert!(error.to_string().contains("0.0.0.0:1"), "{error}");
        assert!(Security::Plaintext.check_listen(anywhere).is_ok());
    }
}
