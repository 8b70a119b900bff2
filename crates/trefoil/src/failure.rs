//! How a command fails: one line on stderr and an exit code.

use std::fmt::Display;
use std::process::ExitCode;

/// What a command returns.
pub(crate) type Outcome = Result<ExitCode, Failure>;

/// Why a command did not do what it was asked to.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// It was asked for something impossible: exit code 2.
    #[error("{0}")]
    Usage(String),
    /// It did not work: exit code 1.
    #[error("{0}")]
    Failed(String),
}

impl Failure {
    /// A failure with this cause's words.
    pub(crate) fn of(cause: impl Display) -> Self {
        Failure::Failed(cause.to_string())
    }

    /// A failure that says what was being done.
    pub(crate) fn doing(what: impl Display, cause: impl Display) -> Self {
        Failure::Failed(format!("{what}: {cause}"))
    }

    /// The process's exit code.
    pub(crate) fn code(&self) -> ExitCode {
        match self {
            Failure::Usage(_) => ExitCode::from(2),
            Failure::Failed(_) => ExitCode::FAILURE,
        }
    }
}

/// Prints a value as JSON on one line.
pub(crate) fn print_json(value: &impl serde::Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string(value).map_err(Failure::of)?;
    print_line(&text)
}

/// Prints a line; a reader that has gone away is no failure of ours.
pub(crate) fn print_line(text: &str) -> Result<(), Failure> {
    use std::io::Write as _;
    match writeln!(std::io::stdout(), "{text}") {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::doing("cannot write to standard output", error))
        }
        _ => Ok(()),
    }
}
