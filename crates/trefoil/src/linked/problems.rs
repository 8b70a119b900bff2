//! What only whoever asks all assigners can see.

use super::document::{Node, Problem};
use super::reading::Reading;
use std::collections::BTreeMap;

fn problem(corpus: &str, kind: &str, what: String, advice: &str) -> Problem {
    Problem {
        corpus: corpus.to_owned(),
        kind: kind.to_owned(),
        what,
        advice: advice.to_owned(),
    }
}

/// Those of the assigners themselves, and of corpora that nobody leads or two do.
pub(super) fn of_assigners(reading: &Reading) -> Vec<Problem> {
    let mut found = Vec::new();
    for (host, node) in &reading.assigners {
        if let Err(reason) = node {
            found.push(problem(
                "",
                "assigner",
                reason.clone(),
                &format!("start the one at {host} again, or take it out of --assigner"),
            ));
        }
    }
    let mut leaders: BTreeMap<&str, Vec<(&Node, u64)>> = BTreeMap::new();
    for node in reading.nodes() {
        for turned in &node.turned_away {
            let corpus = &turned.corpus;
            found.push(problem(
                corpus,
                "corpus",
                format!(
                    "corpus {corpus} is asked for at {} ({} requests), and nobody serves it",
                    node.address, turned.requests
                ),
                &format!("is --corpus {corpus} missing, or misspelt?"),
            ));
        }
        for corpus in &node.corpora {
            let of = leaders.entry(&corpus.corpus).or_default();
            if corpus.leads {
                of.push((node, corpus.term));
            }
        }
    }
    for (corpus, leaders) in leaders {
        let names: Vec<&str> = leaders
            .iter()
            .map(|(node, _)| node.address.as_str())
            .collect();
        if names.len() > 1 {
            found.push(problem(
                corpus,
                "leader",
                format!("{} say that they lead corpus {corpus}", names.join(" and ")),
                "with one store that ends within a moment; with several, servers would follow \
                 two maps: give all assigners the same --store",
            ));
        }
    }
    found
}
