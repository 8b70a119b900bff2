//! More than memory: what exceeds it is on disk, and as good as in memory.

use crate::cluster::{self, CORPUS, Cluster, Heard, coordinator, name, until};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tempfile::TempDir;
use tokio::time::sleep;
use trefoil_coordination::LocalCoordinator;
use trefoil_linklet::{
    Builder, Drained, Error, Linklet, Listener, Loaded, LoaderError, Marshal, MarshalError,
    PlainMarshal, Replication, StartError, StateLossReason, Stats,
};

const MODES: [Replication; 3] = [
    Replication::None,
    Replication::Eventual,
    Replication::Strong,
];
const VALUE_BYTES: usize = 4_000;
/// Of values; keys and what is known of them are another third of it.
const KEYS: u64 = 600;
const MEMORY: u64 = KEYS * VALUE_BYTES as u64 / 4;
const DISK: u64 = 64 << 20;

/// A value that shows whose it is, and which one.
fn value(n: u64, round: u64) -> Vec<u8> {
    let mut value = [n, round].map(u64::to_le_bytes).concat();
    value.resize(VALUE_BYTES, (n + round) as u8);
    value
}

fn round_of(value: &[u8]) -> u64 {
    u64::from_le_bytes(*value[8..].first_chunk().unwrap())
}

/// Waits until a count of a linklet's does not change any more; what it is then.
async fn rests<V: Send + Sync + 'static>(
    linklet: &Linklet<V>,
    count: impl Fn(&Stats) -> u64,
) -> u64 {
    let mut before = u64::MAX;
    until("it rests", || {
        let now = count(&linklet.stats());
        std::mem::replace(&mut before, now) == now
    })
    .await;
    before
}

/// Some that spill into a directory.
async fn spilling(count: usize, replication: Replication) -> (Cluster, TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let copies = 1 + usize::from(replication != Replication::None);
    let mut cluster = Cluster::with(coordinator(copies), 0, replication).await;
    for _ in 0..count {
        join(&mut cluster, directory.path()).await;
    }
    cluster.settle().await;
    (cluster, directory)
}

async fn join(cluster: &mut Cluster, directory: &Path) {
    cluster
        .join(|builder| builder.memory(MEMORY).spill(directory, DISK))
        .await;
}

async fn fill(cluster: &Cluster) {
    for n in 0..KEYS {
        cluster.put(&name(n), &value(n, 0)).await.unwrap();
    }
}

async fn check(cluster: &Cluster) {
    for n in 0..KEYS {
        let found = cluster.get(&name(n)).await;
        let found = found.unwrap_or_else(|error| panic!("{n}: {error}"));
        assert!(found == Some(value(n, 0)), "{n}: another one, or none");
    }
}

/// Alone, with a marshaller and everything else as they are said.
async fn alone(builder: Builder<Vec<u8>>) -> (Linklet<Vec<u8>>, Arc<Heard>) {
    cluster::log();
    let heard = Arc::new(Heard::default());
    let linklet = builder
        .copies(1)
        .listener(Arc::clone(&heard) as Arc<dyn Listener>)
        .listen(LocalCoordinator::new(), "127.0.0.1:0".parse().unwrap())
        .await
        .unwrap();
    linklet.settled().await;
    (linklet, heard)
}

fn plain(directory: &TempDir) -> Builder<Vec<u8>> {
    Linklet::builder(CORPUS, PlainMarshal)
        .memory(MEMORY)
        .spill(directory.path(), DISK)
}

/// The files without names that this process has in a directory.
fn files_in(directory: &Path) -> Vec<File> {
    let fds = std::fs::read_dir("/proc/self/fd").unwrap();
    let paths = fds.filter_map(|fd| {
        let path = fd.unwrap().path();
        let target = std::fs::read_link(&path).ok()?;
        target.starts_with(directory).then_some(path)
    });
    paths
        .map(|path| {
            OpenOptions::new()
                .read(true)
                .write(true)
                .open(path)
                .unwrap()
        })
        .collect()
}

async fn four_times_more(replication: Replication, servers: usize) {
    let (cluster, directory) = spilling(servers, replication).await;
    fill(&cluster).await;
    for _ in 0..2 {
        check(&cluster).await;
    }
    assert_eq!(cluster.losses(), [], "{replication:?}");
    for linklet in cluster.linklets.values() {
        let stats = linklet.stats();
        assert_eq!(stats.evictions, 0, "{replication:?}");
        assert_eq!(stats.spill_write_failures + stats.spill_read_failures, 0);
        assert!(stats.bytes <= MEMORY, "{replication:?}: {stats:?}");
        assert!(
            stats.spilled > stats.entries / 2,
            "{replication:?}: {stats:?}"
        );
        assert!(stats.spill_bytes > MEMORY && stats.spill_disk_bytes <= DISK);
    }
    let names = std::fs::read_dir(directory.path()).unwrap().count();
    assert_eq!(names, 0, "nothing there has a name");
    assert!(!files_in(directory.path()).is_empty());
    drop(cluster);
    let path = directory.path();
    until("files end with the linklets", || files_in(path).is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn four_times_more_than_memory_is_all_there() {
    four_times_more(Replication::None, 1).await;
    four_times_more(Replication::Eventual, 2).await;
    four_times_more(Replication::Strong, 2).await;
}

/// Every key has one writer, who knows what it has to be, and readers, who know that it
/// never goes back.
async fn counted(replication: Replication) {
    const TASKS: u64 = 4;
    const ROUNDS: u64 = 3;
    let (cluster, _directory) = spilling(
        1 + usize::from(replication != Replication::None),
        replication,
    )
    .await;
    fill(&cluster).await;
    let cluster = Arc::new(cluster);
    let mut tasks = Vec::new();
    for task in 0..TASKS {
        let cluster = Arc::clone(&cluster);
        tasks.push(tokio::spawn(async move {
            let mut seen = vec![0; KEYS as usize];
            let mut random = task + 1;
            let mut mine: Vec<u64> = (0..KEYS).filter(|n| n % TASKS == task).collect();
            for round in 1..=ROUNDS {
                mine.reverse();
                for &n in &mine {
                    let act = |linklet: Linklet<Vec<u8>>| async move {
                        let set = |value: &mut Vec<u8>| {
                            let before = round_of(value);
                            value[8..16].copy_from_slice(&(before + 1).to_le_bytes());
                            before + 1
                        };
                        match n % 3 {
                            0 => linklet.update(&name(n), set).await.map(Option::unwrap),
                            1 => {
                                let make = || -> Vec<u8> { panic!("{n} is not there") };
                                linklet.upsert(&name(n), make, set).await
                            }
                            _ => {
                                let limit = Duration::from_secs(60);
                                let set = async |value: &mut Vec<u8>| Ok::<_, Error>(set(value));
                                let set = linklet.update_async(&name(n), limit, set).await;
                                set.map(Option::unwrap)
                            }
                        }
                    };
                    let now = cluster.call(&name(n), act).await;
                    let now = now.unwrap_or_else(|error| panic!("{n}: {error}"));
                    assert_eq!(now, round, "{n}: a change is lost, or there twice");
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    let other = random % KEYS;
                    let found = cluster.get(&name(other)).await.unwrap();
                    let found = found.expect("no key is lost");
                    assert_eq!(found[..8], other.to_le_bytes(), "another key's value");
                    let (now, before) = (round_of(&found), &mut seen[other as usize]);
                    assert!(now >= *before, "{other} went back from {before} to {now}");
                    *before = now;
                }
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    for n in 0..KEYS {
        let found = cluster.get(&name(n)).await.unwrap().unwrap();
        assert_eq!(round_of(&found), ROUNDS, "{replication:?}: {n}");
    }
    assert_eq!(cluster.losses(), []);
    let stats = cluster.linklets.values().map(Linklet::stats);
    let (reads, evictions) = stats.fold((0, 0), |(reads, evictions), stats| {
        (reads + stats.spill_reads, evictions + stats.evictions)
    });
    assert!(reads > KEYS, "{reads}");
    assert_eq!(evictions, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_of_what_is_on_disk_are_not_lost() {
    for replication in MODES {
        counted(replication).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_on_disk_moves_with_its_keys() {
    for replication in MODES {
        let (mut cluster, directory) = spilling(2, replication).await;
        fill(&cluster).await;
        join(&mut cluster, directory.path()).await;
        let (&id, leaving) = cluster.linklets.iter().next().unwrap();
        let leaving = leaving.clone();
        assert_eq!(leaving.drain().await, Drained::Empty);
        leaving.leave().await;
        cluster.linklets.remove(&id);
        drop(leaving);
        cluster.settle().await;
        check(&cluster).await;
        assert_eq!(cluster.losses(), [], "{replication:?}");
        let stats = cluster.linklets.values().map(Linklet::stats);
        let (spilled, evictions) = stats.fold((0, 0), |(spilled, evictions), stats| {
            (spilled + stats.spilled, evictions + stats.evictions)
        });
        assert!(
            spilled > 0 && evictions == 0,
            "{replication:?}: {evictions}"
        );
    }
}

/// Copies are on disk, too, and are served from there by who takes over.
#[tokio::test(flavor = "multi_thread")]
async fn who_takes_over_has_its_copies_on_disk() {
    let (mut cluster, _directory) = spilling(3, Replication::Strong).await;
    fill(&cluster).await;
    let id = *cluster.linklets.keys().next().unwrap();
    // As if it had died: nothing is given away.
    drop(cluster.linklets.remove(&id));
    let since = Instant::now();
    for n in 0..KEYS {
        let found = loop {
            match cluster.get(&name(n)).await {
                Ok(found) => break found,
                Err(error) => {
                    let late = since.elapsed() > Duration::from_secs(60);
                    assert!(!late, "{n}: {error}");
                    sleep(Duration::from_millis(50)).await;
                }
            }
        };
        assert!(found == Some(value(n, 0)), "{n}: another one, or none");
    }
    assert_eq!(cluster.losses(), []);
    let stats = cluster.linklets.values().map(Linklet::stats);
    assert!(stats.map(|stats| stats.spill_reads).sum::<u64>() > 0);
}

fn end_of(value: &[u8]) -> Option<SystemTime> {
    let ms = round_of(value);
    (ms > 0).then(|| UNIX_EPOCH + Duration::from_millis(ms))
}

#[tokio::test(flavor = "multi_thread")]
async fn what_ends_or_is_idle_leaves_the_disk() {
    for (replication, idle) in [
        (Replication::None, false),
        (Replication::Strong, false),
        (Replication::None, true),
        (Replication::Strong, true),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let builder = plain(&directory).replication(replication);
        let builder = match idle {
            true => builder.idle(Duration::from_secs(3)),
            false => builder.expires(|_, value: &Vec<u8>| end_of(value)),
        };
        let (linklet, heard) = alone(builder).await;
        let end = SystemTime::now() + Duration::from_secs(3);
        let end_ms = end.duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
        for n in 0..KEYS {
            // One in a hundred has no end, or is used all the time.
            let ends = if n % 100 == 0 { 0 } else { end_ms };
            linklet.insert(&name(n), value(n, ends)).await.unwrap();
        }
        let since = Instant::now();
        let mut entries = KEYS;
        while entries > KEYS / 100 || linklet.stats().spilled > KEYS / 100 {
            assert!(
                since.elapsed() < Duration::from_secs(60),
                "{entries} are there"
            );
            for n in (0..KEYS).step_by(100) {
                let found = linklet.read(&name(n), |value| value.len()).await.unwrap();
                assert_eq!(found, Some(VALUE_BYTES), "{replication:?}, {idle}: {n}");
            }
            sleep(Duration::from_millis(50)).await;
            entries = linklet.stats().entries;
        }
        assert!(SystemTime::now() >= end || idle, "too early");
        let stats = linklet.stats();
        assert!(stats.spill_writes > 0, "{stats:?}");
        assert!(
            stats.spill_bytes <= 7 * (VALUE_BYTES as u64 + 100),
            "{stats:?}"
        );
        for n in (0..KEYS).step_by(100) {
            assert!(linklet.remove(&name(n)).await.unwrap());
        }
        until("the files are gone", || {
            linklet.stats().spill_disk_bytes == 0
        })
        .await;
        assert_eq!(heard.losses.lock().unwrap().len(), 0, "an end is no loss");
    }
}

/// Changes every byte that a linklet has on disk.
fn damage(directory: &Path) {
    for file in files_in(directory) {
        let len = file.metadata().unwrap().len();
        let mut bytes = vec![0; len as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        bytes.iter_mut().for_each(|byte| *byte ^= 0x55);
        file.write_all_at(&bytes, 0).unwrap();
    }
}

async fn damaged(replication: Replication) {
    let directory = tempfile::tempdir().unwrap();
    let (linklet, heard) = alone(plain(&directory).replication(replication)).await;
    for n in 0..KEYS {
        linklet.insert(&name(n), value(n, 0)).await.unwrap();
    }
    // Nothing is written any more.
    rests(&linklet, |stats| stats.spill_writes).await;
    damage(directory.path());
    let mut lost = Vec::new();
    for n in 0..KEYS {
        let found = match n % 3 {
            0 => linklet.read(&name(n), Vec::clone).await,
            1 => linklet.get(&name(n)).await.map(|held| Some(held?.to_vec())),
            _ => linklet.update(&name(n), |value| value.clone()).await,
        };
        match found {
            Ok(found) => assert_eq!(found, Some(value(n, 0)), "{n}"),
            Err(Error::Unreadable(why)) => {
                assert!(why.contains("checksum"), "{why}");
                lost.push(name(n));
            }
            Err(error) => panic!("{n}: {error}"),
        }
    }
    assert!(lost.len() as u64 > KEYS / 2, "{}", lost.len());
    assert_eq!(linklet.stats().spilled, 0);
    let reported = || {
        let losses = heard.losses.lock().unwrap();
        let mut keys: Vec<Vec<u8>> = losses
            .iter()
            .inspect(|loss| assert_eq!(loss.reason, StateLossReason::SpillUnreadable))
            .flat_map(|loss| loss.keys.iter().map(|(_, key)| key.clone()))
            .collect();
        keys.sort();
        keys
    };
    until("each is reported", || reported().len() >= lost.len()).await;
    lost.sort();
    assert_eq!(reported(), lost, "{replication:?}: each once");
    for key in &lost {
        assert_eq!(linklet.read(key, Vec::clone).await.unwrap(), None);
    }
    // The key is free for another one.
    let again = linklet.upsert(&lost[0], || value(7, 7), |value| value.clone());
    assert_eq!(again.await.unwrap(), value(7, 7));
    assert_eq!(linklet.stats().spill_read_failures, lost.len() as u64);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_damaged_on_disk_is_lost_and_reported_and_never_served() {
    for replication in MODES {
        damaged(replication).await;
    }
}

type Load = std::future::Ready<Result<Option<Loaded<Vec<u8>>>, LoaderError>>;

fn loading(loads: &Arc<AtomicU64>) -> impl Fn(Vec<u8>) -> Load + use<> {
    let loads = Arc::clone(loads);
    move |key: Vec<u8>| {
        loads.fetch_add(1, Ordering::Relaxed);
        let n = String::from_utf8(key).unwrap();
        let n = n.strip_prefix("session ").unwrap().parse().unwrap();
        std::future::ready(Ok(Some(Loaded::from(value(n, 0)))))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_loader_is_asked_again_only_for_what_is_damaged() {
    for replication in MODES {
        let (directory, loads) = (tempfile::tempdir().unwrap(), Arc::new(AtomicU64::new(0)));
        let builder = plain(&directory).replication(replication);
        let (linklet, heard) = alone(builder.loader(loading(&loads))).await;
        let check = async || {
            for n in 0..KEYS {
                let found = linklet.read_or_load(&name(n), Vec::clone).await.unwrap();
                assert_eq!(found, Some(value(n, 0)), "{n}");
            }
        };
        check().await;
        check().await;
        assert_eq!(loads.load(Ordering::Relaxed), KEYS, "{replication:?}");
        damage(directory.path());
        check().await;
        let again = loads.load(Ordering::Relaxed) - KEYS;
        assert!(again > KEYS / 2, "{again}");
        assert_eq!(linklet.stats().evictions, 0);
        assert_eq!(heard.losses.lock().unwrap().len(), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_that_will_not_do_is_an_error_at_the_start() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    std::fs::write(&file, b"").unwrap();
    for path in [directory.path().join("missing"), file] {
        let started = Linklet::builder(CORPUS, PlainMarshal)
            .spill(&path, DISK)
            .listen(LocalCoordinator::new(), "127.0.0.1:0".parse().unwrap());
        let started: Result<Linklet<Vec<u8>>, _> = started.await;
        let error = started.unwrap_err();
        assert!(matches!(error, StartError::Spill { .. }), "{error}");
        let said = error.to_string();
        let path = path.display().to_string();
        assert!(said.contains(&path) && said.contains("directory"), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn when_the_disk_is_full_too_it_is_as_without() {
    for replication in MODES {
        let directory = tempfile::tempdir().unwrap();
        let bound = KEYS * VALUE_BYTES as u64 / 4;
        let builder = plain(&directory).spill(directory.path(), bound);
        let (linklet, heard) = alone(builder.replication(replication)).await;
        let mut refused = Vec::new();
        for n in 0..KEYS {
            match linklet.insert(&name(n), value(n, 0)).await {
                Ok(_) => {}
                Err(Error::NoRoom { .. }) => refused.push(n),
                Err(error) => panic!("{n}: {error}"),
            }
            let stats = linklet.stats();
            assert!(stats.spill_disk_bytes <= bound, "{stats:?}");
            assert!(
                stats.bytes <= MEMORY + VALUE_BYTES as u64 + 300,
                "{stats:?}"
            );
        }
        assert!(linklet.stats().spill_full > 0);
        let evictions = linklet.stats().evictions;
        let mut there = Vec::new();
        for n in 0..KEYS {
            match linklet.read(&name(n), Vec::clone).await.unwrap() {
                Some(found) => {
                    assert_eq!(found, value(n, 0));
                    there.push(n);
                }
                None if replication == Replication::Strong => assert!(refused.contains(&n)),
                None => {}
            }
        }
        match replication {
            Replication::Strong => {
                assert_eq!(evictions, 0);
                assert!(!refused.is_empty());
                assert_eq!(heard.losses.lock().unwrap().len(), 0);
            }
            _ => {
                assert_eq!(refused, [0; 0]);
                assert_eq!(there.len() as u64, KEYS - evictions);
                let told = || {
                    let losses = heard.losses.lock().unwrap();
                    losses
                        .iter()
                        .map(|loss| loss.keys.len() as u64)
                        .sum::<u64>()
                };
                until("each is reported", || told() == evictions).await;
            }
        }
        // What is removed gives its place to others.
        let before = there.len();
        for &n in there.iter().filter(|&n| n % 4 != 0) {
            assert!(linklet.remove(&name(n)).await.unwrap());
        }
        let since = Instant::now();
        let mut n = KEYS;
        while n < KEYS + before as u64 / 2 {
            match linklet.insert(&name(n), value(n, 0)).await {
                Ok(_) => n += 1,
                // Full a moment ago.
                Err(Error::NoRoom { .. }) => sleep(Duration::from_millis(20)).await,
                Err(error) => panic!("{n}: {error}"),
            }
            assert!(
                since.elapsed() < Duration::from_secs(60),
                "{:?}",
                linklet.stats()
            );
        }
        for n in KEYS..n {
            let found = linklet.read(&name(n), Vec::clone).await.unwrap();
            assert!(
                found == Some(value(n, 0)) || replication != Replication::Strong,
                "{n}"
            );
        }
    }
}

/// Takes its time, so that values come faster than they can be written.
struct Slow;

impl Marshal<Vec<u8>> for Slow {
    fn marshal(&self, _: &[u8], value: &Vec<u8>, out: &mut Vec<u8>) -> Result<(), MarshalError> {
        std::thread::sleep(Duration::from_millis(1));
        out.extend_from_slice(value);
        Ok(())
    }

    fn unmarshal(&self, _: &[u8], bytes: &[u8]) -> Result<Vec<u8>, MarshalError> {
        Ok(bytes.to_vec())
    }

    fn weigh(&self, value: &Vec<u8>) -> usize {
        size_of_val(value) + value.capacity()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_faster_than_the_disk_waits_and_nothing_is_evicted() {
    let directory = tempfile::tempdir().unwrap();
    let builder = Linklet::builder(CORPUS, Slow)
        .memory(MEMORY)
        .spill(directory.path(), DISK);
    let (linklet, heard) = alone(builder).await;
    let tasks: Vec<_> = (0..8)
        .map(|task| {
            let linklet = linklet.clone();
            tokio::spawn(async move {
                for n in (0..KEYS).filter(|n| n % 8 == task) {
                    match n % 2 {
                        0 => linklet.insert(&name(n), value(n, 0)).await.map(|_| ()),
                        _ => linklet.upsert(&name(n), || value(n, 0), |_| ()).await,
                    }
                    .unwrap();
                    let bytes = linklet.stats().bytes;
                    // One for each task that has changed it in place.
                    let most = MEMORY + 8 * (VALUE_BYTES as u64 + 300);
                    assert!(bytes <= most, "{bytes} bytes");
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    for n in 0..KEYS {
        let found = linklet.read(&name(n), Vec::clone).await.unwrap();
        assert!(found == Some(value(n, 0)), "{n}");
    }
    assert_eq!(linklet.stats().evictions, 0);
    assert_eq!(heard.losses.lock().unwrap().len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_only_read_is_written_once() {
    let directory = tempfile::tempdir().unwrap();
    let (linklet, _) = alone(plain(&directory)).await;
    for n in 0..KEYS {
        linklet.insert(&name(n), value(n, 0)).await.unwrap();
    }
    for _ in 0..3 {
        for n in 0..KEYS {
            let found = linklet.get(&name(n)).await.unwrap();
            assert_eq!(found.map(|held| held.to_vec()), Some(value(n, 0)));
        }
    }
    let stats = linklet.stats();
    assert!(
        stats.spill_reads > KEYS && stats.spill_writes <= KEYS,
        "{stats:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn going_through_everything_sees_what_is_on_disk_and_leaves_it_there() {
    let directory = tempfile::tempdir().unwrap();
    let (linklet, _) = alone(plain(&directory)).await;
    for n in 0..KEYS {
        linklet.insert(&name(n), value(n, 0)).await.unwrap();
    }
    let before = rests(&linklet, |stats| stats.spilled).await;
    let mut seen = Vec::new();
    let mut parts = linklet.each_owned();
    while let Some(part) = parts.next().await.unwrap() {
        for (key, found) in part {
            let n: u64 = u64::from_le_bytes(*found.first_chunk().unwrap());
            assert_eq!((&*key, &*found), (&*name(n), &value(n, 0)));
            seen.push(n);
        }
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..KEYS).collect::<Vec<_>>());
    assert_eq!(linklet.stats().spilled, before);
}

/// Many want the same value at the same time.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_on_disk_is_read_once_for_all_who_wait_for_it() {
    /// Unmarshals only when it may.
    struct Gated(Arc<AtomicBool>);

    impl Marshal<Vec<u8>> for Gated {
        fn marshal(&self, _: &[u8], v: &Vec<u8>, out: &mut Vec<u8>) -> Result<(), MarshalError> {
            out.extend_from_slice(v);
            Ok(())
        }

        fn unmarshal(&self, _: &[u8], bytes: &[u8]) -> Result<Vec<u8>, MarshalError> {
            while !self.0.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            Ok(bytes.to_vec())
        }

        fn weigh(&self, value: &Vec<u8>) -> usize {
            size_of_val(value) + value.capacity()
        }
    }

    let (directory, open) = (
        tempfile::tempdir().unwrap(),
        Arc::new(AtomicBool::new(false)),
    );
    let builder = Linklet::builder(CORPUS, Gated(Arc::clone(&open)))
        .memory(MEMORY)
        .spill(directory.path(), DISK);
    let (linklet, _) = alone(builder).await;
    for n in 0..KEYS {
        linklet.insert(&name(n), value(n, 0)).await.unwrap();
    }
    // Those that have been there for longest are on disk.
    let many: Vec<_> = (0..20)
        .map(|_| {
            let linklet = linklet.clone();
            tokio::spawn(async move { linklet.read(&name(0), Vec::clone).await })
        })
        .collect();
    until("it is read", || linklet.stats().spill_reads > 0).await;
    open.store(true, Ordering::Release);
    for read in many {
        assert_eq!(read.await.unwrap().unwrap(), Some(value(0, 0)));
    }
    assert_eq!(linklet.stats().spill_reads, 1);
}

/// Several in one directory, and one that comes and goes.
#[tokio::test(flavor = "multi_thread")]
async fn linklets_that_share_a_directory_leave_each_other_alone() {
    let directory = tempfile::tempdir().unwrap();
    let (one, _) = alone(plain(&directory)).await;
    for n in 0..KEYS {
        one.insert(&name(n), value(n, 1)).await.unwrap();
    }
    {
        let (two, _) = alone(plain(&directory)).await;
        for n in 0..KEYS {
            two.insert(&name(n), value(n, 2)).await.unwrap();
        }
        for n in 0..KEYS {
            let found = two.read(&name(n), Vec::clone).await.unwrap();
            assert!(found == Some(value(n, 2)), "{n}");
        }
    }
    let (_three, _) = alone(plain(&directory)).await;
    for n in 0..KEYS {
        let found = one.read(&name(n), Vec::clone).await.unwrap();
        assert!(found == Some(value(n, 1)), "{n}");
    }
}

const CHILD: &str = "TREFOIL_TEST_SPILL_CHILD";

/// The process of the next test.
#[tokio::test(flavor = "multi_thread")]
async fn spills_until_it_is_killed() {
    let Some(directory) = std::env::var_os(CHILD) else {
        return;
    };
    let builder = Linklet::builder(CORPUS, PlainMarshal)
        .memory(MEMORY)
        .spill(directory, DISK);
    let (linklet, _) = alone(builder).await;
    for n in 0.. {
        let n = n % KEYS;
        linklet.insert(&name(n), value(n, 0)).await.unwrap();
        if n == KEYS - 1 {
            println!("spilled {}", linklet.stats().spilled);
        }
    }
}

#[test]
fn a_killed_process_leaves_nothing_on_disk() {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};
    let directory = tempfile::tempdir().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "spill::spills_until_it_is_killed", "--nocapture"])
        .env(CHILD, directory.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let spilled = lines
        .map_while(Result::ok)
        .find_map(|line| line.split_once("spilled ")?.1.trim().parse::<u64>().ok());
    let fds = std::fs::read_dir(format!("/proc/{}/fd", child.id())).unwrap();
    let files = fds
        .filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok())
        .filter(|target| target.starts_with(directory.path()))
        .count();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(spilled > Some(KEYS / 2), "{spilled:?}");
    assert!(files > 0, "it had files there");
    let left = std::fs::read_dir(directory.path()).unwrap().count();
    assert_eq!(left, 0, "no name is left, so nothing can be");
}
