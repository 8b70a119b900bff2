//! What leaves as a message arrives as the same value, and what no peer sends
//! is refused with the field's name.

use bytes::Bytes;
use prost::Message as _;
use trefoil_layout::data::{DataEntry, ITEM_STALE};
use trefoil_layout::op::{
    Ack, Action, Expected, Found, LookupAnswer, Mutation, Outcome, Rejection,
};
use trefoil_layout::{HashKind, KeyHasher, TopologyId, Version};
use trefoil_rpc::*;

const TOPOLOGY: TopologyId = TopologyId {
    life: u64::MAX - 4,
    config_id: 5,
};

fn entry<'a>() -> DataEntry<'a> {
    DataEntry {
        expiry_ms: 1_900_000_000_000,
        client_flags: 0xdead_beef,
        item_flags: ITEM_STALE,
        unique: Some(u64::MAX),
        key: b"key",
        value: b"value",
    }
}

fn set() -> v1::MutateRequest {
    let mutation = Mutation {
        action: Action::Set,
        version: Version::new(1, 2, 3),
        entry: entry(),
    };
    encode_mutation(0, TOPOLOGY, &mutation)
}

#[test]
fn mutations_survive_the_wire() {
    let expected = Version::new(9, 8, 7);
    for action in [
        Action::Set,
        Action::Erase,
        Action::Cas(Expected::Absent),
        Action::Cas(Expected::Version(expected)),
        Action::Cas(Expected::Version(Version::ZERO)),
    ] {
        let value: &[u8] = if action == Action::Erase { b"" } else { b"v" };
        let mutation = Mutation {
            action,
            version: Version::new(1, 2, 3),
            entry: DataEntry { value, ..entry() },
        };
        let wire = encode_mutation(4, TOPOLOGY, &mutation).encode_to_vec();
        let request = v1::MutateRequest::decode(Bytes::from(wire)).unwrap();
        assert_eq!((request.backend, request.config_id), (4, 5));
        assert_eq!(request.life, TOPOLOGY.life);
        let decoded = decode_mutation(&request).unwrap();
        assert_eq!(decoded.action, action);
        assert_eq!(decoded.version, mutation.version);
        assert_eq!(decoded.entry, mutation.entry);
    }
}

#[test]
fn malformed_mutations_name_the_field() {
    type Damage = fn(&mut v1::MutateRequest);
    let cases: [(&str, Damage); 8] = [
        ("action", |r| r.action = 0),
        ("action", |r| r.action = -7),
        ("version", |r| r.version = None),
        ("version", |r| r.version = Some(v1::Version::default())),
        ("expected", |r| r.expected = Some(v1::Version::default())),
        ("expiry_ms", |r| r.expiry_ms = 1 << 48),
        ("item_flags", |r| r.item_flags = 0x100),
        ("value", |r| r.action = v1::Action::Erase as i32),
    ];
    assert!(decode_mutation(&set()).is_ok());
    for (field, damage) in cases {
        let mut request = set();
        damage(&mut request);
        let error = decode_mutation(&request).unwrap_err().to_string();
        assert!(error.contains(&format!("\"{field}\"")), "{field}: {error}");
    }
}

#[test]
fn acknowledgements_survive_the_wire() {
    let bound = Version::new(4, 5, 6);
    let mut outcomes = vec![
        Outcome::Applied,
        Outcome::Superseded { bound },
        Outcome::Mismatch {
            present: None,
            bound,
        },
        Outcome::Mismatch {
            present: Some(Version::ZERO),
            bound: Version::ZERO,
        },
    ];
    outcomes.extend(Rejection::ALL.map(Outcome::Rejected));
    for outcome in outcomes {
        let ack = Ack { epoch: 77, outcome };
        let wire = encode_ack(&ack).encode_to_vec();
        let response = v1::MutateResponse::decode(&wire[..]).unwrap();
        assert_eq!(decode_ack(&response), Ok(ack));
    }
}

#[test]
fn the_contract_numbers_rejections_as_the_shared_formats_do() {
    for number in 1..=i32::from(u8::MAX) {
        let known = Rejection::from_number(number as u8).is_some();
        assert_eq!(v1::Rejection::try_from(number).is_ok(), known, "{number}");
    }
}

#[test]
fn lookups_survive_the_wire() {
    let data = [7u8; 48];
    let mut all = vec![
        Found::Absent,
        Found::Present {
            version: Version::new(1, 1, 1),
            data: &data,
        },
    ];
    all.extend(Rejection::ALL.map(Found::Rejected));
    for found in all {
        let answer = LookupAnswer { epoch: 3, found };
        let wire = encode_lookup_answer(&answer, 7).encode_to_vec();
        let response = v1::LookupResponse::decode(&wire[..]).unwrap();
        assert_eq!(response.stamp, 7);
        assert_eq!(decode_lookup_answer(&response), Ok(answer));
        // The same, with the data left where it is.
        let (without, head) = encode_long_answer(&answer, 7);
        match (answer.found, head) {
            (Found::Present { data, .. }, Some(head)) => {
                let message = [&head[5..], data].concat();
                assert_eq!(
                    head[..5],
                    [&[0][..], &(message.len() as u32).to_be_bytes()].concat()
                );
                let whole = v1::LookupResponse::decode(message.as_slice()).unwrap();
                assert_eq!(whole, response);
            }
            (_, None) => assert_eq!(without, response),
            (found, head) => panic!("{found:?}: {head:?}"),
        }
    }
}

#[test]
fn answers_that_no_backend_gives_are_refused() {
    use v1::{lookup_response, mutate_response};
    let ack = |outcome| v1::MutateResponse { epoch: 1, outcome };
    for outcome in [
        None,
        Some(mutate_response::Outcome::Rejected(0)),
        Some(mutate_response::Outcome::Rejected(256)),
        Some(mutate_response::Outcome::Superseded(Default::default())),
        Some(mutate_response::Outcome::Mismatch(Default::default())),
    ] {
        assert!(decode_ack(&ack(outcome)).is_err());
    }
    let short = v1::Present {
        version: Some(v1::Version::default()),
        data: Bytes::from_static(&[0; 15]),
        plain: None,
    };
    let unversioned = v1::Present {
        version: None,
        data: Bytes::from_static(&[0; 64]),
        plain: None,
    };
    for found in [
        None,
        Some(lookup_response::Found::Rejected(200)),
        Some(lookup_response::Found::Present(short)),
        Some(lookup_response::Found::Present(unversioned)),
    ] {
        assert!(
            decode_lookup_answer(&v1::LookupResponse {
                epoch: 1,
                found,
                stamp: 0
            })
            .is_err()
        );
    }
}

#[test]
fn touches_survive_the_wire_and_are_bounded() {
    let slots: Vec<u32> = (0..100).collect();
    let touches = [
        Touches {
            partition: 0,
            window_id: 2,
            slots: &slots,
            names: &[7, u32::MAX],
        },
        Touches {
            partition: 63,
            window_id: u64::MAX,
            slots: &[],
            names: &[],
        },
    ];
    let mut request = encode_touches(1, TOPOLOGY.life, &touches);
    assert_eq!(decode_touches(&request).unwrap(), touches);
    request.partitions[1].partition = 64;
    assert!(decode_touches(&request).is_err());
    let half = vec![0; TOUCH_COUNT_MAX / 2 + 1];
    request.partitions[1].partition = 1;
    for partition in &mut request.partitions {
        partition.slots.clone_from(&half);
    }
    assert!(
        decode_touches(&request).is_err(),
        "both together are too many"
    );
    request.partitions[0].slots.clear();
    assert!(decode_touches(&request).is_ok());
    request.partitions[0].names = vec![0; TOUCH_COUNT_MAX];
    assert!(decode_touches(&request).is_err(), "names count, too");
    // So does a partition without any: it takes two bytes of a message, and a lookup.
    request.partitions = vec![Default::default(); TOUCH_COUNT_MAX];
    assert!(decode_touches(&request).is_ok());
    request.partitions.push(Default::default());
    assert!(decode_touches(&request).is_err(), "empty ones count, too");
}

#[test]
fn hash_functions_survive_and_unknown_kinds_do_not() {
    for kind in [HashKind::Xxh3, HashKind::Sip13] {
        let hasher = KeyHasher {
            kind,
            seed: [1, u64::MAX],
        };
        assert_eq!(decode_hash(&encode_hash(hasher)), Ok(hasher));
    }
    for kind in [0, 3, -1] {
        let hash = v1::Hash {
            kind,
            ..v1::Hash::default()
        };
        assert!(decode_hash(&hash).is_err());
    }
}

/// Truncated and bit-flipped requests either fail to parse, fail to convert,
/// or convert; they never panic.
#[test]
fn damaged_bytes_never_panic() {
    let wire = set().encode_to_vec();
    for len in 0..wire.len() {
        if let Ok(request) = v1::MutateRequest::decode(&wire[..len]) {
            let _ = decode_mutation(&request);
        }
    }
    for bit in 0..wire.len() * 8 {
        let mut damaged = wire.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        if let Ok(request) = v1::MutateRequest::decode(&damaged[..]) {
            let _ = decode_mutation(&request);
        }
        if let Ok(response) = v1::LookupResponse::decode(&damaged[..]) {
            let _ = decode_lookup_answer(&response);
        }
        if let Ok(request) = v1::TouchRequest::decode(&damaged[..]) {
            let _ = decode_touches(&request);
        }
    }
}

#[test]
fn listed_items_survive_the_wire_and_half_ones_are_refused() {
    let keys: [&[u8]; 3] = [b"", b"key", &[7; 70_000]];
    let items = keys.map(|key| Listed {
        key,
        version: Version::new(1 << 60, 2, 3),
        value_len: u32::MAX,
        entry_len: 5,
        expiry_ms: u64::MAX - 6,
        client_flags: 0xdead_beef,
        item_flags: ITEM_STALE,
        unique: (!key.is_empty()).then_some(key.len() as u64),
    });
    let mut packed = Vec::new();
    for item in &items {
        encode_listed(item, &mut packed);
    }
    assert_eq!(packed.len(), 3 * 50 + 70_003);
    let decoded: Result<Vec<_>, _> = decode_listed(&packed).collect();
    assert_eq!(decoded.unwrap(), items);
    for len in [1, 49, 51, 102, packed.len() - 1] {
        let all: Vec<_> = decode_listed(&packed[..len]).collect();
        assert!(all.last().unwrap().is_err(), "{len}");
        assert!(all.len() <= 3);
    }
    assert_eq!(decode_listed(&[]).count(), 0);
}
