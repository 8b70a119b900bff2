//! What `cell up` and its backends have logged: deaths that nobody has ordered, panics, and
//! why a successor did not take a backend over.

use std::collections::{BTreeMap, BTreeSet};

/// What `cell up` says of a backend's process that has ended by itself.
const DIED: &str = "a backend has died";
const PANICKED: &str = "panicked at";
/// How one ends that was killed, by whoever.
const KILLED: &str = "signal: 9 ";
/// How one ends that cannot start.
const NOT_STARTED: &str = "exit status: 1\"";
/// What `cell restart` and the like say of a successor that has ended while the former
/// process goes on.
const NOT_MOVED: &str =
    " did not move, and goes on as before: the process that was to take it over has ended";
/// What such a successor says if it was too slow (`HandoverError::Late`), around the number.
const LATE: (&str, &str) = (
    "the rest of backend ",
    " could not be copied in the half second",
);

/// What should not stand there, with `kills` of each backend done on purpose. A backend that
/// was killed may fail to start again where what keeps the configuration goes away, too; it
/// says why and ends.
pub(super) fn troubles(
    log: &str,
    kills: &BTreeMap<usize, u64>,
    may_store_be_away: bool,
) -> Vec<String> {
    let panics = log.lines().filter(|line| line.contains(PANICKED));
    let mut troubles: Vec<String> = panics.map(|line| format!("a panic: {line}")).collect();
    let mut left = kills.clone();
    // By the last that was said of it, it does not serve.
    let mut down = BTreeSet::new();
    for line in log.lines().filter(|line| line.contains(DIED)) {
        let Some(backend) = number_after(line, " backend=") else {
            troubles.push(format!("a backend has died: {line}"));
            continue;
        };
        let kills = left.entry(backend).or_default();
        if line.contains(KILLED) && *kills > 0 {
            *kills -= 1;
            down.insert(backend);
        } else if !(may_store_be_away && line.contains(NOT_STARTED) && down.contains(&backend)) {
            troubles.push(format!("a backend has died by itself: {line}"));
        }
    }
    troubles
}

/// Whether an order that failed so came to nothing because the successor was too slow, by
/// what was logged since it was given.
pub(super) fn is_late(why: &str, log: &str) -> bool {
    let Some((before, _)) = why.split_once(NOT_MOVED) else {
        return false;
    };
    let number = before.rsplit(' ').next().unwrap_or_default();
    log.contains(&format!("{}{number}{}", LATE.0, LATE.1))
}

/// Backends that have moved, and the processes that they are now, by what the command that
/// had them move has printed.
pub(super) fn moved(said: &str) -> Vec<(usize, u32)> {
    let moved = |line: &str| {
        let backend = number_after(line, "backend ")?;
        let pid = number_after(line, ": is process ")?;
        Some((backend, pid as u32))
    };
    said.lines().filter_map(moved).collect()
}

fn number_after(line: &str, mark: &str) -> Option<usize> {
    let (_, rest) = line.split_once(mark)?;
    let digits = rest.find(|c: char| !c.is_ascii_digit());
    rest[..digits.unwrap_or(rest.len())].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KILL: &str = "ERROR trefoil::cell::revival: a backend has died; it is started again \
                        backend=1 how=\"signal: 9 (SIGKILL)\" pause_ms=100";

    #[test]
    fn deaths_that_were_not_ordered_are_noticed() {
        let troubles = |log: &str, kills: &[(usize, u64)]| {
            troubles(log, &kills.iter().copied().collect(), false).len()
        };
        let twice = format!("{KILL}\nWARN something else backend=1\n{KILL}\n");
        assert_eq!(troubles(&twice, &[(1, 2)]), 0);
        // A kill that `cell up` had no time to notice.
        assert_eq!(troubles(&twice, &[(1, 3), (0, 1)]), 0);
        assert_eq!(troubles(&twice, &[(1, 1), (0, 1)]), 1);
        assert_eq!(troubles(&twice, &[]), 2);
        let crash = KILL.replace("signal: 9 (SIGKILL)", "signal: 6 (SIGABRT)");
        assert_eq!(troubles(&crash, &[(1, 2)]), 1);
        let for_good = "ERROR a backend has died backend=2 how=\"exit status: 1\" why=\"\"";
        assert_eq!(troubles(for_good, &[(2, 1)]), 1);
        let panic = "thread 'trefoil-copy' panicked at crates/backend/src/handover/taking.rs:9:1:";
        assert_eq!(troubles(panic, &[]), 1);
    }

    #[test]
    fn only_a_killed_one_may_fail_to_start_and_only_while_the_store_may_be_away() {
        let failed = KILL.replace("signal: 9 (SIGKILL)", "exit status: 1");
        let panicked = KILL.replace("signal: 9 (SIGKILL)", "exit status: 101");
        let kills = [(1, 1)].into();
        let count = |log: &str, is_away| troubles(log, &kills, is_away).len();
        let killed = format!("{KILL}\n{failed}\n{failed}\n");
        assert_eq!((count(&killed, true), count(&killed, false)), (0, 2));
        assert_eq!(count(&failed, true), 1);
        assert_eq!(count(&format!("{KILL}\n{panicked}"), true), 1);
    }

    #[test]
    fn only_a_successor_that_was_too_slow_is_late() {
        let why = "trefoil: backend 2 did not move, and goes on as before: the process that was \
                   to take it over has ended after 1.3 s; its message stands in the log of `cell up`";
        let late = "trefoil: the rest of backend 2 could not be copied in the half second in which";
        assert!(is_late(why, late));
        assert!(!is_late(why, &late.replace("backend 2", "backend 1")));
        assert!(!is_late(why, "thread 'main' panicked at src/main.rs"));
        assert!(!is_late("trefoil: no spare stands by", late));
    }

    /// These words are others' to choose.
    #[test]
    fn what_is_looked_for_is_what_is_said() {
        let late = include_str!("../../../backend/src/handover/mod.rs");
        assert!(late.contains(&format!("{}{{number}}{}", LATE.0, LATE.1)));
        let revival = include_str!("../../../trefoil/src/cell/revival.rs");
        let errors = include_str!("../../../trefoil/src/cell/order_error.rs");
        let (did_not, has_ended) = NOT_MOVED.split_once(": the").unwrap();
        assert!(errors.contains(&format!("backend {{number}}{did_not}: ")));
        assert!(revival.contains(has_ended.trim_start()));
        assert_eq!(revival.matches(&format!("\"{DIED}")).count(), 2);
        let orders = include_str!("../../../trefoil/src/cell/orders.rs");
        assert!(orders.contains("backend {backend}: is process {pid} now"));
    }

    #[test]
    fn who_has_moved_stands_in_what_the_command_prints() {
        let said = "backend 0: moves to another process\n\
                    backend 0: is process 411 now, trefoil 0.9.0 (0.21 s)\n\
                    backend 1: is trefoil 0.9.0 already\nprocess 7 is a spare now\n";
        assert_eq!(moved(said), [(0, 411)]);
    }
}
