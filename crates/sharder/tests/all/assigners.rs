//! Assigners and a store: elections, lost answers, and a store that has
//! forgotten.

use std::time::Duration;
use trefoil_sharder::coordination::{CandidateId, EmbeddedStore, Reply, Request, StoreError};
use trefoil_sharder::{
    Assigner, AssignerEvent, AssignerOptions, Assignment, AssignmentVersion, BalanceConfig,
    Capacity, Member, ServerId, ServerReport,
};

fn at(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

fn members(ids: &[u64]) -> Vec<Member> {
    let capacity = Capacity {
        cpu: 1.0,
        bytes: 1 << 30,
    };
    ids.iter()
        .map(|&id| Member::serving(ServerId(id), capacity))
        .collect()
}

fn assigner(candidate: u64) -> Assigner {
    let options = AssignerOptions::new(CandidateId(candidate));
    Assigner::new(options, BalanceConfig::default()).expect("sound thresholds")
}

fn version(incarnation: u64, generation: u64) -> AssignmentVersion {
    AssignmentVersion {
        incarnation,
        generation,
    }
}

/// Lets it ask whatever it wants to until it has nothing more to ask.
fn converse(
    assigner: &mut Assigner,
    store: &mut EmbeddedStore,
    now: Duration,
    members: &[Member],
) -> Vec<AssignerEvent> {
    for _ in 0..10 {
        let Some((id, request)) = assigner.poll_request(now, members) else {
            break;
        };
        assigner.handle_reply(now, id, store.request(now, request));
    }
    std::iter::from_fn(|| assigner.poll_event()).collect()
}

fn published(events: &[AssignerEvent]) -> Vec<AssignmentVersion> {
    events
        .iter()
        .filter_map(|event| match event {
            AssignerEvent::Published(version) => Some(*version),
            _ => None,
        })
        .collect()
}

fn report(server: u64, version: AssignmentVersion) -> ServerReport {
    ServerReport {
        server: ServerId(server),
        sequence: 1,
        version,
        slices: Vec::new(),
        hot_keys: Vec::new(),
        unstored: Vec::new(),
    }
}

/// One whose store forgets everything, and begins at this incarnation.
fn assigner_from(incarnation: u64) -> Assigner {
    let options = AssignerOptions {
        first: AssignmentVersion::deal(incarnation),
        ..AssignerOptions::new(CandidateId(1))
    };
    Assigner::new(options, BalanceConfig::default()).expect("sound thresholds")
}

#[test]
fn the_first_assignment_waits_for_a_server() {
    let (mut assigner, mut store) = (assigner(1), EmbeddedStore::new());
    let events = converse(&mut assigner, &mut store, at(0), &[]);
    assert_eq!(events, [AssignerEvent::Elected { term: 1 }]);
    assert_eq!(store.version(), None);
    let events = converse(&mut assigner, &mut store, at(1_000), &members(&[1, 2]));
    assert_eq!(published(&events), [version(1, 1)]);
    assert_eq!(store.version(), Some(version(1, 1)));
}

#[test]
fn one_leads_the_other_takes_over_when_it_falls_silent() {
    let mut store = EmbeddedStore::new();
    let (mut one, mut two) = (assigner(1), assigner(2));
    converse(&mut one, &mut store, at(0), &members(&[1, 2]));
    assert!(one.leads(at(0)));
    converse(&mut two, &mut store, at(0), &members(&[1, 2]));
    assert!(!two.leads(at(0)));
    // A server dies: only the leader says so.
    converse(&mut two, &mut store, at(1_500), &members(&[1]));
    assert_eq!(store.version(), Some(version(1, 1)));
    converse(&mut one, &mut store, at(1_600), &members(&[1]));
    assert_eq!(store.version(), Some(version(1, 2)));
    // The leader stands still. It stops believing before the store does.
    assert!(!one.leads(at(1_600) + at(4_000)));
    let mut last = Vec::new();
    for tenth in 16..90 {
        last.extend(converse(
            &mut two,
            &mut store,
            at(tenth * 100),
            &members(&[2]),
        ));
    }
    assert!(
        last.contains(&AssignerEvent::Elected { term: 2 }),
        "{last:?}"
    );
    assert_eq!(published(&last), [version(1, 3)]);
    // It wakes up, and finds out before it does anything.
    let events = converse(&mut one, &mut store, at(9_000), &members(&[1]));
    assert_eq!(events, [AssignerEvent::Deposed]);
    assert_eq!(store.version(), Some(version(1, 3)));
}

/// Who was elected and does not know yet who is a member leads on, and stands for election
/// again if its lead has ended meanwhile.
#[test]
fn before_it_knows_the_members_it_leads_on_and_stands_again() {
    let mut store = EmbeddedStore::new();
    let (mut one, mut two) = (assigner(1), assigner(2));
    let mut campaign = |assigner: &mut Assigner, now| {
        let asked = assigner.poll_campaign(now);
        asked.map(|(id, request)| assigner.handle_reply(now, id, store.request(now, request)))
    };
    assert_eq!(campaign(&mut one, at(0)), Some(()), "elected");
    assert_eq!(campaign(&mut one, at(1_000)), None, "nothing to ask yet");
    assert_eq!(campaign(&mut one, at(2_000)), Some(()), "leads on");
    assert!(one.leads(at(5_000)));
    // It stands still, and another one is elected.
    assert_eq!(campaign(&mut two, at(9_000)), Some(()));
    assert!(two.leads(at(9_000)));
    assert_eq!(campaign(&mut one, at(9_100)), Some(()));
    assert!(!one.leads(at(9_100)));
    // That one has gone.
    assert_eq!(campaign(&mut one, at(15_100)), Some(()));
    assert!(one.leads(at(15_100)));
}

/// The dangerous moment: the swap is on its way when its sender is replaced.
#[test]
fn a_swap_of_a_former_term_is_refused_when_it_arrives() {
    let mut store = EmbeddedStore::new();
    let (mut one, mut two) = (assigner(1), assigner(2));
    converse(&mut one, &mut store, at(0), &members(&[1, 2]));
    let (late_id, late) = one
        .poll_request(at(1_500), &members(&[1]))
        .expect("a server has died");
    assert!(matches!(late, Request::Swap { term: 1, .. }));
    converse(&mut two, &mut store, at(7_000), &members(&[1, 2]));
    assert!(two.leads(at(7_000)));
    assert_eq!(
        store.version(),
        Some(version(1, 1)),
        "as expected by the late one"
    );
    let refused = store.request(at(7_100), late);
    assert_eq!(refused, Err(StoreError::NotLeader { term: 1, last: 2 }));
    one.handle_reply(at(7_200), late_id, refused);
    assert!(!one.leads(at(7_200)));
    assert_eq!(store.version(), Some(version(1, 1)));
}

#[test]
fn a_lost_answer_is_looked_up_and_not_guessed() {
    let mut store = EmbeddedStore::new();
    let mut assigner = assigner(1);
    converse(&mut assigner, &mut store, at(0), &members(&[1, 2]));
    let (id, request) = assigner
        .poll_request(at(1_100), &members(&[1]))
        .expect("a server has died");
    let lost = store.request(at(1_100), request);
    assert_eq!(lost, Ok(Reply::Swapped(version(1, 2))));
    assert_eq!(
        assigner.poll_request(at(1_900), &members(&[1])),
        None,
        "it waits for the answer"
    );
    let events = converse(&mut assigner, &mut store, at(2_300), &members(&[1]));
    assert!(events.contains(&AssignerEvent::Unanswered), "{events:?}");
    assert_eq!(
        published(&events),
        [],
        "it was applied: nothing to do again"
    );
    assert_eq!(
        assigner.assignment().map(Assignment::version),
        Some(version(1, 2))
    );
    // The answer comes after all.
    assigner.handle_reply(at(2_400), id, lost);
    assert_eq!(store.version(), Some(version(1, 2)));
}

#[test]
fn while_the_store_is_away_nothing_is_published() {
    let mut store = EmbeddedStore::new();
    let mut assigner = assigner(1);
    converse(&mut assigner, &mut store, at(0), &members(&[1, 2]));
    for tenth in 11..120 {
        let now = at(tenth * 100);
        if let Some((id, _)) = assigner.poll_request(now, &members(&[1])) {
            let away = StoreError::Unavailable("connection refused".to_owned());
            assigner.handle_reply(now, id, Err(away));
        }
    }
    assert!(!assigner.leads(at(12_000)));
    assert_eq!(store.version(), Some(version(1, 1)));
    let events = converse(&mut assigner, &mut store, at(13_000), &members(&[1]));
    assert_eq!(published(&events), [version(1, 2)], "{events:?}");
}

#[test]
fn a_store_that_has_forgotten_is_found_out_and_overruled_only_by_hand() {
    let ids: Vec<ServerId> = vec![ServerId(1), ServerId(2)];
    let old = Assignment::even(version(1, 4), &ids, 8, 1);
    let mut store = EmbeddedStore::holding(old);
    let mut assigner = assigner(1);
    // A server goes by generation 9, which the store no longer knows.
    assigner.hear(at(0), report(2, version(1, 9)));
    for second in 0..5 {
        let events = converse(
            &mut assigner,
            &mut store,
            at(second * 1_000),
            &members(&[1]),
        );
        assert!(
            events.contains(&AssignerEvent::Store(StoreError::Behind {
                store: Some(version(1, 4)),
                seen: version(1, 9),
            })),
            "{events:?}"
        );
    }
    assert_eq!(store.version(), Some(version(1, 4)), "frozen");
    assigner.begin_incarnation();
    let events = converse(&mut assigner, &mut store, at(6_000), &members(&[1, 2]));
    assert_eq!(published(&events)[0], version(2, 1));
    let events = converse(&mut assigner, &mut store, at(8_000), &members(&[1]));
    assert_eq!(published(&events), [version(2, 2)], "goes on from there");
}

/// The answer to a swap from before is not taken for that of the incarnation.
#[test]
fn a_new_incarnation_comes_whatever_was_under_way() {
    let (mut assigner, mut store) = (assigner(1), EmbeddedStore::new());
    converse(&mut assigner, &mut store, at(0), &members(&[1, 2]));
    assert_eq!(store.version(), Some(version(1, 1)));
    // A server dies; before the store has answered, somebody asks.
    let (id, request) = loop {
        let now = at(1_500);
        let (id, request) = assigner.poll_request(now, &members(&[1])).expect("asks");
        if matches!(request, Request::Swap { .. }) {
            break (id, request);
        }
        assigner.handle_reply(now, id, store.request(now, request));
    };
    assigner.begin_incarnation();
    assigner.handle_reply(at(1_500), id, store.request(at(1_500), request));
    assert_eq!(store.version(), Some(version(1, 2)));
    converse(&mut assigner, &mut store, at(2_600), &members(&[1]));
    assert_eq!(store.version(), Some(version(2, 1)));
    converse(&mut assigner, &mut store, at(4_000), &members(&[1]));
    assert_eq!(store.version(), Some(version(2, 1)), "only once");
}

/// Somebody who has watched knows what moved, and does not move it back.
#[test]
fn who_takes_over_knows_what_was_published() {
    let mut store = EmbeddedStore::new();
    let (mut one, mut two) = (assigner(1), assigner(2));
    converse(&mut one, &mut store, at(0), &members(&[1, 2]));
    let known = one.assignment().expect("published").clone();
    two.observe(at(100), &known);
    assert_eq!(two.assignment(), Some(&known));
    converse(&mut one, &mut store, at(1_500), &members(&[1]));
    let known = one.assignment().expect("published").clone();
    two.observe(at(1_600), &known);
    two.observe(at(1_700), &known);
    let events = converse(&mut two, &mut store, at(8_000), &members(&[1]));
    assert!(
        events.contains(&AssignerEvent::Elected { term: 2 }),
        "{events:?}"
    );
    assert_eq!(published(&events), []);
    assert_eq!(two.assignment(), Some(&known));
}

/// The store has nothing: the map comes from servers, and nothing moves.
#[test]
fn a_map_that_servers_remember_is_gone_on_from() {
    let ids = [ServerId(1), ServerId(2)];
    let known = Assignment::even(version(1, 7), &ids, 8, 1);
    let (mut assigner, mut store) = (assigner(1), EmbeddedStore::new());
    assigner.heard_of(known.version());
    let events = converse(&mut assigner, &mut store, at(0), &members(&[1, 2]));
    assert_eq!(published(&events), [], "it waits");
    assigner.recover(known.clone());
    let events = converse(&mut assigner, &mut store, at(2_000), &members(&[1, 2]));
    assert_eq!(published(&events), [version(2, 1)]);
    let found = store.current().expect("published");
    assert_eq!(found.slices(), known.slices());
    // It goes on as if nothing had been.
    let events = converse(&mut assigner, &mut store, at(9_000), &members(&[1]));
    assert_eq!(published(&events), [version(2, 2)], "{events:?}");
}

/// The store has nothing and nobody remembers anything: the deal is known as one, and
/// what follows it is not.
#[test]
fn a_store_that_forgets_deals_under_an_incarnation_of_its_own() {
    let (mut assigner, mut store) = (assigner_from(5_000), EmbeddedStore::new());
    let events = converse(&mut assigner, &mut store, at(0), &members(&[1, 2]));
    assert_eq!(published(&events), [version(5_000, 0)]);
    assert!(version(5_000, 0).is_deal());
    let events = converse(&mut assigner, &mut store, at(9_000), &members(&[1]));
    assert_eq!(published(&events), [version(5_000, 1)], "{events:?}");
    assert!(!version(5_000, 1).is_deal());
}

/// It goes on from what servers remember above all that was in use: also where the clock
/// was set back, and where it is far ahead.
#[test]
fn what_servers_remember_is_gone_on_from_above_it_whatever_the_clock_says() {
    let ids = [ServerId(1), ServerId(2)];
    for (known, next) in [(4_000, 5_000), (5_000, 5_001), (9_000, 9_001)] {
        let known = Assignment::even(version(known, 7), &ids, 8, 1);
        let (mut assigner, mut store) = (assigner_from(5_000), EmbeddedStore::new());
        assigner.heard_of(known.version());
        assigner.recover(known.clone());
        let events = converse(&mut assigner, &mut store, at(0), &members(&[1, 2]));
        assert_eq!(published(&events), [version(next, 1)], "{known:?}");
        let found = store.current().expect("published");
        assert_eq!(found.slices(), known.slices());
    }
}

/// A store that was kept is gone on from as it is, whatever the clock says.
#[test]
fn a_store_that_was_kept_keeps_its_incarnation() {
    for kept in [4_000, 9_000] {
        let map = Assignment::even(version(kept, 7), &[ServerId(1), ServerId(2)], 8, 1);
        let (mut assigner, mut store) = (assigner_from(5_000), EmbeddedStore::holding(map));
        let (alive, now) = (members(&[1]), [at(0), at(9_000)]);
        let events: Vec<_> = now
            .into_iter()
            .flat_map(|now| converse(&mut assigner, &mut store, now, &alive))
            .collect();
        assert!(
            published(&events).starts_with(&[version(kept, 8)]),
            "{events:?}"
        );
    }
}

/// Nobody serves the slices of a dead server: the next round would be half a second later.
#[test]
fn who_has_gone_is_replaced_at_once() {
    let (mut store, mut assigner) = (EmbeddedStore::new(), assigner(1));
    let all = members(&[1, 2, 3]);
    converse(&mut assigner, &mut store, at(0), &all);
    converse(&mut assigner, &mut store, at(1_000), &all);
    // Not a step again for those who are there, nor for who has come.
    assert_eq!(converse(&mut assigner, &mut store, at(1_001), &all), []);
    let more = members(&[1, 2, 3, 4]);
    assert_eq!(converse(&mut assigner, &mut store, at(1_002), &more), []);
    let left = members(&[1, 3]);
    // Not while another one is about to leave, which would be given its slices.
    assigner.set_departing(true);
    assert_eq!(converse(&mut assigner, &mut store, at(1_002), &left), []);
    assigner.set_departing(false);
    let events = converse(&mut assigner, &mut store, at(1_003), &left);
    assert_eq!(published(&events).len(), 1, "{events:?}");
    let map = assigner.assignment().expect("a map");
    let named = map.slices().iter().flat_map(|slice| &slice.servers);
    assert!(named.clone().all(|&server| server != ServerId(2)));
    assert_eq!(converse(&mut assigner, &mut store, at(1_004), &left), []);
}
