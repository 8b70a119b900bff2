//! An engine beside a backend, as a software NIC will be: it scans and reads the
//! backend's memory for clients. Word by word: between any two words something may
//! happen at the backend.

use super::net::{Errand, Net};
use super::process::Process;
use crate::words::Interrupted;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use trefoil_client_core::data::pointer_in_window;
use trefoil_client_core::outcome::SendFailure;
use trefoil_client_core::vote::{IndexVote, index_vote};
use trefoil_fabric::Token;
use trefoil_fabric::port::{Completion, OutOfWindow};
use trefoil_layout::bucket::BUCKET_LEN;
use trefoil_layout::control::{self, IndexWindow};
use trefoil_layout::words::Words;
use trefoil_layout::{KeyHash, Pointer, Version};
use trefoil_region::{SharedWords, WordBuffer};

/// What a scan takes one way, usually.
const WAY_NS: u64 = 10_000;
/// Loads of a scan among which something may happen.
const LOADS: u64 = 40;

/// What is known of a backend's windows.
#[derive(Clone, Debug)]
pub(super) struct Eyes {
    config_id: u32,
    data_window: u64,
    windows: Vec<IndexWindow>,
}

impl Eyes {
    pub(super) fn config_id(&self) -> u32 {
        self.config_id
    }

    pub(super) fn open(process: &Process) -> Self {
        let control = process.store.regions().control.words();
        let window = |partition| control::index_window(&control, partition).unwrap_or_default();
        Eyes {
            config_id: control::config_id(&control),
            data_window: control::data_window(&control),
            windows: (0..process.store.partition_count()).map(window).collect(),
        }
    }
}

enum Seen {
    /// Data that were read by themselves, if they lie in the window.
    Data {
        is_inside: bool,
        /// Read afterwards.
        floor: Version,
    },
    Vote {
        vote: IndexVote,
        /// Read afterwards.
        floor: Version,
        /// Read before.
        stamp: u64,
    },
    Lapsed,
}

/// Scans of one connection.
pub(super) struct Scans {
    client: usize,
    ended: RefCell<VecDeque<(Token, Seen, Option<WordBuffer>)>>,
}

/// A scan on its way.
pub(super) struct Scan {
    pub(super) process: Rc<Process>,
    pub(super) scans: Rc<Scans>,
    pub(super) eyes: Eyes,
    pub(super) token: Token,
    pub(super) wanted: Wanted,
}

/// What one asks an engine for.
#[derive(Clone, Copy)]
pub(super) enum Wanted {
    /// A key's vote, from the backend at this place in its cohort, with the data or without.
    Vote {
        place: usize,
        hash: KeyHash,
        has_data: bool,
    },
    /// What a vote has named.
    Data(Pointer),
}

impl Scans {
    pub(super) fn new(client: usize) -> Self {
        Scans {
            client,
            ended: RefCell::default(),
        }
    }

    pub(super) fn is_ready(&self) -> bool {
        !self.ended.borrow().is_empty()
    }

    pub(super) fn poll(&self, on: &mut dyn FnMut(Completion<'_>)) -> usize {
        let mut count = 0;
        loop {
            let Some((token, seen, bytes)) = self.ended.borrow_mut().pop_front() else {
                return count;
            };
            count += 1;
            match seen {
                Seen::Vote { vote, floor, stamp } => {
                    on(Completion::Stamp(token, stamp));
                    on(match &bytes {
                        Some(bytes) => Completion::Scan(token, vote, bytes.bytes(), floor),
                        None => Completion::Index(token, vote),
                    });
                }
                Seen::Data { is_inside, floor } => {
                    let bytes = bytes.as_ref().filter(|_| is_inside);
                    let data = bytes.map(WordBuffer::bytes).ok_or(OutOfWindow);
                    on(Completion::Data(token, data, floor));
                }
                Seen::Lapsed => on(Completion::NoAnswer(
                    token,
                    SendFailure::Lost,
                    "the backend's lease has ended",
                )),
            }
        }
    }
}

impl Scan {
    pub(super) fn begin(self, net: &Net) {
        net.send(net.takes(WAY_NS), Errand::Scan(self));
    }

    /// Carries it out; its answer is there at once, and is noticed later.
    pub(super) fn carry_out(self, net: &Net) {
        let mut bytes = WordBuffer::default();
        let loads_left = Cell::new(match net.is_struck(net.profile.torn) {
            true => net.rng.below(LOADS),
            false => u64::MAX,
        });
        let floor = || control::flush_floor(&self.process.store.regions().control.words());
        // The floor after the reads: what was flushed before they began is known.
        let (mut seen, has_data) = match self.wanted {
            Wanted::Vote {
                place,
                hash,
                has_data,
            } => {
                let stamp = self.stamp(place, hash);
                let mut vote = self.vote(net, (place, hash), &loads_left);
                if let IndexVote::Present { entry, .. } = vote
                    && has_data
                    && !self.read(net, entry.pointer, &mut bytes, &loads_left)
                {
                    // Outside the window that is known.
                    vote = IndexVote::ConfigChanged { found: 0 };
                }
                let floor = floor();
                (Seen::Vote { vote, floor, stamp }, has_data)
            }
            Wanted::Data(pointer) => {
                let is_inside = self.read(net, pointer, &mut bytes, &loads_left);
                let floor = floor();
                (Seen::Data { is_inside, floor }, true)
            }
        };
        if net.now_ns.get() >= self.process.lease_end_ns.get() {
            seen = Seen::Lapsed;
        }
        let ended = (self.token, seen, has_data.then_some(bytes));
        self.scans.ended.borrow_mut().push_back(ended);
        net.wake(self.scans.client, net.takes(WAY_NS));
    }

    /// Words of live memory: each load may come after an event at its backend.
    fn torn<'a>(
        &'a self,
        net: &'a Net,
        words: SharedWords<'a>,
        loads_left: &'a Cell<u64>,
    ) -> Interrupted<'a, impl Fn() + 'a> {
        let before_load = move || match loads_left.get() {
            u64::MAX => {}
            0 => {
                loads_left.set(match net.rng.chance(512) {
                    true => net.rng.below(8),
                    false => u64::MAX,
                });
                self.process.disturb(net);
            }
            left => loads_left.set(left - 1),
        };
        Interrupted { words, before_load }
    }

    fn stamp(&self, place: usize, hash: KeyHash) -> u64 {
        let control = self.process.store.regions().control.words();
        let partition = self.process.partition(place, hash);
        control::stamp(&control, partition, self.eyes.windows.len(), hash)
    }

    fn vote(
        &self,
        net: &Net,
        (place, hash): (usize, KeyHash),
        loads_left: &Cell<u64>,
    ) -> IndexVote {
        let regions = self.process.store.regions();
        let partition = self.process.partition(place, hash);
        let window = self.eyes.windows[partition];
        let index = regions.index.words();
        let vote = index_vote(hash, self.eyes.config_id, window.bucket_count, |bucket| {
            let at = window.offset + bucket * BUCKET_LEN as u64;
            let bucket = index.slice(at, BUCKET_LEN).expect("inside the region");
            self.torn(net, bucket, loads_left)
        });
        // The range may hold another partition's index by now.
        let now = control::window_id(&regions.control.words(), partition);
        match vote {
            IndexVote::Absent { .. } if now != window.window_id => {
                IndexVote::ConfigChanged { found: 0 }
            }
            vote => vote,
        }
    }

    fn read(
        &self,
        net: &Net,
        pointer: Pointer,
        into: &mut WordBuffer,
        loads_left: &Cell<u64>,
    ) -> bool {
        let data = self.process.store.regions().data.words();
        if !pointer_in_window(pointer, self.eyes.data_window) {
            return false;
        }
        let Some(words) = data.slice(pointer.offset(), pointer.len()) else {
            return false;
        };
        let source = self.torn(net, words, loads_left);
        for (index, word) in into.prepare(pointer.len()).iter_mut().enumerate() {
            *word = source.load(index);
        }
        true
    }
}
