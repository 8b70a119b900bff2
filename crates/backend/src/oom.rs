//! Whom the kernel ends when memory runs out.
//!
//! It prefers the largest process: while a backend moves, or a cell is resized, that is one
//! that serves, and the one that copies from it is small yet. So a process that does not serve
//! yet puts itself first, and goes back to where it was when it has the only copy. Both take no
//! privilege: the former value is at least the lowest that somebody with privilege has set.

use std::sync::{Mutex, PoisonError};

const FILE: &str = "/proc/self/oom_score_adj";
/// As good as half of the host's memory more than those that serve, which were started with the
/// same value.
const AHEAD: i32 = 500;
/// The highest value. Where processes are started with it, nobody can be put first.
const MOST: i32 = 1000;

/// What it was, of a process that has put itself first.
static FORMER: Mutex<Option<i32>> = Mutex::new(None);

/// From now on the kernel ends this process before those that serve.
pub fn put_first() {
    let mut former = FORMER.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(now) = read().filter(|now| *now < MOST && former.is_none()) else {
        return;
    };
    match std::fs::write(FILE, MOST.min(now + AHEAD).to_string()) {
        Ok(()) => *former = Some(now),
        Err(error) => {
            tracing::warn!(%error, "if memory runs out, the kernel may end a backend that serves before this process");
        }
    }
}

/// It has what nobody else has: it is as any backend.
pub(crate) fn put_back() {
    let mut former = FORMER.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(before) = former.take()
        && let Err(error) = std::fs::write(FILE, before.to_string())
    {
        tracing::warn!(
            %error,
            "if memory runs out, the kernel ends this backend before others: its oom_score_adj cannot be put back to {before}"
        );
    }
}

fn read() -> Option<i32> {
    std::fs::read_to_string(FILE).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    /// What this relies on, as a user without privilege.
    #[test]
    fn the_kernel_lets_anybody_raise_the_value_and_put_it_back() {
        let script = "f=/proc/self/oom_score_adj; read was < $f; echo 700 > $f; \
            read is < $f; echo $was > $f || exit 3; read back < $f; \
            test $is = 700 && test $back = $was || exit 4; \
            echo $((was - 1)) > $f 2>/dev/null && exit 5; exit 0";
        let mut command = match rustix::process::geteuid().is_root() {
            false => Command::new("sh"),
            true => {
                let mut command = Command::new("setpriv");
                command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
                command.args(["--bounding-set=-all", "--inh-caps=-all", "sh"]);
                command
            }
        };
        let status = command.args(["-c", script]).status().unwrap();
        assert_eq!(status.code(), Some(0));
    }
}
