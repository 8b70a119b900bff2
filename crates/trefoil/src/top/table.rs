//! The report as lines of text.

use super::report::{Backend, Engine, Report};
use crate::cell::status::is_up;
pub(super) use crate::figures::{aligned, bytes, rate};

/// Columns of the tables, with their widths; a negative one is left-aligned.
pub(super) const COMMAND_COLUMNS: [(&str, i8); 5] = [
    ("command", -9),
    ("per s", 10),
    ("p50 µs", 9),
    ("p99 µs", 9),
    ("p99.9 µs", 9),
];
/// See [`COMMAND_COLUMNS`].
pub(super) const KEY_COLUMNS: [(&str, i8); 3] = [("ops/s", 10), ("bytes/s", 12), ("key", -40)];
/// See [`COMMAND_COLUMNS`].
pub(super) const BACKEND_COLUMNS: [(&str, i8); 11] = [
    ("backend", 7),
    ("state", -10),
    ("pid", 8),
    ("items", 11),
    ("resident", 11),
    ("limit", 11),
    ("reads/s", 9),
    ("writes/s", 9),
    ("config", 6),
    ("epoch", 5),
    ("lease ms", 8),
];
/// See [`COMMAND_COLUMNS`].
pub(super) const ENGINE_COLUMNS: [(&str, i8); 13] = [
    ("engine", -21),
    ("threads", 7),
    ("clients", 7),
    ("reads/s", 9),
    ("in/s", 10),
    ("out/s", 10),
    ("again/s", 7),
    ("under way", 10),
    ("window", 10),
    ("busy", 5),
    ("lag µs", 7),
    ("cores", 5),
    ("µs each", 7),
];

/// A number of microseconds.
fn micros(us: f64) -> String {
    match us {
        us if us >= 1e6 => format!("{:.1} s", us / 1e6),
        us if us >= 1e4 => format!("{:.1} ms", us / 1e3),
        us if us >= 100.0 => format!("{us:.0}"),
        us => format!("{us:.1}"),
    }
}

/// The lines above the tables.
pub(super) fn head(report: &Report) -> Vec<String> {
    let memory = &report.memory;
    let operations = &report.operations;
    let up = report.backends.iter().filter(|b| is_up(b.state)).count();
    let full = memory.resident_bytes as f64 / memory.limit_bytes.max(1) as f64;
    let mut lines = vec![
        format!(
            "cell {}  {}  config id {}  {up} of {} backends up  CPU {:.2} cores",
            report.cell,
            report.mode,
            report.config_id,
            report.backends.len(),
            operations.cpu_cores,
        ),
        format!(
            "memory   {} of {} ({:.0} %)  items {} in all copies  evictions/s {}  expired/s {}",
            bytes(memory.resident_bytes as f64),
            bytes(memory.limit_bytes as f64),
            100.0 * full,
            memory.items,
            rate(memory.evictions_per_s),
            rate(memory.expired_per_s),
        ),
        format!(
            "backends reported reads/s {}  lookups/s {}  mutations/s {}",
            rate(operations.reported_reads_per_s),
            rate(operations.lookups_per_s),
            rate(operations.mutations_per_s),
        ),
    ];
    lines.push(match &report.gateway {
        Some(gateway) => format!(
            "gateway  commands/s {}  hit ratio {}  connections {}  in/s {}  out/s {}  slow/s {}  faults/s {}",
            rate(gateway.commands_per_s),
            gateway
                .hit_ratio
                .map_or("-".into(), |ratio| format!("{:.1} %", 100.0 * ratio)),
            gateway.connections,
            bytes(gateway.read_bytes_per_s),
            bytes(gateway.written_bytes_per_s),
            rate(gateway.slow_per_s),
            rate(gateway.faults_per_s),
        ),
        None => "gateway  none in the backends' processes: hits, misses and latencies are the clients'".into(),
    });
    lines
}

/// Rows of [`COMMAND_COLUMNS`].
pub(super) fn command_rows(report: &Report) -> Vec<Vec<String>> {
    let commands = report.gateway.iter().flat_map(|gateway| &gateway.commands);
    let row = commands.map(|command| {
        vec![
            command.command.clone(),
            rate(command.per_s),
            micros(command.p50_us),
            micros(command.p99_us),
            micros(command.p999_us),
        ]
    });
    row.collect()
}

/// Rows of [`KEY_COLUMNS`].
pub(super) fn key_rows(report: &Report) -> Vec<Vec<String>> {
    let row = report
        .keys
        .iter()
        .map(|key| vec![rate(key.ops_per_s), bytes(key.bytes_per_s), key.key.clone()]);
    row.collect()
}

/// Rows of [`BACKEND_COLUMNS`]; one that says nothing has its error in the fourth.
pub(super) fn backend_rows(report: &Report) -> Vec<Vec<String>> {
    report.backends.iter().map(backend_row).collect()
}

fn backend_row(backend: &Backend) -> Vec<String> {
    let mut row = vec![backend.number.to_string(), backend.state.to_owned()];
    row.push(
        backend
            .pid
            .map_or_else(|| "-".to_owned(), |pid| pid.to_string()),
    );
    if let Some(error) = &backend.error {
        row.push(error.clone());
        return row;
    }
    row.extend([
        backend.items.to_string(),
        bytes(backend.resident_bytes as f64),
        bytes(backend.limit_bytes as f64),
        rate(backend.reported_reads_per_s),
        rate(backend.mutations_per_s),
        backend.config_id.to_string(),
        backend.epoch.to_string(),
        backend.lease_age_ms.to_string(),
    ]);
    row
}

/// Rows of [`ENGINE_COLUMNS`]; one that says nothing has its error in the second.
pub(super) fn engine_rows(report: &Report) -> Vec<Vec<String>> {
    report.engines.iter().map(engine_row).collect()
}

fn engine_row(engine: &Engine) -> Vec<String> {
    let mut row = vec![engine.address.clone()];
    if let Some(error) = &engine.error {
        row.push(error.clone());
        return row;
    }
    let each_us = engine.cpu_us_per_operation;
    let known = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let size = |count: Option<u64>| known(count.map(|count| bytes(count as f64)));
    let sent_again = engine.retransmitted_per_s.unwrap_or(0.0);
    row.extend([
        engine.threads.to_string(),
        engine.sessions.to_string(),
        rate(engine.operations_per_s),
        bytes(engine.in_bytes_per_s),
        bytes(engine.out_bytes_per_s),
        rate(engine.repeated_per_s + sent_again),
        size(engine.in_flight_bytes),
        size(engine.window_bytes),
        known(engine.busy.map(|busy| format!("{busy:.2}"))),
        known(engine.lag_us_max.map(|us| micros(us as f64))),
        format!("{:.2}", engine.cpu_cores),
        known(each_us.map(micros)),
    ]);
    row
}

/// Everything, for `--once`.
pub(super) fn text(report: &Report) -> Vec<String> {
    let mut lines = head(report);
    let mut table = |columns: &[(&str, i8)], rows: Vec<Vec<String>>| {
        if rows.is_empty() {
            return;
        }
        lines.push(String::new());
        let names: Vec<String> = columns.iter().map(|(name, _)| (*name).to_owned()).collect();
        for row in std::iter::once(&names).chain(&rows) {
            lines.push(aligned(columns, row));
        }
    };
    table(&COMMAND_COLUMNS, command_rows(report));
    table(&KEY_COLUMNS, key_rows(report));
    table(&BACKEND_COLUMNS, backend_rows(report));
    table(&ENGINE_COLUMNS, engine_rows(report));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let rates = [0.0, 0.25, 99.94, 123.4, 12_345.0, 1.5e6, 2e9].map(rate);
        assert_eq!(
            rates,
            ["0", "0.2", "99.9", "123", "12.3 k", "1.50 M", "2.00 G"]
        );
        assert_eq!(
            [0.5, 250.2, 12_000.0, 3e6].map(micros),
            ["0.5", "250", "12.0 ms", "3.0 s"]
        );
    }

    #[test]
    fn engines_are_shown_and_one_that_is_away_says_why() {
        let engine = |address: &str, error: Option<&str>| Engine {
            address: address.to_owned(),
            error: error.map(str::to_owned),
            threads: 2,
            sessions: 3,
            operations_per_s: 25_000.0,
            repeated_per_s: 1.0,
            retransmitted_per_s: Some(2.0),
            in_flight_bytes: Some(4096),
            window_bytes: Some(65_536),
            busy: Some(0.25),
            lag_us_max: Some(310),
            cpu_cores: 0.05,
            cpu_us_per_operation: Some(2.04),
            ..Engine::default()
        };
        let report = Report {
            engines: vec![
                engine("10.0.0.1:7431", None),
                engine("10.0.0.2:7431", Some("cannot reach it")),
            ],
            ..Report::default()
        };
        let lines = text(&report);
        let [head, one, other] = lines.last_chunk().unwrap();
        assert!(
            head.starts_with("engine ") && head.ends_with("µs each"),
            "{head}"
        );
        let words: Vec<&str> = one.split_whitespace().collect();
        let expected = ["10.0.0.1:7431", "2", "3", "25.0", "k"];
        assert_eq!(words[..5], expected);
        let expected = [
            "3.0", "4.0", "KiB", "64.0", "KiB", "0.25", "310", "0.05", "2.0",
        ];
        assert_eq!(words[words.len() - 9..], expected);
        assert_eq!(other, "10.0.0.2:7431          cannot reach it");
    }

    #[test]
    fn what_an_engine_of_an_earlier_release_does_not_count_is_not_shown_as_nought() {
        let row = engine_row(&Engine {
            address: "10.0.0.1:7431".into(),
            threads: 1,
            ..Engine::default()
        });
        let shown: Vec<(&str, &str)> = ENGINE_COLUMNS
            .iter()
            .zip(&row)
            .map(|((name, _), text)| (*name, text.as_str()))
            .collect();
        for name in ["under way", "window", "busy", "lag µs"] {
            assert!(shown.contains(&(name, "-")), "{shown:?}");
        }
        assert!(shown.contains(&("threads", "1")), "{shown:?}");
    }

    #[test]
    fn a_backend_that_is_down_says_why() {
        let report = Report {
            backends: vec![Backend {
                number: 2,
                state: "down",
                error: Some("connection refused".into()),
                ..Backend::default()
            }],
            ..Report::default()
        };
        let lines = text(&report);
        assert!(lines[0].contains("0 of 1 backends up"), "{lines:?}");
        assert_eq!(
            lines.last().unwrap(),
            "      2  down               -  connection refused"
        );
    }
}
