//! Threads whose work nobody waits for.

use tokio::runtime::Runtime;

/// Nice level: a tenth of the share of a thread that is waited for, and no turn while one
/// has work. More would stop it for good where a core is never idle.
const NICE: i32 = 10;

/// The calling thread gives way to others from now on. There is no way back without
/// privilege, so it should be a thread of its own.
pub(crate) fn give_way() {
    // On Linux this is about the thread, not its process. Without it, it works as fast as it can.
    let _ = rustix::process::setpriority_process(None, NICE);
}

/// Runs what is awaited in the calling thread alone: messages are packed and unpacked here,
/// too, not by the threads that serve.
pub(crate) fn runtime() -> std::io::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
}
