use super::*;
use crate::data::DataEntry;
use crate::op::{Ack, Action, Expected, Found, ItemUse, LookupAnswer, Mutation, Outcome};
use proptest::prelude::*;

fn version() -> impl Strategy<Value = Version> {
    (any::<u64>(), any::<u64>()).prop_map(|(time_ns, origin)| Version { time_ns, origin })
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        Just(Action::Set),
        Just(Action::Erase),
        Just(Action::Cas(Expected::Absent)),
        version().prop_map(|v| Action::Cas(Expected::Version(v))),
        any::<u64>().prop_map(|stamp| Action::Fill { stamp }),
    ]
}

fn outcome() -> impl Strategy<Value = Outcome> {
    prop_oneof![
        Just(Outcome::Applied),
        version().prop_map(|bound| Outcome::Superseded { bound }),
        (proptest::option::of(version()), version())
            .prop_map(|(present, bound)| Outcome::Mismatch { present, bound }),
        (0..Rejection::ALL.len()).prop_map(|i| Outcome::Rejected(Rejection::ALL[i])),
    ]
}

fn head(id: u64) -> RequestHead {
    RequestHead {
        id,
        config_id: (id >> 3) as u32,
    }
}

fn encoded(request: &Request<'_>, head: RequestHead) -> Vec<u8> {
    let mut bytes = vec![0xaa; request.encoded_len()];
    request.encode(head, &mut bytes);
    bytes
}

fn encoded_answer(answer: &Answer<'_>, id: u64) -> Vec<u8> {
    let mut bytes = vec![0xaa; answer.encoded_len()];
    answer.encode(id, &mut bytes);
    bytes
}

proptest! {
    #[test]
    fn mutations_round_trip(
        id: u64,
        action in action(),
        version in version(),
        expiry_ms: u64,
        client_flags: u32,
        item_flags: u8,
        unique: Option<u64>,
        key in proptest::collection::vec(any::<u8>(), 0..40),
        value in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let entry = DataEntry {
            expiry_ms, client_flags, item_flags, unique, key: &key, value: &value,
        };
        let request = Request::Mutate(Mutation { action, version, entry });
        let bytes = encoded(&request, head(id));
        let (parsed_head, parsed) = parse_request(&bytes).unwrap();
        let Request::Mutate(m) = parsed else { panic!("{parsed:?}") };
        prop_assert_eq!(parsed_head, head(id));
        prop_assert_eq!((m.action, m.version, m.entry), (action, version, entry));
        prop_assert_eq!(encoded(&parsed, head(id)), bytes);
    }

    #[test]
    fn touches_and_lookups_round_trip(
        id: u64,
        partition: u16,
        window_id: u64,
        numbers in proptest::collection::vec(any::<u32>(), 0..=TOUCH_COUNT_MAX),
        share in 0..=TOUCH_COUNT_MAX,
        key in proptest::collection::vec(any::<u8>(), 0..300),
    ) {
        let (first, second) = numbers.split_at(share.min(numbers.len()));
        let (slots, names) = (Slots::from(first), Slots::from(second));
        let bytes = encoded(&Request::Touch { partition, window_id, slots, names }, head(id));
        let Ok((_, Request::Touch { partition: p, window_id: w, slots: s, names: n })) =
            parse_request(&bytes) else { panic!() };
        prop_assert_eq!((p, w, s.count(), n.count()), (partition, window_id, first.len(), second.len()));
        prop_assert_eq!((s, n), (slots, names));
        let mut room = [0; TOUCH_COUNT_MAX];
        prop_assert_eq!(s.copy_to(&mut room), first);

        let bytes = encoded(&Request::Lookup { key: &key }, head(id));
        let Ok((_, Request::Lookup { key: parsed })) = parse_request(&bytes) else { panic!() };
        prop_assert_eq!(parsed, &key[..]);

        let bytes = encoded(&Request::Use { key: &key }, head(id));
        let Ok((_, Request::Use { key: parsed })) = parse_request(&bytes) else { panic!() };
        prop_assert_eq!(parsed, &key[..]);
    }

    #[test]
    fn answers_round_trip(
        id: u64,
        epoch: u32,
        outcome in outcome(),
        version in version(),
        data in proptest::collection::vec(any::<u8>(), 0..200),
        rejection in 0..Rejection::ALL.len(),
    ) {
        let lookup = |found| Answer::Lookup(LookupAnswer { epoch, found });
        let answers = [
            Answer::Ack(Ack { epoch, outcome }),
            lookup(Found::Present { version, data: &data }),
            lookup(Found::Absent),
            lookup(Found::Rejected(Rejection::ALL[rejection])),
            Answer::Use(None),
            Answer::Use(Some(ItemUse { version, hit_before: epoch % 2 == 0, last_use_s: epoch })),
            Answer::Pong,
            Answer::Error(ErrorCode::TooLarge),
        ];
        for answer in answers {
            let bytes = encoded_answer(&answer, id);
            prop_assert_eq!(parse_answer(&bytes), Ok((id, answer)));
        }
    }
}

/// One message of every kind.
fn corpus() -> Vec<Vec<u8>> {
    let version = Version::new(5, 6, 7);
    let entry = DataEntry {
        expiry_ms: 9,
        client_flags: 8,
        item_flags: 1,
        unique: Some(3),
        key: b"some key",
        value: b"some value that is a little longer",
    };
    let set = |action, entry| {
        Request::Mutate(Mutation {
            action,
            version,
            entry,
        })
    };
    let slots = [1, 2, 3, u32::MAX];
    let requests = [
        set(Action::Set, entry),
        set(Action::Cas(Expected::Version(version)), entry),
        set(
            Action::Erase,
            DataEntry {
                value: b"",
                unique: None,
                ..entry
            },
        ),
        Request::Lookup { key: b"k" },
        Request::Touch {
            partition: 3,
            window_id: 4,
            slots: Slots::from(&slots[..]),
            names: Slots::from(&slots[2..]),
        },
        Request::Ping,
    ];
    let present = Found::Present {
        version,
        data: &[7; 30],
    };
    let ack = |outcome| Answer::Ack(Ack { epoch: 2, outcome });
    let answers = [
        ack(Outcome::Applied),
        ack(Outcome::Superseded { bound: version }),
        ack(Outcome::Mismatch {
            present: Some(version),
            bound: version,
        }),
        ack(Outcome::Rejected(Rejection::NoMemory)),
        Answer::Lookup(LookupAnswer {
            epoch: 1,
            found: present,
        }),
        Answer::Pong,
        Answer::Error(ErrorCode::Malformed),
    ];
    let requests = requests.iter().map(|r| encoded(r, head(77)));
    requests
        .chain(answers.iter().map(|a| encoded_answer(a, 77)))
        .collect()
}

/// SplitMix64: a seeded sequence for the quick fuzz below.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }
}

#[test]
fn any_mangled_message_is_an_error_or_encodes_back_to_the_same_bytes() {
    // An interpreter needs some milliseconds for each.
    const ROUNDS: u32 = if cfg!(miri) { 1_000 } else { 300_000 };
    let corpus = corpus();
    let mut random = Random(1);
    let mut accepted = 0;
    for _ in 0..ROUNDS {
        let mut bytes = corpus[random.below(corpus.len())].clone();
        for _ in 0..=random.below(3) {
            let at = random.below(bytes.len());
            match random.below(5) {
                0 => bytes.truncate(at),
                1 => bytes.push(random.next() as u8),
                2 if at < bytes.len() => bytes[at] = random.next() as u8,
                3 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
                _ if at + 4 <= bytes.len() => {
                    bytes[at..at + 4].copy_from_slice(&[0xff; 4][..]);
                }
                _ => {}
            }
        }
        if let Ok((head, request)) = parse_request(&bytes) {
            accepted += 1;
            assert_eq!(encoded(&request, head), bytes);
        }
        if let Ok((id, answer)) = parse_answer(&bytes) {
            accepted += 1;
            assert_eq!(encoded_answer(&answer, id), bytes);
        }
    }
    assert!(
        accepted > ROUNDS / 300,
        "the fuzz reaches past the first check"
    );
}

#[test]
fn truncations_and_long_touches_are_refused() {
    for message in corpus() {
        for len in 0..message.len() {
            assert!(parse_request(&message[..len]).is_err());
            assert!(parse_answer(&message[..len]).is_err());
        }
    }
    let many = [0; TOUCH_COUNT_MAX + 1];
    for slot_count in [0, 1, TOUCH_COUNT_MAX, many.len()] {
        let (slots, names) = many.split_at(slot_count);
        let touch = Request::Touch {
            partition: 0,
            window_id: 2,
            slots: Slots::from(slots),
            names: Slots::from(names),
        };
        assert_eq!(
            parse_request(&encoded(&touch, head(1))).err(),
            Some(MessageError::Length)
        );
    }
}
