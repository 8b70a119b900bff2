//! The store over etcd, over a real one that is killed, stopped, compacted, restored
//! from a backup, and that asks for certificates and passwords.

use crate::config_stores::{LIFE, Place, config, id};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use trefoil_cell::*;
use trefoil_ports::{EtcdProcess, EtcdTls};

/// Longer than anything takes that is to happen at all.
const PATIENCE: Duration = Duration::from_secs(20);
const SOON: Duration = Duration::from_millis(30);
/// The shortest that etcd grants is about one second.
const LEASE: Duration = Duration::from_secs(2);

/// A cell in an etcd of its own.
pub(crate) struct InEtcd {
    etcd: EtcdProcess,
    home: tempfile::TempDir,
}

impl InEtcd {
    pub(crate) fn start() -> Self {
        let home = tempfile::tempdir().unwrap();
        let etcd = EtcdProcess::start(home.path(), None)
            .expect("etcd and etcdctl are installed: scripts/setup.sh etcd does it");
        InEtcd { etcd, home }
    }

    fn address(&self) -> EtcdAddress {
        format!("etcd://{}/cells/mail", self.etcd.host())
            .parse()
            .unwrap()
    }

    pub(crate) fn store(&self) -> EtcdStore {
        EtcdStore::open(&self.address(), &settings()).unwrap()
    }

    /// A store of backends whose sockets would be in `name`.
    fn backends(&self, name: &str) -> EtcdStore {
        let directory = DirectoryStore::create(&self.home.path().join(name)).unwrap();
        self.store().in_directory(directory).unwrap()
    }

    /// Takes a key of the cell away.
    pub(crate) fn forget(&self, key: &str) {
        let key = format!("cells/mail/{key}");
        self.etcd.ctl(&["del", &key]).unwrap();
    }

    /// A folder beside etcd's.
    pub(crate) fn folder(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    pub(crate) fn backup(&self) -> PathBuf {
        let file = self.home.path().join("backup");
        let _ = std::fs::remove_file(&file);
        self.etcd.save(&file).unwrap();
        file
    }

    pub(crate) fn restore(&mut self, backup: &Path) {
        self.etcd.kill();
        self.etcd.restore(backup).unwrap();
        self.etcd.run().unwrap();
    }
}

impl Place for InEtcd {
    fn open(&self) -> Arc<dyn BackendRegistry> {
        Arc::new(self.store())
    }
}

fn settings() -> EtcdSettings {
    with_access(EtcdAccess::default())
}

fn with_access(access: EtcdAccess) -> EtcdSettings {
    EtcdSettings {
        access,
        lease: LEASE,
    }
}

pub(crate) fn eventually<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begin.elapsed() < PATIENCE, "it does not happen");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_watch_survives_compaction() {
    let place = InEtcd::start();
    let store = place.store();
    store.compare_and_swap(None, &config(1)).unwrap();
    std::thread::scope(|scope| {
        let waiting = place.store();
        let waiter = scope.spawn(move || {
            let mut known = id(1);
            while known != id(30) {
                let seen = waiting.wait_for_change(known, PATIENCE).unwrap();
                known = Some(seen.expect("it changes").topology_id());
            }
        });
        for next in 2..=30 {
            store.compare_and_swap(id(next - 1), &config(next)).unwrap();
            if next % 5 == 0 {
                place.etcd.compact().unwrap();
            }
        }
        waiter.join().unwrap();
    });
}

/// The watch is away while everything happens that it would have said, and the history
/// that would tell is gone when it comes back.
#[test]
fn what_a_watch_has_missed_and_etcd_has_forgotten_is_learned() {
    let mut place = InEtcd::start();
    let (store, waiting) = (place.store(), place.store());
    store.compare_and_swap(None, &config(1)).unwrap();
    assert_eq!(
        waiting.wait_for_change(id(1), SOON).unwrap(),
        None,
        "it stands"
    );
    let waiter = std::thread::spawn(move || {
        let seen = waiting.wait_for_change(id(1), PATIENCE);
        (seen, waiting)
    });
    place.etcd.kill();
    // Its own process, lest the waiting one's connection is back first.
    place.etcd.run().unwrap();
    let file = place.home.path().join("next.json");
    let mut next = serde_json::to_value(config(2)).unwrap();
    for config_id in 2..=9 {
        next["config_id"] = config_id.into();
        std::fs::write(&file, serde_json::to_vec(&next).unwrap()).unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        place
            .etcd
            .ctl(&["put", "cells/mail/config", &text])
            .unwrap();
    }
    place.etcd.compact().unwrap();
    let (seen, waiting) = waiter.join().unwrap();
    let seen = seen.unwrap().expect("it has changed");
    assert!(seen.config_id > 1);
    let last = eventually(|| {
        let last = waiting.load().unwrap().unwrap();
        (last.config_id == 9).then_some(last)
    });
    assert_eq!(waiting.wait_for_change(id(9), SOON).unwrap(), None);
    assert_eq!(last, config(9));
}

#[test]
fn an_outage_is_waited_for_and_named() {
    let mut place = InEtcd::start();
    let (store, waiting) = (place.store(), place.store());
    store.compare_and_swap(None, &config(1)).unwrap();
    assert_eq!(waiting.wait_for_change(id(1), SOON).unwrap(), None);
    place.etcd.kill();
    let waiter = std::thread::spawn(move || waiting.wait_for_change(id(1), PATIENCE));
    for error in [
        store.load().unwrap_err(),
        store.wait_for_change(id(1), SOON).unwrap_err(),
        store.compare_and_swap(id(1), &config(2)).unwrap_err(),
        store.claim(0).map(drop).unwrap_err(),
    ] {
        assert!(error.is_outage(), "{error}");
        let text = error.to_string();
        let address = place.address().to_string();
        assert!(
            text.contains(&address) && text.contains("refused"),
            "{text}"
        );
    }
    place.etcd.run().unwrap();
    store.compare_and_swap(id(1), &config(2)).unwrap();
    assert_eq!(waiter.join().unwrap().unwrap(), Some(config(2)));
}

/// etcd takes the request and dies before it answers, or takes none at all: either way
/// the change is carried out once.
#[test]
fn a_change_is_carried_through_a_short_outage() {
    let mut place = InEtcd::start();
    let store = place.store();
    store.compare_and_swap(None, &config(1)).unwrap();
    for next in 2..=4 {
        place.etcd.kill();
        let changing = store.clone();
        let change =
            std::thread::spawn(move || changing.compare_and_swap(id(next - 1), &config(next)));
        place.etcd.run().unwrap();
        change.join().unwrap().unwrap();
        assert_eq!(store.load().unwrap(), Some(config(next)));
    }
}

#[test]
fn an_etcd_that_hangs_is_given_up() {
    let place = InEtcd::start();
    let store = place.store();
    store.compare_and_swap(None, &config(1)).unwrap();
    let pid = place.etcd.pid().unwrap().to_string();
    let signal = |name: &str| {
        let status = Command::new("kill").args([name, &pid]).status();
        assert!(status.unwrap().success());
    };
    signal("-STOP");
    // A thread that runs goes on until it is next looked at.
    let has_stopped = || {
        let mut threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        threads.all(|thread| {
            let stat = thread.and_then(|t| std::fs::read_to_string(t.path().join("stat")));
            stat.is_ok_and(|stat| stat.contains(") T "))
        })
    };
    eventually(|| has_stopped().then_some(()));
    let begin = Instant::now();
    let error = store.load().unwrap_err();
    let took = begin.elapsed();
    signal("-CONT");
    assert!(error.is_outage(), "{error}");
    assert!(took < Duration::from_secs(5), "{took:?}");
    eventually(|| store.load().ok());
}

/// Members that are away are passed over, and asked again when the others are.
#[test]
fn another_member_is_asked() {
    let mut place = InEtcd::start();
    let host = place.etcd.host();
    let nobody = trefoil_ports::free_port(std::net::Ipv4Addr::LOCALHOST).unwrap();
    for members in [
        format!("127.0.0.1:{nobody},{host}"),
        format!("{host},127.0.0.1:{nobody}"),
    ] {
        let address = format!("etcd://{members}/{nobody}").parse().unwrap();
        let store = EtcdStore::open(&address, &settings()).unwrap();
        let known = store.load().unwrap().map_or(0, |config| config.config_id);
        let expected = if known == 0 { None } else { id(known) };
        store
            .compare_and_swap(expected, &config(known + 1))
            .unwrap();
        assert_eq!(store.wait_for_change(id(known + 1), SOON).unwrap(), None);
        place.etcd.kill();
        assert!(store.load().unwrap_err().is_outage());
        place.etcd.run().unwrap();
        eventually(|| store.load().ok());
        let next = config(known + 2);
        store.compare_and_swap(id(known + 1), &next).unwrap();
        assert_eq!(
            store.wait_for_change(id(known + 1), PATIENCE).unwrap(),
            Some(next)
        );
    }
}

/// The store is for threads, those that poll tasks included.
#[test]
fn it_can_be_asked_from_inside_another_runtime() {
    let place = InEtcd::start();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    runtime.block_on(async {
        let store = place.store();
        store.compare_and_swap(None, &config(1)).unwrap();
        let lock = store.claim(0).unwrap();
        assert_eq!(lock.begin_incarnation(LIFE).unwrap(), 1);
        assert_eq!(store.load().unwrap(), Some(config(1)));
    });
}

const ORDER: &str = "TREFOIL_TEST_CLAIM";

/// Not a test: the process of the others, which is backend 0 until it is killed.
#[test]
fn claiming_process() {
    let Some(order) = std::env::var_os(ORDER) else {
        return;
    };
    let order = order.into_string().unwrap();
    let (address, directory) = order.split_once(' ').unwrap();
    let store = EtcdStore::open(&address.parse().unwrap(), &settings()).unwrap();
    let directory = DirectoryStore::create(Path::new(directory)).unwrap();
    let lock = store.in_directory(directory).unwrap().claim(0).unwrap();
    lock.begin_incarnation(LIFE).unwrap();
    println!("claimed");
    std::thread::sleep(PATIENCE * 2);
}

struct Claiming(Child);

impl Claiming {
    fn start(place: &InEtcd, directory: &str) -> Self {
        let directory = place.home.path().join(directory);
        let order = format!("{} {}", place.address(), directory.display());
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["etcd_store::claiming_process", "--exact", "--nocapture"])
            .env(ORDER, order)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Claiming(child)
    }
}

impl Drop for Claiming {
    /// SIGKILL.
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_killed_backend_is_named_until_its_lease_ends() {
    let place = InEtcd::start();
    let store = place.backends("here");
    store.compare_and_swap(None, &config(1)).unwrap();
    let claiming = Claiming::start(&place, "there");
    let pid = claiming.0.id();
    let is_there = || {
        store.claimed().unwrap()
            == [Claimed {
                number: 0,
                process: Some(pid),
            }]
    };
    eventually(|| is_there().then_some(()));
    // Longer than a lease: it is kept.
    std::thread::sleep(LEASE + LEASE / 2);
    assert!(is_there());
    let error = store.claim(0).map(drop).unwrap_err().to_string();
    assert!(error.contains(&format!("as process {pid}")), "{error}");
    drop(claiming);
    assert!(is_there(), "nobody else can know yet");
    // From elsewhere: when the lease has ended.
    store.claim(0).unwrap();
}

/// A backend that is started again where it was waits for no lease: the lock in its
/// directory tells that its predecessor is dead.
#[test]
fn a_killed_backend_is_followed_at_once_in_its_own_place() {
    let place = InEtcd::start();
    let store = place.backends("here");
    store.compare_and_swap(None, &config(1)).unwrap();
    for round in 1..4 {
        let claiming = Claiming::start(&place, "here");
        let counted = || store.incarnations().unwrap().get(&0).copied() == Some(2 * round - 1);
        eventually(|| counted().then_some(()));
        drop(claiming);
        let begin = Instant::now();
        let lock = store.claim(0).unwrap();
        let took = begin.elapsed();
        assert!(took < LEASE / 2, "{took:?}");
        assert_eq!(lock.begin_incarnation(LIFE).unwrap(), 2 * round);
    }
}

#[test]
fn a_registration_outlives_outages_and_the_loss_of_everything() {
    let mut place = InEtcd::start();
    let store = place.backends("here");
    store.compare_and_swap(None, &config(1)).unwrap();
    let empty = place.backup();
    let _lock = store.claim(1).unwrap();
    let is_there = || store.claimed().is_ok_and(|claimed| claimed.len() == 1);
    assert!(is_there());
    place.etcd.kill();
    std::thread::sleep(LEASE);
    place.etcd.run().unwrap();
    eventually(|| is_there().then_some(()));
    // Of a time when nobody had registered.
    place.restore(&empty);
    eventually(|| is_there().then_some(()));
    place.etcd.kill();
    place.etcd.lose_data().unwrap();
    place.etcd.run().unwrap();
    eventually(|| is_there().then_some(()));
}

#[test]
fn an_etcd_restored_from_an_old_backup_is_refused_until_it_is_mended() {
    let mut place = InEtcd::start();
    let store = place.backends("here");
    store.compare_and_swap(None, &config(1)).unwrap();
    let lock = store.claim(0).unwrap();
    assert_eq!(lock.begin_incarnation(LIFE).unwrap(), 1);
    let backup = place.backup();
    assert_eq!(lock.begin_incarnation(LIFE).unwrap(), 2);
    for next in 2..=5 {
        store.compare_and_swap(id(next - 1), &config(next)).unwrap();
    }
    for has_lost_everything in [false, true] {
        if has_lost_everything {
            place.etcd.kill();
            place.etcd.lose_data().unwrap();
            place.etcd.run().unwrap();
        } else {
            place.restore(&backup);
        }
        let known = eventually(|| {
            let error = store.load().unwrap_err();
            match error {
                ConfigStoreError::Older { found, known, .. } => {
                    assert_eq!(found, if has_lost_everything { None } else { id(1) });
                    Some(known)
                }
                error if error.is_outage() => None,
                error => panic!("{error}"),
            }
        });
        let next = config(known.config_id + 1);
        for error in [
            store.compare_and_swap(id(1), &next).unwrap_err(),
            store.compare_and_swap(Some(known), &next).unwrap_err(),
            store.compare_and_swap(None, &next).unwrap_err(),
            store.wait_for_change(Some(known), PATIENCE).unwrap_err(),
            lock.begin_incarnation(LIFE).unwrap_err(),
        ] {
            let text = error.to_string();
            let command = format!("trefoil cell restore-config --store {}", place.address());
            assert!(text.contains(&command), "{text}");
            assert!(text.contains("old backup"), "{text}");
        }
        // By whoever mends it, which is another process.
        let mender = place.store();
        let found = mender.look().unwrap();
        let count = 10 * next.config_id;
        mender
            .restore(found.as_ref(), &next, &[(0, count)].into())
            .unwrap();
        let refused = mender.restore(found.as_ref(), &config(99), &[].into());
        assert!(matches!(refused, Err(ConfigStoreError::Conflict { .. })));
        assert_eq!(
            store.wait_for_change(Some(known), PATIENCE).unwrap(),
            Some(next)
        );
        assert_eq!(lock.begin_incarnation(LIFE).unwrap(), count + 1);
    }
}

/// Over an old backup somebody who has seen nothing of what came since has given the same id
/// away again.
#[test]
fn another_configuration_of_an_id_that_was_in_force_is_refused() {
    let mut place = InEtcd::start();
    let store = place.store();
    store.compare_and_swap(None, &config(1)).unwrap();
    let backup = place.backup();
    store.compare_and_swap(id(1), &config(2)).unwrap();
    place.restore(&backup);
    let other = CellConfig {
        cell: "other".to_owned(),
        ..config(2)
    };
    let fresh = place.store();
    eventually(|| match fresh.compare_and_swap(id(1), &other) {
        Ok(()) => Some(()),
        // It may have been written.
        Err(_) => (fresh.load().ok()?? == other).then_some(()),
    });
    let error = eventually(|| match store.load() {
        Err(error) if error.is_outage() => None,
        answer => Some(answer.unwrap_err()),
    });
    assert!(
        matches!(error, ConfigStoreError::TwoOfOneId { id: both, .. } if Some(both) == id(2)),
        "{error}"
    );
    assert!(error.may_pass());
    // Whoever mends it writes a higher one.
    let mender = place.store();
    let found = mender.look().unwrap();
    let counts = [].into();
    mender.restore(found.as_ref(), &config(3), &counts).unwrap();
    assert_eq!(store.load().unwrap(), Some(config(3)));
}

/// A process that is started after the old backup was brought back has seen nothing of
/// what came since; what its directory remembers tells.
#[test]
fn forgotten_starts_are_noticed() {
    let mut place = InEtcd::start();
    let store = place.backends("here");
    store.compare_and_swap(None, &config(1)).unwrap();
    let backup = place.backup();
    let begin = |store: &EtcdStore| store.claim(2).unwrap().begin_incarnation(LIFE);
    assert_eq!(begin(&store).unwrap(), 1);
    place.restore(&backup);
    let store = place.backends("here");
    let error = eventually(|| begin(&store).err().filter(|error| !error.is_outage()));
    let text = error.to_string();
    assert!(
        text.contains("counts 0 starts of backend 2, and there were 1"),
        "{text}"
    );
    assert!(text.contains("restore-config"), "{text}");
}

#[test]
fn nonsense_in_etcd_is_named() {
    let place = InEtcd::start();
    let store = place.store();
    for nonsense in ["", "{}", "null", "[1]"] {
        place
            .etcd
            .ctl(&["put", "cells/mail/config", nonsense])
            .unwrap();
        let text = store.load().unwrap_err().to_string();
        assert!(text.contains("key cells/mail/config"), "{text}");
        assert!(text.contains("no valid configuration"), "{text}");
    }
    // Others' keys are not ours.
    place
        .etcd
        .ctl(&["put", "cells/mail/backends/x", "?"])
        .unwrap();
    place
        .etcd
        .ctl(&["put", "cells/mail/backends/1", "?"])
        .unwrap();
    let claimed = store.claimed().unwrap();
    assert_eq!(
        claimed,
        [Claimed {
            number: 1,
            process: None
        }]
    );
    store.claim(1).unwrap();
}

#[test]
fn a_directory_with_a_cell_of_its_own_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let directory = DirectoryStore::create(home.path()).unwrap();
    directory.compare_and_swap(None, &config(1)).unwrap();
    let address = "etcd://127.0.0.1:1/c".parse().unwrap();
    let store = EtcdStore::open(&address, &settings()).unwrap();
    let error = store.in_directory(directory).unwrap_err().to_string();
    assert!(error.contains("choose another directory"), "{error}");
}

struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        Authority(CertifiedIssuer::self_signed(params, key).unwrap())
    }

    /// The authority's certificate, one for 127.0.0.1, and the key of that.
    fn files(&self, home: &Path, name: &str) -> EtcdTls {
        let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        let write = |kind: &str, text: &str| {
            let path = home.join(format!("{name}-{kind}.pem"));
            std::fs::write(&path, text).unwrap();
            path
        };
        EtcdTls {
            authority: write("ca", &self.0.pem()),
            certificate: write("cert", &certificate.pem()),
            key: write("key", &key.serialize_pem()),
        }
    }
}

fn with_tls(files: &EtcdTls, has_identity: bool) -> EtcdSettings {
    let identity = (files.certificate.clone(), files.key.clone());
    let tls = trefoil_cell::TlsFiles {
        authority: files.authority.clone(),
        identity: has_identity.then_some(identity),
    };
    with_access(EtcdAccess {
        tls: Some(tls),
        ..EtcdAccess::default()
    })
}

#[test]
fn certificates_are_shown_and_looked_at() {
    let home = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let (ours, client) = (
        authority.files(home.path(), "server"),
        authority.files(home.path(), "client"),
    );
    let etcd = EtcdProcess::start(home.path(), Some(ours)).unwrap();
    let address: EtcdAddress = format!("etcd://{}/c", etcd.host()).parse().unwrap();
    let open = |settings: &EtcdSettings| EtcdStore::open(&address, settings).unwrap();
    let store = open(&with_tls(&client, true));
    store.compare_and_swap(None, &config(1)).unwrap();
    let waiting = open(&with_tls(&client, true));
    let waiter = std::thread::spawn(move || waiting.wait_for_change(id(1), PATIENCE));
    let _lock = store.claim(0).unwrap();
    store.compare_and_swap(id(1), &config(2)).unwrap();
    assert_eq!(waiter.join().unwrap().unwrap(), Some(config(2)));

    let stranger = Authority::new().files(home.path(), "stranger");
    let mut other_identity = with_tls(&client, true);
    let tls = other_identity.access.tls.as_mut().unwrap();
    tls.identity = Some((stranger.certificate.clone(), stranger.key.clone()));
    for (settings, hint) in [
        (settings(), "name its authority in TREFOIL_ETCD_CA"),
        (with_tls(&client, false), "name one in TREFOIL_ETCD_CERT"),
        (with_tls(&stranger, true), "invalid peer certificate"),
        (
            other_identity,
            "does it take the certificate of TREFOIL_ETCD_CERT",
        ),
    ] {
        let error = open(&settings).load().unwrap_err().to_string();
        assert!(error.contains(hint), "{hint}: {error}");
    }
}

#[test]
fn users_are_let_in_by_their_passwords() {
    let home = tempfile::tempdir().unwrap();
    let mut etcd = EtcdProcess::start(home.path(), None).unwrap();
    let ctl = |etcd: &EtcdProcess, line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        etcd.ctl(&words).unwrap();
    };
    for line in [
        "user add root:master",
        "user add cells:open-sesame",
        "user add other:open-sesame",
        "role add root",
        "user grant-role root root",
        "role add cells",
        "role grant-permission cells --prefix=true readwrite c/",
        "user grant-role cells cells",
    ] {
        ctl(&etcd, line);
    }
    let address: EtcdAddress = format!("etcd://{}/c", etcd.host()).parse().unwrap();
    let password = |name: &str, text: &str| {
        let path = home.path().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        path
    };
    let (right, wrong) = (
        password("right", "open-sesame\n"),
        password("wrong", "open-barley\n"),
    );
    let open = |user: Option<(&str, &PathBuf)>| {
        let settings = with_access(EtcdAccess {
            user: user.map(|(user, file)| (user.to_owned(), file.clone())),
            ..EtcdAccess::default()
        });
        EtcdStore::open(&address, &settings).unwrap()
    };
    // Whoever came before passwords were asked for stays in with one.
    let store = open(Some(("cells", &right)));
    store.compare_and_swap(None, &config(1)).unwrap();
    ctl(&etcd, "auth enable");
    etcd.be("root:master");
    store.compare_and_swap(id(1), &config(2)).unwrap();
    let _lock = store.claim(0).unwrap();
    assert_eq!(store.claimed().unwrap().len(), 1);

    for (who, user, hint) in [
        ("nobody", None, "user name is empty"),
        ("wrong", Some(("cells", &wrong)), "authentication failed"),
        ("unknown", Some(("nobody", &right)), "authentication failed"),
        (
            "without rights",
            Some(("other", &right)),
            "permission denied",
        ),
    ] {
        let store = open(user);
        for error in [
            store.load().unwrap_err(),
            store.wait_for_change(None, PATIENCE).unwrap_err(),
            store.compare_and_swap(None, &config(1)).unwrap_err(),
            store.claim(1).map(drop).unwrap_err(),
        ] {
            assert!(
                matches!(error, ConfigStoreError::Refused { .. }),
                "{who}: {error}"
            );
            let text = error.to_string();
            assert!(text.contains(hint), "{who}: {text}");
            assert!(text.contains("begin with c/"), "{who}: {text}");
            assert!(!text.contains("open-"), "{who}: {text}");
        }
    }

    // With etcd's restart its tokens are worth nothing; the watch comes back, too.
    let waiting = open(Some(("cells", &right)));
    assert_eq!(waiting.wait_for_change(id(2), SOON).unwrap(), None);
    let waiter = std::thread::spawn(move || waiting.wait_for_change(id(2), PATIENCE));
    etcd.kill();
    etcd.run().unwrap();
    store.compare_and_swap(id(2), &config(3)).unwrap();
    assert_eq!(waiter.join().unwrap().unwrap(), Some(config(3)));
}

/// Both sides' certificates are renewed, of another authority even, and etcd is started again.
/// Before the last file is there, what stands there does not do.
#[test]
fn renewed_certificates_are_taken_while_it_runs() {
    let home = tempfile::tempdir().unwrap();
    let files = |authority: &Authority| {
        let server = authority.files(home.path(), "server");
        (server, authority.files(home.path(), "client"))
    };
    let (server, client) = files(&Authority::new());
    let mut etcd = EtcdProcess::start(home.path(), Some(server)).unwrap();
    let address: EtcdAddress = format!("etcd://{}/c", etcd.host()).parse().unwrap();
    let store = EtcdStore::open(&address, &with_tls(&client, true)).unwrap();
    store.compare_and_swap(None, &config(1)).unwrap();
    let _lock = store.claim(0).unwrap();
    let waiting = store.clone();
    let waiter = std::thread::spawn(move || waiting.wait_for_change(id(1), PATIENCE));

    etcd.kill();
    let renewed = Authority::new();
    files(&renewed);
    // Half of it: a key of another certificate.
    let key = std::fs::read(&client.key).unwrap();
    std::fs::write(&client.key, KeyPair::generate().unwrap().serialize_pem()).unwrap();
    etcd.run().unwrap();
    std::thread::sleep(Duration::from_millis(1_500));
    let error = store.load().unwrap_err();
    assert!(error.is_outage(), "{error}");
    std::fs::write(&client.key, key).unwrap();
    let held = eventually(|| store.load().ok());
    assert_eq!(held, Some(config(1)));
    store.compare_and_swap(id(1), &config(2)).unwrap();
    assert_eq!(waiter.join().unwrap().unwrap(), Some(config(2)));
    // Its registration, too.
    eventually(|| (store.claimed().ok()?.len() == 1).then_some(()));
}

#[test]
fn another_password_is_taken_while_it_runs() {
    let home = tempfile::tempdir().unwrap();
    let mut etcd = EtcdProcess::start(home.path(), None).unwrap();
    let ctl = |etcd: &EtcdProcess, line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        etcd.ctl(&words).unwrap();
    };
    for line in [
        "user add root:master",
        "role add root",
        "user grant-role root root",
        "user add cells:open-sesame",
        "role add cells",
        "role grant-permission cells --prefix=true readwrite c/",
        "user grant-role cells cells",
        "auth enable",
    ] {
        ctl(&etcd, line);
    }
    etcd.be("root:master");
    let file = home.path().join("password");
    std::fs::write(&file, "open-sesame\n").unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    let address: EtcdAddress = format!("etcd://{}/c", etcd.host()).parse().unwrap();
    let settings = with_access(EtcdAccess {
        user: Some(("cells".to_owned(), file.clone())),
        ..EtcdAccess::default()
    });
    let store = EtcdStore::open(&address, &settings).unwrap();
    store.compare_and_swap(None, &config(1)).unwrap();
    for line in [
        "user delete cells",
        "user add cells:open-barley",
        "user grant-role cells cells",
    ] {
        ctl(&etcd, line);
    }
    let error = store.load().unwrap_err().to_string();
    assert!(error.contains("authentication failed"), "{error}");
    std::fs::write(&file, "open-barley\n").unwrap();
    assert_eq!(eventually(|| store.load().ok()), Some(config(1)));
    store.compare_and_swap(id(1), &config(2)).unwrap();
}
