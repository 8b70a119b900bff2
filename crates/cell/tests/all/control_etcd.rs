//! Who decides, who stands by and what is written, over a real etcd.

use crate::config_stores::{config, id};
use crate::etcd_store::{InEtcd, eventually};
use std::collections::BTreeMap;
use std::time::Duration;
use trefoil_cell::control::{Controller, Health, Key, Plan, Rules, Spare, View};
use trefoil_cell::*;

fn spare(store: &EtcdStore) -> Spare {
    let own = store.spare();
    Spare {
        addresses: vec![
            format!("unix:/cell/spare-{}.sock", own.name)
                .parse()
                .unwrap(),
        ],
        ..own
    }
}

fn view(store: &EtcdStore) -> View {
    store.view().unwrap().unwrap()
}

/// What a leader decides who has seen backend 1 gone for long enough.
fn plan(view: &View) -> Plan {
    let rules = Rules {
        dead_after: Duration::from_secs(1),
        replace_lost: false,
    };
    let mut controller = Controller::new(rules);
    let mut due = Vec::new();
    for ms in (0..=1_000).step_by(100) {
        due = controller.look(Duration::from_millis(ms), view);
    }
    let health = BTreeMap::from([(0, Health::Votes), (2, Health::Votes)]);
    controller.decide(view, &due, &health, 1).unwrap().unwrap()
}

#[test]
fn a_former_leader_writes_nothing() {
    let place = InEtcd::start();
    let (one, other) = (place.store(), place.store());
    assert_eq!(one.view().unwrap(), None, "no cell");
    one.compare_and_swap(None, &config(1)).unwrap();
    let _backends = [0, 2].map(|number| one.claim(number).unwrap());
    let registration = one.register_spare(&spare(&one)).unwrap();
    let leads = one.campaign().unwrap().unwrap();
    assert!(other.campaign().unwrap().is_none(), "one at a time");
    let before = view(&one);
    assert!(leads.is_of(&before));
    assert_eq!(before.spares.len(), 1);
    assert_eq!(before.backends.keys().copied().collect::<Vec<_>>(), [0, 2]);
    let late = plan(&before);

    // Its lease ends while it does nothing; another one leads, and what was decided before
    // comes then.
    drop(leads);
    let leads = other.campaign().unwrap().unwrap();
    assert!(leads.is_of(&view(&other)));
    assert!(!one.replace(&late).unwrap(), "it is not carried out");
    assert_eq!(one.load().unwrap(), Some(config(1)));
    let now = plan(&view(&other));
    // The backend comes back in between.
    let back = one.claim(1).unwrap();
    assert!(!other.replace(&now).unwrap(), "it lives");
    drop(back);
    // A flush in between.
    let now = plan(&view(&other));
    let next = config(1)
        .flushed(trefoil_layout::Version::new(9, 9, 9))
        .unwrap();
    one.compare_and_swap(id(1), &next).unwrap();
    assert!(!other.replace(&now).unwrap(), "a flush would be undone");
    // The spare goes.
    let now = plan(&view(&other));
    drop(registration);
    assert!(!other.replace(&now).unwrap(), "nobody stands by");
    let second = spare(&one);
    let _registration = one.register_spare(&second).unwrap();
    // Nothing comes between.
    let now = plan(&view(&other));
    assert!(other.replace(&now).unwrap());
    assert!(!other.replace(&now).unwrap(), "once");
    let after = view(&one);
    assert_eq!(after.config.backends[1].addresses, second.addresses);
    assert_eq!(after.config.flush_floor, next.flush_floor);
    assert_eq!(after.replacements.len(), 1);
    assert_eq!(after.replacements[0].backend, 1);
    // In another life nothing of it counts.
    let anew = CellConfig {
        life: 5,
        config_id: 9,
        ..config(1)
    };
    one.compare_and_swap(Some(after.config.topology_id()), &anew)
        .unwrap();
    assert!(view(&one).replacements.is_empty());
}

/// Leases go on by themselves, and what etcd has lost is written again.
#[test]
fn a_spare_says_again_that_it_stands_by() {
    let mut place = InEtcd::start();
    let store = place.store();
    store.compare_and_swap(None, &config(1)).unwrap();
    let backup = place.backup();
    let own = spare(&store);
    let registration = store.register_spare(&own).unwrap();
    let leads = store.campaign().unwrap().unwrap();
    place.restore(&backup);
    eventually(|| {
        let view = store.view().ok()??;
        (view.spares == [own.clone()]).then_some(())
    });
    // A leader that was forgotten does not lead, and does not say so again.
    eventually(|| leads.is_over().then_some(()));
    assert_eq!(view(&store).revision(&Key::Leader), 0);
    drop(registration);
    assert!(view(&store).spares.is_empty(), "it has said good-bye");
}

#[test]
fn a_spare_that_does_not_fit_is_refused() {
    let place = InEtcd::start();
    let store = place.store();
    let own = spare(&store);
    let refused = |result: Result<SpareRegistration, ConfigStoreError>| result.unwrap_err();
    let none = refused(store.register_spare(&own));
    assert!(matches!(none, ConfigStoreError::NoCellInEtcd(_)), "{none}");
    store.compare_and_swap(None, &config(1)).unwrap();
    let _backend = store.claim(0).unwrap();
    let mut other = own.clone();
    other.layout += 1;
    let error = refused(store.register_spare(&other));
    assert!(
        matches!(error, ConfigStoreError::OtherLayout { number: 0, theirs, ours, .. } if ours == theirs + 1),
        "{error}"
    );
    let mut other = own.clone();
    other.boot = "elsewhere".into();
    let error = refused(store.register_spare(&other));
    assert!(
        matches!(error, ConfigStoreError::OtherHost { number: 0, .. }),
        "{error}"
    );
    let _registration = store.register_spare(&own).unwrap();
    let error = refused(store.register_spare(&own));
    assert!(matches!(error, ConfigStoreError::Refused { .. }), "{error}");
    assert_eq!(view(&store).spares, [own]);
    // A directory belongs to one cell.
    let directory = DirectoryStore::create(&place.folder("shared")).unwrap();
    store.check_directory(&directory).unwrap();
    store.check_directory(&directory).unwrap();
    let address = store
        .address()
        .to_string()
        .replace("mail", "post")
        .parse()
        .unwrap();
    let other = EtcdStore::open(&address, &EtcdSettings::default()).unwrap();
    let error = other.check_directory(&directory).unwrap_err();
    assert!(
        matches!(&error, ConfigStoreError::OtherCell { theirs, ours, .. } if theirs == "cells/mail" && ours == "cells/post"),
        "{error}"
    );
}

/// A spare registers as the backend whose place it was given, and says so again when etcd
/// has forgotten it, for as long as the configuration names it. Others never do.
#[test]
fn a_place_is_registered_by_whom_the_configuration_names() {
    let place = InEtcd::start();
    let store = place.store();
    let directory = DirectoryStore::create(&place.folder("spare")).unwrap();
    let (own, other) = (spare(&store), spare(&store));
    store.compare_and_swap(None, &config(1)).unwrap();
    let claim = |spare: &Spare| store.claim_place(1, spare, &directory);
    let taken = claim(&own).unwrap_err();
    assert!(
        matches!(&taken, ConfigStoreError::PlaceTaken { number: 1, holder } if holder.contains("7412")),
        "{taken}"
    );
    let given = config(1).with_place(1, &own.addresses, None).unwrap();
    store.compare_and_swap(id(1), &given).unwrap();
    let _claimed = claim(&own).unwrap();
    // The same process, whose first word was lost.
    let lock = claim(&own).unwrap();
    let _always = store.claim(0).unwrap();
    let is_there = |number: u32| view(&store).backends.contains_key(&number);
    // As if its lease had ended.
    place.forget("backends/1");
    eventually(|| is_there(1).then_some(()));
    let given = given.with_place(1, &other.addresses, None).unwrap();
    store.compare_and_swap(id(2), &given).unwrap();
    place.forget("backends/1");
    // Those that are extended as often have come back twice by then.
    for _ in 0..2 {
        place.forget("backends/0");
        eventually(|| is_there(0).then_some(()));
    }
    assert!(!is_there(1), "the place is another's");
    let taken = claim(&own).unwrap_err();
    assert!(
        matches!(taken, ConfigStoreError::PlaceTaken { .. }),
        "{taken}"
    );
    drop(lock);
    assert!(claim(&other).is_ok());
}

/// A spare counts the starts of its backend beside etcd, as backends do. Whoever has seen
/// more starts than there are notices, too.
#[test]
fn starts_that_etcd_has_forgotten_are_noticed_by_spares() {
    let mut place = InEtcd::start();
    let store = place.store();
    let directory = DirectoryStore::create(&place.folder("spare")).unwrap();
    let own = spare(&store);
    let given = config(1).with_place(1, &own.addresses, None).unwrap();
    store.compare_and_swap(None, &given).unwrap();
    let backup = place.backup();
    let begin = |store: &EtcdStore| {
        let lock = store.claim_place(1, &own, &directory)?;
        lock.begin_incarnation(given.life)
    };
    assert_eq!((begin(&store).unwrap(), begin(&store).unwrap()), (1, 2));
    place.restore(&backup);
    let noticed = |error: ConfigStoreError| {
        let text = error.to_string();
        assert!(
            text.contains("counts 0 starts of backend 1, and there were 2"),
            "{text}"
        );
        assert!(text.contains("restore-config"), "{text}");
    };
    let refused = |result: Result<(), ConfigStoreError>| result.err().filter(|e| !e.is_outage());
    // By what this process has seen, and by what the directory remembers.
    noticed(eventually(|| refused(store.load().map(drop))));
    let anew = place.store();
    noticed(eventually(|| refused(begin(&anew).map(drop))));
}
