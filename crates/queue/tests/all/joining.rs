//! Who comes in, who does not, and what is said.

use crate::support::{Server, Wanted, eventually};
use rustix::process::Signal;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use trefoil_fabric::shm::{ListenError, UserPolicy};
use trefoil_ordered::{NoAnswer, Refused, SetUpError};
use trefoil_queue::{
    Client, ClientError, FolderError, JoinError, RequestError, ServeError, ServeOptions,
    ServiceKind, Status, serve,
};

const SERVICES: [(ServiceKind, bool); 4] = [
    (ServiceKind::Cache, false),
    (ServiceKind::Cache, true),
    (ServiceKind::Rocksdb, false),
    (ServiceKind::Rocksdb, true),
];

#[test]
fn every_service_does_what_it_is_asked_and_keeps_what_it_says() {
    for (service, is_durable) in SERVICES {
        let folder = tempfile::tempdir().expect("a folder");
        let wanted = Wanted::new(service, is_durable, folder.path());
        let server = Server::ready(&wanted);
        let mut one = Client::connect(&wanted.socket()).expect("a queue");
        let mut two = Client::connect(&wanted.socket()).expect("a queue");
        assert_eq!((one.service(), one.is_durable()), (service, is_durable));
        assert_eq!(one.get(b"k"), Ok(None));
        one.set(b"k", b"value").expect("committed");
        // Committed: nobody reads anything older.
        assert_eq!(two.get(b"k"), Ok(Some(&b"value"[..])));
        assert_eq!(two.add(b"n", 40), Ok(40));
        assert_eq!(one.add(b"n", 2), Ok(42));
        one.append(b"k", b"s").expect("executed");
        assert_eq!(two.get(b"k"), Ok(Some(&b"values"[..])));
        two.set(b"gone", b"soon").expect("committed");
        one.erase(b"gone").expect("committed");
        assert_eq!(two.get(b"gone"), Ok(None));
        let not_a_number = Err(ClientError::Status(Status::NoNumber));
        assert_eq!(one.add(b"k", 1), not_a_number);
        let no_key = Err(ClientError::Request(RequestError::KeyLen { len: 0 }));
        assert_eq!(one.set(b"", b"v"), no_key);
        let sent = two.queue().submit(b"nonsense", false).expect("a slot");
        assert_eq!(
            two.answer(sent),
            Err(ClientError::Status(Status::Malformed))
        );
        server.stop();
        let gone = one.get(b"k").expect_err("the server is gone");
        let told = [
            ClientError::NoAnswer(NoAnswer::ServerGone),
            ClientError::Refused(Refused::Closed),
        ];
        assert!(told.contains(&gone), "{gone}");

        let server = Server::ready(&wanted);
        let mut client = Client::connect(&wanted.socket()).expect("a queue");
        let kept = is_durable || service == ServiceKind::Rocksdb;
        assert_eq!(client.get(b"k"), Ok(kept.then_some(&b"values"[..])));
        assert_eq!(client.add(b"n", 0), Ok(if kept { 42 } else { 0 }));
        server.stop();
    }
}

#[test]
fn a_full_queue_says_so_and_has_room_after_a_client_has_gone() {
    let folder = tempfile::tempdir().expect("a folder");
    let wanted = Wanted {
        clients: 1,
        ..Wanted::new(ServiceKind::Cache, false, folder.path())
    };
    let server = Server::ready(&wanted);
    let mut one = Client::connect(&wanted.socket()).expect("a queue");
    let full = Client::connect(&wanted.socket());
    assert!(
        matches!(full, Err(JoinError::Full { most: 1, .. })),
        "{full:?}"
    );
    one.set(b"k", b"v").expect("committed");
    drop(one);
    let mut two = eventually("room", || Client::connect(&wanted.socket()).ok());
    assert_eq!(
        two.get(b"k"),
        Ok(Some(&b"v"[..])),
        "its last words were heard"
    );
    server.stop();
}

#[test]
fn what_is_no_queue_is_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("socket");
    let nobody = Client::connect(&path);
    assert!(
        matches!(nobody, Err(JoinError::Nobody { .. })),
        "{nobody:?}"
    );
    let listener = UnixListener::bind(&path).expect("a socket");
    let said = |bytes: Vec<u8>| {
        std::thread::scope(|scope| {
            let listener = &listener;
            scope.spawn(move || {
                let (mut stream, _) = listener.accept().expect("a client");
                std::io::Write::write_all(&mut stream, &bytes).expect("a client");
            });
            Client::connect(&path)
        })
    };
    let closed = said(Vec::new());
    assert!(
        matches!(closed, Err(JoinError::NotLetIn { .. })),
        "{closed:?}"
    );
    let foreign = said(vec![b'x'; 64]);
    assert!(
        matches!(foreign, Err(JoinError::Foreign { .. })),
        "{foreign:?}"
    );
}

/// Slots of a client's lane.
const SLOTS: usize = 16;
/// Longer than this program stands still while somebody measures.
const LONG: Duration = Duration::from_secs(120);

#[test]
fn who_was_not_answered_in_time_goes_on() {
    let folder = tempfile::tempdir().expect("a folder");
    for is_durable in [false, true] {
        let folder = folder.path().join(is_durable.to_string());
        std::fs::create_dir(&folder).expect("a folder");
        let wanted = Wanted::new(ServiceKind::Cache, is_durable, &folder);
        let server = Server::ready(&wanted);
        let mut client = Client::connect(&wanted.socket()).expect("a queue");
        client.set(b"k", b"v").expect("committed");
        server.pause();
        let short = Duration::from_millis(20);
        client.set_within(short);
        let timed_out = ClientError::NoAnswer(NoAnswer::TimedOut(short));
        assert_eq!(client.get(b"k"), Err(timed_out));
        assert_eq!(client.add(b"n", 1), Err(timed_out));
        assert_eq!(client.append(b"k", b"w"), Err(timed_out));
        server.signal(Signal::CONT);
        client.set_within(LONG);
        for number in 0..2 * SLOTS {
            let set = client.set(b"other", number.to_string().as_bytes());
            assert_eq!(set, Ok(()), "{number}");
        }
        assert_eq!(client.add(b"n", 1), Ok(2), "the other one was done late");
        assert_eq!(client.get(b"k"), Ok(Some(&b"vw"[..])));
        server.stop();
    }
}

#[test]
fn who_waits_for_room_learns_that_the_server_is_gone() {
    let folder = tempfile::tempdir().expect("a folder");
    let wanted = Wanted::new(ServiceKind::Cache, false, folder.path());
    let server = Server::ready(&wanted);
    let mut client = Client::connect(&wanted.socket()).expect("a queue");
    client.set(b"k", b"v").expect("committed");
    assert_eq!(client.get(b"k"), Ok(Some(&b"v"[..])));
    server.pause();
    // It may have been amid a turn.
    client.set_within(Duration::from_millis(20));
    let full = loop {
        if let Err(full) = client.set(b"k", b"w") {
            break full;
        }
    };
    assert_eq!(full, ClientError::Refused(Refused::Full));
    server.kill();
    client.set_within(LONG);
    let closed = Err(ClientError::Refused(Refused::Closed));
    assert_eq!(client.set(b"k", b"w"), closed);
}

/// Two accounts that own nothing.
const SERVER: u32 = 65_534;
const GUEST: u32 = 65_533;
const GUEST_CHILD: &str = "TREFOIL_TEST_QUEUE_GUEST";

/// A copy of this program, with another user's rights.
fn by(user: u32, program: &Path) -> Command {
    let id = user.to_string();
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid", &id, "--regid", &id, "--clear-groups", "--"])
        .arg(program)
        .current_dir("/");
    command
}

/// Needs root, to become somebody else; says so where it cannot.
#[test]
fn a_user_who_is_let_in_comes_to_a_server_that_he_names() {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root || Command::new("setpriv").arg("--version").output().is_err() {
        eprintln!("skipped: only root, with setpriv, can try other accounts");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(folder.path(), open).expect("a folder");
    let program = folder.path().join("program");
    std::fs::copy(std::env::current_exe().expect("a path"), &program).expect("a copy");
    let place = folder.path().join("queue");
    std::fs::create_dir(&place).expect("a folder");
    chown(&place, Some(SERVER), Some(SERVER)).expect("an account");
    let wanted = Wanted {
        users: UserPolicy::Listed(vec![GUEST]),
        ..Wanted::new(ServiceKind::Cache, false, &place)
    };
    let mut server = Server::start_by(&mut by(SERVER, &program), &wanted);
    server.await_ready();
    let guest = by(GUEST, &program)
        .args(["--exact", "joining::guest_child", "--nocapture"])
        .env(GUEST_CHILD, wanted.socket())
        .output()
        .expect("a child");
    assert!(guest.status.success(), "{guest:?}");
    // Nobody has let this one in.
    let stranger = by(GUEST - 1, &program)
        .args(["--exact", "joining::guest_child", "--nocapture"])
        .env(GUEST_CHILD, wanted.socket())
        .output()
        .expect("a child");
    let said = String::from_utf8_lossy(&stranger.stderr).into_owned();
    assert!(said.contains("NotLetIn"), "{stranger:?}");
    // Root trusts everybody.
    let mut client = Client::connect(&wanted.socket()).expect("a queue");
    assert_eq!(client.get(b"k"), Ok(Some(&b"theirs"[..])));
    server.stop();
}

/// Started as a process of its own.
#[test]
fn guest_child() {
    let Ok(socket) = std::env::var(GUEST_CHILD) else {
        return;
    };
    let socket = Path::new(&socket);
    let unnamed = Client::connect(socket);
    assert!(
        matches!(unnamed, Err(JoinError::Stranger { .. })),
        "{unnamed:?}"
    );
    let other = UserPolicy::Listed(vec![1]);
    let unnamed = Client::connect_to(socket, &other);
    assert!(
        matches!(unnamed, Err(JoinError::Stranger { .. })),
        "{unnamed:?}"
    );
    let servers = UserPolicy::Listed(vec![SERVER]);
    let mut client = Client::connect_to(socket, &servers).expect("let in");
    client.set(b"k", b"theirs").expect("committed");
    assert_eq!(client.get(b"k"), Ok(Some(&b"theirs"[..])));
}

/// What `serve` says before it serves.
fn refused(options: &ServeOptions) -> ServeError {
    let stop = AtomicBool::new(true);
    serve(options, &stop, || panic!("it serves")).expect_err("it cannot be served")
}

#[test]
fn what_cannot_be_served_is_told_before_anything_is() {
    let folder = tempfile::tempdir().expect("a folder");
    let wanted = Wanted::new(ServiceKind::Rocksdb, true, folder.path());
    let options = wanted.options();
    let error = refused(&ServeOptions {
        folder: None,
        ..options.clone()
    });
    assert!(matches!(error, ServeError::Impossible(_)), "{error}");
    let cache = ServeOptions {
        service: ServiceKind::Cache,
        ..options.clone()
    };
    for cache in [
        ServeOptions {
            folder: None,
            ..cache.clone()
        },
        ServeOptions {
            is_durable: false,
            ..cache.clone()
        },
        ServeOptions {
            memory: 1000,
            ..cache.clone()
        },
    ] {
        let error = refused(&cache);
        assert!(matches!(error, ServeError::Impossible(_)), "{error}");
    }
    let mut places = options.clone();
    places.queue.client_count_max = 0;
    let error = refused(&places);
    assert!(matches!(error, ServeError::Impossible(_)), "{error}");
    // Who claims a lane meanwhile would wait in vain.
    let mut naps = options.clone();
    naps.queue.nap = Duration::from_secs(2);
    let error = refused(&naps).to_string();
    assert!(error.contains("100 ms at most"), "{error}");
    let mut slots = options.clone();
    slots.queue.slot_count = 3;
    let error = refused(&slots);
    assert!(
        matches!(error, ServeError::SetUp(SetUpError::SlotCount(3))),
        "{error}"
    );
    let error = refused(&ServeOptions {
        library: Some("/nowhere/librocksdb.so".into()),
        folder: Some(folder.path().join("other")),
        ..options.clone()
    });
    assert!(error.to_string().contains("/nowhere"), "{error}");

    let server = Server::ready(&wanted);
    let error = refused(&ServeOptions {
        folder: Some(folder.path().join("third")),
        ..options.clone()
    });
    assert!(
        matches!(error, ServeError::Listen(ListenError::InUse { .. })),
        "{error}"
    );
    let error = refused(&ServeOptions {
        socket: folder.path().join("other-socket"),
        ..options.clone()
    });
    assert!(
        matches!(error, ServeError::Folder(FolderError::InUse(_))),
        "{error}"
    );
    server.stop();
    let error = refused(&cache);
    assert!(
        matches!(error, ServeError::Folder(FolderError::Other { .. })),
        "{error}"
    );
}
