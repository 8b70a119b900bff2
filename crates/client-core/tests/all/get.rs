//! GET, step by step: each scenario is a script of what the machine asks for
//! and what it is told.

use trefoil_client_core::cas::{AT_REST_NS, Looked};
use trefoil_client_core::data::DataCheck;
use trefoil_client_core::get::{
    Failure, Get, GetFailure, GetOutcome, GetStep, MissReason, ONE_SIDED_FAULTS_MAX, Plan, Strategy,
};
use trefoil_client_core::retry::{GiveUp, Limits, RETRIES_MAX_DEFAULT, RetryCause};
use trefoil_client_core::vote::IndexVote;
use trefoil_layout::data::DataEntry;
use trefoil_layout::op::{Expected, Found, LookupAnswer, Rejection};
use trefoil_layout::{IndexEntry, KeyHash, Pointer, Version};

const KEY: &[u8] = b"key";
pub(crate) const HASH: KeyHash = KeyHash { place: 5, tag: 9 };
const NOW_MS: u64 = 1_000;
const ABSENT: IndexVote = IndexVote::Absent { epoch: 1 };

pub(crate) fn v(time_ns: u64) -> Version {
    Version::new(time_ns, 1, 0)
}

fn pointer(replica: usize) -> Pointer {
    Pointer::new(replica as u64 * 64, 64).unwrap()
}

/// A vote for version `time_ns` by `replica`, whose slot number is its own number.
fn present(replica: usize, time_ns: u64, epoch: u32) -> IndexVote {
    IndexVote::Present {
        slot_number: replica as u32,
        entry: IndexEntry {
            tag: HASH.tag,
            version: v(time_ns),
            pointer: pointer(replica),
        },
        epoch,
    }
}

fn bytes_of(key: &[u8], time_ns: u64, expiry_ms: u64) -> Vec<u8> {
    let entry = DataEntry {
        expiry_ms,
        key,
        value: b"value",
        ..DataEntry::default()
    };
    let mut bytes = vec![0; entry.encoded_len()];
    entry.encode(&mut bytes, HASH.tag, v(time_ns));
    bytes
}

pub(crate) fn check() -> DataCheck<'static> {
    DataCheck {
        key: KEY,
        now_ms: NOW_MS,
        flush_floor: Version::ZERO,
    }
}

/// The machine and its script.
pub(crate) struct Script<const N: usize>(pub(crate) Get<N>);

impl<const N: usize> Script<N> {
    fn new() -> Self {
        Self::with(&Plan::frugal(0), Limits::until(u64::MAX))
    }
    pub(crate) fn with(plan: &Plan<N>, limits: Limits) -> Self {
        Script(Get::new(plan, HASH, limits, 0))
    }
    #[track_caller]
    pub(crate) fn asks(&mut self, step: GetStep) -> &mut Self {
        assert_eq!(self.0.poll(0), step);
        self
    }
    #[track_caller]
    fn asks_index(&mut self, replica: usize) -> &mut Self {
        self.asks(GetStep::ReadIndex { replica })
    }
    #[track_caller]
    fn asks_data(&mut self, replica: usize) -> &mut Self {
        let pointer = pointer(replica);
        self.asks(GetStep::ReadData { replica, pointer })
    }
    #[track_caller]
    fn waits(&mut self) -> &mut Self {
        let step = self.0.poll(0);
        assert!(matches!(step, GetStep::Wait { .. }), "{step:?}");
        self
    }
    #[track_caller]
    fn pauses(&mut self) -> &mut Self {
        let step = self.0.poll(0);
        assert!(matches!(step, GetStep::Pause { .. }), "{step:?}");
        self
    }
    fn index(&mut self, replica: usize, vote: IndexVote) -> &mut Self {
        self.0.handle_index(replica, vote);
        self
    }
    pub(crate) fn votes(&mut self, replica: usize, time_ns: u64, epoch: u32) -> &mut Self {
        self.index(replica, present(replica, time_ns, epoch))
    }
    pub(crate) fn absent(&mut self, replica: usize) -> &mut Self {
        self.index(replica, ABSENT)
    }
    /// A message is answered with version `time_ns`.
    pub(crate) fn answers(&mut self, replica: usize, time_ns: u64) -> &mut Self {
        let data = bytes_of(KEY, time_ns, 0);
        let found = Found::Present {
            version: v(time_ns),
            data: &data,
        };
        let answer = LookupAnswer { epoch: 1, found };
        self.0.handle_answer(replica, &answer, &check());
        self
    }
    pub(crate) fn answers_absent(&mut self, replica: usize) -> &mut Self {
        let found = Found::Absent;
        let answer = LookupAnswer { epoch: 1, found };
        self.0.handle_answer(replica, &answer, &check());
        self
    }
    pub(crate) fn data(&mut self, replica: usize, time_ns: u64) -> &mut Self {
        self.bytes(replica, &bytes_of(KEY, time_ns, 0))
    }
    fn bytes(&mut self, replica: usize, bytes: &[u8]) -> &mut Self {
        self.0.handle_data(replica, bytes, &check());
        self
    }
    pub(crate) fn fails(&mut self, replica: usize, failure: Failure) -> &mut Self {
        self.0.handle_failure(replica, failure);
        self
    }
    #[track_caller]
    pub(crate) fn hit(&mut self, replica: usize, time_ns: u64) -> &mut Self {
        let version = v(time_ns);
        self.asks(GetStep::Done(GetOutcome::Hit { version, replica }))
    }
    #[track_caller]
    pub(crate) fn miss(&mut self, reason: MissReason) -> &mut Self {
        self.asks(GetStep::Done(GetOutcome::Miss { reason }))
    }
    #[track_caller]
    fn retried(&mut self, causes: &[(RetryCause, u64)]) {
        let counts: Vec<_> = self.0.retries().iter().filter(|(_, n)| *n > 0).collect();
        assert_eq!(counts, causes);
        assert_eq!(self.0.is_clean(), causes.is_empty());
    }
}

#[test]
fn one_copy_hit() {
    let mut get = Script::<1>::new();
    get.asks_index(0)
        .waits()
        .votes(0, 5, 1)
        .asks_data(0)
        .waits();
    get.data(0, 5).hit(0, 5).hit(0, 5).retried(&[]);
    assert_eq!(get.0.touched_slot(0), Some(0));
}

/// Copies of an immutable corpus change one after the other: the one that has not, or is at
/// it, is looked at again, and then the other one is asked.
#[test]
fn of_two_copies_the_one_of_the_known_configuration_answers() {
    let other = IndexVote::ConfigChanged { found: 9 };
    let cause = RetryCause::ConfigChanged;
    let refresh = |replica| GetStep::Refresh { replica, cause };
    let mut get = Script::<2>::new();
    for _ in 0..2 {
        get.asks_index(0).index(0, other).asks(refresh(0));
        get.0.handle_refreshed(0);
    }
    get.asks_index(0).index(0, other);
    get.asks_index(1).votes(1, 5, 1).asks_data(1);
    get.data(1, 5).hit(1, 5);
    // Neither is there yet: it goes on looking at both, for longer than budgets last.
    let mut get = Script::<2>::new();
    let mut asked = [0; 2];
    while asked.iter().sum::<u32>() < 200 {
        match get.0.poll(0) {
            GetStep::ReadIndex { replica } => {
                asked[replica] += 1;
                get.index(replica, other);
            }
            GetStep::Ask { replica, .. } => {
                asked[replica] += 1;
                let found = Found::Rejected(Rejection::UnknownConfig);
                let answer = LookupAnswer { epoch: 1, found };
                get.0.handle_answer(replica, &answer, &check());
            }
            GetStep::Refresh { replica, .. } => get.0.handle_refreshed(replica),
            GetStep::Pause { .. } => {}
            step => panic!("{step:?}"),
        }
    }
    assert!(asked.iter().all(|count| *count > 20), "{asked:?}");
}

#[test]
fn one_copy_misses() {
    Script::<1>::new()
        .asks_index(0)
        .absent(0)
        .miss(MissReason::Absent);
    let mut get = Script::<1>::new();
    get.asks_index(0).votes(0, 5, 1).asks_data(0);
    get.bytes(0, &bytes_of(KEY, 5, NOW_MS))
        .miss(MissReason::Expired);
    let mut get = Script::<1>::new();
    get.asks_index(0).votes(0, 5, 1).asks_data(0);
    get.bytes(0, &bytes_of(b"another", 5, 0))
        .miss(MissReason::Absent);
    let mut get = Script::<1>::new();
    get.asks_index(0).votes(0, 5, 1).asks_data(0);
    let flushed = DataCheck {
        flush_floor: v(5),
        ..check()
    };
    get.0.handle_data(0, &bytes_of(KEY, 5, 0), &flushed);
    get.miss(MissReason::Flushed);
    assert_eq!(get.0.touched_slot(0), None);
}

#[test]
fn torn_data_reads_the_index_again_and_in_the_end_asks() {
    let mut get = Script::<1>::new();
    for fault in 1..ONE_SIDED_FAULTS_MAX {
        get.asks_index(0).votes(0, 5, 1).asks_data(0).data(0, 6);
        if fault > 2 {
            get.pauses();
        }
    }
    get.asks_index(0).index(0, IndexVote::Unstable).pauses();
    get.asks(GetStep::Ask {
        replica: 0,
        by_rpc: false,
    });
    let data = bytes_of(KEY, 7, 0);
    let answer = LookupAnswer {
        epoch: 1,
        found: Found::Present {
            version: v(7),
            data: &data,
        },
    };
    get.0.handle_answer(0, &answer, &check());
    get.hit(0, 7);
    get.retried(&[(RetryCause::Torn, 3), (RetryCause::Unstable, 1)]);
    assert_eq!(get.0.touched_slot(0), None, "no slot is known by message");
}

#[test]
fn a_poisoned_index_and_a_pointer_out_of_the_window_are_refreshed() {
    let mut get = Script::<1>::new();
    get.asks_index(0)
        .index(0, IndexVote::ConfigChanged { found: 0 });
    let cause = RetryCause::ConfigChanged;
    get.asks(GetStep::Refresh { replica: 0, cause }).waits();
    get.0.handle_refreshed(0);
    get.asks_index(0).votes(0, 5, 1).asks_data(0);
    get.0.handle_out_of_window(0);
    let cause = RetryCause::Window;
    get.asks(GetStep::Refresh { replica: 0, cause });
    get.0.handle_refreshed(0);
    get.asks_index(0)
        .votes(0, 5, 1)
        .asks_data(0)
        .data(0, 5)
        .hit(0, 5);
    get.retried(&[(RetryCause::ConfigChanged, 1), (RetryCause::Window, 1)]);
}

#[test]
fn a_backend_that_rewrites_its_buckets_is_asked_by_message() {
    let mut get = Script::<1>::new();
    for _ in 0..ONE_SIDED_FAULTS_MAX {
        get.asks_index(0)
            .index(0, IndexVote::ConfigChanged { found: 7 });
        let cause = RetryCause::ConfigChanged;
        let mut step = get.0.poll(0);
        while matches!(step, GetStep::Pause { .. }) {
            step = get.0.poll(0);
        }
        assert_eq!(step, GetStep::Refresh { replica: 0, cause });
        get.0.handle_refreshed(0);
    }
    get.asks(GetStep::Ask {
        replica: 0,
        by_rpc: false,
    });
}

#[test]
fn one_copy_that_is_down_is_reconnected_until_the_budget_ends() {
    let limits = Limits {
        retries_max: 2,
        ..Limits::until(u64::MAX)
    };
    let mut get = Script::<1>::with(&Plan::frugal(0), limits);
    get.asks_index(0).fails(0, Failure::Lease);
    get.asks(GetStep::Reconnect { replica: 0 });
    get.fails(0, Failure::Connection);
    get.asks(GetStep::Reconnect { replica: 0 });
    get.0.handle_reconnected(0);
    get.asks_index(0).fails(0, Failure::Connection);
    let last = RetryCause::Connection;
    let cause = GetFailure::GaveUp(GiveUp::Budget { last });
    get.asks(GetStep::Done(GetOutcome::Failed { cause }));
}

#[test]
fn the_deadline_is_looked_at_even_if_nothing_comes() {
    let mut get = Script::<1>::with(&Plan::frugal(0), Limits::until(100));
    get.asks_index(0).asks(GetStep::Wait { until_ns: 100 });
    let cause = GetFailure::GaveUp(GiveUp::Deadline { last: None });
    assert_eq!(get.0.poll(100), GetStep::Done(GetOutcome::Failed { cause }));
    get.votes(0, 5, 1);
    get.asks(GetStep::Done(GetOutcome::Failed { cause }));
}

#[test]
fn two_immutable_copies_fall_over() {
    let mut get = Script::<2>::with(&Plan::frugal(1), Limits::until(u64::MAX));
    get.asks_index(1).waits().fails(1, Failure::Lease);
    get.asks_index(0)
        .votes(0, 5, 1)
        .asks_data(0)
        .data(0, 5)
        .hit(0, 5);
    get.retried(&[(RetryCause::Lease, 1)]);
    Script::<2>::new()
        .asks_index(0)
        .absent(0)
        .miss(MissReason::Absent);
}

#[test]
fn quorum_of_two_reads_two_indexes_and_the_preferred_ones_data() {
    let mut get = Script::<3>::with(&Plan::frugal(2), Limits::until(u64::MAX));
    get.asks_index(2).asks_index(0).waits();
    get.votes(2, 5, 1).asks_data(2).waits();
    get.votes(0, 5, 1).waits().data(2, 5).hit(2, 5).retried(&[]);
    assert_eq!(get.0.touched_slot(2), Some(2));
    assert_eq!(get.0.touched_slot(0), Some(0));
    assert_eq!(get.0.touched_slot(1), None);
}

#[test]
fn data_comes_from_whoever_answers_first() {
    let mut get = Script::<3>::new();
    get.asks_index(0).asks_index(1).votes(1, 5, 1).asks_data(1);
    get.data(1, 5).waits().votes(0, 5, 1).hit(1, 5);
}

#[test]
fn the_third_is_asked_only_if_two_disagree() {
    let mut get = Script::<3>::new();
    get.asks_index(0)
        .asks_index(1)
        .votes(0, 5, 1)
        .votes(1, 6, 1);
    get.asks_data(0).asks_index(2).votes(2, 6, 1);
    // The data read first is of no member of the quorum.
    get.asks_data(1).data(0, 5).waits().data(1, 6).hit(1, 6);
    get.retried(&[]);
    assert_eq!(get.0.touched_slot(0), None, "it has another version");
}

#[test]
fn a_key_is_dirty_where_all_three_have_voted_and_not_alike() {
    let is_dirty = |votes: [Option<u64>; 3]| {
        let mut get = Script::<3>::new();
        for (replica, vote) in votes.into_iter().enumerate() {
            match vote {
                Some(time_ns) => get.votes(replica, time_ns, 1),
                None => get.absent(replica),
            };
        }
        get.0.is_dirty()
    };
    assert!(is_dirty([Some(5), Some(6), Some(6)]));
    assert!(is_dirty([Some(5), None, Some(5)]));
    assert!(is_dirty([None, Some(5), None]));
    assert!(is_dirty([Some(5), Some(6), Some(7)]));
    // Two that agree end it: what the third holds is not known.
    let mut get = Script::<3>::new();
    get.asks_index(0)
        .asks_index(1)
        .votes(0, 5, 1)
        .votes(1, 5, 1);
    get.asks_data(0).data(0, 5).hit(0, 5);
    assert!(!get.0.is_dirty());
    let mut get = Script::<3>::new();
    get.votes(0, 5, 1).votes(1, 6, 1);
    get.fails(2, Failure::Connection);
    assert!(!get.0.is_dirty(), "one has not voted");
    assert!(!Script::<1>::new().votes(0, 5, 1).0.is_dirty());
}

#[test]
fn two_absents_are_a_miss_in_any_epoch() {
    let mut get = Script::<3>::new();
    get.asks_index(0).asks_index(1).absent(0).waits();
    get.index(1, IndexVote::Absent { epoch: 7 })
        .miss(MissReason::Absent);
    let mut get = Script::<3>::new();
    get.asks_index(0).asks_index(1).absent(0).votes(1, 5, 1);
    get.asks_data(1)
        .asks_index(2)
        .absent(2)
        .miss(MissReason::Absent);
}

#[test]
fn votes_of_different_epochs_do_not_count_together() {
    let mut get = Script::<3>::new();
    get.asks_index(0)
        .asks_index(1)
        .votes(0, 5, 1)
        .votes(1, 5, 2);
    get.asks_data(0).asks_index(2).data(0, 5).waits();
    get.votes(2, 5, 2).asks_data(1).data(1, 5).hit(1, 5);
}

#[test]
fn a_dead_replica_costs_one_fall_over() {
    for failure in [Failure::Lease, Failure::Connection] {
        let mut get = Script::<3>::new();
        get.asks_index(0)
            .fails(0, failure)
            .asks_index(1)
            .asks_index(2);
        get.votes(1, 5, 1)
            .votes(2, 5, 1)
            .asks_data(1)
            .data(1, 5)
            .hit(1, 5);
        assert_eq!(get.0.retries().total(), 1);
    }
    // Known to be dead: not even that.
    let mut plan = Plan::frugal(0);
    plan.strategies[0] = Strategy::Down;
    let mut get = Script::<3>::with(&plan, Limits::until(u64::MAX));
    get.asks_index(1)
        .asks_index(2)
        .votes(1, 5, 1)
        .votes(2, 5, 1);
    get.asks_data(1).data(1, 5).hit(1, 5).retried(&[]);
}

#[test]
fn a_replica_that_dies_between_vote_and_data_is_replaced() {
    let mut get = Script::<3>::new();
    get.asks_index(0)
        .asks_index(1)
        .votes(0, 5, 1)
        .votes(1, 5, 1);
    get.asks_data(0)
        .fails(0, Failure::Lease)
        .asks_data(1)
        .asks_index(2);
    get.data(1, 5).waits().votes(2, 5, 1).hit(1, 5);
}

#[test]
fn recovering_replicas_give_no_vote_not_even_for_a_miss() {
    let mut get = Script::<3>::new();
    get.asks_index(0)
        .asks_index(1)
        .index(0, IndexVote::Recovering)
        .absent(1);
    get.asks_index(2).waits().absent(2).miss(MissReason::Absent);
    get.retried(&[(RetryCause::Recovering, 1)]);
}

#[test]
fn without_agreement_another_round_begins_and_in_the_end_it_is_a_miss() {
    let limits = Limits {
        retries_max: 1,
        ..Limits::until(u64::MAX)
    };
    let mut get = Script::<3>::with(&Plan::frugal(0), limits);
    get.asks_index(0).votes(0, 5, 1).asks_data(0).data(0, 5);
    get.asks_index(1)
        .votes(1, 6, 1)
        .asks_index(2)
        .votes(2, 7, 1);
    // Two of them might be of items whose time is over.
    get.asks_data(1).asks_data(2).data(1, 6).data(2, 7);
    get.asks_index(0)
        .asks_index(1)
        .votes(0, 7, 1)
        .absent(1)
        .asks_data(0)
        .data(0, 7);
    get.asks_index(2).votes(2, 8, 1).asks_data(2).data(2, 8);
    get.miss(MissReason::Inquorate);
    get.retried(&[(RetryCause::Inquorate, 2)]);
}

#[test]
fn an_expired_entry_that_one_replica_has_removed_already_is_a_miss_at_once() {
    let mut get = Script::<3>::new();
    get.asks_index(0)
        .asks_index(1)
        .fails(2, Failure::Connection)
        .votes(0, 5, 1)
        .absent(1)
        .asks_data(0);
    get.bytes(0, &bytes_of(KEY, 5, NOW_MS))
        .miss(MissReason::Expired);
}

#[test]
fn an_expired_entry_is_looked_at_even_if_another_vote_came_first() {
    // Erased by a CAS to what has expired, of which replica 0 has not heard;
    // replica 2 has removed it already.
    let mut get = Script::<3>::new();
    get.asks_index(0)
        .asks_index(1)
        .votes(0, 5, 1)
        .votes(1, 6, 1)
        .asks_data(0)
        .data(0, 5);
    get.asks_index(2).absent(2).asks_data(1);
    get.bytes(1, &bytes_of(KEY, 6, NOW_MS))
        .miss(MissReason::Expired)
        .retried(&[]);
}

/// Rounds in which replica 0 has version 5, replica 1 version 6, and replica 2
/// what `third` says, until the machine asks by message.
#[track_caller]
fn the_same_until_it_asks(plan: &Plan<3>, third: IndexVote) -> Script<3> {
    let mut get = Script::<3>::with(plan, Limits::until(u64::MAX));
    let by_rpc = false;
    let mut rounds = 0;
    loop {
        match get.0.poll(0) {
            GetStep::ReadIndex { replica: 2 } => {
                rounds += 1;
                get.index(2, third)
            }
            GetStep::ReadIndex { replica } => get.votes(replica, 5 + replica as u64, 1),
            GetStep::ReadData { replica, .. } => get.data(replica, 5 + replica as u64),
            GetStep::Pause { .. } => continue,
            step => {
                assert_eq!(step, GetStep::Ask { replica: 0, by_rpc });
                break;
            }
        };
    }
    assert_eq!(rounds, 10, "far fewer than the budget allows");
    get.asks(GetStep::Ask { replica: 1, by_rpc });
    get.asks(GetStep::Ask { replica: 2, by_rpc }).waits();
    get
}

/// With replica 1 down: 0 has version 5, and 2 nothing.
#[track_caller]
fn survivors_disagree(get: &mut Script<3>) {
    get.asks_index(0).asks_index(2).votes(0, 5, 1).absent(2);
    get.asks_data(0).data(0, 5);
}

fn without_1() -> Plan<3> {
    let mut plan = Plan::frugal(0);
    plan.strategies[1] = Strategy::Down;
    plan
}

#[test]
fn survivors_that_disagree_are_a_miss_after_one_more_look() {
    let mut get = Script::<3>::with(&without_1(), Limits::until(u64::MAX));
    for _ in 0..2 {
        survivors_disagree(&mut get);
    }
    get.asks(GetStep::Await { replica: 1 });
    get.fails(1, Failure::Connection);
    get.miss(MissReason::Inquorate);
    let present = [Some(v(5)), None, None];
    assert_eq!(get.0.looked(), Looked::Disagree { present });
    // What was on its way has arrived by then.
    let mut get = Script::<3>::with(&without_1(), Limits::until(u64::MAX));
    survivors_disagree(&mut get);
    get.asks_index(0).asks_index(2);
    get.votes(0, 5, 1).votes(2, 5, 1).asks_data(0).data(0, 5);
    get.hit(0, 5);
    assert_eq!(get.0.looked(), Looked::Agreed(Expected::Version(v(5))));
}

/// A SET may have been acknowledged by a survivor and by the replica that died after it.
#[test]
fn a_reader_waits_for_what_may_be_on_its_way_to_the_other_survivor() {
    let limits = Limits::until(u64::MAX);
    let disagree = |get: &mut Script<3>| {
        survivors_disagree(get);
        if let GetStep::Pause { .. } = get.0.clone().poll(0) {
            get.0.poll(0);
        }
    };
    let by_rpc = false;
    let asked = || {
        let mut get = Script::<3>::with(&without_1().at(AT_REST_NS + 5), limits);
        for _ in 0..10 {
            disagree(&mut get);
        }
        get.asks(GetStep::Ask { replica: 0, by_rpc });
        get.asks(GetStep::Ask { replica: 2, by_rpc }).waits();
        get
    };
    // It had not got to run.
    asked().answers(0, 5).answers(2, 5).hit(0, 5);
    // It never gets there, and the third one is gone: a miss, once the retries are spent.
    let mut get = asked();
    get.answers(0, 5).answers_absent(2);
    get.asks(GetStep::Await { replica: 1 });
    get.fails(1, Failure::Connection);
    let mut rounds = 0;
    loop {
        match get.0.clone().poll(0) {
            GetStep::Done(_) => break,
            GetStep::Pause { .. } => drop(get.0.poll(0)),
            _ => {
                survivors_disagree(&mut get);
                rounds += 1;
            }
        }
    }
    get.miss(MissReason::Inquorate);
    assert_eq!(rounds, usize::from(RETRIES_MAX_DEFAULT) - 9);
    // What is at rest is not waited for.
    let mut get = Script::<3>::with(&without_1().at(AT_REST_NS + 6), limits);
    for _ in 0..2 {
        survivors_disagree(&mut get);
    }
    get.asks(GetStep::Await { replica: 1 });
    get.fails(1, Failure::Connection);
    get.miss(MissReason::Inquorate);
}

#[test]
fn who_asks_carefully_is_told_of_no_miss_while_something_may_be_on_its_way() {
    // Version 5 is no older than a tenth of a second.
    let now = AT_REST_NS + 5;
    let limits = Limits {
        retries_max: 4,
        ..Limits::until(u64::MAX)
    };
    let mut get = Script::<3>::with(&without_1().careful(now, Version::ZERO), limits);
    for _ in 0..5 {
        survivors_disagree(&mut get);
        if let GetStep::Pause { .. } = get.0.clone().poll(0) {
            get.0.poll(0);
        }
    }
    get.asks(GetStep::Await { replica: 1 });
    get.fails(1, Failure::Connection);
    let last = RetryCause::Inquorate;
    let cause = GetFailure::GaveUp(GiveUp::Budget { last });
    get.asks(GetStep::Done(GetOutcome::Failed { cause }));
    assert_eq!(get.0.looked(), Looked::Unknown);
    // It is older, or it is who asks that has left it there.
    for plan in [
        without_1().careful(now + 1, Version::ZERO),
        without_1().careful(now, v(5)),
    ] {
        let mut get = survivors_are_asked(&plan, limits);
        get.answers(0, 5).answers_absent(2);
        get.asks(GetStep::Await { replica: 1 });
        get.fails(1, Failure::Connection);
        get.miss(MissReason::Inquorate);
        let present = [Some(v(5)), None, None];
        assert_eq!(get.0.looked(), Looked::Disagree { present });
        // One of them had not got round to it.
        let mut get = survivors_are_asked(&plan, limits);
        get.answers(0, 5).answers(2, 5).hit(0, 5);
    }
    // Three that disagree: as patient as for everybody.
    let mut get = the_same_until_it_asks(&Plan::frugal(0).careful(now, Version::ZERO), ABSENT);
    get.absent(0).absent(2);
    get.miss(MissReason::Absent);
}

#[test]
fn a_replica_that_has_paused_decides_when_it_is_back() {
    let mut get = Script::<3>::with(&without_1(), Limits::until(u64::MAX));
    for _ in 0..2 {
        survivors_disagree(&mut get);
    }
    get.asks(GetStep::Await { replica: 1 }).waits();
    get.0.handle_reconnected(1);
    get.asks_index(1).votes(1, 5, 1).hit(0, 5);
    // It is waited for once: it has gone again.
    let mut get = Script::<3>::with(&without_1(), Limits::until(u64::MAX));
    for _ in 0..2 {
        survivors_disagree(&mut get);
    }
    get.asks(GetStep::Await { replica: 1 });
    get.0.handle_reconnected(1);
    get.asks_index(1).fails(1, Failure::Connection);
    get.miss(MissReason::Inquorate);
}

/// What two say without the one that is waited for is no loss of quorum: it may have what
/// was stored last.
#[test]
fn while_a_replica_is_waited_for_there_is_no_miss() {
    let limits = Limits::until(1_000);
    let last = Some(RetryCause::Inquorate);
    let cause = GetFailure::GaveUp(GiveUp::Deadline { last });
    let failed = GetStep::Done(GetOutcome::Failed { cause });
    let disagree = || {
        let mut get = Script::<3>::with(&without_1(), limits);
        for _ in 0..2 {
            survivors_disagree(&mut get);
        }
        get
    };
    // Before the driver is asked to wait, while it does, and when it is looked up again.
    assert_eq!(disagree().0.poll(1_000), failed);
    let mut get = disagree();
    get.asks(GetStep::Await { replica: 1 }).waits();
    assert_eq!(get.0.poll(1_000), failed);
    let mut get = disagree();
    get.asks(GetStep::Await { replica: 1 });
    get.0.handle_reconnected(1);
    get.asks_index(1);
    assert_eq!(get.0.poll(1_000), failed);
    // It has answered: three that disagree are as before.
    let mut get = disagree();
    get.asks(GetStep::Await { replica: 1 });
    get.0.handle_reconnected(1);
    get.asks_index(1).votes(1, 7, 1);
    assert_eq!(
        get.0.poll(1_000),
        GetStep::Done(GetOutcome::Miss {
            reason: MissReason::Inquorate
        })
    );
}

/// One that is reached by calls is looked up as often as the driver says that its successor
/// is still to come, at no expense of retries.
#[test]
fn a_late_successor_is_looked_up_again_and_again() {
    let limits = Limits {
        retries_max: 2,
        ..Limits::until(u64::MAX)
    };
    let mut get = Script::<3>::with(&without_1(), limits);
    for _ in 0..2 {
        survivors_disagree(&mut get);
    }
    let by_rpc = true;
    for _ in 0..100 {
        get.asks(GetStep::Await { replica: 1 });
        get.0.handle_late_again(1, Strategy::Rpc);
        get.asks(GetStep::Ask { replica: 1, by_rpc }).waits();
        get.fails(1, Failure::Connection);
    }
    get.asks(GetStep::Await { replica: 1 });
    get.0.handle_late_again(1, Strategy::Rpc);
    get.asks(GetStep::Ask { replica: 1, by_rpc });
    get.answers(1, 5).hit(0, 5);
    // Two of three are late: the one that has voted is no quorum that was lost.
    let mut plan = without_1();
    plan.strategies[2] = Strategy::Down;
    let mut get = Script::<3>::with(&plan, limits);
    get.asks_index(0).votes(0, 5, 1);
    loop {
        match get.0.poll(0) {
            GetStep::Reconnect { replica } => get.0.handle_late_again(replica, Strategy::Rpc),
            GetStep::Ask { replica, .. } => get.0.handle_failure(replica, Failure::Connection),
            GetStep::ReadData { .. } => {
                get.data(0, 5);
            }
            GetStep::Pause { .. } => {}
            step => {
                let last = RetryCause::Connection;
                let cause = GetFailure::GaveUp(GiveUp::Budget { last });
                assert_eq!(step, GetStep::Done(GetOutcome::Failed { cause }));
                break;
            }
        }
    }
}

#[test]
fn where_a_lease_has_just_ended_the_survivors_are_asked() {
    let mut get = Script::<3>::new();
    get.asks_index(0).asks_index(1).fails(1, Failure::Lease);
    for _ in 0..2 {
        get.asks_index(2).votes(0, 5, 1).votes(2, 4, 1);
        get.asks_data(0).data(0, 5);
        if let GetStep::Pause { .. } = get.0.clone().poll(0) {
            get.0.poll(0);
        }
        if get.0.clone().poll(0) == (GetStep::ReadIndex { replica: 0 }) {
            get.asks_index(0);
        }
    }
    for replica in [0, 2] {
        let by_rpc = false;
        get.asks(GetStep::Ask { replica, by_rpc });
    }
    // The last one had the message in its ring.
    get.answers(2, 5).answers(0, 5);
    get.hit(0, 5);
}

/// Survivors that disagree, up to the question what they answer.
#[track_caller]
fn survivors_are_asked(plan: &Plan<3>, limits: Limits) -> Script<3> {
    let mut get = Script::<3>::with(plan, limits);
    for _ in 0..2 {
        survivors_disagree(&mut get);
    }
    for replica in [0, 2] {
        let by_rpc = false;
        get.asks(GetStep::Ask { replica, by_rpc });
    }
    get.waits();
    get
}

#[test]
fn one_that_is_left_alone_disagrees_with_nobody() {
    let careful = without_1().careful(AT_REST_NS + 6, Version::ZERO);
    let limits = Limits {
        retries_max: 0,
        ..Limits::until(u64::MAX)
    };
    // To a reader it is a miss.
    for plan in [without_1(), careful] {
        let mut get = Script::<3>::with(&plan, limits);
        get.asks_index(0).asks_index(2).votes(0, 5, 1);
        get.asks_data(0).data(0, 5).fails(2, Failure::Lease);
        match plan.is_careful {
            false => {
                get.miss(MissReason::Inquorate);
            }
            true => {
                let last = RetryCause::Connection;
                let cause = GetFailure::GaveUp(GiveUp::Budget { last });
                get.asks(GetStep::Done(GetOutcome::Failed { cause }));
            }
        }
        assert_eq!(get.0.looked(), Looked::Unknown);
    }
    // It falls silent when it is asked.
    let one_more_look = Limits {
        retries_max: 1,
        ..limits
    };
    let mut get = survivors_are_asked(&careful, one_more_look);
    get.answers(0, 5).fails(2, Failure::Lease);
    let step = get.0.poll(0);
    assert!(
        matches!(step, GetStep::Done(GetOutcome::Failed { .. })),
        "{step:?}"
    );
}

#[test]
fn replicas_that_go_on_disagreeing_are_asked_before_it_is_a_miss() {
    // One had not got round to the mutation that another one holds.
    let mut get = the_same_until_it_asks(&Plan::frugal(0), ABSENT);
    get.answers(0, 6).answers(1, 6).hit(0, 6);
    // They say what they said: one of two that live has evicted it, say.
    let mut get = the_same_until_it_asks(&Plan::frugal(0), ABSENT);
    get.answers(0, 5).answers(1, 6).answers_absent(2);
    get.miss(MissReason::Inquorate);
}

#[test]
fn three_values_at_rest_are_a_disagreement_for_who_asks_carefully() {
    // Nobody has evicted: each holds a version that the others do not.
    let plan = Plan::frugal(0).careful(AT_REST_NS + 100, Version::ZERO);
    let mut get = the_same_until_it_asks(&plan, present(2, 7, 1));
    for replica in 0..3 {
        get.votes(replica, 5 + replica as u64, 1);
    }
    for _ in 0..3 {
        if let GetStep::ReadData { replica, .. } = get.0.poll(0) {
            get.data(replica, 5 + replica as u64);
        }
    }
    get.miss(MissReason::Inquorate);
    let present = [Some(v(5)), Some(v(6)), Some(v(7))];
    assert_eq!(get.0.looked(), Looked::Disagree { present });
}

#[test]
fn votes_that_still_change_are_waited_for() {
    let mut get = Script::<3>::new();
    get.asks_index(0)
        .asks_index(1)
        .fails(2, Failure::Connection);
    for round in 0..20 {
        get.votes(0, 5 + round, 1).absent(1);
        get.asks_data(0).data(0, 5 + round);
        let step = match get.0.poll(0) {
            GetStep::Pause { .. } => get.0.poll(0),
            step => step,
        };
        assert_eq!(step, GetStep::ReadIndex { replica: 0 });
        get.asks_index(1);
    }
    get.votes(0, 90, 1).votes(1, 90, 1).asks_data(0).data(0, 90);
    get.hit(0, 90);
}

#[test]
fn torn_data_of_a_quorum_member_is_read_again_there() {
    let mut get = Script::<3>::new();
    get.asks_index(0)
        .asks_index(1)
        .votes(0, 5, 1)
        .votes(1, 5, 1);
    get.asks_data(0).data(0, 4).asks_index(0).votes(0, 5, 1);
    get.asks_data(0).data(0, 5).hit(0, 5);
    get.retried(&[(RetryCause::Torn, 1)]);
}

#[test]
fn two_dead_replicas_are_no_quorum() {
    let limits = Limits {
        retries_max: 1,
        ..Limits::until(u64::MAX)
    };
    let mut get = Script::<3>::with(&Plan::frugal(0), limits);
    get.asks_index(0)
        .asks_index(1)
        .fails(0, Failure::Connection);
    get.fails(1, Failure::Connection).asks_index(2).waits();
    get.votes(2, 5, 1);
    get.asks(GetStep::Reconnect { replica: 0 });
    get.asks(GetStep::Reconnect { replica: 1 });
    get.fails(0, Failure::Connection)
        .fails(1, Failure::Connection);
    get.asks_data(2).data(2, 5).miss(MissReason::Inquorate);
}

#[test]
fn nobody_reachable_is_a_failure_not_a_miss() {
    let limits = Limits {
        retries_max: 0,
        ..Limits::until(u64::MAX)
    };
    let mut get = Script::<3>::with(&Plan::frugal(0), limits);
    get.asks_index(0).asks_index(1);
    for replica in 0..3 {
        get.fails(replica, Failure::Lease);
    }
    let last = RetryCause::Lease;
    let cause = GetFailure::GaveUp(GiveUp::Budget { last });
    get.asks(GetStep::Done(GetOutcome::Failed { cause }));
}

#[test]
fn a_slow_replica_is_hedged() {
    let plan = Plan {
        hedge_after_ns: 50,
        ..Plan::frugal(0)
    };
    let mut get = Script::<3>::with(&plan, Limits::until(1_000));
    get.asks_index(0)
        .asks_index(1)
        .votes(0, 5, 1)
        .asks_data(0)
        .data(0, 5);
    get.asks(GetStep::Wait { until_ns: 50 });
    assert_eq!(get.0.poll(50), GetStep::ReadIndex { replica: 2 });
    get.votes(2, 5, 1)
        .hit(0, 5)
        .retried(&[(RetryCause::Slow, 1)]);
}

/// By two reads each: two agree, and the one whose data are read says no more.
#[test]
fn data_that_are_late_are_read_of_another_member() {
    let plan = Plan {
        strategies: [Strategy::VoteThenRead; 3],
        hedge_after_ns: 50,
        ..Plan::frugal(0)
    };
    let asked = || {
        let mut get = Script::<3>::with(&plan, Limits::until(1_000));
        get.asks(GetStep::Vote { replica: 0 });
        get.asks(GetStep::Vote { replica: 1 });
        get.votes(0, 5, 1).votes(1, 5, 1);
        get
    };
    let read = |replica| {
        let pointer = pointer(replica);
        GetStep::ReadData { replica, pointer }
    };
    // Votes that came in time: nobody else is asked before the read itself is late.
    let mut get = asked();
    assert_eq!(get.0.poll(30), read(0));
    assert_eq!(get.0.poll(50), GetStep::Wait { until_ns: 80 });
    assert_eq!(get.0.poll(80), read(1));
    get.data(1, 5).hit(1, 5).retried(&[(RetryCause::Slow, 1)]);
    // Whichever comes first is taken.
    let mut get = asked();
    assert_eq!(get.0.poll(30), read(0));
    assert_eq!(get.0.poll(80), read(1));
    get.data(0, 5).hit(0, 5);
    // Votes that came late themselves: the read begins then.
    let mut get = asked();
    assert_eq!(get.0.poll(60), read(0));
    assert_eq!(get.0.poll(61), GetStep::Wait { until_ns: 110 });
    // Both hang: the third is asked, and has data of its own.
    assert_eq!(get.0.poll(110), read(1));
    assert_eq!(get.0.poll(160), GetStep::Vote { replica: 2 });
    get.votes(2, 5, 1);
    assert_eq!(get.0.poll(170), read(2));
    get.data(2, 5).hit(2, 5).retried(&[(RetryCause::Slow, 2)]);
    // One whose data are another key's after all votes for nothing: the late one decides.
    let mut get = asked();
    assert_eq!(get.0.poll(30), read(0));
    assert_eq!(get.0.poll(80), read(1));
    get.bytes(1, &bytes_of(b"other", 5, 0));
    assert_eq!(get.0.poll(81), GetStep::Vote { replica: 2 });
    get.votes(2, 5, 1);
    assert_eq!(get.0.poll(82), read(2));
    get.data(2, 5).hit(2, 5);
}

/// One who has told its vote alone is asked again, for data. What it has said stands meanwhile.
#[test]
fn data_that_are_late_are_asked_of_one_that_has_told_its_vote_alone() {
    let plan = Plan {
        strategies: [Strategy::VoteThenRead, Strategy::Vote, Strategy::Scar],
        hedge_after_ns: 50,
        ..Plan::frugal(0)
    };
    let late = || {
        let mut get = Script::<3>::with(&plan, Limits::until(1_000));
        get.asks(GetStep::Vote { replica: 0 });
        get.asks(GetStep::Vote { replica: 1 });
        get.votes(0, 5, 1).votes(1, 5, 1);
        let (replica, pointer) = (0, pointer(0));
        assert_eq!(get.0.poll(30), GetStep::ReadData { replica, pointer });
        assert_eq!(get.0.poll(80), GetStep::Scan { replica: 1 });
        get
    };
    let data = bytes_of(KEY, 5, 0);
    // The first one's come after all.
    let mut get = late();
    get.data(0, 5).hit(0, 5).retried(&[(RetryCause::Slow, 1)]);
    // Or the other's.
    let mut get = late();
    get.0.handle_scar(1, present(1, 5, 1), &data, &check());
    get.hit(1, 5);
    // Both hang: the third is asked, once the second is late, too.
    let mut get = late();
    assert_eq!(get.0.poll(81), GetStep::Wait { until_ns: 130 });
    assert_eq!(get.0.poll(130), GetStep::Scan { replica: 2 });
    get.0.handle_scar(2, present(2, 5, 1), &data, &check());
    get.hit(2, 5);
    // What it says then counts, and not what it has said: the third decides.
    for is_absent in [true, false] {
        let mut get = late();
        match is_absent {
            true => get
                .0
                .handle_scar(1, IndexVote::Absent { epoch: 1 }, &[], &check()),
            false => {
                let data = bytes_of(KEY, 6, 0);
                get.0.handle_scar(1, present(1, 6, 1), &data, &check());
            }
        }
        assert_eq!(get.0.poll(81), GetStep::Scan { replica: 2 });
        if is_absent {
            let vote = IndexVote::Absent { epoch: 1 };
            get.0.handle_scar(2, vote, &[], &check());
            get.miss(MissReason::Absent);
        } else {
            let data = bytes_of(KEY, 6, 0);
            get.0.handle_scar(2, present(2, 6, 1), &data, &check());
            get.hit(1, 6);
        }
    }
    // It fails: its vote is gone.
    let mut get = late();
    get.fails(1, Failure::Connection);
    assert_eq!(get.0.poll(81), GetStep::Scan { replica: 2 });
    get.0.handle_scar(2, present(2, 5, 1), &data, &check());
    get.hit(2, 5);
}

/// All three were asked, and nobody is left when the time for one more has come.
#[test]
fn data_are_late_after_their_own_time_whoever_else_was() {
    let plan = Plan {
        strategies: [Strategy::VoteThenRead; 3],
        hedge_after_ns: 50,
        fan_out: 3,
        ..Plan::frugal(0)
    };
    let mut get = Script::<3>::with(&plan, Limits::until(1_000));
    for replica in 0..3 {
        get.asks(GetStep::Vote { replica });
    }
    assert_eq!(get.0.poll(50), GetStep::Wait { until_ns: 1_000 });
    get.votes(0, 5, 1).votes(1, 5, 1);
    let read = |replica| {
        let pointer = pointer(replica);
        GetStep::ReadData { replica, pointer }
    };
    assert_eq!(get.0.poll(60), read(0));
    assert_eq!(get.0.poll(61), GetStep::Wait { until_ns: 110 });
    assert_eq!(get.0.poll(110), read(1));
    get.data(1, 5).hit(1, 5);
}

#[test]
fn messages_and_scar_bring_vote_and_data_at_once() {
    let plan = Plan {
        strategies: [Strategy::Message, Strategy::Rpc, Strategy::Scar],
        fan_out: 3,
        ..Plan::frugal(0)
    };
    let mut get = Script::<3>::with(&plan, Limits::until(u64::MAX));
    get.asks(GetStep::Ask {
        replica: 0,
        by_rpc: false,
    });
    get.asks(GetStep::Ask {
        replica: 1,
        by_rpc: true,
    });
    get.asks(GetStep::Scan { replica: 2 });
    let absent = LookupAnswer {
        epoch: 1,
        found: Found::Absent,
    };
    get.0.handle_answer(0, &absent, &check());
    let data = bytes_of(KEY, 5, 0);
    get.0.handle_scar(2, present(2, 5, 1), &data, &check());
    get.waits();
    let found = Found::Present {
        version: v(5),
        data: &data,
    };
    let answer = LookupAnswer { epoch: 1, found };
    get.0.handle_answer(1, &answer, &check());
    get.hit(1, 5);
    assert_eq!(get.0.touched_slot(2), Some(2));
}

/// One replica sends the data along, another its vote alone.
fn by_one_copy() -> Script<3> {
    let plan = Plan {
        strategies: [Strategy::Scar, Strategy::Vote, Strategy::Scar],
        ..Plan::frugal(0)
    };
    let mut get = Script::<3>::with(&plan, Limits::until(u64::MAX));
    get.asks(GetStep::Scan { replica: 0 });
    get.asks(GetStep::Vote { replica: 1 }).waits();
    get
}

#[test]
fn a_vote_alone_is_enough_beside_one_copy() {
    let data = bytes_of(KEY, 5, 0);
    for is_first in [false, true] {
        let mut get = by_one_copy();
        if is_first {
            // Its data are not read before the other's have come.
            get.votes(1, 5, 1).waits();
        }
        get.0.handle_scar(0, present(0, 5, 1), &data, &check());
        if !is_first {
            get.waits().votes(1, 5, 1);
        }
        get.hit(0, 5);
        assert_eq!(get.0.touched_slot(1), Some(1));
    }
}

#[test]
fn where_data_are_wanted_of_a_vote_alone_it_votes_again_with_them() {
    let (old, new) = (bytes_of(KEY, 4, 0), bytes_of(KEY, 5, 0));
    let mut get = by_one_copy();
    get.0.handle_scar(0, present(0, 4, 1), &old, &check());
    get.votes(1, 5, 1);
    // The third decides, and has data.
    get.asks(GetStep::Scan { replica: 2 });
    get.0.handle_scar(2, present(2, 5, 1), &new, &check());
    get.hit(2, 5);

    // The third is asked because the first is late, and tells of its vote alone, too.
    let plan = Plan {
        strategies: [Strategy::Scar, Strategy::Vote, Strategy::Vote],
        hedge_after_ns: 10,
        ..Plan::frugal(0)
    };
    let mut get = Script::<3>::with(&plan, Limits::until(u64::MAX));
    get.asks(GetStep::Scan { replica: 0 });
    get.asks(GetStep::Vote { replica: 1 }).waits();
    assert_eq!(get.0.poll(10), GetStep::Vote { replica: 2 });
    get.votes(1, 5, 1).votes(2, 5, 1);
    get.asks(GetStep::Scan { replica: 1 }).waits();
    get.0.handle_scar(1, present(1, 5, 1), &new, &check());
    get.hit(1, 5);
}

/// Votes from two, and a read of what the first of them names.
#[test]
fn by_votes_the_data_are_read_once_of_whoever_votes_first() {
    let data = bytes_of(KEY, 5, 0);
    let plan = Plan {
        strategies: [Strategy::VoteThenRead; 3],
        ..Plan::frugal(0)
    };
    for first in [0, 1] {
        let mut get = Script::<3>::with(&plan, Limits::until(u64::MAX));
        get.asks(GetStep::Vote { replica: 0 });
        get.asks(GetStep::Vote { replica: 1 }).waits();
        get.votes(first, 5, 1);
        get.asks_data(first);
        get.votes(1 - first, 5, 1).waits();
        get.0.handle_data(first, &data, &check());
        get.hit(first, 5);
    }
    // What has changed meanwhile is torn: that one votes anew.
    let mut get = Script::<3>::with(&plan, Limits::until(u64::MAX));
    get.asks(GetStep::Vote { replica: 0 });
    get.asks(GetStep::Vote { replica: 1 }).waits();
    get.votes(0, 4, 1).votes(1, 4, 1);
    get.asks_data(0);
    get.0.handle_data(0, &data, &check());
    get.asks(GetStep::Vote { replica: 0 });
    // And what was flushed is a miss by the floor that came with the data.
    let mut get = Script::<3>::with(&plan, Limits::until(u64::MAX));
    get.asks(GetStep::Vote { replica: 0 });
    get.asks(GetStep::Vote { replica: 1 }).waits();
    get.votes(0, 5, 1).votes(1, 5, 1);
    get.asks_data(0);
    let flushed = DataCheck {
        flush_floor: v(5),
        ..check()
    };
    get.0.handle_data(0, &data, &flushed);
    get.miss(MissReason::Flushed);
}

#[test]
fn an_overflowed_bucket_is_asked_by_message() {
    let mut get = Script::<1>::new();
    get.asks_index(0)
        .index(0, IndexVote::AskByMessage { epoch: 1 });
    get.asks(GetStep::Ask {
        replica: 0,
        by_rpc: false,
    });
    let absent = LookupAnswer {
        epoch: 1,
        found: Found::Absent,
    };
    get.0.handle_answer(0, &absent, &check());
    get.miss(MissReason::Absent).retried(&[]);
}

/// It moves to another process, which serves in a moment: a deadline ends that, no budget.
#[test]
fn who_refuses_a_question_because_it_moves_is_asked_until_the_deadline() {
    let plan = Plan {
        strategies: [Strategy::Rpc],
        ..Plan::frugal(0)
    };
    let mut get = Script::<1>::with(&plan, Limits::until(1_000));
    let moves = LookupAnswer {
        epoch: 1,
        found: Found::Rejected(Rejection::UnknownConfig),
    };
    let mut asked = 0;
    while asked < 200 {
        match get.0.poll(0) {
            GetStep::Ask { replica: 0, .. } => {
                asked += 1;
                get.0.handle_answer(0, &moves, &check());
            }
            GetStep::Refresh { replica: 0, .. } => get.0.handle_refreshed(0),
            GetStep::Pause { .. } => {}
            step => panic!("{step:?}"),
        }
    }
    let last = Some(RetryCause::ConfigChanged);
    let cause = GetFailure::GaveUp(GiveUp::Deadline { last });
    let failed = GetStep::Done(GetOutcome::Failed { cause });
    assert_eq!(get.0.poll(1_000), failed);
}

#[test]
fn a_rejected_lookup_names_its_reason() {
    let plan = Plan {
        strategies: [Strategy::Message],
        ..Plan::frugal(0)
    };
    let mut get = Script::<1>::with(&plan, Limits::until(u64::MAX));
    get.asks(GetStep::Ask {
        replica: 0,
        by_rpc: false,
    });
    let rejected = |rejection| LookupAnswer {
        epoch: 1,
        found: Found::Rejected(rejection),
    };
    get.0
        .handle_answer(0, &rejected(Rejection::WrongShard), &check());
    let cause = RetryCause::ConfigChanged;
    get.asks(GetStep::Refresh { replica: 0, cause });
    get.0.restart(&plan, HASH, 0);
    get.asks(GetStep::Ask {
        replica: 0,
        by_rpc: false,
    });
    get.0
        .handle_answer(0, &rejected(Rejection::KeyTooLong), &check());
    let cause = GetFailure::Rejected(Rejection::KeyTooLong);
    get.asks(GetStep::Done(GetOutcome::Failed { cause }));
}
