//! What a person would ask of the balancer, one question at a time.

use std::time::Duration;
use trefoil_sharder::{
    Action, AssignedSlice, Assignment, AssignmentVersion, BalanceConfig, Balancer, Capacity,
    Freeze, HotKey, KeyPoint, Load, Member, MemberState, Metric, Note, Overloaded, Plan, Reason,
    ServerId, ServerReport, Slice, SliceLoad, StepError, Unstored,
};

const MIB: u64 = 1 << 20;

/// Servers with 1 core and 100 MiB, slices of equal width, load by slice.
struct Script {
    balancer: Balancer,
    members: Vec<Member>,
    /// Load by key: where, and how much.
    keys: Vec<(KeyPoint, Load)>,
    /// Who reports.
    silent: Vec<ServerId>,
    /// Copies that cannot be stored, with who says so.
    unstored: Vec<(ServerId, Unstored)>,
    second: u64,
}

fn id(number: u64) -> ServerId {
    ServerId(number)
}

fn cpu(cpu_shared: f64) -> Load {
    Load {
        cpu_shared,
        requests: cpu_shared * 1_000.0,
        ..Load::default()
    }
}

fn bytes(bytes: u64) -> Load {
    Load {
        bytes: bytes as f64,
        ..Load::default()
    }
}

impl Script {
    /// Slices dealt out in turn to the servers 1, 2, …
    fn new(servers: u64, slices_each: usize, config: BalanceConfig) -> Self {
        let ids: Vec<ServerId> = (1..=servers).map(ServerId).collect();
        let replicas = config.replicas_min;
        let first = Assignment::even(AssignmentVersion::first_of(1), &ids, slices_each, replicas);
        Script::from(first, &ids, config)
    }

    fn from(first: Assignment, servers: &[ServerId], config: BalanceConfig) -> Self {
        let capacity = Capacity {
            cpu: 1.0,
            bytes: 100 * MIB,
        };
        let members = servers
            .iter()
            .map(|&server| Member::serving(server, capacity))
            .collect();
        Script {
            balancer: Balancer::new(config, first, Duration::ZERO).expect("sound thresholds"),
            members,
            keys: Vec::new(),
            silent: Vec::new(),
            unstored: Vec::new(),
            second: 0,
        }
    }

    /// The same load in the middle of every slice.
    fn load_every_slice(&mut self, load: Load) {
        self.keys = self
            .balancer
            .assignment()
            .slices()
            .iter()
            .map(|assigned| (middle(assigned.slice), load))
            .collect();
    }

    /// Everybody reports, one step is made and committed.
    fn second(&mut self) -> Plan {
        self.second += 1;
        let reports: Vec<ServerReport> = self
            .members
            .iter()
            .filter(|member| !self.silent.contains(&member.id))
            .map(|member| self.report(member.id))
            .collect();
        let now = Duration::from_secs(self.second);
        let plan = self
            .balancer
            .step(now, &self.members, &reports)
            .expect("sound members");
        self.balancer.commit(&plan, now);
        plan
    }

    /// Some seconds; the last plan.
    fn seconds(&mut self, count: u64) -> Plan {
        (1..count).for_each(|_| drop(self.second()));
        self.second()
    }

    fn report(&self, server: ServerId) -> ServerReport {
        let mut report = ServerReport {
            server,
            sequence: self.second,
            version: self.balancer.assignment().version(),
            slices: Vec::new(),
            hot_keys: Vec::new(),
            unstored: self
                .unstored
                .iter()
                .filter(|(owner, _)| *owner == server)
                .map(|(_, unstored)| *unstored)
                .collect(),
        };
        for assigned in self.of(server) {
            let share = 1.0 / assigned.servers.len() as f64;
            let mut sum = Load::default();
            for &(point, load) in self
                .keys
                .iter()
                .filter(|key| assigned.slice.contains(key.0))
            {
                let load = Load {
                    cpu_shared: load.cpu_shared * share,
                    requests: load.requests * share,
                    ..load
                };
                sum = sum.plus(load);
                report.hot_keys.push(HotKey { point, load });
            }
            report.slices.push(SliceLoad {
                slice: assigned.slice,
                load: sum,
            });
        }
        report
            .hot_keys
            .sort_by(|a, b| b.load.cpu_shared.total_cmp(&a.load.cpu_shared));
        report.hot_keys.truncate(16);
        report
    }

    fn of(&self, server: ServerId) -> Vec<AssignedSlice> {
        self.balancer
            .assignment()
            .slices()
            .iter()
            .filter(|assigned| assigned.servers.contains(&server))
            .cloned()
            .collect()
    }

    fn member(&mut self, server: ServerId) -> &mut Member {
        self.members
            .iter_mut()
            .find(|member| member.id == server)
            .expect("it is a member")
    }

    fn servers_of(&self, point: KeyPoint) -> &[ServerId] {
        &self.balancer.assignment().slice_of(point).servers
    }
}

fn middle(slice: Slice) -> KeyPoint {
    KeyPoint(slice.start().0 + (slice.width() / 2) as u64)
}

fn text(plan: &Plan) -> String {
    plan.to_string()
}

#[test]
fn an_even_load_stays_where_it_is() {
    let mut script = Script::new(4, 20, BalanceConfig::default());
    script.load_every_slice(cpu(0.02));
    for _ in 0..20 {
        let plan = script.second();
        assert_eq!(plan.next, None, "{plan}");
        assert_eq!(plan.notes, [], "{plan}");
    }
}

#[test]
fn a_dead_server_is_replaced_at_once_and_its_keys_are_named() {
    let mut script = Script::new(4, 20, BalanceConfig::default());
    script.load_every_slice(cpu(0.02));
    script.seconds(3);
    let had: Vec<Slice> = script
        .of(id(2))
        .iter()
        .map(|assigned| assigned.slice)
        .collect();
    script.members.retain(|member| member.id != id(2));
    let plan = script.second();
    let mut lost: Vec<Slice> = plan.lost().collect();
    lost.sort_unstable();
    assert_eq!(lost, had);
    assert_eq!(script.of(id(2)), []);
    for server in [1, 3, 4] {
        let count = script.of(id(server)).len();
        assert!((26..=27).contains(&count), "{server} has {count} of 80");
    }
}

#[test]
fn a_slice_whose_replica_lives_loses_nothing() {
    // Half of all slices lack one, in a round that may move 9 %, and during a deployment:
    // until they have it, nothing of them can be changed in strong mode.
    let config = BalanceConfig {
        replicas_min: 2,
        replicas_max: 2,
        freeze: Freeze::OnlyDead,
        ..BalanceConfig::default()
    };
    let mut script = Script::new(4, 20, config);
    script.load_every_slice(cpu(0.02));
    script.seconds(3);
    script.members.retain(|member| member.id != id(2));
    let plan = script.second();
    assert_eq!(plan.lost().count(), 0);
    // And is at full strength again, the values copied from who has them.
    for assigned in script.balancer.assignment().slices() {
        assert_eq!(assigned.servers.len(), 2, "{assigned:?}");
    }
    let count = |reason| {
        plan.changes
            .iter()
            .filter(|change| change.reason == reason)
            .count()
    };
    assert_eq!(count(Reason::Dead), 40);
    assert_eq!(count(Reason::TooFewReplicas), 40);
}

#[test]
fn copies_that_cannot_be_stored_are_given_to_others() {
    // During a deployment, too.
    let config = BalanceConfig {
        replicas_min: 2,
        replicas_max: 2,
        freeze: Freeze::OnlyDead,
        ..BalanceConfig::default()
    };
    let mut script = Script::new(4, 8, config);
    script.load_every_slice(cpu(0.02));
    script.seconds(6);
    let first = script.balancer.assignment().slices()[0].clone();
    let (point, owner) = (middle(first.slice), first.servers[0]);
    let mut refused = Vec::new();
    // One after another refuses it: nobody gets it twice.
    for _ in 0..3 {
        let copy = script.servers_of(point)[1];
        assert!(!refused.contains(&copy), "{copy} has refused it before");
        refused.push(copy);
        script.unstored = vec![(
            owner,
            Unstored {
                point,
                server: copy,
            },
        )];
        let plan = script.second();
        if refused.len() < 3 {
            let reason = Reason::Unstored { server: copy };
            assert_eq!(plan.changes.len(), 1, "{plan}");
            assert_eq!(plan.changes[0].reason, reason);
            let now = script.servers_of(point).to_vec();
            assert!(now.len() == 2 && now[0] == owner && now[1] != copy);
            // What an older map was about changes nothing.
            assert_eq!(script.second().changes, []);
            script.unstored = Vec::new();
            script.seconds(3);
        } else {
            // Nobody is left who could: it stays, and that is told.
            assert_eq!(plan.changes, []);
            let servers = vec![copy];
            assert!(
                plan.notes.contains(&Note::CannotStore { servers }),
                "{plan}"
            );
        }
    }
    // A new server can. That it came makes nobody forget who could not.
    let capacity = script.members[0].capacity;
    script.members.push(Member::serving(id(9), capacity));
    let plan = script.second();
    assert_eq!(plan.changes.len(), 1, "{plan}");
    assert_eq!(script.servers_of(point), [owner, id(9)]);
    script.seconds(30);
    script.unstored[0].1.server = id(9);
    assert_eq!(script.second().changes, []);
    assert_eq!(script.servers_of(point), [owner, id(9)]);
    // Who is not the owner says nothing of it.
    let server = id(9);
    script.unstored = vec![(server, Unstored { point, server })];
    assert_eq!(script.second().changes, []);
}

/// The owner by the map cannot store a key: who has it says so, or the owner itself, and the
/// slice goes to somebody else. It goes round once at most, however long that is said of
/// everybody.
#[test]
fn what_its_owner_cannot_store_is_given_to_others() {
    for by_itself in [false, true] {
        let config = BalanceConfig {
            replicas_min: 2,
            replicas_max: 2,
            ..BalanceConfig::default()
        };
        let mut script = Script::new(4, 8, config);
        script.load_every_slice(cpu(0.02));
        script.seconds(6);
        let first = script.balancer.assignment().slices()[0].clone();
        let (point, has) = (middle(first.slice), first.servers[1]);
        let (mut owners, mut changes, mut told) = (Vec::new(), 0, false);
        for _ in 0..300 {
            let server = script.servers_of(point)[0];
            if !owners.contains(&server) {
                owners.push(server);
            }
            let says = if by_itself { server } else { has };
            script.unstored = vec![(says, Unstored { point, server })];
            let plan = script.second();
            let reason = Reason::Unstored { server };
            changes += plan.changes.iter().filter(|c| c.reason == reason).count();
            let servers = vec![server];
            told |= plan.notes.contains(&Note::CannotStore { servers });
        }
        assert_eq!((owners.len(), changes), (3, 2), "{owners:?}");
        assert!(told, "it stays, and that is told");
        assert_eq!(script.servers_of(point).len(), 2);
    }
}

#[test]
fn nobody_left_and_somebody_back() {
    let mut script = Script::new(2, 4, BalanceConfig::default());
    script.second();
    let members = std::mem::take(&mut script.members);
    let plan = script.second();
    assert!(
        script
            .balancer
            .assignment()
            .slices()
            .iter()
            .all(|a| a.servers.is_empty()),
        "{plan}"
    );
    assert_eq!(script.second().next, None, "nothing more to say");
    script.members = vec![Member {
        id: id(9),
        ..members[0]
    }];
    script.second();
    assert_eq!(
        script.of(id(9)).len(),
        script.balancer.assignment().slices().len()
    );
}

#[test]
fn a_draining_server_gives_everything_within_the_budget() {
    let mut script = Script::new(4, 20, BalanceConfig::default());
    script.load_every_slice(cpu(0.02));
    script.seconds(3);
    script.member(id(3)).state = MemberState::Draining;
    let plan = script.second();
    assert!(
        plan.churn.keys <= 0.09 && plan.churn.keys > 0.07,
        "{}",
        plan.churn.keys
    );
    assert_eq!(plan.lost().count(), 0);
    assert!(
        plan.notes.contains(&Note::StillDraining {
            server: id(3),
            slices: 13
        }),
        "{plan}"
    );
    script.seconds(2);
    assert_eq!(
        script.of(id(3)),
        [],
        "a quarter of the keys takes three rounds"
    );
    // Called off: it fills up again, though it has given all that away.
    script.member(id(3)).state = MemberState::Serving;
    script.seconds(20);
    assert!(script.of(id(3)).len() >= 14, "{}", script.of(id(3)).len());
}

#[test]
fn a_slice_larger_than_the_budget_leaves_a_draining_server_in_a_round_of_its_own() {
    // A third of the key space, of which nothing was ever reported.
    let mut script = Script::new(3, 1, BalanceConfig::default());
    script.silent = vec![id(2)];
    script.member(id(2)).state = MemberState::Draining;
    let plan = script.seconds(5);
    assert_eq!(script.of(id(2)), [], "{plan}");
    // One key that is half of everything: it cannot be cut.
    let ids = [1, 2, 3, 4].map(ServerId);
    let even = Assignment::even(AssignmentVersion::first_of(1), &ids, 20, 1);
    let mut slices = even.slices().to_vec();
    let heavy = middle(slices[0].slice);
    let (before, rest) = slices[0].slice.split_before(heavy).expect("in the middle");
    let (own, after) = rest.split_before(KeyPoint(heavy.0 + 1)).expect("wider");
    let parts = [before, own, after].map(|slice| AssignedSlice {
        slice,
        servers: vec![id(1)],
    });
    slices.splice(..1, parts);
    let first = Assignment::new(even.version(), slices).expect("covers everything");
    let mut script = Script::from(first, &ids, BalanceConfig::default());
    script.load_every_slice(bytes(100_000));
    script.keys.push((heavy, bytes(8_000_000)));
    script.member(id(1)).state = MemberState::Draining;
    let plan = script.seconds(20);
    assert_eq!(script.of(id(1)), [], "{plan}");
}

#[test]
fn the_switch_for_deployments() {
    let freeze = |freeze| BalanceConfig {
        freeze,
        ..BalanceConfig::default()
    };
    let mut script = Script::new(3, 10, freeze(Freeze::All));
    script.load_every_slice(cpu(0.01));
    let hot = script.of(id(1))[3].slice;
    script.keys.push((middle(hot), cpu(0.5)));
    assert_eq!(script.seconds(5).next, None);
    script.members.retain(|member| member.id != id(2));
    let plan = script.second();
    assert_eq!(plan.next, None);
    assert!(
        text(&plan).contains("frozen: nothing is changed; dead and still assigned: server 2"),
        "{plan}"
    );
    script.balancer.configure(freeze(Freeze::OnlyDead)).unwrap();
    let plan = script.second();
    assert_eq!(plan.changes.len(), 10, "{plan}");
    assert!(
        plan.changes
            .iter()
            .all(|change| change.reason == Reason::AllDead)
    );
    script.balancer.configure(freeze(Freeze::Off)).unwrap();
    let plan = script.second();
    assert!(
        plan.changes
            .iter()
            .any(|change| matches!(change.action, Action::Isolate { .. })),
        "{plan}"
    );
}

#[test]
fn a_hot_key_is_isolated_replicated_and_let_go_again() {
    let config = BalanceConfig {
        replicas_max: 4,
        ..BalanceConfig::default()
    };
    let mut script = Script::new(4, 20, config);
    script.load_every_slice(cpu(0.01));
    script.seconds(6);
    let slice = script.of(id(1))[5].slice;
    let hot = KeyPoint(slice.start().0 + 7);
    script.keys.push((hot, cpu(0.8)));
    script.seconds(4);
    assert_eq!(
        script.balancer.assignment().slice_of(hot).slice,
        Slice::of_point(hot)
    );
    assert_eq!(script.servers_of(hot).len(), 4);
    script.keys.pop();
    script.seconds(59);
    assert!(script.servers_of(hot).len() >= 3, "kept for a while");
    script.seconds(240);
    assert_eq!(script.servers_of(hot).len(), 1);
}

#[test]
fn copies_do_not_help_where_every_replica_writes() {
    let config = BalanceConfig {
        replicas_max: 4,
        ..BalanceConfig::default()
    };
    let mut script = Script::new(4, 20, config);
    script.load_every_slice(cpu(0.01));
    let hot = middle(script.of(id(1))[5].slice);
    let writes = Load {
        cpu_each: 0.8,
        requests: 800.0,
        ..Load::default()
    };
    script.keys.push((hot, writes));
    let plan = script.seconds(12);
    assert_eq!(script.servers_of(hot).len(), 1, "{plan}");
}

#[test]
fn memory_is_balanced_as_cpu_is() {
    let mut script = Script::new(4, 20, BalanceConfig::default());
    script.load_every_slice(cpu(0.02));
    // Server 1 has three quarters of its memory full, the others half.
    for (i, key) in script.keys.iter_mut().enumerate() {
        let mebibytes = if i % 4 == 0 { 9 } else { 5 } * MIB / 2;
        key.1 = key.1.plus(bytes(mebibytes));
    }
    let memory = |script: &Script| -> Vec<f64> {
        (1..=4)
            .map(|server| {
                let report = script.report(id(server));
                report
                    .slices
                    .iter()
                    .map(|slice| slice.load.bytes)
                    .sum::<f64>()
                    / MIB as f64
            })
            .collect()
    };
    assert_eq!(memory(&script), [90.0, 50.0, 50.0, 50.0]);
    let moved: f64 = (0..20)
        .map(|_| script.second().churn.bytes / MIB as f64)
        .sum();
    let after = memory(&script);
    assert!(after.iter().all(|&used| used < 60.0 * 1.13), "{after:?}");
    assert!(moved < 40.0, "{moved} MiB were moved to even out 30");
    let cpu: Vec<f64> = (1..=4)
        .map(|server| {
            script
                .report(id(server))
                .slices
                .iter()
                .map(|s| s.load.cpu_shared)
                .sum()
        })
        .collect();
    assert!(cpu.iter().all(|&used| used < 0.4 * 1.2), "{cpu:?}");
}

#[test]
fn plentiful_memory_moves_nothing() {
    let mut script = Script::new(4, 20, BalanceConfig::default());
    script.load_every_slice(cpu(0.02));
    for (i, key) in script.keys.iter_mut().enumerate() {
        let mebibytes = if i % 4 == 0 { 2 } else { 1 } * MIB / 2;
        key.1 = key.1.plus(bytes(mebibytes));
    }
    assert_eq!(script.seconds(10).base, AssignmentVersion::first_of(1));
}

#[test]
fn a_newcomer_is_filled_and_nobody_else_is_disturbed() {
    let mut script = Script::new(4, 30, BalanceConfig::default());
    script.load_every_slice(cpu(0.01));
    script.seconds(6);
    let capacity = script.members[0].capacity;
    script.members.push(Member::serving(id(5), capacity));
    for _ in 0..15 {
        let plan = script.second();
        for change in &plan.changes {
            if let Action::Move { to, .. } = change.action {
                assert_eq!(to, id(5), "{change}");
            }
        }
    }
    assert!(
        script.of(id(5)).len() >= 18,
        "{} of 120",
        script.of(id(5)).len()
    );
}

#[test]
fn an_idle_service_is_spread_by_width() {
    let ids = [id(1), id(2), id(3)];
    let first = Assignment::even(AssignmentVersion::first_of(1), &ids[..1], 60, 1);
    let mut script = Script::from(first, &ids, BalanceConfig::default());
    script.seconds(30);
    for server in ids {
        let keys: f64 = script.of(server).iter().map(|a| a.slice.fraction()).sum();
        assert!(
            (0.25..0.42).contains(&keys),
            "{server} has {keys:.2} of the keys"
        );
    }
}

#[test]
fn silent_and_frozen_servers_are_left_as_they_are() {
    let mut script = Script::new(5, 20, BalanceConfig::default());
    script.load_every_slice(cpu(0.02));
    for (i, key) in script.keys.iter_mut().enumerate() {
        // Server 1 is hot; without the switch and the silence, all would take.
        key.1 = cpu(if i % 5 == 0 { 0.04 } else { 0.01 });
    }
    script.second();
    let first = script.balancer.assignment().clone();
    script.silent = vec![id(2)];
    script.member(id(3)).state = MemberState::Frozen;
    script.seconds(5);
    let before = script.balancer.assignment().clone();
    let mut told = String::new();
    for _ in 0..20 {
        told = text(&script.second());
    }
    let has = |assignment: &Assignment, server: u64| {
        let keys = script.keys.iter();
        keys.filter(|(point, _)| assignment.slice_of(*point).servers == [id(server)])
            .count()
    };
    let after = script.balancer.assignment();
    for server in [2, 3] {
        assert_eq!(has(&before, server), has(after, server), "server {server}");
    }
    for server in [4, 5] {
        assert!(has(&first, server) < has(after, server), "server {server}");
    }
    assert!(told.contains("server 2 has not reported for"), "{told}");
}

#[test]
fn what_does_not_fit_is_said_by_name() {
    let mut script = Script::new(2, 20, BalanceConfig::default());
    script.load_every_slice(cpu(0.01));
    let hot = middle(script.of(id(2))[4].slice);
    script.keys.push((hot, cpu(3.0)));
    let plan = script.seconds(10);
    assert!(
        plan.overloaded.iter().any(|overloaded| matches!(
            overloaded,
            Overloaded::Cluster { metric: Metric::Cpu, needed, capacity } if needed > capacity
        )),
        "{plan}"
    );
    let key = plan
        .overloaded
        .iter()
        .find_map(|overloaded| match overloaded {
            Overloaded::Key {
                point, replicas, ..
            } => Some((*point, *replicas)),
            _ => None,
        });
    assert_eq!(key, Some((hot, 1)));
    let told = text(&plan);
    for line in [
        format!(
            "overloaded: key point {hot} alone needs 301 % of the CPU of each of its 1 server(s): allow more replicas or divide the key"
        ),
        "overloaded: all servers together need 170 % of their CPU: add servers or shed load"
            .to_owned(),
    ] {
        assert!(told.contains(&line), "{line}\n{told}");
    }
}

#[test]
fn a_new_balancer_listens_before_it_moves() {
    let mut script = Script::new(3, 10, BalanceConfig::default());
    script.load_every_slice(cpu(0.01));
    let hot = middle(script.of(id(1))[3].slice);
    script.keys.push((hot, cpu(0.4)));
    script.silent = vec![id(2)];
    let plan = script.second();
    assert_eq!(plan.next, None);
    assert!(
        text(&plan).contains("nothing is moved before the first reports of server 2"),
        "{plan}"
    );
    // It does not wait for ever.
    script.seconds(5);
    assert!(script.balancer.assignment().version() > AssignmentVersion::first_of(1));
}

#[test]
fn a_plan_that_was_not_committed_changes_nothing() {
    let mut script = Script::new(3, 10, BalanceConfig::default());
    script.load_every_slice(cpu(0.02));
    script.seconds(2);
    script.members.remove(0);
    let before = script.balancer.assignment().clone();
    let now = Duration::from_secs(10);
    let first = script.balancer.step(now, &script.members, &[]).unwrap();
    let second = script.balancer.step(now, &script.members, &[]).unwrap();
    assert_eq!(first, second);
    assert_eq!(script.balancer.assignment(), &before);
    // Somebody else's assignment came first: the plan is void.
    let other = before.clone().renumbered(before.version().next());
    assert!(script.balancer.adopt(other.clone(), now));
    script.balancer.commit(&first, now);
    assert_eq!(script.balancer.assignment(), &other);
    assert!(!script.balancer.adopt(before, now), "older");
}

#[test]
fn a_clock_that_jumps_back_stands_still() {
    let mut script = Script::new(3, 10, BalanceConfig::default());
    script.load_every_slice(cpu(0.02));
    script.seconds(10);
    for second in [3, 0, 11] {
        let plan = script
            .balancer
            .step(Duration::from_secs(second), &script.members, &[])
            .unwrap();
        assert_eq!(plan.next, None);
        assert_eq!(plan.notes, [], "nobody has become silent");
    }
}

#[test]
fn somebody_with_a_newer_assignment_stops_the_balancer() {
    let mut script = Script::new(3, 10, BalanceConfig::default());
    script.load_every_slice(cpu(0.02));
    script.seconds(3);
    script.members.remove(0);
    let mut report = script.report(id(2));
    report.sequence = 99;
    report.version = report.version.next();
    let now = Duration::from_secs(4);
    let plan = script
        .balancer
        .step(now, &script.members, &[report])
        .unwrap();
    assert_eq!(plan.next, None, "not even for the dead");
    assert!(
        text(&plan).contains(&format!(
            "server 2 goes by {}, which is newer than what is known here",
            plan.base.next()
        )),
        "{plan}"
    );
}

#[test]
fn members_that_make_no_sense_are_refused() {
    let mut script = Script::new(3, 10, BalanceConfig::default());
    let twice = [script.members[1], script.members[1]];
    assert_eq!(
        script.balancer.step(Duration::ZERO, &twice, &[]),
        Err(StepError::Twice(id(2)))
    );
    for (cpu, bytes) in [(0.0, 1), (f64::NAN, 1), (1.0, 0)] {
        let mut none = script.members[0];
        none.capacity = Capacity { cpu, bytes };
        assert_eq!(
            script.balancer.step(Duration::ZERO, &[none], &[]),
            Err(StepError::Capacity(id(1)))
        );
    }
}

#[test]
fn strangers_and_nonsense_are_told_of_and_not_used() {
    let mut script = Script::new(2, 10, BalanceConfig::default());
    script.load_every_slice(cpu(0.02));
    script.seconds(2);
    let mut stranger = script.report(id(1));
    stranger.server = id(77);
    let mut nonsense = script.report(id(2));
    nonsense.sequence = 99;
    nonsense.slices[0].load.cpu_shared = f64::NAN;
    let now = Duration::from_secs(3);
    let plan = script
        .balancer
        .step(now, &script.members, &[stranger, nonsense])
        .unwrap();
    assert_eq!(plan.notes.len(), 2, "{plan}");
    let told = text(&plan);
    assert!(
        told.contains("a report of server 77 is not used: it is no member"),
        "{told}"
    );
    assert!(
        told.contains("report 99 of server 2 is not used: cpu_shared of"),
        "{told}"
    );
}
