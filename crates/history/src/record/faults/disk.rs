//! The file system on which the cell's configuration is kept has no room left for a
//! while. It is a small one of its own, in memory, seen by this run only.

use super::{Begun, Course, Ongoing};
use crate::record::RecordError;
use crate::record::round::Round;
use rand::RngExt as _;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const FULL_MS: std::ops::Range<u64> = 300..4_000;
/// Room for sockets, locks and some configurations.
const SIZE: &str = "size=256k,mode=0700";
/// At a time; the last bytes are taken one by one.
const CHUNK: usize = 4096;

/// A file system of its own under a folder; gone with its owner.
pub(in crate::record) struct SmallDisk {
    at: PathBuf,
}

impl SmallDisk {
    /// Mounts one on a folder.
    pub(in crate::record) fn mount(at: &Path) -> Result<Self, String> {
        std::fs::create_dir_all(at).map_err(|error| error.to_string())?;
        let mut command = Command::new("mount");
        command.args(["-t", "tmpfs", "-o", SIZE, "trefoil"]).arg(at);
        super::network::told(&mut command)?;
        Ok(SmallDisk { at: at.to_owned() })
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.at).status();
    }
}

struct Full {
    ballast: PathBuf,
    until: Instant,
}

pub(super) fn begin(round: &mut Round<'_>) -> Result<Begun, RecordError> {
    if !round.has_small_disk() {
        return Ok(Begun::No);
    }
    let ballast = round.cell_dir().join("ballast");
    let mut file =
        File::create(&ballast).map_err(RecordError::doing("making a file that fills the disk"))?;
    while file.write_all(&[7; CHUNK]).is_ok() {}
    let stay = Duration::from_millis(round.rng.random_range(FULL_MS));
    Ok(Begun::Goes(Box::new(Full {
        ballast,
        until: Instant::now() + stay,
    })))
}

impl Ongoing for Full {
    fn look(&mut self, _: &mut Round<'_>) -> Result<Course, String> {
        if Instant::now() < self.until {
            return Ok(Course::Goes);
        }
        std::fs::remove_file(&self.ballast)
            .map_err(|error| format!("making room again: {error}"))?;
        Ok(Course::Done)
    }
}
