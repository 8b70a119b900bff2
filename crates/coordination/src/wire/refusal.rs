//! Refusals, as the details of a gRPC status.

use super::{version_from, version_to};
use crate::error::Refusal;
use crate::generated::v1::{self, refusal::Reason};
use prost::Message as _;
use tonic::{Code, Status};
use trefoil_sharder::ServerId;

/// The status that carries a refusal.
pub(crate) fn status_of(refusal: &Refusal) -> Status {
    let (code, reason) = match refusal.clone() {
        Refusal::NotLeading { address } => (
            Code::Unavailable,
            Some(Reason::NotLeading(v1::NotLeading {
                address: address.unwrap_or_default(),
            })),
        ),
        Refusal::Expired => (
            Code::FailedPrecondition,
            Some(Reason::Expired(v1::Expired {})),
        ),
        Refusal::Unknown => (
            Code::FailedPrecondition,
            Some(Reason::Unknown(v1::Unknown {})),
        ),
        Refusal::Superseded { by } => (
            Code::FailedPrecondition,
            Some(Reason::Superseded(v1::Superseded { by: by.0 })),
        ),
        Refusal::IdInUse { address } => (
            Code::AlreadyExists,
            Some(Reason::IdInUse(v1::IdInUse { address })),
        ),
        Refusal::Behind { store, seen } => (
            Code::FailedPrecondition,
            Some(Reason::Behind(v1::Behind {
                store: store.map(version_to),
                seen: Some(version_to(seen)),
            })),
        ),
        Refusal::UnknownCorpus { known } => (
            Code::NotFound,
            Some(Reason::UnknownCorpus(v1::UnknownCorpus { known })),
        ),
        Refusal::Invalid(reason) => (
            Code::InvalidArgument,
            Some(Reason::Invalid(v1::Invalid { reason })),
        ),
        Refusal::Store(_) => (Code::Unavailable, None),
    };
    let details = v1::Refusal { reason }.encode_to_vec();
    Status::with_details(code, refusal.to_string(), details.into())
}

/// The refusal in a status; `None` if it carries none: the assigner could not
/// be reached or failed.
pub(crate) fn refusal_from(status: &Status) -> Option<Refusal> {
    if status.details().is_empty() {
        return None;
    }
    let reason = v1::Refusal::decode(status.details()).ok()?.reason?;
    Some(match reason {
        Reason::NotLeading(v1::NotLeading { address }) => Refusal::NotLeading {
            address: Some(address).filter(|address| !address.is_empty()),
        },
        Reason::Expired(v1::Expired {}) => Refusal::Expired,
        Reason::Unknown(v1::Unknown {}) => Refusal::Unknown,
        Reason::Superseded(v1::Superseded { by }) => Refusal::Superseded { by: ServerId(by) },
        Reason::IdInUse(v1::IdInUse { address }) => Refusal::IdInUse { address },
        Reason::Behind(v1::Behind { store, seen }) => Refusal::Behind {
            store: store.map(version_from),
            seen: version_from(seen?),
        },
        Reason::UnknownCorpus(v1::UnknownCorpus { known }) => Refusal::UnknownCorpus { known },
        Reason::Invalid(v1::Invalid { reason }) => Refusal::Invalid(reason),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use trefoil_sharder::AssignmentVersion;

    #[test]
    fn there_and_back() {
        let version = AssignmentVersion::first_of(4);
        for refusal in [
            Refusal::NotLeading { address: None },
            Refusal::NotLeading {
                address: Some("h:1".to_owned()),
            },
            Refusal::Expired,
            Refusal::Unknown,
            Refusal::Superseded { by: ServerId(8) },
            Refusal::IdInUse {
                address: "h:2".to_owned(),
            },
            Refusal::Behind {
                store: None,
                seen: version,
            },
            Refusal::Behind {
                store: Some(version),
                seen: version.next(),
            },
            Refusal::UnknownCorpus {
                known: "a, b".to_owned(),
            },
            Refusal::Invalid("no".to_owned()),
        ] {
            let status = status_of(&refusal);
            assert_eq!(refusal_from(&status), Some(refusal.clone()), "{refusal}");
        }
        let store = Refusal::Store("etcd is away".to_owned());
        assert_eq!(refusal_from(&status_of(&store)), None);
        assert_eq!(status_of(&store).message(), "etcd is away");
    }
}
