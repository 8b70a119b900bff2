//! Every form of the service, as real processes, gives the same answers.

use crate::support::{Running, address_book, busy, connect, whole};
use address_book_contract::frame::{self, Frame};
use address_book_contract::sample_book;
use address_book_contract::v1::address_books_client::AddressBooksClient;
use address_book_contract::v1::{
    ChangeRequest, FreeSlotsRequest, Interval, LookupAnswer, LookupRequest, StatsRequest,
};
use bytes::BytesMut;
use prost::Message as _;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tonic::Code;
use tonic::transport::Channel;
use trefoil_coordination::{AssignerServer, NodeOptions, StoreAddress};

fn cache(program: &str, port_flag: &str, more: &[&str]) -> Running {
    let port = trefoil_ports::free_port(Ipv4Addr::LOCALHOST).unwrap();
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut command = Command::new(program);
    command
        .args([port_flag, &address.port().to_string()])
        .args(more);
    let child = command.stdout(Stdio::null()).spawn().unwrap();
    let running = Running {
        child,
        address: address.to_string(),
        frames: None,
        metrics: None,
    };
    let begin = Instant::now();
    while TcpStream::connect(address).is_err() {
        assert!(
            begin.elapsed() < Duration::from_secs(60),
            "{program} is not up"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    running
}

/// What every form has to do.
async fn behaves(mut books: AddressBooksClient<Channel>) {
    let lookup = |first, count| LookupRequest {
        owner: "ada".into(),
        first,
        count,
    };
    let nothing = books.lookup(lookup(0, 9)).await.unwrap().into_inner();
    assert_eq!((nothing.version, nothing.contacts.len()), (0, 0));

    let all = sample_book(1, 1_000).contacts;
    let first = books
        .change(whole("ada", 1))
        .await
        .unwrap()
        .into_inner()
        .version;
    let found = books
        .lookup(lookup(0, u32::MAX))
        .await
        .unwrap()
        .into_inner();
    assert_eq!((found.version, &found.contacts), (first, &all));
    let part = books.lookup(lookup(2, 3)).await.unwrap().into_inner();
    assert_eq!(part.contacts, all[2..5]);

    let other = sample_book(2, 1_000).contacts;
    let change = ChangeRequest {
        owner: "ada".into(),
        first: 1,
        contacts: other[..1].to_vec(),
        ..ChangeRequest::default()
    };
    let second = books.change(change).await.unwrap().into_inner().version;
    assert!(second > first);
    let changed = books.lookup(lookup(0, 3)).await.unwrap().into_inner();
    assert_eq!(changed.version, second);
    assert_eq!(
        changed.contacts,
        [all[0].clone(), other[0].clone(), all[2].clone()]
    );

    books.change(busy("ada", 60, 120)).await.unwrap();
    books.change(busy("grace", 100, 180)).await.unwrap();
    books.change(busy("edsger", 230, 300)).await.unwrap();
    let slots = books
        .find_free_slots(FreeSlotsRequest {
            owners: ["ada", "grace", "edsger", "nobody"]
                .map(str::to_owned)
                .into(),
            within: Some(Interval {
                begin_min: 0,
                end_min: 240,
            }),
            minutes: 50,
        })
        .await;
    let free = slots.unwrap().into_inner().free;
    let free: Vec<_> = free
        .iter()
        .map(|time| (time.begin_min, time.end_min))
        .collect();
    assert_eq!(free, [(0, 60), (180, 230)]);
    // Contacts are still there beside the calendar.
    let found = books
        .lookup(lookup(0, u32::MAX))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(found.contacts.len(), all.len());

    let refused = books.lookup(LookupRequest::default()).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    let stats = books.stats(StatsRequest {}).await.unwrap().into_inner();
    assert!(stats.lookups >= 5 && stats.changes >= 5, "{stats:?}");
}

#[tokio::test]
async fn stateless_with_memcached() {
    let memcached = cache("memcached", "-p", &["-l", "127.0.0.1", "-u", "root"]);
    let server = address_book(&[
        "serve",
        "--mode",
        "memcached",
        "--stores",
        &memcached.address,
    ]);
    behaves(connect(&server).await).await;
}

#[tokio::test]
async fn stateless_with_redis() {
    let redis = cache("redis-server", "--port", &["--save", ""]);
    let server = address_book(&["serve", "--mode", "redis", "--stores", &redis.address]);
    behaves(connect(&server).await).await;
}

#[tokio::test]
async fn stateless_with_stores_that_understand_books() {
    let stores = [(); 3].map(|()| address_book(&["serve", "--mode", "store"]));
    let addresses = stores
        .each_ref()
        .map(|store| store.address.clone())
        .join(",");
    let server = address_book(&["serve", "--mode", "front", "--stores", &addresses]);
    behaves(connect(&server).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stateful() {
    let listen = "127.0.0.1:0".parse().unwrap();
    let assigner = AssignerServer::start(listen, &StoreAddress::Memory, NodeOptions::default());
    let assigner = assigner.await.unwrap();
    let address = assigner.address().to_string();
    let server = address_book(&["serve", "--mode", "linked", "--assigner", &address]);
    behaves(connect(&server).await).await;
}

#[tokio::test]
async fn concurrent_changes_through_memcached_lose_nothing() {
    let memcached = cache("memcached", "-p", &["-l", "127.0.0.1", "-u", "root"]);
    let stores = &memcached.address;
    let servers =
        [(); 2].map(|()| address_book(&["serve", "--mode", "memcached", "--stores", stores]));
    let mut books = connect(&servers[0]).await;
    books.change(whole("ada", 1)).await.unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..20 {
        let mut books = connect(&servers[number % 2]).await;
        tasks.spawn(async move {
            let at = number as i64 * 10;
            loop {
                match books.change(busy("ada", at, at + 5)).await {
                    Ok(_) => return,
                    Err(status) => assert_eq!(status.code(), Code::Aborted, "{status}"),
                }
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    let request = FreeSlotsRequest {
        owners: vec!["ada".into()],
        within: Some(Interval {
            begin_min: 0,
            end_min: 200,
        }),
        minutes: 1,
    };
    let free = books
        .find_free_slots(request)
        .await
        .unwrap()
        .into_inner()
        .free;
    assert_eq!(free.len(), 20);
}

#[test]
fn settings_that_do_not_fit_are_usage_errors() {
    for arguments in [
        &["serve", "--mode", "front"][..],
        &["serve", "--mode", "store", "--stores", "127.0.0.1:1"],
        &["serve", "--mode", "linked"],
        &["demo", "--rate", "0"],
        &["serve", "--mode", "store", "--relay", "127.0.0.1:1"],
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_address-book"))
            .args(arguments)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(!output.stderr.is_empty());
    }
}

/// One frame there, one back.
fn exchange(stream: &mut TcpStream, request: &[u8]) -> Frame {
    stream.write_all(request).unwrap();
    let mut input = BytesMut::new();
    loop {
        if let Some(frame) = frame::take(&mut input).unwrap() {
            return frame;
        }
        let mut some = [0; 100];
        let len = stream.read(&mut some).unwrap();
        assert_ne!(len, 0, "the connection has ended");
        input.extend_from_slice(&some[..len]);
    }
}

#[tokio::test]
async fn frames_carry_the_same_messages() {
    let server = address_book(&["serve", "--mode", "store", "--frames", "127.0.0.1:0"]);
    let mut stream = TcpStream::connect(server.frames.as_ref().unwrap()).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    let done = exchange(
        &mut stream,
        &frame::wrap(7, frame::CHANGE, &whole("ada", 1)),
    );
    assert_eq!((done.number, done.tag), (7, frame::DONE));
    let lookup = LookupRequest {
        owner: "ada".into(),
        first: 0,
        count: u32::MAX,
    };
    let found = exchange(&mut stream, &frame::wrap(8, frame::LOOKUP, &lookup));
    assert_eq!((found.number, found.tag), (8, frame::DONE));
    let by_grpc = connect(&server).await.lookup(lookup).await.unwrap();
    assert_eq!(
        LookupAnswer::decode(found.body).unwrap(),
        by_grpc.into_inner()
    );

    // What is wrong is said, and the connection goes on.
    for (tag, body, code) in [
        (9, &b""[..], Code::Unimplemented),
        (frame::LOOKUP, b"\xff", Code::InvalidArgument),
        (frame::LOOKUP, b"", Code::InvalidArgument),
    ] {
        let refused = exchange(&mut stream, &frame::wrap_bytes(1, tag, body));
        assert_eq!(refused.tag, code as u8);
        assert_ne!(frame::Refusal::decode(refused.body).unwrap().message, "");
    }
    // But for bytes in which no frame can be found.
    stream.write_all(&[0xff; 64]).unwrap();
    assert!(matches!(stream.read(&mut [0; 64]), Ok(0) | Err(_)));
}
