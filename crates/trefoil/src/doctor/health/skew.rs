//! What the backends of a cell disagree on.

use crate::doctor::census::{Answered, Census};
use crate::doctor::finding::Finding;
use bytesize::ByteSize;
use std::collections::BTreeMap;
use trefoil_cell::{CONFIG_ID_CHANGING, CellConfig, Mode};
use trefoil_layout::limits::LAYOUT_VERSION;

/// Clocks that differ by more are told of. Versions more than 10 s ahead are refused, and
/// half a second is what counters bear; this is half of that.
const CLOCK_SKEW_NS: i128 = 250_000_000;
/// Members under different configurations.
pub(super) fn configurations(census: &Census, all: &mut Vec<Finding>) {
    let ours = &*census.config;
    let decoded = |answered: &Answered| answered.config.clone()?.ok();
    let known = census
        .answered()
        .filter_map(|(_, answered)| decoded(answered));
    let newest = known
        .filter(|config| config.life == ours.life)
        .chain([ours.clone()])
        .max_by_key(|config| config.config_id);
    let newest = newest.unwrap_or_else(|| ours.clone());
    if ours.config_id < newest.config_id {
        all.push(Finding::new(
            "config_skew",
            format!(
                "the cell's address gives config id {}, and backends serve {}",
                ours.config_id, newest.config_id
            ),
            "See that the cell's directory can be written by its user and is not an old \
             copy; a backend that starts from it would serve what was flushed",
        ));
    }
    for (number, answered) in census.answered() {
        if let Some((what, advice)) = configuration(number, answered, &newest) {
            all.push(Finding::new("config_skew", what, advice).of_backend(number));
        }
    }
}

/// What is wrong with the configuration of one, and what to do.
fn configuration(
    number: u32,
    answered: &Answered,
    newest: &CellConfig,
) -> Option<(String, &'static str)> {
    const RESTART: &str =
        "Kill the backend's process: it is started again under the cell's configuration";
    let config = match &answered.config {
        None => return None,
        Some(Ok(config)) => config,
        Some(Err(why)) => {
            let what = format!("backend {number} has a configuration that makes no sense: {why}");
            return Some((what, "Run the doctor of the backend's own release"));
        }
    };
    if config.life != newest.life {
        let what = format!(
            "backend {number} is of another life of the cell ({:016x}, not {:016x})",
            config.life, newest.life
        );
        return Some((
            what,
            "End the process that was left over from before the cell was started anew, or \
             give the address of the cell that is meant",
        ));
    }
    let served = answered.served_config_id;
    if served == CONFIG_ID_CHANGING {
        let what = format!("backend {number} is between two corpora");
        return Some((
            what,
            "Wait for the reload to end, and begin it again if it has failed",
        ));
    }
    if config.config_id < newest.config_id || served < newest.config_id {
        let what = format!(
            "backend {number} serves config id {}, others {}",
            served.min(config.config_id),
            newest.config_id
        );
        return Some((
            what,
            "Flush or reload again, which waits for every backend, or kill the process if it \
             stays behind",
        ));
    }
    (config != newest).then(|| {
        let what = format!(
            "backend {number} has another configuration under the same config id {}",
            newest.config_id
        );
        (what, RESTART)
    })
}

/// Backends by what they say.
fn groups<K: Ord>(census: &Census, of: impl Fn(&Answered) -> K) -> BTreeMap<K, Vec<u32>> {
    let mut groups: BTreeMap<K, Vec<u32>> = BTreeMap::new();
    for (number, answered) in census.answered() {
        groups.entry(of(answered)).or_default().push(number);
    }
    groups
}

/// "x (backends 0, 2), y (backends 1)".
fn spelled<K: std::fmt::Display>(groups: &BTreeMap<K, Vec<u32>>) -> String {
    let group = |(name, numbers): (&K, &Vec<u32>)| {
        let numbers: Vec<String> = numbers.iter().map(u32::to_string).collect();
        let backends = if numbers.len() == 1 {
            "backend"
        } else {
            "backends"
        };
        format!("{name} ({backends} {})", numbers.join(", "))
    };
    let all: Vec<String> = groups.iter().map(group).collect();
    all.join(", ")
}

pub(super) fn releases(census: &Census, all: &mut Vec<Finding>) {
    let releases = groups(census, |answered| answered.release.clone());
    if releases.len() > 1 {
        all.push(Finding::new(
            "release_skew",
            format!("backends are of different releases: {}", spelled(&releases)),
            "Finish the upgrade: `trefoil cell upgrade --binary PATH` with the newer program \
             (`cell restart` starts the program again that a backend has)",
        ));
    }
    let layouts = groups(census, |answered| answered.layout_version);
    let own = u32::from(LAYOUT_VERSION);
    if layouts.len() > 1 {
        all.push(Finding::new(
            "layout_skew",
            format!(
                "backends share memory in different layouts: {}",
                spelled(&layouts)
            ),
            "Bring them to one program: `trefoil cell upgrade --binary PATH`. Clients reach \
             those of another layout by RPC only",
        ));
    } else if layouts.keys().any(|layout| *layout != own) {
        all.push(Finding::new(
            "layout_skew",
            format!(
                "this program reads memory of layout {own}, the backends share {}",
                spelled(&layouts)
            ),
            "Install the backends' release here: programs of this one reach them by RPC only",
        ));
    }
}

/// Clocks against the middle one, this host's among them.
pub(super) fn clocks(census: &Census, all: &mut Vec<Finding>) {
    let backends = census.answered().filter_map(|(number, answered)| {
        let (offset, error) = answered.clock_ns?;
        Some((offset, error, Some(number)))
    });
    let mut clocks: Vec<(i128, i128, Option<u32>)> = backends.chain([(0, 0, None)]).collect();
    clocks.sort_unstable();
    let (middle, middle_error, _) = clocks[(clocks.len() - 1) / 2];
    for (offset, error, number) in clocks {
        let away = (offset - middle).abs() - error - middle_error;
        if away <= CLOCK_SKEW_NS {
            continue;
        }
        let seconds = (offset - middle).abs() as f64 / 1e9;
        let whither = if offset > middle {
            "ahead of"
        } else {
            "behind"
        };
        let whose = match number {
            Some(number) => format!("the clock of backend {number}'s host"),
            None => "this host's clock".to_owned(),
        };
        let finding = Finding::new(
            "clock_skew",
            format!("{whose} is {seconds:.1} s {whither} the others'"),
            "Set the host's clock by NTP: versions more than 10 s ahead are refused, and \
             items expire by the clock of the host that holds them",
        );
        all.push(match number {
            Some(number) => finding.of_backend(number),
            None => finding,
        });
    }
}

/// Replicas with different room evict different keys.
pub(super) fn limits(census: &Census, all: &mut Vec<Finding>) {
    let limits = groups(census, |answered| answered.process.memory_limit_bytes);
    if limits.len() > 1 && census.config.mode == Mode::R32 {
        let readable = limits.iter().map(|(bytes, numbers)| {
            let size = ByteSize::b(*bytes).to_string();
            (size, numbers.clone())
        });
        all.push(Finding::new(
            "memory_skew",
            format!(
                "backends have different memory limits: {}",
                spelled(&readable.collect())
            ),
            "Give all the same with `trefoil cell memory --limit`: the smaller ones evict keys \
             that the others keep",
        ));
    }
}

/// Backends of an immutable cell that serve another corpus than its configuration names.
pub(super) fn corpora(census: &Census, all: &mut Vec<Finding>) {
    let configs = census
        .answered()
        .filter_map(|(_, answered)| answered.config.as_ref()?.as_ref().ok())
        .filter(|config| config.life == census.config.life);
    let newest = configs
        .chain([&*census.config])
        .max_by_key(|config| config.config_id);
    let Some(wanted) = newest.and_then(|config| config.corpus.as_ref()) else {
        return;
    };
    for (number, answered) in census.answered() {
        let served = answered.member.corpus.as_ref();
        let Some(Ok(served)) = served.map(trefoil_cell::decode_corpus) else {
            continue;
        };
        if served != *wanted {
            let finding = Finding::new(
                "corpus_skew",
                format!(
                    "backend {number} serves the corpus {served}, the cell's configuration \
                     names {wanted}"
                ),
                "Wait for a reload to end; the backend fetches the cell's corpus by itself. If \
                 it does not, its log says why",
            );
            all.push(finding.of_backend(number));
        }
    }
}

/// Replicas of a shard in different epochs.
pub(super) fn epochs(census: &Census, all: &mut Vec<Finding>) {
    let placement = census.config.placement();
    if census.config.mode != Mode::R32 {
        return;
    }
    for shard in 0..placement.backend_count() {
        let mut epochs: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for number in placement.cohort_of_shard(shard).as_slice() {
            let answered = census.backend(*number).and_then(|b| b.answer.as_ref().ok());
            let standing = answered.and_then(|answered| answered.standings.get(&shard));
            if let Some(Ok(standing)) = standing
                && !standing.is_recovering
            {
                epochs.entry(standing.epoch).or_default().push(*number);
            }
        }
        if epochs.len() > 1 {
            let finding = Finding::new(
                "epoch_skew",
                format!("shard {shard} is in different epochs: {}", spelled(&epochs)),
                "Wait while a backend recovers; if it stays so, kill the process of the \
                 backend with the lowest epoch, whose votes count with nobody's",
            );
            all.push(finding.of_shard(shard));
        }
    }
}
