//! The side of a process that is to be a backend of a cell of another size: it is told
//! what to do on its standard input, and says how far it has come on its output, in lines
//! of JSON.

use crate::failure::{Failure, Outcome};
use serde::{Deserialize, Serialize};
use std::io::{BufRead as _, Write as _};
use std::process::ExitCode;
use tokio::sync::mpsc;
use trefoil_backend::{Gather, GatherEvent, GatherOrder, Gathered, ListenOptions, ServerOptions};
use trefoil_cell::{BackendLock, CellConfig, ConfigStoreError};

/// The first line: what it is to be.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::cell) struct Join {
    /// What the resize is called.
    pub(super) resize: u64,
    /// The cell as it is.
    pub(super) old: CellConfig,
    /// As it is to be; it may have another config id then.
    pub(super) new: CellConfig,
}

/// A further line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "word")]
pub(super) enum Word {
    Copy,
    Pause,
    Continue,
    Near { attempt: u32 },
    Last { attempt: u32, epoch: u32 },
    Again,
    Begin,
}

impl From<Word> for GatherOrder {
    fn from(word: Word) -> Self {
        match word {
            Word::Copy => GatherOrder::Copy,
            Word::Pause => GatherOrder::Pause,
            Word::Continue => GatherOrder::Continue,
            Word::Near { attempt } => GatherOrder::Near { attempt },
            Word::Last { attempt, epoch } => GatherOrder::Last { attempt, epoch },
            Word::Again => GatherOrder::Again,
            Word::Begin => GatherOrder::Begin,
        }
    }
}

/// What it says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "said")]
pub(super) enum Said {
    Progress(Progress),
    /// Of an attempt; 0: the first copy is made.
    Near {
        attempt: u32,
        progress: Progress,
    },
    Done {
        attempt: u32,
        progress: Progress,
    },
    Serves,
    Failed {
        why: String,
    },
}

impl From<GatherEvent> for Said {
    fn from(event: GatherEvent) -> Self {
        match event {
            GatherEvent::Progress(gathered) => Said::Progress(gathered.into()),
            GatherEvent::Near { attempt, gathered } => Said::Near {
                attempt,
                progress: gathered.into(),
            },
            GatherEvent::Done { attempt, gathered } => Said::Done {
                attempt,
                progress: gathered.into(),
            },
        }
    }
}

/// How far it has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Progress {
    /// Of the first walk, in thousandths.
    pub(super) permille: u64,
    pub(super) items: u64,
    pub(super) bytes: u64,
}

impl From<Gathered> for Progress {
    fn from(gathered: Gathered) -> Self {
        Progress {
            permille: gathered.permille,
            items: gathered.items,
            bytes: gathered.bytes,
        }
    }
}

/// Reads the first line.
pub(in crate::cell) fn await_join() -> Result<Option<Join>, Failure> {
    let mut line = String::new();
    let read = std::io::stdin().lock().read_line(&mut line);
    read.map_err(|e| Failure::doing("cannot read what to be from standard input", e))?;
    if line.trim().is_empty() {
        return Ok(None);
    }
    let join = serde_json::from_str(&line);
    join.map(Some)
        .map_err(|e| Failure::doing("cannot understand what to be", e))
}

/// Copies, and serves once it is told to begin.
pub(in crate::cell) fn run(
    options: ServerOptions,
    listen: &ListenOptions,
    join: Join,
    place: (
        impl Fn() -> Result<BackendLock, ConfigStoreError>,
        impl Fn() -> Result<u32, ConfigStoreError>,
    ),
) -> Outcome {
    let (orders_to, orders) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        // Its end gives up, by the end of the channel.
        for line in std::io::stdin().lock().lines() {
            let Ok(line) = line else { return };
            let Ok(word) = serde_json::from_str::<Word>(&line) else {
                return;
            };
            if orders_to.send(word.into()).is_err() {
                return;
            }
        }
    });
    let (events, mut events_from) = mpsc::unbounded_channel::<GatherEvent>();
    let teller = std::thread::spawn(move || {
        while let Some(event) = events_from.blocking_recv() {
            say(&event.into());
        }
    });
    let gather = Gather {
        old: join.old,
        new: join.new,
        resize: join.resize,
        orders,
        events,
    };
    let serves = serde_json::to_string(&Said::Serves).map_err(Failure::of)?;
    let outcome = crate::serve::gather(options, listen, gather, place, &serves);
    let _ = teller.join();
    if let Err(failure) = &outcome {
        say(&Said::Failed {
            why: failure.to_string(),
        });
        return Ok(ExitCode::FAILURE);
    }
    outcome
}

/// Nobody may listen any more.
fn say(said: &Said) {
    let Ok(mut line) = serde_json::to_string(said) else {
        return;
    };
    line.push('\n');
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(line.as_bytes()).and_then(|()| out.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_they_are_written() {
        let last = Word::Last {
            attempt: 2,
            epoch: 7,
        };
        for word in [Word::Copy, Word::Near { attempt: 2 }, last, Word::Begin] {
            let line = serde_json::to_string(&word).unwrap();
            assert_eq!(serde_json::from_str::<Word>(&line).unwrap(), word, "{line}");
        }
        let progress = Progress {
            permille: 5,
            items: 6,
            bytes: 7,
        };
        for said in [
            Said::Near {
                attempt: 0,
                progress,
            },
            Said::Serves,
            Said::Failed {
                why: "none".to_owned(),
            },
        ] {
            let line = serde_json::to_string(&said).unwrap();
            assert_eq!(serde_json::from_str::<Said>(&line).unwrap(), said, "{line}");
        }
        assert!(serde_json::from_str::<Word>("{\"word\":\"dance\"}").is_err());
    }
}
