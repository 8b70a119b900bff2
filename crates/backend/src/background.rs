//! Threads whose work nobody waits for.
//!
//! **A thread that takes locks of a store that serves keeps its usual priority**, and gives
//! its core away of itself, when it holds none ([`leave_core`]). At a lower one it may be
//! stopped while it holds a partition's lock, and gets its next turn long after: whoever
//! wants the lock waits as if its own priority were the lower one. Measured with a thread that
//! takes a lock for 2 of 5 µs, another that wants it each 500 µs, and one or two more that
//! keep the core busy (one core, Linux 6.18):
//!
//! | the first one | wait for the lock, p99 | p99.9 | longest | its turns with the lock in 12 s |
//! |---|---|---|---|---|
//! | nice 10 | 14 to 22 ms | 264 to 296 ms | 743 ms | 69,000 to 86,000 |
//! | usual | 8 to 13 ms | 16 to 37 ms | 102 ms | 538,000 to 694,000 |
//! | usual, leaves the core each 500 µs | 1.3 to 1.9 ms | 7 to 16 ms | 354 ms | 302,000 to 558,000 |
//! | usual, leaves the core each 100 µs | under 1 µs | 9 to 169 µs | 16 ms | 48,000 to 199,000 |
//!
//! Those who want the core itself have it a turn later. Where nobody does, nothing is lost.

use std::cell::Cell;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// Nice level: a tenth of the share of a thread that is waited for. More would all but stop it
/// where a core is never idle.
const NICE: i32 = 10;
/// How often it is looked whether such a thread gets turns at all. Several processes copy one
/// after the other when a cell is resized, and each waits for so long first.
const LOOK_PERIOD: Duration = Duration::from_millis(500);
/// Whoever waits for a core so many times as long as it has one stands still, for all that
/// people can see. One thread that is always busy leaves it a tenth; fifteen, a hundredth.
const SHARE_MIN: u64 = 16;

/// How long a thread keeps its core while it has work, about: short beside a time slice, so
/// that it is seldom stopped amid something. See the module.
const TURN: Duration = Duration::from_micros(100);

/// The clock is looked at each so many calls: a look costs as much as a tenth of what is
/// done between two calls.
const CALLS_BETWEEN: u32 = 8;

thread_local! {
    /// When the calling thread's turn began.
    static TURN_BEGAN: Cell<Option<Instant>> = const { Cell::new(None) };
    /// Calls since the last look at the clock.
    static CALLS: Cell<u32> = const { Cell::new(0) };
}

/// Whoever wants this core has it, if the calling thread's turn is over. It must hold no lock
/// that others may want. For what takes a microsecond between two calls, about.
pub(crate) fn leave_core() {
    let calls = CALLS.get() + 1;
    CALLS.set(calls % CALLS_BETWEEN);
    if calls >= CALLS_BETWEEN {
        leave_core_after_part();
    }
}

/// The same for what takes ten of them, or more: it looks at the clock each time.
pub(crate) fn leave_core_after_part() {
    let now = Instant::now();
    let is_over = |began: Instant| now.saturating_duration_since(began) >= TURN;
    if TURN_BEGAN.get().is_none_or(is_over) {
        std::thread::yield_now();
        TURN_BEGAN.set(Some(Instant::now()));
    }
}

/// Runs `work` in a thread of this name that gives way to all others, and whose messages are
/// packed and unpacked there, too, not by the threads that serve. It must take no locks of a
/// store that serves.
///
/// On a machine that has more to do than it can, such a thread would stand still: then the
/// calling one goes on with the work, at its usual priority.
pub(crate) fn run<T: Send>(
    name: &'static str,
    work: impl Future<Output = T> + Send,
) -> std::io::Result<T> {
    run_until(starved(), name, work)
}

fn run_until<T: Send>(
    starved: impl Future<Output = ()> + Send,
    name: &'static str,
    work: impl Future<Output = T> + Send,
) -> std::io::Result<T> {
    let runtime = runtime()?;
    let mut work = std::pin::pin!(work);
    let done = std::thread::scope(|scope| {
        let gives_way = || {
            // On Linux this is about the thread, not its process, and there is no way back
            // without privilege. Without it, it works as fast as it can.
            let usual = rustix::process::getpriority_process(None).unwrap_or_default();
            let _ = rustix::process::setpriority_process(None, usual.max(NICE));
            runtime.block_on(async {
                tokio::select! {
                    done = &mut work => Some(done),
                    () = starved => None,
                }
            })
        };
        let thread = std::thread::Builder::new().name(name.to_owned());
        let thread = thread.spawn_scoped(scope, gives_way).ok()?;
        let done = thread.join();
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    Ok(done.unwrap_or_else(|| runtime.block_on(work)))
}

/// Runs what is awaited in the calling thread alone.
pub(crate) fn runtime() -> std::io::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
}

/// What the system says of a thread: for how long it had a core, and for how long it wanted
/// one that others had.
#[derive(Clone, Copy, Debug, Default)]
struct Turns {
    ran_ns: u64,
    waited_ns: u64,
}

impl Turns {
    /// Of the calling thread. Some systems do not count.
    fn now() -> Option<Turns> {
        let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
        Turns::parse(&text)
    }

    fn parse(text: &str) -> Option<Turns> {
        let mut words = text.split_ascii_whitespace().map(str::parse);
        Some(Turns {
            ran_ns: words.next()?.ok()?,
            waited_ns: words.next()?.ok()?,
        })
    }

    /// Whether it had next to nothing of what it wanted since `before`.
    fn is_starved_since(self, before: Turns) -> bool {
        let ran_ns = self.ran_ns.saturating_sub(before.ran_ns);
        let waited_ns = self.waited_ns.saturating_sub(before.waited_ns);
        let wanted = LOOK_PERIOD.as_nanos() as u64 / 2;
        waited_ns >= wanted && waited_ns >= SHARE_MIN * ran_ns
    }
}

/// Returns once the thread that awaits it has had next to none of the turns that it wanted.
async fn starved() {
    while let Some(before) = Turns::now() {
        tokio::time::sleep(LOOK_PERIOD).await;
        if Turns::now().is_some_and(|now| now.is_starved_since(before)) {
            tracing::info!(
                "the machine is too busy for work that gives way: it goes on at the usual priority"
            );
            return;
        }
    }
    std::future::pending().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_that_gets_no_turns_is_gone_on_with_where_it_stands() {
        let caller = std::thread::current().id();
        let (starve, is_starved) = tokio::sync::oneshot::channel();
        let starved = async { is_starved.await.unwrap() };
        let work = async {
            // A task of its own, which has to live on, too.
            let (said, heard) = tokio::sync::oneshot::channel();
            let task = tokio::spawn(async move { heard.await.map(|word: u32| word + 1) });
            let first = std::thread::current().id();
            starve.send(()).unwrap();
            while std::thread::current().id() == first {
                tokio::task::yield_now().await;
            }
            said.send(4).unwrap();
            let word = task.await.unwrap().unwrap();
            tokio::time::sleep(Duration::from_millis(1)).await;
            (first, std::thread::current().id(), word)
        };
        let (first, last, word) = run_until(starved, "test", work).unwrap();
        assert_ne!(first, caller);
        assert_eq!(last, caller);
        assert_eq!(word, 5);
    }

    #[test]
    fn work_that_gets_its_turns_stays_where_it_is() {
        let caller = std::thread::current().id();
        let nice = || rustix::process::getpriority_process(None).unwrap();
        let usual = nice();
        let work = async { (std::thread::current().id(), nice()) };
        let (thread, low) = run_until(std::future::pending(), "test", work).unwrap();
        assert_ne!(thread, caller);
        assert_eq!(low, usual.max(NICE));
        assert_eq!(nice(), usual);
    }

    #[test]
    fn who_gets_a_tenth_is_not_starved_and_who_gets_a_hundredth_is() {
        let before = Turns::parse("500 700 3\n").unwrap();
        let after = |ran_ms: u64, waited_ms: u64| Turns {
            ran_ns: before.ran_ns + ran_ms * 1_000_000,
            waited_ns: before.waited_ns + waited_ms * 1_000_000,
        };
        let is_starved = |ran, waited| after(ran, waited).is_starved_since(before);
        assert!(is_starved(5, 495));
        assert!(!is_starved(50, 450));
        // It waits for answers, mostly.
        assert!(!is_starved(1, 200));
        assert!(!is_starved(0, 0));
        assert!(Turns::parse("0\n").is_none());
        assert!(Turns::parse("").is_none());
    }
}
