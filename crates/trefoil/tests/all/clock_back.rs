//! The host's clock was an hour ahead, and is set back while a cell runs: what it holds is of
//! the time before. It can be restarted and resized all the same.

use crate::maintenance::{client, get, set, steps};
use crate::support::{Cell, PROGRAM};
use std::path::{Path, PathBuf};
use std::process::Command;

const KEYS: usize = 20;
const HOUR_S: i64 = 3_600;

/// Adds to the time of day what stands in a file, for programs that are started with it: the
/// system's clock is everybody's.
const SHIM: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

static volatile int64_t *ahead;
static int (*real)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void) {
    real = dlsym(RTLD_NEXT, "clock_gettime");
    int file = open(getenv("CLOCK_AHEAD_FILE"), O_RDONLY);
    ahead = mmap(0, sizeof *ahead, PROT_READ, MAP_SHARED, file, 0);
    if (ahead == MAP_FAILED) abort();
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    int result = real(clock, time);
    if (result == 0 && clock == CLOCK_REALTIME) time->tv_sec += *ahead;
    return result;
}
"#;

/// A clock of some programs' own.
struct Clock {
    library: PathBuf,
    file: PathBuf,
}

impl Clock {
    fn new(home: &Path) -> Self {
        let (source, library) = (home.join("clock.c"), home.join("clock.so"));
        std::fs::write(&source, SHIM).unwrap();
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-o"])
            .args([&library, &source])
            .arg("-ldl")
            .status();
        assert!(built.unwrap().success(), "cc links every program here, too");
        let clock = Clock {
            library,
            file: home.join("ahead"),
        };
        clock.set_ahead(0);
        clock
    }

    /// For all of them at once: whoever has the file mapped sees it.
    fn set_ahead(&self, seconds: i64) {
        use std::os::unix::fs::FileExt as _;
        let file = std::fs::File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&self.file)
            .unwrap();
        file.write_all_at(&seconds.to_ne_bytes(), 0).unwrap();
    }

    fn program(&self) -> Command {
        let mut command = Command::new(PROGRAM);
        command
            .env("LD_PRELOAD", &self.library)
            .env("CLOCK_AHEAD_FILE", &self.file)
            .env_remove("TREFOIL_CELL");
        command
    }
}

#[test]
fn a_cell_is_restarted_and_resized_after_the_clock_was_set_back() {
    let home = tempfile::tempdir().unwrap();
    let clock = Clock::new(home.path());
    for (mode, before, after) in [("R=3.2", "3", "4"), ("R=1", "2", "3")] {
        clock.set_ahead(HOUR_S);
        let dir = home.path().join(mode);
        let mut up = clock.program();
        up.args(["cell", "up", "--memory", "64MiB", "--mode", mode])
            .args(["--backends", before, "--dir"])
            .arg(&dir);
        let cell = Cell::start_by(&mut up);
        // Written by the clock that is ahead.
        for number in 0..KEYS {
            let stored = clock
                .program()
                .args(["set", &format!("key-{number}"), &format!("value-{number}")])
                .args(["--cell", &cell.address])
                .output()
                .unwrap();
            assert!(stored.status.success(), "{stored:?}");
        }
        clock.set_ahead(0);
        steps(&cell, &["cell", "restart"]);
        steps(&cell, &["cell", "resize", "--backends", after]);
        let mut late = client(&cell);
        for number in 0..KEYS {
            let key = format!("key-{number}");
            assert_eq!(get(&mut late, &key), Some(format!("value-{number}")));
            // By the clock as it is now.
            set(&mut late, &key, "since");
            assert_eq!(get(&mut late, &key).as_deref(), Some("since"));
        }
        assert!(cell.log().count(&["theirs is gone on with"]) > 0);
        assert_eq!(cell.stop(), 0);
    }
}
