//! What this machine can do to a cell. Full disks and networks that lose packets need
//! namespaces of this run's own, in which nobody else's files and devices are.
//!
//! What a machine does not allow (namespaces) or cannot do (a kernel without netem) is
//! skipped. A program that is missing can be installed: without it the run is not what it
//! was told to be, and fails.

use super::RecordError;
use super::faults::{Network, SmallDisk};
use super::plan::{Fault, RoundPlan, Wish};
use std::convert::Infallible;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

/// Set in the process that is in namespaces of its own: `1`, or why it is not.
const ENCLOSED: &str = "TREFOIL_HISTORIES_ENCLOSED";

/// Begins this program anew, with the same arguments, in a mount and a network namespace
/// of its own, if what is wished for needs them, and it is not there yet. Without the
/// permission it goes on as it is, and those faults are skipped.
pub fn enclose(wish: &Wish) -> Result<(), RecordError> {
    let needs = |round: &RoundPlan| round.faults.iter().any(|fault| is_enclosed(*fault));
    if std::env::var_os(ENCLOSED).is_some() || !wish.rounds().iter().any(needs) {
        return Ok(());
    }
    let program = std::env::current_exe().map_err(RecordError::doing("finding this program"))?;
    let mut words = vec!["--mount", "--net", "--propagation", "private"];
    if !rustix::process::geteuid().is_root() {
        words.splice(0..0, ["--user", "--map-root-user"]);
    }
    let tried = Command::new("unshare")
        .args(&words)
        .args(["--", "true"])
        .stdin(Stdio::null())
        .output();
    let refusal = match tried {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(error) => Some(format!("unshare: {error}")),
    };
    let mut command = match &refusal {
        None => {
            let mut command = Command::new("unshare");
            command.args(&words).arg("--").arg(&program);
            command
        }
        Some(_) => Command::new(&program),
    };
    command.args(std::env::args_os().skip(1));
    command.env(ENCLOSED, refusal.as_deref().unwrap_or("1"));
    let refused: Result<Infallible, _> = Err(command.exec());
    refused.map(drop).map_err(RecordError::doing(
        "beginning anew in namespaces of its own",
    ))
}

const fn is_enclosed(fault: Fault) -> bool {
    matches!(fault, Fault::DiskFull | Fault::Network)
}

/// What of the rounds cannot be done here, with the reason.
#[derive(Debug, Default)]
pub(super) struct LeftOut {
    /// This machine does not allow it.
    pub skipped: Vec<String>,
    /// A program is missing.
    pub missing: Vec<String>,
}

/// Takes out of the rounds what cannot be done here.
pub(super) fn without_what_cannot_be_done(rounds: &mut [RoundPlan]) -> LeftOut {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let missing = without_programs(rounds, |program| {
        let mut folders = std::env::split_paths(&path);
        folders.any(|folder| folder.join(program).is_file())
    });
    let mut skipped = Vec::new();
    let enclosed = std::env::var(ENCLOSED).unwrap_or_else(|_| "it is not enclosed".to_owned());
    let has = |fault: Fault| rounds.iter().any(|round| round.faults.contains(&fault));
    let mut cannot: Vec<Fault> = Vec::new();
    let mut skip = |faults: &[Fault], why: &str| {
        let names: Vec<&str> = faults.iter().map(|fault| fault.name()).collect();
        skipped.push(format!("{}: {why}", names.join(", ")));
        cannot.extend_from_slice(faults);
    };
    if enclosed == "1" {
        // The loopback of a new namespace is down.
        let up = Command::new("ip")
            .args(["link", "set", "lo", "up"])
            .status();
        if let Err(error) = up {
            skip(&[Fault::Network], &format!("ip: {error}"));
        }
    }
    if has(Fault::DiskFull) {
        let why = match enclosed.as_str() {
            "1" => small_disk().err(),
            why => Some(format!("no mount namespace: {why}")),
        };
        if let Some(why) = why {
            skip(&[Fault::DiskFull], &why);
        }
    }
    if has(Fault::Network) {
        match enclosed.as_str() {
            "1" => match Network::new() {
                Ok(network) => {
                    if let Some(why) = &network.without_netem {
                        skipped.push(format!(
                            "delay, loss and reordering of packets (the network is cut all the same): {why}"
                        ));
                    }
                }
                Err(why) => skip(&[Fault::Network], &why),
            },
            why => skip(&[Fault::Network], &format!("no network namespace: {why}")),
        }
    }
    for round in rounds {
        round.faults.retain(|fault| !cannot.contains(fault));
    }
    LeftOut { skipped, missing }
}

/// Programs that a fault needs.
const fn programs_of(fault: Fault) -> &'static [&'static str] {
    match fault {
        Fault::EtcdKill | Fault::EtcdStop | Fault::Replace => &["etcd", "etcdctl"],
        Fault::DiskFull => &["unshare", "mount", "umount"],
        Fault::Network => &["unshare", "nsenter", "ip", "tc"],
        _ => &[],
    }
}

/// Takes out of the rounds the faults whose programs are missing; says which.
fn without_programs(rounds: &mut [RoundPlan], is_there: impl Fn(&str) -> bool) -> Vec<String> {
    let mut missing = Vec::new();
    for fault in Fault::ALL {
        let lacks = programs_of(*fault)
            .iter()
            .find(|program| !is_there(program));
        let is_wished = rounds.iter().any(|round| round.faults.contains(fault));
        if let (Some(program), true) = (lacks, is_wished) {
            missing.push(format!("{fault}: there is no program `{program}` in PATH"));
            for round in &mut *rounds {
                round.faults.retain(|other| other != fault);
            }
        }
    }
    missing
}

fn small_disk() -> Result<(), String> {
    let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
    SmallDisk::mount(dir.path()).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_whose_programs_are_missing_are_named_and_taken_out() {
        let faults = vec![Fault::Stop, Fault::DiskFull, Fault::Network];
        let wish = Wish {
            faults: Some(faults.clone()),
            ..Wish::default()
        };
        let mut rounds = wish.rounds();
        assert_eq!(without_programs(&mut rounds, |_| true), [""; 0]);
        assert_eq!(rounds[0].faults, faults);
        let missing = without_programs(&mut rounds, |program| program != "tc");
        assert_eq!(missing, ["network: there is no program `tc` in PATH"]);
        assert_eq!(rounds[0].faults, faults[..2]);
        // What nobody has wished for is not missed.
        assert_eq!(
            without_programs(&mut rounds, |program| program != "etcd"),
            [""; 0]
        );
    }
}
