//! `top`: what a cell does at this moment, in the terminal.
//!
//! | module | what it does |
//! |---|---|
//! | `reading` | what the cell says of itself at one moment |
//! | `report` | what has happened between two readings |
//! | `durations` | quantiles of what a front door measured |
//! | `table` | the report as lines of text |
//! | `screen` | the live view |

mod durations;
mod reading;
mod report;
mod screen;
mod table;

use crate::args::TopArgs;
use crate::cell::status::is_up;
use crate::failure::{Failure, Outcome, print_json, print_line};
use reading::Reading;
use report::Report;
use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::time::Duration;

/// Between two readings at least: backends count their CPU in ticks of 10 ms.
const INTERVAL_MIN: Duration = Duration::from_millis(100);

pub(crate) fn run(args: TopArgs) -> Outcome {
    let interval = args.interval.max(INTERVAL_MIN);
    if !args.json && !args.once && !std::io::stdout().is_terminal() {
        return Err(Failure::Usage(
            "standard output is no terminal: use --once for text or --json for objects".into(),
        ));
    }
    let cell = crate::connect::cell(&args.address)?;
    if !args.json && !args.once {
        return screen::run(cell, interval, args.keys);
    }
    let mut before = Reading::take(&cell, args.keys);
    loop {
        std::thread::sleep(interval);
        let now = Reading::take(&cell, args.keys);
        let report = Report::between(&before, &now);
        if args.json {
            print_json(&report)?;
        } else {
            for line in table::text(&report) {
                print_line(&line)?;
            }
        }
        if args.once {
            let any_up = report.backends.iter().any(|backend| is_up(backend.state));
            return Ok(match any_up {
                true => ExitCode::SUCCESS,
                false => ExitCode::FAILURE,
            });
        }
        before = now;
    }
}
