//! Planned maintenance, by the commands that an operator gives.

use super::{Begun, Ongoing};
use crate::record::RecordError;
use crate::record::round::Round;
use std::collections::VecDeque;
use std::io::Read as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// Commands, one after another.
struct Moving {
    left: VecDeque<Vec<String>>,
    /// The one under way.
    command: String,
    child: Child,
    /// It may fail: what keeps the configuration was away meanwhile, or the cell was
    /// resized.
    is_excused: bool,
}

/// What `cell up` says of a successor that was too slow: the backend stays where it is.
const TOO_SLOW: &str = "has ended after";

pub(super) fn begin_restart(round: &mut Round<'_>) -> Result<Begun, RecordError> {
    let Some(backend) = round.draw_backend() else {
        return Ok(Begun::No);
    };
    Moving::begin(round, [command(&["restart", &backend.to_string()])].into())
}

/// To a copy of the program that runs, and back at the next time.
pub(super) fn begin_upgrade(round: &mut Round<'_>) -> Result<Begun, RecordError> {
    let copy = round.cell_dir().with_file_name("other-program");
    if !copy.exists() {
        std::fs::copy(round.program(), &copy)
            .map_err(RecordError::doing("copying the program to upgrade to"))?;
    }
    let other: PathBuf = match round.is_upgraded {
        false => copy,
        true => round.program().to_owned(),
    };
    round.is_upgraded = !round.is_upgraded;
    let other = other.to_string_lossy().into_owned();
    Moving::begin(round, [command(&["upgrade", "--binary", &other])].into())
}

/// To the spare; the place that it leaves is the next spare.
pub(super) fn begin_drain(round: &mut Round<'_>) -> Result<Begun, RecordError> {
    let Some(backend) = round.draw_backend() else {
        return Ok(Begun::No);
    };
    let backend = backend.to_string();
    let commands = [
        command(&["drain", &backend]),
        command(&["undrain", &backend]),
    ];
    Moving::begin(round, commands.into())
}

fn command(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

impl Moving {
    fn begin(
        round: &mut Round<'_>,
        mut commands: VecDeque<Vec<String>>,
    ) -> Result<Begun, RecordError> {
        let Some(first) = commands.pop_front() else {
            return Ok(Begun::No);
        };
        let child = spawn(round, &first).map_err(RecordError::doing("giving an order"))?;
        Ok(Begun::Goes(Box::new(Moving {
            left: commands,
            command: first.join(" "),
            child,
            is_excused: round.store_is_away || round.is_resizing,
        })))
    }
}

/// `cell WORDS` of the round's cell.
pub(super) fn spawn(round: &Round<'_>, words: &[String]) -> std::io::Result<Child> {
    Command::new(round.program())
        .arg("cell")
        .args(words)
        .arg("--cell")
        .arg(format!("unix:{}", round.cell_dir().display()))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
}

impl Ongoing for Moving {
    fn is_over(&mut self, round: &mut Round<'_>) -> Result<bool, String> {
        self.is_excused |= round.store_is_away || round.is_resizing;
        let status = match self.child.try_wait() {
            Ok(None) => return Ok(false),
            Ok(Some(status)) => status,
            Err(error) => return Err(format!("`cell {}`: {error}", self.command)),
        };
        let mut why = String::new();
        if let Some(mut stderr) = self.child.stderr.take() {
            let _ = stderr.read_to_string(&mut why);
        }
        // Moved or not, whoever is there now is a process of the plan.
        round.note_pids();
        if !status.success() {
            round.refused += 1;
            let is_allowed = self.is_excused || why.contains(TOO_SLOW) || round.plan.overlap > 1;
            return match is_allowed {
                true => Ok(true),
                false => Err(format!("`cell {}` failed: {}", self.command, why.trim())),
            };
        }
        let Some(next) = self.left.pop_front() else {
            return Ok(true);
        };
        self.child = spawn(round, &next).map_err(|error| error.to_string())?;
        self.command = next.join(" ");
        Ok(false)
    }

    fn is_bounded(&self) -> bool {
        true
    }
}

impl Drop for Moving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
