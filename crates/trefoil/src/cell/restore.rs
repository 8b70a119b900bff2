//! `cell restore-config`: an etcd that has lost a cell's configuration, or holds an old
//! one, gets what the cell's backends serve.

use crate::args::RestoreArgs;
use crate::cell::home;
use crate::failure::{Failure, Outcome, print_json, print_line};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use trefoil_cell::{
    CONFIG_ID_CHANGING, CellAddress, CellConfig, EtcdStore, Held, Incarnations, RpcAddress,
};
use trefoil_client::{Served, Tls};

/// Config ids that may have been given away by somebody who was not asked.
const UNKNOWN_IDS: u32 = 1 << 16;
/// Starts that a backend which was not asked may have had: days of dying at each start.
/// Far fewer than a backend may have in a life of the cell (524,288).
const UNKNOWN_STARTS: u32 = 1 << 14;
/// How long backends may take to follow.
const FOLLOW_PATIENCE: Duration = Duration::from_secs(10);
const FOLLOW_PAUSE: Duration = Duration::from_millis(50);

#[derive(Serialize)]
struct Report {
    cell: String,
    life: String,
    /// As it was in etcd.
    config_id_found: Option<u32>,
    /// As the backends served it.
    config_id_served: u32,
    /// As it is in etcd now.
    config_id: u32,
    incarnations: Incarnations,
    /// Backends that serve it by now.
    backends_following: Vec<u32>,
    /// Backends that did not answer, and were passed over.
    backends_passed_over: Vec<u32>,
}

pub(super) fn run(args: &RestoreArgs) -> Outcome {
    let store = home::etcd(&args.store)?;
    let held = store.look().map_err(Failure::of)?;
    let addresses = addresses(held.as_ref(), &args.from)?;
    let tls = crate::connect::tls(args.certs.as_deref())?;
    let answers = trefoil_client::served(&addresses, tls.as_ref());
    let mut reasons = Vec::new();
    let mut served: Vec<Served> = Vec::new();
    for (address, answer) in addresses.iter().zip(answers) {
        match answer {
            Ok(answer) if served.contains(&answer) => {}
            Ok(answer) => served.push(answer),
            Err(reason) => reasons.push(format!("{address}: {reason}")),
        }
    }
    let held_parts = held.as_ref().map(|held| (&held.config, &held.incarnations));
    let plan = plan(held_parts, &served, args.accept_loss).map_err(|refusal| {
        let silent = match reasons.is_empty() {
            true => String::new(),
            false => format!("\n  {}", reasons.join("\n  ")),
        };
        Failure::Failed(format!("nothing was written: {refusal}{silent}"))
    })?;
    if let Some(next) = &plan.next {
        store
            .restore(held.as_ref(), next, &plan.incarnations)
            .map_err(Failure::of)?;
    }
    let config = plan.next.as_ref().unwrap_or(&plan.served);
    let report = Report {
        cell: config.cell.clone(),
        life: format!("{:016x}", config.life),
        config_id_found: held.as_ref().map(|held| held.config.config_id),
        config_id_served: plan.served.config_id,
        config_id: config.config_id,
        backends_following: follow(&store, config, &addresses, tls.as_ref()),
        backends_passed_over: plan.passed_over.clone(),
        incarnations: plan.incarnations.clone(),
    };
    if args.json {
        print_json(&report)?;
    } else {
        tell(&report, plan.next.is_some())?;
    }
    let expected = config.backends.len() - plan.passed_over.len();
    Ok(match report.backends_following.len() >= expected {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

fn tell(report: &Report, is_written: bool) -> Result<(), Failure> {
    let id = report.config_id;
    if !is_written {
        return print_line(&format!(
            "nothing to mend: etcd holds what the backends serve (config id {id})"
        ));
    }
    let found = match report.config_id_found {
        None => "nothing".to_owned(),
        Some(found) => format!("config id {found}"),
    };
    let passed_over = match report.backends_passed_over.as_slice() {
        [] => String::new(),
        numbers => format!("; not asked: {}", list(numbers)),
    };
    print_line(&format!(
        "config id {id} written (etcd held {found}, the backends serve {}); followed by {}{passed_over}",
        report.config_id_served,
        list(&report.backends_following)
    ))
}

fn list(numbers: &[u32]) -> String {
    match numbers {
        [] => "no backend".to_owned(),
        [one] => format!("backend {one}"),
        more => {
            let more: Vec<String> = more.iter().map(u32::to_string).collect();
            format!("backends {}", more.join(", "))
        }
    }
}

/// Where to ask: what etcd still knows, and what the command names.
fn addresses(held: Option<&Held>, from: &[String]) -> Result<Vec<RpcAddress>, Failure> {
    let mut addresses: Vec<RpcAddress> = Vec::new();
    let mut add = |address: RpcAddress| {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    };
    let known = held.iter().flat_map(|held| &held.config.backends);
    known
        .flat_map(|backend| backend.addresses.first())
        .cloned()
        .for_each(&mut add);
    for text in from {
        let bad = |error: &dyn std::fmt::Display| Failure::Usage(format!("--from {text}: {error}"));
        match text.parse::<CellAddress>().map_err(|e| bad(&e))? {
            CellAddress::Servers(servers) => servers.into_iter().for_each(&mut add),
            CellAddress::Path(path) if path.is_dir() => {
                let sockets = sockets(&path).map_err(|e| bad(&e))?;
                sockets.into_iter().for_each(&mut add);
            }
            CellAddress::Path(path) => add(RpcAddress::unix(path).map_err(|e| bad(&e))?),
            CellAddress::Etcd(_) => {
                let text = "name backends: a directory of `cell up`, or host:port";
                return Err(bad(&text));
            }
        }
    }
    if addresses.is_empty() {
        return Err(Failure::Usage(
            "etcd knows no backend: say where they are with --from: the directory of `cell up`, or host:port"
                .into(),
        ));
    }
    Ok(addresses)
}

/// The backends' sockets in a directory of `cell up`.
fn sockets(directory: &Path) -> Result<Vec<RpcAddress>, Failure> {
    let directory = directory.canonicalize().map_err(Failure::of)?;
    let mut paths: Vec<PathBuf> = Vec::new();
    for entry in std::fs::read_dir(&directory).map_err(Failure::of)? {
        let path = entry.map_err(Failure::of)?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let is_one = name.is_some_and(|name| {
            // One that was a spare keeps its sockets' names.
            let begins = name.starts_with("backend-") || name.starts_with("spare-");
            begins && name.ends_with(".sock")
        });
        if is_one {
            paths.push(path);
        }
    }
    paths.sort();
    let address = |path| RpcAddress::unix(path).map_err(Failure::of);
    paths.into_iter().map(address).collect()
}

/// What is to be written.
#[derive(Debug)]
struct Plan {
    /// The newest that is served.
    served: CellConfig,
    /// `None`: etcd holds it already.
    next: Option<CellConfig>,
    incarnations: Incarnations,
    passed_over: Vec<u32>,
}

/// Decides, from what etcd holds and what those who answer serve; or says why not.
fn plan(
    held: Option<(&CellConfig, &Incarnations)>,
    served: &[Served],
    accept_loss: bool,
) -> Result<Plan, String> {
    let newest = served
        .iter()
        .map(|served| &served.config)
        .max_by_key(|config| config.config_id)
        .ok_or(
            "no backend answers. If all are dead, their data is gone, too: start the cell anew \
             with `trefoil cell up`",
        )?;
    if let Some(other) = served.iter().find(|s| s.config.life != newest.life) {
        return Err(format!(
            "backends of two lives of the cell answer, {:016x} and {:016x}: stop those of the \
             former one",
            newest.life, other.config.life
        ));
    }
    let is_other =
        |served: &&Served| served.config.config_id == newest.config_id && served.config != *newest;
    if served.iter().any(|served| is_other(&served)) {
        return Err(format!(
            "backends answer that serve two configurations of one id ({}): stop those of one of \
             them, and say --accept-loss",
            newest.config_id
        ));
    }
    if let Some((config, _)) = held
        && config.life != newest.life
        && !config.is_older_than(newest)
    {
        return Err(format!(
            "etcd holds a later life of the cell (config id {}) than the backends serve ({}): \
             stop these backends",
            config.config_id, newest.config_id
        ));
    }
    let mut begun: BTreeMap<u32, u32> = BTreeMap::new();
    for (&number, &count) in served.iter().flat_map(|served| &served.begun) {
        let known = begun.entry(number).or_default();
        *known = count.max(*known);
    }
    let numbers = newest.backends.iter().map(|backend| backend.number);
    let silent: Vec<u32> = numbers.filter(|n| !begun.contains_key(n)).collect();
    if !silent.is_empty() && !accept_loss {
        return Err(format!(
            "{} {} not answer, and may know of a later change (what was flushed by it could be \
             read again). If {} dead, say --accept-loss",
            list(&silent),
            if silent.len() == 1 { "does" } else { "do" },
            if silent.len() == 1 {
                "it is"
            } else {
                "they are"
            },
        ));
    }
    let counted = held
        .filter(|(config, _)| config.life == newest.life)
        .map(|(_, counts)| counts.clone())
        .unwrap_or_default();
    let most = counted.values().chain(begun.values()).max().copied();
    let most = most.unwrap_or(0);
    let mut incarnations = counted.clone();
    for backend in &newest.backends {
        let number = backend.number;
        let known = counted.get(&number).copied().unwrap_or(0);
        let count = match begun.get(&number) {
            Some(&count) => count.max(known),
            None => most.saturating_add(UNKNOWN_STARTS),
        };
        incarnations.insert(number, count);
    }
    let is_same = held.is_some_and(|(config, _)| config == newest);
    let next = match is_same && counted == incarnations {
        true => None,
        false => Some(renumbered(newest, held.map(|(config, _)| config), &silent)?),
    };
    Ok(Plan {
        served: newest.clone(),
        next,
        incarnations,
        passed_over: silent,
    })
}

/// The same configuration with an id above everything that was ever given away.
fn renumbered(
    newest: &CellConfig,
    held: Option<&CellConfig>,
    silent: &[u32],
) -> Result<CellConfig, String> {
    if newest.mode.is_immutable() {
        // Another id means another corpus there.
        let is_clear = silent.is_empty()
            && held.is_none_or(|held| held.is_older_than(newest) || held == newest);
        return match is_clear {
            true => Ok(newest.clone()),
            false => Err(
                "the backends of an immutable cell (R=2) must all answer, and etcd must hold \
                 nothing later than they serve; else start the cell anew with its corpus"
                    .to_owned(),
            ),
        };
    }
    let highest = held.map_or(0, |held| held.config_id).max(newest.config_id);
    let step = if silent.is_empty() { 1 } else { UNKNOWN_IDS };
    let config_id = highest
        .checked_add(step)
        .filter(|&id| id != CONFIG_ID_CHANGING)
        .ok_or("the cell's config ids are used up: start it anew")?;
    Ok(CellConfig {
        config_id,
        ..newest.clone()
    })
}

/// Waits until those who answer serve `config`; who does.
fn follow(
    store: &EtcdStore,
    config: &CellConfig,
    addresses: &[RpcAddress],
    tls: Option<&Tls>,
) -> Vec<u32> {
    let deadline = Instant::now() + FOLLOW_PATIENCE;
    // Their places may have been told by the command only.
    let mut addresses = addresses.to_vec();
    for address in config.backends.iter().flat_map(|b| b.addresses.first()) {
        if !addresses.contains(address) {
            addresses.push(address.clone());
        }
    }
    loop {
        let answers = trefoil_client::served(&addresses, tls);
        let answers: Vec<Served> = answers.into_iter().flatten().collect();
        let is_there = |served: &&Served| served.config.topology_id() == config.topology_id();
        let there = answers.iter().filter(is_there);
        let mut numbers: Vec<u32> = there.flat_map(|s| s.begun.keys().copied()).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let is_all = answers.iter().all(|served| is_there(&served));
        if is_all || Instant::now() >= deadline {
            if !is_all {
                let address = store.address();
                eprintln!("trefoil: not every backend follows {address} yet: their logs say why");
            }
            return numbers;
        }
        std::thread::sleep(FOLLOW_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trefoil_cell::{BackendConfig, Mode};
    use trefoil_layout::{HashKind, KeyHasher, Version};

    fn config(life: u64, config_id: u32) -> CellConfig {
        let backend = |number| BackendConfig {
            number,
            addresses: vec![format!("127.0.0.1:{}", 7000 + number).parse().unwrap()],
            fabric_socket: None,
            place: None,
        };
        CellConfig {
            life,
            config_id,
            cell: "test".into(),
            mode: Mode::R32,
            backends: (0..3).map(backend).collect(),
            hash: KeyHasher {
                kind: HashKind::Xxh3,
                seed: [1, 2],
            },
            value_len_max: 1 << 20,
            eviction: "slru".into(),
            flush_floor: Version::ZERO,
            corpus: None,
        }
    }

    fn says(config: &CellConfig, number: u32, count: u32) -> Served {
        Served {
            config: config.clone(),
            begun: [(number, count)].into(),
        }
    }

    fn all(config: &CellConfig, counts: [u32; 3]) -> Vec<Served> {
        let one = |(number, count)| says(config, number, count);
        (0..).zip(counts).map(one).collect()
    }

    #[test]
    fn what_is_served_is_written_under_a_higher_id() {
        let served = config(7, 9);
        for (held, counts, expected) in [
            (None, [1, 3, 2], Some(10)),
            (Some((config(7, 5), vec![(0, 1)])), [1, 3, 2], Some(10)),
            // Of a former life, whose counts say nothing.
            (Some((config(6, 5), vec![(0, 9)])), [1, 3, 2], Some(10)),
            // Somebody has gone on from the old one.
            (Some((config(7, 12), vec![])), [1, 3, 2], Some(13)),
            // The configuration has not changed since, the starts have.
            (
                Some((config(7, 9), vec![(0, 1), (1, 1), (2, 1)])),
                [1, 3, 2],
                Some(10),
            ),
            (
                Some((config(7, 9), vec![(0, 1), (1, 3), (2, 2)])),
                [1, 3, 2],
                None,
            ),
        ] {
            let held =
                held.map(|(config, counts)| (config, counts.into_iter().collect::<Incarnations>()));
            let held = held.as_ref().map(|(config, counts)| (config, counts));
            let plan = plan(held, &all(&served, counts), false).unwrap();
            assert_eq!(plan.next.as_ref().map(|next| next.config_id), expected);
            assert_eq!(plan.incarnations, [(0, 1), (1, 3), (2, 2)].into());
            if let Some(next) = plan.next {
                let same = CellConfig {
                    config_id: 9,
                    ..next
                };
                assert_eq!(same, served);
            }
        }
    }

    #[test]
    fn the_newest_of_several_is_taken() {
        let (old, new) = (config(7, 8), config(7, 9));
        let heard = [says(&old, 0, 1), says(&new, 1, 1), says(&old, 2, 1)];
        let plan = plan(None, &heard, false).unwrap();
        assert_eq!((plan.served, plan.next.unwrap().config_id), (new, 10));
    }

    #[test]
    fn whoever_does_not_answer_is_a_risk_that_is_named() {
        let served = config(7, 9);
        let heard = [says(&served, 0, 4), says(&served, 2, 1)];
        let refusal = plan(None, &heard, false).unwrap_err();
        assert!(refusal.contains("backend 1 does not answer"), "{refusal}");
        assert!(refusal.contains("--accept-loss"), "{refusal}");
        let plan = plan(None, &heard, true).unwrap();
        assert_eq!(plan.passed_over, [1]);
        let next = plan.next.unwrap();
        assert_eq!(next.config_id, 9 + UNKNOWN_IDS);
        assert_eq!(plan.incarnations[&0], 4);
        // It may have begun more often than anybody knows, and was one before.
        assert_eq!(plan.incarnations[&1], 4 + UNKNOWN_STARTS);
    }

    #[test]
    fn contradictions_are_refused() {
        let served = config(7, 9);
        let other = CellConfig {
            flush_floor: Version::new(1, 2, 3),
            ..config(7, 9)
        };
        let later = config(8, 11);
        for (held, heard, hint) in [
            (None, vec![], "no backend answers"),
            (
                None,
                vec![says(&served, 0, 1), says(&later, 1, 1)],
                "two lives",
            ),
            (
                None,
                vec![says(&served, 0, 1), says(&other, 1, 1)],
                "two configurations",
            ),
            (Some(&later), all(&served, [1; 3]), "later life"),
        ] {
            let counts = Incarnations::new();
            let held = held.map(|config| (config, &counts));
            let refusal = plan(held, &heard, true).unwrap_err();
            assert!(refusal.contains(hint), "{refusal}");
        }
    }

    #[test]
    fn an_immutable_cell_keeps_its_id() {
        let mut served = config(7, 9);
        served.mode = Mode::R2;
        let heard = all(&served, [1; 3]);
        let plan_of = |held: Option<&CellConfig>, heard: &[Served]| {
            let counts = Incarnations::new();
            plan(held.map(|config| (config, &counts)), heard, true)
        };
        let older = CellConfig {
            config_id: 4,
            ..served.clone()
        };
        for held in [None, Some(&older)] {
            assert_eq!(plan_of(held, &heard).unwrap().next.unwrap(), served);
        }
        let newer = CellConfig {
            config_id: 10,
            ..served.clone()
        };
        for refusal in [plan_of(Some(&newer), &heard), plan_of(None, &heard[..2])] {
            assert!(refusal.unwrap_err().contains("anew with its corpus"));
        }
    }
}
