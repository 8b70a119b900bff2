//! How often something rare has happened: a run without it has shown nothing of it.

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stats {
    pub(crate) runs: u64,
    pub(crate) committed: u64,
    pub(crate) executed: u64,
    pub(crate) answers: u64,
    /// Told to clients.
    pub(crate) skipped: u64,
    pub(crate) full: u64,
    pub(crate) closed: u64,
    pub(crate) order_broken: u64,
    pub(crate) died_claimed: u64,
    pub(crate) died_unmarked: u64,
    /// Found by servers.
    pub(crate) skips: u64,
    pub(crate) broken: u64,
    pub(crate) out_of_order: u64,
    pub(crate) waits: u64,
    pub(crate) taken: u64,
    /// Times that a server had no turn of the processor.
    pub(crate) held_up: u64,
    /// Lanes that were removed, and their places that were given again.
    pub(crate) removed: u64,
    pub(crate) reused: u64,
}

impl Stats {
    pub(crate) fn add(&mut self, other: Stats) {
        self.runs += other.runs;
        self.committed += other.committed;
        self.executed += other.executed;
        self.answers += other.answers;
        self.skipped += other.skipped;
        self.full += other.full;
        self.closed += other.closed;
        self.order_broken += other.order_broken;
        self.died_claimed += other.died_claimed;
        self.died_unmarked += other.died_unmarked;
        self.skips += other.skips;
        self.broken += other.broken;
        self.out_of_order += other.out_of_order;
        self.waits += other.waits;
        self.taken += other.taken;
        self.held_up += other.held_up;
        self.removed += other.removed;
        self.reused += other.reused;
    }
}
