//! `linked`: what a linked store is like, and what to do about what is not well.
//!
//! | module | what it does |
//! |---|---|
//! | `document` | what an assigner says of itself |
//! | `reading` | what all assigners say at one moment |
//! | `report` | the store as a whole, and what has happened between two readings |
//! | `problems` | what only whoever asks all assigners can see |
//! | `table` | the report as lines of text |
//! | `screen` | the live view |
//! | `drain` | has a process give everything away |
//! | `endpoint` | the port at which `assigner` and `relay` are watched |

mod document;
mod drain;
pub(crate) mod endpoint;
mod problems;
mod reading;
mod report;
#[cfg(feature = "top")]
mod screen;
mod table;

use crate::args::{AssignerAddressArgs, LinkedCommand, LinkedTopArgs};
use crate::failure::{Failure, Outcome, print_json, print_line};
use reading::Reading;
use report::Report;
use std::io::IsTerminal as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;
use tokio::runtime::Runtime;
use trefoil_coordination::Security;
use trefoil_endpoint::Users;
use trefoil_tls::CertUse;

/// Servers say how they are once a second; more often shows nothing more.
const INTERVAL_MIN: Duration = Duration::from_millis(100);

pub(crate) fn run(command: LinkedCommand) -> Outcome {
    let runtime = || Runtime::new().map_err(|e| Failure::doing("cannot start the runtime", e));
    match command {
        LinkedCommand::Status { address, json } => runtime()?.block_on(status(&address, json)),
        LinkedCommand::Top(args) => top(&runtime()?, &args),
        LinkedCommand::Drain(args) => drain::run(&args),
    }
}

/// What protects connections, by what the command line says.
pub(crate) fn security(
    certs: Option<&Path>,
    insecure: bool,
    users: &[String],
    usage: CertUse,
) -> Result<Security, Failure> {
    if certs.is_none() && !users.is_empty() {
        return crate::users::numbers(users).map(Security::users);
    }
    Security::choose(certs, insecure, usage).map_err(Failure::of)
}

/// Who may drain besides the process's own user and root, with certificates as well.
pub(crate) fn drainers(users: &[String]) -> Result<Users, Failure> {
    crate::users::numbers(users).map(Users::and)
}

/// How the store is now.
pub(crate) async fn status(address: &AssignerAddressArgs, json: bool) -> Outcome {
    let reading = Reading::take(address).await?;
    let report = Report::of(&reading);
    if json {
        print_json(&report)?;
    } else {
        for line in table::status(&report) {
            print_line(&line)?;
        }
    }
    Ok(code(&report))
}

/// Whether anybody has answered.
fn code(report: &Report) -> ExitCode {
    match report.assigners.iter().any(|assigner| assigner.answers) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

fn top(runtime: &Runtime, args: &LinkedTopArgs) -> Outcome {
    let interval = args.interval.max(INTERVAL_MIN);
    let is_live = !args.json && !args.once;
    if is_live && !std::io::stdout().is_terminal() {
        return Err(Failure::Usage(
            "standard output is no terminal: use --once for text or --json for objects".into(),
        ));
    }
    if is_live {
        #[cfg(feature = "top")]
        return screen::run(args.address.clone(), interval);
        #[cfg(not(feature = "top"))]
        return Err(Failure::Usage(
            "this build is without the feature `top`: use --once or --json".into(),
        ));
    }
    let mut before = runtime.block_on(Reading::take(&args.address))?;
    loop {
        std::thread::sleep(interval);
        let now = runtime.block_on(Reading::take(&args.address))?;
        let report = Report::between(&before, &now);
        if args.json {
            print_json(&report)?;
        } else {
            for line in table::top(&report) {
                print_line(&line)?;
            }
        }
        if args.once {
            return Ok(code(&report));
        }
        before = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `security` knows nothing of them where there are certificates.
    #[test]
    fn whoever_is_named_may_drain() {
        let named = drainers(&["1001".to_owned(), "1002".to_owned()]).unwrap();
        assert_eq!(named, Users::and([1001, 1002]));
        assert!(drainers(&["no such user".to_owned()]).is_err());
    }
}
