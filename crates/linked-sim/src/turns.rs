//! Changes that depend on what was there, as the runtime of a linklet makes them: one
//! at a time for each key, and the turn goes along with the proposal, not with the
//! call that began it.

use std::collections::{BTreeMap, VecDeque};
use trefoil_linklet_core::mutants::{self, Mutant};

/// Who changes a key.
#[derive(Debug)]
struct Turn {
    attempt: usize,
    /// It is on its way to the copies: it ends when it is settled.
    proposed: bool,
    waiting: VecDeque<usize>,
}

/// The turns of one server, by key.
#[derive(Debug, Default)]
pub(crate) struct Turns(BTreeMap<usize, Turn>);

/// Whose turn a key's is: its own.
fn of(key: usize) -> usize {
    match mutants::is(Mutant::TurnsShared) {
        true => 0,
        false => key,
    }
}

impl Turns {
    /// Whether it is this attempt's turn; otherwise it stands in line.
    pub(crate) fn take(&mut self, key: usize, attempt: usize) -> bool {
        let turn = self.0.entry(of(key)).or_insert_with(|| Turn {
            attempt,
            proposed: false,
            waiting: VecDeque::new(),
        });
        let mine = turn.attempt == attempt;
        if !mine && !turn.waiting.contains(&attempt) {
            turn.waiting.push_back(attempt);
        }
        mine
    }

    /// What it came to is under way.
    pub(crate) fn propose(&mut self, key: usize, attempt: usize) {
        if let Some(turn) = self
            .0
            .get_mut(&of(key))
            .filter(|turn| turn.attempt == attempt)
        {
            turn.proposed = true;
        }
    }

    /// The attempt is over; who is next.
    pub(crate) fn end(&mut self, key: usize, attempt: usize) -> Option<usize> {
        let turn = self
            .0
            .get_mut(&of(key))
            .filter(|turn| turn.attempt == attempt)?;
        match turn.waiting.pop_front() {
            Some(next) => {
                (turn.attempt, turn.proposed) = (next, false);
                Some(next)
            }
            None => {
                self.0.remove(&of(key));
                None
            }
        }
    }

    /// Its caller has gone. Whether that ends it: what is proposed goes on, with its
    /// turn.
    pub(crate) fn cancel(&mut self, key: usize, attempt: usize) -> bool {
        let Some(turn) = self.0.get_mut(&of(key)) else {
            return false;
        };
        turn.waiting.retain(|waiting| *waiting != attempt);
        let forgets = mutants::is(Mutant::TurnEndsWithItsCaller);
        turn.attempt == attempt && (!turn.proposed || forgets)
    }
}
