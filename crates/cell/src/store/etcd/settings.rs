//! How this process comes into etcd.
//!
//! By the environment, so that a backend has it from whoever starts it, every command
//! takes the same, and no password stands in an address or on a command line.

use super::ConfigStoreError;
use crate::etcd_address::EtcdAddress;
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;
use trefoil_etcd::{Credentials, EtcdOptions, TlsFiles};

const AUTHORITY: &str = "TREFOIL_ETCD_CA";
const CERTIFICATE: &str = "TREFOIL_ETCD_CERT";
const KEY: &str = "TREFOIL_ETCD_KEY";
const USER: &str = "TREFOIL_ETCD_USER";
const PASSWORD_FILE: &str = "TREFOIL_ETCD_PASSWORD_FILE";
const PLAINTEXT: &str = "TREFOIL_ETCD_PLAINTEXT";

/// How long a backend that was killed is believed to live.
const LEASE_DEFAULT: Duration = Duration::from_secs(10);

/// Certificates, credentials and times.
#[derive(Clone, Debug)]
pub struct EtcdSettings {
    /// TLS files; `None` for plaintext.
    pub tls: Option<TlsFiles>,
    /// User, and the file with the password.
    pub user: Option<(String, PathBuf)>,
    /// Plaintext also to other hosts.
    pub plaintext: bool,
    /// How long a backend that was killed is believed to live.
    pub lease: Duration,
}

impl Default for EtcdSettings {
    fn default() -> Self {
        EtcdSettings {
            tls: None,
            user: None,
            plaintext: false,
            lease: LEASE_DEFAULT,
        }
    }
}

impl EtcdSettings {
    /// As the environment says.
    pub fn from_environment() -> Result<Self, ConfigStoreError> {
        Self::read(|name| std::env::var_os(name))
    }

    fn read(variable: impl Fn(&str) -> Option<OsString>) -> Result<Self, ConfigStoreError> {
        let refuse = |reason: String| ConfigStoreError::Refused {
            address: "etcd".to_owned(),
            reason,
        };
        let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
        let path = |name| variable(name).map(PathBuf::from);
        let both =
            |one: &str, other: &str| refuse(format!("{one} is set, {other} is not: set both"));
        let identity = match (path(CERTIFICATE), path(KEY)) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            (Some(_), None) => return Err(both(CERTIFICATE, KEY)),
            (None, Some(_)) => return Err(both(KEY, CERTIFICATE)),
        };
        let tls = match (path(AUTHORITY), identity) {
            (Some(authority), identity) => Some(TlsFiles {
                authority,
                identity,
            }),
            (None, None) => None,
            (None, Some(_)) => return Err(both(CERTIFICATE, AUTHORITY)),
        };
        let user = match (variable(USER), path(PASSWORD_FILE)) {
            (Some(user), Some(file)) => {
                let user = user
                    .into_string()
                    .map_err(|_| refuse(format!("{USER} is no text")))?;
                Some((user, file))
            }
            (None, None) => None,
            (Some(_), None) => return Err(both(USER, PASSWORD_FILE)),
            (None, Some(_)) => return Err(both(PASSWORD_FILE, USER)),
        };
        let plaintext = match variable(PLAINTEXT) {
            None => false,
            Some(yes) if yes == "yes" => true,
            Some(_) => return Err(refuse(format!("{PLAINTEXT} is not \"yes\": leave it out"))),
        };
        Ok(EtcdSettings {
            tls,
            user,
            plaintext,
            lease: LEASE_DEFAULT,
        })
    }

    /// Files whose content counts: when one changes, it is read again.
    pub(super) fn files(&self) -> Vec<PathBuf> {
        let tls = self.tls.iter();
        let tls = tls.flat_map(|tls| {
            let identity = tls.identity.iter();
            let identity = identity.flat_map(|(certificate, key)| [certificate, key]);
            std::iter::once(&tls.authority).chain(identity)
        });
        let password = self.user.iter().map(|(_, file)| file);
        tls.chain(password).cloned().collect()
    }

    /// What may be missing where etcd closes a connection without a word.
    pub(super) fn hint(&self) -> &'static str {
        match &self.tls {
            None => " (if it speaks TLS, name its authority in TREFOIL_ETCD_CA)",
            Some(tls) if tls.identity.is_none() => {
                " (if it asks for certificates, name one in TREFOIL_ETCD_CERT and TREFOIL_ETCD_KEY)"
            }
            Some(_) => " (does it take the certificate of TREFOIL_ETCD_CERT? Its log says)",
        }
    }

    /// For the client of the etcd at `address`.
    pub(super) fn options(&self, address: &EtcdAddress) -> Result<EtcdOptions, ConfigStoreError> {
        let refuse = |reason: String| ConfigStoreError::Refused {
            address: address.to_string(),
            reason,
        };
        if self.tls.is_none() && !self.plaintext && !address.is_local() {
            return Err(refuse(format!(
                "it is not on this host, and no TLS is set up: name its authority in {AUTHORITY}; \
                 {PLAINTEXT}=yes goes without"
            )));
        }
        let mut options = EtcdOptions::new(address.members());
        options.tls.clone_from(&self.tls);
        if let Some((user, file)) = &self.user {
            options.credentials = Some(Credentials {
                user: user.clone(),
                password: password(file).map_err(refuse)?,
            });
        }
        Ok(options)
    }
}

/// The one line of a file that nobody else may read.
fn password(file: &Path) -> Result<String, String> {
    let shown = file.display();
    let fail = |error: std::io::Error| format!("cannot read the password file {shown}: {error}");
    let mode = std::fs::metadata(file).map_err(fail)?.mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(format!(
            "the password file {shown} has mode {mode:04o}: others must not read it (chmod 600)"
        ));
    }
    let text = std::fs::read_to_string(file).map_err(fail)?;
    let password = text.trim_end_matches(['\n', '\r']);
    match password.is_empty() || password.contains('\n') {
        true => Err(format!("the password file {shown} does not hold one line")),
        false => Ok(password.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    fn read(pairs: &[(&str, &str)]) -> Result<EtcdSettings, String> {
        let find = |name: &str| pairs.iter().find(|pair| pair.0 == name);
        EtcdSettings::read(|name| find(name).map(|pair| pair.1.into())).map_err(|e| e.to_string())
    }

    #[test]
    fn halves_are_refused() {
        for (pairs, hint) in [
            (&[(CERTIFICATE, "c")][..], "TREFOIL_ETCD_KEY is not"),
            (&[(KEY, "k")], "TREFOIL_ETCD_CERT is not"),
            (&[(CERTIFICATE, "c"), (KEY, "k")], "TREFOIL_ETCD_CA is not"),
            (&[(USER, "u")], "TREFOIL_ETCD_PASSWORD_FILE is not"),
            (&[(PASSWORD_FILE, "p")], "TREFOIL_ETCD_USER is not"),
            (&[(PLAINTEXT, "1")], "TREFOIL_ETCD_PLAINTEXT is not \"yes\""),
        ] {
            let error = read(pairs).unwrap_err();
            assert!(error.contains(hint), "{error}");
        }
        let nothing = read(&[(USER, ""), (AUTHORITY, "")]).unwrap();
        assert!(nothing.tls.is_none() && nothing.user.is_none() && !nothing.plaintext);
        assert!(read(&[(AUTHORITY, "a")]).unwrap().tls.is_some());
    }

    #[test]
    fn other_hosts_need_tls_or_a_word() {
        let far: EtcdAddress = "etcd://10.0.0.1:2379/c".parse().unwrap();
        let near: EtcdAddress = "etcd://127.0.0.1:2379/c".parse().unwrap();
        let nothing = EtcdSettings::default();
        assert!(nothing.options(&near).is_ok());
        let error = nothing.options(&far).unwrap_err().to_string();
        assert!(error.contains("TREFOIL_ETCD_CA"), "{error}");
        assert!(read(&[(PLAINTEXT, "yes")]).unwrap().options(&far).is_ok());
        assert!(read(&[(AUTHORITY, "a")]).unwrap().options(&far).is_ok());
    }

    #[test]
    fn passwords_are_for_their_user_alone() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("password");
        for (text, mode, expected) in [
            ("secret\n", 0o600, Ok("secret")),
            ("a b", 0o400, Ok("a b")),
            ("secret\n", 0o640, Err("mode 0640")),
            ("\n", 0o600, Err("one line")),
            ("a\nb\n", 0o600, Err("one line")),
        ] {
            let _ = std::fs::remove_file(&file);
            std::fs::write(&file, text).unwrap();
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
            match (password(&file), expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected),
                (Err(error), Err(hint)) => {
                    assert!(error.contains(hint) && !error.contains("secret"), "{error}");
                }
                other => panic!("{other:?}"),
            }
        }
    }
}
