//! Where etcd is and how one comes in.

use crate::error::EtcdError;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

/// A member that does not answer a ping for so long is given up.
const PING_EVERY: Duration = Duration::from_secs(1);

/// What a client of etcd has to know.
#[derive(Clone, Debug)]
pub struct EtcdOptions {
    /// Each `host:port`, IPv6 addresses in brackets; at least one.
    pub members: Vec<String>,
    /// TLS, if so.
    pub tls: Option<TlsFiles>,
    /// User and password, if so.
    pub credentials: Option<Credentials>,
    /// How long one member may take to answer before the next one is asked.
    pub member_timeout: Duration,
}

impl EtcdOptions {
    /// Without TLS and credentials.
    pub fn new(members: Vec<String>) -> Self {
        EtcdOptions {
            members,
            tls: None,
            credentials: None,
            member_timeout: Duration::from_secs(2),
        }
    }

    pub(crate) fn endpoints(&self) -> Result<Vec<Endpoint>, EtcdError> {
        let tls = self.tls.as_ref().map(TlsFiles::read).transpose()?;
        if self.members.is_empty() {
            return Err(EtcdError::Settings("no member of etcd is named".to_owned()));
        }
        let endpoint = |member: &String| {
            let scheme = if tls.is_some() { "https" } else { "http" };
            let bad = |error: &dyn fmt::Display| {
                EtcdError::Settings(format!("\"{member}\" is no address of etcd: {error}"))
            };
            let endpoint = Endpoint::from_shared(format!("{scheme}://{member}"))
                .map_err(|error| bad(&error))?
                .connect_timeout(self.member_timeout)
                .http2_keep_alive_interval(PING_EVERY)
                .keep_alive_timeout(self.member_timeout)
                .keep_alive_while_idle(true)
                .tcp_nodelay(true);
            match &tls {
                None => Ok(endpoint),
                Some(tls) => endpoint.tls_config(tls.clone()).map_err(|error| {
                    let reason = crate::client::causes(&error);
                    EtcdError::Settings(format!("the TLS files for etcd do not do: {reason}"))
                }),
            }
        };
        self.members.iter().map(endpoint).collect()
    }
}

/// PEM files. They are read when the client is made, and when they have changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The authorities that etcd's certificate has to come from.
    pub authority: PathBuf,
    /// The client's certificate chain and its private key, if etcd asks for one.
    pub identity: Option<(PathBuf, PathBuf)>,
}

impl TlsFiles {
    fn read(&self) -> Result<ClientTlsConfig, EtcdError> {
        let authority = read_pem("authority of etcd", &self.authority, "CERTIFICATE")?;
        let mut config = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(authority));
        if let Some((certificate, key)) = &self.identity {
            let certificate = read_pem("certificate for etcd", certificate, "CERTIFICATE")?;
            let key = read_pem("private key for etcd", key, "PRIVATE KEY")?;
            config = config.identity(Identity::from_pem(certificate, key));
        }
        Ok(config)
    }
}

fn read_pem(what: &'static str, path: &Path, kind: &str) -> Result<Vec<u8>, EtcdError> {
    let fail = |reason: String| EtcdError::File {
        what,
        path: path.to_owned(),
        reason,
    };
    let bytes = std::fs::read(path).map_err(|error| fail(error.to_string()))?;
    let text = String::from_utf8_lossy(&bytes);
    let has_one = text
        .lines()
        .any(|line| line.starts_with("-----BEGIN ") && line.contains(kind));
    match has_one {
        true => Ok(bytes),
        false => Err(fail(format!("it holds no {kind} in PEM"))),
    }
}

/// Who asks. Never shown, not even by `{:?}`.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// Name of a user of etcd.
    pub user: String,
    /// The password.
    pub password: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_not_shown() {
        let mut options = EtcdOptions::new(vec!["127.0.0.1:2379".to_owned()]);
        options.credentials = Some(Credentials {
            user: "cells".to_owned(),
            password: "hush".to_owned(),
        });
        let shown = format!("{options:?}");
        assert!(
            shown.contains("cells") && !shown.contains("hush"),
            "{shown}"
        );
    }

    #[test]
    fn files_that_hold_something_else_are_named() {
        let mut options = EtcdOptions::new(vec!["127.0.0.1:2379".to_owned()]);
        let own = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"));
        for (path, hint) in [
            (own, "holds no CERTIFICATE"),
            ("/nowhere/ca.pem".into(), "No such file"),
        ] {
            options.tls = Some(TlsFiles {
                authority: path.clone(),
                identity: None,
            });
            let error = options.endpoints().unwrap_err().to_string();
            let path = path.display().to_string();
            assert!(error.contains(hint) && error.contains(&path), "{error}");
        }
    }

    #[test]
    fn addresses_are_checked() {
        for members in [vec![], vec!["a b:1".to_owned()]] {
            let result = EtcdOptions::new(members).endpoints();
            assert!(matches!(result, Err(EtcdError::Settings(_))));
        }
    }
}
