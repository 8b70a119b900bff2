//! The C library's heap, as far as it matters for a bound on resident memory.

/// Blocks from this length on are mapped, and unmapped when they are freed.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const MAPPED_LEN_MIN: i32 = 128 << 10;

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
        unsafe extern "C" {
            fn mallopt(parameter: i32, value: i32) -> i32;
        }
        /// `M_MMAP_THRESHOLD` of malloc.h.
        const M_MMAP_THRESHOLD: i32 = -3;
        // SAFETY: mallopt takes two numbers and may be called at any time, by any
        // thread; what it does not know it refuses.
        unsafe {
            mallopt(M_MMAP_THRESHOLD, MAPPED_LEN_MIN);
        }
    }
}
