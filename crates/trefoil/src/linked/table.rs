//! The report as lines of text.

use super::report::{CorpusReport, Report, Server};
use crate::figures::{aligned, bytes, rate};

/// Columns with their widths; a negative one is left-aligned.
const SERVER_COLUMNS: [(&str, i8); 13] = [
    ("server", 15),
    ("address", -21),
    ("state", -8),
    ("slices", 6),
    ("keys", 6),
    ("load", 5),
    ("CPU", 10),
    ("memory", 20),
    ("requests/s", 10),
    ("values", 9),
    ("stale", 7),
    ("losses", 6),
    ("refused", 7),
];
/// The same, with rates.
const RATE_COLUMNS: [(&str, i8); 2] = [("in/s", 7), ("out/s", 7)];
const SLICE_COLUMNS: [(&str, i8); 5] = [
    ("slice", -33),
    ("CPU", 6),
    ("requests/s", 10),
    ("memory", 11),
    ("owner, copies", -40),
];
/// Changes that `top` shows.
const CHANGES_IN_TOP: usize = 5;

/// The store for somebody who has asked once.
pub(super) fn status(report: &Report) -> Vec<String> {
    let mut lines: Vec<String> = assigners(report).collect();
    for corpus in &report.corpora {
        lines.push(String::new());
        lines.push(head(corpus));
        lines.push(totals(corpus));
        lines.extend(servers(corpus, false));
        lines.extend(slices(corpus));
        lines.extend(corpus.notes.iter().map(|note| format!("  {note}")));
        lines.extend(changes(corpus, usize::MAX));
    }
    lines.push(String::new());
    lines.extend(problems(report));
    lines
}

/// The store for somebody who watches.
pub(super) fn top(report: &Report) -> Vec<String> {
    let mut lines: Vec<String> = assigners(report).collect();
    for corpus in &report.corpora {
        lines.push(String::new());
        lines.push(head(corpus));
        lines.push(format!(
            "  moves/s {}  bytes/s {}  in all {}",
            rate(corpus.moves_per_s),
            bytes(corpus.moved_bytes_per_s),
            totals(corpus).trim_start(),
        ));
        lines.extend(servers(corpus, true));
        lines.extend(slices(corpus));
        lines.extend(changes(corpus, CHANGES_IN_TOP));
    }
    lines.push(String::new());
    lines.extend(problems(report));
    lines
}

fn assigners(report: &Report) -> impl Iterator<Item = String> + '_ {
    report
        .assigners
        .iter()
        .map(|assigner| match &assigner.error {
            Some(error) => format!("assigner {} · does not answer: {error}", assigner.address),
            None => format!(
                "assigner {} · store {} · lease {:.1} s · leads {}",
                assigner.address,
                assigner.store,
                assigner.lease_ms as f64 / 1e3,
                match assigner.leads.is_empty() {
                    true => "nothing".to_owned(),
                    false => assigner.leads.join(", "),
                }
            ),
        })
}

fn head(corpus: &CorpusReport) -> String {
    let leader = match corpus.leader.as_str() {
        "" => "nobody leads".to_owned(),
        leader => format!("led by {leader}"),
    };
    format!(
        "corpus {} · {leader} · generation {} · {} slices · {} servers · freeze {}",
        corpus.corpus,
        corpus.version.as_deref().unwrap_or("none"),
        corpus.slices,
        corpus.servers.len(),
        corpus.freeze,
    )
}

fn totals(corpus: &CorpusReport) -> String {
    let totals = &corpus.totals;
    format!(
        "  {} moves ({}), {} slices lost, {} leases ended, {} maps, {} errors of the store",
        totals.moves,
        bytes(totals.moved_bytes as f64),
        totals.lost_slices,
        totals.expired,
        totals.assignments,
        totals.store_errors,
    )
}

fn dash<T>(value: Option<T>, shown: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), shown)
}

fn row(server: &Server, with_rates: bool) -> Vec<String> {
    let state = match server.settled {
        Some(false) if server.state == "serving" => "arriving",
        _ => &server.state,
    };
    let mut row = vec![
        server.id.to_string(),
        server.address.clone(),
        state.to_owned(),
        server.slices.to_string(),
        format!("{:.1} %", 100.0 * server.key_space),
        dash(server.load, |load| format!("{load:.2}")),
        dash(server.cpu, |cpu| {
            format!("{cpu:.2} of {:.0}", server.cpu_limit)
        }),
        dash(server.bytes, |used| {
            format!(
                "{} of {}",
                bytes(used as f64),
                bytes(server.bytes_limit as f64)
            )
        }),
        dash(server.requests_per_s, rate),
        dash(server.values, |values| values.to_string()),
        dash(server.staleness_ms, |ms| {
            format!("{:.1} s", ms as f64 / 1e3)
        }),
        dash(server.losses, |losses| losses.to_string()),
        dash(server.refusals, |refusals| refusals.to_string()),
    ];
    if with_rates {
        row.extend([rate(server.received_per_s), rate(server.sent_per_s)]);
    }
    row
}

fn servers(corpus: &CorpusReport, with_rates: bool) -> Vec<String> {
    if corpus.servers.is_empty() {
        return vec!["  no server has joined".to_owned()];
    }
    let mut columns = SERVER_COLUMNS.to_vec();
    if with_rates {
        columns.extend(RATE_COLUMNS);
    }
    let rows = corpus.servers.iter().map(|server| row(server, with_rates));
    table(&columns, rows.collect())
}

fn slices(corpus: &CorpusReport) -> Vec<String> {
    if corpus.hottest.is_empty() {
        return Vec::new();
    }
    let rows = corpus.hottest.iter().map(|slice| {
        let servers: Vec<String> = slice.servers.iter().map(u64::to_string).collect();
        vec![
            format!("{}-{}", slice.first, slice.last),
            format!("{:.3}", slice.cpu),
            rate(slice.requests),
            bytes(slice.bytes as f64),
            servers.join(", "),
        ]
    });
    table(&SLICE_COLUMNS, rows.collect())
}

fn table(columns: &[(&str, i8)], rows: Vec<Vec<String>>) -> Vec<String> {
    let names: Vec<String> = columns.iter().map(|(name, _)| (*name).to_owned()).collect();
    let rows = std::iter::once(names).chain(rows);
    rows.map(|row| format!("  {}", aligned(columns, &row)))
        .collect()
}

fn changes(corpus: &CorpusReport, most: usize) -> impl Iterator<Item = String> + '_ {
    corpus.changes.iter().take(most).map(|change| {
        format!(
            "  {:.0} s ago, {}: {}",
            change.seconds_ago, change.version, change.what
        )
    })
}

/// Each with what to do about it.
pub(super) fn problems(report: &Report) -> Vec<String> {
    if report.problems.is_empty() {
        return vec!["nothing to see to".to_owned()];
    }
    let lines = report.problems.iter().flat_map(|problem| {
        let corpus = match problem.corpus.as_str() {
            "" => String::new(),
            corpus => format!("{corpus}: "),
        };
        [
            format!("! {corpus}{}", problem.what),
            format!("  {}", problem.advice),
        ]
    });
    lines.collect()
}
