//! What callers and servers tell each other beside the request: in gRPC
//! metadata, so that it works with any service.
//!
//! | key | with | value |
//! |---|---|---|
//! | `trefoil-version` | request, redirect | the assignment gone by, `incarnation.generation` |
//! | `trefoil-point` | request | the key's point, 16 hex digits |
//! | `trefoil-redirected` | request | `1`: this is the second attempt |
//! | `trefoil-redirect` | redirect | id of the server that has the key; empty if unknown |
//! | `trefoil-address` | redirect | where that one serves |
//! | `trefoil-assignment-bin` | redirect | the newer assignment, if it is attached |

use tonic::metadata::{Ascii, BinaryMetadataValue, MetadataMap, MetadataValue};
use tonic::{Code, Status};
use trefoil_coordination::{decode_assignment, encode_assignment};
use trefoil_sharder::{Assignment, AssignmentVersion, KeyPoint, ServerId};

const VERSION: &str = "trefoil-version";
const POINT: &str = "trefoil-point";
const REDIRECTED: &str = "trefoil-redirected";
const REDIRECT: &str = "trefoil-redirect";
const ADDRESS: &str = "trefoil-address";
const ASSIGNMENT: &str = "trefoil-assignment-bin";

/// Longest assignment that a redirect carries, encoded: servers refuse longer
/// headers. Those who need a longer one ask the assigner.
pub(crate) const ATTACHED_LEN_MAX: usize = 6 << 10;

/// What a caller says of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Routed {
    /// The newest assignment that he knows of, if any: a server that knows
    /// less learns it first.
    pub version: Option<AssignmentVersion>,
    /// Where the key lies.
    pub point: KeyPoint,
    /// He has been redirected: not again.
    pub redirected: bool,
}

impl Routed {
    /// What came with a request; `None` if it was not sent by a router, or by
    /// one that makes no sense.
    pub fn of(metadata: &MetadataMap) -> Option<Self> {
        let point = text(metadata, POINT)?;
        let point = KeyPoint(u64::from_str_radix(point, 16).ok()?);
        let version = match text(metadata, VERSION) {
            Some(version) => Some(parse_version(version)?),
            None => None,
        };
        Some(Routed {
            version,
            point,
            redirected: text(metadata, REDIRECTED) == Some("1"),
        })
    }

    /// Adds it to a request.
    pub fn apply(&self, metadata: &mut MetadataMap) {
        if let Some(version) = self.version {
            insert(metadata, VERSION, &show_version(version));
        }
        insert(metadata, POINT, &self.point.to_string());
        if self.redirected {
            insert(metadata, REDIRECTED, "1");
        }
    }
}

/// A server's answer for a key that it does not have.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Redirect {
    /// Who has it, if known.
    pub to: Option<ServerId>,
    /// Where that one serves, if known.
    pub address: Option<String>,
    /// By which assignment.
    pub version: Option<AssignmentVersion>,
    /// That assignment, for callers who know an older one. It is left out where
    /// it is too long for a header.
    pub assignment: Option<Assignment>,
}

impl Redirect {
    /// The status that says so. Its code is `ABORTED`: nothing was done.
    pub fn status(&self) -> Status {
        let mut metadata = MetadataMap::new();
        let to = self.to.map_or_else(String::new, |to| to.0.to_string());
        insert(&mut metadata, REDIRECT, &to);
        if let Some(address) = &self.address {
            insert(&mut metadata, ADDRESS, address);
        }
        if let Some(version) = self.version {
            insert(&mut metadata, VERSION, &show_version(version));
        }
        if let Some(assignment) = &self.assignment {
            let bytes = encode_assignment(assignment);
            if bytes.len() <= ATTACHED_LEN_MAX {
                metadata.insert_bin(ASSIGNMENT, BinaryMetadataValue::from_bytes(&bytes));
            }
        }
        Status::with_metadata(Code::Aborted, "another server has the key", metadata)
    }

    /// The redirect in a status, if it is one.
    pub fn of(status: &Status) -> Option<Self> {
        let metadata = status.metadata();
        let to = text(metadata, REDIRECT)?;
        let assignment = metadata
            .get_bin(ASSIGNMENT)
            .and_then(|value| value.to_bytes().ok())
            .and_then(|bytes| decode_assignment(&bytes).ok());
        Some(Redirect {
            to: to.parse().ok().map(ServerId),
            address: text(metadata, ADDRESS).map(str::to_owned),
            version: text(metadata, VERSION).and_then(parse_version),
            assignment,
        })
    }
}

fn text<'a>(metadata: &'a MetadataMap, key: &str) -> Option<&'a str> {
    metadata.get(key)?.to_str().ok()
}

fn insert(metadata: &mut MetadataMap, key: &'static str, value: &str) {
    // Addresses with characters that no header may have are left out.
    if let Ok(value) = value.parse::<MetadataValue<Ascii>>() {
        metadata.insert(key, value);
    }
}

fn show_version(version: AssignmentVersion) -> String {
    format!("{}.{}", version.incarnation, version.generation)
}

fn parse_version(text: &str) -> Option<AssignmentVersion> {
    let (incarnation, generation) = text.split_once('.')?;
    Some(AssignmentVersion {
        incarnation: incarnation.parse().ok()?,
        generation: generation.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const VERSION_7: AssignmentVersion = AssignmentVersion {
        incarnation: 2,
        generation: 7,
    };

    #[test]
    fn requests_there_and_back() {
        for (version, redirected) in [(None, false), (Some(VERSION_7), true)] {
            let routed = Routed {
                version,
                point: KeyPoint(0xab << 40),
                redirected,
            };
            let mut metadata = MetadataMap::new();
            routed.apply(&mut metadata);
            assert_eq!(Routed::of(&metadata), Some(routed));
        }
    }

    #[test]
    fn redirects_there_and_back() {
        let servers: Vec<ServerId> = (1..=3).map(ServerId).collect();
        let full = Redirect {
            to: Some(ServerId(3)),
            address: Some("h:1".to_owned()),
            version: Some(VERSION_7),
            assignment: Some(Assignment::even(VERSION_7, &servers, 10, 1)),
        };
        for redirect in [full.clone(), Redirect::default()] {
            assert_eq!(Redirect::of(&redirect.status()), Some(redirect));
        }
        let long = Redirect {
            assignment: Some(Assignment::even(VERSION_7, &servers, 1_000, 1)),
            ..full.clone()
        };
        let short = Redirect {
            assignment: None,
            ..full
        };
        assert_eq!(Redirect::of(&long.status()), Some(short));
        assert_eq!(Redirect::of(&Status::aborted("something else")), None);
    }

    #[test]
    fn nonsense_is_no_routing() {
        for (point, version) in [("xyz", "1.1"), ("00", "1"), ("00", "a.b"), ("", "1.1")] {
            let mut metadata = MetadataMap::new();
            insert(&mut metadata, POINT, point);
            insert(&mut metadata, VERSION, version);
            assert_eq!(Routed::of(&metadata), None, "{point} {version}");
        }
        assert_eq!(Routed::of(&MetadataMap::new()), None);
    }
}
