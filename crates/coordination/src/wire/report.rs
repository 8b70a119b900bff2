//! Load reports.

use super::{WireError, version_from, version_to};
use crate::generated::v1;
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

pub(crate) fn report_to(corpus: &str, report: &ServerReport) -> v1::ReportRequest {
    v1::ReportRequest {
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

pub(crate) fn report_from(message: v1::ReportRequest) -> Result<ServerReport, WireError> {
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
    Ok(report)
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
        let message = report_to("c", &report);
        assert_eq!(report_from(message.clone()), Ok(report));
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
