//! Threads that stay where they are put.

use std::io;

use rustix::thread::{CpuSet, sched_setaffinity};

/// Keeps the calling thread, and what it will spawn, on one core.
pub fn pin_current_thread(core: usize) -> io::Result<()> {
    if core >= CpuSet::MAX_CPU {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut cores = CpuSet::new();
    cores.set(core);
    Ok(sched_setaffinity(None, &cores)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pinning_holds_and_nonsense_is_an_error() {
        std::thread::spawn(|| {
            pin_current_thread(0).unwrap();
            assert_eq!(rustix::thread::sched_getcpu(), 0);
            assert!(pin_current_thread(CpuSet::MAX_CPU).is_err());
            assert!(pin_current_thread(CpuSet::MAX_CPU - 1).is_err());
        })
        .join()
        .unwrap();
    }
}
