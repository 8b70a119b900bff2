//! The linked store beside remote caches: the second paper's figure 3 and
//! table 1, over real processes.
//!
//! ```text
//!  memcached, redis     linked…, plain-map    custom-store
//!
//!     callers              callers               callers       one process, open loop,
//!        │ any                │ the key's           │ any       the same requests to all
//!   app servers          app servers           app servers     address-book serve
//!        │                 (objects)                │
//!   caches               assigner               stores         a namespace for each
//! ```
//!
//! All forms of the service run at once and are measured in turn, so that a
//! machine's slow minute falls on all alike. CPU is summed over all server
//! processes; bytes are those that hosts send each other. A change replaces the
//! contacts that are used and leaves the rest of the object as it is: a
//! stateless server reads, modifies and writes.

mod call;
mod deploy;
mod error;
mod generator;
mod objects;
mod placement;
mod process;
mod report;
mod variant;

pub use crate::hosts::{Host, Network, NetworkError};
pub use call::Protocol;
pub use deploy::CpuTimes;
pub use error::LinkedBenchError;
pub use objects::ObjectSet;
pub use report::{
    CaseReport, CpuPerRequest, Figures, LinkedReport, Paper, Reductions, VariantReport,
};
pub use variant::Variant;

use std::path::{Path, PathBuf};
use std::time::Duration;

use deploy::{CpuTimes as Times, Deployment};
use generator::{Generated, Load, fill, generate, verify};
use hdrhistogram::Histogram;
use report::Run;

/// The paper's share of reads.
const LOOKUP_SHARE: f64 = 0.8;
const WARM_UP_SECONDS_MAX: f64 = 0.3;
/// Bytes of all objects of one size together: beyond any processor cache.
const OBJECTS_LEN: usize = 48 << 20;
const OBJECTS_COUNT_MAX: u64 = 20_000;

/// What to measure.
#[derive(Debug, Clone)]
pub struct LinkedOptions {
    /// This program.
    pub program: PathBuf,
    /// The address book's program.
    pub service: PathBuf,
    /// Forms of the service.
    pub variants: Vec<Variant>,
    /// Sizes of objects, and percent of each that a request uses.
    pub cases: Vec<(usize, u32)>,
    /// How callers and app servers speak, in all forms.
    pub protocol: Protocol,
    /// Servers of each kind in each form.
    pub servers_count: usize,
    /// Worker threads of each of ours.
    pub threads: usize,
    /// Runs of each case and form, in turn.
    pub runs: usize,
    /// Length of each; more where objects are large and requests few.
    pub seconds: f64,
    /// All rates times this.
    pub rate_factor: f64,
    /// Most objects of one size.
    pub objects_count_max: u64,
    /// Changes of whole objects overwrite them unread, where they otherwise are
    /// read, modified and written.
    pub overwrites: bool,
    /// Everything on loopback, without namespaces and counts of bytes.
    pub loopback: bool,
}

impl LinkedOptions {
    /// The paper's cases with `trefoil` at `program`, whose folder has the
    /// address book, too.
    pub fn new(program: &Path) -> Self {
        let sizes = [100, 1_000, 10_000, 100_000, 1_000_000];
        let mut cases: Vec<_> = sizes.map(|len| (len, 100)).into();
        cases.extend([(10_000, 50), (10_000, 10)]);
        LinkedOptions {
            program: program.to_owned(),
            service: program.with_file_name("address-book"),
            variants: Variant::ALL.to_vec(),
            cases,
            protocol: Protocol::Frames,
            servers_count: 2,
            threads: 1,
            runs: 5,
            seconds: 2.0,
            rate_factor: 1.0,
            objects_count_max: OBJECTS_COUNT_MAX,
            overwrites: false,
            loopback: false,
        }
    }

    /// Small and short: shows that everything works, not how well.
    pub fn quick(mut self) -> Self {
        self.cases = vec![(1_000, 100), (10_000, 10)];
        self.runs = 1;
        self.seconds = 0.3;
        self.objects_count_max = 200;
        self
    }
}

/// Requests a second for objects of this size: far below what the most
/// expensive form can do on two cores.
fn rate(object_len: usize) -> f64 {
    match object_len {
        0..5_000 => 1_200.0,
        5_000..50_000 => 600.0,
        50_000..500_000 => 100.0,
        _ => 12.0,
    }
}

/// Long enough for a percentile to mean something.
fn run_seconds(options: &LinkedOptions, object_len: usize) -> f64 {
    match object_len {
        0..50_000 => options.seconds,
        50_000..500_000 => options.seconds * 1.5,
        _ => options.seconds * 2.5,
    }
}

/// Measures everything. `progress` is told what comes next.
pub fn linked(
    options: &LinkedOptions,
    progress: &mut dyn FnMut(&str),
) -> Result<LinkedReport, LinkedBenchError> {
    if !options.service.exists() {
        return Err(LinkedBenchError::NoService {
            path: options.service.display().to_string(),
        });
    }
    let mut network = match options.loopback {
        true => None,
        false => match Network::create() {
            Ok(network) => Some(network),
            Err(error) => {
                progress(&format!("bytes between hosts are left out: {error}"));
                None
            }
        },
    };
    let callers = match &mut network {
        Some(network) => network.host("callers")?,
        None => Host::loopback(),
    };
    let mut deployments = Vec::new();
    for &variant in &options.variants {
        progress(&format!("starting {}", variant.name()));
        deployments.push(Deployment::start(options, variant, &mut network)?);
    }
    let mut report = LinkedReport::new(options, network.is_some());
    let mut filled_len = None;
    for &(object_len, used_percent) in &options.cases {
        let set = ObjectSet {
            object_len,
            objects_count: objects_count(object_len).min(options.objects_count_max),
            used_percent,
            overwrites: options.overwrites,
        };
        let load = Load {
            set,
            rate: rate(object_len) * options.rate_factor,
            lookup_share: LOOKUP_SHARE,
            warm_up: Duration::from_secs_f64((options.seconds / 4.0).min(WARM_UP_SECONDS_MAX)),
            measured: Duration::from_secs_f64(run_seconds(options, object_len)),
            seed: 0,
        };
        let name = case_name(object_len, used_percent);
        // Objects stay the same size while a case changes parts of them.
        if filled_len != Some(object_len) {
            for deployment in &deployments {
                progress(&format!("{name}: filling {}", deployment.label));
                let (variant, directory) = (deployment.variant, deployment.directory());
                callers.enter(|| fill(variant, &directory, &set))??;
                callers.enter(|| verify(variant, &directory, &set))??;
            }
            filled_len = Some(object_len);
        }
        let mut runs: Vec<Vec<Run>> = vec![Vec::new(); deployments.len()];
        for number in 0..options.runs.max(1) {
            for (deployment, runs) in deployments.iter().zip(&mut runs) {
                progress(&format!("{name}: {}, run {}", deployment.label, number + 1));
                let load = Load {
                    seed: number as u64 + 1,
                    ..load
                };
                runs.push(measure(deployment, &load, &network, &callers)?);
            }
        }
        let systems = deployments.iter().zip(runs);
        report.add(
            &load,
            systems.map(|(deployment, runs)| (deployment.variant, deployment.label.clone(), runs)),
        );
    }
    Ok(report)
}

fn objects_count(object_len: usize) -> u64 {
    ((OBJECTS_LEN / object_len.max(1)) as u64).clamp(16, OBJECTS_COUNT_MAX)
}

/// As a table's row is called.
fn case_name(object_len: usize, used_percent: u32) -> String {
    let size = match object_len {
        0..1_000 => format!("{object_len} B"),
        1_000..1_000_000 => format!("{} KB", object_len / 1_000),
        _ => format!("{} MB", object_len / 1_000_000),
    };
    format!("{size}, {used_percent} % used")
}

fn measure(
    deployment: &Deployment,
    load: &Load,
    network: &Option<Network>,
    callers: &Host,
) -> Result<Run, LinkedBenchError> {
    let directory = deployment.directory();
    let mut edges: Vec<(Times, Option<u64>)> = Vec::new();
    let edge = &mut || {
        let times = deployment.cpu_times()?;
        edges.push((times, deployment.sent_bytes(network, callers)?));
        Ok(())
    };
    let generated: Generated = callers.enter(|| generate(&directory, load, edge))??;
    let latencies: Histogram<u64> = generated.latencies;
    let [(cpu_before, sent_before), (cpu, sent)] = edges[..] else {
        return Err(fail_call(
            deployment.variant,
            "measuring",
            "no figures".into(),
        ));
    };
    Ok(Run {
        cpu: cpu.since(&cpu_before),
        sent_bytes: sent.zip(sent_before).map(|(sent, before)| sent - before),
        failed: generated.failed,
        redirected: generated.redirected,
        first_error: generated.first_error,
        latencies,
    })
}

fn fail_call(variant: Variant, what: &'static str, problem: String) -> LinkedBenchError {
    LinkedBenchError::Call {
        variant: variant.name(),
        what,
        problem,
    }
}
