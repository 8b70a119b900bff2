//! What has to hold after every phase, for drafts of any kind: servers of
//! every state, dead ones in the map, unknown loads, hot keys, tiny budgets.

use super::draft::{Draft, DraftSlice};
use super::history::History;
use super::plan::{Action, Change, Reason};
use super::{Balancer, PHASES, Plan};
use crate::assignment::{AssignedSlice, Assignment, check_shape};
use crate::config::BalanceConfig;
use crate::key::{KeyPoint, Slice};
use crate::load::Estimate;
use crate::report::{HotKey, Load, ServerReport, SliceLoad};
use crate::server::{Capacity, Member, MemberState, ServerId};
use crate::version::AssignmentVersion;
use proptest::prelude::*;
use std::time::Duration;

#[derive(Clone, Debug)]
struct Given {
    config: BalanceConfig,
    servers: Vec<(Member, bool)>,
    slices: Vec<DraftSlice>,
    /// What servers gave away, and until when they do not get it back, in
    /// seconds.
    left: Vec<(usize, ServerId, u64)>,
    /// Slices that have changed servers a moment ago.
    cooling: Vec<usize>,
}

const NOW: Duration = Duration::from_secs(1_000);

fn load(cpu_max: f64) -> impl Strategy<Value = Load> {
    let heavy = prop_oneof![6 => 0.0..0.05f64, 1 => 0.0..1.0f64];
    (heavy, 0.0..0.1f64, 0.0..1.0f64).prop_map(move |(cpu, each, bytes)| Load {
        cpu_shared: cpu * cpu_max,
        cpu_each: cpu * cpu_max * each,
        requests: cpu * 1000.0,
        bytes: (bytes * 1e6).floor(),
    })
}

fn servers() -> impl Strategy<Value = Vec<(Member, bool)>> {
    let state = prop_oneof![
        6 => Just(MemberState::Serving),
        1 => Just(MemberState::Frozen),
        1 => Just(MemberState::Draining),
    ];
    let server = (state, prop::bool::weighted(0.85), 1.0..4.0f64, 1u64..40);
    prop::collection::vec(server, 0..7).prop_map(|servers| {
        servers
            .into_iter()
            .enumerate()
            .map(|(i, (state, active, cpu, megabytes))| {
                let member = Member {
                    id: ServerId(1 + 2 * i as u64),
                    capacity: Capacity {
                        cpu,
                        bytes: megabytes << 20,
                    },
                    state,
                };
                (member, active)
            })
            .collect()
    })
}

/// Slices cut anywhere, each with one to three of the servers 1 to 14, of
/// which only some live.
fn slices() -> impl Strategy<Value = Vec<DraftSlice>> {
    let hot = prop::collection::btree_map(0u32..1000, load(8.0), 0..3);
    let slice = (
        any::<u64>(),
        prop::collection::btree_set(1u64..15, 1..4),
        load(4.0),
        hot,
        prop::bool::weighted(0.9),
    );
    prop::collection::vec(slice, 1..40).prop_map(|parts| {
        let mut cuts: Vec<u64> = parts.iter().map(|part| part.0).collect();
        cuts.sort_unstable();
        let mut rest = Some(Slice::ALL);
        let mut slices = Vec::new();
        for (cut, (_, servers, total, hot, known)) in cuts.into_iter().skip(1).chain([0]).zip(parts)
        {
            let Some(whole) = rest else { break };
            let slice = match whole.split_before(KeyPoint(cut)) {
                Some((left, right)) => {
                    rest = Some(right);
                    left
                }
                None if cut == 0 => {
                    rest = None;
                    whole
                }
                None => continue,
            };
            let mut points: Vec<(KeyPoint, Load)> = hot
                .into_iter()
                .map(|(at, load)| {
                    let at = slice.width() * u128::from(at) / 1000;
                    let point = slice.start().0.saturating_add(at as u64);
                    (KeyPoint(point.min(slice.last().0)), load)
                })
                .collect();
            points.dedup_by_key(|(point, _)| *point);
            let mut estimate = Estimate::default();
            if known {
                let sum = points.iter().fold(total, |sum, (_, load)| sum.plus(*load));
                let points = if slice.is_point() { Vec::new() } else { points };
                estimate.learn(sum, &points, 1.0);
            }
            slices.push(DraftSlice {
                slice,
                servers: servers.into_iter().map(ServerId).collect(),
                estimate,
                touched: false,
            });
        }
        slices
    })
}

fn given() -> impl Strategy<Value = Given> {
    let config = (1usize..3, 0usize..4, 0.01..0.5f64, 1usize..20, 1usize..20);
    let left = prop::collection::vec(
        (0usize..40, (1u64..15).prop_map(ServerId), 300u64..1000),
        0..30,
    );
    let cooling = prop::collection::vec(0usize..40, 0..10);
    let all = (config, servers(), slices(), left, cooling);
    all.prop_map(|(config, servers, slices, left, cooling)| {
        let (replicas_min, more, churn_max, merge_from, more_slices) = config;
        Given {
            config: BalanceConfig {
                replicas_min,
                replicas_max: replicas_min + more,
                churn_max,
                merge_churn_max: churn_max / 9.0,
                merge_from,
                split_until: merge_from + more_slices,
                ..BalanceConfig::default()
            },
            servers,
            slices,
            left,
            cooling,
        }
    })
}

impl Given {
    fn history(&self) -> History {
        let mut history = History::default();
        for &(at, server, second) in &self.left {
            if let Some(slice) = self.slices.get(at) {
                history.note_left(server, slice.slice, Duration::from_secs(second));
            }
        }
        for &at in &self.cooling {
            if let Some(slice) = self.slices.get(at) {
                history.note_changed(slice.slice, NOW - Duration::from_secs(1));
            }
        }
        history
    }

    fn draft<'a>(&'a self, history: &'a History) -> Draft<'a> {
        Draft::new(
            &self.config,
            history,
            NOW,
            self.servers.clone(),
            self.slices.clone(),
        )
    }

    fn state(&self, id: ServerId) -> Option<(MemberState, bool)> {
        self.servers
            .iter()
            .find(|(member, _)| member.id == id)
            .map(|(member, active)| (member.state, *active))
    }
}

/// Every piece of key space that a server has afterwards and had not before.
fn gains(before: &[AssignedSlice], after: &[AssignedSlice]) -> Vec<(Slice, ServerId, bool)> {
    let mut gains = Vec::new();
    for new in after {
        for old in before {
            let Some(common) = new.slice.intersection(old.slice) else {
                continue;
            };
            let replica = old
                .servers
                .iter()
                .all(|server| new.servers.contains(server));
            for server in &new.servers {
                if !old.servers.contains(server) {
                    gains.push((common, *server, replica));
                }
            }
        }
    }
    gains
}

/// Burdens as they are after having been kept up to date against burdens
/// counted afresh.
fn check_books(draft: &Draft<'_>) -> Result<(), TestCaseError> {
    for server in &draft.servers {
        let fresh = draft
            .slices
            .iter()
            .filter(|slice| slice.servers.contains(&server.member.id))
            .fold(super::draft::Burden::default(), |sum, slice| {
                sum.plus(slice.burden())
            });
        let near = |a: f64, b: f64| (a - b).abs() <= 1e-6 * (1.0 + a.abs());
        prop_assert!(
            near(fresh.cpu, server.burden.cpu)
                && near(fresh.bytes, server.burden.bytes)
                && near(fresh.keys, server.burden.keys),
            "{:?} {:?}",
            fresh,
            server.burden
        );
    }
    Ok(())
}

fn total(draft: &Draft<'_>) -> f64 {
    draft
        .slices
        .iter()
        .map(|slice| slice.estimate.total.cpu_shared)
        .sum()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn every_phase_keeps_the_rules(given in given()) {
        let history = given.history();
        let mut draft = given.draft(&history);
        let anyone = !given.servers.is_empty();
        // It serves, and is heard of.
        let takes_part = |server| given.state(server) == Some((MemberState::Serving, true));
        let (mut voluntary_keys, mut voluntary_bytes) = (0.0, 0.0);
        let (mut moves, mut drained) = (0, 0);
        let all_bytes: f64 = given
            .slices
            .iter()
            .map(|slice| slice.estimate.total.bytes * slice.servers.len() as f64)
            .sum();
        for phase in &PHASES {
            let before = draft.assigned();
            let load_before = total(&draft);
            let budget = draft.budget;
            (phase.run)(&mut draft);
            let after = draft.assigned();

            // Tiled, and everybody listed once.
            prop_assert_eq!(check_shape(&after), Ok(()), "after {}", phase.name);
            // Alive from the first phase on, and served if anybody is.
            let whole = Assignment::new(AssignmentVersion::first_of(1), after.clone()).unwrap();
            let alive = |id: ServerId| given.state(id).is_some();
            prop_assert_eq!(whole.validate(alive, anyone), Ok(()), "after {}", phase.name);
            // Nobody's load is lost or made up.
            prop_assert!(
                (total(&draft) - load_before).abs() <= 1e-6 * (1.0 + load_before),
                "after {}: {} {}", phase.name, total(&draft), load_before
            );
            check_books(&draft)?;

            let gained = gains(&before, &after);
            match phase.name {
                "dead" => {}
                "split" | "isolate" => prop_assert!(gained.is_empty(), "{} moves", phase.name),
                "restore" => {
                    for &(slice, server, _) in &gained {
                        prop_assert!(takes_part(server), "{} is given {}", server, slice);
                    }
                }
                _ => {
                    for &(slice, server, replica) in &gained {
                        prop_assert!(
                            takes_part(server),
                            "{} gives {} to {}", phase.name, slice, server
                        );
                        // Not back to where it was; draining and copies may.
                        if !replica && phase.name != "drain" {
                            let back = history.would_return(server, slice, NOW);
                            prop_assert!(!back, "{} returns {} to {}", phase.name, slice, server);
                        }
                        voluntary_keys += slice.fraction();
                    }
                    voluntary_bytes += budget.bytes - draft.budget.bytes;
                    moves += gained.len();
                    drained += if phase.name == "drain" { gained.len() } else { 0 };
                }
            }
            let within = voluntary_keys <= given.config.churn_max + 1e-9
                && voluntary_bytes <= given.config.churn_max * all_bytes + 1.0;
            // One slice larger than the budget, alone, to empty a server.
            prop_assert!(within || (moves, drained) == (1, 1), "{}", phase.name);
            prop_assert!((draft.churn.keys - voluntary_keys).abs() < 1e-9, "as it says itself");
        }
        // What has just changed servers, in this round or the last, is left
        // alone by what is done for balance only.
        let mut fixed: Vec<Slice> = given
            .cooling
            .iter()
            .filter_map(|&at| given.slices.get(at))
            .map(|slice| slice.slice)
            .collect();
        for change in &draft.changes {
            let chosen = matches!(
                change.reason,
                Reason::Unbalanced { .. } | Reason::Exchanged { .. } | Reason::Cold
            );
            if let Action::Move { .. } = change.action
                && chosen
            {
                let again = fixed.iter().any(|slice| slice.intersection(change.slice).is_some());
                prop_assert!(!again, "moved again: {}", change);
            }
            if !matches!(
                change.action,
                Action::Split { .. } | Action::Merge { .. } | Action::Isolate { .. }
            ) {
                fixed.push(change.slice);
            }
        }
        for slice in &draft.slices {
            let before = given
                .slices
                .iter()
                .filter(|before| before.slice.intersection(slice.slice).is_some())
                .map(|before| before.servers.len())
                .max()
                .unwrap_or(0);
            prop_assert!(
                slice.servers.len() <= given.config.replicas_max.max(before.min(given.config.replicas_max)),
                "{} has {} servers", slice.slice, slice.servers.len()
            );
        }
    }

    #[test]
    fn the_same_in_the_same_out(given in given()) {
        let history = given.history();
        let run = || {
            let mut draft = given.draft(&history);
            for phase in &PHASES {
                (phase.run)(&mut draft);
            }
            (draft.assigned(), draft.changes, draft.notes, draft.churn)
        };
        prop_assert_eq!(run(), run());
    }

    /// Where the giver stands above everybody and can give, it does not end
    /// below the takers: no move merely swaps roles.
    #[test]
    fn moves_make_the_worst_no_worse(given in given()) {
        let history = given.history();
        let mut draft = given.draft(&history);
        (PHASES[0].run)(&mut draft);
        draft.rescale();
        let worst = |draft: &Draft<'_>| draft.active().map(|s| draft.load(s)).fold(0.0, f64::max);
        let before = worst(&draft);
        super::moves::run(&mut draft);
        prop_assert!(worst(&draft) <= before + 1e-9);
    }
}

/// A service whose load does not change, reported exactly.
#[derive(Clone, Debug)]
struct Steady {
    members: Vec<Member>,
    /// Points with CPU and bytes.
    keys: Vec<(KeyPoint, f64, f64)>,
}

fn steady() -> impl Strategy<Value = Steady> {
    let key = (
        any::<u64>(),
        prop_oneof![20 => 0.0..0.01f64, 1 => 0.0..1.5f64],
        0.0..40_000.0f64,
    );
    (2usize..8, prop::collection::vec(key, 50..400)).prop_map(|(servers, keys)| Steady {
        members: (1..=servers as u64)
            .map(|id| {
                let capacity = Capacity {
                    cpu: 2.0,
                    bytes: 4 << 20,
                };
                Member::serving(ServerId(id), capacity)
            })
            .collect(),
        keys: keys
            .into_iter()
            .map(|(point, cpu, bytes)| (KeyPoint(point), cpu, bytes))
            .collect(),
    })
}

impl Steady {
    fn reports(&self, assignment: &Assignment, sequence: u64) -> Vec<ServerReport> {
        let load = |cpu: f64, bytes: f64, replicas: usize| Load {
            cpu_shared: cpu / replicas as f64,
            cpu_each: 0.0,
            requests: cpu * 1000.0,
            bytes,
        };
        self.members
            .iter()
            .map(|member| {
                let own = assignment
                    .slices()
                    .iter()
                    .filter(|assigned| assigned.servers.contains(&member.id));
                let mut report = ServerReport {
                    server: member.id,
                    sequence,
                    version: assignment.version(),
                    slices: Vec::new(),
                    hot_keys: Vec::new(),
                    unstored: Vec::new(),
                };
                for assigned in own {
                    let inside = self
                        .keys
                        .iter()
                        .filter(|(point, _, _)| assigned.slice.contains(*point));
                    let (mut cpu, mut bytes) = (0.0, 0.0);
                    for &(point, key_cpu, key_bytes) in inside {
                        cpu += key_cpu;
                        bytes += key_bytes;
                        report.hot_keys.push(HotKey {
                            point,
                            load: load(key_cpu, key_bytes, assigned.servers.len()),
                        });
                    }
                    report.slices.push(SliceLoad {
                        slice: assigned.slice,
                        load: load(cpu, bytes, assigned.servers.len()),
                    });
                }
                report
                    .hot_keys
                    .sort_by(|a, b| b.load.cpu_shared.total_cmp(&a.load.cpu_shared));
                report.hot_keys.truncate(32);
                report
            })
            .collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// While the load stays as it is, the balancer comes to rest, and stays at
    /// rest.
    #[test]
    fn steady_load_comes_to_rest(steady in steady()) {
        let config = BalanceConfig {
            replicas_max: 4,
            ..BalanceConfig::default()
        };
        let ids: Vec<ServerId> = steady.members.iter().map(|member| member.id).collect();
        let first = Assignment::even(AssignmentVersion::first_of(1), &ids, 8, 1);
        let mut balancer = Balancer::new(config, first, Duration::ZERO).unwrap();
        let mut last: Option<(u64, Plan)> = None;
        for second in 1..=400u64 {
            let reports = steady.reports(balancer.assignment(), second);
            let now = Duration::from_secs(second);
            let plan = balancer.step(now, &steady.members, &reports).unwrap();
            balancer.commit(&plan, now);
            if plan.next.is_some() {
                last = Some((second, plan));
            }
        }
        if let Some((second, plan)) = last {
            prop_assert!(second < 200, "still changing after {} s: {}", second, plan);
        }
    }
}

#[test]
fn the_changes_of_a_plan_tell_the_whole_difference() {
    // One giver with everything, one taker with nothing.
    let capacity = Capacity {
        cpu: 1.0,
        bytes: 1 << 30,
    };
    let members: Vec<Member> = [1, 2]
        .map(|id| Member::serving(ServerId(id), capacity))
        .to_vec();
    let first = Assignment::even(AssignmentVersion::first_of(1), &[ServerId(1)], 40, 1);
    let mut balancer = Balancer::new(BalanceConfig::default(), first, Duration::ZERO).unwrap();
    let steady = Steady {
        members: members.clone(),
        keys: (0..1000u64)
            .map(|i| (KeyPoint(i << 54), 0.0005, 1000.0))
            .collect(),
    };
    for second in 1..=30u64 {
        let before = balancer.assignment().clone();
        let reports = steady.reports(&before, second);
        let now = Duration::from_secs(second);
        let plan = balancer.step(now, &members, &reports).unwrap();
        balancer.commit(&plan, now);
        let moved = |change: &Change| match change.action {
            Action::Move { to, .. } => Some((change.slice, to, false)),
            _ => None,
        };
        let told: Vec<_> = plan.changes.iter().filter_map(moved).collect();
        let mut found = gains(before.slices(), balancer.assignment().slices());
        let keys = |list: &[(Slice, ServerId, bool)]| -> u128 {
            list.iter().map(|(slice, _, _)| slice.width()).sum()
        };
        assert_eq!(keys(&told), keys(&found));
        found.retain(|(slice, to, _)| {
            !told.iter().any(|(told, told_to, _)| {
                told.intersection(*slice) == Some(*slice) && told_to == to
            })
        });
        assert!(found.is_empty(), "not told of: {found:?}");
    }
    let loads: Vec<usize> = [1, 2]
        .map(|id| {
            let has = |assigned: &&AssignedSlice| assigned.servers.contains(&ServerId(id));
            balancer.assignment().slices().iter().filter(has).count()
        })
        .to_vec();
    assert!(
        loads[1] * 2 > loads[0],
        "the newcomer was filled: {loads:?}"
    );
}

/// Two servers, requests of one weight, each at its own moment.
struct Chance {
    requests_per_s: f64,
    /// The part of the requests that goes to the keys of the first half.
    first_half: f64,
    random: u64,
}

impl Chance {
    const KEYS: u64 = 400;

    fn below(&mut self, end: u64) -> u64 {
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.random >> 33) % end
    }

    /// What part of the key space moves in ten minutes, after the first one, and the
    /// assignment then.
    fn run(mut self, config: BalanceConfig) -> (f64, Assignment) {
        let capacity = Capacity {
            cpu: 1.0,
            bytes: 1 << 30,
        };
        let members = [1, 2].map(|id| Member::serving(ServerId(id), capacity));
        let ids = [1, 2].map(ServerId);
        let first = Assignment::even(AssignmentVersion::first_of(1), &ids, 30, 1);
        let mut balancer = Balancer::new(config, first, Duration::ZERO).unwrap();
        let mut moved = 0.0;
        for second in 1..=660u64 {
            let mut asked = [0.0; Self::KEYS as usize];
            for _ in 0..(2.0 * self.requests_per_s) as u64 {
                if self.below(2) == 0 {
                    let half = self.below(1000) as f64 >= 1000.0 * self.first_half;
                    let key = self.below(Self::KEYS / 2) + u64::from(half) * Self::KEYS / 2;
                    asked[key as usize] += 1.0;
                }
            }
            let of = |key: u64| {
                let point = KeyPoint(key * (u64::MAX / Self::KEYS));
                (point, asked[key as usize] / 1000.0, 1000.0)
            };
            let steady = Steady {
                members: members.to_vec(),
                keys: (0..Self::KEYS).map(of).collect(),
            };
            let reports = steady.reports(balancer.assignment(), second);
            let now = Duration::from_secs(second);
            let plan = balancer.step(now, &members, &reports).unwrap();
            balancer.commit(&plan, now);
            if second > 60 {
                moved += plan.churn.keys;
            }
        }
        (moved, balancer.assignment().clone())
    }
}

#[test]
fn chance_moves_next_to_nothing() {
    let by_time_alone = || {
        let default = BalanceConfig::default();
        BalanceConfig {
            half_life_max: default.half_life,
            evidence_half: 0.0,
            ..default
        }
    };
    for requests_per_s in [3.0, 12.0, 100.0, 600.0] {
        let chance = || Chance {
            requests_per_s,
            first_half: 0.5,
            random: 1,
        };
        let (moved, _) = chance().run(BalanceConfig::default());
        assert!(moved < 0.1, "{requests_per_s}: {moved}");
        let (before, _) = chance().run(by_time_alone());
        assert!(
            requests_per_s > 100.0 || before > 0.3,
            "{requests_per_s}: {before}"
        );
    }
}

#[test]
fn what_is_no_chance_is_evened_out_however_few_the_requests() {
    for requests_per_s in [12.0, 100.0, 600.0] {
        let chance = Chance {
            requests_per_s,
            first_half: 0.8,
            random: 1,
        };
        let (_, assignment) = chance.run(BalanceConfig::default());
        let first: f64 = assignment
            .slices()
            .iter()
            .filter(|assigned| assigned.servers.contains(&ServerId(1)))
            .map(|assigned| {
                let (from, to) = (
                    assigned.slice.start().0 as f64 / u64::MAX as f64,
                    assigned.slice.last().0 as f64 / u64::MAX as f64,
                );
                let of_first = to.min(0.5) - from.min(0.5);
                1.6 * of_first + 0.4 * (to - from - of_first)
            })
            .sum();
        assert!((0.35..0.65).contains(&first), "{requests_per_s}: {first}");
    }
}
