//! Why a directory's certificates cannot be used.

use crate::certificate::time_text;
use crate::file::FileError;
use crate::role::{Role, Roles};
use std::io;
use std::path::PathBuf;

/// What is wrong with a part's own certificates. Says what to do.
#[derive(Debug, thiserror::Error)]
pub enum CertError {
    /// One of the files.
    #[error(transparent)]
    File(#[from] FileError),
    /// Bytes that rustls, or this crate, cannot read.
    #[error("{path} holds a certificate or a key that cannot be used: {problem}")]
    Unusable {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A key of another certificate.
    #[error(
        "the key in {key} does not fit the certificate in {certificate}: put both of one `trefoil cell certs issue` there"
    )]
    KeyMismatch {
        /// The key's file.
        key: PathBuf,
        /// The certificate's file.
        certificate: PathBuf,
    },
    /// It was valid.
    #[error(
        "the certificate in {path} has expired: it was valid until {}; issue a new one (trefoil cell certs renew), or set this machine's clock right", time_text(*.ended_s)
    )]
    Expired {
        /// The certificate's file.
        path: PathBuf,
        /// Seconds since the Unix epoch.
        ended_s: i64,
    },
    /// It will be valid.
    #[error(
        "the certificate in {path} is not valid yet: it is valid from {}; wait until then, or set this machine's clock right", time_text(*.begins_s)
    )]
    NotYetValid {
        /// The certificate's file.
        path: PathBuf,
        /// Seconds since the Unix epoch.
        begins_s: i64,
    },
    /// Signed by none of those who are believed.
    #[error(
        "the certificate in {path} is of another authority than those in {authorities}: put both of one `trefoil cell certs issue` there"
    )]
    OtherAuthority {
        /// The certificate's file.
        path: PathBuf,
        /// The authorities' file.
        authorities: PathBuf,
    },
    /// It is nobody's in a cell.
    #[error(
        "the certificate in {path} names no role in a cell: issue one by `trefoil cell certs issue --role client|backend|admin` (an alternative name such as URI:urn:trefoil:role:client)"
    )]
    NoRole {
        /// The certificate's file.
        path: PathBuf,
    },
    /// A server with a client's certificate, for one.
    #[error(
        "the certificate in {path} has the role {has}, and {needed} is needed here: issue one by `trefoil cell certs issue --role {needed}`"
    )]
    WrongRole {
        /// The certificate's file.
        path: PathBuf,
        /// What it has.
        has: Roles,
        /// What it should have.
        needed: Role,
    },
}

impl CertError {
    /// Whether files that are being replaced one after another look like that.
    pub(crate) fn is_halfway(&self) -> bool {
        match self {
            CertError::KeyMismatch { .. } | CertError::OtherAuthority { .. } => true,
            CertError::File(FileError::Read { source, .. }) => {
                source.kind() == io::ErrorKind::NotFound
            }
            CertError::File(error) => matches!(
                error,
                FileError::Pem { .. } | FileError::NoCertificate(_) | FileError::NoKey(_)
            ),
            _ => false,
        }
    }
}
