//! How the system's scheduler treats the calling thread. Hints: where they are not
//! understood, nothing changes.

use std::time::Duration;

/// Asks for short turns that come soon: for threads that work for microseconds and are waited
/// for. A thread whose turns are shorter takes the core from one that has just begun a long
/// one (Linux 6.12 and later); otherwise it would wait for milliseconds wherever others work.
pub fn take_short_turns(turn: Duration) {
    take_turns(turn);
}

/// Asks for turns of the usual length: for threads that compute, begun by one whose turns are
/// short. They would have the same.
pub fn take_usual_turns() {
    take_turns(Duration::ZERO);
}

/// 0 is the usual length.
fn take_turns(turn: Duration) {
    #[cfg(target_os = "linux")]
    {
        /// `struct sched_attr` of linux/sched/types.h, as of its first version.
        #[repr(C)]
        struct SchedAttr {
            size: u32,
            policy: u32,
            flags: u64,
            nice: i32,
            priority: u32,
            runtime: u64,
            deadline: u64,
            period: u64,
        }
        const _: () = assert!(size_of::<SchedAttr>() == 48);
        let mut attr = SchedAttr {
            size: 48,
            policy: 0,
            flags: 0,
            nice: 0,
            priority: 0,
            runtime: 0,
            deadline: 0,
            period: 0,
        };
        // SAFETY: the system writes at most the 48 bytes that it is told of, which are
        // `attr`'s; thread 0 is the caller.
        let read =
            unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attr, 48_u32, 0_u32) };
        // Who chose another policy, or a priority, knows better.
        if read != 0 || attr.policy != libc::SCHED_OTHER as u32 {
            return;
        }
        attr.size = 48;
        attr.runtime = turn.as_nanos() as u64;
        // SAFETY: as above; the system only reads it.
        unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0_u32) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = turn;
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    /// What the system has been told of the calling thread's turns, in nanoseconds.
    fn turn_ns() -> u64 {
        let sched = std::fs::read_to_string("/proc/thread-self/sched").unwrap_or_default();
        let slice = sched.lines().find(|line| line.starts_with("se.slice"));
        slice.map_or(0, |line| line.rsplit(' ').next().unwrap().parse().unwrap())
    }

    #[test]
    fn a_thread_has_the_turns_of_who_began_it_until_it_takes_others() {
        let short = Duration::from_micros(150);
        let usual_ns = turn_ns();
        if usual_ns == 0 {
            return println!("skipped: the system does not tell how long turns are");
        }
        std::thread::spawn(move || {
            take_short_turns(short);
            let own = turn_ns();
            let begun = std::thread::spawn(|| {
                let inherited = turn_ns();
                take_usual_turns();
                (inherited, turn_ns())
            });
            let (inherited, usual) = begun.join().unwrap();
            assert_eq!(usual, usual_ns);
            // Kernels before 6.12 tell nothing, or know one length only.
            if own != usual_ns {
                assert_eq!((own, inherited), (150_000, 150_000));
            }
        })
        .join()
        .unwrap();
    }
}
