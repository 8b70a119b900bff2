//! Runs with one safety rule broken: a simulator that does not notice would
//! prove nothing.

use crate::many::{Report, run_many_with};
use crate::violation::{Property, Violation};
use crate::whole::{self, Scene};

/// A rule that is broken on purpose, by the clients or by the stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// One of the operation machines' or the driver's.
    Client(trefoil_client_core::mutants::Mutant),
    /// One of the stores'.
    Store(trefoil_store::mutants::Mutant),
    /// One of recovery's.
    Recovery(trefoil_recovery::mutants::Mutant),
}

impl Rule {
    fn break_here(self) {
        mend_all();
        match self {
            Rule::Client(mutant) => trefoil_client_core::mutants::set(Some(mutant)),
            Rule::Store(mutant) => trefoil_store::mutants::set(Some(mutant)),
            Rule::Recovery(mutant) => trefoil_recovery::mutants::set(Some(mutant)),
        }
    }
}

/// Puts every rule in force on this thread.
fn mend_all() {
    trefoil_client_core::mutants::set(None);
    trefoil_store::mutants::set(None);
    trefoil_recovery::mutants::set(None);
}

/// Runs up to `count` seeds from `first` with `rule` broken on all threads;
/// ends early when it has found violations.
pub fn hunt(rule: Rule, first: u64, count: u64, threads: usize) -> Report {
    run_many_with(first, count, threads, &|_| {}, &|| rule.break_here())
}

/// A rule of the whole client's, and the runs that show that it is needed.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// What is broken.
    pub rule: Rule,
    /// In which runs it is; usual ones, or those of a scene.
    pub scene: Option<Scene>,
    /// What is violated then: any of these.
    pub properties: &'static [Property],
}

impl Case {
    const fn of_client(
        mutant: trefoil_client_core::mutants::Mutant,
        scene: Option<Scene>,
        properties: &'static [Property],
    ) -> Self {
        Case {
            rule: Rule::Client(mutant),
            scene,
            properties,
        }
    }

    const fn of_store(
        mutant: trefoil_store::mutants::Mutant,
        scene: Option<Scene>,
        properties: &'static [Property],
    ) -> Self {
        Case {
            rule: Rule::Store(mutant),
            scene,
            properties,
        }
    }

    const fn of_moves(mutant: trefoil_recovery::mutants::Mutant) -> Self {
        Case::of_recovery(mutant, Scene::Moves, &[Property::Moved])
    }

    const fn of_recovery(
        mutant: trefoil_recovery::mutants::Mutant,
        scene: Scene,
        properties: &'static [Property],
    ) -> Self {
        Case {
            rule: Rule::Recovery(mutant),
            scene: Some(scene),
            properties,
        }
    }

    /// Runs seeds from `first` on until one shows it, at most `count`: how many, and
    /// what it showed.
    pub fn seeds_until_noticed(&self, first: u64, count: u64) -> Option<(u64, Violation)> {
        self.rule.break_here();
        let mut seeds = (1..=count).zip(first..);
        let found = seeds.find_map(|(done, seed)| {
            let violation = whole::run_in(self.scene, seed).err()?;
            let is_it = self.properties.contains(&violation.property);
            is_it.then(|| (done, whole::told(self.scene, seed).unwrap_or(violation)))
        });
        mend_all();
        found
    }
}

/// The rules of driver, readers and indexes, each with the runs that show it soonest, in
/// seeds: the example `mutants` measures them. Most take tens; a full ring's neighbour
/// some hundred, and an index that says nothing of what stands beside it thousands.
pub const WHOLE: [Case; 24] = {
    use Property::{Exact, Fresh, Ghost, Healed, Kept, Leak, Monotone, Moved, StaleFill};
    use trefoil_client_core::mutants::Mutant as Core;
    use trefoil_recovery::mutants::Mutant as Recovers;
    use trefoil_store::mutants::Mutant as Stored;
    [
        Case::of_client(Core::PlaceIgnored, None, &[Kept]),
        Case::of_client(Core::FormerAnswerCounts, None, &[Fresh, Ghost]),
        Case::of_client(Core::LifeIgnored, None, &[Healed]),
        Case::of_client(Core::AbandonedKept, None, &[Leak]),
        Case::of_client(Core::VoteOfOne, None, &[Fresh, Monotone]),
        Case::of_client(Core::AckOfOne, None, &[Fresh, Monotone]),
        Case::of_client(
            Core::ConfigIgnored,
            Some(Scene::GrowingIndexes),
            &[Fresh, Monotone],
        ),
        Case::of_client(Core::NeverHeld, Some(Scene::FullRings), &[Leak]),
        Case::of_client(
            Core::StaleBlocked,
            Some(Scene::FullRings),
            &[Fresh, Monotone],
        ),
        Case::of_store(Stored::OverflowUnflagged, None, &[Kept]),
        Case::of_store(
            Stored::OldHomeBelieved,
            Some(Scene::GrowingIndexes),
            &[Fresh, Monotone],
        ),
        Case::of_moves(Recovers::CompareSkipped),
        Case::of_moves(Recovers::LastSkipped),
        Case::of_moves(Recovers::FloorLeftBehind),
        Case::of_moves(Recovers::BegunEarly),
        Case::of_moves(Recovers::RaisedWhileFrozen),
        Case::of_recovery(Recovers::LastSkipped, Scene::Resizes, &[Moved]),
        Case::of_recovery(Recovers::FloorLeftBehind, Scene::Resizes, &[Moved]),
        Case::of_recovery(Recovers::ErasedStays, Scene::Resizes, &[Moved]),
        Case::of_recovery(Recovers::ResizedEarly, Scene::Resizes, &[Moved]),
        Case::of_recovery(
            Recovers::BrokenOffUnsaid,
            Scene::Resizes,
            &[Moved, Fresh, Monotone],
        ),
        Case::of_recovery(
            Recovers::EpochsMixed,
            Scene::Resizes,
            &[Moved, Fresh, Monotone, Exact, StaleFill],
        ),
        Case::of_recovery(
            Recovers::ConfigUnnamed,
            Scene::Replaces,
            &[Fresh, Monotone, Exact, StaleFill],
        ),
        Case::of_recovery(
            Recovers::SpareUncounted,
            Scene::Replaces,
            &[Fresh, Monotone, Exact, StaleFill],
        ),
    ]
};
