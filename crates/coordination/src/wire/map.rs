//! Assignments and changes: each server's id once, then places in that list.

use super::WireError;
use crate::generated::v1;
use std::collections::BTreeMap;
use trefoil_sharder::{
    AssignedSlice, Assignment, AssignmentDiff, AssignmentVersion, KeyPoint, POINTS, ServerId, Slice,
};

pub(crate) fn version_to(version: AssignmentVersion) -> v1::Version {
    v1::Version {
        incarnation: version.incarnation,
        generation: version.generation,
    }
}

pub(crate) fn version_from(version: v1::Version) -> AssignmentVersion {
    AssignmentVersion {
        incarnation: version.incarnation,
        generation: version.generation,
    }
}

/// Slices' owners, each id once.
#[derive(Default)]
struct Owners {
    servers: Vec<u64>,
    places: BTreeMap<ServerId, u32>,
    counts: Vec<u32>,
    owners: Vec<u32>,
}

impl Owners {
    fn of(slices: &[AssignedSlice]) -> Self {
        let mut table = Owners::default();
        for assigned in slices {
            table.counts.push(assigned.servers.len() as u32);
            for &server in &assigned.servers {
                let servers = &mut table.servers;
                let place = *table.places.entry(server).or_insert_with(|| {
                    servers.push(server.0);
                    servers.len() as u32 - 1
                });
                table.owners.push(place);
            }
        }
        table
    }
}

/// The owners of each slice again.
fn owners_from(
    servers: &[u64],
    counts: &[u32],
    owners: &[u32],
) -> Result<Vec<Vec<ServerId>>, WireError> {
    let mut rest = owners;
    let mut all = Vec::with_capacity(counts.len());
    for &count in counts {
        let Some((these, behind)) = rest.split_at_checked(count as usize) else {
            return Err(WireError::new("owners", "there are fewer than counted"));
        };
        rest = behind;
        let of_slice: Option<Vec<ServerId>> = these
            .iter()
            .map(|&place| servers.get(place as usize).map(|&id| ServerId(id)))
            .collect();
        all.push(of_slice.ok_or_else(|| WireError::new("owners", "one is not in the list"))?);
    }
    if !rest.is_empty() {
        return Err(WireError::new("owners", "there are more than counted"));
    }
    Ok(all)
}

pub(crate) fn assignment_to(assignment: &Assignment) -> v1::Assignment {
    let table = Owners::of(assignment.slices());
    v1::Assignment {
        version: Some(version_to(assignment.version())),
        servers: table.servers,
        starts: assignment
            .slices()
            .iter()
            .map(|assigned| assigned.slice.start().0)
            .collect(),
        owner_counts: table.counts,
        owners: table.owners,
    }
}

pub(crate) fn assignment_from(message: v1::Assignment) -> Result<Assignment, WireError> {
    let version = message
        .version
        .ok_or_else(|| WireError::new("version", "it is missing"))?;
    let owners = owners_from(&message.servers, &message.owner_counts, &message.owners)?;
    if owners.len() != message.starts.len() {
        return Err(WireError::new("owner_counts", "not one for each slice"));
    }
    let ends = message
        .starts
        .iter()
        .skip(1)
        .map(|&start| u128::from(start))
        .chain([POINTS]);
    let slices: Option<Vec<AssignedSlice>> = message
        .starts
        .iter()
        .zip(ends)
        .zip(owners)
        .map(|((&start, end), servers)| {
            Slice::new(KeyPoint(start), end).map(|slice| AssignedSlice { slice, servers })
        })
        .collect();
    let slices = slices.ok_or_else(|| WireError::new("starts", "they do not rise"))?;
    Assignment::new(version_from(version), slices)
        .map_err(|error| WireError::new("assignment", error))
}

pub(crate) fn diff_to(diff: &AssignmentDiff) -> v1::Diff {
    let table = Owners::of(&diff.changed);
    v1::Diff {
        from: Some(version_to(diff.from)),
        to: Some(version_to(diff.to)),
        servers: table.servers,
        starts: diff.changed.iter().map(|c| c.slice.start().0).collect(),
        lasts: diff.changed.iter().map(|c| c.slice.last().0).collect(),
        owner_counts: table.counts,
        owners: table.owners,
    }
}

pub(crate) fn diff_from(message: v1::Diff) -> Result<AssignmentDiff, WireError> {
    let missing = |field| move || WireError::new(field, "it is missing");
    let from = message.from.ok_or_else(missing("from"))?;
    let to = message.to.ok_or_else(missing("to"))?;
    let owners = owners_from(&message.servers, &message.owner_counts, &message.owners)?;
    if owners.len() != message.starts.len() || owners.len() != message.lasts.len() {
        return Err(WireError::new("owner_counts", "not one for each slice"));
    }
    let changed = message
        .starts
        .iter()
        .zip(&message.lasts)
        .zip(owners)
        .map(|((&start, &last), servers)| {
            Slice::new(KeyPoint(start), u128::from(last) + 1)
                .map(|slice| AssignedSlice { slice, servers })
                .ok_or_else(|| WireError::new("lasts", "a slice ends before it starts"))
        })
        .collect::<Result<_, _>>()?;
    Ok(AssignmentDiff {
        from: version_from(from),
        to: version_from(to),
        changed,
    })
}

#[cfg(test)]
mod tests {
    use super::super::{decode_assignment, decode_diff, encode_assignment, encode_diff};
    use super::*;

    fn even(generation: u64, servers: &[u64], replicas: usize) -> Assignment {
        let ids: Vec<ServerId> = servers.iter().map(|&id| ServerId(id)).collect();
        let version = AssignmentVersion {
            incarnation: 3,
            generation,
        };
        Assignment::even(version, &ids, 5, replicas)
    }

    #[test]
    fn there_and_back() {
        for assignment in [
            even(1, &[9], 1),
            even(7, &[1, u64::MAX, 5], 2),
            even(1, &[], 1),
        ] {
            let bytes = encode_assignment(&assignment);
            assert_eq!(decode_assignment(&bytes), Ok(assignment));
        }
        let (from, to) = (even(1, &[1, 2], 1), even(4, &[2, 3], 2));
        let diff = AssignmentDiff::between(&from, &to);
        assert_eq!(decode_diff(&encode_diff(&diff)), Ok(diff.clone()));
        assert_eq!(diff.apply(&from), Ok(to));
    }

    #[test]
    fn ten_bytes_for_a_slice() {
        let ids: Vec<u64> = (0..50).map(|i| (1 << 47) + i).collect();
        let assignment = even(1, &ids, 1);
        let bytes = encode_assignment(&assignment).len();
        assert!(bytes < 250 * 10 + 50 * 8 + 50, "{bytes} bytes");
    }

    #[test]
    fn what_is_no_map_is_refused_by_field() {
        let sound = assignment_to(&even(1, &[1, 2], 1));
        let field = |change: fn(&mut v1::Assignment)| {
            let mut message = sound.clone();
            change(&mut message);
            assignment_from(message).expect_err("it is broken").field
        };
        assert_eq!(field(|m| m.version = None), "version");
        assert_eq!(field(|m| m.owners.push(0)), "owners");
        assert_eq!(field(|m| m.owners.truncate(1)), "owners");
        assert_eq!(field(|m| m.owners[0] = 77), "owners");
        assert_eq!(field(|m| m.owner_counts[0] = u32::MAX), "owners");
        assert_eq!(field(|m| m.starts.truncate(1)), "owner_counts");
        assert_eq!(field(|m| m.starts[1] = 0), "starts");
        assert_eq!(field(|m| m.starts[0] = 1), "assignment");
        assert!(decode_assignment(b"\xff\xff\xff").is_err());
        assert!(decode_diff(b"\x08").is_err());
    }
}
