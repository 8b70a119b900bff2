//! Short time slices for threads that others wait for.
//!
//! A thread that wakes on a busy core waits for whoever runs there, until the end of its
//! time slice or the next tick: 3 to 4 milliseconds. A connection that begins again, a
//! message, the renewal of a lease are over in microseconds, and somebody waits for them.
//! Linux lets a thread in at once if its own slice is shorter than that of the one that
//! runs (since 6.12). Its share of the core stays what it was: it works as long as others
//! do, in shorter turns.

/// The shortest that the kernel grants.
const SHORT_NS: u64 = 100_000;

/// The calling thread asks for short time slices from now on, and so do the threads that
/// it starts. A hint: on an older kernel, or where it is not allowed, all stays as it was.
pub fn shorten() {
    ask(SHORT_NS);
}

/// The calling thread has time slices of the usual length again: it was started by one
/// that has short ones, and nobody waits for it.
pub fn lengthen() {
    ask(0);
}

/// Asks for slices of so many nanoseconds; 0 for the usual ones.
fn ask(slice_ns: u64) {
    // SAFETY: a plain system call about the calling thread.
    let policy = unsafe { libc::sched_getscheduler(0) };
    // Whoever runs this process may have chosen another policy, which knows no slices.
    if policy != libc::SCHED_OTHER {
        return;
    }
    let Ok(nice) = rustix::process::getpriority_process(None) else {
        return;
    };
    let attributes = libc::sched_attr {
        size: size_of::<libc::sched_attr>() as u32,
        sched_policy: policy as u32,
        sched_flags: 0,
        sched_nice: nice,
        sched_priority: 0,
        sched_runtime: slice_ns,
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: the structure lives through the call, and says its own length. An error
    // leaves all as it was.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the kernel says of the calling thread; `None` if it is older.
    fn slice_ns() -> Option<u64> {
        // SAFETY: a structure of numbers.
        let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
        let len = size_of::<libc::sched_attr>();
        // SAFETY: the kernel writes at most `len` bytes there.
        let done =
            unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, len, 0) };
        (done == 0 && attributes.sched_runtime > 0).then_some(attributes.sched_runtime)
    }

    #[test]
    fn slices_become_short_and_usual_again() {
        let Some(usual) = slice_ns() else {
            return;
        };
        shorten();
        assert_eq!(slice_ns(), Some(SHORT_NS));
        let inherited = std::thread::spawn(slice_ns).join().unwrap();
        assert_eq!(inherited, Some(SHORT_NS));
        lengthen();
        assert_eq!(slice_ns(), Some(usual));
    }

    #[test]
    fn priority_is_kept() {
        rustix::process::setpriority_process(None, 5).unwrap();
        shorten();
        assert_eq!(rustix::process::getpriority_process(None).unwrap(), 5);
    }
}
