//! What a loop tells, counted.

use super::block::{Block, COMMANDS, bump, command_index};
use super::observatory::Observatory;
use super::report;
use super::slow::{self, SlowCommand};
use crate::server::{LoopObserver, Protocol};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use trefoil_gateway_core::keyspace::Totals;
use trefoil_gateway_core::world::{self, Command, Done, Observer};
use trefoil_hot::{HotKeys, Sample, Sampler};

/// The observer of one loop.
///
/// A command's duration is the time since the one before it in the same turn, or
/// since the loop learnt that its input has come: what it took to wait for other
/// connections, for the cell, and to execute, without the network.
pub struct Counting {
    office: Arc<Observatory>,
    block: Arc<Block>,
    hot: Arc<Mutex<HotKeys>>,
    sampler: Sampler,
    clock: quanta::Clock,
    /// When the current command began, in the clock's own units.
    began: u64,
    slow_ns: u64,
    /// When the loop's round began.
    round_began: u64,
    /// Nothing has been read yet in this turn.
    is_fresh: bool,
    /// Since then time has passed that is no command's.
    is_paused: bool,
    /// A slow command whose client is yet to be named.
    unnamed: Option<SlowCommand>,
}

impl Counting {
    pub(super) fn new(
        office: Arc<Observatory>,
        block: Arc<Block>,
        hot: Arc<Mutex<HotKeys>>,
        seed: u64,
    ) -> Self {
        let clock = quanta::Clock::new();
        let threshold = office.options.slow_threshold;
        Counting {
            block,
            hot,
            sampler: Sampler::new(seed),
            began: clock.raw(),
            round_began: clock.raw(),
            is_fresh: false,
            is_paused: false,
            clock,
            slow_ns: threshold.map_or(u64::MAX, |threshold| threshold.as_nanos() as u64),
            unnamed: None,
            office,
        }
    }

    #[cold]
    fn note_slow(&mut self, done: &Done<'_>, duration_ns: u64) {
        bump(&self.block.slow, 1);
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let command = COMMANDS[command_index(done.command)].1;
        let slow = SlowCommand {
            number: 0,
            unix_ms: now.unwrap_or_default().as_millis() as u64,
            duration_ns,
            command,
            key: slow::shown(done.key),
            key_len: done.key.len(),
            value_len: done.value_len,
            client: String::new(),
        };
        tracing::debug!(
            command,
            key = slow.key,
            duration = ?Duration::from_nanos(duration_ns),
            "slow"
        );
        if let Some(earlier) = self.unnamed.replace(slow) {
            self.office.slow.push(earlier);
        }
    }

    #[cold]
    fn note_hot(&self, key: &[u8], sample: Sample) {
        // While somebody reads the sketch, a sample is lost rather than a loop
        // held up.
        if let Ok(mut hot) = self.hot.try_lock() {
            hot.record(key, sample, self.office.now_s());
        }
    }
}

impl Observer for Counting {
    #[inline]
    fn done(&mut self, done: &Done<'_>) {
        let now = self.clock.raw();
        let ns = self.clock.delta_as_nanos(self.began, now);
        self.began = now;
        self.block.done(done, ns);
        if ns >= self.slow_ns {
            self.note_slow(done, ns);
        }
        if !done.key.is_empty() {
            let office = &self.office;
            let bytes = match done.command {
                Command::Touch | Command::Delete => 0,
                _ => done.value_len as u64,
            };
            if let Some(sample) = self.sampler.tick(bytes, || office.now_s()) {
                self.note_hot(done.key, sample);
            }
        }
        if self.office.detail.is_on() {
            self.office.detail.note(done);
        }
    }

    fn stats(&mut self, group: &str, totals: &Totals, each: &mut dyn FnMut(&str, &str)) -> bool {
        report::report(&self.office, group, totals, each)
    }

    fn slow_log(&self, each: &mut dyn FnMut(&world::SlowCommand<'_>) -> bool) {
        for slow in self.office.slow.newest() {
            let wants_more = each(&world::SlowCommand {
                number: slow.number,
                unix_ms: slow.unix_ms,
                duration_us: slow.duration_ns / 1000,
                command: slow.command,
                key: &slow.key,
                client: &slow.client,
            });
            if !wants_more {
                return;
            }
        }
    }

    fn forget_slow(&mut self) {
        self.office.slow.clear();
    }

    fn reset(&mut self, totals: &Totals) {
        self.office.reset(totals);
    }

    // The rest is answered by the event loop and never comes here.
}

impl LoopObserver for Counting {
    fn connection_opened(&mut self, _protocol: Protocol) {
        bump(&self.block.opened, 1);
    }

    fn connection_closed(&mut self) {
        bump(&self.block.closed, 1);
    }

    fn connection_refused(&mut self) {
        bump(&self.block.refused, 1);
    }

    fn connection_timed_out(&mut self) {
        bump(&self.block.timed_out, 1);
    }

    fn connection_overflowed(&mut self) {
        bump(&self.block.overflowed, 1);
    }

    #[inline]
    fn traffic(&mut self, read: usize, written: usize) {
        bump(&self.block.bytes_read, read as u64);
        bump(&self.block.bytes_written, written as u64);
        // Neither waiting for more input nor sending is part of a command.
        let is_first = read > 0 && std::mem::take(&mut self.is_fresh);
        // Mostly nothing follows in this turn, and the clock need not be looked at.
        self.is_paused = !is_first;
    }

    #[inline]
    fn round_began(&mut self) {
        self.round_began = self.clock.raw();
    }

    #[inline]
    fn round_ended(&mut self) {
        let ns = self
            .clock
            .delta_as_nanos(self.round_began, self.clock.raw());
        self.block.rounds.record(ns);
        if ns > self.block.round_ns_max.load(Ordering::Relaxed) {
            self.block.round_ns_max.store(ns, Ordering::Relaxed);
        }
    }

    #[inline]
    fn driven(&mut self) {
        if std::mem::take(&mut self.is_paused) {
            self.began = self.clock.raw();
        }
    }

    #[inline]
    fn served(&mut self) {
        let now = self.clock.raw();
        let ns = self.clock.delta_as_nanos(self.round_began, now);
        self.block.waited.record(ns);
        self.began = self.round_began;
        self.is_fresh = true;
        self.is_paused = false;
    }

    fn parked(&mut self) -> u64 {
        bump(&self.block.parked, 1);
        self.began
    }

    fn resumed(&mut self, began: u64) {
        bump(&self.block.resumed, 1);
        self.began = began;
        self.is_fresh = false;
        self.is_paused = false;
    }

    fn authenticated(&mut self, is_known: bool) {
        let counter = match is_known {
            true => &self.block.authenticated,
            false => &self.block.unauthenticated,
        };
        bump(counter, 1);
    }

    #[inline]
    fn wants_client(&self) -> bool {
        self.unnamed.is_some()
    }

    fn client(&mut self, name: &str) {
        if let Some(mut slow) = self.unnamed.take() {
            slow.client = name.to_owned();
            self.office.slow.push(slow);
        }
    }
}

impl std::fmt::Debug for Counting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Counting").finish_non_exhaustive()
    }
}
