//! Whether a history of lists is linearizable, key by key.
//!
//! Every number is appended once, so a list that somebody was shown says in which order
//! its appends took effect, and no list but the absent one ever comes again. The lists
//! of a key fall into *epochs*, one behind each removal. Inside an epoch the order is
//! given; what is searched for is the order of epochs, and which removal ended which:
//!
//! ```text
//!   absent ─ append ─► [a] ─ append ─► [a b] ─ remove ─► absent ─ append ─► [c] …
//!            ▲ shown by: lists that begin with it                ▲ any epoch that could have begun
//! ```
//!
//! Time is swept by the rule of Wing and Gong: an operation may be next if it began
//! before any that is left had ended. Reads come as early as they may, removals by the
//! earliest end; neither takes a choice away (both may be exchanged with whatever else
//! a valid order has there). So choices are left only where no list is there.

use super::operation::{Answer, Asked, NEVER, Operation};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap, HashSet};

/// What a history may not show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Rule {
    /// A number in a list that nobody appended to it, or an answer that fits no request.
    Known,
    /// A number whose append was refused.
    Refused,
    /// A number twice.
    Once,
    /// Two lists that begin alike and go on differently: an update was lost.
    Fork,
    /// No order of all operations explains what was told.
    Order,
}

/// A broken rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Violation {
    pub(crate) rule: Rule,
    pub(crate) key: u32,
    pub(crate) what: String,
    /// Operations that show it.
    pub(crate) seen: Vec<Operation>,
}

/// Steps of the search for one key. Beyond it nothing is found out, which counts as a
/// violation: a check that gives up has shown nothing.
const STEPS_MAX: usize = 5_000_000;

/// Checks all keys; a violation for each broken key and rule.
pub(crate) fn check(operations: &[Operation]) -> Vec<Violation> {
    let mut by_key: BTreeMap<u32, Vec<&Operation>> = BTreeMap::new();
    for operation in operations {
        by_key.entry(operation.key).or_default().push(operation);
    }
    let mut violations = Vec::new();
    for (key, operations) in by_key {
        if let Err(violation) = check_key(key, &operations) {
            violations.push(violation);
        }
    }
    violations
}

/// The first thing that is wrong with a key.
fn check_key(key: u32, operations: &[&Operation]) -> Result<(), Violation> {
    let history = KeyHistory::of(key, operations)?;
    history.search()
}

/// Appends, in order, that are in one list at last.
#[derive(Default)]
struct Epoch {
    /// Operations, by place.
    appends: Vec<usize>,
    /// Reads of the list of each length, from one on.
    reads: Vec<Vec<usize>>,
    /// The earliest end of all of these.
    deadline_ns: u64,
}

struct KeyHistory<'a> {
    key: u32,
    operations: Vec<&'a Operation>,
    epochs: Vec<Epoch>,
    /// What was told that there is no list.
    absent: Vec<usize>,
    /// Removals that found a list, by their end; behind them those that may have.
    removals: Vec<usize>,
    /// Appends that nobody has seen, and that may have taken effect.
    unseen: Vec<usize>,
    /// What has to have taken effect, by its end.
    by_end: Vec<usize>,
}

impl<'a> KeyHistory<'a> {
    fn of(key: u32, operations: &[&'a Operation]) -> Result<Self, Violation> {
        let violation = |rule, what: String, seen: &[&Operation]| Violation {
            rule,
            key,
            what,
            seen: seen.iter().map(|operation| (*operation).clone()).collect(),
        };
        let mut appended: HashMap<u64, usize> = HashMap::new();
        for (at, operation) in operations.iter().enumerate() {
            let Asked::Append(id) = operation.asked else {
                continue;
            };
            if let Some(other) = appended.insert(id, at) {
                let what = format!("{id} was appended by two requests: the trial is wrong");
                return Err(violation(
                    Rule::Known,
                    what,
                    &[operations[other], operation],
                ));
            }
        }
        // What comes before a number, and who says so.
        let mut before: HashMap<u64, (Option<u64>, usize)> = HashMap::new();
        // What comes behind one; behind none anything may come.
        let mut behind: HashMap<u64, (u64, usize)> = HashMap::new();
        for (at, &operation) in operations.iter().enumerate() {
            let Answer::List(ids) = &operation.answer else {
                continue;
            };
            let own = match operation.asked {
                Asked::Append(id) => ids.last() == Some(&id),
                Asked::Read => !ids.is_empty(),
                Asked::Remove => false,
            };
            if !own {
                let what = "the answer is not one to this request".to_owned();
                return Err(violation(Rule::Known, what, &[operation]));
            }
            let mut seen = HashSet::new();
            let mut previous = None;
            for &id in ids {
                let Some(&append) = appended.get(&id) else {
                    let what = format!("{id} was never appended to this list");
                    return Err(violation(Rule::Known, what, &[operation]));
                };
                let append = operations[append];
                if matches!(append.answer, Answer::Refused | Answer::Absent) {
                    let what = format!("the append of {id} was refused");
                    return Err(violation(Rule::Refused, what, &[append, operation]));
                }
                if !seen.insert(id) {
                    let what = format!("{id} is in the list twice");
                    return Err(violation(Rule::Once, what, &[append, operation]));
                }
                let (known, by) = *before.entry(id).or_insert((previous, at));
                if known != previous {
                    let what = format!("{id} follows two different lists: an update was lost");
                    return Err(violation(Rule::Fork, what, &[operations[by], operation]));
                }
                if let Some(previous) = previous {
                    let (known, by) = *behind.entry(previous).or_insert((id, at));
                    if known != id {
                        let what =
                            format!("{known} and {id} both follow {previous}: an update was lost");
                        return Err(violation(Rule::Fork, what, &[operations[by], operation]));
                    }
                }
                previous = Some(id);
            }
        }
        let mut history = KeyHistory {
            key,
            operations: operations.to_vec(),
            epochs: Vec::new(),
            absent: Vec::new(),
            removals: Vec::new(),
            unseen: Vec::new(),
            by_end: Vec::new(),
        };
        // The epochs, from their first numbers on.
        let mut epoch_of: HashMap<u64, usize> = HashMap::new();
        let mut firsts: Vec<u64> = (before.iter())
            .filter_map(|(id, (previous, _))| previous.is_none().then_some(*id))
            .collect();
        firsts.sort_unstable();
        for first in firsts {
            let mut epoch = Epoch::default();
            let mut next = Some(first);
            while let Some(id) = next {
                epoch_of.insert(id, history.epochs.len());
                epoch.appends.push(appended[&id]);
                next = behind.get(&id).map(|(next, _)| *next);
            }
            epoch.reads = vec![Vec::new(); epoch.appends.len() + 1];
            history.epochs.push(epoch);
        }
        history.sort_out(&before, &epoch_of);
        Ok(history)
    }

    /// Puts every operation where it belongs.
    fn sort_out(
        &mut self,
        before: &HashMap<u64, (Option<u64>, usize)>,
        epoch_of: &HashMap<u64, usize>,
    ) {
        let mut perhaps = Vec::new();
        for (at, operation) in self.operations.iter().enumerate() {
            let is_certain = match (operation.asked, &operation.answer) {
                (_, Answer::Absent) => {
                    self.absent.push(at);
                    true
                }
                (Asked::Read, Answer::List(ids)) => {
                    let epoch = ids.last().and_then(|last| epoch_of.get(last));
                    if let Some(&epoch) = epoch {
                        self.epochs[epoch].reads[ids.len()].push(at);
                    }
                    true
                }
                (Asked::Append(id), Answer::List(_) | Answer::Unknown) => {
                    let is_seen = before.contains_key(&id);
                    if !is_seen {
                        self.unseen.push(at);
                    }
                    is_seen
                }
                (Asked::Remove, Answer::Removed) => {
                    self.removals.push(at);
                    true
                }
                (Asked::Remove, Answer::Unknown) => {
                    perhaps.push(at);
                    false
                }
                _ => false,
            };
            if is_certain {
                self.by_end.push(at);
            }
        }
        let end = |at: &usize| self.operations[*at].effective_ns();
        let begin = |at: &usize| self.operations[*at].begin_ns;
        self.by_end.sort_by_key(end);
        self.removals.sort_by_key(end);
        perhaps.sort_by_key(begin);
        self.absent.sort_by_key(begin);
        self.unseen.sort_by_key(begin);
        self.removals.extend(perhaps);
        for epoch in &mut self.epochs {
            let all = epoch.appends.iter().chain(epoch.reads.iter().flatten());
            epoch.deadline_ns = all.map(end).min().unwrap_or(NEVER);
        }
    }

    fn search(&self) -> Result<(), Violation> {
        let mut search = Search {
            history: self,
            steps: 0,
            failed: HashSet::new(),
            furthest: (0, String::new(), None),
        };
        let begin = Progress {
            done: vec![false; self.operations.len()],
            done_count: 0,
            ends: 0,
            begun: vec![false; self.epochs.len()],
        };
        if search.go_on_absent(begin) {
            return Ok(());
        }
        let what = match search.steps >= STEPS_MAX {
            true => "no order was found within the steps that a search may take".to_owned(),
            false => search.furthest.1,
        };
        let seen = search.furthest.2.into_iter();
        Err(Violation {
            rule: Rule::Order,
            key: self.key,
            what,
            seen: seen.map(|at| self.operations[at].clone()).collect(),
        })
    }
}

/// What has taken effect.
#[derive(Clone)]
struct Progress {
    done: Vec<bool>,
    done_count: usize,
    /// Of `by_end`: all before this are done.
    ends: usize,
    begun: Vec<bool>,
}

struct Search<'a> {
    history: &'a KeyHistory<'a>,
    steps: usize,
    /// Where no list was there, and nothing led on.
    failed: HashSet<Vec<u64>>,
    /// Of the attempt that came furthest: how far, what was in the way, which operation.
    furthest: (usize, String, Option<usize>),
}

impl Search<'_> {
    /// The operation that has to take effect before any begins that is not begun yet.
    fn first_end(&self, progress: &mut Progress) -> (u64, Option<usize>) {
        let by_end = &self.history.by_end;
        while by_end
            .get(progress.ends)
            .is_some_and(|at| progress.done[*at])
        {
            progress.ends += 1;
        }
        let first = by_end.get(progress.ends).copied();
        let end = first.map_or(NEVER, |at| self.history.operations[at].effective_ns());
        (end, first)
    }

    fn is_over(&self, progress: &mut Progress) -> bool {
        self.first_end(progress);
        progress.ends == self.history.by_end.len()
    }

    /// Whether it may be next.
    fn may(&self, progress: &mut Progress, at: usize) -> bool {
        !progress.done[at] && self.history.operations[at].begin_ns <= self.first_end(progress).0
    }

    fn take(&mut self, progress: &mut Progress, at: usize) {
        progress.done[at] = true;
        progress.done_count += 1;
        self.steps += 1;
    }

    /// Takes all of these that may be next; whether none is left.
    fn take_all(&mut self, progress: &mut Progress, all: &[usize]) -> bool {
        loop {
            let mut is_any = false;
            let mut is_left = false;
            for &at in all {
                if self.may(progress, at) {
                    self.take(progress, at);
                    is_any = true;
                } else {
                    is_left |= !progress.done[at];
                }
            }
            if !is_any || !is_left {
                return !is_left;
            }
        }
    }

    fn stuck(&mut self, progress: &mut Progress, why: &str) -> bool {
        if progress.done_count >= self.furthest.0 {
            let (_, first) = self.first_end(progress);
            let what = format!(
                "of {} operations {} are explained, and then {why}",
                self.history.by_end.len(),
                progress.done_count
            );
            self.furthest = (progress.done_count, what, first);
        }
        false
    }

    /// Goes on where no list is there.
    fn go_on_absent(&mut self, mut progress: Progress) -> bool {
        let history = self.history;
        self.take_all(&mut progress, &history.absent);
        if self.is_over(&mut progress) {
            return true;
        }
        if self.steps >= STEPS_MAX || !self.failed.insert(packed(&progress.done)) {
            return false;
        }
        let mut epochs: Vec<usize> = (0..history.epochs.len())
            .filter(|&epoch| {
                let first = history.epochs[epoch].appends[0];
                !progress.begun[epoch] && self.may(&mut progress, first)
            })
            .collect();
        epochs.sort_by_key(|&epoch| history.epochs[epoch].deadline_ns);
        for epoch in &epochs {
            let mut next = progress.clone();
            next.begun[*epoch] = true;
            if self.through(next, *epoch) {
                return true;
            }
        }
        // A list that nobody has seen, and that was taken away.
        let unseen = history.unseen.iter().copied();
        let unseen = unseen.filter(|&at| self.may(&mut progress, at)).min();
        let removals = history.removals.iter().copied();
        let mut removed = removals.filter(|&at| {
            history.operations[at].answer == Answer::Removed && self.may(&mut progress, at)
        });
        if let (Some(append), Some(removal)) = (unseen, removed.next()) {
            drop(removed);
            let mut next = progress.clone();
            self.take(&mut next, append);
            self.take(&mut next, removal);
            if self.go_on_absent(next) {
                return true;
            }
        }
        self.stuck(&mut progress, "there is no list, and nothing may be next")
    }

    /// Goes through an epoch, from its first append to the removal of its list.
    fn through(&mut self, mut progress: Progress, epoch: usize) -> bool {
        let history = self.history;
        let epoch = &history.epochs[epoch];
        for (place, &append) in epoch.appends.iter().enumerate() {
            if !self.may(&mut progress, append) {
                let why =
                    format!("the append at place {place} of its list comes too late or early");
                return self.stuck(&mut progress, &why);
            }
            self.take(&mut progress, append);
            if !self.take_all(&mut progress, &epoch.reads[place + 1]) {
                let why = format!("a list of {} is read that cannot be there", place + 1);
                return self.stuck(&mut progress, &why);
            }
        }
        if self.is_over(&mut progress) {
            return true;
        }
        let removals = history.removals.iter().copied();
        let Some(removal) = removals.into_iter().find(|&at| self.may(&mut progress, at)) else {
            return self.stuck(&mut progress, "a list is gone that nobody took away");
        };
        self.take(&mut progress, removal);
        self.go_on_absent(progress)
    }
}

fn packed(done: &[bool]) -> Vec<u64> {
    let word = |part: &[bool]| {
        part.iter()
            .rev()
            .fold(0, |word, &bit| word << 1 | u64::from(bit))
    };
    done.chunks(64).map(word).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `client asked answer begin end`, one an entry:
    /// `a3 [1 3]`, `r []`, `r [1]`, `x yes|no`, with `?` for unknown, `-` for refused.
    fn history(text: &str) -> Vec<Operation> {
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        lines.map(operation).collect()
    }

    fn operation(line: &str) -> Operation {
        let (times, rest) = line.split_once(' ').unwrap();
        let (begin, end) = times.split_once('-').unwrap();
        let (asked, answer) = rest.split_once(' ').unwrap();
        let asked = match asked.split_at(1) {
            ("a", id) => Asked::Append(id.parse().unwrap()),
            ("r", _) => Asked::Read,
            _ => Asked::Remove,
        };
        let answer = match answer {
            "?" => Answer::Unknown,
            "-" => Answer::Refused,
            "yes" => Answer::Removed,
            "no" | "[]" => Answer::Absent,
            list => Answer::List(
                list.trim_matches(['[', ']'])
                    .split(' ')
                    .map(|id| id.parse().unwrap())
                    .collect(),
            ),
        };
        Operation {
            client: 0,
            key: 0,
            asked,
            answer,
            begin_ns: begin.parse().unwrap(),
            end_ns: end.parse().unwrap(),
        }
    }

    fn rule(text: &str) -> Option<Rule> {
        check(&history(text))
            .first()
            .map(|violation| violation.rule)
    }

    #[test]
    fn good_histories_are_good() {
        for good in [
            "",
            "0-1 r []\n 0-1 x no",
            "0-5 a1 [1]\n 1-4 a2 [1 2]\n 2-3 r []",
            // Begun earlier, done later.
            "0-9 a1 [2 1]\n 1-8 a2 [2]\n 2-7 r [2 1]",
            "0-1 a1 [1]\n 2-3 x yes\n 4-5 a2 [2]\n 6-7 r [2]",
            // Unknown ones: never, at once, late.
            "0-1 a1 ?\n 2-3 r []\n 4-5 a2 [2]",
            "0-1 a1 ?\n 2-3 r []\n 4-5 a2 [1 2]",
            "0-1 a1 ?\n 2-3 r [1]",
            "0-1 a1 [1]\n 2-3 x ?\n 4-5 r [1]\n 6-7 r []\n 8-9 a2 [2]",
            // A removal found what nobody has seen.
            "0-1 a1 ?\n 2-3 r []\n 4-5 x yes\n 6-7 r []",
            // Refused ones are nowhere.
            "0-1 a1 -\n 2-3 a2 [2]\n 4-5 a3 []\n",
            // Two removals, two epochs, all at once.
            "0-9 a1 [1]\n 0-9 x yes\n 0-9 a2 [2]\n 0-9 x yes\n 0-9 r []\n 10-11 r []",
            // The epoch that could begin first has to come second.
            "0-9 a1 [1]\n 0-9 a2 [2]\n 0-9 x yes\n 5-6 r [2]\n 10-11 r [1]",
        ] {
            // The refused append of 3 says that there was no list: not beside [2].
            let good = good.replace("\n 4-5 a3 []\n", "");
            assert_eq!(check(&history(&good)), [], "{good}");
        }
    }

    #[test]
    fn bad_histories_are_bad() {
        for (expected, bad) in [
            // A lost update, seen by nobody but its own callers.
            (Rule::Fork, "0-1 a1 [1]\n 2-3 a2 [1 2]\n 4-5 a3 [1 3]"),
            (Rule::Order, "0-1 a1 [1]\n 2-3 a2 [2]"),
            (Rule::Fork, "0-1 a1 [1]\n 0-1 a2 [1 2]\n 4-5 a3 [2 3]"),
            (Rule::Known, "0-1 a1 [1]\n 2-3 r [1 7]"),
            (Rule::Known, "0-1 a1 [1]\n 2-3 a2 [1]"),
            (Rule::Known, "0-1 a1 [1]\n 2-3 x [1]"),
            (Rule::Refused, "0-1 a1 -\n 2-3 r [1]"),
            (Rule::Refused, "0-1 a1 []\n 2-3 r [1]"),
            (Rule::Once, "0-1 a1 [1]\n 2-3 r [1 1]"),
            // Carried out twice: it comes again behind a removal.
            (
                Rule::Fork,
                "0-1 a1 ?\n 0-1 a2 [1 2]\n 2-3 x yes\n 4-5 a3 [3]\n 6-7 r [3 1]",
            ),
            (Rule::Order, "0-1 a1 [1]\n 2-3 x yes\n 4-5 r [1]"),
            // Old reads.
            (Rule::Order, "0-1 a1 [1]\n 2-3 r []"),
            (Rule::Order, "0-1 a1 [1]\n 2-3 a2 [1 2]\n 4-5 r [1]"),
            (
                Rule::Order,
                "0-1 a1 [1]\n 2-9 a2 [1 2]\n 3-4 r [1 2]\n 5-6 r [1]",
            ),
            // Seen before it was begun.
            (Rule::Order, "0-1 r [1]\n 2-3 a1 [1]"),
            // What an unknown one has done stays done.
            (Rule::Order, "0-1 a1 ?\n 2-3 r [1]\n 4-5 r []"),
            (Rule::Order, "0-1 a1 [1]\n 2-3 x ?\n 4-5 r []\n 6-7 r [1]"),
            // Gone without anybody's having taken it away.
            (Rule::Order, "0-1 a1 [1]\n 2-3 r [1]\n 4-5 x no"),
            (Rule::Order, "0-1 a1 [1]\n 2-3 x yes\n 4-5 x yes"),
            (Rule::Order, "0-1 x yes"),
            // One removal cannot end two lists.
            (
                Rule::Order,
                "0-9 a1 [1]\n 0-9 a2 [2]\n 0-9 x yes\n 10-11 r []",
            ),
            // Another way round than they were.
            (Rule::Order, "0-1 a1 [2 1]\n 2-3 a2 [2]"),
        ] {
            assert_eq!(rule(bad), Some(expected), "{bad}");
        }
    }

    #[test]
    fn keys_are_apart() {
        let mut two = history("0-1 a1 [1]\n 2-3 r []");
        two[1].key = 1;
        assert_eq!(check(&two), []);
    }
}
