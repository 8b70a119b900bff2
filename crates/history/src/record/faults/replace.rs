//! kill -9 of a backend that nobody starts again, in a cell over etcd: a spare takes its
//! place, with nothing in its memory, and recovers.

use super::{Begun, Course, Ongoing};
use crate::check::Promise;
use crate::record::RecordError;
use crate::record::round::Round;
use rand::RngExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// After a backend's registration has ended.
const DEAD_AFTER: &str = "2s";
/// After one was started, until the next is.
const PAUSE: Duration = Duration::from_secs(1);

/// A spare's folder, and its log beside it.
const NAME: &str = "spare-";
const LOG: &str = "log";

/// Processes that stand by, and those of them that have taken a place.
pub(in crate::record) struct Spares {
    children: Vec<Child>,
    started: u32,
    not_before: Instant,
}

impl Spares {
    pub(in crate::record) fn none() -> Self {
        Spares {
            children: Vec::new(),
            started: 0,
            not_before: Instant::now(),
        }
    }

    /// What those that were started have logged, in files of this folder.
    pub(in crate::record) fn logs(dir: &Path) -> Vec<PathBuf> {
        let files = std::fs::read_dir(dir).into_iter().flatten().flatten();
        let logs = files.map(|file| file.path()).filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with(NAME) && name.ends_with(LOG)
        });
        logs.collect()
    }

    /// Sees to it that one stands by: none of those is a backend's process.
    pub(in crate::record) fn look(
        &mut self,
        program: &Path,
        (dir, store): (&Path, &str),
        memory: u64,
        backends: &[u32],
    ) -> Result<(), RecordError> {
        let runs = |child: &mut Child| matches!(child.try_wait(), Ok(None));
        self.children.retain_mut(runs);
        let stands_by = |child: &Child| !backends.contains(&child.id());
        if self.children.iter().any(stands_by) || Instant::now() < self.not_before {
            return Ok(());
        }
        self.not_before = Instant::now() + PAUSE;
        let dir = dir.join(format!("{NAME}{}", self.started));
        self.started += 1;
        let log = std::fs::File::create(dir.with_extension(LOG))
            .map_err(RecordError::doing("making a spare's log"))?;
        let child = Command::new(program)
            .args(["cell", "spare", "--store", store, "--dir"])
            .arg(&dir)
            .args(["--memory", &memory.to_string()])
            .args(["--dead-after", DEAD_AFTER, "--repair-interval", "1s"])
            .env("RUST_LOG", "warn")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .map_err(RecordError::doing("starting a spare"))?;
        self.children.push(child);
        Ok(())
    }
}

impl Drop for Spares {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

struct Replaced {
    backend: usize,
    pid: u32,
    /// It is back when it has what was written meanwhile, too.
    waits_for_all: bool,
}

pub(super) fn begin(round: &mut Round<'_>) -> Result<Begun, RecordError> {
    if !round.is_full() {
        return Ok(Begun::No);
    }
    let Some(backend) = round.draw_backend() else {
        return Ok(Begun::No);
    };
    let pid = round.pids[backend];
    round.kill(backend, pid);
    // While etcd comes and goes nobody's time counts: few would come to their end.
    round.is_replacing_alone = round.rng.random_bool(0.5);
    Ok(Begun::Goes(Box::new(Replaced {
        backend,
        pid,
        waits_for_all: round.plan.promise() == Promise::Kept,
    })))
}

impl Ongoing for Replaced {
    fn look(&mut self, round: &mut Round<'_>) -> Result<Course, String> {
        let Some(standing) = round.standing(self.backend) else {
            return Ok(Course::Goes);
        };
        if standing.pid == self.pid || standing.pid == 0 {
            return Ok(Course::Goes);
        }
        if !standing.votes || self.waits_for_all && !standing.has_recovered {
            return Ok(Course::Goes);
        }
        if standing.shards_lost > 0 && round.plan.overlap == 1 {
            return Err(format!(
                "the spare in backend {}'s place says that two of three replicas were lost, and \
                 one was killed",
                self.backend
            ));
        }
        round.note_pid(self.backend, standing.pid);
        Ok(Course::Recovered)
    }

    fn backend(&self) -> Option<usize> {
        Some(self.backend)
    }
}
