//! What dies in the midst of a reload: its client, a backend, the supervisor. The old corpus
//! is there in whole, or the new one.

use super::readers::Readers;
use super::steps::ByHand;
use super::{PATIENCE, await_whole, client, corpus, pid, read_all, reload, start};
use crate::support::{Cell, PROGRAM, kill, text};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use trefoil_cell::{ConfigStore as _, DirectoryStore};
use trefoil_client::Options;
use trefoil_rpc::v1::reload_response::Step;

/// So many kills have to meet a reload at work.
const KILLS: u32 = 6;

/// Up to where a reload has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Begun,
    Half,
    Loaded,
    /// Backend 1 was told to serve the new corpus, and has.
    Committed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dies {
    Client,
    Backend(usize),
}

/// Everything that may die, at every phase, one after the other in one cell.
#[test]
fn whoever_dies_in_whichever_phase_leaves_old_or_new_in_whole() {
    let dir = tempfile::tempdir().unwrap();
    let cell = start(dir.path(), 2, &[]);
    let mut serves = 1;
    let mut generation = 1;
    Readers::during(&cell, |readers| {
        for phase in [Phase::Begun, Phase::Half, Phase::Loaded, Phase::Committed] {
            for dies in [Dies::Client, Dies::Backend(0), Dies::Backend(1)] {
                generation += 1;
                let file = corpus(dir.path(), generation);
                readers.newest.store(generation, Ordering::SeqCst);
                let mut by_hand = ByHand::begin(dir.path(), &cell, &file);
                if phase >= Phase::Half {
                    by_hand.half();
                }
                if phase >= Phase::Loaded {
                    by_hand.rest();
                }
                if phase == Phase::Committed {
                    by_hand.commit(1);
                    let answer = by_hand.answer(1);
                    assert!(matches!(answer, Some(Step::Committed(_))), "{answer:?}");
                    serves = generation;
                }
                if let Dies::Backend(number) = dies {
                    let before = pid(&cell, number);
                    kill(before, "KILL");
                    // Its client notices, and goes, too.
                    by_hand.go();
                    let begin = Instant::now();
                    while pid(&cell, number) == before {
                        assert!(begin.elapsed() < PATIENCE);
                        readers.go_on();
                    }
                } else {
                    by_hand.go();
                }
                let status = await_whole(&cell);
                let found = read_all(&mut client(&cell, Options::default()));
                assert_eq!(found, serves, "{phase:?} {dies:?}: {status:#}");
                readers.oldest.store(serves, Ordering::SeqCst);
                readers.newest.store(serves, Ordering::SeqCst);
            }
        }
    });
    // And the next one goes through.
    generation += 1;
    reload(&cell, &corpus(dir.path(), generation)).unwrap();
    assert_eq!(read_all(&mut client(&cell, Options::default())), generation);
    assert_eq!(cell.stop(), 0);
}

/// The client hangs after it has told one backend: the other does not wait for it.
#[test]
fn a_client_that_hangs_keeps_nobody_from_the_new_corpus() {
    let dir = tempfile::tempdir().unwrap();
    let cell = start(dir.path(), 2, &[]);
    let file = corpus(dir.path(), 2);
    let mut by_hand = ByHand::begin(dir.path(), &cell, &file);
    by_hand.half();
    by_hand.rest();
    by_hand.commit(0);
    // Nobody tells backend 1.
    let said = [0, 1].map(|number| by_hand.answer(number));
    let is_done = |step: &Option<Step>| matches!(step, Some(Step::Committed(_)));
    assert!(said.iter().all(is_done), "{said:?}");
    let status = await_whole(&cell);
    assert_eq!(
        status["config_id"],
        by_hand.config().config_id,
        "{status:#}"
    );
    assert_eq!(read_all(&mut client(&cell, Options::default())), 2);
    by_hand.go();
    assert_eq!(cell.stop(), 0);
}

/// Somebody else's change of the configuration comes between loading and commit: nothing of
/// the new corpus is served by anybody.
#[test]
fn a_reload_that_is_overtaken_leaves_the_old_corpus() {
    let dir = tempfile::tempdir().unwrap();
    let cell = start(dir.path(), 2, &[]);
    let file = corpus(dir.path(), 2);
    let mut by_hand = ByHand::begin(dir.path(), &cell, &file);
    by_hand.half();
    by_hand.rest();
    let store = DirectoryStore::open(&dir.path().join("cell")).unwrap();
    let current = store.load().unwrap().unwrap();
    let anew = current.anew().unwrap();
    store
        .compare_and_swap(Some(current.topology_id()), &anew)
        .unwrap();
    by_hand.commit(0);
    by_hand.commit(1);
    let said = [0, 1].map(|number| by_hand.answer(number));
    assert_eq!(said, [None, None]);
    by_hand.go();
    await_whole(&cell);
    assert_eq!(read_all(&mut client(&cell, Options::default())), 1);
    reload(&cell, &file).unwrap();
    assert_eq!(read_all(&mut client(&cell, Options::default())), 2);
    assert_eq!(cell.stop(), 0);
}

fn begin_reload(cell: &Cell, file: &str) -> Child {
    Command::new(PROGRAM)
        .args(["cell", "reload", "--load", file, "--cell", &cell.address])
        .env_remove("TREFOIL_CELL")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Waits until the backends' log has so many more lines with `what` than `before`; `false` if
/// the command has ended first.
fn is_under_way(cell: &Cell, child: &mut Child, what: &str, lines: usize) -> bool {
    let begin = Instant::now();
    while cell.log().count(&[what]) < lines {
        if child.try_wait().unwrap().is_some() {
            return false;
        }
        assert!(begin.elapsed() < PATIENCE, "{what}");
        std::thread::yield_now();
    }
    child.try_wait().unwrap().is_none()
}

/// What a backend's log says when it takes the new corpus.
const BEGINS: &str = "reload begins";

/// The real command, killed a moment after the backends have begun: as often as it takes
/// until enough of the kills have met it at work.
#[test]
fn a_reload_command_that_is_killed_leaves_old_or_new_in_whole() {
    let dir = tempfile::tempdir().unwrap();
    let cell = start(dir.path(), 2, &[]);
    let mut known = 1;
    let (mut generation, mut killed) = (1, 0u32);
    let begin = Instant::now();
    Readers::during(&cell, |readers| {
        while killed < KILLS {
            assert!(
                begin.elapsed() < 4 * PATIENCE,
                "killed {killed} of {generation}"
            );
            generation += 1;
            let file = corpus(dir.path(), generation);
            readers.newest.store(generation, Ordering::SeqCst);
            let begun = cell.log().count(&[BEGINS]);
            let mut child = begin_reload(&cell, &file);
            // One has begun, or both.
            let lines = begun + 1 + usize::from(generation.is_multiple_of(2));
            if is_under_way(&cell, &mut child, BEGINS, lines) {
                std::thread::sleep(Duration::from_millis(u64::from(killed % 4) * 5));
            }
            let _ = child.kill();
            // One that was there to the end has ended by itself.
            let ended = child.wait().unwrap();
            killed += u32::from(ended.signal() == Some(9));
            // Whoever had loaded it finds out by himself what is in force.
            let begin = Instant::now();
            let found = loop {
                await_whole(&cell);
                let mut reader = client(&cell, Options::default());
                let before = super::read(&mut reader, 0).unwrap();
                let found = read_all(&mut client(&cell, Options::default()));
                if before == found {
                    break found;
                }
                assert!(begin.elapsed() < PATIENCE);
            };
            assert!(found == known || found == generation, "{known} {found}");
            known = found;
        }
        let last = generation + 1;
        readers.newest.store(last, Ordering::SeqCst);
        // What the last one has left may still be given up.
        let begin = Instant::now();
        while let Err(why) = reload(&cell, &corpus(dir.path(), last)) {
            let may_pass = why.contains("under way") || why.contains("try again");
            assert!(may_pass && begin.elapsed() < PATIENCE, "{why}");
        }
        readers.oldest.store(last, Ordering::SeqCst);
        readers.go_on();
    });
    assert_eq!(cell.stop(), 0);
}

/// A backend is killed, and reloads go on as it comes back: wherever they meet, it ends
/// with the corpus that is in force.
#[test]
fn a_restart_that_races_a_reload_ends_in_the_newer_corpus_everywhere() {
    let dir = tempfile::tempdir().unwrap();
    let cell = start(dir.path(), 3, &[]);
    let (mut serves, mut killed, began) = (1, 0u32, Instant::now());
    Readers::during(&cell, |readers| {
        while killed < KILLS {
            assert!(
                began.elapsed() < 4 * PATIENCE,
                "killed {killed} of {serves}"
            );
            let generation = serves + 1;
            let file = corpus(dir.path(), generation);
            readers.newest.store(generation, Ordering::SeqCst);
            let victim = pid(&cell, generation as usize % 3);
            let begun = cell.log().count(&[BEGINS]);
            let mut child = begin_reload(&cell, &file);
            let lines = begun + 1 + generation as usize % 3;
            is_under_way(&cell, &mut child, BEGINS, lines);
            kill(victim, "KILL");
            // The command was at work when the backend was killed, if it still is.
            killed += u32::from(child.try_wait().unwrap().is_none());
            let output = child.wait_with_output().unwrap();
            // It went through, or said that it did not; then it goes through in the end,
            // as the backend comes back.
            let begin = Instant::now();
            let mut why = text(&output.stderr);
            let mut is_done = output.status.success();
            while !is_done {
                assert!(begin.elapsed() < PATIENCE, "{why}");
                match reload(&cell, &file) {
                    Ok(_) => is_done = true,
                    Err(error) => why = error,
                }
            }
            serves = generation;
            readers.oldest.store(serves, Ordering::SeqCst);
            await_whole(&cell);
            assert_eq!(read_all(&mut client(&cell, Options::default())), serves);
        }
    });
    assert_eq!(cell.stop(), 0);
}

/// With the supervisor everything ends; what `cell up` begins with then is whole.
#[test]
fn a_supervisor_that_is_killed_in_a_reload_leaves_nothing_half() {
    let dir = tempfile::tempdir().unwrap();
    let cell = start(dir.path(), 2, &[]);
    let files = [corpus(dir.path(), 2), corpus(dir.path(), 3)];
    let mut by_hand = ByHand::begin(dir.path(), &cell, &files[0]);
    by_hand.half();
    by_hand.rest();
    by_hand.commit(0);
    let pids = cell.pids.clone();
    kill(cell.pid(), "KILL");
    let begin = Instant::now();
    // They end by themselves: nobody is left who serves one or the other.
    while pids.iter().any(|pid| is_running(*pid)) {
        assert!(begin.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(20));
    }
    by_hand.go();
    drop(cell);
    let home = dir.path().join("cell");
    let args = ["--mode", "R=2", "--load", &files[1], "--memory", "64MiB"];
    let cell = Cell::up(&home, &args);
    await_whole(&cell);
    assert_eq!(read_all(&mut client(&cell, Options::default())), 3);
    assert_eq!(cell.stop(), 0);
}

/// Whether a process is there and has not ended.
fn is_running(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(')').next().unwrap_or_default().trim_start();
    !state.is_empty() && !state.starts_with('Z')
}
