//! Set-up: which backends the host has, and their memory. A thread of its own, because
//! a backend that hangs lets one knock and does not answer.

use super::counters::add;
use super::shared::Shared;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use trefoil_fabric::RegionView;
use trefoil_fabric::clock::monotonic_ns;
use trefoil_fabric::shm::{ConnectOptions, Connection, UserPolicy};
use trefoil_softnic_core::limits::BACKEND_COUNT_MAX;

/// Between two looks at the leases.
const LOOK: Duration = Duration::from_millis(50);
/// Between two looks while a backend is on its way to another process.
const LOOK_MOVING: Duration = Duration::from_millis(2);
/// How often it is asked where the backends are, if all are mapped.
const PLACES_EVERY: Duration = Duration::from_secs(10);
/// The same while some are not: sooner at first, because they may have moved.
const PLACES_MISSING_MIN: Duration = Duration::from_millis(100);
const PLACES_MISSING_MAX: Duration = Duration::from_secs(2);
/// Pauses between two attempts at a backend that is not there.
const RETRY_MIN: Duration = Duration::from_millis(10);
const RETRY_MAX: Duration = Duration::from_millis(500);
/// Patience with one greeting: others wait meanwhile.
const GREETING: Duration = Duration::from_millis(300);

/// So long after its lease has ended, a backend's memory is given up: if it hangs, it is
/// mapped anew when it goes on; if it is dead, nobody else holds its memory any more.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(5);

/// Where the backends of a cell are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CellPlaces {
    /// The cell's.
    pub life: u64,
    /// Those that hand their memory over on some host, this one or another.
    pub backends: Vec<Place>,
    /// Whose servers are believed.
    pub servers: UserPolicy,
}

/// Where one backend hands its memory over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// In the cell.
    pub number: u32,
    /// Its Unix socket, if it is on this host.
    pub socket: PathBuf,
}

/// One backend, as the mapper knows it.
#[derive(Default)]
struct Known {
    view: Option<Arc<RegionView>>,
    /// Since when its lease is known to have ended.
    lapsed_since: Option<Instant>,
    generation: u32,
    retry_at: Option<Instant>,
    pause: Duration,
}

impl Known {
    /// Has the memory unmapped, if it is mapped.
    fn give_up(&mut self, number: u32, shared: &Shared) {
        if self.view.take().is_some() {
            shared.adopt(number, self.generation, Vec::new());
        }
    }
}

pub(super) struct Mapper {
    shared: Arc<Shared>,
    places: Box<dyn FnMut(bool) -> CellPlaces + Send>,
    known: HashMap<u32, Known>,
}

impl Mapper {
    pub(super) fn new(
        shared: Arc<Shared>,
        places: Box<dyn FnMut(bool) -> CellPlaces + Send>,
    ) -> Self {
        Mapper {
            shared,
            places,
            known: HashMap::new(),
        }
    }

    pub(super) fn run(mut self) {
        let mut places = (self.places)(false);
        let mut asked_at = Instant::now();
        let mut missing_pause = PLACES_MISSING_MIN;
        while !self.shared.is_stopped() {
            let (is_missing, is_moving) = self.look(&places);
            let pause = match is_missing {
                true => missing_pause,
                false => PLACES_EVERY,
            };
            if asked_at.elapsed() >= pause {
                places = (self.places)(true);
                asked_at = Instant::now();
                missing_pause = (missing_pause * 2).min(PLACES_MISSING_MAX);
            }
            if !is_missing {
                missing_pause = PLACES_MISSING_MIN;
            }
            self.shared.await_nudge(match is_moving {
                true => LOOK_MOVING,
                false => LOOK,
            });
        }
    }

    /// Maps what is not mapped. Whether a backend could not be, and whether one is on
    /// its way to another process.
    fn look(&mut self, places: &CellPlaces) -> (bool, bool) {
        let now_ns = monotonic_ns();
        let (mut is_missing, mut is_moving) = (false, false);
        // What is known of one that has gone stays: a handle never names two mappings.
        for (number, known) in &mut self.known {
            if !places.backends.iter().any(|place| place.number == *number) {
                known.give_up(*number, &self.shared);
            }
        }
        for place in &places.backends {
            if place.number >= BACKEND_COUNT_MAX {
                continue;
            }
            let known = self.known.entry(place.number).or_default();
            let moved = match &known.view {
                Some(view) if view.agreement().topology.life != places.life => false,
                Some(view) if view.lease_alive(now_ns) => {
                    known.lapsed_since = None;
                    continue;
                }
                Some(view) => view.has_moved(),
                None => false,
            };
            let lapsed_since = *known.lapsed_since.get_or_insert_with(Instant::now);
            if lapsed_since.elapsed() >= GIVEN_UP_AFTER {
                known.give_up(place.number, &self.shared);
            }
            if !moved && known.retry_at.is_some_and(|at| Instant::now() < at) {
                is_missing = true;
                continue;
            }
            let count = self.shared.loops.len();
            match map_for_all(place, places, count) {
                Some((view, connections)) => {
                    known.generation = known.generation.wrapping_add(1);
                    known.view = Some(view);
                    known.retry_at = None;
                    known.lapsed_since = None;
                    known.pause = RETRY_MIN;
                    add(&self.shared.counters.mapped_total, 1);
                    self.shared
                        .adopt(place.number, known.generation, connections);
                }
                None => {
                    is_missing = true;
                    is_moving |= moved;
                    known.retry_at = Some(Instant::now() + known.pause);
                    known.pause = (known.pause * 2).clamp(RETRY_MIN, RETRY_MAX);
                }
            }
        }
        (is_missing, is_moving)
    }
}

/// The backend's memory, once for each loop, all of one process.
fn map_for_all(
    place: &Place,
    places: &CellPlaces,
    count: usize,
) -> Option<(Arc<RegionView>, Vec<Connection>)> {
    let connections: Option<Vec<Connection>> = (0..count).map(|_| map(place, places)).collect();
    let connections = connections?;
    let view = Arc::clone(connections.first()?.view());
    let incarnation = view.agreement().incarnation;
    let is_one = |of: &Connection| of.agreement().incarnation == incarnation;
    connections
        .iter()
        .all(is_one)
        .then_some((view, connections))
}

/// The backend's memory, if it lives and is of this life of the cell. Rings are asked
/// for, to report touches; without them those are lost.
fn map(place: &Place, places: &CellPlaces) -> Option<Connection> {
    let options = ConnectOptions {
        servers: places.servers.clone(),
        timeout: GREETING,
        // Buckets go to clients as they are, and clients elsewhere see no marks.
        looks_at_marks: false,
        ..ConnectOptions::default()
    };
    let connection = Connection::connect(&place.socket, place.number, &options).ok()?;
    let is_ours = connection.agreement().topology.life == places.life;
    (is_ours && connection.lease_alive(monotonic_ns())).then_some(connection)
}
