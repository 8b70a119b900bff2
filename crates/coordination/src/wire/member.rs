//! Members and the switch for deployments.

use super::WireError;
use crate::generated::v1;
use crate::limits::{ADDRESS_LEN_MAX, COPIES_MIN_MAX, LEASE_MAX, LEASE_MIN};
use crate::view::ServerInfo;
use std::time::Duration;
use trefoil_sharder::{Capacity, Freeze, MemberState, ServerId};

/// A member as it is stored and told.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MemberRecord {
    pub(crate) id: ServerId,
    /// Which life of a process it is: an id alone may be chosen twice.
    pub(crate) life: u64,
    pub(crate) info: ServerInfo,
}

pub(crate) fn state_to(state: MemberState) -> v1::MemberState {
    match state {
        MemberState::Serving => v1::MemberState::Serving,
        MemberState::Frozen => v1::MemberState::Frozen,
        MemberState::Draining => v1::MemberState::Draining,
    }
}

pub(crate) fn state_from(state: i32) -> Result<MemberState, WireError> {
    match v1::MemberState::try_from(state) {
        Ok(v1::MemberState::Serving) => Ok(MemberState::Serving),
        Ok(v1::MemberState::Frozen) => Ok(MemberState::Frozen),
        Ok(v1::MemberState::Draining) => Ok(MemberState::Draining),
        Ok(v1::MemberState::Unspecified) | Err(_) => {
            Err(WireError::new("state", format!("{state} is no state")))
        }
    }
}

pub(crate) fn member_to(record: &MemberRecord) -> v1::Server {
    v1::Server {
        id: record.id.0,
        life: record.life,
        address: record.info.address.clone(),
        cpu: record.info.capacity.cpu,
        bytes: record.info.capacity.bytes,
        state: state_to(record.info.state).into(),
        copies_min: u32::try_from(record.info.copies_min).unwrap_or(u32::MAX),
    }
}

pub(crate) fn member_from(message: v1::Server) -> Result<MemberRecord, WireError> {
    let length = message.address.len();
    if length == 0 || length > ADDRESS_LEN_MAX {
        return Err(WireError::new(
            "address",
            format!("it has {length} bytes; 1 to {ADDRESS_LEN_MAX} are allowed"),
        ));
    }
    if !(message.cpu > 0.0 && message.cpu.is_finite()) || message.bytes == 0 {
        return Err(WireError::new(
            "capacity",
            "both CPU and memory have to be above 0",
        ));
    }
    let copies_min = message.copies_min.max(1) as usize;
    if copies_min > COPIES_MIN_MAX {
        return Err(WireError::new(
            "copies_min",
            format!("{copies_min} are asked for; at most {COPIES_MIN_MAX} are allowed"),
        ));
    }
    Ok(MemberRecord {
        id: ServerId(message.id),
        life: message.life,
        info: ServerInfo {
            address: message.address,
            capacity: Capacity {
                cpu: message.cpu,
                bytes: message.bytes,
            },
            state: state_from(message.state)?,
            copies_min,
        },
    })
}

/// A length as it is stored and told, rounded up.
pub(crate) fn lease_to(lease: Duration) -> u64 {
    u64::try_from(lease.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// The same, if anybody grants such a lease.
pub(crate) fn lease_from(field: &'static str, lease_ms: u64) -> Result<Duration, WireError> {
    let lease = Duration::from_millis(lease_ms);
    match (LEASE_MIN..=LEASE_MAX).contains(&lease) {
        true => Ok(lease),
        false => Err(WireError::new(
            field,
            format!(
                "no lease is of {lease_ms} ms: the shortest is of {} ms, the longest of {} s",
                LEASE_MIN.as_millis(),
                LEASE_MAX.as_secs()
            ),
        )),
    }
}

pub(crate) fn freeze_to(freeze: Freeze) -> v1::FreezeMode {
    match freeze {
        Freeze::Off => v1::FreezeMode::Off,
        Freeze::OnlyDead => v1::FreezeMode::OnlyDead,
        Freeze::All => v1::FreezeMode::All,
    }
}

pub(crate) fn freeze_from(mode: i32) -> Result<Freeze, WireError> {
    match v1::FreezeMode::try_from(mode) {
        Ok(v1::FreezeMode::Off) => Ok(Freeze::Off),
        Ok(v1::FreezeMode::OnlyDead) => Ok(Freeze::OnlyDead),
        Ok(v1::FreezeMode::All) => Ok(Freeze::All),
        Ok(v1::FreezeMode::Unspecified) | Err(_) => {
            Err(WireError::new("mode", format!("{mode} is no mode")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back_and_nonsense() {
        for state in [
            MemberState::Serving,
            MemberState::Frozen,
            MemberState::Draining,
        ] {
            let record = MemberRecord {
                id: ServerId(4),
                life: 5,
                info: ServerInfo {
                    address: "h:1".to_owned(),
                    capacity: Capacity { cpu: 2.5, bytes: 7 },
                    state,
                    copies_min: 2,
                },
            };
            let message = member_to(&record);
            assert_eq!(member_from(message.clone()), Ok(record));
            let broken = |change: fn(&mut v1::Server)| {
                let mut message = message.clone();
                change(&mut message);
                member_from(message).expect_err("it is broken").field
            };
            assert_eq!(broken(|m| m.address.clear()), "address");
            assert_eq!(broken(|m| m.address = "x".repeat(256)), "address");
            assert_eq!(broken(|m| m.cpu = f64::NAN), "capacity");
            assert_eq!(broken(|m| m.cpu = f64::INFINITY), "capacity");
            assert_eq!(broken(|m| m.bytes = 0), "capacity");
            assert_eq!(broken(|m| m.copies_min = 17), "copies_min");
            assert_eq!(broken(|m| m.state = 0), "state");
            assert_eq!(broken(|m| m.state = 99), "state");
        }
        for freeze in [Freeze::Off, Freeze::OnlyDead, Freeze::All] {
            assert_eq!(freeze_from(freeze_to(freeze).into()), Ok(freeze));
        }
        assert!(freeze_from(0).is_err() && freeze_from(9).is_err());
    }
}
