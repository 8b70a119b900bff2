//! A cell that grows from 64 MiB to 2 GiB and shrinks back while it is read and
//! written: nothing may fail, the bound holds, and memory goes back to the system.

use std::time::{Duration, Instant};

use serde::Serialize;
use trefoil_client::Cell;

use super::{Mix, Progress, ScenarioError, ScenarioOptions, connect};
use crate::load::{Bound, LoadError, Popularity, RunShared, Summary};
use crate::peer::procfs;
use crate::server::Server;

const LIMIT_SMALL: u64 = 64 << 20;
const VALUE_LEN: usize = 4096;
const SAMPLE_EVERY: Duration = Duration::from_millis(50);
/// How long the cell is watched at a limit that it has reached.
const HOLD: Duration = Duration::from_secs(2);
/// How long it may take to grow or to shrink before that counts as never.
const PATIENCE: Duration = Duration::from_secs(60);

/// How it went.
#[derive(Debug, Clone, Serialize)]
pub struct ReshapeReport {
    /// The lower limit.
    pub limit_small_bytes: u64,
    /// The upper limit.
    pub limit_large_bytes: u64,
    /// Bytes of all values that are written.
    pub corpus_bytes: u64,
    /// Operations during all of it.
    pub ops: u64,
    /// Those that failed.
    pub failed: u64,
    /// Hits older than a write acknowledged before the GET began.
    pub stale: u64,
    /// Hits with another key's value or torn ones.
    pub wrong: u64,
    /// The first error, in words.
    pub first_error: Option<String>,
    /// Resident memory of the process before.
    pub resident_before_bytes: u64,
    /// The most while it was large.
    pub resident_grown_bytes: u64,
    /// After it had shrunk, the most while it was watched.
    pub resident_after_bytes: u64,
    /// What its shared memory still held at the end, mapped or not.
    pub shared_after_bytes: u64,
    /// From the order to grow until more than half of the upper limit was in
    /// use, in seconds.
    pub grow_seconds: f64,
    /// From the order to shrink until resident memory was below the lower limit
    /// again, in seconds.
    pub shrink_seconds: f64,
    /// The most by which any look at the process exceeded the limit in force.
    pub exceeded_bytes_max: u64,
    /// How often it was looked at.
    pub samples: u64,
}

impl ReshapeReport {
    /// No operation failed, none was stale or wrong.
    pub fn is_clean(&self) -> bool {
        self.failed + self.stale + self.wrong == 0
    }
}

/// What the process looked like.
#[derive(Default)]
struct Course {
    before: u64,
    grown: u64,
    after: u64,
    shared_after: u64,
    grow: Duration,
    shrink: Duration,
    exceeded_max: u64,
    samples: u64,
}

/// Grows and shrinks a cell under load.
pub fn reshape(
    options: &ScenarioOptions,
    progress: Progress<'_>,
) -> Result<ReshapeReport, ScenarioError> {
    options.pin()?;
    let limit_large: u64 = options.scaled(2 << 30, 256 << 20);
    let mix = Mix {
        // 8/10 of the upper limit in values alone.
        keys_count: limit_large / 10 * 8 / VALUE_LEN as u64,
        value_len: VALUE_LEN,
        popularity: Popularity::Uniform,
        gets: 0.5,
        ops_per_s: None,
    };
    progress("reshape: a mixed load at 64 MiB, grown, and at 64 MiB again");
    let server = Server::start(&options.server("R=1", LIMIT_SMALL))?;
    let mut target = connect(&server)?;
    let shared = RunShared::writing(mix.keys_count);
    let (result, course) = std::thread::scope(|scope| {
        let steering = scope.spawn(|| {
            let course = steer(&server, limit_large);
            shared.stop();
            course
        });
        let result = mix.run(&mut target, &shared, Duration::ZERO, Bound::Stopped, 1);
        (result, steering.join())
    });
    let summary = Summary::of(&result?);
    let course = course.map_err(|_| LoadError::Panicked)??;
    Ok(ReshapeReport {
        limit_small_bytes: LIMIT_SMALL,
        limit_large_bytes: limit_large,
        corpus_bytes: mix.keys_count * VALUE_LEN as u64,
        ops: summary.ops,
        failed: summary.failed + summary.indeterminate,
        stale: summary.stale,
        wrong: summary.wrong,
        first_error: summary.first_error,
        resident_before_bytes: course.before,
        resident_grown_bytes: course.grown,
        resident_after_bytes: course.after,
        shared_after_bytes: course.shared_after,
        grow_seconds: course.grow.as_secs_f64(),
        shrink_seconds: course.shrink.as_secs_f64(),
        exceeded_bytes_max: course.exceeded_max,
        samples: course.samples,
    })
}

fn steer(server: &Server, limit_large: u64) -> Result<Course, ScenarioError> {
    let cell = Cell::connect(&server.address)?;
    let set_limit = |bytes| {
        let failed = cell
            .set_memory_limit(bytes)
            .into_iter()
            .find_map(|(number, result)| Some((number, result.err()?)));
        failed.map_or(Ok(()), |(number, error)| {
            let what = format!("backend {number} refused a limit of {bytes} bytes: {error}");
            Err(ScenarioError::Course(what))
        })
    };
    let mut course = Course::default();
    // The load fills it first.
    std::thread::sleep(HOLD / 2);
    course.before = course.hold(server, LIMIT_SMALL)?;

    let begin = Instant::now();
    set_limit(limit_large)?;
    course.until(server, limit_large, begin, |rss| rss > limit_large / 10 * 6)?;
    course.grow = begin.elapsed();
    course.grown = course.hold(server, limit_large)?;

    let begin = Instant::now();
    set_limit(LIMIT_SMALL)?;
    // The upper limit is in force until the lower one is reached.
    course.until(server, limit_large, begin, |rss| rss <= LIMIT_SMALL)?;
    course.shrink = begin.elapsed();
    course.after = course.hold(server, LIMIT_SMALL)?;
    course.shared_after = procfs::shared_files(server.pids[0])?;
    Ok(course)
}

impl Course {
    fn look(&mut self, server: &Server, limit: u64) -> Result<u64, ScenarioError> {
        std::thread::sleep(SAMPLE_EVERY);
        let rss = server.memory()?.rss;
        self.samples += 1;
        self.exceeded_max = self.exceeded_max.max(rss.saturating_sub(limit));
        Ok(rss)
    }

    /// Watches for a while; gives the most that was resident.
    fn hold(&mut self, server: &Server, limit: u64) -> Result<u64, ScenarioError> {
        let begin = Instant::now();
        let mut most = 0;
        while begin.elapsed() < HOLD {
            most = most.max(self.look(server, limit)?);
        }
        Ok(most)
    }

    fn until(
        &mut self,
        server: &Server,
        limit: u64,
        begin: Instant,
        is_there: impl Fn(u64) -> bool,
    ) -> Result<(), ScenarioError> {
        loop {
            let rss = self.look(server, limit)?;
            if is_there(rss) {
                return Ok(());
            }
            if begin.elapsed() > PATIENCE {
                return Err(ScenarioError::Course(format!(
                    "{rss} bytes are resident {PATIENCE:?} after the limit was changed"
                )));
            }
        }
    }
}
