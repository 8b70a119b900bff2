//! Planned maintenance, by the commands that an operator gives.
//!
//! An order may fail because the configuration cannot be changed at the moment, because the
//! cell is being resized, or because the successor was too slow, as it says itself in the
//! cell's log. Whatever else keeps a backend from moving is a trouble.

use super::{Begun, Course, Ongoing};
use crate::record::RecordError;
use crate::record::cell_log;
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
    /// The backend that is to move; all of them, if none is named.
    backend: Option<usize>,
    /// How much the cell had logged when the command was given.
    logged: u64,
    /// Somebody has moved.
    has_moved: bool,
    /// It may fail: what keeps the configuration was away meanwhile, or the cell was
    /// resized.
    is_excused: bool,
}

pub(super) fn begin_restart(round: &mut Round<'_>) -> Result<Begun, RecordError> {
    let Some(backend) = round.draw_backend() else {
        return Ok(Begun::No);
    };
    let commands = [command(&["restart", &backend.to_string()])];
    Moving::begin(round, Some(backend), commands.into())
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
    let other = other.to_string_lossy().into_owned();
    Moving::begin(
        round,
        None,
        [command(&["upgrade", "--binary", &other])].into(),
    )
}

/// To the spare; the place that it leaves is the next spare.
pub(super) fn begin_drain(round: &mut Round<'_>) -> Result<Begun, RecordError> {
    let Some(backend) = round.draw_backend() else {
        return Ok(Begun::No);
    };
    let number = backend.to_string();
    let commands = [command(&["drain", &number]), command(&["undrain", &number])];
    Moving::begin(round, Some(backend), commands.into())
}

fn command(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

impl Moving {
    fn begin(
        round: &mut Round<'_>,
        backend: Option<usize>,
        mut commands: VecDeque<Vec<String>>,
    ) -> Result<Begun, RecordError> {
        let Some(first) = commands.pop_front() else {
            return Ok(Begun::No);
        };
        let logged = round.logged();
        // Few lines: a pipe has room for them.
        let child = spawn(round, &first, Stdio::piped());
        Ok(Begun::Goes(Box::new(Moving {
            left: commands,
            command: first.join(" "),
            child: child.map_err(RecordError::doing("giving an order"))?,
            backend,
            logged,
            has_moved: false,
            is_excused: round.store_may_be_away() || round.is_resizing,
        })))
    }
}

impl Moving {
    /// All commands were carried out.
    fn end(&self, round: &mut Round<'_>) -> Result<Course, String> {
        let is_upgrade = self.backend.is_none();
        round.is_upgraded ^= is_upgrade;
        match (self.has_moved, is_upgrade) {
            (true, _) => Ok(Course::Done),
            // What was left of it after one that was refused: nothing.
            (false, true) => Ok(Course::Refused),
            (false, false) => Err(format!("`cell {}` has moved nobody", self.command)),
        }
    }
}

/// `cell WORDS` of the round's cell.
pub(super) fn spawn(round: &Round<'_>, words: &[String], stdout: Stdio) -> std::io::Result<Child> {
    Command::new(round.program())
        .arg("cell")
        .args(words)
        .arg("--cell")
        .arg(format!("unix:{}", round.cell_dir().display()))
        .stdin(Stdio::null())
        .stdout(stdout)
        .stderr(Stdio::piped())
        .spawn()
}

impl Ongoing for Moving {
    fn look(&mut self, round: &mut Round<'_>) -> Result<Course, String> {
        self.is_excused |= round.store_may_be_away() || round.is_resizing;
        let status = match self.child.try_wait() {
            Ok(None) => return Ok(Course::Goes),
            Ok(Some(status)) => status,
            Err(error) => return Err(format!("`cell {}`: {error}", self.command)),
        };
        let (mut said, mut why) = (String::new(), String::new());
        if let Some(mut stdout) = self.child.stdout.take() {
            let _ = stdout.read_to_string(&mut said);
        }
        if let Some(mut stderr) = self.child.stderr.take() {
            let _ = stderr.read_to_string(&mut why);
        }
        // Whoever has moved is a process of the plan, and nobody else.
        for (backend, pid) in cell_log::moved(&said) {
            round.note_pid(backend, pid);
            self.has_moved = true;
        }
        if !status.success() {
            let is_late = || cell_log::is_late(&why, &round.log_since(self.logged));
            return match self.is_excused || round.plan.overlap > 1 || is_late() {
                true => Ok(Course::Refused),
                false => Err(format!("`cell {}` failed: {}", self.command, why.trim())),
            };
        }
        let Some(next) = self.left.pop_front() else {
            return self.end(round);
        };
        self.logged = round.logged();
        self.child = spawn(round, &next, Stdio::piped()).map_err(|error| error.to_string())?;
        self.command = next.join(" ");
        Ok(Course::Goes)
    }

    fn concerns(&self, backend: usize) -> bool {
        self.backend.is_none_or(|number| number == backend)
    }
}

impl Drop for Moving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
