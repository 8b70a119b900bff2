//! Histories as text: for cases that are read by people, and for the part of a
//! history that a violation is shown with.
//!
//! ```text
//! case a GET that is behind
//! 0..10  1.1 set k1 -> stored @5
//! 12..14 1.2 set k1 -> stored @7
//! 20..22 2.1 get k1 -> hit 1.1 @5
//! expect fresh
//! ```
//!
//! `1.2` is the second operation of client 1, and the mark of what it writes;
//! `@5` is a version; `12..` never ended. A CAS names what it replaces (`cas k1
//! over 1.1 @5`, or `over nothing`), a fill the time of its miss (`fill k1
//! missed 3..4`), an increment its result (`-> stored 1.1+3`). A value has the
//! length 100 unless it says `len 7`. Times are nanoseconds.

use crate::event::{Event, Kind, Mark, NEVER, Outcome};
use std::fmt::Write as _;
use trefoil_layout::Version;

const LEN_DEFAULT: u32 = 100;

/// A line that is no event.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct TextError {
    /// Counted from 1.
    pub line: usize,
    /// What is wrong.
    pub what: String,
}

/// Reads the events of one case.
pub fn parse_case(text: &str) -> Result<Vec<Event>, TextError> {
    let mut events = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let event = parse_event(line).ok_or_else(|| TextError {
            line: at + 1,
            what: format!("not an event: {line}"),
        })?;
        events.push(event);
    }
    Ok(events)
}

fn parse_event(line: &str) -> Option<Event> {
    let mut words = line.split_whitespace();
    let (begin_ns, end_ns) = parse_times(words.next()?)?;
    let own = parse_mark(words.next()?)?;
    let kind_name = words.next()?;
    let kind = Kind::ALL
        .into_iter()
        .find(|kind| kind.name() == kind_name)?;
    let key = match kind.is_of_all() {
        true => 0,
        false => words.next()?.strip_prefix('k')?.parse().ok()?,
    };
    let mut event = Event {
        end_ns,
        mark: match kind {
            Kind::Set | Kind::Fill | Kind::Cas => own,
            _ => Mark::NONE,
        },
        len: if kind == Kind::Erase || kind.is_of_all() {
            0
        } else {
            LEN_DEFAULT
        },
        ..Event::begun(own.writer, own.sequence, key, kind, begin_ns)
    };
    let mut is_answer = false;
    while let Some(word) = words.next() {
        match word {
            "->" => {
                is_answer = true;
                let name = words.next()?;
                event.outcome = Outcome::ALL.into_iter().find(|o| o.name() == name)?;
            }
            "over" => {
                event.expected = match words.next()? {
                    "nothing" => Mark::NONE,
                    mark => parse_mark(mark)?,
                }
            }
            "missed" => (event.miss_begin_ns, event.miss_end_ns) = parse_times(words.next()?)?,
            "len" => event.len = words.next()?.parse().ok()?,
            word => match word.strip_prefix('@') {
                Some(version) if is_answer => event.version = parse_version(version)?,
                Some(version) => event.expected_version = parse_version(version)?,
                None => event.mark = parse_mark(word)?,
            },
        }
    }
    (is_answer || end_ns == NEVER).then_some(event)
}

fn parse_times(word: &str) -> Option<(u64, u64)> {
    let (begin, end) = word.split_once("..")?;
    let end_ns = match end {
        "" => NEVER,
        end => end.parse().ok()?,
    };
    Some((begin.parse().ok()?, end_ns))
}

fn parse_mark(word: &str) -> Option<Mark> {
    let (writer, rest) = word.split_once('.')?;
    let (sequence, count) = match rest.split_once('+') {
        Some((sequence, count)) => (sequence, count.parse().ok()?),
        None => (rest, 0),
    };
    Some(Mark {
        writer: writer.parse().ok()?,
        sequence: sequence.parse().ok()?,
        count,
    })
}

fn parse_version(word: &str) -> Option<Version> {
    Some(Version::new(word.parse().ok()?, 0, 0))
}

/// An event as a line; times count from `origin_ns`.
pub fn show_event(event: &Event, origin_ns: u64) -> String {
    let time = |ns: u64| match ns {
        NEVER => String::new(),
        ns => ns.saturating_sub(origin_ns).to_string(),
    };
    let mut line = format!(
        "{}..{} {}.{} {}",
        time(event.begin_ns),
        time(event.end_ns),
        event.client,
        event.number,
        event.kind.name()
    );
    if !event.kind.is_of_all() {
        let _ = write!(line, " k{}", event.key);
    }
    match event.kind {
        Kind::Cas => {
            let _ = match event.expected {
                Mark::NONE => write!(line, " over nothing"),
                mark => write!(line, " over {}", show_mark(mark)),
            };
            if !event.expected_version.is_zero() {
                let _ = write!(line, " @{}", event.expected_version);
            }
        }
        Kind::Fill => {
            let (begin, end) = (time(event.miss_begin_ns), time(event.miss_end_ns));
            let _ = write!(line, " missed {begin}..{end}");
        }
        _ => {}
    }
    if event.mark != Mark::NONE && event.is_write() && event.len != LEN_DEFAULT {
        let _ = write!(line, " len {}", event.len);
    }
    let _ = write!(line, " -> {}", event.outcome.name());
    if event.mark != Mark::NONE && !event.is_write() {
        let _ = write!(line, " {}", show_mark(event.mark));
    }
    if !event.version.is_zero() {
        let _ = write!(line, " @{}", event.version);
    }
    line
}

fn show_mark(mark: Mark) -> String {
    match mark.count {
        0 => format!("{}.{}", mark.writer, mark.sequence),
        count => format!("{}.{}+{count}", mark.writer, mark.sequence),
    }
}
