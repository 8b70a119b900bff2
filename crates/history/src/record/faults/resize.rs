//! The cell gets another number of backends, while everything else goes wrong, too.

use super::moves::spawn;
use super::{Begun, Course, Ongoing};
use crate::record::RecordError;
use crate::record::round::Round;
use rand::RngExt as _;
use rand::seq::IndexedRandom as _;
use std::io::Read as _;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// Sizes between which it goes.
const SIZES: [usize; 3] = [3, 4, 5];
/// How long the backends of the new size may take to answer.
const ANSWER_PATIENCE: Duration = Duration::from_secs(30);

struct Resizing {
    child: Child,
    backends: usize,
    /// It may be refused, or be given up: a backend was away, or what keeps the
    /// configuration.
    is_excused: bool,
    /// When it was done; it is over when all answer.
    done: Option<Instant>,
}

/// What is said of orders that come one upon another, and of a machine that is too busy.
const ALLOWED: [&str; 2] = ["is under way", "try again later"];

pub(super) fn begin(round: &mut Round<'_>) -> Result<Begun, RecordError> {
    let others = SIZES.iter().filter(|size| **size != round.pids.len());
    let others: Vec<usize> = others.copied().collect();
    let Some(backends) = others.choose(&mut round.rng).copied() else {
        return Ok(Begun::No);
    };
    let count = backends.to_string();
    let words = ["resize", "--backends", &count];
    let child = spawn(round, &words.map(str::to_owned), Stdio::null());
    round.is_resizing_alone = round.rng.random_bool(0.5);
    Ok(Begun::Goes(Box::new(Resizing {
        child: child.map_err(RecordError::doing("giving an order"))?,
        backends,
        is_excused: is_disturbed(round),
        done: None,
    })))
}

fn is_disturbed(round: &Round<'_>) -> bool {
    round.store_may_be_away() || round.backends_away > 0
}

impl Ongoing for Resizing {
    fn look(&mut self, round: &mut Round<'_>) -> Result<Course, String> {
        if let Some(done) = self.done {
            return match round.note_resized(self.backends) {
                false if done.elapsed() > ANSWER_PATIENCE => {
                    Err(format!("the {} backends do not all answer", self.backends))
                }
                true => Ok(Course::Done),
                false => Ok(Course::Goes),
            };
        }
        self.is_excused |= is_disturbed(round);
        let status = match self.child.try_wait() {
            Ok(None) => return Ok(Course::Goes),
            Ok(Some(status)) => status,
            Err(error) => return Err(format!("`cell resize`: {error}")),
        };
        if status.success() {
            self.done = Some(Instant::now());
            return Ok(Course::Goes);
        }
        let mut why = String::new();
        if let Some(mut stderr) = self.child.stderr.take() {
            let _ = stderr.read_to_string(&mut why);
        }
        match self.is_excused || ALLOWED.iter().any(|allowed| why.contains(allowed)) {
            true => {
                eprintln!("a resize was refused: {}", why.trim());
                Ok(Course::Refused)
            }
            false => Err(format!("`cell resize` failed: {}", why.trim())),
        }
    }

    /// All are others afterwards.
    fn concerns(&self, _: usize) -> bool {
        true
    }
}

impl Drop for Resizing {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
