//! Waiting for a store that is away, where nothing else can be done.

use std::time::{Duration, Instant};

const PAUSE: Duration = Duration::from_millis(100);
/// How often it is told why.
const TELL_PERIOD: Duration = Duration::from_secs(60);

/// Tries again for as long as the store is away, and tells why from time to time. For a process that
/// is past the point of no return: it holds the only copy of what it has taken over, so to end
/// would lose that, and to serve could be against a configuration that it does not know.
/// `pause` waits for so long; it says `false` where the process is to end all the same: then
/// the last error is returned.
pub fn wait_out<T, E>(
    mut attempt: impl FnMut() -> Result<T, E>,
    is_outage: impl Fn(&E) -> bool,
    mut tell: impl FnMut(&E),
    mut pause: impl FnMut(Duration) -> bool,
) -> Result<T, E> {
    let mut told: Option<Instant> = None;
    loop {
        let error = match attempt() {
            Err(error) if is_outage(&error) => error,
            result => return result,
        };
        if told.is_none_or(|at| at.elapsed() >= TELL_PERIOD) {
            tell(&error);
            told = Some(Instant::now());
        }
        if !pause(PAUSE) {
            return Err(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_waited_out_and_nothing_else() {
        let mut answers = ["away", "away", "back"].into_iter();
        let attempt = |answer| match answer {
            "back" => Ok(1),
            other => Err(other),
        };
        let mut told = 0;
        let waited = wait_out(
            || attempt(answers.next().unwrap()),
            |error| *error == "away",
            |_| told += 1,
            |_| true,
        );
        assert_eq!((waited, told), (Ok(1), 1), "it is told once a minute");
        let refused = wait_out(
            || attempt("refused"),
            |error| *error == "away",
            |_| told += 1,
            |_| true,
        );
        assert_eq!((refused, told), (Err("refused"), 1));
        let ended = wait_out(|| attempt("away"), |_| true, |_| {}, |_| false);
        assert_eq!(ended, Err("away"), "whoever waits was told to end");
    }
}
