//! Runs with one safety rule broken: a simulator that does not notice would
//! prove nothing.

use crate::many::{Batch, Report, run_many_with};
use crate::whole::{self, Scene, WholeStats};

/// A rule that is broken on purpose, by the clients or by the stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// One of the operation machines' or the driver's.
    Client(trefoil_client_core::mutants::Mutant),
    /// One of the stores'.
    Store(trefoil_store::mutants::Mutant),
}

impl Rule {
    fn break_here(self) {
        match self {
            Rule::Client(mutant) => trefoil_client_core::mutants::set(Some(mutant)),
            Rule::Store(mutant) => trefoil_store::mutants::set(Some(mutant)),
        }
    }
}

/// Runs up to `count` seeds from `first` with `rule` broken on all threads;
/// ends early when it has found violations.
pub fn hunt(rule: Rule, first: u64, count: u64, threads: usize) -> Report {
    run_many_with(first, count, threads, &|_| {}, &|| rule.break_here())
}

/// As [`hunt`], in runs of the client's own driver: usual ones, or in one scene.
pub fn hunt_whole(
    rule: Rule,
    scene: Option<Scene>,
    first: u64,
    count: u64,
    threads: usize,
) -> Report<WholeStats> {
    let batch = Batch::of(first, count, threads);
    whole::run_batch(&batch, scene, &|_| {}, &|| rule.break_here())
}
