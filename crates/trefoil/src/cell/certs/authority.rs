//! Makes keys and certificates.

use super::folder::Folder;
use crate::failure::Failure;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, SanType,
};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use trefoil_tls::{Certificate, Corpora, Role, Roles, corpus_urn};

/// Clocks of machines differ: a certificate is valid from a little before its making.
const BACKDATED: Duration = Duration::from_secs(600);
/// Longest validity that may be asked for.
const DAYS_MAX: u32 = 36_500;

/// A certificate and its key, in PEM.
pub(super) struct Made {
    pub certificate: String,
    pub key: String,
}

/// What a certificate is to say.
pub(super) struct Wanted {
    pub name: String,
    pub hosts: Vec<String>,
    pub roles: Roles,
    pub corpora: Corpora,
    pub days: u32,
}

/// A new authority. A part of its key's digest is in its name: two authorities of one
/// name would look alike to those who have to tell whose certificate they see.
pub(super) fn make(name: &str, days: u32) -> Result<Made, Failure> {
    if name.is_empty() || name.len() > 64 {
        return Err(Failure::Usage("--name: give 1 to 64 characters".into()));
    }
    let key = KeyPair::generate().map_err(Failure::of)?;
    let mut params = CertificateParams::default();
    let digest = params.key_identifier(&key);
    let mark: String = digest[..4]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    params.distinguished_name = common_name(&format!("{name} authority {mark}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    validity(&mut params, days, None)?;
    let certificate = params.self_signed(&key).map_err(Failure::of)?;
    Ok(Made {
        certificate: certificate.pem(),
        key: key.serialize_pem(),
    })
}

/// An authority that can issue.
pub(super) struct Authority {
    certificate: Certificate,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// The one in this directory.
    pub(super) fn open(folder: &Folder) -> Result<Self, Failure> {
        let certificate = folder.authority()?;
        let key = KeyPair::from_pem(&folder.authority_key()?)
            .map_err(|error| Failure::doing(folder.authority_key_path().display(), error))?;
        // Only what an issuer's name and key identifier come from.
        let mut params = CertificateParams::default();
        params.distinguished_name = common_name(&certificate.name);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        Ok(Authority {
            certificate,
            issuer: Issuer::new(params, key),
        })
    }

    pub(super) fn certificate(&self) -> &Certificate {
        &self.certificate
    }

    /// Issues a certificate with a new key.
    pub(super) fn issue(&self, wanted: &Wanted) -> Result<Made, Failure> {
        let bad = |host: &str| {
            Failure::Usage(format!(
                "--host {host}: give a name or an address, without a port"
            ))
        };
        let unfit = |host: &&String| host.is_empty() || host.contains(['/', ' ', '[', '*']);
        if let Some(host) = wanted.hosts.iter().find(unfit) {
            return Err(bad(host));
        }
        let is_port =
            |host: &&String| host.contains(':') && host.parse::<std::net::Ipv6Addr>().is_err();
        if let Some(host) = wanted.hosts.iter().find(is_port) {
            return Err(bad(host));
        }
        // Names and addresses are told apart there.
        let mut params = CertificateParams::new(wanted.hosts.clone()).map_err(Failure::of)?;
        params.distinguished_name = common_name(&wanted.name);
        for role in wanted.roles.iter() {
            let urn = role.urn().try_into().map_err(Failure::of)?;
            params.subject_alt_names.push(SanType::URI(urn));
        }
        for corpus in wanted.corpora.iter() {
            let bad = |_| Failure::Usage(format!("--corpus {corpus}: ASCII only"));
            let urn = corpus_urn(corpus).try_into().map_err(bad)?;
            params.subject_alt_names.push(SanType::URI(urn));
        }
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        // Only backends answer; they also ask each other.
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        if wanted.roles.has(Role::Backend) {
            params
                .extended_key_usages
                .push(ExtendedKeyUsagePurpose::ServerAuth);
        }
        params.use_authority_key_identifier_extension = true;
        validity(&mut params, wanted.days, Some(self.certificate.ends_s))?;
        let key = KeyPair::generate().map_err(Failure::of)?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(Failure::of)?;
        Ok(Made {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        })
    }
}

fn common_name(name: &str) -> DistinguishedName {
    let mut names = DistinguishedName::new();
    names.push(DnType::CommonName, name);
    names
}

/// From now, for so many days, and no longer than its authority is valid.
fn validity(
    params: &mut CertificateParams,
    days: u32,
    authority_ends_s: Option<i64>,
) -> Result<(), Failure> {
    if !(1..=DAYS_MAX).contains(&days) {
        return Err(Failure::Usage(format!(
            "--days {days}: choose 1 to {DAYS_MAX}"
        )));
    }
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_err(Failure::of)?;
    let mut ends = now + Duration::from_secs(u64::from(days) * 86_400);
    if let Some(ends_s) = authority_ends_s {
        let authority_ends = Duration::from_secs(ends_s.max(0) as u64);
        if authority_ends <= now {
            return Err(Failure::Failed(
                "the authority has ended: make another one (trefoil cell certs init), and have \
                 both believed while certificates are replaced (see docs/security.md)"
                    .into(),
            ));
        }
        ends = ends.min(authority_ends);
    }
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    params.not_before = epoch + now.saturating_sub(BACKDATED);
    params.not_after = epoch + ends;
    Ok(())
}
