//! How this process comes into etcd.
//!
//! By the environment, so that processes have it from whoever starts them, every command
//! takes the same, and no password stands in an address or on a command line.

use crate::error::EtcdError;
use crate::options::{Credentials, EtcdOptions, TlsFiles};
use std::ffi::OsString;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

const AUTHORITY: &str = "TREFOIL_ETCD_CA";
const CERTIFICATE: &str = "TREFOIL_ETCD_CERT";
const KEY: &str = "TREFOIL_ETCD_KEY";
const USER: &str = "TREFOIL_ETCD_USER";
const PASSWORD_FILE: &str = "TREFOIL_ETCD_PASSWORD_FILE";
const PLAINTEXT: &str = "TREFOIL_ETCD_PLAINTEXT";

/// Certificates, a user, and whether to go without.
#[derive(Clone, Debug, Default)]
pub struct EtcdAccess {
    /// TLS files; `None` for plaintext.
    pub tls: Option<TlsFiles>,
    /// User, and the file with the password.
    pub user: Option<(String, PathBuf)>,
    /// Plaintext also to other hosts.
    pub plaintext: bool,
}

impl EtcdAccess {
    /// As the environment says.
    ///
    /// # Errors
    /// A part of what belongs together is missing.
    pub fn from_environment() -> Result<Self, EtcdError> {
        Self::read(|name| std::env::var_os(name))
    }

    fn read(variable: impl Fn(&str) -> Option<OsString>) -> Result<Self, EtcdError> {
        let refuse = EtcdError::Settings;
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
        Ok(EtcdAccess {
            tls,
            user,
            plaintext,
        })
    }

    /// Files whose content counts: when one changes, it is read again.
    pub fn files(&self) -> Vec<PathBuf> {
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
    pub fn hint(&self) -> &'static str {
        match &self.tls {
            None => " (if it speaks TLS, name its authority in TREFOIL_ETCD_CA)",
            Some(tls) if tls.identity.is_none() => {
                " (if it asks for certificates, name one in TREFOIL_ETCD_CERT and TREFOIL_ETCD_KEY)"
            }
            Some(_) => " (does it take the certificate of TREFOIL_ETCD_CERT? Its log says)",
        }
    }

    /// For the client of an etcd with these members, each `host:port`.
    ///
    /// # Errors
    /// One of them is on another host, where nothing is sent in the clear without a word; the
    /// password's file does not do.
    pub fn options(&self, members: Vec<String>) -> Result<EtcdOptions, EtcdError> {
        let refuse = EtcdError::Settings;
        if self.tls.is_none() && !self.plaintext && !members.iter().all(|of| is_here(of)) {
            return Err(refuse(format!(
                "it is not on this host, and no TLS is set up: name its authority in {AUTHORITY}; \
                 {PLAINTEXT}=yes goes without"
            )));
        }
        let mut options = EtcdOptions::new(members);
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

/// Whether a `host:port` cannot be reached from another machine.
fn is_here(member: &str) -> bool {
    let host = member.rsplit_once(':').map_or(member, |(host, _)| host);
    let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
    let host = bare.unwrap_or(host);
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
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

    fn read(pairs: &[(&str, &str)]) -> Result<EtcdAccess, String> {
        let find = |name: &str| pairs.iter().find(|pair| pair.0 == name);
        EtcdAccess::read(|name| find(name).map(|pair| pair.1.into())).map_err(|e| e.to_string())
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
        let members = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect();
        let nothing = EtcdAccess::default();
        let near = ["127.0.0.1:2379", "[::1]:2379", "localhost:2379"];
        assert!(nothing.options(members(&near)).is_ok());
        for far in [
            &["10.0.0.1:2379"][..],
            &["127.0.0.1:2379", "etcd:2379"],
            &["[fd00::1]:2379"],
        ] {
            let error = nothing.options(members(far)).unwrap_err().to_string();
            assert!(error.contains("TREFOIL_ETCD_CA"), "{error}");
            let plain = read(&[(PLAINTEXT, "yes")]).unwrap();
            assert!(plain.options(members(far)).is_ok());
            let secret = read(&[(AUTHORITY, "a")]).unwrap();
            assert!(secret.options(members(far)).is_ok());
        }
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
