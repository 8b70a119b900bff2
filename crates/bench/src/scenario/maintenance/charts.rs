//! A run as a picture and as CSV.

use std::collections::BTreeSet;
use std::io;

use super::run::MaintenanceRun;
use super::slots::Slot;
use crate::report::{Panel, PanelsPlot, Scale, TimelineEvent, bytes, nanoseconds, rate};

const PERCENTILES: [&str; 3] = ["p50", "p99", "p99.9"];
const COLUMNS: [&str; 16] = [
    "seconds",
    "gets",
    "sets",
    "get_p50_ns",
    "get_p99_ns",
    "get_p999_ns",
    "set_p50_ns",
    "set_p99_ns",
    "set_p999_ns",
    "failed",
    "missed",
    "stale",
    "retried",
    "copied_bytes",
    "repaired_bytes",
    "client_cores",
];

/// Latency, rate, bytes and CPU, with the events marked.
pub(super) fn picture(run: &MaintenanceRun) -> PanelsPlot {
    let slot_s = run.slot_ms as f64 / 1e3;
    let line = |name: &str, value: &dyn Fn(&Slot) -> f64| {
        let at = |slot: &Slot| (slot.start_ms as f64 / 1e3 + slot_s / 2.0, value(slot));
        (name.to_owned(), run.slots.iter().map(at).collect())
    };
    let percentiles = |of: fn(&Slot) -> &[u64; 3]| {
        let of_place = |(place, name): (usize, &&str)| line(name, &|slot| of(slot)[place] as f64);
        PERCENTILES.iter().enumerate().map(of_place).collect()
    };
    let latency = |what: &str, series| Panel {
        what: what.to_owned(),
        scale: Scale::Logarithmic,
        unit: |ns| nanoseconds(ns as u64),
        series,
    };
    let mut cpu: Vec<_> = processes(run)
        .into_iter()
        .map(|name| {
            line(name, &|slot| {
                slot.server_cores.get(name).copied().unwrap_or(0.0)
            })
        })
        .collect();
    cpu.push(line("client, in operations", &|slot| slot.client_cores));
    PanelsPlot {
        title: format!("{}: {} under load", run.title, bytes(run.corpus_bytes)),
        panels: vec![
            latency("GET", percentiles(|slot| &slot.get_ns)),
            latency("SET", percentiles(|slot| &slot.set_ns)),
            Panel {
                what: "operations".to_owned(),
                scale: Scale::Linear,
                unit: rate,
                series: vec![
                    line("GET", &|slot| slot.gets as f64 / slot_s),
                    line("SET", &|slot| slot.sets as f64 / slot_s),
                    line("failed, missed, old", &|slot| {
                        (slot.failed + slot.misses + slot.stale) as f64 / slot_s
                    }),
                ],
            },
            Panel {
                what: "bytes per second".to_owned(),
                scale: Scale::Linear,
                unit: |len| bytes(len as u64),
                series: vec![
                    line("copied", &|slot| slot.copied_bytes as f64 / slot_s),
                    line("scans and repairs", &|slot| {
                        slot.repaired_bytes as f64 / slot_s
                    }),
                ],
            },
            Panel {
                what: "cores used".to_owned(),
                scale: Scale::Linear,
                unit: |cores| format!("{cores:.2}"),
                series: cpu,
            },
        ],
        events: run
            .events
            .iter()
            .map(|event| TimelineEvent {
                at_ms: event.at_ms,
                label: event.label.clone(),
            })
            .collect(),
    }
}

/// A line for each slot. The last column names what happened in it.
pub(super) fn csv(run: &MaintenanceRun) -> io::Result<Vec<u8>> {
    let processes = processes(run);
    let mut writer = csv::Writer::from_writer(Vec::new());
    let heads = COLUMNS.iter().map(|&head| head.to_owned());
    let cores = processes
        .iter()
        .map(|name| format!("{}_cores", name.replace(' ', "_")));
    let last = std::iter::once("event".to_owned());
    writer.write_record(heads.chain(cores).chain(last))?;
    for slot in &run.slots {
        let own = slot.start_ms..slot.start_ms + run.slot_ms;
        let events = run.events.iter().filter(|event| own.contains(&event.at_ms));
        let events: Vec<&str> = events.map(|event| event.label.as_str()).collect();
        let [get_p50, get_p99, get_p999] = slot.get_ns;
        let [set_p50, set_p99, set_p999] = slot.set_ns;
        let counts = [
            slot.gets,
            slot.sets,
            get_p50,
            get_p99,
            get_p999,
            set_p50,
            set_p99,
            set_p999,
            slot.failed,
            slot.misses,
            slot.stale,
            slot.retried,
            slot.copied_bytes,
            slot.repaired_bytes,
        ];
        let mut record = vec![format!("{:.1}", slot.start_ms as f64 / 1e3)];
        record.extend(counts.map(|count| count.to_string()));
        record.push(format!("{:.3}", slot.client_cores));
        for name in &processes {
            let cores = slot.server_cores.get(*name).copied().unwrap_or(0.0);
            record.push(format!("{cores:.3}"));
        }
        record.push(events.join(" + "));
        writer.write_record(&record)?;
    }
    writer
        .into_inner()
        .map_err(|error| io::Error::other(error.to_string()))
}

/// All processes of the cell that were seen, by name.
fn processes(run: &MaintenanceRun) -> BTreeSet<&str> {
    let names = run.slots.iter().flat_map(|slot| slot.server_cores.keys());
    names.map(String::as_str).collect()
}

#[cfg(test)]
mod tests {
    use super::super::super::read_back::ReadBack;
    use super::super::super::steady::Course;
    use super::super::phase::Phase;
    use super::super::run::MaintenanceEvent;
    use super::*;
    use std::collections::BTreeMap;

    fn run() -> MaintenanceRun {
        let slot = |number: u64| Slot {
            start_ms: number * 200,
            gets: 4000,
            get_ns: [500, 900, 12_000],
            copied_bytes: if number == 2 { 1 << 20 } else { 0 },
            server_cores: BTreeMap::from([("backend 0".to_owned(), 0.25)]),
            ..Slot::default()
        };
        MaintenanceRun {
            name: "planned-r1",
            title: "Planned",
            mode: "R=1",
            keys: 5,
            corpus_bytes: 1 << 20,
            before: Phase::default(),
            during: Phase::default(),
            after: Phase::default(),
            read_back: ReadBack::default(),
            load: Course::default(),
            events: ["drain", "back"]
                .map(|label| MaintenanceEvent {
                    at_ms: 450,
                    label: label.to_owned(),
                })
                .to_vec(),
            slot_ms: 200,
            slots: (0..5).map(slot).collect(),
        }
    }

    #[test]
    fn every_slot_is_a_line_and_events_stand_where_they_happened() {
        let text = String::from_utf8(csv(&run()).unwrap()).unwrap();
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split(',').collect()).collect();
        assert_eq!(lines.len(), 6);
        assert!(lines.iter().all(|line| line.len() == COLUMNS.len() + 2));
        assert_eq!(lines[0][COLUMNS.len()], "backend_0_cores");
        assert_eq!((lines[3][0], lines[3][13]), ("0.4", "1048576"));
        assert_eq!(lines[3][COLUMNS.len()..], ["0.250", "drain + back"]);
        assert_eq!(lines[4].last(), Some(&""));
    }

    #[test]
    fn the_picture_has_all_quantities_and_the_events() {
        let picture = picture(&run());
        assert_eq!(picture.panels.len(), 5);
        assert_eq!(picture.events.len(), 2);
        let copied = &picture.panels[3].series[0].1;
        assert_eq!(copied[2], (0.5, 5.0 * f64::from(1 << 20)));
        assert_eq!(picture.panels[4].series.len(), 2);
    }
}
