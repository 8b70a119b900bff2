//! Events as messages of the contract, and back.

use crate::event::{Event, Gap, GapReasonError, Progress, Scope};
use crate::generated::v1;
use crate::position::{History, Place};
use std::time::Instant;

/// A message that says nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// A part is missing.
    #[error("the relay sent an event without its {0}: is it of a later version?")]
    Missing(&'static str),
    /// A gap has an unknown reason.
    #[error(transparent)]
    Reason(#[from] GapReasonError),
}

pub(crate) fn place_out(place: &Place) -> v1::Place {
    v1::Place {
        history: place.history.0.clone(),
        position: place.position,
    }
}

pub(crate) fn place_in(place: v1::Place) -> Place {
    Place {
        history: History(place.history),
        position: place.position,
    }
}

/// `echo` says which ping a progress answers.
pub(crate) fn event_out(event: &Event, echo: impl FnOnce(Instant) -> u64) -> v1::Event {
    use v1::event::Kind;
    let kind = match event {
        Event::Begun(place) => Kind::Begun(v1::Begun {
            place: Some(place_out(place)),
        }),
        Event::Invalidate { key, position } => Kind::Invalidate(v1::Invalidate {
            key: key.clone(),
            position: *position,
        }),
        Event::Refresh {
            key,
            value,
            position,
        } => Kind::Refresh(v1::Refresh {
            key: key.clone(),
            value: value.clone(),
            position: *position,
        }),
        Event::Gap(gap) => Kind::Gap(v1::Gap {
            from: gap.from,
            to: Some(place_out(&gap.to)),
            reason: gap.reason.to_string(),
            tables: gap.tables.clone(),
            prefixes: match &gap.scope {
                Scope::All => Vec::new(),
                Scope::Prefixes(prefixes) => prefixes.clone(),
            },
            everything: gap.scope == Scope::All,
        }),
        Event::Progress(progress) => Kind::Progress(v1::Progress {
            position: progress.position,
            echo: progress.as_of.map_or(0, echo),
        }),
    };
    v1::Event { kind: Some(kind) }
}

/// `pinged` says when a ping was sent.
pub(crate) fn event_in(
    event: v1::Event,
    pinged: impl FnOnce(u64) -> Option<Instant>,
) -> Result<Event, WireError> {
    use v1::event::Kind;
    Ok(match event.kind.ok_or(WireError::Missing("kind"))? {
        Kind::Begun(begun) => {
            Event::Begun(place_in(begun.place.ok_or(WireError::Missing("place"))?))
        }
        Kind::Invalidate(v1::Invalidate { key, position }) => Event::Invalidate { key, position },
        Kind::Refresh(v1::Refresh {
            key,
            value,
            position,
        }) => Event::Refresh {
            key,
            value,
            position,
        },
        Kind::Gap(gap) => Event::Gap(Gap {
            from: gap.from,
            to: place_in(gap.to.ok_or(WireError::Missing("end of a gap"))?),
            reason: gap.reason.parse()?,
            tables: gap.tables,
            scope: match gap.everything {
                true => Scope::All,
                false => Scope::Prefixes(gap.prefixes),
            },
        }),
        Kind::Progress(progress) => Event::Progress(Progress {
            position: progress.position,
            as_of: match progress.echo {
                0 => None,
                echo => pinged(echo),
            },
        }),
    })
}
