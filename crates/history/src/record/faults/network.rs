//! The way from clients to the gateway: a pair of network devices between this run's
//! network namespace and the clients'. It is cut for a while, or is narrow and drops what
//! does not fit, or (netem) delays, loses, doubles and reorders packets.

use super::{Begun, Course, Ongoing};
use crate::record::RecordError;
use crate::record::round::Round;
use rand::RngExt as _;
use rand::seq::IndexedRandom as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const AWAY_MS: std::ops::Range<u64> = 50..2_500;
/// Devices; both namespaces are this run's alone.
const NEAR: &str = "trefoil0";
const FAR: &str = "trefoil1";
const FAR_ADDRESS: &str = "10.77.0.2/24";
const NEAR_ADDRESS: &str = "10.77.0.1/24";

/// What can be done to the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ill {
    /// Nothing comes through.
    Cut,
    /// A queue of some packets before two megabits a second; what does not fit is lost.
    Narrow,
    /// Late, lost, twice, in another order.
    Netem,
}

impl Ill {
    /// Arguments of `tc qdisc replace dev NEAR root`.
    fn discipline(self) -> Option<&'static str> {
        match self {
            Ill::Cut => None,
            Ill::Narrow => Some("tbf rate 2mbit burst 4kb limit 12kb"),
            Ill::Netem => {
                Some("netem delay 4ms 3ms distribution normal loss 3% duplicate 1% reorder 10% 50%")
            }
        }
    }
}

/// Two namespaces and what joins them; gone with its owner.
pub(in crate::record) struct Network {
    /// A process of the clients' namespace, which keeps it.
    holder: Child,
    ills: Vec<Ill>,
    /// Why packets are not delayed, lost and reordered, if so.
    pub(in crate::record) without_netem: Option<String>,
}

impl Network {
    /// Where the gateway listens.
    pub(in crate::record) const HOST: &'static str = "10.77.0.1";

    /// Makes the clients' namespace, and joins it to this one, which has to be this run's
    /// own.
    pub(in crate::record) fn new() -> Result<Self, String> {
        let holder = Command::new("unshare")
            .args(["--net", "cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .map_err(|error| format!("unshare: {error}"))?;
        let mut network = Network {
            holder,
            ills: vec![Ill::Cut],
            without_netem: None,
        };
        network.await_namespace()?;
        let pid = network.holder.id().to_string();
        let ip = |words: &str| {
            told(Command::new("ip").args(words.split(' ')))?;
            Ok::<(), String>(())
        };
        ip(&format!(
            "link add {NEAR} type veth peer name {FAR} netns {pid}"
        ))?;
        ip(&format!("addr add {NEAR_ADDRESS} dev {NEAR}"))?;
        ip(&format!("link set {NEAR} up"))?;
        for words in [
            "link set lo up".to_owned(),
            format!("addr add {FAR_ADDRESS} dev {FAR}"),
            format!("link set {FAR} up"),
        ] {
            let mut command = network.command("ip");
            told(command.args(words.split(' ')))?;
        }
        for ill in [Ill::Narrow, Ill::Netem] {
            match network.set(ill) {
                Ok(()) => network.ills.push(ill),
                Err(why) => network.without_netem = Some(format!("tc: {why}")),
            }
            network.clear();
        }
        Ok(network)
    }

    /// Until the holder is in a namespace of its own.
    fn await_namespace(&mut self) -> Result<(), String> {
        let of = |who: &str| std::fs::read_link(format!("/proc/{who}/ns/net")).ok();
        let own = of("self");
        let begin = Instant::now();
        while of(&self.holder.id().to_string()) == own {
            if !matches!(self.holder.try_wait(), Ok(None)) || begin.elapsed().as_secs() > 10 {
                return Err("unshare --net: no network namespace could be made".to_owned());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// A command in the clients' namespace.
    pub(in crate::record) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net=/proc/{}/ns/net", self.holder.id()))
            .arg("--")
            .arg(program);
        command
    }

    fn set(&self, ill: Ill) -> Result<(), String> {
        let words = match ill.discipline() {
            None => return told(Command::new("ip").args(["link", "set", NEAR, "down"])),
            Some(words) => words,
        };
        let mut command = Command::new("tc");
        command.args(["qdisc", "replace", "dev", NEAR, "root"]);
        told(command.args(words.split(' ')))
    }

    fn clear(&self) {
        let _ = told(Command::new("ip").args(["link", "set", NEAR, "up"]));
        // It fails where nothing was set.
        let _ = told(Command::new("tc").args(["qdisc", "del", "dev", NEAR, "root"]));
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // With the namespace it would go some time later.
        let _ = told(Command::new("ip").args(["link", "del", NEAR]));
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// Runs a command; what it says if it fails.
pub(super) fn told(command: &mut Command) -> Result<(), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{name}: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => {
            let said = String::from_utf8_lossy(&output.stderr);
            Err(said.lines().next().unwrap_or(&name).trim().to_owned())
        }
    }
}

struct Illness {
    until: Instant,
}

pub(super) fn begin(round: &mut Round<'_>) -> Result<Begun, RecordError> {
    let Some(network) = &round.network else {
        return Ok(Begun::No);
    };
    let Some(ill) = network.ills.choose(&mut round.rng).copied() else {
        return Ok(Begun::No);
    };
    network.set(ill).map_err(RecordError::Course)?;
    let stay = Duration::from_millis(round.rng.random_range(AWAY_MS));
    Ok(Begun::Goes(Box::new(Illness {
        until: Instant::now() + stay,
    })))
}

impl Ongoing for Illness {
    fn look(&mut self, round: &mut Round<'_>) -> Result<Course, String> {
        if Instant::now() < self.until {
            return Ok(Course::Goes);
        }
        if let Some(network) = &round.network {
            network.clear();
        }
        Ok(Course::Done)
    }
}
