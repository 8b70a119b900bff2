//! Findings of cells that are made up.

use super::*;
use crate::doctor::replica::{Standing, Trouble, TroubleKind};
use std::sync::Arc;
use std::time::Instant;
use trefoil_cell::{
    BackendConfig, CONFIG_ID_CHANGING, CellConfig, CorpusDigest, CorpusId, Mode, RpcAddress,
};
use trefoil_layout::limits::LAYOUT_VERSION;
use trefoil_layout::{KeyHasher, Version};
use trefoil_rpc::v1;

fn config(mode: Mode) -> CellConfig {
    let backend = |number| BackendConfig {
        number,
        addresses: vec![RpcAddress::Unix("/nowhere".into())],
        fabric_socket: None,
        place: None,
    };
    CellConfig {
        life: 7,
        config_id: 3,
        cell: "test".to_owned(),
        mode,
        backends: (0..3).map(backend).collect(),
        hash: KeyHasher::default(),
        value_len_max: 1 << 20,
        eviction: "slru".to_owned(),
        flush_floor: Version::ZERO,
        corpus: None,
    }
}

fn answered(config: &CellConfig, number: u32) -> Answered {
    let standing = Standing {
        epoch: 1,
        is_recovering: false,
        incarnation: 1,
    };
    Answered {
        release: "1.0.0".to_owned(),
        layout_version: u32::from(LAYOUT_VERSION),
        boot_id: "host".to_owned(),
        incarnation: u64::from(number) + 1,
        config: Some(Ok(config.clone())),
        served_config_id: config.config_id,
        clock_ns: Some((1_000_000, 500_000)),
        process: v1::ProcessStats {
            resident_bytes: 50 << 20,
            memory_limit_bytes: 64 << 20,
            ..v1::ProcessStats::default()
        },
        member: v1::MemberStats {
            backend: number,
            lease_ms: 500,
            lease_left_ms: 420,
            ..v1::MemberStats::default()
        },
        fabric_socket: "/run/fabric".to_owned(),
        carrier: "shared",
        metrics: Some(Ok(())),
        standings: (0..3).map(|shard| (shard, Ok(standing))).collect(),
        ..Answered::default()
    }
}

fn census_of(mode: Mode, change: impl FnOnce(&mut [Answered])) -> Census {
    let config = config(mode);
    let mut all: Vec<Answered> = (0..3).map(|number| answered(&config, number)).collect();
    change(&mut all);
    let backend = |(number, answered): (u32, Answered)| Backend {
        number,
        state: "up",
        pid: None,
        answer: Ok(Box::new(answered)),
    };
    Census {
        at: Instant::now(),
        config: Arc::new(config),
        boot_id: "host".to_owned(),
        backends: (0..).zip(all).map(backend).collect(),
    }
}

fn census(change: impl FnOnce(&mut [Answered])) -> Census {
    census_of(Mode::R32, change)
}

/// Kinds, and whom they are about.
fn found(census: &Census) -> Vec<(&'static str, Option<u32>)> {
    let all = findings(census);
    all.iter()
        .map(|f| (f.kind, f.backend.or(f.shard)))
        .collect()
}

fn config_of(answered: &mut Answered) -> &mut CellConfig {
    match &mut answered.config {
        Some(Ok(config)) => config,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_healthy_cell_has_no_findings() {
    for mode in Mode::ALL {
        assert_eq!(found(&census_of(mode, |_| {})), []);
    }
}

#[test]
fn another_corpus_than_the_configuration_names_is_told() {
    let corpus = |number: u64| CorpusId {
        digest: CorpusDigest(number.into()),
        len: 5,
        first: Version::new(number, 1, 0),
        path: None,
    };
    let serve = |all: &mut [Answered], served: [Option<u64>; 3]| {
        for (answered, served) in all.iter_mut().zip(served) {
            config_of(answered).corpus = Some(corpus(2));
            config_of(answered).config_id = 4;
            answered.served_config_id = 4;
            let served = served.map(corpus);
            answered.member.corpus = served.as_ref().map(trefoil_cell::encode_corpus);
        }
    };
    let found = |served: [Option<u64>; 3]| {
        let census = census_of(Mode::R2, |all| serve(all, served));
        let mut found = found(&census);
        // That the census itself asked an old configuration is another matter.
        found.retain(|(kind, _)| *kind != "config_skew");
        found
    };
    assert_eq!(found([Some(2), Some(2), Some(2)]), []);
    assert_eq!(
        found([Some(2), Some(1), Some(2)]),
        [("corpus_skew", Some(1))]
    );
    // One that has none yet is recovering, which is told.
    assert_eq!(found([Some(2), None, Some(2)]), []);
}

#[test]
fn every_skew_is_told_by_backend() {
    let behind = census(|all| config_of(&mut all[1]).config_id = 2);
    assert_eq!(found(&behind), [("config_skew", Some(1))]);
    let served = census(|all| all[2].served_config_id = 2);
    assert_eq!(found(&served), [("config_skew", Some(2))]);
    let other_life = census(|all| config_of(&mut all[0]).life = 8);
    assert_eq!(found(&other_life), [("config_skew", Some(0))]);
    let content = census(|all| config_of(&mut all[0]).eviction = "lru".to_owned());
    assert_eq!(found(&content), [("config_skew", Some(0))]);
    let reloading = census(|all| all[0].served_config_id = CONFIG_ID_CHANGING);
    assert_eq!(found(&reloading), [("config_skew", Some(0))]);
    // Flushed since the address was read: all backends are ahead of it.
    let store = census(|all| {
        for answered in all {
            config_of(answered).config_id = 4;
            answered.served_config_id = 4;
        }
    });
    assert_eq!(found(&store), [("config_skew", None)]);
    let release = census(|all| all[0].release = "0.9.0".to_owned());
    assert_eq!(found(&release), [("release_skew", None)]);
    assert_eq!(
        findings(&release)[0].what,
        "backends are of different releases: 0.9.0 (backend 0), 1.0.0 (backends 1, 2)"
    );
    let layout = census(|all| all[0].layout_version += 1);
    assert_eq!(found(&layout), [("layout_skew", None)]);
    let own = census(|all| all.iter_mut().for_each(|a| a.layout_version += 1));
    assert_eq!(found(&own), [("layout_skew", None)]);
    let limit = |all: &mut [Answered]| all[0].process.memory_limit_bytes *= 2;
    assert_eq!(found(&census(limit)), [("memory_skew", None)]);
    assert_eq!(found(&census_of(Mode::R1, limit)), []);
}

#[test]
fn a_clock_is_compared_with_the_middle_one() {
    let ms = 1_000_000;
    let at = |offsets: [i128; 3], error: i128| {
        found(&census(|all| {
            for (answered, offset) in all.iter_mut().zip(offsets) {
                answered.clock_ns = Some((offset * ms, error * ms));
            }
        }))
    };
    assert_eq!(at([240, 0, -240], 0), []);
    assert_eq!(at([900, 0, 0], 0), [("clock_skew", Some(0))]);
    assert_eq!(at([0, 0, -900], 0), [("clock_skew", Some(2))]);
    assert_eq!(at([900, 0, 0], 700), [], "that cannot be told from here");
    assert_eq!(
        at([5000, 5000, 5000], 1),
        [("clock_skew", None)],
        "it is ours"
    );
    let old = census(|all| all[0].clock_ns = None);
    assert_eq!(found(&old), []);
}

#[test]
fn epochs_count_where_three_vote_and_do() {
    let raised = |all: &mut [Answered]| {
        if let Some(Ok(standing)) = all[1].standings.get_mut(&2) {
            standing.epoch = 2;
        }
    };
    assert_eq!(found(&census(raised)), [("epoch_skew", Some(2))]);
    let recovering = census(|all| {
        raised(all);
        if let Some(Ok(standing)) = all[1].standings.get_mut(&2) {
            standing.is_recovering = true;
        }
    });
    assert_eq!(found(&recovering), []);
}

#[test]
fn what_a_backend_says_of_itself_is_heard() {
    let recovery = |shards_left, shards_lost, waits_for: &str| v1::RecoveryStats {
        shards_left,
        shards_lost,
        waits_for: waits_for.to_owned(),
        ..v1::RecoveryStats::default()
    };
    let kinds = |change: &dyn Fn(&mut Answered)| found(&census(|all| change(&mut all[1])));
    assert_eq!(
        kinds(&|a| a.member.recovery = Some(recovery(2, 1, "backend 0"))),
        [("recovering", Some(1)), ("lost", Some(1))]
    );
    assert_eq!(kinds(&|a| a.member.recovery = Some(recovery(0, 0, ""))), []);
    assert_eq!(
        kinds(&|a| a.member.lease_left_ms = 90),
        [("lease", Some(1))]
    );
    assert_eq!(kinds(&|a| a.member.lease_left_ms = 200), []);
    assert_eq!(kinds(&|a| a.carrier = "rpc"), [("fabric", Some(1))]);
    // Memory of another host cannot be shared.
    let elsewhere = |a: &mut Answered| (a.carrier, a.boot_id) = ("rpc", "other".to_owned());
    assert_eq!(kinds(&elsewhere), []);
    assert_eq!(
        kinds(&|a| a.metrics = Some(Err("refused".to_owned()))),
        [("metrics", Some(1))]
    );
    assert_eq!(kinds(&|a| a.metrics = None), []);
    assert_eq!(
        kinds(&|a| a.process.resident_bytes = 70 << 20),
        [("memory", Some(1))]
    );
    // A cache is full; a corpus has to fit.
    let full = |all: &mut [Answered]| all[0].process.resident_bytes = 63 << 20;
    assert_eq!(found(&census(full)), []);
    assert_eq!(found(&census_of(Mode::R2, full)), [("memory", Some(0))]);
}

#[test]
fn who_says_nothing_is_told_with_the_reason() {
    for (state, kind) in [
        ("down", "down"),
        ("silent", "silent"),
        ("refuses", "refuses"),
    ] {
        let mut census = census(|_| {});
        census.backends[2].state = state;
        census.backends[2].answer = Err(Trouble {
            kind: TroubleKind::Away,
            why: "because".to_owned(),
        });
        let all = findings(&census);
        assert_eq!((all[0].kind, all[0].backend), (kind, Some(2)));
        assert!(all[0].what.contains("because"), "{:?}", all[0]);
        assert_eq!(all.len(), 1);
    }
}

#[test]
fn what_lasts_for_a_moment_is_no_finding() {
    let late =
        |number: usize, left_ms| census(move |all| all[number].member.lease_left_ms = left_ms);
    assert_eq!(lasting(&late(0, 10), &late(0, 420)), []);
    assert_eq!(lasting(&late(0, 420), &late(0, 10)), []);
    assert_eq!(lasting(&late(0, 10), &late(1, 10)), []);
    assert_eq!(lasting(&late(0, 10), &late(0, 20)).len(), 1);
    // But what has died meanwhile is dead.
    let mut dead = census(|_| {});
    dead.backends[0].state = "down";
    dead.backends[0].answer = Err(Trouble::refused("gone"));
    assert_eq!(lasting(&census(|_| {}), &dead).len(), 1);
    assert_eq!(lasting(&dead, &census(|_| {})), []);
}

#[test]
fn writes_that_are_refused_meanwhile_are_told() {
    let refused = |count, incarnation| {
        census(move |all| {
            all[0].incarnation = incarnation;
            all[0].member.size_classes = vec![v1::SizeClassStats {
                no_memory: count,
                ..v1::SizeClassStats::default()
            }];
        })
    };
    assert_eq!(
        lasting(&refused(5, 1), &refused(5, 1)),
        [],
        "that was before"
    );
    assert_eq!(
        lasting(&refused(5, 1), &refused(7, 9)),
        [],
        "another process"
    );
    let all = lasting(&refused(5, 1), &refused(7, 1));
    assert_eq!((all[0].kind, all[0].backend), ("memory", Some(0)));
    assert!(all[0].what.contains("2 writes"), "{:?}", all[0]);
}
