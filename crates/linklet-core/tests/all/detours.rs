//! Servers that are alive, and that one other server does not reach.

use crate::cluster::{self, Cluster, at};
use bytes::Bytes;
use trefoil_linklet_core::{
    Config, CopyOrder, Decision, Effect, Frame, Message, Operation, Pass, Replication,
};
use trefoil_sharder::{AssignmentVersion, KeyPoint, ServerId, Slice};

/// Of the lower half of the key space.
const KEY: u64 = 3;

fn strong(servers: &[u64], map: &[&[u64]]) -> Cluster {
    with_some_of_before(&[], servers, map)
}

fn with_some_of_before(before: &[u64], servers: &[u64], map: &[&[u64]]) -> Cluster {
    let mut cluster = Cluster::new(Config::new(Replication::Strong), servers);
    before.iter().for_each(|&id| cluster.of_before(id));
    cluster.assign(map);
    cluster.settle();
    for key in [KEY, KEY + 40] {
        let owner = cluster.owner(key).expect("every key has an owner");
        cluster.put(owner, key, 100 + key);
    }
    cluster.settle();
    assert!(cluster.acknowledged(KEY) && cluster.acknowledged(KEY + 40));
    cluster.effects.clear();
    cluster.passed.clear();
    cluster
}

/// Servers 1 and 2 do not reach each other, and what they say goes round.
fn apart() -> Cluster {
    let mut cluster = strong(&[1, 2, 3, 4], &[&[1, 2], &[1, 2]]);
    cluster.cut(1, 2);
    cluster.cut(2, 1);
    cluster.put(1, KEY, 7);
    cluster.seconds(4);
    assert!(cluster.acknowledged(KEY));
    cluster
}

fn is_detour(effect: &Effect) -> bool {
    matches!(effect, Effect::Detour { via: Some(_), .. })
}

/// Both directions, or one of them: an owner's commits are confirmed by a replica that it
/// does not reach, the first one after some two seconds and the others at once; and when the
/// link is whole again nobody goes round.
#[test]
fn commits_go_round_a_link_that_is_cut() {
    for cut in [&[(1, 2), (2, 1)][..], &[(1, 2)], &[(2, 1)]] {
        let mut cluster = strong(&[1, 2, 3], &[&[1, 2], &[3, 1]]);
        cut.iter().for_each(|&(from, to)| cluster.cut(from, to));
        cluster.put(1, KEY, 7);
        cluster.seconds(1);
        assert!(!cluster.acknowledged(KEY), "{cut:?}: nobody was asked yet");
        cluster.seconds(2);
        assert!(cluster.acknowledged(KEY), "{cut:?}");
        assert_eq!(cluster.get(2, KEY), Some(7));
        assert!(cluster.told(1, is_detour), "{cut:?}");
        assert_eq!(cluster.detours(1), 1, "{cut:?}");
        for value in 8..40 {
            cluster.put(1, KEY, value);
            cluster.rounds(6);
            assert!(cluster.acknowledged(KEY), "{cut:?}: {value}");
        }
        cluster.seconds(20);
        cluster.put(1, KEY, 40);
        cluster.rounds(6);
        assert!(cluster.acknowledged(KEY), "{cut:?}: after a while");
        let passed = cluster.passed.clone();
        assert!(passed.keys().all(|&(by, _)| by == 3), "{passed:?}");

        cut.iter().for_each(|&(from, to)| cluster.mend(from, to));
        for value in 41..50 {
            cluster.put(1, KEY, value);
            cluster.seconds(1);
            assert!(cluster.acknowledged(KEY), "{cut:?}: {value}");
        }
        assert_eq!((cluster.detours(1), cluster.detours(2)), (0, 0), "{cut:?}");
        let passed = cluster.passed.clone();
        cluster.put(1, KEY, 50);
        cluster.seconds(1);
        assert!(cluster.acknowledged(KEY));
        assert_eq!(cluster.passed, passed, "{cut:?}: directly");
        assert_eq!(cluster.losses(), []);
    }
}

/// The server that passes frames on dies, or is cut off in turn: another one does.
#[test]
fn another_one_passes_on_when_one_fails() {
    for dies in [true, false] {
        let mut cluster = apart();
        // What they said meanwhile: so it is known who passes on.
        let (&(by, _), _) = cluster.passed.iter().next_back().expect("somebody did");
        match dies {
            true => {
                cluster.kill(by);
                cluster.hear_who_lives();
            }
            false => {
                cluster.cut(by, 1);
                cluster.cut(by, 2);
            }
        }
        let other = 7 - by;
        let before = cluster.passed.get(&(other, 2)).copied();
        cluster.put(1, KEY, 8);
        cluster.seconds(4);
        assert!(cluster.acknowledged(KEY), "{by} dies: {dies}");
        assert!(cluster.passed.get(&(other, 2)).copied() > before);
    }
}

/// A key space moves between two servers that do not reach each other.
#[test]
fn a_move_goes_round_a_link_that_is_cut() {
    let mut cluster = strong(&[1, 2, 3], &[&[1, 3], &[1, 3]]);
    cluster.cut(1, 2);
    cluster.cut(2, 1);
    cluster.assign(&[&[2, 3], &[2, 3]]);
    cluster.seconds(8);
    for key in [KEY, KEY + 40] {
        assert_eq!(cluster.owner(key), Some(2));
        assert_eq!(cluster.get(2, key), Some(100 + key));
        cluster.put(2, key, 9);
        cluster.seconds(4);
        assert!(cluster.acknowledged(key), "and is changed there");
    }
    assert_eq!(cluster.losses(), []);
}

/// A replica that nobody reaches holds up the commits of what it has a copy of, also where
/// the map has another one in its place: it serves reads from what it has until it has heard
/// that it is to drop it.
#[test]
fn a_former_replica_that_nobody_reaches_is_waited_for() {
    let mut cluster = strong(&[1, 2, 3], &[&[1, 2], &[3, 1]]);
    for from in [1, 3] {
        cluster.cut(from, 2);
    }
    cluster.assign(&[&[1, 3], &[3, 1]]);
    cluster.seconds(5);
    cluster.put(1, KEY, 7);
    cluster.seconds(60);
    assert_eq!(cluster.get(3, KEY), Some(7), "its place is taken");
    assert_eq!(cluster.awaited(1, KEY), [ServerId(2)]);
    assert!(!cluster.acknowledged(KEY));
    assert_eq!(cluster.read(2, KEY), Decision::ServeCopy);
    assert_eq!(cluster.get(2, KEY), Some(100 + KEY), "the newest one");
    // Of what it never had a copy of nothing waits for it.
    cluster.put(3, KEY + 40, 8);
    cluster.seconds(1);
    assert!(cluster.acknowledged(KEY + 40));
    cluster.mend(3, 2);
    cluster.seconds(4);
    assert!(
        cluster.acknowledged(KEY),
        "it has heard of it, through another"
    );
    assert_eq!(cluster.get(2, KEY), None);
    assert!(!matches!(cluster.read(2, KEY), Decision::ServeCopy));
}

/// Who hears nobody costs the others little: they are asked, and pass on a question, now and
/// then, and no value.
#[test]
fn who_hears_nobody_is_asked_for_and_sent_nothing() {
    let mut cluster = strong(&[1, 2, 3], &[&[1, 2], &[3, 1]]);
    for (from, to) in [(1, 2), (3, 2), (2, 1), (2, 3)] {
        cluster.cut(from, to);
    }
    for value in 0..20 {
        cluster.put(1, KEY, value);
    }
    cluster.seconds(60);
    assert!(!cluster.acknowledged(KEY));
    let passed: usize = cluster.passed.values().sum();
    assert!((100..=240).contains(&passed), "{passed}");
    assert_eq!(cluster.detours(1), 0);
}

fn pass(from: u64, to: u64, frame: &Frame) -> Frame {
    Frame {
        sequence: 0,
        confirmed: 0,
        message: Some(Message::Pass(Pass {
            from: ServerId(from),
            to: ServerId(to),
            hears: false,
            asks: true,
            frame: frame.encode(),
        })),
    }
}

/// What looks like an order of server 1's that removes the key.
fn removal(cluster: &Cluster) -> Frame {
    let order = CopyOrder::Exclude {
        ranges: vec![Slice::of_point(at(KEY))],
    };
    let token = cluster.version().unwrap_or(AssignmentVersion::first_of(1));
    let message = Some(Message::Copy {
        id: 1_000,
        token,
        order,
    });
    Frame {
        sequence: cluster.next_message(1, 2),
        confirmed: 0,
        message,
    }
}

/// A frame is passed on once, by who has it from its sender, to its addressee; and only
/// between servers that are known to live.
#[test]
fn nobody_passes_on_what_was_passed_on() {
    let mut cluster = strong(&[1, 2, 3, 4], &[&[1, 2], &[3, 1]]);
    let frame = removal(&cluster);
    // Of somebody else's, of a stranger's, for a stranger, for its own sender.
    for (by, to, sent) in [
        (1, 3, pass(4, 2, &frame)),
        (3, 2, pass(1, 4, &frame)),
        (9, 3, pass(9, 2, &frame)),
        (1, 3, pass(1, 9, &frame)),
        (1, 3, pass(1, 1, &frame)),
    ] {
        cluster.arrives(by, to, sent);
        cluster.rounds(4);
        assert!(
            cluster.passed.is_empty(),
            "{by} to {to}: {:?}",
            cluster.passed
        );
    }
    // To its addressee, and it is no frame of a server's that is known to live: by whom, of
    // whom, and what is in it.
    let mut other_form = frame.encode().to_vec();
    other_form[0] = 3;
    for (by, from, inner) in [
        (9, 1, frame.encode()),
        (3, 9, frame.encode()),
        (3, 3, frame.encode()),
        (3, 2, frame.encode()),
        (3, 1, pass(1, 2, &frame).encode()),
        (3, 1, Bytes::from(other_form)),
        (3, 1, Bytes::from_static(b"no frame")),
        (3, 1, Bytes::new()),
    ] {
        let Some(Message::Pass(mut said)) = pass(from, 2, &frame).message else {
            unreachable!("it is one");
        };
        said.frame = inner;
        let sent = Frame {
            message: Some(Message::Pass(said)),
            ..pass(from, 2, &frame)
        };
        cluster.arrives(by, 2, sent);
        cluster.rounds(4);
        assert_eq!(cluster.get(2, KEY), Some(100 + KEY), "{by} of {from}");
        assert_eq!(cluster.detours(2), 0, "{by} of {from}");
    }
    assert!(cluster.passed.is_empty());
    // The same frame, passed on as it should be, is taken: so it was no other reason.
    cluster.arrives(1, 3, pass(1, 2, &frame));
    cluster.rounds(4);
    assert_eq!(cluster.passed[&(3, 2)], 1);
    assert_eq!(cluster.get(2, KEY), None);
}

/// An eighth of a window, which its addressee makes nothing of.
fn bulk() -> Frame {
    let operation = Operation::Put {
        version: 0,
        value: Bytes::from(vec![0; Config::default().window_bytes / 8]),
    };
    let order = CopyOrder::Apply {
        point: KeyPoint(1),
        key: cluster::name(1),
        operation,
    };
    let message = Some(Message::Copy {
        id: 1_000,
        token: AssignmentVersion::first_of(1),
        order,
    });
    Frame {
        sequence: 1 << 40,
        confirmed: 0,
        message,
    }
}

/// Whatever others send: what a server passes on at once is bounded.
#[test]
fn what_is_passed_on_is_bounded() {
    let mut cluster = strong(&[1, 2, 3], &[&[1, 2], &[3, 1]]);
    let sent = pass(1, 2, &bulk());
    for _ in 0..100 {
        cluster.arrives(1, 3, sent.clone());
    }
    // A question gets through even then.
    let bare = Frame {
        sequence: 0,
        confirmed: 0,
        message: None,
    };
    cluster.arrives(1, 3, pass(1, 2, &bare));
    cluster.rounds(1);
    assert_eq!(cluster.passed[&(3, 2)], 8 + 1);
    // And there is room again later.
    cluster.seconds(1);
    cluster.arrives(1, 3, sent);
    cluster.rounds(1);
    assert_eq!(cluster.passed[&(3, 2)], 10);
}

/// Who passes frames on has more than enough of others to pass on, all the time: that a link
/// is whole again is found out all the same. It was not, where the question came with a
/// message, or the answer counted like one: and each commit waited until it was sent again.
#[test]
fn a_way_round_ends_though_who_passes_on_is_full() {
    let mut cluster = apart();
    assert!(cluster.passed.keys().all(|&(by, _)| by == 3));
    assert_eq!((cluster.detours(1), cluster.detours(2)), (1, 1));
    cluster.mend(1, 2);
    cluster.mend(2, 1);
    for value in 0..30 {
        for _ in 0..10 {
            cluster.arrives(4, 3, pass(4, 2, &bulk()));
        }
        cluster.put(1, KEY, value);
        cluster.tenth();
    }
    assert_eq!(cluster.detours(1), 0);
    let passed = cluster.passed.clone();
    cluster.put(1, KEY, 30);
    cluster.rounds(6);
    assert!(cluster.acknowledged(KEY), "directly, and at once");
    assert_eq!(cluster.passed, passed);
}

/// Servers of a release that does not know of it are not asked to pass on, and are told
/// nothing in this way.
#[test]
fn releases_of_before_pass_nothing_on() {
    let servers = [1, 2, 3, 4];
    let mut cluster = with_some_of_before(&[3], &servers, &[&[1, 2], &[4, 1]]);
    cluster.cut(1, 2);
    cluster.put(1, KEY, 7);
    cluster.seconds(4);
    assert!(cluster.acknowledged(KEY));
    assert!(cluster.passed.keys().all(|&(by, _)| by == 4));

    let mut cluster = with_some_of_before(&[2], &[1, 2, 3], &[&[1, 2], &[3, 1]]);
    cluster.cut(1, 2);
    cluster.put(1, KEY, 7);
    cluster.seconds(10);
    assert!(!cluster.acknowledged(KEY));
    assert!(cluster.passed.is_empty());
    cluster.mend(1, 2);
    cluster.seconds(1);
    assert!(cluster.acknowledged(KEY));
}
