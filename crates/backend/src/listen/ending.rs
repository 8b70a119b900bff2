//! Waiting for a predecessor that is ending: killed, it keeps its sockets until the
//! kernel has taken all of its memory down.

use std::time::{Duration, Instant};
use trefoil_cell::is_ending;

/// How long one that is ending is waited for.
const ENDING_WAIT: Duration = Duration::from_secs(10);
/// How long one may look alive, or not be seen: a signal may just be being
/// delivered, and what ends is hidden from others than root for a while.
const ALIVE_WAIT: Duration = Duration::from_millis(300);
/// How often it is tried again.
const POLL: Duration = Duration::from_millis(20);

/// Tries to take something that `holder` may have.
pub(super) fn outlive<T, E>(
    mut take: impl FnMut() -> Result<T, E>,
    is_in_use: impl Fn(&E) -> bool,
    holder: impl Fn() -> Option<u32>,
) -> Result<T, E> {
    let begin = Instant::now();
    loop {
        let error = match take() {
            Err(error) if is_in_use(&error) => error,
            result => return result,
        };
        let patience = match holder().is_some_and(is_ending) {
            true => ENDING_WAIT,
            false => ALIVE_WAIT,
        };
        if begin.elapsed() >= patience {
            return Err(error);
        }
        std::thread::sleep(POLL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ends_is_waited_for_and_what_lives_is_not() {
        // It looks alive at first.
        let mut left = 3;
        let take = || {
            left -= 1;
            if left == 0 { Ok(()) } else { Err(()) }
        };
        assert_eq!(outlive(take, |()| true, || None), Ok(()));
        let mut count = 0;
        let take = || {
            count += 1;
            Err::<(), ()>(())
        };
        assert_eq!(outlive(take, |()| false, || None), Err(()));
        assert_eq!(count, 1, "another mistake is told of at once");
        let me = || Some(std::process::id());
        let begin = Instant::now();
        assert_eq!(outlive(|| Err::<(), ()>(()), |()| true, me), Err(()));
        assert!(begin.elapsed() < ENDING_WAIT);
    }
}
