//! What the controller decides, case by case.

use std::collections::BTreeMap;
use std::time::Duration;
use trefoil_cell::control::{
    Controller, Health, Hindrance, Key, Plan, Registered, Rules, Spare, Unusable, View,
};
use trefoil_cell::{BackendConfig, CellConfig, Mode};
use trefoil_layout::{HashKind, KeyHasher, Version};

const DEAD_AFTER: u64 = 60;
const LAYOUT: u16 = 3;
const BOOT: &str = "boot";

pub(crate) fn config(mode: Mode, count: u32) -> CellConfig {
    let backend = |number| BackendConfig {
        number,
        addresses: vec![format!("unix:/cell/backend-{number}.sock").parse().unwrap()],
        fabric_socket: Some(format!("/cell/backend-{number}.fabric").into()),
        place: None,
    };
    CellConfig {
        life: 7,
        config_id: 4,
        cell: "test".into(),
        mode,
        backends: (0..count).map(backend).collect(),
        hash: KeyHasher {
            kind: HashKind::Xxh3,
            seed: [1, 2],
        },
        value_len_max: 1 << 20,
        eviction: "slru".into(),
        flush_floor: Version::ZERO,
        corpus: None,
    }
}

pub(crate) fn registered() -> Registered {
    Registered {
        process: 1,
        host: "host".into(),
        boot: BOOT.into(),
        layout: Some(LAYOUT),
    }
}

pub(crate) fn spare(name: &str) -> Spare {
    Spare {
        name: name.into(),
        process: 9,
        host: "host".into(),
        boot: BOOT.into(),
        layout: LAYOUT,
        memory: 1 << 30,
        addresses: vec![format!("unix:/cell/spare-{name}.sock").parse().unwrap()],
        fabric_socket: Some(format!("/cell/spare-{name}.fabric").into()),
        place: None,
    }
}

/// Three backends, one spare, everybody there.
fn whole(mode: Mode, count: u32) -> View {
    let revisions = [
        (Key::Config, 11),
        (Key::Leader, 12),
        (Key::Spare("a".into()), 13),
    ];
    View {
        config: config(mode, count),
        incarnations: (0..count).map(|number| (number, 1)).collect(),
        backends: (0..count).map(|number| (number, registered())).collect(),
        spares: vec![spare("a")],
        leader: None,
        replacements: Vec::new(),
        revisions: revisions.into(),
    }
}

fn without(mut view: View, gone: &[u32]) -> View {
    view.backends.retain(|number, _| !gone.contains(number));
    view
}

fn health(view: &View) -> BTreeMap<u32, Health> {
    let numbers = view.backends.keys();
    numbers.map(|number| (*number, Health::Votes)).collect()
}

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn rules() -> Rules {
    Rules {
        dead_after: at(DEAD_AFTER),
        replace_lost: false,
    }
}

/// What is decided once `view` was seen for long enough.
fn decided(
    view: &View,
    health: &BTreeMap<u32, Health>,
    rules: Rules,
) -> Result<Option<Plan>, Vec<Hindrance>> {
    let mut controller = Controller::new(rules);
    let mut due = Vec::new();
    for second in 0..=DEAD_AFTER {
        due = controller.look(at(second), view);
    }
    controller.decide(view, &due, health, 5_000)
}

fn refused(view: &View, health: &BTreeMap<u32, Health>) -> Hindrance {
    let mut hindrances = decided(view, health, rules()).unwrap_err();
    assert_eq!(hindrances.len(), 1, "{hindrances:?}");
    hindrances.remove(0)
}

#[test]
fn a_dead_backend_is_replaced_by_a_spare() {
    let view = without(whole(Mode::R32, 3), &[1]);
    let plan = decided(&view, &health(&view), rules()).unwrap().unwrap();
    assert_eq!(plan.config.config_id, 5);
    let place = &plan.config.backends[1];
    assert_eq!(place.addresses, spare("a").addresses);
    assert_eq!(place.fabric_socket, spare("a").fabric_socket);
    assert_eq!(plan.config.backends[0], view.config.backends[0]);
    assert!(view.config.differs_by_places(&plan.config));
    assert_eq!(plan.incarnations, view.incarnations, "nobody forgets them");
    let done = plan.replacement().unwrap();
    assert_eq!((done.backend, done.config_id, done.at_ms), (1, 5, 5_000));
    assert!(!done.is_loss);
    // Everything that it was made from, and that nobody is the backend.
    let mut conditions = plan.conditions.clone();
    conditions.sort();
    let mut expected = vec![
        (Key::Config, 11),
        (Key::Leader, 12),
        (Key::Replacements, 0),
        (Key::Backend(1), 0),
        (Key::Spare("a".into()), 13),
    ];
    expected.sort();
    assert_eq!(conditions, expected);
}

#[test]
fn nobody_is_replaced_before_the_time() {
    let (there, gone) = (whole(Mode::R32, 3), without(whole(Mode::R32, 3), &[1]));
    let mut controller = Controller::new(rules());
    let mut look = |second, view: &View| controller.look(at(second), view);
    for second in 0..60 {
        assert!(look(second, &gone).is_empty(), "{second}");
    }
    // It was back for a moment.
    assert!(look(59, &there).is_empty());
    for second in 60..120 {
        assert!(look(second, &gone).is_empty(), "{second}");
    }
    assert_eq!(look(120, &gone), [1]);
}

#[test]
fn what_was_not_watched_does_not_count() {
    let gone = without(whole(Mode::R32, 3), &[1]);
    // The store was away.
    let mut controller = Controller::new(rules());
    assert!(controller.look(at(0), &gone).is_empty());
    assert!(controller.look(at(29), &gone).is_empty());
    controller.away();
    assert!(controller.look(at(58), &gone).is_empty());
    assert!(controller.look(at(60), &gone).is_empty());
    // This process was suspended.
    let mut controller = Controller::new(rules());
    for second in 0..50 {
        assert!(controller.look(at(second), &gone).is_empty());
    }
    assert!(controller.look(at(100), &gone).is_empty());
    assert_eq!(controller.gone(at(101)).collect::<Vec<_>>(), [(1, at(1))]);
    // Another one has the place, or another life has begun: it has its own time.
    for change in [
        |config: &mut CellConfig| config.backends[1].addresses = spare("b").addresses,
        |config: &mut CellConfig| config.life = 8,
    ] {
        let mut controller = Controller::new(rules());
        let mut view = gone.clone();
        for second in 0..60 {
            assert!(controller.look(at(second), &view).is_empty());
        }
        change(&mut view.config);
        assert!(controller.look(at(61), &view).is_empty());
    }
}

#[test]
fn a_backend_that_answers_is_not_replaced() {
    let view = without(whole(Mode::R32, 3), &[1]);
    for says in [Health::Votes, Health::Recovers] {
        let mut health = health(&view);
        health.insert(1, says);
        assert_eq!(refused(&view, &health), Hindrance::Answers { backend: 1 });
    }
}

#[test]
fn a_cohort_does_not_lose_its_quorum() {
    let (backend, mate) = (1, 2);
    let view = without(whole(Mode::R32, 3), &[1]);
    for says in [Some(Health::Recovers), None] {
        let mut health = health(&view);
        health.remove(&mate);
        health.extend(says.map(|says| (mate, says)));
        let health_of_mate = says.unwrap_or(Health::Silent);
        let expected = Hindrance::Mate {
            backend,
            mate,
            health: health_of_mate,
        };
        assert_eq!(refused(&view, &health), expected);
    }
    // Two that are dead: neither.
    let view = without(whole(Mode::R32, 3), &[1, 2]);
    let hindrances = decided(&view, &health(&view), rules()).unwrap_err();
    assert_eq!(hindrances.len(), 2, "{hindrances:?}");
    // Two that have no key in common: one after the other.
    let view = without(whole(Mode::R32, 6), &[0, 3]);
    let first = decided(&view, &health(&view), rules()).unwrap().unwrap();
    assert_eq!(first.replacement().unwrap().backend, 0);
    let mut view = view;
    view.config = first.config.clone();
    view.replacements = first.replacements;
    view.spares = vec![spare("b")];
    view.backends.insert(0, registered());
    let mut recovers = health(&view);
    recovers.insert(0, Health::Recovers);
    let expected = Hindrance::UnderWay {
        backend: 3,
        other: 0,
    };
    assert_eq!(refused(&view, &recovers), expected);
    let second = decided(&view, &health(&view), rules()).unwrap().unwrap();
    assert_eq!(second.replacement().unwrap().backend, 3);
    assert_eq!(second.replacements.len(), 2);
}

/// The spare that was given a place died before it had recovered.
#[test]
fn a_replacement_is_replaced() {
    let view = without(whole(Mode::R32, 3), &[1]);
    let first = decided(&view, &health(&view), rules()).unwrap().unwrap();
    let mut view = view;
    view.config = first.config;
    view.replacements = first.replacements;
    view.spares.push(spare("b"));
    // Its word that it stands by may outlive it: it has a place, and gets no other.
    let second = decided(&view, &health(&view), rules()).unwrap().unwrap();
    assert_eq!(second.config.backends[1].addresses, spare("b").addresses);
}

#[test]
fn without_a_fitting_spare_nothing_happens() {
    let mut view = without(whole(Mode::R32, 3), &[1]);
    view.spares.clear();
    let (backend, unusable) = (1, Vec::new());
    let none = refused(&view, &health(&view));
    assert_eq!(none, Hindrance::NoSpare { backend, unusable });
    assert!(none.to_string().contains("trefoil cell spare"), "{none}");
    // Of another layout, and of another host.
    let mut other_layout = spare("a");
    other_layout.layout = 999;
    let mut other_host = spare("b");
    other_host.boot = "elsewhere".into();
    // Of a cell on several hosts.
    let mut other_kind = spare("d");
    other_kind.place = Some("d".into());
    view.spares = vec![other_layout, other_host, other_kind];
    let Hindrance::NoSpare { unusable, .. } = refused(&view, &health(&view)) else {
        panic!("it is used");
    };
    assert!(
        matches!(
            unusable[..],
            [
                Unusable::Layout {
                    layout: 999,
                    cell: LAYOUT,
                    ..
                },
                Unusable::Host { .. },
                Unusable::Kind { .. }
            ]
        ),
        "{unusable:?}"
    );
    // A fitting one behind them is found.
    view.spares.push(spare("c"));
    let plan = decided(&view, &health(&view), rules()).unwrap().unwrap();
    assert_eq!(plan.config.backends[1].addresses, spare("c").addresses);
    // In a cell on several hosts it is the other way round.
    let mut spread = view.clone();
    for backend in &mut spread.config.backends {
        backend.place = Some(format!("place-{}", backend.number));
    }
    spread.spares.retain(|spare| spare.name == "c");
    let Hindrance::NoSpare { unusable, .. } = refused(&spread, &health(&spread)) else {
        panic!("it is used");
    };
    assert!(
        matches!(unusable[..], [Unusable::Kind { .. }]),
        "{unusable:?}"
    );
    // A backend that would not follow.
    view.backends.get_mut(&2).unwrap().layout = None;
    let expected = Hindrance::OlderRelease {
        backend: 1,
        mate: 2,
    };
    assert_eq!(refused(&view, &health(&view)), expected);
}

#[test]
fn the_only_copy_is_given_up_only_if_told() {
    let view = without(whole(Mode::R1, 1), &[0]);
    let expected = Hindrance::WouldLose { backend: 0 };
    assert_eq!(refused(&view, &health(&view)), expected);
    let told = Rules {
        replace_lost: true,
        ..rules()
    };
    let plan = decided(&view, &health(&view), told).unwrap().unwrap();
    assert!(plan.replacement().unwrap().is_loss);
    let view = without(whole(Mode::R2, 3), &[0]);
    let immutable = decided(&view, &health(&view), told).unwrap_err();
    assert!(matches!(immutable[..], [Hindrance::Immutable { .. }]));
}

#[test]
fn config_ids_are_not_used_twice() {
    let mut view = without(whole(Mode::R32, 3), &[1]);
    view.config.config_id = trefoil_cell::CONFIG_ID_CHANGING - 1;
    let expected = Hindrance::NoConfigId { backend: 1 };
    assert_eq!(refused(&view, &health(&view)), expected);
    let kinds = Hindrance::KINDS;
    assert!(kinds.contains(&expected.kind()));
}

#[test]
fn what_a_backend_can_follow() {
    let now = config(Mode::R32, 3);
    let later = now.with_place(1, &spare("a").addresses, None).unwrap();
    assert!(now.differs_by_places(&later));
    // And a flush in between.
    let flushed = later.flushed(Version::new(5, 1, 1)).unwrap();
    assert!(now.differs_by_places(&flushed));
    assert!(!flushed.differs_by_places(&now), "a floor does not fall");
    for change in [
        |config: &mut CellConfig| config.backends.truncate(2),
        |config: &mut CellConfig| config.life = 8,
        |config: &mut CellConfig| config.hash.seed = [3, 4],
        |config: &mut CellConfig| config.value_len_max = 5,
        |config: &mut CellConfig| config.mode = Mode::R1,
    ] {
        let mut other = later.clone();
        change(&mut other);
        assert!(!now.differs_by_places(&other), "{other:?}");
    }
    assert_eq!(now.with_place(3, &spare("a").addresses, None), None);
}
