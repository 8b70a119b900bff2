//! Requests of the data plane.

use super::{ContractError, decode_version, encode_version};
use crate::v1;
use bytes::Bytes;
use trefoil_layout::data::{DataEntry, EXPIRY_MS_MAX, ITEM_FLAGS_ALLOWED};
use trefoil_layout::limits::PARTITION_COUNT_MAX;
use trefoil_layout::op::{Action, Expected, Mutation};
use trefoil_layout::{TopologyId, Version};

/// Slots and names in one touch request, all partitions together, and partitions that have
/// none of either: bounded work per call.
pub const TOUCH_COUNT_MAX: usize = 65_536;

/// Touched items of one partition, as they arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touches<'a> {
    /// Which partition; below [`PARTITION_COUNT_MAX`], not necessarily one
    /// that the backend has.
    pub partition: usize,
    /// The index window that slots and names belong to.
    pub window_id: u64,
    /// Slot numbers, unchecked.
    pub slots: &'a [u32],
    /// Of keys whose slots are not known; unchecked.
    pub names: &'a [u32],
}

/// A mutation as a request to backend number `backend` under `topology`. Key
/// and value are copied.
pub fn encode_mutation(
    backend: u32,
    topology: TopologyId,
    mutation: &Mutation<'_>,
) -> v1::MutateRequest {
    let (action, expected) = match mutation.action {
        Action::Set => (v1::Action::Set, None),
        Action::Erase => (v1::Action::Erase, None),
        Action::Cas(Expected::Absent) => (v1::Action::Cas, None),
        Action::Cas(Expected::Version(version)) => (v1::Action::Cas, Some(version)),
        Action::Fill { .. } => (v1::Action::Fill, None),
    };
    let stamp = match mutation.action {
        Action::Fill { stamp } => stamp,
        _ => 0,
    };
    let entry = &mutation.entry;
    v1::MutateRequest {
        backend,
        config_id: topology.config_id,
        life: topology.life,
        action: action as i32,
        version: Some(encode_version(mutation.version)),
        expected: expected.map(encode_version),
        key: Bytes::copy_from_slice(entry.key),
        value: Bytes::copy_from_slice(entry.value),
        expiry_ms: entry.expiry_ms,
        client_flags: entry.client_flags,
        item_flags: u32::from(entry.item_flags),
        unique: entry.unique,
        stamp,
    }
}

/// A request as a mutation that borrows the request's bytes.
pub fn decode_mutation(request: &v1::MutateRequest) -> Result<Mutation<'_>, ContractError> {
    let version = request.version.ok_or(ContractError::Missing("version"))?;
    let version = decode_version(version);
    if version.is_zero() {
        return Err(ContractError::OutOfRange {
            field: "version",
            found: 0,
            why: "never issued",
        });
    }
    let action = decode_action(request)?;
    if request.expiry_ms > EXPIRY_MS_MAX {
        return Err(ContractError::OutOfRange {
            field: "expiry_ms",
            found: request.expiry_ms,
            why: "beyond 48 bits of milliseconds since 1970",
        });
    }
    let item_flags = u8::try_from(request.item_flags)
        .ok()
        .filter(|flags| flags & !ITEM_FLAGS_ALLOWED == 0)
        .ok_or(ContractError::OutOfRange {
            field: "item_flags",
            found: u64::from(request.item_flags),
            why: "more than the flags 1 (stale) and 2 (win given)",
        })?;
    if action == Action::Erase && !request.value.is_empty() {
        return Err(ContractError::Unexpected {
            field: "value",
            why: "an erase has none",
        });
    }
    Ok(Mutation {
        action,
        version,
        entry: DataEntry {
            expiry_ms: request.expiry_ms,
            client_flags: request.client_flags,
            item_flags,
            unique: request.unique,
            key: &request.key,
            value: &request.value,
        },
    })
}

fn decode_action(request: &v1::MutateRequest) -> Result<Action, ContractError> {
    let expected: Option<Version> = request.expected.map(decode_version);
    match (v1::Action::try_from(request.action), expected) {
        (Ok(v1::Action::Set), None) => Ok(Action::Set),
        (Ok(v1::Action::Erase), None) => Ok(Action::Erase),
        (Ok(v1::Action::Cas), None) => Ok(Action::Cas(Expected::Absent)),
        (Ok(v1::Action::Cas), Some(version)) => Ok(Action::Cas(Expected::Version(version))),
        (Ok(v1::Action::Fill), None) => Ok(Action::Fill {
            stamp: request.stamp,
        }),
        (Ok(v1::Action::Set | v1::Action::Erase | v1::Action::Fill), Some(_)) => {
            Err(ContractError::Unexpected {
                field: "expected",
                why: "only a CAS expects a version",
            })
        }
        (Ok(v1::Action::Unspecified), _) => Err(ContractError::Missing("action")),
        (Err(_), _) => Err(ContractError::unknown("action", request.action)),
    }
}

/// Touched items as a request to backend number `backend` of this life.
pub fn encode_touches(backend: u32, life: u64, touches: &[Touches<'_>]) -> v1::TouchRequest {
    let partitions = touches
        .iter()
        .map(|touches| v1::PartitionTouches {
            partition: touches.partition as u32,
            window_id: touches.window_id,
            slots: touches.slots.to_vec(),
            names: touches.names.to_vec(),
        })
        .collect();
    v1::TouchRequest {
        backend,
        partitions,
        life,
    }
}

/// A request as touched items; at most [`TOUCH_COUNT_MAX`] of them.
pub fn decode_touches(request: &v1::TouchRequest) -> Result<Vec<Touches<'_>>, ContractError> {
    let mut left = TOUCH_COUNT_MAX;
    let decode = |touches| decode_partition(touches, &mut left);
    request.partitions.iter().map(decode).collect()
}

fn decode_partition<'a>(
    touches: &'a v1::PartitionTouches,
    left: &mut usize,
) -> Result<Touches<'a>, ContractError> {
    let count = (touches.slots.len() + touches.names.len()).max(1);
    *left = left.checked_sub(count).ok_or(ContractError::OutOfRange {
        field: "slots",
        found: count as u64,
        why: "more than 65536 in one request, with partitions that have none",
    })?;
    let partition = touches.partition as usize;
    if partition >= PARTITION_COUNT_MAX {
        return Err(ContractError::OutOfRange {
            field: "partition",
            found: u64::from(touches.partition),
            why: "more than any backend has",
        });
    }
    Ok(Touches {
        partition,
        window_id: touches.window_id,
        slots: &touches.slots,
        names: &touches.names,
    })
}
