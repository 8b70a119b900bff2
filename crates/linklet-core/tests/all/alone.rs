//! One server and what is said to it, at one point of the key space.

use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use trefoil_linklet_core::{
    Access, Chunk, ChunkKind, Claim, ClaimAnswer, Config, CopyOrder, Core, Decision, Effect, Entry,
    FRAME_BYTES_MAX, Frame, Limit, LossReason, Message, NotStored, Operation, Refused, Replication,
    Request, Scan, Table, Ticket, VALUE_BYTES_MAX, Values, Wire,
};
use trefoil_sharder::{Assignment, AssignmentVersion, KeyPoint, ServerId, Slice};

/// What a server has at the point.
#[derive(Default)]
struct Memory {
    values: BTreeMap<Bytes, Bytes>,
    /// There is no room for any more.
    full: bool,
}

impl Values for Memory {
    fn publish(&mut self, _: Arc<Table>) {}

    fn scan(&mut self, slice: Slice, _: Limit) -> Scan {
        let entries = self.values.iter().map(|(key, value)| Entry {
            point: POINT,
            key: key.clone(),
            version: 0,
            value: Some(value.clone()),
        });
        let last = slice.last();
        let entries = entries.filter(|_| slice.contains(POINT)).collect();
        Scan { entries, last }
    }

    fn get(&mut self, _: KeyPoint, _: &Bytes) -> Option<Entry> {
        None
    }

    fn store(&mut self, entry: Entry) -> Result<(), NotStored> {
        let value = entry.value.ok_or(NotStored::Unreadable)?;
        if self.full && !self.values.contains_key(&entry.key) {
            return Err(NotStored::NoRoom);
        }
        self.values.insert(entry.key, value);
        Ok(())
    }

    fn remove(&mut self, _: KeyPoint, key: &Bytes) {
        self.values.remove(key);
    }

    fn forget(&mut self, _: Slice) {
        self.values.clear();
    }

    fn forget_but(&mut self, _: Slice, stays: &dyn Fn(KeyPoint, &[u8]) -> bool) {
        self.values.retain(|key, _| stays(POINT, key));
    }

    fn settle(&mut self, _: Ticket) {}
}

const POINT: KeyPoint = KeyPoint(7);
const NOW: Duration = Duration::from_secs(1);

const ME: ServerId = ServerId(2);
const OTHER: ServerId = ServerId(1);

fn text(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

/// A server, and another one of which it hears; everything is this one's by the last of the
/// maps.
fn server(memory: &mut Memory, owners: &[ServerId]) -> Core {
    let config = Config {
        copies_min: 1,
        ..Config::new(Replication::Strong)
    };
    let mut core = Core::new(ME, config).expect("a good configuration");
    core.lease(NOW, memory, NOW + Duration::from_secs(60));
    core.meet(OTHER, Wire::OWN).expect("one major");
    let mut version = AssignmentVersion::first_of(1);
    for &owner in owners {
        let map = Assignment::even(version, &[owner], 1, 1);
        core.learn(NOW, memory, &map, &BTreeSet::from([OTHER, ME]));
        version = version.next();
    }
    core
}

/// The other one says something; what comes of it.
fn hear(core: &mut Core, memory: &mut Memory, sequence: u64, message: Message) -> Vec<Effect> {
    let frame = Frame {
        sequence,
        confirmed: 0,
        message: Some(message),
    };
    core.receive(NOW, memory, OTHER, frame);
    let mut effects: Vec<Effect> = std::iter::from_fn(|| core.poll()).collect();
    while core.next_tick().is_some_and(|at| at <= NOW) {
        core.tick(NOW, memory);
        effects.extend(std::iter::from_fn(|| core.poll()));
    }
    effects
}

/// What the other one holds of all that was claimed from it.
fn all_held() -> Message {
    Message::ClaimAnswer(ClaimAnswer {
        claim: 1,
        held: vec![Slice::ALL],
        newest: Some(AssignmentVersion::first_of(1).next()),
        ..ClaimAnswer::default()
    })
}

fn chunk(id: u64, entries: Vec<(&'static str, Option<Bytes>)>) -> Message {
    let entries = entries.into_iter().map(|(name, value)| Entry {
        point: POINT,
        key: text(name),
        version: 0,
        value,
    });
    Message::Chunk(Chunk {
        id,
        kind: ChunkKind::Authority,
        ranges: vec![Slice::of_point(POINT)],
        entries: entries.collect(),
        holders: Vec::new(),
        unsettled: Vec::new(),
    })
}

/// What was said to the other one.
fn said(effects: &[Effect]) -> Vec<&Message> {
    let said = effects.iter().filter_map(|effect| match effect {
        Effect::Send { frame, .. } => frame.message.as_ref(),
        _ => None,
    });
    said.collect()
}

/// One of two keys cannot be marshalled, and for the other one there is no room: both stay
/// where they are, so nothing is said to be lost before they are taken.
#[test]
fn what_lies_beside_what_stays_is_not_lost() {
    let mut memory = Memory::default();
    let mut core = server(&mut memory, &[OTHER, ME]);
    let two = || vec![("odd", None), ("large", Some(text("value")))];
    let mut lost = Vec::new();
    let steps = [all_held(), chunk(1, two()), chunk(2, two())];
    for (at, message) in steps.into_iter().enumerate() {
        memory.full = at < 2;
        for effect in hear(&mut core, &mut memory, at as u64 + 1, message) {
            if let Effect::Loss(loss) = effect {
                lost.push((at, loss));
            }
        }
        assert_eq!(core.token(POINT).is_some(), at == 2);
    }
    let kept = BTreeMap::from([(text("large"), text("value"))]);
    assert_eq!(memory.values, kept);
    let [(2, loss)] = &lost[..] else {
        panic!("{lost:?}");
    };
    assert_eq!(loss.reason, LossReason::MarshalFailed);
    assert_eq!(loss.keys, [(POINT, text("odd"))]);
}

/// With a key of one byte, one too long.
fn too_long() -> Bytes {
    Bytes::from(vec![0; VALUE_BYTES_MAX])
}

#[test]
fn a_value_that_is_too_long_is_not_committed() {
    let mut memory = Memory::default();
    let mut core = server(&mut memory, &[ME]);
    hear(
        &mut core,
        &mut memory,
        1,
        Message::ClaimAnswer(ClaimAnswer {
            claim: 1,
            ..ClaimAnswer::default()
        }),
    );
    for (at, value) in [too_long(), too_long().slice(1..)].into_iter().enumerate() {
        let request = Request {
            ticket: Ticket(at as u64),
            point: POINT,
            access: Access::Commit,
            known: None,
        };
        let put = Operation::Put { version: 0, value };
        let decision = core.propose(NOW, &mut memory, &request, text("k"), put);
        let bytes = VALUE_BYTES_MAX + 1;
        match at {
            0 => assert_eq!(decision, Decision::Refused(Refused::TooLong { bytes })),
            _ => assert!(matches!(decision, Decision::Serve { .. }), "{decision:?}"),
        }
        let settled = std::iter::from_fn(|| core.poll());
        let settled = settled.filter(|effect| matches!(effect, Effect::Settled { .. }));
        assert_eq!(settled.count(), at);
    }
}

/// Whatever the values' own rules are: it would be refused there, and sent again for ever.
#[test]
fn a_value_that_is_too_long_is_not_sent() {
    let mut memory = Memory::default();
    let mut core = server(&mut memory, &[ME]);
    let nothing = Message::ClaimAnswer(ClaimAnswer {
        claim: 1,
        ..ClaimAnswer::default()
    });
    hear(&mut core, &mut memory, 1, nothing);
    assert!(core.token(POINT).is_some());
    memory.values.insert(text("k"), too_long());
    memory.values.insert(text("l"), too_long().slice(1..));
    let claim = Message::Claim(Claim {
        id: 1,
        version: AssignmentVersion::first_of(1).next(),
        ranges: vec![Slice::ALL],
        alive: vec![OTHER, ME],
    });
    let effects = hear(&mut core, &mut memory, 2, claim);
    let sent = said(&effects)
        .into_iter()
        .find_map(|message| match message {
            Message::Chunk(chunk) => Some(chunk),
            _ => None,
        });
    let sent = sent.expect("a chunk");
    let values = sent.entries.iter().map(|entry| entry.value.is_some());
    assert_eq!(values.collect::<Vec<_>>(), [false, true]);
    for effect in effects {
        if let Effect::Send { frame, .. } = effect {
            assert!(frame.encode().len() <= FRAME_BYTES_MAX);
        }
    }
}

#[test]
fn a_value_that_is_too_long_is_not_taken() {
    let mut memory = Memory::default();
    let mut core = server(&mut memory, &[OTHER, ME]);
    hear(&mut core, &mut memory, 1, all_held());
    let long = chunk(1, vec![("k", Some(too_long()))]);
    let effects = hear(&mut core, &mut memory, 2, long);
    let refused = Message::TakenInPart {
        chunk: 1,
        unreadable: vec![POINT],
        no_room: Vec::new(),
    };
    assert!(said(&effects).contains(&&refused), "{:?}", said(&effects));
    let copied = |at, order| Message::Copy {
        id: at,
        token: AssignmentVersion::first_of(1),
        order,
    };
    let entry = |value| Entry {
        point: POINT,
        key: text("k"),
        version: 0,
        value: Some(value),
    };
    let fill = |value| CopyOrder::Fill {
        ranges: vec![Slice::of_point(POINT)],
        entries: vec![entry(value)],
    };
    let apply = CopyOrder::Apply {
        point: POINT,
        key: text("k"),
        operation: Operation::Put {
            version: 0,
            value: too_long(),
        },
    };
    let orders = [fill(too_long()), fill(text("value")), apply];
    for (at, order) in (1..).zip(orders) {
        let effects = hear(&mut core, &mut memory, 2 + at, copied(at, order));
        let failed = |message: &&Message| matches!(message, Message::CopyFailed { .. });
        assert_eq!(said(&effects).iter().any(failed), at != 2, "order {at}");
    }
    assert_eq!(memory.values[&text("k")], text("value"), "as it was");
}
