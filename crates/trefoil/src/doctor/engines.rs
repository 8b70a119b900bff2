//! The engines of a cell's hosts, by what they said at two moments.

use super::finding::Finding;
use bytesize::ByteSize;
use serde::Serialize;
use std::collections::BTreeMap;
use trefoil_client::EngineStats;

/// One of the report's.
#[derive(Serialize)]
pub(super) struct Engine {
    /// Where it is reached from here.
    address: String,
    /// Those that tell of it.
    backends: Vec<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// CPU of its threads that read, for each operation; absent if there were none.
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu_us_per_operation: Option<f64>,
    /// What it has counted.
    counters: BTreeMap<&'static str, u64>,
}

impl Engine {
    pub(super) fn of(stats: &EngineStats) -> Self {
        let counters = stats.counters.as_deref().unwrap_or_default();
        let operations = stats.operations();
        let cpu_us = stats.count("cpu_us") as f64;
        Engine {
            address: stats.address.to_string(),
            backends: stats.backends.clone(),
            error: stats.counters.as_ref().err().cloned(),
            cpu_us_per_operation: (operations > 0).then(|| cpu_us / operations as f64),
            counters: counters.iter().copied().collect(),
        }
    }

    /// For people.
    pub(super) fn line(&self) -> String {
        let address = &self.address;
        let count = |name| self.counters.get(name).copied().unwrap_or_default();
        match (&self.error, self.cpu_us_per_operation) {
            (Some(_), _) => format!("engine   {address} does not answer"),
            (None, None) => format!("engine   {address}, nothing read yet"),
            (None, Some(each_us)) => {
                // An earlier release does not know it.
                let streams = match self.counters.get("lag_us_max") {
                    Some(lag_us) => format!(
                        ", lag {lag_us} us, {} under way of {}, {} sent again",
                        ByteSize::b(count("in_flight_bytes")),
                        ByteSize::b(count("window_bytes")),
                        count("retransmitted"),
                    ),
                    None => String::new(),
                };
                format!(
                    "engine   {address}, {} reads, {each_us:.2} us each, {} asked again{streams}",
                    count("scans") + count("reads"),
                    count("repeated"),
                )
            }
        }
    }
}

/// What was wrong with engines both times, and what has happened in between.
pub(super) fn findings(before: &[EngineStats], after: &[EngineStats]) -> Vec<Finding> {
    let mut all = Vec::new();
    for engine in after {
        let earlier = before.iter().find(|known| known.address == engine.address);
        if let Some(earlier) = earlier {
            all.extend(one(earlier, engine));
        }
    }
    all
}

fn one(before: &EngineStats, after: &EngineStats) -> Vec<Finding> {
    let (address, backends) = (after.address, &after.backends);
    if let Err(why) = &after.counters {
        if before.counters.is_ok() {
            return Vec::new();
        }
        return vec![Finding::new(
            "engine_down",
            format!("the engine of backends {backends:?} does not answer: {why}"),
            "Read in the log of `cell up` or `engine` why it ended, and start it again; clients \
             on other hosts call meanwhile, which costs their servers more",
        )];
    }
    let mut all = Vec::new();
    let mapped = after.count("backends_mapped");
    let is_short = |engine: &EngineStats| {
        let mapped = engine.count("backends_mapped");
        engine.counters.is_ok() && mapped < engine.backends.len() as u64
    };
    if is_short(before) && is_short(after) {
        all.push(Finding::new(
            "engine_unmapped",
            format!(
                "the engine at {address} reads {mapped} of the {} backends that tell of it",
                backends.len()
            ),
            "See that the others run, and that the engine's user may use their sockets: clients \
             on other hosts call them",
        ));
    }
    let grown = |name| after.count(name).saturating_sub(before.count(name));
    // Its process may be another one by now.
    let is_same = before.count("pid") == after.count("pid");
    let turned_away = grown("turned_away");
    if is_same && turned_away > 0 {
        all.push(Finding::new(
            "engine_strangers",
            format!(
                "the engine at {address} has turned {turned_away} connections away: too many of \
                 one address came to nothing"
            ),
            "Find out who connects and never shows a certificate or token that is believed: a \
             client with a wrong one, or somebody who does not belong there",
        ));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn engine(counters: Result<&[(&'static str, u64)], &str>) -> EngineStats {
        EngineStats {
            address: "10.0.0.1:7431".parse().unwrap(),
            backends: vec![0, 1],
            counters: counters.map(<[_]>::to_vec).map_err(str::to_owned),
        }
    }

    fn kinds(before: &EngineStats, after: &EngineStats) -> Vec<&'static str> {
        let of = |engine: &EngineStats| vec![engine.clone()];
        let all = findings(&of(before), &of(after));
        all.iter().map(|finding| finding.kind).collect()
    }

    #[test]
    fn what_lasts_is_told() {
        let (down, well) = (engine(Err("no")), engine(Ok(&[("backends_mapped", 2)])));
        let short = engine(Ok(&[("backends_mapped", 1)]));
        assert_eq!(kinds(&down, &down), ["engine_down"]);
        assert_eq!(kinds(&short, &short), ["engine_unmapped"]);
        for (before, after) in [
            (&well, &well),
            (&well, &down),
            (&short, &well),
            (&down, &short),
        ] {
            assert!(kinds(before, after).is_empty());
        }
        // One that was not known before is not judged.
        assert!(findings(&[], &[down]).is_empty());
    }

    /// What an engine of an earlier release does not count is left out.
    #[test]
    fn no_more_is_shown_than_is_known() {
        let mut counters = vec![("scans", 4), ("cpu_us", 8), ("repeated", 1)];
        let line = |counters: &[(&'static str, u64)]| Engine::of(&engine(Ok(counters))).line();
        let old = line(&counters);
        assert_eq!(
            old,
            "engine   10.0.0.1:7431, 4 reads, 2.00 us each, 1 asked again"
        );
        counters.extend([("lag_us_max", 310), ("window_bytes", 4096)]);
        let new = line(&counters);
        let more = new.strip_prefix(&old);
        assert_eq!(
            more,
            Some(", lag 310 us, 0 B under way of 4.0 KiB, 0 sent again")
        );
    }

    #[test]
    fn strangers_are_told_while_they_come() {
        let turned = |count, pid| {
            engine(Ok(&[
                ("backends_mapped", 2),
                ("turned_away", count),
                ("pid", pid),
            ]))
        };
        assert_eq!(kinds(&turned(5, 1), &turned(9, 1)), ["engine_strangers"]);
        assert!(kinds(&turned(9, 1), &turned(9, 1)).is_empty());
        assert!(kinds(&turned(5, 1), &turned(9, 2)).is_empty());
    }
}
