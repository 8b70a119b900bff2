//! What is believed of the cell, and when it is learned again: by one whole topology,
//! which takes the place of the one before it.

use crate::driver::Driver;
use crate::host::Host;
use crate::op::{Machine, Owner};
use crate::topology::Topology;
use std::sync::Arc;

/// How soon after one look at the configuration the next one is begun for a
/// backend that is down.
const LEARN_PAUSE_NS: u64 = 250_000_000;

impl<H: Host> Driver<H> {
    /// Begins to learn the topology, unless that is under way.
    pub(crate) fn begin_learning(&mut self) {
        if !self.is_learning {
            self.is_learning = true;
            self.host.learn();
        }
    }

    /// The same, but not too often: for a backend that cannot be reached.
    pub(crate) fn learn_now_and_then(&mut self, now_ns: u64) {
        if now_ns >= self.learn_again_ns {
            self.learn_again_ns = now_ns + LEARN_PAUSE_NS;
            self.begin_learning();
        }
    }

    /// Takes a topology's place, if it is newer than the known one. All that
    /// follows from it is swapped at once; operations under way begin again.
    pub fn adopt(&mut self, fresh: Arc<Topology>) {
        if !self.topology.gives_way_to(&fresh) {
            return;
        }
        let same_places = self.topology.places_as(&fresh);
        let same_backends = self.topology.config().backends == fresh.config().backends;
        let same_life = self.topology.config().life == fresh.config().life;
        let same_replicas = self.topology.moves_to(&fresh);
        let same_hasher = self.topology.hasher() == fresh.hasher();
        if !same_life {
            // Nothing of what was seen is there any more.
            self.versions.begin_again();
        }
        self.observe_sanely(fresh.flush_floor());
        self.topology = fresh;
        self.view_count += 1;
        self.tell_fills();
        if !same_places || !same_backends {
            self.topology_count += 1;
            if !same_replicas {
                self.replicas_since = self.topology_count;
            }
            self.placed_since = match same_life {
                true => self.topology.id().config_id,
                false => 0,
            };
            if same_life && same_hasher {
                self.suspect_all_open();
            } else {
                self.slab.late.take_all();
                self.suspects.clear();
            }
            // What those have answered that are to be no more counts.
            for number in 0..self.links.len() {
                self.last_answers(number);
            }
            self.make_links();
            if same_life {
                // A cell that was resized: its backends are about to take their places.
                let now = self.host.monotonic_ns();
                self.links.iter_mut().for_each(|link| link.has_moved(now));
            }
            self.connect_all();
            let all: Vec<(u32, bool)> = self
                .slab
                .all()
                .map(|(at, op)| (at, op.outcome.is_some()))
                .collect();
            for (at, has_ended) in all {
                match has_ended {
                    true => self.give_up_room(at),
                    false => self.slab.make_ready(at),
                }
            }
        }
    }
    /// Fills under way give way to what may be a flush.
    fn tell_fills(&mut self) {
        let mut hit = Vec::new();
        for (at, op) in self.slab.all() {
            if let Machine::Mutate(machine) = &mut op.machine
                && machine.is_fill()
                && op.outcome.is_none()
            {
                machine.configuration_changed();
                hit.push(at);
            }
        }
        for at in hit {
            self.slab.make_ready(at);
        }
    }

    /// What an operation that has ended still has to send has nowhere to go any more.
    fn give_up_room(&mut self, at: u32) {
        if let Some(op) = self.slab.get_mut(at) {
            let is_unsent = op.is_stored() && op.keeps_its_place();
            let hash = self.topology.hash(&op.key);
            op.owed = Default::default();
            if op.owner == Owner::Nobody {
                self.slab.release(at);
            }
            if is_unsent {
                self.suspect(hash);
            }
        }
    }
}
