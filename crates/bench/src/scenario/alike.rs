//! Whether the replicas of a full cell hold the same: each evicts by itself, and
//! with one of them dead, a key on which the other two disagree is a miss.
//!
//! Memory is filled, asked for what does not fit and filled again; then nobody
//! writes, and what each replica holds is listed. Beside it, the same load on one
//! copy with one replica's memory.

use std::collections::HashMap;
use std::time::Duration;

use serde::Serialize;
use trefoil_client::Cell;

use super::look_aside_load::{LookAsideLoad, Reach, Requests, Stretch};
use super::{Progress, ScenarioError, ScenarioOptions};
use crate::load::Bound;
use crate::server::ServerOptions;

/// Of each backend.
const MEMORY: u64 = 128 << 20;
/// Operations of each client, fills among them, where the load has no end.
const NATIVE_OPS: u64 = 200_000;
const GATEWAY_OPS: u64 = 100_000;
/// After this, what was under way has arrived.
const REST: Duration = Duration::from_millis(500);
/// Items of one page of a listing.
const PAGE: u32 = 1000;
const COPIES: usize = 3;

/// What must be shown.
const DISAGREEING_MAX: f64 = 0.01;
const HIT_RATIO_POINTS_MAX: f64 = 1.0;

/// What the replicas hold, as shares of all keys that any of them holds.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Copies {
    /// Keys that any replica holds.
    pub live: u64,
    /// Not all three hold the same version: the sum of those below.
    pub disagreeing: f64,
    /// Two hold the same version, and one nothing.
    pub missing_at_one: f64,
    /// One holds it, and two nothing.
    pub held_by_one: f64,
    /// Not all versions that are held are the same.
    pub other_version: f64,
    /// No two hold the same version: a miss already.
    pub inquorate: f64,
    /// Of the keys of which two replicas are left when the third is gone, those that
    /// become misses by it: the mean over the three.
    pub lost_with_one: f64,
}

/// What reports of touches cost the backends, for each hit at the cell.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct TouchCost {
    /// Touches reported, by all replicas together.
    pub touches: f64,
    /// Messages that are no mutations: what touches, and lookups by message, take.
    pub messages: f64,
    /// CPU of all backends, for everything that they did, in microseconds.
    pub backend_cpu_us: f64,
}

/// What one backend's store may hold, and holds.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Room {
    /// Which backend.
    pub backend: u32,
    /// Its store's share of memory.
    pub bytes: u64,
    /// Items held.
    pub items: u64,
    /// Items that left for lack of room.
    pub evicted: u64,
    /// Those that left for lack of a place in the index.
    pub evicted_associativity: u64,
}

/// One load by one way to the cell.
#[derive(Debug, Clone, Serialize)]
pub struct AlikeFigures {
    /// What was asked for.
    pub requests: Requests,
    /// How the cell was reached.
    pub reach: Reach,
    /// All backends in one process, which share its memory.
    pub one_process: bool,
    /// What the replicas hold.
    pub copies: Copies,
    /// What each replica had room for, in bytes, and the items that it held.
    pub rooms: Vec<Room>,
    /// What touches cost.
    pub touch_cost: TouchCost,
    /// The stretch before the replicas were compared.
    pub stretch: Stretch,
    /// The same load at R=1 with one replica's memory; not where the replicas share
    /// what a process needs for itself.
    pub single: Option<Stretch>,
    /// R=1 less R=3.2, in percent of lookups.
    pub hit_ratio_points_lost: f64,
}

impl AlikeFigures {
    fn is_clean(&self) -> bool {
        self.stretch.is_clean()
            && self.single.as_ref().is_none_or(Stretch::is_clean)
            && self.copies.live > 0
            && self.copies.disagreeing <= DISAGREEING_MAX
            && self.hit_ratio_points_lost <= HIT_RATIO_POINTS_MAX
    }
}

/// By both loads and both ways.
#[derive(Debug, Clone, Serialize)]
pub struct AlikeReport {
    /// Each with a cell of its own.
    pub figures: Vec<AlikeFigures>,
}

impl AlikeReport {
    /// Everything that must be shown is.
    pub fn is_clean(&self) -> bool {
        self.figures.iter().all(AlikeFigures::is_clean)
    }
}

/// Compares the replicas of full cells.
pub fn alike(
    options: &ScenarioOptions,
    progress: Progress<'_>,
) -> Result<AlikeReport, ScenarioError> {
    options.pin()?;
    let mut cases = Vec::new();
    for requests in Requests::ALL {
        for reach in Reach::ALL {
            cases.push(Case {
                requests,
                reach,
                one_process: false,
            });
        }
    }
    cases.push(Case {
        requests: Requests::Zipf,
        reach: Reach::Native,
        one_process: true,
    });
    if let Some(only) = &options.only {
        cases.retain(|case| case.name().contains(only.as_str()));
    }
    if cases.is_empty() {
        let only = options.only.as_deref().unwrap_or_default();
        let none = format!("no case's name contains {only:?}");
        return Err(ScenarioError::Course(none));
    }
    let mut figures = Vec::new();
    for case in cases {
        figures.push(one(options, case, progress)?);
    }
    Ok(AlikeReport { figures })
}

/// One load by one way to one kind of cell.
#[derive(Debug, Clone, Copy)]
struct Case {
    requests: Requests,
    reach: Reach,
    one_process: bool,
}

impl Case {
    fn name(&self) -> String {
        let processes = match self.one_process {
            true => ", one process",
            false => "",
        };
        let name = format!("{:?} by {:?}{processes}", self.requests, self.reach);
        name.to_lowercase()
    }
}

fn one(
    options: &ScenarioOptions,
    case: Case,
    progress: Progress<'_>,
) -> Result<AlikeFigures, ScenarioError> {
    let Case {
        requests,
        reach,
        one_process,
    } = case;
    let name = format!("alike: {}", case.name());
    let memory = options.scaled(MEMORY, MEMORY / 2);
    let separate = LookAsideLoad::cell(options, "R=3.2", memory);
    let server = match one_process {
        true => ServerOptions {
            processes: false,
            memory: memory * COPIES as u64,
            ..separate
        },
        false => separate,
    };
    progress(&format!("{name}, three copies"));
    let mut load = LookAsideLoad::of(options, &server, memory, reach, requests)?;
    let cell = load.connect()?;
    let bound = bound(options, requests, reach);
    if requests == Requests::Zipf {
        load.run_until(bound, |_| {})?;
    }
    let before = Spent::by(&load, &cell)?;
    let stretch = load.run_until(bound, |_| {})?;
    load.leave();
    std::thread::sleep(REST);
    let spent = Spent::by(&load, &cell)?;
    progress(&format!("{name}, comparing"));
    let copies = compare(&cell)?;
    drop(cell);
    drop(load);
    let mut rooms = spent.rooms.clone();
    let single = match one_process {
        true => None,
        false => {
            progress(&format!("{name}, one copy"));
            let server = LookAsideLoad::cell(options, "R=1", memory);
            let mut load = LookAsideLoad::of(options, &server, memory, reach, requests)?;
            if requests == Requests::Zipf {
                load.run_until(bound, |_| {})?;
            }
            let single = load.run_until(bound, |_| {})?;
            rooms.extend(Spent::by(&load, &load.connect()?)?.rooms);
            Some(single)
        }
    };
    let single_hit_ratio = single.as_ref().map_or(stretch.hit_ratio, |s| s.hit_ratio);
    Ok(AlikeFigures {
        requests,
        reach,
        one_process,
        copies,
        rooms,
        touch_cost: spent.since(&before, stretch.hits),
        hit_ratio_points_lost: (single_hit_ratio - stretch.hit_ratio) * 100.0,
        stretch,
        single,
    })
}

fn bound(options: &ScenarioOptions, requests: Requests, reach: Reach) -> Bound {
    match (requests, reach) {
        (Requests::Oltp, _) => Bound::Source,
        (Requests::Zipf, Reach::Native) => Bound::Ops(options.scaled(NATIVE_OPS, NATIVE_OPS / 4)),
        (Requests::Zipf, Reach::Gateway) => {
            Bound::Ops(options.scaled(GATEWAY_OPS, GATEWAY_OPS / 4))
        }
    }
}

/// What the backends have done so far.
#[derive(Debug, Clone, Default)]
struct Spent {
    rooms: Vec<Room>,
    touches: u64,
    messages: u64,
    mutations: u64,
    cpu: Duration,
}

impl Spent {
    fn by(load: &LookAsideLoad, cell: &Cell) -> Result<Self, ScenarioError> {
        let mut spent = Spent {
            cpu: load.server.cpu_time()?,
            ..Spent::default()
        };
        let mut processes = Vec::new();
        for backend in cell.stats() {
            let stats = backend.stats.map_err(ScenarioError::Course)?;
            for member in &stats.members {
                // A process answers for all of its members.
                if member.backend == backend.number {
                    let evictions = member.evictions.unwrap_or_default();
                    spent.rooms.push(Room {
                        backend: member.backend,
                        bytes: member.memory_limit_bytes,
                        items: member.items,
                        evicted: evictions.capacity,
                        evicted_associativity: evictions.associativity,
                    });
                    spent.touches += member.touches;
                    spent.mutations += member.mutations.iter().map(|m| m.count).sum::<u64>();
                }
            }
            let Some(process) = stats.process else {
                continue;
            };
            if !processes.contains(&process.pid) {
                processes.push(process.pid);
                spent.messages += process.fabric_messages + process.rpc_touches;
            }
        }
        Ok(spent)
    }

    fn since(&self, before: &Spent, hits: u64) -> TouchCost {
        let hits = hits.max(1) as f64;
        let mutations = self.mutations - before.mutations;
        let messages = self.messages - before.messages;
        TouchCost {
            touches: (self.touches - before.touches) as f64 / hits,
            messages: messages.saturating_sub(mutations) as f64 / hits,
            backend_cpu_us: self.cpu.saturating_sub(before.cpu).as_secs_f64() * 1e6 / hits,
        }
    }
}

/// The version that each replica holds of a key, by its place in no order.
type Held = [Option<(u64, u64)>; COPIES];

/// A backend's copy of a key, and its version.
type Copy = (u32, (u64, u64));

fn compare(cell: &Cell) -> Result<Copies, ScenarioError> {
    let mut held: HashMap<Box<[u8]>, Vec<Copy>> = HashMap::new();
    let mut cursor = 0;
    loop {
        let next = cell.list_copies(cursor, PAGE, &mut |backend, item| {
            let version = item.version;
            let copies = held.entry(item.key.into()).or_default();
            copies.push((backend, (version.time_ns, version.origin)));
        });
        cursor = next.map_err(|error| ScenarioError::Course(error.to_string()))?;
        if cursor == 0 {
            break;
        }
    }
    let mut counts = Counts::default();
    for copies in held.values_mut() {
        let mut versions: Held = [None; COPIES];
        copies.sort_unstable();
        copies.dedup_by_key(|(backend, _)| *backend);
        for (place, (_, version)) in versions.iter_mut().zip(copies.iter()) {
            *place = Some(*version);
        }
        counts.add(versions);
    }
    Ok(counts.shares())
}

#[derive(Debug, Default)]
struct Counts {
    live: u64,
    missing_at_one: u64,
    held_by_one: u64,
    other_version: u64,
    inquorate: u64,
    /// Pairs of replicas of keys that have a quorum, and those that differ.
    pairs: u64,
    pairs_apart: u64,
}

impl Counts {
    fn add(&mut self, held: Held) {
        self.live += 1;
        let present: Vec<_> = held.iter().flatten().collect();
        let alike = present.windows(2).all(|pair| pair[0] == pair[1]);
        match (present.len(), alike) {
            (COPIES, true) => {}
            (_, false) => self.other_version += 1,
            (2, true) => self.missing_at_one += 1,
            _ => self.held_by_one += 1,
        }
        let pairs = [(0, 1), (0, 2), (1, 2)];
        let agreeing = pairs
            .iter()
            .filter(|(a, b)| held[*a].is_some() && held[*a] == held[*b])
            .count() as u64;
        if agreeing == 0 {
            self.inquorate += 1;
        } else {
            self.pairs += pairs.len() as u64;
            self.pairs_apart += pairs.len() as u64 - agreeing;
        }
    }

    fn shares(&self) -> Copies {
        let share = |count: u64, of: u64| count as f64 / of.max(1) as f64;
        let disagreeing = self.missing_at_one + self.held_by_one + self.other_version;
        Copies {
            live: self.live,
            disagreeing: share(disagreeing, self.live),
            missing_at_one: share(self.missing_at_one, self.live),
            held_by_one: share(self.held_by_one, self.live),
            other_version: share(self.other_version, self.live),
            inquorate: share(self.inquorate, self.live),
            lost_with_one: share(self.pairs_apart, self.pairs),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_compared_by_cause() {
        let (a, b) = (Some((1, 1)), Some((2, 1)));
        let mut counts = Counts::default();
        for held in [
            [a, a, a],
            [a, a, None],
            [a, None, None],
            [a, a, b],
            [a, b, None],
        ] {
            counts.add(held);
        }
        let shares = counts.shares();
        assert_eq!(shares.live, 5);
        let shown = [
            shares.disagreeing,
            shares.missing_at_one,
            shares.held_by_one,
            shares.other_version,
            shares.inquorate,
        ];
        assert_eq!(shown, [0.8, 0.2, 0.2, 0.4, 0.4]);
        // Of three keys with a quorum, two lose it with two of three replicas.
        assert_eq!(shares.lost_with_one, 4.0 / 9.0);
    }
}
