//! The thread that tends the stores: bounded steps of maintenance, the memory
//! bound's corrections, and huge pages gathered from small ones.

use crate::clock;
use crate::follow::Trouble;
use crate::heap::TRIM_PERIOD;
use crate::member::Member;
use crate::state::State;
use crate::stop::Stop;
use std::sync::Arc;
use std::time::{Duration, Instant};
use trefoil_region::{Gathered, Gatherer, ProgramPages};

/// Between two steps when nothing waits.
const STEP_PERIOD: Duration = Duration::from_millis(50);
/// Between two looks at the process's resident memory.
const MEMORY_PERIOD: Duration = Duration::from_millis(250);
/// The same for one that has just begun, and whenever what no store knows of has moved by
/// more than [`MOVED_MIN`] since the last look: a process that does something for the first
/// time grows by megabytes in a quarter of a second, which the reserve has no room for.
const MOVING_PERIOD: Duration = Duration::from_millis(25);
/// In bytes.
const MOVED_MIN: u64 = 128 << 10;

/// When starting is over: what it took is given back.
const STARTED_AFTER: Duration = Duration::from_secs(3);

/// Least time between two looks at the configuration, whatever requests say.
const CATCH_UP_PAUSE: Duration = Duration::from_millis(5);

/// Huge pages are gathered when nothing waits and nothing has grown for so long. To
/// gather one takes milliseconds of this thread, many more where it shares its core,
/// and accesses to what is gathered wait: not while somebody fills the store.
const GATHER_AFTER: Duration = Duration::from_secs(1);

/// After a huge page was gathered: the copying is not to keep others from working.
const GATHER_PAUSE: Duration = Duration::from_millis(2);

/// The same for a store that is in use, as so many times what the gathering took, for each
/// backend of the cell: all of them may share this core. Readers of these two MiB wait
/// meanwhile, and whoever wants the core, because the system stops no thread amid it: this is
/// for fewer than one operation in a hundred to wait. Where the host has yet to find the memory
/// a huge page takes ten milliseconds, and a gigabyte then many minutes.
const GATHER_PAUSE_FACTOR: u32 = 150;
const GATHER_PAUSE_MAX: Duration = Duration::from_secs(5);

/// A store is in use if somebody wrote or looked up something there, or reported what he has
/// read, in so short a time.
const USED_FOR: Duration = Duration::from_secs(1);

/// How long this thread keeps its core while it has work. Where the thread that serves
/// messages shares the core, or another backend's does, a message would wait for the
/// end of this thread's time slice, some milliseconds, and for as many more as there
/// are such threads. Where nobody does, to ask costs less than a microsecond.
const TURN: Duration = Duration::from_micros(50);

/// Tends until stopped; `huge_pages` says whether to gather them.
pub(crate) fn run(state: &Arc<State>, stop: &Stop, huge_pages: bool) {
    let mut looked = Instant::now();
    let mut measured = looked;
    let mut unknown = 0;
    let mut measure_after = MOVING_PERIOD;
    let (mut grown, mut turn) = (looked, looked);
    let (mut used, mut gather_at) = (None::<Instant>, looked);
    let started_at = looked + STARTED_AFTER;
    let mut trim_at = started_at;
    let mut program = None;
    let mut trouble = Trouble::default();
    let mut gatherers: Vec<[Gatherer; 2]> = Vec::new();
    if huge_pages {
        let of = |member: &Arc<Member>| {
            let regions = member.store.regions();
            [&regions.index, &regions.data].map(|space| Gatherer::new(space.len()))
        };
        gatherers = state.members.iter().map(of).collect();
    }
    loop {
        let mut more = false;
        for member in &state.members {
            let mut between = || leave_core(&mut turn);
            let done = member.store.maintain_in_parts(clock::now(), &mut between);
            more |= done.more;
            if done.populated > 0 || done.reshaped > 0 {
                grown = Instant::now();
            }
            if member.was_used() {
                used = Some(Instant::now());
            }
        }
        let elapsed = looked.elapsed();
        // Whoever flushes tells every backend that answers; this is for one that
        // did not answer at that moment.
        let is_behind = state.behind.is_noticed();
        if elapsed >= MEMORY_PERIOD || is_behind && elapsed >= CATCH_UP_PAUSE {
            if Instant::now() >= trim_at {
                trim_at = Instant::now() + TRIM_PERIOD;
                trefoil_region::return_free_blocks();
                // What of the program is given back amid long messages is needed again at
                // once, on top of what they take: more than the reserve.
                if !state.expects_long_messages() {
                    let is_first = program.is_none();
                    program.get_or_insert_with(ProgramPages::find).give_back();
                    if is_first {
                        state.bound.has_started();
                    }
                }
            }
            state.behind.clear();
            // One on other machines is followed by a thread that may wait for it.
            if !state.config_store.is_remote() {
                follow(state, &mut trouble);
            }
            looked = Instant::now();
        }
        if measured.elapsed() >= measure_after {
            let before = std::mem::replace(&mut unknown, state.correct_memory());
            measured = Instant::now();
            let moves = measured < started_at || unknown.abs_diff(before) > MOVED_MIN;
            measure_after = if moves { MOVING_PERIOD } else { MEMORY_PERIOD };
        }
        let is_used = used.is_some_and(|used| used.elapsed() < USED_FOR);
        // One that nobody reads yet is filled from others, which share this core and serve.
        let is_read = state.members.iter().all(|member| member.is_read());
        let is_due = !is_used || Instant::now() >= gather_at;
        let is_quiet = !more && is_read && is_due && grown.elapsed() >= GATHER_AFTER;
        let mut gathered = false;
        if is_quiet {
            for (member, [index, data]) in state.members.iter().zip(&mut gatherers) {
                let regions = member.store.regions();
                if is_used {
                    // With a time slice before it: who is stopped in the middle makes readers
                    // wait for the slices of all others.
                    std::thread::yield_now();
                }
                let begin = Instant::now();
                let has_more = regions.index.gather(index) == Gathered::Page
                    || regions.data.gather(data) == Gathered::Page;
                let backends = state.config().backends.len() as u32;
                let pause = begin.elapsed() * (GATHER_PAUSE_FACTOR * backends.max(1));
                gather_at = begin + pause.min(GATHER_PAUSE_MAX);
                gathered |= has_more;
                leave_core(&mut turn);
                if has_more && is_used {
                    // The next one when its time has come.
                    break;
                }
            }
        }
        let pause = match (more, gathered) {
            _ if state.behind.is_noticed() => CATCH_UP_PAUSE,
            (true, _) => Duration::ZERO,
            (false, true) => GATHER_PAUSE,
            (false, false) => STEP_PERIOD.min(measure_after),
        };
        if stop.wait(pause) {
            return;
        }
    }
}

/// Whoever wants this core has it, when its turn since `since` is over. No lock is held.
fn leave_core(since: &mut Instant) {
    if since.elapsed() >= TURN {
        std::thread::yield_now();
        *since = Instant::now();
    }
}

/// Takes over a configuration that was put in force without telling this
/// process. Why it cannot is said once, and now and then, not four times a second.
fn follow(state: &State, trouble: &mut Trouble) {
    let now = Instant::now();
    let error = match state.catch_up() {
        Ok(()) => {
            if trouble.end(now).is_some() {
                tracing::info!("the cell's configuration is followed again");
            }
            return;
        }
        Err(error) => error.to_string(),
    };
    if trouble.is_news(error.clone(), now) {
        tracing::error!(error, "cannot follow the cell's configuration");
    }
}
