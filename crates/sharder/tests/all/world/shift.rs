//! One service, one balancer, virtual seconds: popularity shifts, and the
//! balancer has five seconds to follow.
//!
//! Time is exact where it matters. A shift happens somewhere *within* a
//! second; the report at its end has seen the new popularity for the rest of
//! that second only. What a step proposes is in force `DELAY` later. The
//! balance five seconds after the shift is that of the assignment in force at
//! that moment.

use super::load::Keys;
use super::rng::Rng;
use super::server::{Server, imbalance, report_all};
use super::track::Tracker;
use std::time::Duration;
use trefoil_sharder::{
    Assignment, AssignmentVersion, BalanceConfig, Balancer, Capacity, Learned, Member, Plan,
    ServerId,
};

/// From a step to its assignment being in force, in seconds.
pub const DELAY: f64 = 0.2;
/// Time to react, in seconds.
pub const REACTION: f64 = 5.0;

/// What a run has shown.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// Worst max/mean of a whole second, from five seconds after each shift to
    /// the next one.
    pub settled: f64,
    /// Worst max/mean at any time.
    pub worst: f64,
    /// Most that one round moved of the key space.
    pub churn_max: f64,
    /// Sum over all rounds.
    pub churn_sum: f64,
    pub rounds: usize,
    pub rounds_with_moves: usize,
    pub moves: usize,
    pub slices_max: usize,
    pub returned_by_move: usize,
    pub returned_as_replica: usize,
}

pub struct World {
    pub rng: Rng,
    pub keys: Keys,
    pub servers: Vec<Server>,
    pub balancer: Balancer,
    pub tracker: Tracker,
    pub figures: Figures,
    pub second: u64,
    pub rate: f64,
    pub last_plan: Option<Plan>,
    /// Where the last shift was, as a time.
    shifted: f64,
    /// The popularity before it, and which part of this second it lasted.
    blend: Option<(Vec<f64>, f64)>,
}

/// What a world is made of.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    pub servers: usize,
    pub keys: usize,
    pub replicas_max: usize,
    /// Part of all CPU that is in use.
    pub utilisation: f64,
    /// Whether some servers are bigger than others.
    pub uneven: bool,
}

impl World {
    pub fn new(seed: u64, setting: Setting) -> Self {
        let mut rng = Rng::new(seed);
        let servers: Vec<Server> = (0..setting.servers)
            .map(|i| {
                let size = if setting.uneven && rng.chance(0.4) {
                    2.0
                } else {
                    1.0
                };
                let capacity = Capacity {
                    cpu: 4.0 * size,
                    bytes: ((64u64 << 20) as f64 * size) as u64,
                };
                Server::new(i as u64 + 1, capacity)
            })
            .collect();
        let cpu: f64 = servers.iter().map(|server| server.capacity.cpu).sum();
        let rate = cpu * setting.utilisation / 100e-6;
        let keys = Keys::new(&mut rng, setting.keys, rate);
        let config = BalanceConfig {
            replicas_max: setting.replicas_max.min(setting.servers),
            ..BalanceConfig::default()
        };
        let ids: Vec<ServerId> = servers.iter().map(|server| server.id).collect();
        let first = Assignment::even(AssignmentVersion::first_of(1), &ids, 32, 1);
        let balancer =
            Balancer::new(config, first, Duration::ZERO).expect("the thresholds fit together");
        let mut world = World {
            rng,
            keys,
            servers,
            balancer,
            tracker: Tracker::new(),
            figures: Figures::default(),
            second: 0,
            rate,
            last_plan: None,
            shifted: 0.0,
            blend: None,
        };
        world.publish();
        world
    }

    /// Another popularity from somewhere within the coming second on.
    pub fn shift(&mut self, rates: Vec<f64>) {
        let phase = self.rng.unit();
        self.shifted = self.second as f64 + phase;
        self.blend = Some((self.keys.rates().to_vec(), phase));
        self.keys.set_rates(rates);
    }

    /// One second: reports, a step, its assignment in force. Returns max/mean
    /// at the end of it.
    pub fn tick(&mut self) -> f64 {
        self.second += 1;
        let reports = match self.blend.take() {
            Some((old, phase)) => {
                let new = self.keys.rates().to_vec();
                let mixed = old
                    .iter()
                    .zip(&new)
                    .map(|(old, new)| old * phase + new * (1.0 - phase))
                    .collect();
                self.keys.set_rates(mixed);
                let reports = report_all(&mut self.servers, &self.keys, &mut self.rng);
                self.keys.set_rates(new);
                reports
            }
            None => report_all(&mut self.servers, &self.keys, &mut self.rng),
        };
        let before = self.balancer.assignment().clone();
        let members: Vec<Member> = self.servers.iter().map(Server::member).collect();
        let time = Duration::from_secs(self.second);
        let plan = self
            .balancer
            .step(time, &members, &reports)
            .expect("the members make sense");
        self.balancer.commit(&plan, time);
        self.publish();
        if std::env::var_os("SHARDER_VERBOSE").is_some() {
            println!(
                "{} s: max/mean {:.3}\n{plan}",
                self.second,
                self.imbalance()
            );
        }
        self.last_plan = Some(plan);
        // Until DELAY from now, what was in force before is so still.
        let (now, deadline) = (self.second as f64, self.shifted + REACTION);
        let (old, new) = (self.imbalance_of(&before), self.imbalance());
        self.figures.worst = self.figures.worst.max(old).max(new);
        if deadline < now + DELAY {
            self.settled(old);
        }
        if deadline < now + 1.0 {
            self.settled(new);
        }
        new
    }

    /// Max/mean of what servers spend, by the newest assignment.
    pub fn imbalance(&self) -> f64 {
        self.imbalance_of(self.balancer.assignment())
    }

    fn imbalance_of(&self, assignment: &Assignment) -> f64 {
        imbalance(&self.servers, assignment, &self.keys)
    }

    fn settled(&mut self, balance: f64) {
        self.figures.settled = self.figures.settled.max(balance);
    }

    fn publish(&mut self) {
        let assignment = self.balancer.assignment().clone();
        if self.tracker.versions.last() == Some(&assignment.version()) {
            self.figures.rounds += 1;
            return;
        }
        let window = self.balancer.config().no_return.as_secs_f64();
        let moved = self.tracker.see(
            &assignment,
            &self.keys,
            self.second as f64,
            (window, 1),
            |_| true,
        );
        let figures = &mut self.figures;
        figures.rounds += 1;
        figures.rounds_with_moves += usize::from(moved.pieces > 0);
        figures.churn_max = figures.churn_max.max(moved.keys);
        figures.churn_sum += moved.keys;
        figures.moves += moved.pieces;
        figures.slices_max = figures.slices_max.max(assignment.slices().len());
        figures.returned_by_move = self.tracker.returned_by_move;
        figures.returned_as_replica = self.tracker.returned_as_replica;
        for server in &mut self.servers {
            let learned = server.known.offer(assignment.clone());
            assert_eq!(learned, Learned::Adopted);
        }
    }
}
