//! What happened in clean runs: a simulation in which nothing happens would
//! prove nothing.

/// Sums over runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Stats {
    /// Runs.
    pub seeds: u64,
    /// Steps of all kinds.
    pub events: u64,
    /// Frames between servers.
    pub frames: u64,
    /// Of them, those with values of ranges that move.
    pub chunks: u64,
    /// Keys in those.
    pub chunk_keys: u64,
    /// Frames that came through a third server.
    pub passed: u64,
    /// Maps and lists of the living that were published.
    pub maps: u64,
    /// Keys that came to a new owner.
    pub moves: u64,
    /// Requests sent by callers.
    pub requests: u64,
    /// Requests answered.
    pub answers: u64,
    /// Commits that took effect.
    pub commits: u64,
    /// Of them, those that too few servers had: they were not acknowledged.
    pub thin: u64,
    /// Commits that were taken back, for a copy could not store them and their key
    /// moved.
    pub taken_back: u64,
    /// Points that a server was to own and could not store, said by either side.
    pub unmoved: u64,
    /// Keys that stayed where the map did not have them, each time that a server was about to
    /// die, in the runs of that.
    pub stays: u64,
    /// Of these, those of which another server had a copy.
    pub stays_copied: u64,
    /// Of these, those that the server that died had, or had a copy of.
    pub stays_struck: u64,
    /// Times that a store that had forgotten everything was given the map back.
    pub recoveries: u64,
    /// Times that nobody remembered anything, and everything was dealt anew.
    pub new_deals: u64,
    /// Times that another assigner, or the same one after its lease had ended, was elected.
    pub elections: u64,
    /// Changes of the map or the members that a store refused, for their asker did not lead
    /// any more.
    pub usurpers: u64,
    /// Newcomers that were written down, heard nothing of it, and were struck off.
    pub unheard: u64,
    /// Answers that named another server.
    pub redirects: u64,
    /// Requests that waited for a value.
    pub waits: u64,
    /// Reads of copies.
    pub copy_reads: u64,
    /// Commits by servers that had been replaced without knowing.
    pub void: u64,
    /// Crashes.
    pub crashes: u64,
    /// Stopped servers that went on.
    pub pauses: u64,
    /// Servers that found themselves replaced.
    pub replaced: u64,
    /// Servers that were drained and left.
    pub drains: u64,
    /// Reports of losses.
    pub losses: u64,
    /// Keys in lost ranges.
    pub keys_lost: u64,
}

impl Stats {
    /// Adds another's.
    pub fn merge(&mut self, other: &Stats) {
        self.seeds += other.seeds;
        self.events += other.events;
        self.frames += other.frames;
        self.chunks += other.chunks;
        self.chunk_keys += other.chunk_keys;
        self.passed += other.passed;
        self.maps += other.maps;
        self.moves += other.moves;
        self.requests += other.requests;
        self.answers += other.answers;
        self.commits += other.commits;
        self.thin += other.thin;
        self.taken_back += other.taken_back;
        self.unmoved += other.unmoved;
        self.stays += other.stays;
        self.stays_copied += other.stays_copied;
        self.stays_struck += other.stays_struck;
        self.recoveries += other.recoveries;
        self.new_deals += other.new_deals;
        self.elections += other.elections;
        self.usurpers += other.usurpers;
        self.unheard += other.unheard;
        self.redirects += other.redirects;
        self.waits += other.waits;
        self.copy_reads += other.copy_reads;
        self.void += other.void;
        self.crashes += other.crashes;
        self.pauses += other.pauses;
        self.replaced += other.replaced;
        self.drains += other.drains;
        self.losses += other.losses;
        self.keys_lost += other.keys_lost;
    }
}
