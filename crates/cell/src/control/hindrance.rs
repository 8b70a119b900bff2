//! Why a dead backend is not replaced.

use super::view::Health;
use crate::mode::Mode;

/// Why a backend that is due is not replaced, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Hindrance {
    /// Nobody stands by.
    #[error(
        "backend {backend} is dead and no spare can take its place{}: start one with `trefoil cell spare`",
        unusable_text(unusable)
    )]
    NoSpare {
        /// Which.
        backend: u32,
        /// Those that stand by, and why none of them can.
        unusable: Vec<Unusable>,
    },
    /// The store says that it is gone, and it lives.
    #[error(
        "backend {backend} answers, but is not registered in the store: see in its log why it cannot reach it"
    )]
    Answers {
        /// Which.
        backend: u32,
    },
    /// Another copy of its keys is away, or not whole.
    #[error(
        "backend {backend} is dead, and backend {mate}, which holds copies of its keys, {}: nothing is replaced before that has changed",
        health_text(*health)
    )]
    Mate {
        /// Which.
        backend: u32,
        /// The other.
        mate: u32,
        /// What is the matter with that one.
        health: Health,
    },
    /// A backend of its cohort would not follow.
    #[error(
        "backend {backend} is dead, and backend {mate} is of a release that cannot follow when a place changes hands: upgrade it (`trefoil cell upgrade`)"
    )]
    OlderRelease {
        /// Which.
        backend: u32,
        /// The other.
        mate: u32,
    },
    /// One at a time.
    #[error(
        "backend {backend} is dead; it is replaced when backend {other}, which was replaced last, has recovered"
    )]
    UnderWay {
        /// Which.
        backend: u32,
        /// The one that was replaced last.
        other: u32,
    },
    /// It has the only copy.
    #[error(
        "backend {backend} is dead, and with it what it held is lost: a spare takes its place, empty, only if the controller runs with --replace-lost"
    )]
    WouldLose {
        /// Which.
        backend: u32,
    },
    /// Its data comes from a file.
    #[error(
        "backend {backend} is dead; backends of an immutable cell ({mode}) are not replaced by spares: start it again with its file"
    )]
    Immutable {
        /// Which.
        backend: u32,
        /// The cell's.
        mode: Mode,
    },
    /// Every change takes one.
    #[error(
        "backend {backend} is dead, and the cell's config ids are used up: start the cell anew"
    )]
    NoConfigId {
        /// Which.
        backend: u32,
    },
}

impl Hindrance {
    /// A word for metrics and scripts.
    pub fn kind(&self) -> &'static str {
        match self {
            Hindrance::NoSpare { .. } => "no_spare",
            Hindrance::Answers { .. } => "answers",
            Hindrance::Mate { .. } => "cohort",
            Hindrance::OlderRelease { .. } => "older_release",
            Hindrance::UnderWay { .. } => "under_way",
            Hindrance::WouldLose { .. } => "would_lose",
            Hindrance::Immutable { .. } => "immutable",
            Hindrance::NoConfigId { .. } => "no_config_id",
        }
    }

    /// All of them.
    pub const KINDS: [&'static str; 8] = [
        "no_spare",
        "answers",
        "cohort",
        "older_release",
        "under_way",
        "would_lose",
        "immutable",
        "no_config_id",
    ];

    /// The backend that is not replaced.
    pub fn backend(&self) -> u32 {
        match self {
            Hindrance::NoSpare { backend, .. }
            | Hindrance::Answers { backend }
            | Hindrance::Mate { backend, .. }
            | Hindrance::OlderRelease { backend, .. }
            | Hindrance::UnderWay { backend, .. }
            | Hindrance::WouldLose { backend }
            | Hindrance::Immutable { backend, .. }
            | Hindrance::NoConfigId { backend } => *backend,
        }
    }
}

/// Why a process that stands by can take no place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// It could not read what the others hold.
    #[error(
        "spare {process} on {host} is of layout {layout}, the cell's backends of layout {cell}: run the same release"
    )]
    Layout {
        /// Its process.
        process: u32,
        /// Its host.
        host: String,
        /// Its layout.
        layout: u16,
        /// Theirs.
        cell: u16,
    },
    /// It is of a cell on one host and this is one on several, or the other way round.
    #[error(
        "spare {process} on {host} is not of this cell's kind: with --listen for a cell on several hosts, without for one on one host"
    )]
    Kind {
        /// Its process.
        process: u32,
        /// Its host.
        host: String,
    },
    /// Its sockets lead nowhere from where the others are.
    #[error(
        "spare {process} is on {host}, and the cell's backends are reached by Unix sockets of another host"
    )]
    Host {
        /// Its process.
        process: u32,
        /// Its host.
        host: String,
    },
}

fn unusable_text(all: &[Unusable]) -> String {
    let texts: Vec<String> = all.iter().map(Unusable::to_string).collect();
    match texts.is_empty() {
        true => String::new(),
        false => format!(" ({})", texts.join("; ")),
    }
}

fn health_text(health: Health) -> &'static str {
    match health {
        Health::Votes => "votes",
        Health::Recovers => "is recovering",
        Health::Silent => "does not answer",
    }
}
