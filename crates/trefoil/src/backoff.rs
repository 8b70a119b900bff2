//! How long to wait before a process that has died is started again.

use std::time::Duration;

/// Before the first restart in a row: none; before the second, and at most.
const PAUSE_MIN: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// Before the first restart of one that was killed: its memory is the host's again only
/// when its clients have let go of it, and the host may be short of it.
const PAUSE_KILLED: Duration = Duration::from_secs(1);
/// One that has served for so long has not died soon.
pub(crate) const LIFE_MIN: Duration = Duration::from_secs(60);

/// Before the start after so many deaths in a row, the last of which was a SIGKILL or not.
pub(crate) fn pause(deaths: u32, is_killed: bool) -> Duration {
    let pause = match deaths {
        0 | 1 => Duration::ZERO,
        more => PAUSE_MIN
            .saturating_mul(1 << (more - 2).min(16))
            .min(PAUSE_MAX),
    };
    match is_killed {
        true => pause.max(PAUSE_KILLED),
        false => pause,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_are_bounded() {
        let ms = |deaths| pause(deaths, false).as_millis();
        assert_eq!([0, 1, 2, 3, 4].map(ms), [0, 0, 500, 1000, 2000]);
        assert_eq!([20, 1000, u32::MAX].map(ms), [30_000; 3]);
        let killed_ms = |deaths| pause(deaths, true).as_millis();
        assert_eq!([1, 2, 3, 4].map(killed_ms), [1000, 1000, 1000, 2000]);
    }
}
