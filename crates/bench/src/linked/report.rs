//! Figures of all forms, as tables, for scripts, and as the paper's plots.

use std::path::Path;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use super::call::Protocol;
use super::deploy::CpuTimes;
use super::generator::Load;
use super::objects::marshalling_ns;
use super::{LinkedOptions, Variant, case_name};
use crate::median::Median;
use crate::report::{
    ReductionCurves, ReductionSeries, ReportError, SavedPlot, Table, nanoseconds, save, write_json,
};

/// Percentiles of the plots.
const PERCENTILES: std::ops::RangeInclusive<u32> = 1..=99;

/// One run of one form.
#[derive(Debug, Clone)]
pub(super) struct Run {
    pub(super) cpu: CpuTimes,
    pub(super) sent_bytes: Option<u64>,
    pub(super) failed: u64,
    pub(super) redirected: u64,
    pub(super) first_error: Option<String>,
    pub(super) latencies: Histogram<u64>,
}

/// Microseconds of CPU for each request, by what used them.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct CpuPerRequest {
    /// App servers.
    pub app_us: f64,
    /// Caches and stores.
    pub store_us: f64,
    /// The assigner.
    pub control_us: f64,
    /// All of it.
    pub total_us: f64,
}

/// Figures of one form in one case: medians over its runs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Figures {
    /// Nanoseconds from when a request was due to its whole answer.
    pub p50_ns: u64,
    /// The same.
    pub p99_ns: u64,
    /// The same.
    pub p999_ns: u64,
    /// CPU of all servers.
    pub cpu: CpuPerRequest,
    /// Bytes between hosts for each request, where they could be counted.
    pub network_bytes: Option<f64>,
}

impl Figures {
    fn of(run: &Run) -> Self {
        let requests = run.latencies.len().max(1) as f64;
        let us = |time: Duration| time.as_secs_f64() * 1e6 / requests;
        Figures {
            p50_ns: run.latencies.value_at_quantile(0.5),
            p99_ns: run.latencies.value_at_quantile(0.99),
            p999_ns: run.latencies.value_at_quantile(0.999),
            cpu: CpuPerRequest {
                app_us: us(run.cpu.app),
                store_us: us(run.cpu.store),
                control_us: us(run.cpu.control),
                total_us: us(run.cpu.total()),
            },
            network_bytes: run.sent_bytes.map(|bytes| bytes as f64 / requests),
        }
    }
}

impl Median for Figures {
    fn median(runs: &[Self]) -> Option<Self> {
        let int =
            |figure: fn(&Self) -> u64| u64::median(&runs.iter().map(figure).collect::<Vec<_>>());
        let float =
            |figure: fn(&Self) -> f64| f64::median(&runs.iter().map(figure).collect::<Vec<_>>());
        let bytes: Option<Vec<f64>> = runs.iter().map(|run| run.network_bytes).collect();
        Some(Figures {
            p50_ns: int(|run| run.p50_ns)?,
            p99_ns: int(|run| run.p99_ns)?,
            p999_ns: int(|run| run.p999_ns)?,
            cpu: CpuPerRequest {
                app_us: float(|run| run.cpu.app_us)?,
                store_us: float(|run| run.cpu.store_us)?,
                control_us: float(|run| run.cpu.control_us)?,
                total_us: float(|run| run.cpu.total_us)?,
            },
            network_bytes: bytes.and_then(|bytes| f64::median(&bytes)),
        })
    }
}

/// Percent less than stateless with memcached; negative is more.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Reductions {
    /// Median latency.
    pub p50: f64,
    /// The tail.
    pub p999: f64,
    /// CPU of all servers.
    pub cpu: f64,
    /// Bytes between hosts.
    pub network: Option<f64>,
}

impl Reductions {
    fn of(figures: &Figures, base: &Figures) -> Self {
        Reductions {
            p50: reduction(figures.p50_ns as f64, base.p50_ns as f64),
            p999: reduction(figures.p999_ns as f64, base.p999_ns as f64),
            cpu: reduction(figures.cpu.total_us, base.cpu.total_us),
            network: figures
                .network_bytes
                .zip(base.network_bytes)
                .map(|(bytes, base)| reduction(bytes, base)),
        }
    }
}

fn reduction(figure: f64, base: f64) -> f64 {
    100.0 * (1.0 - figure / base.max(f64::MIN_POSITIVE))
}

/// The paper's reductions for a case, in percent: table 1, and the medians that
/// its text gives for the ends of figure 3 (a).
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Paper {
    /// Median latency, where the text has it.
    pub p50: Option<f64>,
    /// CPU.
    pub cpu: f64,
    /// Bytes.
    pub network: f64,
}

impl Paper {
    fn of(object_len: usize, used_percent: u32) -> Option<Self> {
        let paper = |p50, cpu, network| Some(Paper { p50, cpu, network });
        match (object_len, used_percent) {
            (100, 100) => paper(Some(29.0), 43.0, 46.0),
            (1_000, 100) => paper(None, 43.0, 51.0),
            (10_000, 100) => paper(None, 44.0, 50.0),
            (100_000, 100) => paper(None, 41.0, 50.0),
            (1_000_000, 100) => paper(Some(57.0), 48.0, 51.0),
            (10_000, 50) => paper(None, 45.0, 69.0),
            (10_000, 10) => paper(None, 46.0, 85.0),
            _ => None,
        }
    }
}

/// One form in one case.
#[derive(Debug, Clone, Serialize)]
pub struct VariantReport {
    /// The form.
    pub variant: Variant,
    /// Its name, with the version of a peer in it.
    pub label: String,
    /// Medians over runs.
    pub median: Figures,
    /// To stateless with memcached, if that was measured.
    pub reductions: Option<Reductions>,
    /// Answered requests of all runs.
    pub requests: u64,
    /// Others.
    pub failed: u64,
    /// Of the answered ones, those that another server answered than the one
    /// asked first.
    pub redirected: u64,
    /// In words.
    pub first_error: Option<String>,
    /// Every run.
    pub runs: Vec<Figures>,
    /// Latency in nanoseconds at each whole percentile, of all runs together.
    pub percentiles_ns: Vec<u64>,
}

/// One case.
#[derive(Debug, Clone, Serialize)]
pub struct CaseReport {
    /// As tables call it.
    pub case: String,
    /// Bytes of each object, marshalled.
    pub object_len: usize,
    /// Percent of an object that a request is about.
    pub used_percent: u32,
    /// How many there are.
    pub objects: u64,
    /// Requests a second.
    pub rate: f64,
    /// Nanoseconds to marshal one object, warm.
    pub marshal_ns: f64,
    /// The same of unmarshalling.
    pub unmarshal_ns: f64,
    /// What the paper has.
    pub paper: Option<Paper>,
    /// All forms.
    pub variants: Vec<VariantReport>,
}

/// All cases.
#[derive(Debug, Clone, Serialize)]
pub struct LinkedReport {
    /// How callers and app servers spoke.
    pub protocol: Protocol,
    /// Servers of each kind.
    pub servers: usize,
    /// Worker threads of each of ours.
    pub threads: usize,
    /// Runs of each case and form.
    pub runs: usize,
    /// Whether hosts were namespaces, and bytes counted.
    pub has_network: bool,
    /// In the order measured.
    pub cases: Vec<CaseReport>,
}

impl LinkedReport {
    pub(super) fn new(options: &LinkedOptions, has_network: bool) -> Self {
        LinkedReport {
            protocol: options.protocol,
            servers: options.servers_count,
            threads: options.threads,
            runs: options.runs,
            has_network,
            cases: Vec::new(),
        }
    }

    pub(super) fn add(
        &mut self,
        load: &Load,
        systems: impl Iterator<Item = (Variant, String, Vec<Run>)>,
    ) {
        let mut variants: Vec<VariantReport> = systems.filter_map(variant_report).collect();
        let base = variants.iter().find(|v| v.variant == Variant::Memcached);
        if let Some(base) = base.map(|base| base.median) {
            for variant in &mut variants {
                variant.reductions = Some(Reductions::of(&variant.median, &base));
            }
        }
        let (object_len, used_percent) = (load.set.object_len, load.set.used_percent);
        let (marshal_ns, unmarshal_ns) = marshalling_ns(object_len);
        self.cases.push(CaseReport {
            case: case_name(object_len, used_percent),
            object_len,
            used_percent,
            objects: load.set.objects_count,
            rate: load.rate,
            marshal_ns,
            unmarshal_ns,
            paper: Paper::of(object_len, used_percent),
            variants,
        });
    }

    /// Whether every request was answered.
    pub fn is_clean(&self) -> bool {
        let mut variants = self.cases.iter().flat_map(|case| &case.variants);
        variants.all(|variant| variant.failed == 0)
    }

    /// All figures for a person.
    pub fn tables(&self) -> String {
        let mut text = String::new();
        for case in &self.cases {
            text += &format!("{}\n", self.table(case));
        }
        text
    }

    fn table(&self, case: &CaseReport) -> Table {
        let title = format!(
            "{}, {:.0} requests/s by {}; one object: marshal {}, unmarshal {}",
            case.case,
            case.rate,
            match self.protocol {
                Protocol::Frames => "frames",
                Protocol::Grpc => "gRPC",
            },
            nanoseconds(case.marshal_ns as u64),
            nanoseconds(case.unmarshal_ns as u64),
        );
        let columns = [
            "form",
            "p50",
            "p99.9",
            "CPU",
            "app",
            "store",
            "control",
            "network",
            "failed",
            "p50 less",
            "p99.9 less",
            "CPU less",
            "network less",
        ];
        let mut table = Table::new(&title, &columns);
        let percent = |part: f64| format!("{part:.0} %");
        for variant in &case.variants {
            let figures = &variant.median;
            let less = |part: fn(&Reductions) -> Option<f64>| {
                let part = variant.reductions.as_ref().and_then(part);
                part.map_or("–".into(), percent)
            };
            table.row([
                variant.label.clone(),
                nanoseconds(figures.p50_ns),
                nanoseconds(figures.p999_ns),
                format!("{:.0} µs", figures.cpu.total_us),
                format!("{:.0}", figures.cpu.app_us),
                format!("{:.0}", figures.cpu.store_us),
                format!("{:.0}", figures.cpu.control_us),
                figures
                    .network_bytes
                    .map_or("–".into(), |b| format!("{b:.0} B")),
                variant.failed.to_string(),
                less(|r| Some(r.p50)),
                less(|r| Some(r.p999)),
                less(|r| Some(r.cpu)),
                less(|r| r.network),
            ]);
        }
        if let Some(paper) = case.paper {
            let mut row = vec![String::new(); columns.len() - 4];
            row[0] = "the paper: stateful".into();
            row.push(paper.p50.map_or("–".into(), percent));
            row.extend(["–".into(), percent(paper.cpu), percent(paper.network)]);
            table.row(row);
        }
        table
    }

    /// Writes `report.json`, `report.txt` and the plots of figure 3.
    pub fn write(&self, folder: &Path) -> Result<Vec<SavedPlot>, ReportError> {
        let fail = |source| ReportError::Write {
            path: folder.display().to_string(),
            source,
        };
        std::fs::create_dir_all(folder).map_err(fail)?;
        write_json(&folder.join("report.json"), self)?;
        std::fs::write(folder.join("report.txt"), self.tables()).map_err(fail)?;
        let mut plots = Vec::new();
        let variants = self.cases.first().map(|case| &case.variants);
        for variant in variants.into_iter().flatten().map(|v| v.variant) {
            if variant == Variant::Memcached {
                continue;
            }
            let name = variant.name();
            let sizes = self.curves(variant, |case| case.used_percent == 100);
            let parts = self.curves(variant, |case| case.object_len == 10_000);
            for (figure, of, curves) in [("3a", "object size", sizes), ("3b", "part used", parts)] {
                let curves = ReductionCurves {
                    title: format!("{name}: latency less than with memcached, by {of}"),
                    series: curves,
                };
                plots.push(save(
                    &curves,
                    &folder.join(format!("figure-{figure}-{name}")),
                )?);
            }
        }
        Ok(plots)
    }

    fn curves(
        &self,
        variant: Variant,
        is_shown: impl Fn(&CaseReport) -> bool,
    ) -> Vec<ReductionSeries> {
        let cases = self.cases.iter().filter(|case| is_shown(case));
        cases
            .filter_map(|case| {
                let find = |wanted| case.variants.iter().find(|v| v.variant == wanted);
                let (base, shown) = (find(Variant::Memcached)?, find(variant)?);
                let pairs = shown.percentiles_ns.iter().zip(&base.percentiles_ns);
                let points = PERCENTILES.zip(pairs).map(|(percentile, (&ns, &base_ns))| {
                    (f64::from(percentile), reduction(ns as f64, base_ns as f64))
                });
                Some(ReductionSeries {
                    name: case.case.clone(),
                    points: points.collect(),
                })
            })
            .collect()
    }
}

fn variant_report((variant, label, runs): (Variant, String, Vec<Run>)) -> Option<VariantReport> {
    let figures: Vec<Figures> = runs.iter().map(Figures::of).collect();
    let mut all = runs.first()?.latencies.clone();
    for run in &runs[1..] {
        // Histograms of equal bounds add up.
        let _ = all.add(&run.latencies);
    }
    Some(VariantReport {
        variant,
        label,
        median: Figures::median(&figures)?,
        reductions: None,
        requests: all.len(),
        failed: runs.iter().map(|run| run.failed).sum(),
        redirected: runs.iter().map(|run| run.redirected).sum(),
        first_error: runs.iter().find_map(|run| run.first_error.clone()),
        runs: figures,
        percentiles_ns: PERCENTILES
            .map(|percentile| all.value_at_percentile(f64::from(percentile)))
            .collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linked::ObjectSet;

    fn run(ns: u64, cpu_us: u64, bytes: u64) -> Run {
        let mut latencies = Histogram::new(3).unwrap();
        latencies.record_n(ns, 100).unwrap();
        Run {
            cpu: CpuTimes {
                app: Duration::from_micros(cpu_us * 100),
                ..CpuTimes::default()
            },
            sent_bytes: Some(bytes * 100),
            failed: 0,
            redirected: 0,
            first_error: None,
            latencies,
        }
    }

    fn report() -> LinkedReport {
        let mut report = LinkedReport::new(&LinkedOptions::new(Path::new("trefoil")), true);
        let load = Load {
            set: ObjectSet {
                object_len: 10_000,
                objects_count: 5,
                used_percent: 100,
                overwrites: false,
            },
            rate: 5.0,
            lookup_share: 0.8,
            warm_up: Duration::ZERO,
            measured: Duration::ZERO,
            seed: 0,
        };
        let linked = [(1, 1, 1), (400_000, 40, 5_000), (400_000, 40, 5_000)];
        let linked = linked.map(|(ns, cpu, bytes)| run(ns, cpu, bytes));
        let systems = [
            (
                Variant::Memcached,
                "memcached 1".to_owned(),
                vec![run(1_000_000, 100, 20_000)],
            ),
            (Variant::PlainMap, "plain-map".to_owned(), linked.to_vec()),
        ];
        report.add(&load, systems.into_iter());
        report
    }

    #[test]
    fn reductions_are_of_medians() {
        let report = report();
        let found = report.cases[0].variants[1].reductions.unwrap();
        assert!((found.p50 - 60.0).abs() < 0.5, "{found:?}");
        assert!(
            (found.cpu - 60.0).abs() < 0.01 && found.network == Some(75.0),
            "{found:?}"
        );
        assert!(report.is_clean());
        let text = report.tables();
        for wanted in ["memcached 1", "60 %", "75 %", "44 %", "the paper"] {
            assert!(text.contains(wanted), "{wanted}: {text}");
        }
    }

    #[test]
    fn files_and_plots_are_written() {
        let dir = tempfile::tempdir().unwrap();
        let plots = report().write(dir.path()).unwrap();
        assert_eq!(plots.len(), 2);
        let json = std::fs::read_to_string(dir.path().join("report.json")).unwrap();
        assert!(json.contains("\"variant\": \"plain-map\""), "{json}");
        assert!(dir.path().join("figure-3a-plain-map.svg").exists());
    }
}
