//! What came of the keys, as findings.

use super::finding::Finding;
use super::keys::Looked;
use std::collections::{BTreeMap, BTreeSet};
use trefoil_cell::Mode;
use trefoil_recovery::examine::Odd;

/// Findings on keys, beside those that are known of the backends.
pub(super) fn findings(looked: &Looked, mode: Mode, of_backends: &[Finding]) -> Vec<Finding> {
    let mut all = Vec::new();
    for (number, count) in &looked.corrupt_copies {
        all.push(corrupt(*number, *count, mode));
    }
    if looked.inquorate > 0 {
        let count = looked.inquorate;
        all.push(
            Finding::new(
                "inquorate",
                format!("{} no two replicas that agree", keys(count, "has", "have")),
                "Write them again or erase them: they are misses to every reader until then",
            )
            .of_keys(count),
        );
    }
    for ((number, how), count) in &looked.dirty {
        all.push(dirty(*number, *how, *count, mode));
    }
    all.extend(unread(looked, of_backends));
    all
}

/// "5 keys have", "1 key has".
fn keys(count: u64, one: &str, many: &str) -> String {
    match count {
        1 => format!("1 key {one}"),
        count => format!("{count} keys {many}"),
    }
}

fn corrupt(number: u32, count: u64, mode: Mode) -> Finding {
    let advice = match mode {
        Mode::R32 => {
            "Test the host's memory, and kill the backend's process: it recovers the keys from \
             the other two; readers refuse a damaged copy and take another"
        }
        Mode::R2 => {
            "Test the host's memory, and kill the backend's process: it loads the corpus again"
        }
        Mode::R1 => {
            "Test the host's memory, and write the keys again or erase them: readers refuse a \
             damaged value"
        }
    };
    let what = format!(
        "backend {number} holds {count} damaged {}: checksum and index entry do not match",
        if count == 1 { "value" } else { "values" }
    );
    Finding::new("corrupt", what, advice)
        .of_backend(number)
        .of_keys(count)
}

fn dirty(number: u32, how: Odd, count: u64, mode: Mode) -> Finding {
    let others = match mode {
        Mode::R2 => "the other one",
        _ => "the other two",
    };
    let what = match how {
        Odd::Lacks => format!("backend {number} lacks {} that {others} hold", plain(count)),
        Odd::Older => format!("backend {number} has an older value of {}", plain(count)),
        Odd::Newer => format!("backend {number} has a newer value of {}", plain(count)),
        Odd::Holds => format!("backend {number} holds {} that {others} lack", plain(count)),
        Odd::Differs => format!("backend {number} has another value of {}", plain(count)),
    };
    let advice = match (mode, how) {
        (Mode::R2, _) => "Load the corpus again with `trefoil cell reload`: either answers alone",
        (_, Odd::Lacks | Odd::Older) => {
            "Write the keys again, or kill the backend's process, which then recovers them from \
             the other two: a reader finds them while those two are up, and no longer"
        }
        (_, Odd::Holds) => {
            "Nothing, if memory is full: each replica evicts by itself, and to readers the keys \
             are misses; otherwise erase or write them"
        }
        (_, Odd::Newer) => {
            "Write the keys again: a mutation reached one replica only and was not \
             acknowledged; readers believe the other two"
        }
        (_, Odd::Differs) => {
            "Test the memory of the backend's host, and write the keys again: two values of one \
             version are damage that no checksum shows"
        }
    };
    let finding = Finding::new("dirty", what, advice);
    Finding {
        how: Some(name(how)),
        ..finding.of_backend(number).of_keys(count)
    }
}

/// The name of a difference in JSON.
const fn name(odd: Odd) -> &'static str {
    match odd {
        Odd::Lacks => "lacks",
        Odd::Older => "older",
        Odd::Newer => "newer",
        Odd::Holds => "holds",
        Odd::Differs => "differs",
    }
}

fn plain(count: u64) -> String {
    keys(count, "", "").trim_end().to_owned()
}

/// Backends that could not be read to the end, unless it is known already that nobody can.
fn unread(looked: &Looked, of_backends: &[Finding]) -> Vec<Finding> {
    const EXPLAINING: [&str; 4] = ["down", "silent", "refuses", "recovering"];
    let is_known = |number: u32| {
        let mut known = of_backends.iter();
        known.any(|finding| finding.backend == Some(number) && EXPLAINING.contains(&finding.kind))
    };
    let mut reasons: BTreeMap<u32, BTreeSet<&str>> = BTreeMap::new();
    let mut shards: BTreeMap<u32, u64> = BTreeMap::new();
    for ((_, number), why) in &looked.unread {
        if !is_known(*number) {
            let why = why.as_deref().unwrap_or("it was recovering");
            reasons.entry(*number).or_default().insert(why);
            *shards.entry(*number).or_default() += 1;
        }
    }
    let finding = |(number, reasons): (u32, BTreeSet<&str>)| {
        let why: Vec<&str> = reasons.into_iter().collect();
        let count = shards[&number];
        let shards = if count == 1 { "shard" } else { "shards" };
        Finding::new(
            "unread",
            format!(
                "backend {number} could not be read to the end in {count} {shards}: {}",
                why.join("; ")
            ),
            "Run the doctor again: of keys of these shards it is not known whether all replicas \
             agree",
        )
        .of_backend(number)
    };
    reasons.into_iter().map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_said_of_what_is_clean() {
        let looked = Looked {
            clean: 5,
            unsettled: 1,
            ..Looked::default()
        };
        assert_eq!(findings(&looked, Mode::R32, &[]), []);
    }

    #[test]
    fn each_backend_and_each_difference_is_one_finding() {
        let mut looked = Looked {
            inquorate: 1,
            corrupt: 2,
            ..Looked::default()
        };
        looked.corrupt_copies.insert(1, 2);
        looked.dirty.insert((0, Odd::Holds), 1);
        looked.dirty.insert((2, Odd::Older), 7);
        let all = findings(&looked, Mode::R32, &[]);
        let said: Vec<_> = all
            .iter()
            .map(|finding| (finding.kind, finding.backend, finding.keys.unwrap()))
            .collect();
        let wanted = [
            ("corrupt", Some(1), 2),
            ("inquorate", None, 1),
            ("dirty", Some(0), 1),
            ("dirty", Some(2), 7),
        ];
        assert_eq!(said, wanted);
        assert_eq!(all[1].what, "1 key has no two replicas that agree");
        assert_eq!(all[2].what, "backend 0 holds 1 key that the other two lack");
        assert_eq!(all[3].what, "backend 2 has an older value of 7 keys");
    }

    /// That a backend is down is told once.
    #[test]
    fn what_explains_that_it_was_not_read_is_enough() {
        let mut looked = Looked::default();
        looked.unread.insert((0, 1), Some("refused".to_owned()));
        looked.unread.insert((1, 1), Some("refused".to_owned()));
        looked.unread.insert((1, 2), None);
        let down = Finding::new("down", "", "").of_backend(1);
        let lease = Finding::new("lease", "", "").of_backend(2);
        let all = findings(&looked, Mode::R32, &[down, lease]);
        assert_eq!(all.len(), 1, "{all:?}");
        assert_eq!((all[0].kind, all[0].backend), ("unread", Some(2)));
        let all = findings(&looked, Mode::R32, &[]);
        assert!(all[0].what.contains("2 shards: refused"), "{}", all[0].what);
    }
}
