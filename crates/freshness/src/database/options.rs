//! What an address says of TLS. The library that reads the rest of it does not
//! know `verify-ca`, `verify-full` and files, so they are taken out first.
//!
//! The words are libpq's. As there, a file of authorities turns `require` into
//! `verify-ca`, and what goes through a Unix socket is not encrypted.

use super::DatabaseError;
use std::path::PathBuf;

/// How much of TLS is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TlsMode {
    /// None.
    Disable,
    /// If the server has it; on other hosts always.
    Prefer,
    /// Encryption; nobody asks who the server is.
    Require,
    /// A certificate of an authority that is believed.
    VerifyCa,
    /// The same, and for the name or address that is dialled.
    VerifyFull,
}

/// What an address says of TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TlsOptions {
    pub(super) mode: TlsMode,
    /// Authorities that are believed.
    pub(super) authorities: Option<PathBuf>,
    /// Our certificate and its key.
    pub(super) identity: Option<(PathBuf, PathBuf)>,
}

const MODE: &str = "sslmode";
const AUTHORITIES: &str = "sslrootcert";
const CERTIFICATE: &str = "sslcert";
const KEY: &str = "sslkey";

impl TlsMode {
    pub(super) fn text(self) -> &'static str {
        match self {
            TlsMode::Disable => "disable",
            TlsMode::Prefer => "prefer",
            TlsMode::Require => "require",
            TlsMode::VerifyCa => "verify-ca",
            TlsMode::VerifyFull => "verify-full",
        }
    }

    fn read(text: &str) -> Result<Self, DatabaseError> {
        use TlsMode::{Disable, Prefer, Require, VerifyCa, VerifyFull};
        let modes = [Disable, Prefer, Require, VerifyCa, VerifyFull];
        let found = modes.into_iter().find(|mode| mode.text() == text);
        found.ok_or_else(|| DatabaseError::TlsOption {
            option: MODE,
            problem: "write disable, prefer, require, verify-ca or verify-full".into(),
        })
    }
}

/// Values of the four words above.
#[derive(Default)]
struct Words {
    mode: Option<String>,
    authorities: Option<String>,
    certificate: Option<String>,
    key: Option<String>,
}

impl Words {
    fn slot(&mut self, name: &str) -> Option<&mut Option<String>> {
        Some(match name {
            MODE => &mut self.mode,
            AUTHORITIES => &mut self.authorities,
            CERTIFICATE => &mut self.certificate,
            KEY => &mut self.key,
            _ => return None,
        })
    }

    fn judge(self) -> Result<TlsOptions, DatabaseError> {
        let wrong = |option, problem: &str| {
            Err(DatabaseError::TlsOption {
                option,
                problem: problem.into(),
            })
        };
        let file = |text: Option<String>| text.filter(|t| !t.is_empty()).map(PathBuf::from);
        let mode = self.mode.as_deref().map(TlsMode::read).transpose()?;
        let mut mode = mode.unwrap_or(TlsMode::Prefer);
        let authorities = file(self.authorities);
        if authorities
            .as_ref()
            .is_some_and(|of| of.as_os_str() == "system")
        {
            return wrong(
                AUTHORITIES,
                "\"system\" is not served: name the file that has the system's authorities \
                 (/etc/ssl/certs/ca-certificates.crt on Debian)",
            );
        }
        if mode == TlsMode::Require && authorities.is_some() {
            mode = TlsMode::VerifyCa;
        }
        if matches!(mode, TlsMode::VerifyCa | TlsMode::VerifyFull) && authorities.is_none() {
            return wrong(
                MODE,
                "verify-ca and verify-full need sslrootcert=FILE: the authorities that are \
                 believed, in PEM",
            );
        }
        let identity = match (file(self.certificate), file(self.key)) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            (Some(_), None) => return wrong(KEY, "missing: sslcert is there, give both"),
            (None, Some(_)) => return wrong(CERTIFICATE, "missing: sslkey is there, give both"),
        };
        Ok(TlsOptions {
            mode,
            authorities,
            identity,
        })
    }
}

/// What an address says of TLS, and the rest of it. A text that is no address
/// may come back as it was: whoever reads the rest finds that out.
pub(super) fn take(text: &str) -> Result<(String, TlsOptions), DatabaseError> {
    let mut words = Words::default();
    let is_url = ["postgres://", "postgresql://"]
        .iter()
        .any(|scheme| text.starts_with(scheme));
    let rest = match is_url {
        true => from_url(text, &mut words),
        false => from_pairs(text, &mut words),
    };
    let rest = rest.ok_or(DatabaseError::Address)?;
    Ok((rest, words.judge()?))
}

fn from_url(text: &str, words: &mut Words) -> Option<String> {
    let host = text.find("://")? + 3;
    // A password may hold a question mark.
    let host = match text[host..].find(['@', '/']) {
        Some(at) if text[host + at..].starts_with('@') => host + at,
        _ => host,
    };
    let Some(query) = text[host..].find('?').map(|at| host + at) else {
        return Some(text.into());
    };
    let mut left = Vec::new();
    for parameter in text[query + 1..].split('&') {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        match words.slot(&decode(name)?) {
            Some(slot) => *slot = Some(decode(value)?),
            None => left.push(parameter),
        }
    }
    let mut rest = text[..query].to_owned();
    if left.iter().any(|parameter| !parameter.is_empty()) {
        rest = format!("{rest}?{}", left.join("&"));
    }
    Some(rest)
}

/// Takes `%2F` for a slash, and so on.
fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut parts = text.split('%');
    bytes.extend(parts.next()?.bytes());
    for part in parts {
        let code = part.get(..2)?;
        if !code.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        bytes.push(u8::from_str_radix(code, 16).ok()?);
        bytes.extend(part[2..].bytes());
    }
    String::from_utf8(bytes).ok()
}

fn from_pairs(text: &str, words: &mut Words) -> Option<String> {
    let mut rest = String::new();
    let mut left = text.trim_start();
    while !left.is_empty() {
        let (name, after) = left.split_once('=')?;
        let (value, length) = value(after)?;
        match words.slot(name.trim_end()) {
            Some(slot) => *slot = Some(value),
            None => {
                let end = left.len() - after.len() + length;
                rest.push_str(&left[..end]);
                rest.push(' ');
            }
        }
        left = after[length..].trim_start();
    }
    Some(rest)
}

/// The value at the beginning of a text, and where it ends.
fn value(text: &str) -> Option<(String, usize)> {
    let trimmed = text.trim_start();
    let begin = text.len() - trimmed.len();
    let quoted = trimmed.starts_with('\'');
    let mut value = String::new();
    let mut chars = trimmed.char_indices().skip(usize::from(quoted));
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => value.push(chars.next()?.1),
            '\'' if quoted => return Some((value, begin + at + 1)),
            c if !quoted && c.is_whitespace() => return Some((value, begin + at)),
            c => value.push(c),
        }
    }
    (!quoted).then_some((value, text.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(
        mode: TlsMode,
        authorities: Option<&str>,
        identity: Option<(&str, &str)>,
    ) -> TlsOptions {
        TlsOptions {
            mode,
            authorities: authorities.map(PathBuf::from),
            identity: identity.map(|(one, other)| (one.into(), other.into())),
        }
    }

    #[test]
    fn both_forms() {
        use TlsMode::{Disable, Prefer, Require, VerifyCa, VerifyFull};
        let plain = options(Prefer, None, None);
        for (text, rest, expected) in [
            ("host=a user=b", "host=a user=b ", plain.clone()),
            ("postgres://b@a/c", "postgres://b@a/c", plain.clone()),
            (
                "postgres://b:p?sslmode=x@a/c?application_name=d",
                "postgres://b:p?sslmode=x@a/c?application_name=d",
                plain,
            ),
            (
                "postgres://b@a/c?sslmode=disable&application_name=d%20e",
                "postgres://b@a/c?application_name=d%20e",
                options(Disable, None, None),
            ),
            (
                "postgresql://a?user=b&sslrootcert=%2Fr%40%2fs&sslmode=verify-full",
                "postgresql://a?user=b",
                options(VerifyFull, Some("/r@/s"), None),
            ),
            (
                "host = a sslmode = 'require' password='it\\'s sslmode=x' user=b",
                "host = a password='it\\'s sslmode=x' user=b ",
                options(Require, None, None),
            ),
            (
                "sslcert=/a\\ b sslkey='/c d' sslmode=require sslrootcert=/e host=f",
                "host=f ",
                options(VerifyCa, Some("/e"), Some(("/a b", "/c d"))),
            ),
            // As with libpq, the last one counts.
            (
                "sslmode=verify-full sslmode=disable",
                "",
                options(Disable, None, None),
            ),
        ] {
            let found = take(text).expect(text);
            assert_eq!(found, (rest.to_owned(), expected), "{text}");
        }
    }

    #[test]
    fn what_makes_no_sense() {
        for (text, option, hint) in [
            ("sslmode=allow", MODE, "write disable"),
            ("sslmode=''", MODE, "write disable"),
            ("sslmode=verify-full", MODE, "need sslrootcert"),
            ("sslmode=verify-ca sslrootcert=''", MODE, "need sslrootcert"),
            (
                "sslrootcert=system sslmode=verify-full",
                AUTHORITIES,
                "name the file",
            ),
            ("sslcert=/a", KEY, "give both"),
            ("postgres://a@b?sslkey=/a", CERTIFICATE, "give both"),
        ] {
            match take(text) {
                Err(DatabaseError::TlsOption {
                    option: found,
                    problem,
                }) => {
                    assert_eq!(found, option, "{text}");
                    assert!(problem.contains(hint), "{text}: {problem}");
                }
                other => panic!("{text}: {other:?}"),
            }
        }
        for text in [
            "nonsense",
            "sslmode='open",
            "a=b\\",
            "postgres://a?sslmode=%zz",
        ] {
            assert!(matches!(take(text), Err(DatabaseError::Address)), "{text}");
        }
    }
}
