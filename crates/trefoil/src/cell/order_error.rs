//! Why an order to `cell up` was refused, or came to nothing. Programs tell cases apart by
//! [`Code`], which `--json` shows; people by the text.

use clap::ValueEnum;
use trefoil_cell::Mode;

/// What a program can rely on: a case keeps its code from release to release, whatever its
/// text becomes. docs/operations.md lists them all.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Code {
    Aborted,
    AlreadyAborted,
    AlreadyDrained,
    AlreadyPaused,
    BackendDown,
    BackendRefused,
    BadProgram,
    Busy,
    CannotStart,
    CellChanged,
    CellUpEnded,
    CellUpUnreachable,
    ConfigIdsUsedUp,
    ConfigStore,
    Immutable,
    Internal,
    NewProcessLost,
    NoResize,
    NoRoom,
    NoSpare,
    NoSuchBackend,
    NotDrained,
    NotHere,
    NotMoved,
    NotPaused,
    NotWhole,
    OrdererGone,
    Resizing,
    SameSize,
    SpareLost,
    TooBusy,
    TooFewBackends,
    TooLate,
    TooManyBackends,
    UnknownOrder,
}

impl Code {
    /// As it is written.
    pub(super) fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum OrderError {
    // Of any order.
    #[error("this `cell up` does not know the order: {0}")]
    UnknownOrder(String),
    #[error("other maintenance is under way: wait for its end")]
    Busy,
    #[error(
        "the cell is being resized to {0} backends: wait for the end, or give that up (`trefoil cell resize --abort`)"
    )]
    Resizing(u32),
    #[error("the cell is not whole: {why}; mend that, then give the order again{then}")]
    NotWhole {
        why: String,
        /// What that does.
        then: &'static str,
    },
    #[error("whoever gave the order has gone")]
    OrdererGone,
    #[error(
        "no `cell up` can be reached at {at}: {why}; only the one that started the cell moves its backends"
    )]
    CellUpUnreachable { at: String, why: String },
    #[error(
        "{0} is no cell's directory: backends are moved by the `cell up` of their host, which is found by --cell unix:DIR"
    )]
    NoDirectory(String),
    #[error("`cell up` has ended before it was done")]
    CellUpEnded,

    #[error(
        "the new processes would hold {needed}, and {of} has {left} left: the kernel would end one of the cell's. Free some memory, or lower the cell's limit (`trefoil cell memory`), then give the order again; --without-room begins all the same"
    )]
    NoRoom {
        needed: String,
        left: String,
        /// The host, or a control group.
        of: String,
    },

    // Of backends that move.
    #[error("there is no backend {number}: the cell has 0 to {last}")]
    NoSuchBackend { number: u32, last: u32 },
    #[error(
        "the backends of an immutable cell (R=2) are not moved: stop one, and it is started again from the file while the other serves"
    )]
    ImmutableMove,
    /// What is wrong with it.
    #[error("{0}")]
    BadProgram(String),
    #[error(
        "backend {0} was drained before: its place is empty, and it runs on a spare; undrain it first"
    )]
    DrainedBefore(u32),
    #[error("backend {0} is not drained")]
    NotDrained(u32),
    #[error(
        "no spare stands by: start the cell with --spares 1, or undrain a backend; to move a backend to a new process use `cell restart`"
    )]
    NoSpareToDrain,
    #[error("no spare stands by")]
    NoSpare,
    #[error("the spare cannot be spoken to")]
    SpareDeaf,
    #[error("the spare has gone: {0}")]
    SpareGone(String),
    /// The system's words, or what of the settings it needs.
    #[error("{0}")]
    CannotStart(String),
    #[error("backend {number} did not move, and goes on as before: {why}")]
    NotMoved { number: u32, why: String },
    #[error("backend {0} does not run")]
    NotRunning(u32),
    #[error(
        "the place of backend {number} was given to another process, at {at}, which another command has started: to replace it start another spare, then stop it"
    )]
    PlaceElsewhere { number: u32, at: String },

    #[error(
        "backend {0} is on another host: give the order to the `cell up` there, by --cell unix:DIR"
    )]
    OnOtherHost(u32),

    // Of a resize.
    #[error(
        "a cell whose backends are on several hosts is not resized in this release: start another one with as many as you need, and move its users there"
    )]
    ResizeOfSpread,
    #[error("no resize is under way")]
    NoResize,
    #[error("the resize pauses already")]
    PausesAlready,
    #[error("the resize does not pause")]
    DoesNotPause,
    #[error("the resize is being given up")]
    IsBeingGivenUp,
    #[error("the configuration is changed already: the resize ends in a moment")]
    Committed,
    #[error("it came too late: the cell was resized")]
    CameTooLate,
    #[error(
        "an immutable cell (R=2) is not resized while it serves: stop it, and start it with another --backends and its file"
    )]
    ImmutableResize,
    #[error(
        "{backends} backends: {mode} keeps {copies} copies of each key, each on a backend of its own; choose {copies} or more"
    )]
    TooFew {
        backends: u32,
        mode: Mode,
        copies: u32,
    },
    #[error(
        "{backends} backends: each is a process of this machine; choose {copies} to {backends_max}"
    )]
    TooMany {
        backends: u32,
        copies: u32,
        backends_max: u32,
    },
    #[error("the cell has {0} backends already")]
    SameSize(u32),
    #[error("the process that was to be backend {number} has failed: {why}; the cell is as it was")]
    NewProcessFailed { number: u32, why: String },
    #[error(
        "the process that was to be backend {0} has ended; its message stands in the log of `cell up`; the cell is as it was"
    )]
    NewProcessEnded(u32),
    #[error("the process that was to be backend {0} has gone")]
    NewProcessGone(u32),
    #[error("all new processes have gone")]
    AllNewProcessesGone,
    #[error("it was given up: the cell is as it was")]
    Aborted,
    #[error("the resize was given up")]
    GivenUp,
    #[error(
        "the last step, for which no write is taken, did not succeed within {frozen_ms} ms, {attempts} times: {late}; the machine is too busy, or is written faster than is copied: try again later"
    )]
    TooBusy {
        frozen_ms: u128,
        attempts: u32,
        late: String,
    },
    #[error("the cell was changed by somebody else")]
    ChangedByOthers,
    #[error(
        "the cell's configuration names other backends than those that run here: start it anew"
    )]
    OtherBackends,
    #[error("another process was given the place of backend {0} meanwhile; the cell is as it was")]
    PlaceGiven(u32),
    #[error("backend {0} was started again meanwhile; the cell is as it was")]
    StartedAgain(u32),
    #[error("a backend was started again just now: give the order again")]
    StartedJustNow,
    #[error("a backend's process has ended: {0}")]
    ProcessEnded(String),
    #[error("backend {0} does not run, or nobody knows its process")]
    ProcessUnknown(u32),
    #[error(
        "backend {number} is a process of another command, at {at}: only a cell all of whose backends run under its `cell up` is resized"
    )]
    NotHere { number: u32, at: String },
    /// Its words.
    #[error("{0}")]
    BackendRefused(String),
    #[error("the backends say that they are in epochs that no cell is in")]
    ImpossibleEpochs,
    #[error("the cell's config ids are used up: start it anew")]
    ConfigIdsUsedUp,
    /// Its words.
    #[error("{0}")]
    ConfigStore(String),
    #[error("the cell's configuration is gone")]
    ConfigGone,
    #[error("the resize has failed: {0}")]
    Failed(String),
    /// What should not be.
    #[error("{0}")]
    Internal(String),
}

impl OrderError {
    /// Of a step that should not fail, in the system's words.
    pub(super) fn internal(cause: impl std::fmt::Display) -> Self {
        OrderError::Internal(cause.to_string())
    }

    /// A process that cannot be started.
    pub(super) fn cannot_start(cause: impl std::fmt::Display) -> Self {
        OrderError::CannotStart(cause.to_string())
    }

    /// A configuration store that fails.
    pub(super) fn config_store(cause: impl std::fmt::Display) -> Self {
        OrderError::ConfigStore(cause.to_string())
    }

    /// What programs tell it by.
    pub(super) fn code(&self) -> Code {
        match self {
            OrderError::UnknownOrder(_) => Code::UnknownOrder,
            OrderError::Busy => Code::Busy,
            OrderError::Resizing(_) => Code::Resizing,
            OrderError::NotWhole { .. } => Code::NotWhole,
            OrderError::OrdererGone => Code::OrdererGone,
            OrderError::CellUpUnreachable { .. } | OrderError::NoDirectory(_) => {
                Code::CellUpUnreachable
            }
            OrderError::CellUpEnded => Code::CellUpEnded,
            OrderError::NoSuchBackend { .. } => Code::NoSuchBackend,
            OrderError::ImmutableMove | OrderError::ImmutableResize => Code::Immutable,
            OrderError::BadProgram(_) => Code::BadProgram,
            OrderError::DrainedBefore(_) => Code::AlreadyDrained,
            OrderError::NotDrained(_) => Code::NotDrained,
            OrderError::NoSpareToDrain | OrderError::NoSpare => Code::NoSpare,
            OrderError::SpareDeaf | OrderError::SpareGone(_) => Code::SpareLost,
            OrderError::CannotStart(_) => Code::CannotStart,
            OrderError::NotMoved { .. } => Code::NotMoved,
            OrderError::NotRunning(_)
            | OrderError::ProcessUnknown(_)
            | OrderError::ProcessEnded(_) => Code::BackendDown,
            OrderError::NoResize => Code::NoResize,
            OrderError::NoRoom { .. } => Code::NoRoom,
            OrderError::PausesAlready => Code::AlreadyPaused,
            OrderError::DoesNotPause => Code::NotPaused,
            OrderError::IsBeingGivenUp => Code::AlreadyAborted,
            OrderError::Committed | OrderError::CameTooLate => Code::TooLate,
            OrderError::TooFew { .. } => Code::TooFewBackends,
            OrderError::TooMany { .. } => Code::TooManyBackends,
            OrderError::SameSize(_) => Code::SameSize,
            OrderError::NewProcessFailed { .. }
            | OrderError::NewProcessEnded(_)
            | OrderError::NewProcessGone(_)
            | OrderError::AllNewProcessesGone => Code::NewProcessLost,
            OrderError::Aborted | OrderError::GivenUp => Code::Aborted,
            OrderError::TooBusy { .. } => Code::TooBusy,
            OrderError::ChangedByOthers
            | OrderError::OtherBackends
            | OrderError::PlaceGiven(_)
            | OrderError::StartedAgain(_)
            | OrderError::StartedJustNow => Code::CellChanged,
            OrderError::NotHere { .. }
            | OrderError::PlaceElsewhere { .. }
            | OrderError::OnOtherHost(_)
            | OrderError::ResizeOfSpread => Code::NotHere,
            OrderError::BackendRefused(_) | OrderError::ImpossibleEpochs => Code::BackendRefused,
            OrderError::ConfigIdsUsedUp => Code::ConfigIdsUsedUp,
            OrderError::ConfigStore(_) | OrderError::ConfigGone => Code::ConfigStore,
            OrderError::Failed(_) | OrderError::Internal(_) => Code::Internal,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The docs' table of codes.
    fn documented() -> Vec<String> {
        let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operations.md");
        let docs = std::fs::read_to_string(docs).unwrap();
        let (_, section) = docs.split_once("\n### Codes of refusals\n").unwrap();
        let rows = section.lines().skip_while(|line| !line.starts_with("|---"));
        let rows = rows.skip(1).take_while(|line| line.starts_with('|'));
        let code = |row: &str| row.split('`').nth(1).unwrap().to_owned();
        rows.map(code).collect()
    }

    #[test]
    fn the_docs_list_every_code() {
        let all: Vec<String> = Code::value_variants().iter().map(|c| c.name()).collect();
        assert_eq!(documented(), all);
    }

    #[test]
    fn codes_are_what_programs_have_relied_on() {
        let busy = OrderError::Busy;
        assert_eq!(busy.code().name(), "busy");
        let few = OrderError::TooFew {
            backends: 2,
            mode: Mode::R32,
            copies: 3,
        };
        assert_eq!(few.code().name(), "too-few-backends");
        assert_eq!(
            few.to_string(),
            "2 backends: R=3.2 keeps 3 copies of each key, each on a backend of its own; choose 3 or more"
        );
        assert_eq!(OrderError::NoSpareToDrain.code().name(), "no-spare");
        assert_eq!(OrderError::CameTooLate.code().name(), "too-late");
    }
}
