//! Keys with a popularity, and what they cost: the truth that reports are
//! noisy samples of.

use super::rng::Rng;
use trefoil_sharder::{Assignment, KeyPoint, Load, ServerId, Slice};

/// Keys that may be reported as hot.
const CANDIDATES: usize = 512;

#[derive(Clone, Debug)]
struct Key {
    point: KeyPoint,
    bytes: f64,
    /// CPU-seconds of one request.
    cost: f64,
    /// Part of its requests that every replica carries out.
    writes: f64,
}

/// The keys of a service.
#[derive(Clone, Debug)]
pub struct Keys {
    /// In the order of their points.
    keys: Vec<Key>,
    /// Requests per second, beside `keys`.
    rates: Vec<f64>,
    /// Sums over all keys before the one at an index.
    sums: Vec<Load>,
    /// The keys that cost most.
    heaviest: Vec<usize>,
}

impl Keys {
    /// `count` keys, all asked for equally often; `rate` requests a second.
    pub fn new(rng: &mut Rng, count: usize, rate: f64) -> Self {
        let mut points: Vec<u64> = (0..count).map(|_| rng.bits()).collect();
        points.sort_unstable();
        points.dedup();
        let keys: Vec<Key> = points
            .into_iter()
            .map(|point| Key {
                point: KeyPoint(point),
                bytes: 200.0 * 100f64.powf(rng.unit()),
                cost: 100e-6 * rng.range(0.5, 1.5),
                writes: if rng.chance(0.5) {
                    rng.range(0.0, 0.05)
                } else {
                    0.0
                },
            })
            .collect();
        let rates = vec![rate / keys.len() as f64; keys.len()];
        let mut keys = Keys {
            keys,
            rates,
            sums: Vec::new(),
            heaviest: Vec::new(),
        };
        keys.add_up();
        keys
    }

    pub fn len(&self) -> usize {
        self.keys.len()
    }

    pub fn point(&self, key: usize) -> KeyPoint {
        self.keys[key].point
    }

    pub fn rates(&self) -> &[f64] {
        &self.rates
    }

    pub fn set_rates(&mut self, rates: Vec<f64>) {
        assert_eq!(rates.len(), self.keys.len());
        self.rates = rates;
        self.add_up();
    }

    /// Zipf's law with this exponent: the key `ranked[i]` has rank `i`.
    pub fn zipf(rate: f64, exponent: f64, ranked: &[usize]) -> Vec<f64> {
        let total: f64 = (1..=ranked.len())
            .map(|rank| (rank as f64).powf(-exponent))
            .sum();
        let mut rates = vec![0.0; ranked.len()];
        for (rank, &key) in ranked.iter().enumerate() {
            rates[key] = rate * ((rank + 1) as f64).powf(-exponent) / total;
        }
        rates
    }

    /// The load of one key, on all its servers.
    pub fn load_of(&self, key: usize) -> Load {
        let (state, rate) = (&self.keys[key], self.rates[key]);
        Load {
            cpu_shared: rate * state.cost * (1.0 - state.writes),
            cpu_each: rate * state.cost * state.writes,
            requests: rate,
            bytes: state.bytes,
        }
    }

    /// The load of a slice, on all its servers.
    pub fn load(&self, slice: Slice) -> Load {
        let index = |end: u128| {
            self.keys
                .partition_point(|key| u128::from(key.point.0) < end)
        };
        let (first, end) = (index(u128::from(slice.start().0)), index(slice.end()));
        self.sums[end].minus(self.sums[first])
    }

    /// Those of the heaviest keys that lie in a slice.
    pub fn heaviest(&self) -> impl Iterator<Item = usize> + '_ {
        self.heaviest.iter().copied()
    }

    /// What each server really spends under an assignment, in the order of
    /// `servers`.
    pub fn cpu_of(&self, assignment: &Assignment, servers: &[ServerId]) -> Vec<f64> {
        let mut cpu = vec![0.0; servers.len()];
        for assigned in assignment.slices() {
            let load = self.load(assigned.slice);
            for server in &assigned.servers {
                if let Ok(at) = servers.binary_search(server) {
                    cpu[at] += load.cpu_of_one(assigned.servers.len());
                }
            }
        }
        cpu
    }

    fn add_up(&mut self) {
        let mut sum = Load::default();
        self.sums.clear();
        self.sums.push(sum);
        for key in 0..self.keys.len() {
            sum = sum.plus(self.load_of(key));
            self.sums.push(sum);
        }
        let cost = |key: usize| self.rates[key] * self.keys[key].cost;
        let mut order: Vec<usize> = (0..self.keys.len()).collect();
        let kept = CANDIDATES.min(order.len());
        if kept < order.len() {
            order.select_nth_unstable_by(kept, |&a, &b| cost(b).total_cmp(&cost(a)));
            order.truncate(kept);
        }
        order.sort_unstable_by(|&a, &b| cost(b).total_cmp(&cost(a)).then(a.cmp(&b)));
        self.heaviest = order;
    }
}
