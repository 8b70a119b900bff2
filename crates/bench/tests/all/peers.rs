//! The hand-written clients against the real servers. Where a server is not
//! installed its tests pass with a note: the clients' parsing has its own.

use std::time::Duration;

use trefoil_bench::peer::{
    CONGESTION, Endpoint, Memcached, PeerError, PeerKind, PeerOptions, PeerProcess, Redis,
    Transport, Waiting,
};
use trefoil_bench::target::{GetOutcome, SetOutcome, Target, TargetError};

const WAITINGS: [Waiting; 2] = [Waiting::Spinning, Waiting::Blocking];

fn start(kind: PeerKind, transport: Transport) -> Option<PeerProcess> {
    let options = PeerOptions {
        transport,
        core: Some(0),
        value_len_max: 2 << 20,
        ..PeerOptions::new(kind, 64)
    };
    match PeerProcess::start(options) {
        Ok(peer) => Some(peer),
        Err(error @ PeerError::Missing { .. }) => {
            assert!(error.to_string().contains("apt-get install"));
            eprintln!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn get(target: &mut impl Target, key: &[u8]) -> Option<Vec<u8>> {
    match target.get(key).unwrap() {
        GetOutcome::Hit(value) => Some(value.to_vec()),
        GetOutcome::Miss => None,
    }
}

/// What every target must do.
fn exercise(target: &mut impl Target) {
    assert_eq!(get(target, b"absent"), None);
    let binary: Vec<u8> = (0..=255).chain(*b"\r\nEND\r\n").collect();
    let large = vec![b'x'; 2_000_000];
    for value in [&b""[..], b"v", &binary, &large] {
        assert_eq!(target.set(b"key", value, None).unwrap(), SetOutcome::Stored);
        assert_eq!(get(target, b"key").as_deref(), Some(value));
    }

    let keys: Vec<Vec<u8>> = (0..100).map(|i| format!("many-{i}").into_bytes()).collect();
    let items: Vec<(&[u8], &[u8])> = keys
        .iter()
        .step_by(2)
        .map(|key| (key.as_slice(), key.as_slice()))
        .collect();
    target.set_many(&items).unwrap();
    let asked: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    let mut seen = vec![0; 100];
    target
        .get_many(&asked, &mut |index, outcome| {
            seen[index] += 1;
            match outcome {
                GetOutcome::Hit(value) => assert_eq!((index % 2, value), (0, asked[index])),
                GetOutcome::Miss => assert_eq!(index % 2, 1),
            }
        })
        .unwrap();
    assert_eq!(seen, vec![1; 100]);
    target.get_many(&[], &mut |_, _| panic!("no keys")).unwrap();

    target.erase(b"key").unwrap();
    target.erase(b"key").unwrap();
    assert_eq!(get(target, b"key"), None);

    for ttl in [Duration::from_secs(60), Duration::from_secs(90 * 86_400)] {
        target.set(b"lives", b"v", Some(ttl)).unwrap();
        assert!(get(target, b"lives").is_some());
    }
}

fn outlive(target: &mut impl Target) {
    let life = Duration::from_millis(900);
    target.set(b"dies", b"v", Some(life)).unwrap();
    // memcached's clock has whole seconds.
    std::thread::sleep(Duration::from_millis(2_100));
    assert_eq!(get(target, b"dies"), None);
}

fn look_at(peer: &PeerProcess) {
    assert!(peer.version().starts_with(|c: char| c.is_ascii_digit()));
    assert!(peer.label().ends_with(&format!(" {}", peer.version())));
    assert!(peer.cpu_time().unwrap() > Duration::ZERO);
    assert!(peer.memory().unwrap().rss > 1 << 20);
}

#[test]
fn memcached_over_both_transports_and_both_ways_of_waiting() {
    for transport in [Transport::Tcp, Transport::Unix] {
        let Some(peer) = start(PeerKind::Memcached, transport) else {
            return;
        };
        for waiting in WAITINGS {
            let mut client = Memcached::connect(peer.endpoint(), waiting).unwrap();
            exercise(&mut client);
            assert_eq!(client.stats().unwrap()["evictions"], "0");
        }
        if transport == Transport::Tcp {
            outlive(&mut Memcached::connect(peer.endpoint(), Waiting::Blocking).unwrap());
        }
        look_at(&peer);
    }
}

#[test]
fn redis_over_tcp() {
    let Some(peer) = start(PeerKind::Redis, Transport::Tcp) else {
        return;
    };
    let mut client = Redis::connect(peer.endpoint(), Waiting::Spinning).unwrap();
    exercise(&mut client);
    // 50 of many, and the one that lives.
    assert_eq!(client.keys_count().unwrap(), 51);
    outlive(&mut client);
    look_at(&peer);
}

#[test]
fn redis_over_a_unix_socket() {
    let Some(peer) = start(PeerKind::Redis, Transport::Unix) else {
        return;
    };
    exercise(&mut Redis::connect(peer.endpoint(), Waiting::Blocking).unwrap());
}

#[test]
fn the_peer_s_end_of_tcp_uses_the_same_congestion_control() {
    for kind in [PeerKind::Memcached, PeerKind::Redis] {
        let Some(peer) = start(kind, Transport::Tcp) else {
            continue;
        };
        if peer.congestion().is_none() {
            eprintln!("skipped: not allowed to reach the peer's sockets");
            continue;
        }
        let mut client = Memcached::connect(peer.endpoint(), Waiting::Spinning).unwrap();
        // Whatever it answers, it has accepted us once it does.
        let _ = client.stats();
        let in_force = peer.connection_congestion().unwrap();
        assert!(in_force.iter().all(|c| c == CONGESTION), "{in_force:?}");
    }
}

#[test]
fn refusals_are_words_and_the_client_goes_on() {
    let Some(peer) = start(PeerKind::Memcached, Transport::Unix) else {
        return;
    };
    let mut client = Memcached::connect(peer.endpoint(), Waiting::Spinning).unwrap();
    let too_large = vec![0; 8 << 20];
    let error = client.set(b"key", &too_large, None).unwrap_err();
    assert!(matches!(error, TargetError::Refused { .. }), "{error}");
    let error = client.get(&[b'k'; 300]).unwrap_err();
    assert!(error.to_string().contains("memcached"), "{error}");
    client.set(b"key", b"value", None).unwrap();
    assert_eq!(get(&mut client, b"key").as_deref(), Some(&b"value"[..]));
}

#[test]
fn a_dead_peer_is_an_error_and_leaves_nothing_behind() {
    let Some(peer) = start(PeerKind::Memcached, Transport::Unix) else {
        return;
    };
    let endpoint = peer.endpoint().clone();
    let mut client = Memcached::connect(&endpoint, Waiting::Spinning).unwrap();
    client.set(b"key", b"value", None).unwrap();
    let pid = peer.pid();
    drop(peer);
    assert!(client.get(b"key").is_err());
    assert!(client.get(b"key").is_err());
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    let Endpoint::Unix(path) = endpoint else {
        panic!("asked for a Unix socket")
    };
    assert!(!path.exists(), "its directory goes with it");
}
