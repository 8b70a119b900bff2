//! What is read out of a certificate (X.509, RFC 5280): serial number, validity,
//! names and roles.
//!
//! Whether it is to be believed is rustls' to say. This reads further what rustls
//! keeps to itself; it never panics, whatever the bytes are.

use crate::corpora::{self, Corpora};
use crate::role::{Role, Roles};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What a certificate says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// Serial number, in hexadecimal digits.
    pub serial: String,
    /// Its subject's common name; empty if it has none.
    pub name: String,
    /// Seconds since the Unix epoch, from when it is valid.
    pub begins_s: i64,
    /// The same, until when.
    pub ends_s: i64,
    /// Host names and addresses that it is for.
    pub hosts: Vec<String>,
    /// What its owner is to a cell.
    pub roles: Roles,
    /// The linked store's corpora that its owner has to do with.
    pub corpora: Corpora,
    /// Whether it may sign others.
    pub is_authority: bool,
}

impl Certificate {
    /// Reads one; `None` if the bytes are none.
    pub fn parse(der: &[u8]) -> Option<Certificate> {
        let mut signed = Der(Der(der).expect(SEQUENCE)?);
        let mut fields = Der(signed.expect(SEQUENCE)?);
        fields.skip(VERSION);
        let serial = fields.expect(INTEGER)?;
        let _algorithm = fields.expect(SEQUENCE)?;
        let _issuer = fields.expect(SEQUENCE)?;
        let mut validity = Der(fields.expect(SEQUENCE)?);
        let begins_s = time(validity.next()?)?;
        let ends_s = time(validity.next()?)?;
        let subject = fields.expect(SEQUENCE)?;
        let _key = fields.expect(SEQUENCE)?;
        let mut certificate = Certificate {
            serial: serial.iter().map(|byte| format!("{byte:02x}")).collect(),
            name: common_name(subject).unwrap_or_default(),
            begins_s,
            ends_s,
            hosts: Vec::new(),
            roles: Roles::default(),
            corpora: Corpora::default(),
            is_authority: false,
        };
        while let Some((tag, bytes)) = fields.next() {
            if tag == EXTENSIONS {
                let mut extensions = Der(Der(bytes).expect(SEQUENCE)?);
                while !extensions.0.is_empty() {
                    certificate.extend(extensions.expect(SEQUENCE)?)?;
                }
            }
        }
        Some(certificate)
    }

    /// Seconds until it ends; negative once it has.
    pub fn left_s(&self, now: SystemTime) -> i64 {
        self.ends_s - unix_s(now)
    }

    fn extend(&mut self, extension: &[u8]) -> Option<()> {
        let mut fields = Der(extension);
        let id = fields.expect(OBJECT_ID)?;
        fields.skip(BOOLEAN);
        let value = fields.expect(OCTETS)?;
        if id == ALTERNATIVE_NAMES {
            let mut names = Der(Der(value).expect(SEQUENCE)?);
            while !names.0.is_empty() {
                let (tag, bytes) = names.next()?;
                match tag {
                    DNS_NAME => self.hosts.push(text(bytes)),
                    IP_ADDRESS => self.hosts.extend(ip(bytes).map(|ip| ip.to_string())),
                    URI => {
                        let uri = text(bytes);
                        if let Some(role) = Role::of_urn(&uri) {
                            self.roles.insert(role);
                        } else if let Some(corpus) = corpora::of_urn(&uri) {
                            self.corpora.insert(corpus);
                        }
                    }
                    _ => {}
                }
            }
        } else if id == BASIC_CONSTRAINTS {
            let mut constraints = Der(Der(value).expect(SEQUENCE)?);
            let is_authority = constraints.expect(BOOLEAN);
            self.is_authority = is_authority.is_some_and(|value| value != [0]);
        }
        Some(())
    }
}

/// Seconds since the Unix epoch.
pub(crate) fn unix_s(now: SystemTime) -> i64 {
    let since = now.duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs() as i64)
}

/// A moment for people, in UTC.
pub fn time_text(unix_s: i64) -> String {
    let moment = UNIX_EPOCH + Duration::from_secs(unix_s.max(0) as u64);
    let text = humantime::format_rfc3339_seconds(moment).to_string();
    text.replace('T', " ").replace('Z', " UTC")
}

const BOOLEAN: u8 = 0x01;
const INTEGER: u8 = 0x02;
const OCTETS: u8 = 0x04;
const OBJECT_ID: u8 = 0x06;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const VERSION: u8 = 0xa0;
const EXTENSIONS: u8 = 0xa3;
const DNS_NAME: u8 = 0x82;
const URI: u8 = 0x86;
const IP_ADDRESS: u8 = 0x87;
/// 2.5.4.3
const COMMON_NAME: [u8; 3] = [0x55, 0x04, 0x03];
/// 2.5.29.17
const ALTERNATIVE_NAMES: [u8; 3] = [0x55, 0x1d, 0x11];
/// 2.5.29.19
const BASIC_CONSTRAINTS: [u8; 3] = [0x55, 0x1d, 0x13];

/// Elements in a row, as DER (X.690) writes them: tag, length, contents.
struct Der<'a>(&'a [u8]);

impl<'a> Der<'a> {
    fn next(&mut self) -> Option<(u8, &'a [u8])> {
        let (&tag, rest) = self.0.split_first()?;
        let (&first, mut rest) = rest.split_first()?;
        let mut len = usize::from(first);
        if first >= 0x80 {
            // In so many bytes: two suffice for 64 KiB, four for any certificate.
            let count = usize::from(first & 0x7f);
            if !(1..=4).contains(&count) {
                return None;
            }
            let (bytes, after) = rest.split_at_checked(count)?;
            len = bytes
                .iter()
                .fold(0, |len, byte| len << 8 | usize::from(*byte));
            rest = after;
        }
        let (contents, rest) = rest.split_at_checked(len)?;
        self.0 = rest;
        Some((tag, contents))
    }

    /// The next one's contents if it is of this kind; else it stays.
    fn expect(&mut self, wanted: u8) -> Option<&'a [u8]> {
        let mut ahead = Der(self.0);
        let (tag, contents) = ahead.next()?;
        if tag != wanted {
            return None;
        }
        self.0 = ahead.0;
        Some(contents)
    }

    /// Passes over one that may be left out.
    fn skip(&mut self, optional: u8) {
        let _ = self.expect(optional);
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn common_name(subject: &[u8]) -> Option<String> {
    let mut sets = Der(subject);
    while let Some(set) = sets.expect(SET) {
        let mut pair = Der(Der(set).expect(SEQUENCE)?);
        if pair.expect(OBJECT_ID)? == COMMON_NAME {
            return pair.next().map(|(_, bytes)| text(bytes));
        }
    }
    None
}

fn ip(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(|octets| Ipv4Addr::from(octets).into());
    let v6 = <[u8; 16]>::try_from(bytes).map(|octets| Ipv6Addr::from(octets).into());
    v4.or(v6).ok()
}

/// `YYMMDDHHMMSSZ` or `YYYYMMDDHHMMSSZ` as seconds since the Unix epoch.
fn time((tag, bytes): (u8, &[u8])) -> Option<i64> {
    let digits = bytes.strip_suffix(b"Z")?;
    if !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number = |digits: &[u8]| {
        let digit = |number: i64, digit: &u8| number * 10 + i64::from(digit - b'0');
        digits.iter().fold(0, digit)
    };
    let (year, rest) = match (tag, digits.len()) {
        // RFC 5280, 4.1.2.5.1
        (UTC_TIME, 12) => match number(&digits[..2]) {
            year @ 0..50 => (2000 + year, &digits[2..]),
            year => (1900 + year, &digits[2..]),
        },
        (GENERALIZED_TIME, 14) => (number(&digits[..4]), &digits[4..]),
        _ => return None,
    };
    let [month, day, hour, minute, second] =
        [0, 2, 4, 6, 8].map(|from| number(&rest[from..from + 2]));
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let days = days_since_epoch(year, month, day);
    Some(((days * 24 + hour) * 60 + minute) * 60 + second)
}

/// Days from 1970-01-01 to a date of the Gregorian calendar. Years begin in March
/// here, so that a leap day is their last.
fn days_since_epoch(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let month = (month + 9) % 12;
    let of_year = (153 * month + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, KeyPair, SanType};

    fn made() -> (Vec<u8>, CertificateParams) {
        let hosts = ["db1.example", "10.0.0.5", "fd00::5"].map(str::to_owned);
        let mut params = CertificateParams::new(hosts).unwrap();
        params.distinguished_name.push(DnType::CommonName, "db1");
        params
            .distinguished_name
            .push(DnType::OrganizationName, "example");
        let urn = Role::Backend.urn().try_into().unwrap();
        params.subject_alt_names.push(SanType::URI(urn));
        let urn = corpora::urn("mail").try_into().unwrap();
        params.subject_alt_names.push(SanType::URI(urn));
        params.serial_number = Some(vec![0x12, 0xab].into());
        params.not_before = rcgen::date_time_ymd(2026, 2, 28);
        params.not_after = rcgen::date_time_ymd(2052, 3, 1);
        let key = KeyPair::generate().unwrap();
        (params.self_signed(&key).unwrap().der().to_vec(), params)
    }

    #[test]
    fn what_was_put_into_a_certificate_is_read_out_of_it() {
        let (der, params) = made();
        let certificate = Certificate::parse(&der).unwrap();
        assert_eq!(certificate.serial, "12ab");
        assert_eq!(certificate.name, "db1");
        // Either way of writing a year.
        assert_eq!(certificate.begins_s, params.not_before.unix_timestamp());
        assert_eq!(certificate.ends_s, params.not_after.unix_timestamp());
        assert_eq!(certificate.hosts, ["db1.example", "10.0.0.5", "fd00::5"]);
        assert_eq!(certificate.roles, Roles::of(false, true, false));
        assert!(certificate.corpora.has("mail") && !certificate.corpora.has("news"));
        assert!(!certificate.is_authority);
        let now = UNIX_EPOCH + Duration::from_secs(certificate.ends_s as u64 + 5);
        assert_eq!(certificate.left_s(now), -5);
    }

    #[test]
    fn an_authority_is_told_from_the_others() {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let made = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        let certificate = Certificate::parse(made.der()).unwrap();
        assert!(certificate.is_authority);
        assert!(certificate.roles.is_empty() && certificate.hosts.is_empty());
    }

    #[test]
    fn days_are_those_of_the_calendar() {
        for (date, days) in [
            ((1970, 1, 1), 0),
            ((1969, 12, 31), -1),
            ((2000, 2, 29), 11_016),
            ((2000, 3, 1), 11_017),
            ((2026, 11, 23), 20_780),
        ] {
            assert_eq!(days_since_epoch(date.0, date.1, date.2), days, "{date:?}");
        }
        assert_eq!(time_text(20_780 * 86_400 + 61), "2026-11-23 00:01:01 UTC");
    }

    /// Any byte changed, and any end cut off: something or nothing is read, and
    /// nothing panics.
    #[test]
    fn broken_bytes_are_no_certificate_or_another_one() {
        let (der, _) = made();
        for len in 0..der.len() {
            assert!(Certificate::parse(&der[..len]).is_none(), "{len}");
        }
        let mut broken = der.clone();
        for place in 0..der.len() {
            for value in [0x00, 0x01, 0x30, 0x7f, 0x80, 0x84, 0xff] {
                broken[place] = value;
                let _ = Certificate::parse(&broken);
            }
            broken[place] = der[place];
        }
    }
}
