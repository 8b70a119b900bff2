//! Who comes in, who does not, and what is said.

use crate::support::{Server, Wanted, eventually};
use std::os::unix::net::UnixListener;
use std::sync::atomic::AtomicBool;
use trefoil_fabric::shm::ListenError;
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
