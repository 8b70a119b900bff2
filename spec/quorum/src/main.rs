//! Checks the quorum rules of `docs/quorum.md`: every state that three replicas
//! of one key can come to, within the bounds of a run.
//!
//! `cargo run --release` runs all; names choose. A run that breaks a promise
//! which it should keep, and a mutant that breaks none, end it with exit code 1.

mod rules;
mod runs;
mod state;
mod step;

use rules::Rules;
use state::{Kind, MUTATIONS_MAX, Mutation, REPLICAS, State};
use stateright::{Checker, HasDiscoveries, Model, Property};
use std::process::ExitCode;
use std::time::Instant;
use step::Step;

impl Model for Rules {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let mut choices: Vec<Vec<Kind>> = vec![vec![]];
        for m in 0..self.mutations {
            let mut kinds = vec![Kind::Set];
            kinds.extend(self.with_erase.then_some(Kind::Erase));
            kinds.extend(self.with_add.then_some(Kind::Cas(0)));
            if self.with_cas {
                kinds.extend((1..=m).map(Kind::Cas));
            }
            let longer = |some: &Vec<Kind>| {
                let some = some.clone();
                kinds
                    .clone()
                    .into_iter()
                    .map(move |kind| [some.clone(), vec![kind]].concat())
            };
            choices = choices.iter().flat_map(longer).collect();
        }
        let begin = |kinds: &Vec<Kind>| {
            let mut mutations = [Mutation::default(); MUTATIONS_MAX];
            for (mutation, kind) in mutations.iter_mut().zip(kinds) {
                mutation.kind = *kind;
            }
            State {
                replicas: Default::default(),
                mutations,
                vote: None,
                acknowledged: 0,
                hit: 0,
                failed: 0,
                crashes: self.crashes,
                is_stale: false,
                went_back: false,
            }
        };
        choices.iter().map(begin).collect()
    }

    fn actions(&self, state: &State, out: &mut Vec<Step>) {
        self.possible(state, out);
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut state = last.clone();
        self.take(&mut state, step);
        self.normalise(&mut state);
        let state = PERMUTATIONS.iter().map(|p| permuted(&state, *p)).min()?;
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("fresh", |_, s: &State| !s.is_stale),
            Property::always("monotone", |_, s: &State| !s.went_back),
            Property::always("failed", |_, s: &State| {
                s.failed & (s.hit | s.acknowledged) == 0
            }),
            // Nothing acknowledged or seen between the version that a CAS
            // expected and its own.
            Property::always("exact", |_, s: &State| is_exact(s, s.acknowledged)),
            Property::always("strict", |_, s: &State| is_exact(s, s.acknowledged | s.hit)),
        ]
    }
}

fn is_exact(state: &State, whose: u8) -> bool {
    (0..MUTATIONS_MAX).all(|m| match state.mutations[m].kind {
        Kind::Cas(expected) if expected > 0 && whose >> m & 1 == 1 => {
            (usize::from(expected)..m).all(|w| (state.acknowledged | state.hit) >> w & 1 == 0)
        }
        _ => true,
    })
}

/// Replicas are alike: of states that differ by their order only, one is kept.
const PERMUTATIONS: [[usize; REPLICAS]; 6] = [
    [0, 1, 2],
    [0, 2, 1],
    [1, 0, 2],
    [1, 2, 0],
    [2, 0, 1],
    [2, 1, 0],
];

fn permuted(state: &State, to: [usize; REPLICAS]) -> State {
    let mut out = state.clone();
    for i in 0..REPLICAS {
        out.replicas[to[i]] = state.replicas[i];
        for j in 0..REPLICAS {
            out.replicas[to[i]].copied[to[j]] = state.replicas[i].copied[j];
        }
        for m in 0..MUTATIONS_MAX {
            out.mutations[m].answer[to[i]] = state.mutations[m].answer[i];
        }
    }
    for (out, mutation) in out.mutations.iter_mut().zip(&state.mutations) {
        let bits = (0..REPLICAS).filter(|i| mutation.delivered >> i & 1 == 1);
        out.delivered = bits.fold(0, |bits, i| bits | 1 << to[i]);
    }
    if let Some(vote) = &mut out.vote {
        vote.replica = to[vote.replica as usize] as u8;
    }
    out
}

fn main() -> ExitCode {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let mut surprises = 0;
    for run in runs::all() {
        if !wanted.is_empty() && !wanted.iter().any(|name| name == run.name) {
            continue;
        }
        let begin = Instant::now();
        let checker = run
            .rules
            .checker()
            .threads(std::thread::available_parallelism().map_or(1, |n| n.get()))
            .finish_when(HasDiscoveries::Any)
            .spawn_bfs()
            .join();
        let broken: Vec<String> = checker
            .discoveries()
            .into_iter()
            .map(|(name, path)| format!("{name} in {} steps", path.into_actions().len()))
            .collect();
        let is_expected = broken.is_empty() != run.is_mutant;
        surprises += usize::from(!is_expected);
        println!(
            "{:<8} {:<28} {:>10} states {:>6.1} s  {}",
            if is_expected { "ok" } else { "SURPRISE" },
            run.name,
            checker.unique_state_count(),
            begin.elapsed().as_secs_f64(),
            if broken.is_empty() {
                "keeps the promise".to_owned()
            } else {
                format!("breaks {}", broken.join(", "))
            },
        );
    }
    if surprises > 0 {
        eprintln!("{surprises} runs did not end as they should");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
