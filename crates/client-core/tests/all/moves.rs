//! Lookups that meet replicas which move to other processes: they refuse, and serve again in
//! a moment.

use crate::get::{Script, check, v};
use trefoil_client_core::cas::{AT_REST_NS, Looked};
use trefoil_client_core::get::{
    Failure, GetFailure, GetOutcome, GetStep, MissReason, Plan, Strategy,
};
use trefoil_client_core::retry::{GiveUp, Limits};
use trefoil_layout::Version;
use trefoil_layout::op::{Found, LookupAnswer, Rejection};

/// What a replica says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Says {
    Holds(u64),
    Nothing,
    /// It moves.
    Moves,
    /// Nobody is there.
    Gone,
}

fn by_call() -> Plan<3> {
    Plan {
        strategies: [Strategy::Rpc; 3],
        fan_out: 3,
        ..Plan::frugal(0)
    }
}

/// How often each was asked, and the configuration learned for it.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    asked: [u32; 3],
    learned: [u32; 3],
}

impl Script<3> {
    /// Goes on for so many steps at the time 0, or until it has ended.
    fn goes_on(&mut self, says: [Says; 3], steps: u32) -> (Counts, Option<GetOutcome>) {
        let mut counts = Counts::default();
        for _ in 0..steps {
            match self.0.poll(0) {
                GetStep::Ask { replica, .. } => {
                    counts.asked[replica] += 1;
                    self.says(replica, says[replica]);
                }
                GetStep::Refresh { replica, .. } => {
                    counts.learned[replica] += 1;
                    self.0.handle_refreshed(replica);
                }
                GetStep::Reconnect { replica } | GetStep::Await { replica } => {
                    self.fails(replica, Failure::Connection);
                }
                GetStep::Pause { .. } => {}
                GetStep::Done(outcome) => return (counts, Some(outcome)),
                step => panic!("{step:?}"),
            }
        }
        (counts, None)
    }

    fn says(&mut self, replica: usize, says: Says) {
        let found = Found::Rejected(Rejection::UnknownConfig);
        match says {
            Says::Holds(time_ns) => self.answers(replica, time_ns),
            Says::Nothing => self.answers_absent(replica),
            Says::Gone => self.fails(replica, Failure::Connection),
            Says::Moves => {
                let answer = LookupAnswer { epoch: 1, found };
                self.0.handle_answer(replica, &answer, &check());
                self
            }
        };
    }
}

#[track_caller]
fn fails_at_the_deadline(mut get: Script<3>) {
    let step = get.0.poll(1_000);
    let GetStep::Done(GetOutcome::Failed { cause }) = step else {
        panic!("{step:?}");
    };
    let is_deadline = matches!(cause, GetFailure::GaveUp(GiveUp::Deadline { .. }));
    assert!(is_deadline, "{cause:?}");
    assert_eq!(get.0.looked(), Looked::Unknown);
}

/// A deadline ends that, no budget, and the topology may be another one by then. What one
/// says without them is no loss of quorum.
#[test]
fn two_that_move_are_asked_until_the_deadline() {
    use Says::{Gone, Holds, Moves, Nothing};
    for says in [
        [Moves, Moves, Holds(5)],
        [Nothing, Moves, Moves],
        [Moves, Moves, Moves],
        // Whichever comes first.
        [Gone, Moves, Holds(5)],
        [Moves, Gone, Holds(5)],
    ] {
        let mut get = Script::<3>::with(&by_call(), Limits::until(1_000));
        let (counts, outcome) = get.goes_on(says, 2_000);
        assert_eq!(outcome, None, "{says:?}");
        for (replica, says) in says.into_iter().enumerate() {
            let is_asked = counts.asked[replica] > 100 && counts.learned[replica] > 100;
            assert!(is_asked || says != Moves, "{says:?} {counts:?}");
        }
        fails_at_the_deadline(get);
    }
}

/// One that recovers needs both others: beside one that is gone nobody waits for it.
#[test]
fn one_that_recovers_is_not_waited_for_beside_one_that_is_gone() {
    for [gone, recovers] in [[0, 1], [1, 0]] {
        let mut get = Script::<3>::with(&by_call(), Limits::until(1_000));
        let found = Found::Rejected(Rejection::Recovering);
        for _ in 0..1_000 {
            match get.0.poll(0) {
                GetStep::Ask { replica: 2, .. } => {
                    get.answers(2, 5);
                }
                GetStep::Ask { replica, .. } if replica == recovers => {
                    let answer = LookupAnswer { epoch: 1, found };
                    get.0.handle_answer(replica, &answer, &check());
                }
                GetStep::Ask { replica, .. } | GetStep::Reconnect { replica } => {
                    assert_eq!(replica, gone);
                    get.fails(gone, Failure::Connection);
                }
                GetStep::Pause { .. } => {}
                step => {
                    let reason = MissReason::Inquorate;
                    assert_eq!(step, GetStep::Done(GetOutcome::Miss { reason }));
                    break;
                }
            }
        }
        get.miss(MissReason::Inquorate);
    }
}

/// The third has its memory, and decides in a moment: what the first holds may have been
/// acknowledged by the two of them, and evicted by the second.
#[test]
fn who_writes_waits_for_the_third_that_moves() {
    use Says::{Holds, Moves, Nothing};
    let plan = || by_call().careful(AT_REST_NS + 6, Version::ZERO);
    let says = [Holds(5), Moves, Nothing];
    let mut get = Script::<3>::with(&plan(), Limits::until(1_000));
    let (counts, outcome) = get.goes_on(says, 2_000);
    assert_eq!(outcome, None);
    assert!(counts.asked[1] > 100, "{counts:?}");
    // Also while it is asked.
    for _ in 0..20 {
        fails_at_the_deadline(Script(get.0.clone()));
        get.goes_on(says, 1);
    }
    // It has moved.
    let (_, outcome) = get.goes_on([Holds(5), Holds(5), Nothing], 100);
    let hit = |replica| GetOutcome::Hit {
        version: v(5),
        replica,
    };
    assert!([0, 1].map(hit).map(Some).contains(&outcome), "{outcome:?}");
    // To a reader it is a miss, once the retries are spent.
    let mut get = Script::<3>::with(&by_call().at(AT_REST_NS + 6), Limits::until(1_000));
    let (counts, outcome) = get.goes_on(says, 2_000);
    let reason = MissReason::Inquorate;
    assert_eq!(outcome, Some(GetOutcome::Miss { reason }));
    assert!(counts.asked[1] > 20, "{counts:?}");
}

/// What one replica that is asked has not answered yet is not left out either.
#[test]
fn who_writes_knows_of_no_disagreement_before_the_third_has_answered() {
    let plan = by_call().careful(AT_REST_NS + 6, Version::ZERO);
    let mut get = Script::<3>::with(&plan, Limits::until(1_000));
    for replica in 0..3 {
        get.asks(GetStep::Ask {
            replica,
            by_rpc: true,
        });
    }
    get.answers(0, 5).answers_absent(2);
    fails_at_the_deadline(get);
}

/// What a survivor holds may have been acknowledged by it and by the one that has moved
/// since, and never reach the other survivor in time.
#[test]
fn a_young_version_is_asked_of_the_one_that_has_moved() {
    let mut plan = Plan::frugal(0);
    plan.strategies[1] = Strategy::Down;
    let plans = [
        plan.at(AT_REST_NS + 5),
        plan.careful(AT_REST_NS + 5, Version::ZERO),
    ];
    // Where the survivors go on saying the same, and where one of them goes on changing.
    for (plan, changes) in plans.into_iter().flat_map(|plan| [(plan, 0), (plan, 1)]) {
        let mut get = Script::<3>::with(&plan, Limits::until(1_000));
        let mut time_ns = 5;
        for _ in 0..1_000 {
            match get.0.poll(0) {
                GetStep::ReadIndex { replica: 0 } => get.votes(0, time_ns, 1),
                GetStep::ReadIndex { replica: 2 } => get.absent(2),
                GetStep::Ask { replica: 0, .. } => get.answers(0, time_ns),
                GetStep::Ask { replica: 2, .. } => get.answers_absent(2),
                GetStep::ReadData { replica: 0, .. } => {
                    get.data(0, time_ns);
                    time_ns += changes;
                    continue;
                }
                GetStep::Pause { .. } => continue,
                step => {
                    assert_eq!(step, GetStep::Await { replica: 1 });
                    break;
                }
            };
        }
        time_ns = match get.0.voted(0) {
            Some(Some(version)) => version.time_ns,
            voted => panic!("{voted:?}"),
        };
        // It is late: without it nothing is known.
        get.0.handle_late(1);
        fails_at_the_deadline(Script(get.0.clone()));
        get.0.handle_reconnected(1);
        get.asks(GetStep::ReadIndex { replica: 1 });
        get.votes(1, time_ns, 1);
        get.hit(0, time_ns);
    }
}
