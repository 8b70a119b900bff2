//! The C library's heap, as far as it matters for a bound on resident memory.

/// Blocks from this length on are mapped, and unmapped when they are freed.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const MAPPED_LEN_MIN: i32 = 128 << 10;
/// Heaps that all threads share: what threads allocate is not on the path of a
/// request.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const HEAP_COUNT_MAX: i32 = 2;

/// Has long blocks go back to the system as soon as they are freed.
///
/// glibc does so at first, too; but each long block that is freed raises the
/// length from which it does, up to 32 MiB. Then the bodies of large requests
/// come from its arenas, where what is freed between two others stays resident:
/// tens of megabytes that nobody uses. Naming the length once keeps it. Without
/// glibc there is nothing to do.
pub fn return_long_blocks() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        /// `M_MMAP_THRESHOLD` of malloc.h.
        const M_MMAP_THRESHOLD: i32 = -3;
        set(M_MMAP_THRESHOLD, MAPPED_LEN_MIN);
    }
}

/// Has threads share their heaps: call it before there are any. Each heap of its
/// own keeps some tens of kilobytes for a thread that hardly allocates.
pub fn share_heaps() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        /// `M_ARENA_MAX` of malloc.h.
        const M_ARENA_MAX: i32 = -8;
        set(M_ARENA_MAX, HEAP_COUNT_MAX);
    }
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn set(parameter: i32, value: i32) {
    unsafe extern "C" {
        fn mallopt(parameter: i32, value: i32) -> i32;
    }
    // SAFETY: mallopt takes two numbers and may be called at any time, by any
    // thread; what it does not know it refuses.
    unsafe {
        mallopt(parameter, value);
    }
}

/// Gives whole pages of the heaps back that hold nothing any more.
///
/// glibc does so at the end of a heap only. Each heap is locked meanwhile, for well
/// under a millisecond: long blocks are not in them.
pub fn return_free_blocks() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        unsafe extern "C" {
            fn malloc_trim(pad: usize) -> i32;
        }
        // SAFETY: it takes a number and may be called at any time, by any thread.
        unsafe {
            malloc_trim(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "calls the C library")]
    fn blocks_in_use_stay_what_they_are() {
        let blocks: Vec<Vec<u8>> = (0..1_000).map(|i| vec![i as u8; 5_000]).collect();
        let kept: Vec<Vec<u8>> = blocks.into_iter().step_by(3).collect();
        return_free_blocks();
        for (i, block) in kept.iter().enumerate() {
            assert!(block.iter().all(|byte| *byte == (i * 3) as u8));
        }
    }
}
