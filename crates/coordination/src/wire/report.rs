//! Load reports.

use super::{WireError, version_from, version_to};
use crate::generated::v1;
use crate::limits::VITALS_TEXT_LEN_MAX;
use crate::vitals::{LastLoss, Report, Vitals};
use trefoil_sharder::{HotKey, KeyPoint, Load, ServerId, ServerReport, Slice, SliceLoad, Unstored};

fn load_to(load: Load) -> v1::Load {
    v1::Load {
        cpu_shared: load.cpu_shared,
        cpu_each: load.cpu_each,
        requests: load.requests,
        bytes: load.bytes,
    }
}

fn load_from(load: Option<v1::Load>) -> Load {
    load.map_or_else(Load::default, |load| Load {
        cpu_shared: load.cpu_shared,
        cpu_each: load.cpu_each,
        requests: load.requests,
        bytes: load.bytes,
    })
}

fn vitals_to(vitals: &Vitals) -> v1::Vitals {
    v1::Vitals {
        release: vitals.release.clone(),
        settled: vitals.settled,
        entries: vitals.entries,
        bytes: vitals.bytes,
        slices_short: vitals.slices_short,
        unconfirmed_bytes: vitals.unconfirmed_bytes,
        received: vitals.received,
        sent: vitals.sent,
        losses: vitals.losses,
        last_loss: vitals.last_loss.as_ref().map(|loss| v1::LastLoss {
            ago_ms: loss.ago_ms,
            what: shortened(&loss.what),
        }),
        copies_refused: vitals.copies_refused,
        moves_refused: vitals.moves_refused,
        commits_refused: vitals.commits_refused,
        commits_indeterminate: vitals.commits_indeterminate,
        staleness_ms: vitals.staleness_ms,
    }
}

fn vitals_from(vitals: v1::Vitals) -> Vitals {
    Vitals {
        release: shortened(&vitals.release),
        settled: vitals.settled,
        entries: vitals.entries,
        bytes: vitals.bytes,
        slices_short: vitals.slices_short,
        unconfirmed_bytes: vitals.unconfirmed_bytes,
        received: vitals.received,
        sent: vitals.sent,
        losses: vitals.losses,
        last_loss: vitals.last_loss.map(|loss| LastLoss {
            ago_ms: loss.ago_ms,
            what: shortened(&loss.what),
        }),
        copies_refused: vitals.copies_refused,
        moves_refused: vitals.moves_refused,
        commits_refused: vitals.commits_refused,
        commits_indeterminate: vitals.commits_indeterminate,
        staleness_ms: vitals.staleness_ms,
    }
}

/// The assigner keeps it: nobody fills its memory, or a terminal, with it.
fn shortened(text: &str) -> String {
    let printable = text.chars().filter(|letter| !letter.is_control());
    printable.take(VITALS_TEXT_LEN_MAX).collect()
}

pub(crate) fn report_to(corpus: &str, report: &Report) -> v1::ReportRequest {
    let vitals = report.vitals.as_ref().map(vitals_to);
    let report = &report.load;
    v1::ReportRequest {
        vitals,
        corpus: corpus.to_owned(),
        id: report.server.0,
        sequence: report.sequence,
        version: Some(version_to(report.version)),
        slices: report
            .slices
            .iter()
            .map(|slice| v1::SliceLoad {
                start: slice.slice.start().0,
                last: slice.slice.last().0,
                load: Some(load_to(slice.load)),
            })
            .collect(),
        hot_keys: report
            .hot_keys
            .iter()
            .map(|hot| v1::HotKey {
                point: hot.point.0,
                load: Some(load_to(hot.load)),
            })
            .collect(),
        unstored: report
            .unstored
            .iter()
            .map(|unstored| v1::Unstored {
                point: unstored.point.0,
                server: unstored.server.0,
            })
            .collect(),
    }
}

pub(crate) fn report_from(message: v1::ReportRequest) -> Result<Report, WireError> {
    let vitals = message.vitals.map(vitals_from);
    let version = message
        .version
        .ok_or_else(|| WireError::new("version", "it is missing"))?;
    let slices = message
        .slices
        .into_iter()
        .map(|slice| {
            Slice::new(KeyPoint(slice.start), u128::from(slice.last) + 1)
                .map(|at| SliceLoad {
                    slice: at,
                    load: load_from(slice.load),
                })
                .ok_or_else(|| WireError::new("slices", "one ends before it starts"))
        })
        .collect::<Result<_, _>>()?;
    let report = ServerReport {
        server: ServerId(message.id),
        sequence: message.sequence,
        version: version_from(version),
        slices,
        hot_keys: message
            .hot_keys
            .into_iter()
            .map(|hot| HotKey {
                point: KeyPoint(hot.point),
                load: load_from(hot.load),
            })
            .collect(),
        unstored: message
            .unstored
            .into_iter()
            .map(|unstored| Unstored {
                point: KeyPoint(unstored.point),
                server: ServerId(unstored.server),
            })
            .collect(),
    };
    report
        .validate()
        .map_err(|error| WireError::new("report", error))?;
    Ok(Report {
        load: report,
        vitals,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use trefoil_sharder::AssignmentVersion;

    #[test]
    fn there_and_back_and_nonsense() {
        let load = Load {
            cpu_shared: 0.5,
            cpu_each: 0.25,
            requests: 100.0,
            bytes: 4096.0,
        };
        let report = ServerReport {
            server: ServerId(3),
            sequence: 8,
            version: AssignmentVersion::first_of(2),
            slices: vec![SliceLoad {
                slice: Slice::ALL,
                load,
            }],
            hot_keys: vec![HotKey {
                point: KeyPoint(77),
                load,
            }],
            unstored: vec![Unstored {
                point: KeyPoint(78),
                server: ServerId(4),
            }],
        };
        let vitals = Vitals {
            release: "1.2.3".to_owned(),
            settled: true,
            entries: 1,
            bytes: 2,
            slices_short: 3,
            unconfirmed_bytes: 4,
            received: 5,
            sent: 6,
            losses: 7,
            last_loss: Some(LastLoss {
                ago_ms: 8,
                what: "a server died".to_owned(),
            }),
            copies_refused: 9,
            moves_refused: 10,
            commits_refused: 11,
            commits_indeterminate: 12,
            staleness_ms: Some(0),
        };
        let report = Report {
            load: report,
            vitals: Some(vitals),
        };
        let message = report_to("c", &report);
        assert_eq!(report_from(message.clone()), Ok(report));
        let mut long = message.clone();
        let said = long.vitals.as_mut().unwrap();
        said.release = format!("\u{1b}[2J{}", "x".repeat(VITALS_TEXT_LEN_MAX * 2));
        let release = report_from(long).unwrap().vitals.unwrap().release;
        assert_eq!(release.len(), VITALS_TEXT_LEN_MAX);
        assert!(release.starts_with("[2Jx"));
        let broken = |change: fn(&mut v1::ReportRequest)| {
            let mut message = message.clone();
            change(&mut message);
            report_from(message).expect_err("it is broken").field
        };
        assert_eq!(broken(|m| m.version = None), "version");
        assert_eq!(
            broken(|m| m.slices[0].load.as_mut().unwrap().bytes = -1.0),
            "report"
        );
        assert_eq!(
            broken(|m| (m.slices[0].start, m.slices[0].last) = (2, 1)),
            "slices"
        );
    }
}
