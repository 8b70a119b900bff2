//! The clock that leases go by.

use rustix::time::{ClockId, clock_gettime};
use std::ops::{Add, Sub};
use std::time::Duration;

/// A moment of a host, like [`std::time::Instant`], on a clock that also runs
/// while the host is suspended (`CLOCK_BOOTTIME`): a laptop that was closed, a
/// virtual machine that was paused and told so. `Instant` stands still then,
/// and a lease would seem to hold although everybody else has seen it end.
///
/// A virtual machine whose guest is not told that it was paused has no such
/// clock: see the documentation of the linked store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BootInstant(Duration);

impl BootInstant {
    /// Now. As cheap as `Instant::now`.
    #[inline]
    pub fn now() -> Self {
        let now = clock_gettime(ClockId::Boottime);
        // Never negative: it counts from when the host was started.
        BootInstant(Duration::new(now.tv_sec as u64, now.tv_nsec as u32))
    }

    /// Time since then.
    #[inline]
    pub fn elapsed(self) -> Duration {
        BootInstant::now().saturating_duration_since(self)
    }

    /// Time since an earlier moment; zero if that one is later.
    #[inline]
    pub fn saturating_duration_since(self, earlier: BootInstant) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for BootInstant {
    type Output = BootInstant;

    fn add(self, span: Duration) -> BootInstant {
        BootInstant(self.0.saturating_add(span))
    }
}

impl Sub for BootInstant {
    type Output = Duration;

    fn sub(self, earlier: BootInstant) -> Duration {
        self.saturating_duration_since(earlier)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    const INSIDE: &str = "TREFOIL_TEST_BOOTTIME";
    /// How long the machine "was suspended", in seconds.
    const SUSPENDED: u64 = 1_000_000;

    fn monotonic() -> Duration {
        let now = clock_gettime(ClockId::Monotonic);
        Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
    }

    /// A namespace in which the host has been suspended for long: the same
    /// test again, inside it.
    #[test]
    fn it_goes_on_while_the_host_is_suspended() {
        if std::env::var_os(INSIDE).is_some() {
            // This one first: the time between the two may not count against it.
            let monotonic = monotonic();
            let ahead = BootInstant::now().0.saturating_sub(monotonic);
            assert!(ahead >= Duration::from_secs(SUSPENDED), "{ahead:?}");
            println!("inside");
            return;
        }
        let program = std::env::current_exe().expect("this program");
        let output = Command::new("unshare")
            .args(["--user", "--map-root-user", "--fork", "--time"])
            .args(["--boottime", &SUSPENDED.to_string()])
            .arg(program)
            .args(["--exact", "--nocapture"])
            .arg("clock::tests::it_goes_on_while_the_host_is_suspended")
            .env(INSIDE, "1")
            .output();
        match output {
            // It ran inside: then it counts. What a panic says goes elsewhere.
            Ok(output) if String::from_utf8_lossy(&output.stdout).contains("running 1 test") => {
                let inside = String::from_utf8_lossy(&output.stdout).contains("inside");
                assert!(output.status.success() && inside, "{output:?}");
            }
            Ok(output) if output.status.success() => panic!("it did not run inside: {output:?}"),
            other => println!("SKIPPED: no time namespace here: {other:?}"),
        }
    }

    #[test]
    fn it_only_grows() {
        let before = BootInstant::now();
        let after = BootInstant::now();
        assert!(after >= before && before - after == Duration::ZERO);
        assert!(before + Duration::from_secs(5) > after);
    }
}
