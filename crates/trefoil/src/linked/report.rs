//! The store as a whole, and what has happened between two readings.

use super::document::{Change, Corpus, Member, Node, Problem, Slice, Totals, Vitals};
use super::problems;
use super::reading::Reading;
use serde::Serialize;
use std::collections::BTreeMap;

/// One object of `--json`.
#[derive(Serialize, Clone, Debug, Default)]
pub(super) struct Report {
    pub(super) unix_ms: u64,
    /// Seconds that the rates are over; 0 where there are none.
    pub(super) seconds: f64,
    pub(super) assigners: Vec<Assigner>,
    pub(super) corpora: Vec<CorpusReport>,
    /// What somebody should see to.
    pub(super) problems: Vec<Problem>,
}

#[derive(Serialize, Clone, Debug, Default)]
pub(super) struct Assigner {
    pub(super) address: String,
    pub(super) answers: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
    pub(super) store: String,
    pub(super) lease_ms: u64,
    /// Corpora that it leads.
    pub(super) leads: Vec<String>,
}

/// As whoever leads it says; if nobody does, as one that follows.
#[derive(Serialize, Clone, Debug, Default)]
pub(super) struct CorpusReport {
    pub(super) corpus: String,
    /// The address of the assigner that leads; empty if nobody does.
    pub(super) leader: String,
    pub(super) version: Option<String>,
    pub(super) freeze: String,
    /// Why the map stays as it is though nobody wants it to.
    pub(super) held_back: Option<String>,
    pub(super) slices: u64,
    pub(super) servers: Vec<Server>,
    pub(super) hottest: Vec<Slice>,
    pub(super) changes: Vec<Change>,
    pub(super) notes: Vec<String>,
    pub(super) totals: Totals,
    /// Slices moved or copied.
    pub(super) moves_per_s: f64,
    pub(super) moved_bytes_per_s: f64,
}

#[derive(Serialize, Clone, Debug, Default)]
pub(super) struct Server {
    pub(super) id: u64,
    pub(super) address: String,
    pub(super) state: String,
    pub(super) release: Option<String>,
    pub(super) slices: u64,
    /// Part of the key space, copies counted in full.
    pub(super) key_space: f64,
    /// In fair shares, the larger of both metrics.
    pub(super) load: Option<f64>,
    /// CPU-seconds per second, of `cpu_limit`.
    pub(super) cpu: Option<f64>,
    pub(super) cpu_limit: f64,
    /// Bytes of its values, of `bytes_limit`.
    pub(super) bytes: Option<u64>,
    pub(super) bytes_limit: u64,
    pub(super) requests_per_s: Option<f64>,
    pub(super) values: Option<u64>,
    pub(super) heard_ms: Option<u64>,
    /// How old what it keeps of a database may be.
    pub(super) staleness_ms: Option<u64>,
    /// Everything that is assigned to it has arrived.
    pub(super) settled: Option<bool>,
    pub(super) slices_short: Option<u64>,
    /// Since it began.
    pub(super) losses: Option<u64>,
    /// Commits refused for want of copies or not known to be done, and values and
    /// copies that could not be stored, since it began.
    pub(super) refusals: Option<u64>,
    pub(super) received_per_s: f64,
    pub(super) sent_per_s: f64,
}

impl Report {
    /// Without rates.
    pub(super) fn of(now: &Reading) -> Report {
        Report {
            seconds: 0.0,
            ..Report::between(now, now)
        }
    }

    /// Rates of what was not there before, or began anew, are 0.
    pub(super) fn between(before: &Reading, now: &Reading) -> Report {
        let seconds = now.at.duration_since(before.at).as_secs_f64().max(1e-3);
        let mut report = Report {
            unix_ms: now.unix_ms,
            seconds,
            assigners: now.assigners.iter().map(assigner).collect(),
            problems: problems::of_assigners(now),
            ..Report::default()
        };
        let earlier = by_name(before);
        for (name, (node, corpus)) in by_name(now) {
            let earlier = earlier
                .get(name)
                .filter(|(same, _)| same.address == node.address);
            let earlier = earlier.map_or(corpus, |(_, corpus)| corpus);
            report
                .corpora
                .push(of_corpus(node, earlier, corpus, seconds));
            let named = corpus.problems.iter().map(|problem| Problem {
                corpus: name.to_owned(),
                ..problem.clone()
            });
            report.problems.extend(named);
        }
        report
    }
}

/// What is known of each corpus: by whoever leads it, else by anybody.
fn by_name(reading: &Reading) -> BTreeMap<&str, (&Node, &Corpus)> {
    let mut found: BTreeMap<&str, (&Node, &Corpus)> = BTreeMap::new();
    for node in reading.nodes() {
        for corpus in &node.corpora {
            let known = found.get(corpus.corpus.as_str());
            if corpus.leads || known.is_none() {
                found.insert(&corpus.corpus, (node, corpus));
            }
        }
    }
    found
}

fn assigner((host, node): &(String, Result<Node, String>)) -> Assigner {
    match node {
        Err(error) => Assigner {
            address: host.clone(),
            error: Some(error.clone()),
            ..Assigner::default()
        },
        Ok(node) => Assigner {
            address: node.address.clone(),
            answers: true,
            error: None,
            store: node.store.clone(),
            lease_ms: node.lease_ms,
            leads: node
                .corpora
                .iter()
                .filter(|corpus| corpus.leads)
                .map(|corpus| corpus.corpus.clone())
                .collect(),
        },
    }
}

fn of_corpus(node: &Node, earlier: &Corpus, corpus: &Corpus, seconds: f64) -> CorpusReport {
    let rate = |before: u64, now: u64| now.saturating_sub(before) as f64 / seconds;
    let servers = corpus.members.iter().map(|member| {
        let before = earlier.members.iter().find(|known| known.id == member.id);
        server(before.unwrap_or(member), member, seconds)
    });
    CorpusReport {
        corpus: corpus.corpus.clone(),
        leader: match corpus.leads {
            true => node.address.clone(),
            false => corpus.leader.clone(),
        },
        version: corpus.version.clone(),
        freeze: corpus.freeze.clone(),
        held_back: corpus.frozen_because.clone(),
        slices: corpus.slices,
        servers: servers.collect(),
        hottest: corpus.hottest.clone(),
        changes: corpus.changes.clone(),
        notes: corpus.notes.clone(),
        totals: corpus.totals,
        moves_per_s: rate(earlier.totals.moves, corpus.totals.moves),
        moved_bytes_per_s: rate(earlier.totals.moved_bytes, corpus.totals.moved_bytes),
    }
}

fn server(before: &Member, member: &Member, seconds: f64) -> Server {
    let vitals = member.vitals.as_ref();
    let grown = |of: fn(&Vitals) -> u64| {
        let now = vitals.map_or(0, of);
        let earlier = before.vitals.as_ref().map_or(now, of);
        now.saturating_sub(earlier) as f64 / seconds
    };
    Server {
        id: member.id,
        address: member.address.clone(),
        state: member.state.clone(),
        release: vitals.map(|vitals| vitals.release.clone()),
        slices: member.slices,
        key_space: member.key_space,
        load: member.load,
        cpu: member.cpu_used,
        cpu_limit: member.cpu,
        bytes: member.bytes_used,
        bytes_limit: member.bytes,
        requests_per_s: member.requests,
        values: vitals.map(|vitals| vitals.entries),
        heard_ms: member.heard_ms,
        staleness_ms: vitals.and_then(|vitals| vitals.staleness_ms),
        settled: vitals.map(|vitals| vitals.settled),
        slices_short: vitals.map(|vitals| vitals.slices_short),
        losses: vitals.map(|vitals| vitals.losses),
        refusals: vitals.map(|v| {
            v.copies_refused + v.moves_refused + v.commits_refused + v.commits_indeterminate
        }),
        received_per_s: grown(|vitals| vitals.received),
        sent_per_s: grown(|vitals| vitals.sent),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    fn node(address: &str, leads: bool, moves: u64) -> Node {
        let text = serde_json::json!({
            "address": address,
            "store": "etcd://h:1/x",
            "lease_ms": 2500,
            "turned_away": [{"corpus": "male", "requests": 3}],
            "corpora": [{
                "corpus": "mail", "leads": leads, "leader": "a:1", "slices": 8,
                "totals": {"moves": moves, "moved_bytes": moves * 100},
                "members": [{"id": 7, "address": "s:1", "vitals": {"received": moves * 2}}],
                "problems": [{"kind": "frozen", "what": "w", "advice": "a"}],
            }],
        });
        serde_json::from_value(text).unwrap()
    }

    fn reading(at: Instant, assigners: Vec<(&str, Result<Node, String>)>) -> Reading {
        let named = assigners
            .into_iter()
            .map(|(host, node)| (host.to_owned(), node));
        Reading {
            at,
            unix_ms: 1,
            assigners: named.collect(),
        }
    }

    #[test]
    fn the_leader_is_believed_and_rates_are_over_its_readings() {
        let begin = Instant::now();
        let follower = || ("b:1", Ok(node("b:1", false, 0)));
        let before = reading(begin, vec![follower(), ("a:1", Ok(node("a:1", true, 10)))]);
        let later = begin + Duration::from_secs(2);
        let now = reading(later, vec![follower(), ("a:1", Ok(node("a:1", true, 14)))]);
        let report = Report::between(&before, &now);
        let corpus = &report.corpora[0];
        assert_eq!((corpus.leader.as_str(), corpus.slices), ("a:1", 8));
        assert_eq!((corpus.moves_per_s, corpus.moved_bytes_per_s), (2.0, 200.0));
        assert_eq!(corpus.servers[0].received_per_s, 4.0);
        assert_eq!(report.assigners[1].leads, ["mail"]);
        // Another one leads now: what it counts has nothing to do with the former's.
        let other = reading(later, vec![("b:1", Ok(node("b:1", true, 5_000)))]);
        assert_eq!(Report::between(&before, &other).corpora[0].moves_per_s, 0.0);
    }

    #[test]
    fn what_is_wrong_with_assigners_is_said() {
        let both = vec![
            ("a:1", Ok(node("a:1", true, 0))),
            ("b:1", Ok(node("b:1", true, 0))),
            ("c:1", Err("no assigner answers at c:1: refused".to_owned())),
        ];
        let report = Report::of(&reading(Instant::now(), both));
        let kinds: Vec<&str> = report.problems.iter().map(|p| p.kind.as_str()).collect();
        assert_eq!(kinds, ["assigner", "corpus", "corpus", "leader", "frozen"]);
        assert!(
            report
                .problems
                .iter()
                .all(|problem| !problem.advice.is_empty())
        );
        assert_eq!(report.problems[4].corpus, "mail");
    }
}
