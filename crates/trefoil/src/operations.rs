//! `get`, `set`, `erase`, `cas`: one operation each.

use crate::args::{CasArgs, EraseArgs, GetArgs, SetArgs};
use crate::connect::client;
use crate::failure::{Failure, Outcome, print_json};
use bytesize::ByteSize;
use serde::Serialize;
use std::io::{IsTerminal as _, Read as _, Write as _};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;
use trefoil_client::{Client, Lookup, Mutated, OpError, Options, SetOptions, Version};
use trefoil_layout::op::{Expected, Rejection};

/// How long one operation may take. Nobody repeats a command as a program repeats a call,
/// and on a busy machine 16 MiB for three replicas take more than a program's second.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a command waits for the copy that its answer did not wait for.
const FINISH_PATIENCE: Duration = Duration::from_secs(2);

/// What `--json` prints.
#[derive(Serialize)]
struct Report {
    outcome: &'static str,
    version: Option<String>,
    reason: Option<String>,
}

fn patient() -> Options {
    Options {
        deadline: PATIENCE,
        ..Options::default()
    }
}

fn text(version: Version) -> Option<String> {
    Some(version.to_string())
}

pub(crate) fn get(args: GetArgs) -> Outcome {
    let options = Options {
        engine: args.by.engine,
        engine_datagrams: args.by.engine_udp,
        engine_messages: args.by.engine_messages.is_on(),
        strategy: args.by.strategy,
        ..patient()
    };
    let mut client = client(&args.address, options)?;
    match client.get(args.key.as_bytes()) {
        Err(error) => refused(&error, error.to_string(), args.json),
        Ok(found) => tell(found, args.json),
    }
}

fn tell(found: Lookup<'_>, json: bool) -> Outcome {
    match found {
        Lookup::Hit(hit) if json => {
            print_json(&Report {
                outcome: "hit",
                version: text(hit.version),
                reason: None,
            })?;
            Ok(ExitCode::SUCCESS)
        }
        Lookup::Hit(hit) => {
            write_value(hit.value)?;
            Ok(ExitCode::SUCCESS)
        }
        Lookup::Miss(miss) => {
            let reason = miss.reason.to_string();
            if json {
                print_json(&Report {
                    outcome: "miss",
                    version: None,
                    reason: Some(reason.clone()),
                })?;
            }
            eprintln!("trefoil: miss: {reason}");
            Ok(ExitCode::FAILURE)
        }
    }
}

pub(crate) fn set(args: SetArgs) -> Outcome {
    let value = match (&args.value, &args.file) {
        (Some(value), None) => value.clone().into_bytes(),
        (None, Some(path)) => read_value(path)?,
        _ => return Err(Failure::Usage("give either VALUE or --file".into())),
    };
    let mut client = client(&args.address, patient())?;
    let options = SetOptions {
        ttl: args.ttl,
        ..SetOptions::default()
    };
    let result = client.set_by(args.key.as_bytes(), &value, options, args.commit.into());
    client.finish(FINISH_PATIENCE);
    report(result, &Attempt::to_store(&client, value.len()), args.json)
}

pub(crate) fn erase(args: EraseArgs) -> Outcome {
    let mut client = client(&args.address, patient())?;
    let result = client.erase_by(args.key.as_bytes(), args.commit.into());
    client.finish(FINISH_PATIENCE);
    let attempt = Attempt {
        done: "erased",
        ..Attempt::to_store(&client, 0)
    };
    report(result, &attempt, args.json)
}

pub(crate) fn cas(args: CasArgs) -> Outcome {
    let mut client = client(&args.address, patient())?;
    let options = SetOptions {
        ttl: args.ttl,
        ..SetOptions::default()
    };
    let expected = Expected::Version(args.version);
    let result = client.cas(
        args.key.as_bytes(),
        expected,
        args.value.as_bytes(),
        options,
    );
    client.finish(FINISH_PATIENCE);
    let attempt = Attempt::to_store(&client, args.value.len());
    report(result, &attempt, args.json)
}

/// What was attempted.
struct Attempt {
    /// What it is called when it has succeeded.
    done: &'static str,
    value_len: usize,
    /// Longest value that the cell takes.
    value_len_max: u64,
}

impl Attempt {
    fn to_store(client: &Client, value_len: usize) -> Self {
        Attempt {
            done: "stored",
            value_len,
            value_len_max: client.config().value_len_max,
        }
    }
}

/// An operation that has no result.
fn refused(error: &OpError, reason: String, json: bool) -> Outcome {
    if json {
        let outcome = match error {
            OpError::Rejected(_) => "rejected",
            _ => "failed",
        };
        print_json(&Report {
            outcome,
            version: None,
            reason: Some(reason.clone()),
        })?;
    }
    Err(Failure::Failed(reason))
}

fn report(result: Result<Mutated, OpError>, attempt: &Attempt, json: bool) -> Outcome {
    let (report, code) = match result {
        Ok(Mutated::Stored { version }) => {
            let report = Report {
                outcome: attempt.done,
                version: text(version),
                reason: None,
            };
            (report, ExitCode::SUCCESS)
        }
        Ok(Mutated::Committed) => {
            let report = Report {
                outcome: "committed",
                version: None,
                reason: None,
            };
            (report, ExitCode::SUCCESS)
        }
        Ok(Mutated::Superseded { bound }) => {
            let reason = Some("something newer is there".into());
            (
                Report {
                    outcome: "superseded",
                    version: text(bound),
                    reason,
                },
                ExitCode::FAILURE,
            )
        }
        Ok(Mutated::Exists { present }) => {
            let reason = match present {
                Some(version) => format!("another version is there, {version}"),
                None => "the key has no value, or none that a quorum agrees on; \
                         `trefoil set` stores one whatever is there"
                    .to_owned(),
            };
            let version = present.and_then(text);
            (
                Report {
                    outcome: match present {
                        Some(_) => "exists",
                        None => "missing",
                    },
                    version,
                    reason: Some(reason),
                },
                ExitCode::FAILURE,
            )
        }
        Err(OpError::Indeterminate(why)) => {
            let reason = Some(format!("the outcome is unknown: {why}"));
            (
                Report {
                    outcome: "indeterminate",
                    version: None,
                    reason,
                },
                ExitCode::FAILURE,
            )
        }
        Err(error @ OpError::Rejected(Rejection::ValueTooLong)) => {
            let (len, len_max) = (attempt.value_len, attempt.value_len_max);
            let reason = format!(
                "the value has {len} bytes, over this cell's limit of {len_max} ({}); \
                 --value-max of `serve` or `cell up` sets that",
                ByteSize::b(len_max)
            );
            return refused(&error, reason, json);
        }
        Err(error) => return refused(&error, error.to_string(), json),
    };
    if json {
        print_json(&report)?;
    } else if let Some(version) = &report.version
        && report.reason.is_none()
    {
        crate::failure::print_line(version)?;
    }
    if let Some(reason) = &report.reason {
        let what = match report.outcome {
            "exists" | "missing" => "not stored",
            outcome => outcome,
        };
        eprintln!("trefoil: {what}: {reason}");
    }
    Ok(code)
}

/// Prints a value's bytes alone, or, for a person, with a line's end.
pub(crate) fn write_value(value: &[u8]) -> Result<(), Failure> {
    let mut out = std::io::stdout();
    // A prompt does not belong behind a value; a script gets the bytes alone.
    let end: &[u8] = match out.is_terminal() && !value.ends_with(b"\n") {
        true => b"\n",
        false => b"",
    };
    out.write_all(value)
        .and_then(|()| out.write_all(end))
        .and_then(|()| out.flush())
        .map_err(|e| Failure::doing("cannot write the value", e))
}

/// A file's content; `-` is standard input.
pub(crate) fn read_value(path: &Path) -> Result<Vec<u8>, Failure> {
    let mut value = Vec::new();
    let read = if path == Path::new("-") {
        std::io::stdin().read_to_end(&mut value).map(|_| ())
    } else {
        std::fs::read(path).map(|bytes| value = bytes)
    };
    read.map_err(|e| Failure::doing(format!("cannot read {}", path.display()), e))?;
    Ok(value)
}
