//! The journal over real files, and what is said of files that are none of its own.

use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use trefoil_journal::disk::{BLOCK_LEN, Disk};
use trefoil_journal::file::{self, FileDisk};
use trefoil_journal::{Flush, JournalError, Log, snapshot};

const QUEUE: u64 = 7;
const SALT: u64 = 99;
const LEN: u64 = 1 << 20;

/// A log, and the requests that were read again: positions and payloads.
type Opened = (Log<FileDisk>, Vec<(u64, Vec<u8>)>);

fn open(path: &Path, executed: u64) -> Result<Opened, JournalError> {
    let mut replayed = Vec::new();
    let log = file::open(
        path,
        (QUEUE, SALT),
        (LEN, Flush::Direct),
        executed,
        |record| {
            replayed.push((record.position, record.payload.to_vec()));
        },
    )?;
    Ok((log, replayed))
}

#[test]
fn requests_are_there_in_the_next_life_and_after_many_laps() {
    for flush in [Flush::Direct, Flush::Cached] {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("journal");
        let mut executed = 0;
        let mut expected: Vec<(u64, Vec<u8>)> = Vec::new();
        for life in 1..=6 {
            let mut replayed = Vec::new();
            let opened = file::open(&path, (QUEUE, SALT), (LEN, flush), executed, |record| {
                replayed.push((record.position, record.payload.to_vec()));
            });
            let mut log = opened.expect("a journal");
            assert_eq!(log.epoch(), life);
            assert_eq!(replayed, expected);
            for round in 0..100u64 {
                for part in 0..3u64 {
                    let bytes = vec![(round + part) as u8; (round * 97) as usize];
                    assert!(log.has_room(bytes.len()));
                    expected.push((log.push(1, round, true, &bytes), bytes));
                }
                log.commit().expect("a disk");
                if log.is_tight() {
                    executed = log.last_position() - 4;
                    log.release(executed).expect("a disk");
                    expected.retain(|(position, _)| *position > executed);
                }
            }
        }
        assert!(executed > 1000, "{executed}: the ring was gone round");
    }
}

#[test]
fn a_full_ring_has_no_room_until_it_is_released() {
    let folder = tempfile::tempdir().expect("a folder");
    let (mut log, _) = open(&folder.path().join("journal"), 0).expect("a journal");
    let bytes = vec![1; 60_000];
    while log.has_room(bytes.len()) {
        log.push(1, 1, true, &bytes);
        log.commit().expect("a disk");
    }
    assert!(log.is_tight());
    log.release(log.last_position()).expect("a disk");
    assert!(log.has_room(bytes.len()) && !log.is_tight());
}

#[test]
fn one_process_at_a_time() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("journal");
    let first = open(&path, 0).expect("a journal");
    assert!(matches!(open(&path, 0), Err(JournalError::InUse { .. })));
    drop(first);
    assert!(open(&path, 0).is_ok());
}

/// Whoever makes a journal first has it; what he has acknowledged stays, however many
/// others try at the same time.
#[test]
fn first_starts_at_the_same_time_take_nothing_from_each_other() {
    for _ in 0..5 {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("journal");
        let acknowledged = std::sync::atomic::AtomicU64::new(0);
        std::thread::scope(|scope| {
            for client_id in 0..6 {
                let (path, acknowledged) = (&path, &acknowledged);
                scope.spawn(move || {
                    for _ in 0..4 {
                        if let Ok((mut log, _)) = open(path, 0) {
                            log.push(client_id, 1, true, b"request");
                            log.commit().expect("a disk");
                            acknowledged.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        let (_, replayed) = open(&path, 0).expect("a journal");
        let acknowledged = acknowledged.into_inner();
        assert!(acknowledged > 0);
        assert_eq!(replayed.len() as u64, acknowledged);
    }
}

/// Says what an error says, for what it has to name.
#[track_caller]
fn says(result: Result<Opened, JournalError>, words: &[&str]) {
    let Err(error) = result else {
        panic!("no error");
    };
    let error = error.to_string();
    for word in words {
        assert!(error.contains(word), "{word:?} in {error:?}");
    }
}

#[test]
fn files_that_do_not_fit_are_refused_in_words() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("journal");
    let (mut log, _) = open(&path, 0).expect("a journal");
    for number in 0..3 {
        log.push(1, number, true, b"request");
        log.commit().expect("a disk");
    }
    drop(log);
    says(
        open(&path, 9),
        &["position 9", "ends at 3", "put back the journal"],
    );
    says(
        open(&folder.path().join("none"), 9),
        &["position 9", "ends at 0"],
    );
    // Nobody knows whether it is there.
    says(open(&path.join("below"), 9), &["cannot look for"]);
    let (mut log, replayed) = open(&path, 1).expect("a journal");
    assert_eq!(replayed.len(), 2);
    log.release(2).expect("a disk");
    drop(log);
    says(
        open(&path, 1),
        &["ends at position 1", "begins at 3", "lost"],
    );
    let other = file::open(&path, (8, SALT), (LEN, Flush::Cached), 2, |_| {});
    let other = other.expect_err("another queue").to_string();
    assert!(other.contains("0000000000000007"), "{other}");

    let raw = std::fs::File::options()
        .write(true)
        .read(true)
        .open(&path)
        .expect("a file");
    let mut superblocks = vec![0; 2 * BLOCK_LEN];
    raw.read_exact_at(&mut superblocks, 0).expect("bytes");
    // Of another version.
    raw.write_all_at(&2u64.to_le_bytes(), 8).expect("bytes");
    says(open(&path, 2), &["version 2", "knows 1"]);
    // Both copies torn.
    raw.write_all_at(&superblocks, 0).expect("bytes");
    for copy in 0..2 {
        raw.write_all_at(&[0xff], copy * BLOCK_LEN as u64 + 60)
            .expect("bytes");
    }
    says(open(&path, 2), &["damaged", "superblock"]);
    // No journal at all.
    raw.write_all_at(&vec![0; 2 * BLOCK_LEN], 0).expect("bytes");
    says(open(&path, 2), &["is no journal"]);
    // As it was.
    raw.write_all_at(&superblocks, 0).expect("bytes");
    assert_eq!(open(&path, 2).expect("a journal").1.len(), 1);
    for len in [LEN - BLOCK_LEN as u64, LEN / 2, 2 * BLOCK_LEN as u64] {
        raw.set_len(len).expect("a file");
        says(open(&path, 2), &["damaged", "its end is missing"]);
    }
    raw.set_len(BLOCK_LEN as u64).expect("a file");
    says(open(&path, 2), &["is no journal"]);
}

#[test]
fn a_rotten_frame_amid_others_is_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("journal");
    let (mut log, _) = open(&path, 0).expect("a journal");
    for number in 0..3 {
        log.push(1, number, true, b"request");
        log.commit().expect("a disk");
    }
    drop(log);
    let raw = std::fs::File::options()
        .write(true)
        .open(&path)
        .expect("a file");
    // The second of three frames of a block each.
    raw.write_all_at(b"R", 3 * BLOCK_LEN as u64 + 82)
        .expect("bytes");
    raw.sync_all().expect("a disk");
    says(open(&path, 0), &["damaged", "amid others"]);
}

#[test]
fn a_state_is_replaced_as_one_with_its_position() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("state");
    assert!(snapshot::load(&path, QUEUE).expect("no state").is_none());
    for position in [3, 8] {
        snapshot::store(&path, QUEUE, position, &position.to_le_bytes()).expect("a disk");
        let (found, state) = snapshot::load(&path, QUEUE).expect("whole").expect("there");
        assert_eq!((found, state), (position, position.to_le_bytes().to_vec()));
    }
    let mode = std::fs::metadata(&path).expect("a file").permissions();
    assert_eq!(mode.mode() & 0o777, 0o600, "its owner's alone");
    assert!(snapshot::load(&path, 8).is_err());
    let mut bytes = std::fs::read(&path).expect("a file");
    for at in 0..bytes.len() {
        bytes[at] ^= 4;
        std::fs::write(&path, &bytes).expect("a file");
        assert!(snapshot::load(&path, QUEUE).is_err(), "byte {at}");
        bytes[at] ^= 4;
    }
}

#[test]
fn an_attempt_that_was_killed_is_made_anew() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("journal");
    let left = folder.path().join("journal.new");
    std::fs::write(&left, vec![7; 2 << 20]).expect("a file");
    let (log, replayed) = open(&path, 0).expect("a journal");
    assert!(replayed.is_empty() && log.last_position() == 0);
    assert!(!left.exists());
    let len = std::fs::metadata(&path).expect("a file").len();
    assert_eq!(len, LEN, "nothing of it is left");
}

/// A pipe with a name cannot be flushed: whoever is told so has tried.
fn pipe(path: &Path) -> std::fs::File {
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, mode, 0)
        .expect("a pipe");
    let mut options = std::fs::File::options();
    // With both ends, nobody waits for anybody.
    options.read(true).write(true).open(path).expect("a pipe")
}

#[test]
fn a_flush_is_the_system_s() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("pipe");
    let _pipe = pipe(&path);
    let mut disk = FileDisk::open(&path, Flush::Cached).expect("a file of a kind");
    disk.write(0, &[]).expect("nothing is written");
    let flushed = disk.flush().expect_err("no pipe can be flushed");
    assert_eq!(flushed.kind(), std::io::ErrorKind::InvalidInput);
}

/// What is written directly needs no flush if the system has opened the file so.
#[test]
fn a_direct_journal_is_open_for_synchronous_writes_past_the_cache() {
    const O_DSYNC: u32 = 0o10000;
    const O_DIRECT: u32 = 0o40000;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("journal");
    drop(open(&path, 0).expect("a journal"));
    for wanted in [Flush::Direct, Flush::Cached] {
        let disk = FileDisk::open(&path, wanted).expect("a file");
        let own = std::fs::read_dir("/proc/self/fd").expect("descriptors");
        let number = own
            .filter_map(|entry| Some(entry.ok()?.path()))
            .find(|link| std::fs::read_link(link).is_ok_and(|to| to == path))
            .and_then(|link| Some(link.file_name()?.to_str()?.to_owned()))
            .expect("the disk's");
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{number}"));
        let info = info.expect("what it is");
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
        let flags = u32::from_str_radix(flags.expect("flags").trim(), 8).expect("a number");
        let is_direct = flags & (O_DSYNC | O_DIRECT) == O_DSYNC | O_DIRECT;
        assert_eq!(is_direct, disk.flush_kind() == Flush::Direct, "{flags:o}");
    }
}

#[test]
fn a_state_is_flushed_before_it_takes_its_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("state");
    snapshot::store(&path, QUEUE, 1, b"old").expect("a disk");
    let _pipe = pipe(&folder.path().join("state.new"));
    let error = snapshot::store(&path, QUEUE, 2, b"new").expect_err("no pipe can be flushed");
    assert!(error.to_string().contains("cannot flush"), "{error}");
    let (position, state) = snapshot::load(&path, QUEUE).expect("whole").expect("there");
    assert_eq!((position, &state[..]), (1, &b"old"[..]));
    let left = std::fs::read_dir(folder.path()).expect("a folder").count();
    assert_eq!(left, 1, "the new one takes no room");
}

/// On a file system of 512 KiB, in namespaces of its own.
#[test]
fn a_full_disk_is_told_before_anything_is_taken() {
    const CHILD: &str = "TREFOIL_TEST_JOURNAL_FULL";
    const NAME: &str = "files::a_full_disk_is_told_before_anything_is_taken";
    if let Ok(folder) = std::env::var(CHILD) {
        let path = Path::new(&folder).join("journal");
        says(open(&path, 0), &["cannot reserve", "free space"]);
        let left = std::fs::read_dir(&folder).expect("a folder").count();
        assert_eq!(left, 0, "nothing is left behind");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let script =
        "mount -t tmpfs -o size=512k none \"$0\" && exec \"$1\" --exact \"$2\" --nocapture";
    let output = std::process::Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", script])
        .arg(folder.path())
        .arg(std::env::current_exe().expect("a path"))
        .arg(NAME)
        .env(CHILD, folder.path())
        .output()
        .expect("unshare");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{output:?}"
    );
}
