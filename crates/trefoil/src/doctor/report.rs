//! What the doctor says. Fields of `--json` are only added, never changed or removed;
//! docs/operations.md names them.

use super::census::{Answered, Census};
use super::engines::Engine;
use super::finding::Finding;
use super::keys::Looked;
use crate::failure::{Failure, print_line};
use bytesize::ByteSize;
use serde::Serialize;
use trefoil_recovery::examine::{Copy, Example, Verdict};

/// Bytes of a key that are shown.
const KEY_LEN_MAX: usize = 64;

#[derive(Serialize)]
pub(super) struct Report {
    pub(super) cell: String,
    pub(super) mode: String,
    pub(super) life: String,
    pub(super) config_id: u32,
    /// No findings, and all was looked at that was to be.
    pub(super) clean: bool,
    /// Share of the keys that was to be looked at, and share of that which was.
    pub(super) sample: f64,
    pub(super) done: f64,
    pub(super) values_read: bool,
    pub(super) took_ms: u64,
    pub(super) bytes_read: u64,
    pub(super) keys: Keys,
    pub(super) findings: Vec<Finding>,
    pub(super) examples: Vec<Shown>,
    pub(super) backends: Vec<Backend>,
    /// That read backends for clients on other hosts.
    pub(super) engines: Vec<Engine>,
}

#[derive(Serialize)]
pub(super) struct Keys {
    clean: u64,
    dirty: u64,
    inquorate: u64,
    corrupt: u64,
    short: u64,
    unsettled: u64,
}

/// A key with a finding.
#[derive(Serialize)]
pub(super) struct Shown {
    /// "dirty", "inquorate" or "corrupt".
    state: &'static str,
    /// Its beginning, escaped; absent if it could not be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key_len: Option<usize>,
    /// 32 hexadecimal digits.
    hash: String,
    shard: u32,
    copies: Vec<ShownCopy>,
}

#[derive(Serialize)]
struct ShownCopy {
    backend: u32,
    /// "present", "absent", "corrupt" or "unread".
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<String>,
}

#[derive(Serialize, Default)]
pub(super) struct Backend {
    number: u32,
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    pid: Option<u32>,
    #[serde(flatten)]
    said: Option<Said>,
}

/// What one that answers says.
#[derive(Serialize)]
struct Said {
    release: String,
    layout_version: u32,
    host: String,
    incarnation: String,
    config_id: u32,
    /// Ahead of this host's clock, give or take the other; null if it does not say.
    clock_ahead_ms: Option<f64>,
    clock_error_ms: Option<f64>,
    lease_left_ms: u64,
    lease_ms: u64,
    items: u64,
    resident_bytes: u64,
    memory_limit_bytes: u64,
    carrier: &'static str,
    metrics: String,
}

impl Keys {
    pub(super) fn of(looked: &Looked) -> Self {
        Keys {
            clean: looked.clean,
            dirty: looked.dirty.values().sum(),
            inquorate: looked.inquorate,
            corrupt: looked.corrupt,
            short: looked.short,
            unsettled: looked.unsettled,
        }
    }
}

impl Shown {
    pub(super) fn of((shard, numbers, example): &(u32, Vec<u32>, Example)) -> Self {
        let key = example.key.as_deref();
        let copies = numbers.iter().zip(&example.copies);
        Shown {
            state: match example.verdict {
                Verdict::Dirty { .. } => "dirty",
                Verdict::Inquorate => "inquorate",
                Verdict::Corrupt => "corrupt",
                Verdict::Clean | Verdict::Nothing | Verdict::Short => "clean",
            },
            key: key.map(escaped),
            key_len: key.map(<[u8]>::len),
            hash: format!("{:016x}{:016x}", example.hash.place, example.hash.tag),
            shard: *shard,
            copies: copies
                .map(|(number, copy)| shown_copy(*number, *copy))
                .collect(),
        }
    }
}

/// The beginning of a key, printable.
fn escaped(key: &[u8]) -> String {
    let begin = &key[..key.len().min(KEY_LEN_MAX)];
    begin.escape_ascii().to_string()
}

fn shown_copy(backend: u32, copy: Copy) -> ShownCopy {
    ShownCopy {
        backend,
        state: match copy {
            Copy::Unread => "unread",
            Copy::Absent => "absent",
            Copy::Present { .. } => "present",
            Copy::Corrupt { .. } => "corrupt",
        },
        version: copy.version().map(|version| version.to_string()),
    }
}

pub(super) fn backends(census: &Census) -> Vec<Backend> {
    let backend = |backend: &super::census::Backend| {
        let known = Backend {
            number: backend.number,
            state: backend.state,
            pid: backend.pid,
            ..Backend::default()
        };
        match &backend.answer {
            Ok(answered) => Backend {
                said: Some(said(answered)),
                ..known
            },
            Err(trouble) => Backend {
                error: Some(trouble.why.clone()),
                ..known
            },
        }
    };
    census.backends.iter().map(backend).collect()
}

fn said(answered: &Answered) -> Said {
    let ms = |ns: i128| (ns as f64 / 1e3).round() / 1e3;
    let (member, process) = (&answered.member, &answered.process);
    Said {
        release: answered.release.clone(),
        layout_version: answered.layout_version,
        host: answered.boot_id.clone(),
        incarnation: format!("{:016x}", answered.incarnation),
        config_id: answered.served_config_id,
        clock_ahead_ms: answered.clock_ns.map(|(ahead, _)| ms(ahead)),
        clock_error_ms: answered.clock_ns.map(|(_, error)| ms(error)),
        lease_left_ms: member.lease_left_ms,
        lease_ms: member.lease_ms,
        items: member.items,
        resident_bytes: process.resident_bytes,
        memory_limit_bytes: process.memory_limit_bytes,
        carrier: answered.carrier,
        metrics: answered.metrics_address.clone(),
    }
}

/// All of it, for people.
pub(super) fn print(report: &Report) -> Result<(), Failure> {
    for line in text(report) {
        print_line(&line)?;
    }
    Ok(())
}

fn text(report: &Report) -> Vec<String> {
    let seconds = report.took_ms as f64 / 1e3;
    let read = ByteSize::b(report.bytes_read);
    let mut lines = vec![format!(
        "cell {}  {}  config id {}  looked at in {seconds:.1} s, {read} read",
        report.cell, report.mode, report.config_id
    )];
    let up = report.backends.iter().filter(|b| b.state == "up").count();
    lines.push(format!("backends {up} of {} up", report.backends.len()));
    lines.extend(report.engines.iter().map(Engine::line));
    let keys = &report.keys;
    let mut line = format!(
        "keys     {} clean, {} dirty, {} inquorate, {} corrupt",
        keys.clean, keys.dirty, keys.inquorate, keys.corrupt
    );
    if keys.short > 0 {
        line += &format!(", {} not read from every replica", keys.short);
    }
    if keys.unsettled > 0 {
        line += &format!(", {} changed all the time", keys.unsettled);
    }
    if report.sample < 1.0 {
        line += &format!("; a sample of {} %", 100.0 * report.sample);
    }
    if !report.values_read {
        line += "; versions only";
    }
    lines.push(line);
    for finding in &report.findings {
        lines.push(String::new());
        lines.push(format!("{}: {}", finding.kind, finding.what));
        lines.push(format!("    {}.", finding.advice));
    }
    if !report.examples.is_empty() {
        lines.push(String::new());
        lines.push("for example".to_owned());
        lines.extend(report.examples.iter().map(example_line));
    }
    if report.clean {
        lines.push("all clean".to_owned());
    }
    lines
}

fn example_line(shown: &Shown) -> String {
    let mut key = match &shown.key {
        Some(key) => format!("\"{key}\""),
        None => format!("hash {}", shown.hash),
    };
    if let Some(len) = shown.key_len.filter(|len| *len > KEY_LEN_MAX) {
        key += &format!("… ({len} bytes)");
    }
    let copy = |copy: &ShownCopy| {
        let (number, state) = (copy.backend, copy.state);
        match &copy.version {
            Some(version) => format!("backend {number} {state} {version}"),
            None => format!("backend {number} {state}"),
        }
    };
    let copies: Vec<String> = shown.copies.iter().map(copy).collect();
    format!("    {}  {key}: {}", shown.state, copies.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use trefoil_layout::{KeyHash, Version};
    use trefoil_recovery::examine::Odd;

    #[test]
    fn keys_are_printable_and_cut_off() {
        assert_eq!(escaped(b"plain"), "plain");
        assert_eq!(escaped(b"\x1b[31m\n\"\xff"), "\\x1b[31m\\n\\\"\\xff");
        assert_eq!(escaped(&[b'k'; 1000]).len(), KEY_LEN_MAX);
    }

    #[test]
    fn an_example_says_who_holds_what() {
        let example = Example {
            verdict: Verdict::Dirty {
                replica: 2,
                how: Odd::Lacks,
            },
            hash: KeyHash { place: 1, tag: 2 },
            key: Some((*b"a key").into()),
            copies: vec![
                Copy::Present {
                    version: Version::new(1, 0, 0),
                    digest: None,
                },
                Copy::Unread,
                Copy::Absent,
            ],
        };
        let shown = Shown::of(&(0, vec![4, 5, 0], example));
        assert_eq!(
            example_line(&shown),
            "    dirty  \"a key\": backend 4 present 00000000000000010000000000000000, \
             backend 5 unread, backend 0 absent"
        );
    }
}
