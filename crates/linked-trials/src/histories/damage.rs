//! Breaks good histories, to see that the check notices: whoever finds nothing has to
//! be able to find something.

use super::check::check;
use super::operation::{Answer, Asked, Operation};
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use serde::Serialize;
use std::collections::BTreeMap;

/// A way of breaking a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum DamageKind {
    /// An append is told a list without what another one had put before it.
    LostUpdate,
    /// An acknowledged append is taken out of everybody else's lists.
    VanishedAppend,
    /// An append that is seen is reported as refused.
    RefusedAppend,
    /// An append is taken out of the history; its number is seen all the same.
    UnknownNumber,
    /// A number is in a list twice.
    RepeatedNumber,
    /// Two numbers of a list change places.
    ReorderedList,
    /// A read is told what was no more so when it began.
    StaleRead,
    /// A read finds no list though there was one all the time.
    FalseAbsence,
    /// A removal that had to take effect is taken out of the history.
    VanishedRemoval,
    /// A removal is acknowledged of a list that was there afterwards, too.
    FalseRemoval,
}

impl DamageKind {
    const ALL: [DamageKind; 10] = [
        DamageKind::LostUpdate,
        DamageKind::VanishedAppend,
        DamageKind::RefusedAppend,
        DamageKind::UnknownNumber,
        DamageKind::RepeatedNumber,
        DamageKind::ReorderedList,
        DamageKind::StaleRead,
        DamageKind::FalseAbsence,
        DamageKind::VanishedRemoval,
        DamageKind::FalseRemoval,
    ];
}

/// For each kind: how often it was done, and how often noticed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Damage {
    pub(crate) kinds: BTreeMap<DamageKind, (usize, usize)>,
}

impl Damage {
    pub(crate) fn done(&self) -> usize {
        self.kinds.values().map(|(done, _)| done).sum()
    }

    pub(crate) fn noticed(&self) -> usize {
        self.kinds.values().map(|(_, noticed)| noticed).sum()
    }
}

/// Operations of one key that a damage looks at: few enough to check again for each, and
/// now and then so few that nothing among them is unknown.
const OPERATIONS: std::ops::RangeInclusive<usize> = 40..=600;

/// Breaks a good history in up to `count` places, one at a time, and checks each.
pub(crate) fn damage(operations: &[Operation], count: usize, seed: u64) -> Damage {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut by_key: BTreeMap<u32, Vec<Operation>> = BTreeMap::new();
    for operation in operations {
        by_key
            .entry(operation.key)
            .or_default()
            .push(operation.clone());
    }
    let keys: Vec<Vec<Operation>> = by_key
        .into_values()
        .map(|mut key| {
            key.sort_unstable_by_key(|operation| operation.begin_ns);
            key
        })
        .collect();
    let mut report = Damage::default();
    for at in 0..count * 20 {
        let (Some(key), false) = (keys.choose(&mut rng), report.done() >= count) else {
            break;
        };
        let kind = DamageKind::ALL[at % DamageKind::ALL.len()];
        let mut broken = beginning(key, rng.random_range(OPERATIONS));
        if !break_one(&mut broken, kind, &mut rng) {
            continue;
        }
        let counts = report.kinds.entry(kind).or_default();
        counts.0 += 1;
        counts.1 += usize::from(!check(&broken).is_empty());
    }
    report
}

/// The first operations of a key, so cut that it is a history of its own: what had
/// been begun before the cut and is not in it can only be told of by what is left out.
fn beginning(key: &[Operation], count: usize) -> Vec<Operation> {
    let mut part = key[..count.min(key.len())].to_vec();
    if let Some(first_out) = key.get(count) {
        let cut_ns = first_out.begin_ns;
        for operation in &mut part {
            // It may have been done before the cut: that is what unknown means.
            if operation.end_ns >= cut_ns {
                operation.answer = Answer::Unknown;
            }
        }
    }
    part
}

/// Breaks one operation; `false` where there is none of this kind.
fn break_one(key: &mut Vec<Operation>, kind: DamageKind, rng: &mut SmallRng) -> bool {
    if key.is_empty() {
        return false;
    }
    for _ in 0..50 {
        let at = rng.random_range(0..key.len());
        // What is not surely against the promise leaves no trace.
        let mut broken = key.clone();
        if break_at(&mut broken, at, kind, rng) {
            *key = broken;
            return true;
        }
    }
    false
}

fn break_at(key: &mut Vec<Operation>, at: usize, kind: DamageKind, rng: &mut SmallRng) -> bool {
    let (begin_ns, end_ns) = (key[at].begin_ns, key[at].end_ns);
    let asked = key[at].asked;
    let list = match &key[at].answer {
        Answer::List(ids) => Some(ids.clone()),
        _ => None,
    };
    let others_see = |key: &[Operation], id: u64| {
        let mut others = key.iter().enumerate();
        others.any(|(other, operation)| other != at && contains(operation, id))
    };
    match (kind, asked, list) {
        (DamageKind::LostUpdate, Asked::Append(_), Some(mut ids)) if ids.len() > 2 => {
            let lost = ids.remove(ids.len() - 2);
            // Somebody was told that it had been put there.
            let is_told = others_see(key, lost);
            key[at].answer = Answer::List(ids);
            is_told
        }
        (DamageKind::VanishedAppend, Asked::Append(id), Some(ids)) if ids.len() > 1 => {
            // Somebody's list goes on behind it.
            let goes_on = key.iter().any(|other| {
                matches!(&other.answer, Answer::List(ids)
                    if ids.contains(&id) && ids.last() != Some(&id))
            });
            if !goes_on {
                return false;
            }
            let others = key.iter_mut().enumerate().filter(|(other, _)| *other != at);
            for (_, operation) in others {
                if let Answer::List(ids) = &mut operation.answer {
                    ids.retain(|other| *other != id);
                }
            }
            true
        }
        (DamageKind::RefusedAppend, Asked::Append(id), _) if others_see(key, id) => {
            key[at].answer = Answer::Refused;
            true
        }
        (DamageKind::UnknownNumber, Asked::Append(id), _) if others_see(key, id) => {
            key.remove(at);
            true
        }
        (DamageKind::RepeatedNumber, Asked::Read, Some(mut ids)) => {
            let repeated = ids[rng.random_range(0..ids.len())];
            ids.push(repeated);
            key[at].answer = Answer::List(ids);
            true
        }
        (DamageKind::ReorderedList, Asked::Read, Some(mut ids)) if ids.len() > 1 => {
            let place = rng.random_range(1..ids.len());
            ids.swap(place - 1, place);
            let witness = ids.clone();
            key[at].answer = Answer::List(ids);
            // Appends that were told so in the other order.
            key.iter().enumerate().any(|(other, operation)| {
                other != at
                    && contains(operation, witness[place - 1])
                    && contains(operation, witness[place])
            })
        }
        (DamageKind::StaleRead, Asked::Read, Some(ids)) if ids.len() > 1 => {
            // Whoever put the last one there was told so before.
            let last = ids[ids.len() - 1];
            let is_old = key.iter().any(|other| {
                other.end_ns < begin_ns && contains(other, last) && other.answer != Answer::Unknown
            });
            let shorter = ids[..ids.len() - 1].to_vec();
            key[at].answer = Answer::List(shorter);
            is_old
        }
        (DamageKind::FalseAbsence, Asked::Read, Some(ids)) => {
            // The list was there before it began, and longer after it had ended.
            let first = ids[0];
            let before = |other: &Operation| other.end_ns < begin_ns && contains(other, first);
            let after = |other: &Operation| other.begin_ns > end_ns && contains(other, first);
            let is_false = key.iter().any(before) && key.iter().any(after);
            key[at].answer = Answer::Absent;
            is_false
        }
        (DamageKind::VanishedRemoval, Asked::Remove, None) if key[at].answer == Answer::Removed => {
            // As many lists have ended as were taken away: none that nobody has seen, and
            // no other removal that may have been.
            let is_perhaps = key.iter().any(|other| {
                other.answer == Answer::Unknown
                    && match other.asked {
                        Asked::Append(id) => !key.iter().any(|seen| contains(seen, id)),
                        Asked::Remove => true,
                        Asked::Read => false,
                    }
            });
            if is_perhaps {
                return false;
            }
            let is_followed = key.iter().any(|other| {
                other.begin_ns > end_ns && matches!(other.answer, Answer::List(_) | Answer::Absent)
            });
            key.remove(at);
            is_followed
        }
        (DamageKind::FalseRemoval, Asked::Read, Some(ids)) => {
            let first = ids[0];
            let before = |other: &Operation| other.end_ns < begin_ns && contains(other, first);
            let after = |other: &Operation| other.begin_ns > end_ns && contains(other, first);
            let is_false = key.iter().any(before) && key.iter().any(after);
            key[at].asked = Asked::Remove;
            key[at].answer = Answer::Removed;
            is_false
        }
        _ => false,
    }
}

fn contains(operation: &Operation, id: u64) -> bool {
    matches!(&operation.answer, Answer::List(ids) if ids.contains(&id))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A list that one client after the other works on, with nothing going wrong.
    fn good(count: u64) -> Vec<Operation> {
        let mut list: Vec<u64> = Vec::new();
        let mut history = Vec::new();
        for number in 0..count {
            let (asked, answer) = match number % 23 {
                22 if list.is_empty() => (Asked::Remove, Answer::Absent),
                22 => {
                    list.clear();
                    (Asked::Remove, Answer::Removed)
                }
                other if other % 3 == 2 && list.is_empty() => (Asked::Read, Answer::Absent),
                other if other % 3 == 2 => (Asked::Read, Answer::List(list.clone())),
                _ => {
                    list.push(number);
                    (Asked::Append(number), Answer::List(list.clone()))
                }
            };
            history.push(Operation {
                client: (number % 16) as u32,
                key: (number / 500) as u32,
                asked,
                answer,
                begin_ns: number * 10,
                end_ns: number * 10 + 9,
            });
            if number % 500 == 499 {
                list.clear();
            }
        }
        history
    }

    #[test]
    fn every_damage_is_noticed_and_none_is_left_out() {
        let history = good(2_000);
        assert_eq!(check(&history), []);
        let report = damage(&history, 330, 1);
        assert_eq!((report.done(), report.noticed()), (330, 330), "{report:?}");
        assert_eq!(report.kinds.len(), DamageKind::ALL.len(), "{report:?}");
    }
}
