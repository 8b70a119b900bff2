//! A server on free ports and a real gRPC client.

use crate::support::{CONFIG_ID, LIFE, Setup, next_version, request};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::time::{Duration, Instant};
use tonic::Code;
use trefoil_backend::{LEASE, METRICS};
use trefoil_cell::Mode;
use trefoil_fabric::shm::{ConnectOptions, Connection};
use trefoil_layout::Version;
use trefoil_layout::op::{Action, Expected, Outcome, Rejection};
use trefoil_rpc::v1;

#[test]
fn mutations_and_lookups_through_both_sockets() {
    let cell = Setup::new(Mode::R1, 1).start();
    let mut caller = cell.client();
    assert_eq!(caller.set(0, b"key", b"value").outcome, Outcome::Applied);
    caller.client = cell.client_over(1);
    assert_eq!(caller.get(0, CONFIG_ID, b"key").unwrap(), b"value");
    assert_eq!(caller.get(0, CONFIG_ID, b"other"), None);

    let big = vec![7; 16 << 20];
    assert_eq!(caller.set(0, b"big", &big).outcome, Outcome::Applied);
    assert!(caller.get(0, CONFIG_ID, b"big").unwrap() == big);

    let absent = request(0, Action::Cas(Expected::Absent), b"key", b"v");
    let outcome = caller.mutate(absent).unwrap().outcome;
    assert!(matches!(
        outcome,
        Outcome::Mismatch {
            present: Some(_),
            ..
        }
    ));
    let erased = caller
        .mutate(request(0, Action::Erase, b"key", b""))
        .unwrap();
    assert_eq!(erased.outcome, Outcome::Applied);
    assert_eq!(caller.get(0, CONFIG_ID, b"key"), None);
    cell.server.shutdown();
}

#[test]
fn hello_says_what_a_client_must_know() {
    let mut setup = Setup::new(Mode::R32, 3);
    setup.options.partition_count = Some(8);
    let cell = setup.start();
    let mut caller = cell.client();
    let hello = |backend| v1::HelloRequest {
        backend,
        layout_version: u32::from(trefoil_layout::limits::LAYOUT_VERSION),
    };
    let answer = cell
        .runtime
        .block_on(caller.client.hello(hello(2)))
        .unwrap();
    let answer = answer.into_inner();
    // Eight were asked for, and there are three shards.
    assert_eq!((answer.backend, answer.partition_count), (2, 9));
    assert_eq!(answer.fabric_socket, cell.fabric().display().to_string());
    assert_eq!(answer.boot_id.len(), 36);
    assert_ne!(answer.incarnation, 0);
    let config = trefoil_cell::decode_config(&answer.config.unwrap()).unwrap();
    assert_eq!(config, cell.config);
    let missing = cell
        .runtime
        .block_on(caller.client.hello(hello(3)))
        .unwrap_err();
    assert_eq!(missing.code(), Code::NotFound);
    assert!(
        missing
            .message()
            .contains("this process is backend 0, 1, 2")
    );

    // Each member is a replica of its own.
    caller.set(1, b"key", b"value");
    assert_eq!(caller.get(0, CONFIG_ID, b"key"), None);
    assert_eq!(caller.get(1, CONFIG_ID, b"key").unwrap(), b"value");
}

#[test]
fn bad_requests_get_helpful_answers() {
    let cell = Setup::new(Mode::R1, 1).start();
    let mut caller = cell.client();
    type Damage = fn(&mut v1::MutateRequest);
    let malformed: [(Code, &str, Damage); 5] = [
        (Code::InvalidArgument, "\"action\"", |r| r.action = 9),
        (Code::InvalidArgument, "\"version\"", |r| r.version = None),
        (Code::InvalidArgument, "\"item_flags\"", |r| {
            r.item_flags = 1 << 20
        }),
        (Code::InvalidArgument, "\"expiry_ms\"", |r| {
            r.expiry_ms = u64::MAX
        }),
        (Code::NotFound, "backend 8 is not served here", |r| {
            r.backend = 8
        }),
    ];
    for (code, hint, damage) in malformed {
        let mut request = request(0, Action::Set, b"k", b"v");
        damage(&mut request);
        let status = caller.mutate(request).unwrap_err();
        assert_eq!(status.code(), code, "{hint}");
        assert!(status.message().contains(hint), "{}", status.message());
    }
    let far = Version {
        time_ns: next_version().time_ns + 60_000_000_000,
        origin: 1,
    };
    let long_value = vec![0; (16 << 20) + 1];
    let long_key = vec![b'k'; 65_537];
    let mut ahead = request(0, Action::Set, b"k", b"v");
    ahead.version = Some(trefoil_rpc::encode_version(far));
    let mut stale = request(0, Action::Set, b"k", b"v");
    stale.config_id = CONFIG_ID - 1;
    for (rejection, request) in [
        (Rejection::KeyEmpty, request(0, Action::Set, b"", b"v")),
        (
            Rejection::KeyTooLong,
            request(0, Action::Set, &long_key, b"v"),
        ),
        (
            Rejection::ValueTooLong,
            request(0, Action::Set, b"k", &long_value),
        ),
        (Rejection::ClockAhead, ahead),
        (Rejection::StaleConfig, stale),
    ] {
        let outcome = caller.mutate(request).unwrap().outcome;
        assert_eq!(outcome, Outcome::Rejected(rejection));
    }
    let too_long = request(0, Action::Set, b"k", &vec![0; 41 << 20]);
    assert!(caller.mutate(too_long).is_err());

    // Touches of anything are ignored, too many refused.
    let mut touch = |slots: Vec<u32>, partition| {
        let partitions = vec![v1::PartitionTouches {
            partition,
            window_id: 2,
            names: slots.clone(),
            slots,
        }];
        let request = v1::TouchRequest {
            backend: 0,
            partitions,
            life: LIFE,
        };
        cell.runtime.block_on(caller.client.touch(request))
    };
    touch(vec![0, u32::MAX, 7], 63).unwrap();
    touch(vec![u32::MAX; 1000], 0).unwrap();
    assert_eq!(
        touch(vec![0; 65_537], 0).unwrap_err().code(),
        Code::InvalidArgument
    );
    assert_eq!(touch(vec![], 64).unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(caller.set(0, b"k", b"v").outcome, Outcome::Applied);
}

/// Bytes that are not HTTP/2, cut or never finished, harm nobody else.
#[test]
fn noise_on_the_sockets_is_survived() {
    let cell = Setup::new(Mode::R1, 1).start();
    let address = cell.server.tcp_address().unwrap();
    let mut idle = Vec::new();
    for noise in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff",
        b"",
    ] {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        stream.write_all(noise).unwrap();
        idle.push(stream);
    }
    let mut caller = cell.client();
    assert_eq!(caller.set(0, b"k", b"v").outcome, Outcome::Applied);
}

/// A client whose host has vanished ends nothing: it is asked whether it is there.
#[test]
fn a_silent_connection_is_asked_whether_it_is_there() {
    let cell = Setup::new(Mode::R1, 1).start();
    let mut stream = std::os::unix::net::UnixStream::connect(cell.home.path().join("rpc")).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    // Preface and empty settings.
    stream
        .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")
        .unwrap();
    const PING: u8 = 6;
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).expect("a ping");
        let [0, high, low, kind, ..] = head else {
            panic!("a frame of {head:?}");
        };
        if kind == PING {
            break;
        }
        let mut rest = vec![0; usize::from(u16::from_be_bytes([high, low]))];
        stream.read_exact(&mut rest).unwrap();
    }
}

/// What a connection has to show whose it is.
const GUEST_PATIENCE: Duration = Duration::from_secs(5);

fn hangs_up(stream: &mut std::net::TcpStream, patience: Duration) -> bool {
    stream.set_read_timeout(Some(patience)).unwrap();
    let mut said = [0; 64];
    loop {
        match stream.read(&mut said) {
            Ok(0) => return true,
            // HTTP/2 settings.
            Ok(_) => {}
            Err(error) => return error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}

/// Nobody is kept outside by those who connect and do not show whose they are.
#[test]
fn a_connection_that_shows_no_token_does_not_last() {
    // A busy machine may need their five seconds to connect them.
    assert!((0..5).any(|_| the_oldest_strangers_make_room()));
}

/// Whether those who came first go before their time is over, because others come.
fn the_oldest_strangers_make_room() -> bool {
    const PATIENCE: Duration = Duration::from_secs(60);
    let cell = Setup::new(Mode::R1, 1).start();
    let mut caller = cell.client();
    caller.client = cell.client_over(1);
    assert_eq!(caller.set(0, b"k", b"v").outcome, Outcome::Applied);
    let address = cell.server.tcp_address().unwrap();
    let begin = Instant::now();
    let connect = |_| std::net::TcpStream::connect(address).unwrap();
    let mut silent: Vec<_> = (0..400).map(connect).collect();
    // One that speaks, and shows another token.
    let endpoint = trefoil_cell::endpoint(&cell.config.backends[0].addresses[1]).unwrap();
    let channel = cell.runtime.block_on(endpoint.connect()).unwrap();
    let mut stranger = trefoil_rpc::client(channel, trefoil_rpc::Credentials::none());
    let ping = stranger.ping(v1::PingRequest {});
    let refused = cell.runtime.block_on(ping).unwrap_err();
    assert_eq!(refused.code(), Code::Unauthenticated);
    for stream in &mut silent[..100] {
        assert!(hangs_up(stream, PATIENCE));
    }
    let is_soon = begin.elapsed() < GUEST_PATIENCE;
    let mut other = cell.client();
    other.client = cell.client_over(1);
    assert_eq!(other.get(0, CONFIG_ID, b"k").unwrap(), b"v");
    // The time of all of them ends, but of those that are known.
    for stream in &mut silent {
        assert!(hangs_up(stream, PATIENCE));
    }
    assert_eq!(caller.get(0, CONFIG_ID, b"k").unwrap(), b"v");
    assert_eq!(other.get(0, CONFIG_ID, b"k").unwrap(), b"v");
    is_soon
}

#[test]
fn a_call_without_a_value_is_short() {
    let cell = Setup::new(Mode::R1, 1).start();
    let mut caller = cell.client();
    let request = v1::LookupRequest {
        backend: 0,
        life: LIFE,
        config_id: CONFIG_ID,
        key: vec![b'k'; 2 << 20].into(),
        ..v1::LookupRequest::default()
    };
    let lookup = caller.client.lookup(request);
    let refused = cell.runtime.block_on(lookup).unwrap_err();
    assert_eq!(refused.code(), Code::OutOfRange, "{refused}");
    assert_eq!(caller.set(0, b"k", b"v").outcome, Outcome::Applied);
}

/// Whoever looks a cell over finds what a reader finds, and nobody learns of it.
#[test]
fn a_peek_leaves_no_trace() {
    let cell = Setup::new(Mode::R1, 1).start();
    let mut caller = cell.client();
    caller.set(0, b"short", b"v");
    caller.set(0, b"long", &[7; 200_000]);
    let request = |key: &'static [u8]| v1::LookupRequest {
        backend: 0,
        life: LIFE,
        config_id: CONFIG_ID,
        key: key.into(),
        ..v1::LookupRequest::default()
    };
    let mut client = caller.client.clone();
    let mut peek = |key| cell.runtime.block_on(client.peek(request(key))).unwrap();
    let peeked = [&b"short"[..], b"long", b"nothing"].map(|key| peek(key).into_inner());
    let stats = caller.stats();
    let member = &stats.members[0];
    assert_eq!((member.lookup_hits, member.lookup_misses), (0, 0));
    assert_eq!(stats.process.unwrap().rpc_lookups, 0);
    let mut client = caller.client.clone();
    let mut lookup = |key| cell.runtime.block_on(client.lookup(request(key))).unwrap();
    let found = [&b"short"[..], b"long", b"nothing"].map(|key| lookup(key).into_inner());
    assert_eq!(peeked, found);
    assert_eq!(caller.get(0, CONFIG_ID, b"long"), Some(vec![7; 200_000]));
    let member = caller.stats().members.remove(0);
    assert_eq!((member.lookup_hits, member.lookup_misses), (3, 1));
}

#[test]
fn statistics_count_what_happened() {
    let cell = Setup::new(Mode::R1, 1).start();
    let mut caller = cell.client();
    for number in 0..100 {
        caller.set(0, format!("key-{number}").as_bytes(), &[0; 1000]);
    }
    caller.get(0, CONFIG_ID, b"key-1");
    caller.get(0, CONFIG_ID, b"nothing");
    let stats = caller.stats();
    let process = stats.process.clone().unwrap();
    assert_eq!(process.pid, std::process::id());
    assert_eq!((process.rpc_mutations, process.rpc_lookups), (100, 2));
    assert_eq!(process.memory_limit_bytes, 1 << 30);
    assert!(process.resident_bytes > 1 << 20);
    let member = &stats.members[0];
    assert_eq!((member.items, member.config_id), (100, CONFIG_ID));
    assert_eq!((member.lookup_hits, member.lookup_misses), (1, 1));
    assert!(member.entry_bytes >= 100_000);
    let sets = member
        .mutations
        .iter()
        .find(|m| m.kind == "set" && m.outcome == "applied");
    assert_eq!(sets.unwrap().count, 100);
    let json = serde_json::to_value(&stats).unwrap();
    assert_eq!(json["members"][0]["items"], 100);
}

#[test]
fn metrics_are_served_over_http() {
    let cell = Setup::new(Mode::R32, 3).start();
    let address = cell.server.metrics_address().unwrap();
    let scrape = |path: &str, accept: &str| {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: x\r\nAccept: {accept}\r\nConnection: close\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    };
    let text = scrape("/metrics", "application/openmetrics-text");
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    for metric in METRICS {
        let kind = if metric.is_counter {
            "counter"
        } else {
            "gauge"
        };
        let line = format!("# TYPE {} {kind}\n", metric.name);
        assert!(text.contains(&line), "{line}");
    }
    assert!(
        text.contains("trefoil_items{cell=\"test\",backend=\"2\"} 0"),
        "{text}"
    );
    assert!(text.contains("trefoil_process_cpu_seconds_total{cell=\"test\",mode=\"user\"}"));
    assert!(text.trim_end().ends_with("# EOF"));
    assert!(scrape("/", "*/*").starts_with("HTTP/1.1 404"));

    let text = scrape("/metrics", "text/plain");
    assert!(
        text.contains("content-type: text/plain; version=0.0.4"),
        "{text}"
    );
    for metric in METRICS.iter().filter(|metric| metric.is_counter) {
        let line = format!("# TYPE {}_total counter\n", metric.name);
        assert!(text.contains(&line), "{line}");
    }
    assert!(!text.contains("# EOF"), "{text}");
}

/// A scraper that asks again and again and reads nothing would fill the server's
/// memory: each connection is answered once.
#[test]
fn a_connection_is_scraped_once() {
    let cell = Setup::new(Mode::R1, 1).start();
    let mut stream = std::net::TcpStream::connect(cell.server.metrics_address().unwrap()).unwrap();
    let request = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
    stream.write_all(request).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    assert!(text.contains("connection: close\r\n"), "{text}");
}

#[test]
fn the_lease_is_renewed_and_a_shutdown_revokes_it() {
    let started = Instant::now();
    let cell = Setup::new(Mode::R1, 1).start();
    assert!(
        started.elapsed() >= LEASE,
        "a predecessor's lease was waited out"
    );
    let mut connection = Connection::connect(cell.fabric(), 0, &ConnectOptions::default()).unwrap();
    let alive =
        |connection: &Connection| connection.lease_alive(trefoil_fabric::clock::monotonic_ns());
    // A machine that stands still may let one end; the next renewal brings it back.
    let renewals = || cell.server.statistics().process.unwrap().lease_renewals;
    while renewals() <= 5 || started.elapsed() < 3 * LEASE || !alive(&connection) {
        assert!(started.elapsed() < Duration::from_secs(60), "not renewed");
        std::thread::sleep(LEASE / 5);
    }
    cell.server.shutdown();
    assert!(!alive(&connection), "what is still mapped is not believed");
    connection.refresh();
    assert!(!cell.home.path().join("rpc").exists() && !cell.home.path().join("fabric").exists());
}

/// A client that is idle goes on mapping the memory of a server that has stopped: it
/// must not cost the host the server's memory a second time.
#[test]
fn a_server_that_stops_gives_its_memory_back_although_clients_map_it() {
    const VALUES: usize = 16;
    const VALUE_LEN: usize = 1 << 20;
    let cell = Setup::new(Mode::R1, 1).named("given-back").start();
    let connection = Connection::connect(cell.fabric(), 0, &ConnectOptions::default()).unwrap();
    let mut caller = cell.client();
    let value = vec![7; VALUE_LEN];
    for number in 0..VALUES {
        let ack = caller.set(0, format!("key-{number}").as_bytes(), &value);
        assert_eq!(ack.outcome, Outcome::Applied);
    }
    drop(caller);
    let [index, data] = ["index", "data"].map(|part| object_of("given-back", part));
    let resident = |object: &std::fs::File| object.metadata().unwrap().blocks() * 512;
    assert!(resident(&data) >= (VALUES * VALUE_LEN) as u64);
    assert!(resident(&index) > 0);
    cell.server.shutdown();
    assert!(!connection.lease_alive(trefoil_fabric::clock::monotonic_ns()));
    assert_eq!((resident(&index), resident(&data)), (0, 0));
}

/// A memory object of this process, by the name that the system shows.
fn object_of(cell: &str, part: &str) -> std::fs::File {
    let name = format!("/memfd:trefoil-{cell}-0-{part} (deleted)");
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap();
    let path = descriptors
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| std::fs::read_link(path).is_ok_and(|link| link.as_os_str() == &*name))
        .expect("the server holds it");
    std::fs::File::open(path).unwrap()
}

/// An HTTP/2 frame.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    bytes.extend_from_slice(&[kind, flags]);
    bytes.extend_from_slice(&stream.to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// After a pause of this process these are all that its client had in flight: what else goes over
/// the connection is not lost by that.
#[test]
fn a_client_may_take_back_all_its_calls_before_they_are_looked_at() {
    const PING: [u8; 8] = *b"are-you?";
    let cell = Setup::new(Mode::R1, 1).start();
    let mut stream = std::os::unix::net::UnixStream::connect(cell.home.path().join("rpc")).unwrap();
    let mut said = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    said.extend(frame(4, 0, 0, &[]));
    // POST, http, and a path of one byte.
    let headers = [0x83, 0x86, 0x04, 2, b'/', b'x'];
    for call in 0..512_u32 {
        let stream = 2 * call + 1;
        said.extend(frame(1, 4, stream, &headers));
        said.extend(frame(3, 0, stream, &8u32.to_be_bytes()));
    }
    said.extend(frame(6, 0, 0, &PING));
    stream.write_all(&said).unwrap();
    let pong = frame(6, 1, 0, &PING);
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let mut heard: Vec<u8> = Vec::new();
    let mut bytes = [0; 4096];
    while !heard
        .windows(pong.len())
        .any(|seen| seen == pong.as_slice())
    {
        let count = stream.read(&mut bytes).unwrap();
        assert!(count > 0, "it has hung up: {heard:?}");
        heard.extend(&bytes[..count]);
    }
    cell.server.shutdown();
}
