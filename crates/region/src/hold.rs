//! The last hold on another process's memory.
//!
//! Memory of a process that died is free when the last mapping of it ends, and who ends that
//! pays for it: the kernel frees page by page, a tenth of a second for a GiB of small ones,
//! in one call that nobody can divide. On a core that somebody else needs the kernel gives it
//! half of the time, in slices of milliseconds. So who maps keeps a descriptor as well, ends
//! the mapping first, which frees nothing then, and closes the descriptor in a thread that
//! runs when nobody else wants the core.
//!
//! On a core that is never idle such a thread has some three thousandths of it, and a GiB is
//! free after half a minute. Whatever it has locked when it loses the core is locked for
//! hundreds of milliseconds. So it never locks the process's addresses: it maps nothing, ends
//! no mapping, and does not end itself, which would give its stack back. Nor does it share a
//! lock or the heap with other threads: descriptors reach it as numbers through a pipe.

use crate::fork::ForkMark;
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::OnceLock;

/// A descriptor of a mapped object, or none. Dropped, it is closed by and by.
#[derive(Debug, Default)]
pub(crate) struct Hold(Option<OwnedFd>);

impl Hold {
    /// Holds that object. Where the process has as many descriptors as it may, it does not:
    /// then the mapping's end frees the memory.
    pub(crate) fn on(fd: impl AsFd) -> Self {
        Hold(fd.as_fd().try_clone_to_owned().ok())
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let Some(fd) = self.0.take() else {
            return;
        };
        // Where no thread can be had it is closed here.
        if let Some((closer, made_in)) = CLOSER.get_or_init(closer).as_ref()
            // A fork's child has the pipe, and no thread; its numbers mean others to its parent.
            && !made_in.is_child()
        {
            let (mut closer, number) = (closer, fd.into_raw_fd());
            // The other end is never closed, and so few bytes are written at once or not.
            if closer.write_all(&number.to_ne_bytes()).is_err() {
                // SAFETY: ours, and nobody has been told of it.
                drop(unsafe { OwnedFd::from_raw_fd(number) });
            }
        }
    }
}

/// Where descriptors are told that are to be closed, if there is a thread for that.
static CLOSER: OnceLock<Option<(PipeWriter, ForkMark)>> = OnceLock::new();

fn closer() -> Option<(PipeWriter, ForkMark)> {
    let (numbers, writer) = std::io::pipe().ok()?;
    let thread = std::thread::Builder::new().name("trefoil-free".to_owned());
    thread.spawn(move || close_all(numbers)).ok()?;
    Some((writer, ForkMark::new()))
}

/// Closes what it is told, for ever.
fn close_all(mut numbers: PipeReader) {
    run_when_idle();
    let mut number = [0; size_of::<RawFd>()];
    while numbers.read_exact(&mut number).is_ok() {
        // SAFETY: who wrote it has given it up.
        drop(unsafe { OwnedFd::from_raw_fd(RawFd::from_ne_bytes(number)) });
    }
}

/// This thread runs from now on when no other one wants the core. Refused, it runs on as it
/// did.
fn run_when_idle() {
    // SAFETY: all zeros are a valid parameter, the one that this policy wants.
    let parameter: libc::sched_param = unsafe { std::mem::zeroed() };
    // SAFETY: 0 is the calling thread; the parameter is read before the call returns.
    let _ = unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &parameter) };
}

#[cfg(test)]
mod tests {
    use crate::mapping::Mapping;
    use crate::object::{HugePages, MemoryObject};
    use std::time::{Duration, Instant};

    /// Descriptors of this process that lead to that object.
    fn held(name: &str) -> usize {
        let all = std::fs::read_dir("/proc/self/fd").unwrap();
        all.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
            .filter(|to| to.to_string_lossy().contains(name))
            .count()
    }

    #[test]
    fn who_maps_holds_the_object_until_some_time_after_the_end() {
        let name = "held-by-who-maps";
        let len = 64 << 20;
        let object = MemoryObject::create(name, len, len, HugePages::Off).unwrap();
        let reader = Mapping::reader(object.reopen_read_only().unwrap(), len).unwrap();
        drop(object);
        assert_eq!(held(name), 1, "the mapping's");
        drop(reader);
        let begin = Instant::now();
        while held(name) > 0 {
            assert!(begin.elapsed() < Duration::from_secs(60), "never closed");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_thread_that_frees_comes_after_all_others() {
        let policy = std::thread::spawn(|| {
            super::run_when_idle();
            // SAFETY: a question about the calling thread.
            unsafe { libc::sched_getscheduler(0) }
        });
        assert_eq!(policy.join().unwrap(), libc::SCHED_IDLE);
    }
}
