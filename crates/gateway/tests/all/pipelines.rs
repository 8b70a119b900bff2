//! Long pipelines: all of it may be written before the first answer is read, up to a bound
//! that closes nobody.

use crate::support::{self, connect};
use std::io::{ErrorKind, Read as _, Write as _};
use std::time::Duration;
use trefoil_gateway::server::{Doors, Gateway, Protocol};
use trefoil_gateway_core::keyspace::{Keyspace as _, NewItem};
use trefoil_gateway_core::memory::MemoryKeyspace;

/// Requests of one pipeline. With these lengths neither all of them nor all of the answers
/// have room in the kernel's buffers.
const COUNT: usize = 100_000;
const KEY_LEN: usize = 240;
const VALUE_LEN: usize = 1000;

fn key(number: usize) -> String {
    format!("{:0>KEY_LEN$}", number % 10)
}

fn value(number: usize) -> Vec<u8> {
    vec![b'a' + (number % 10) as u8; VALUE_LEN]
}

fn open(protocol: Protocol, buffers: usize) -> Gateway {
    let mut options = support::options();
    options.doors[0].protocol = protocol;
    options.limits.buffer_bytes_max = buffers;
    let doors = Doors::open(&options).unwrap();
    let keyspace = |_| {
        let mut memory = MemoryKeyspace::new(0);
        for number in 0..10 {
            let value = value(number);
            let item = NewItem {
                value: &value,
                ..NewItem::default()
            };
            memory.set(key(number).as_bytes(), &item).unwrap();
        }
        memory
    };
    Gateway::start(options, doors, keyspace, |_| support::Nobody).unwrap()
}

fn request(protocol: Protocol, number: usize) -> Vec<u8> {
    let key = key(number);
    match protocol {
        Protocol::Memcached => format!("get {key}\r\n"),
        Protocol::Redis => format!("*2\r\n$3\r\nGET\r\n${KEY_LEN}\r\n{key}\r\n"),
    }
    .into_bytes()
}

fn answer(protocol: Protocol, number: usize) -> Vec<u8> {
    let (head, tail) = match protocol {
        Protocol::Memcached => (
            format!("VALUE {} 0 {VALUE_LEN}\r\n", key(number)),
            "\r\nEND\r\n",
        ),
        Protocol::Redis => (format!("${VALUE_LEN}\r\n"), "\r\n"),
    };
    [head.as_bytes(), &value(number), tail.as_bytes()].concat()
}

#[test]
fn a_pipeline_may_be_written_whole_before_it_is_read() {
    for protocol in [Protocol::Memcached, Protocol::Redis] {
        let gateway = open(protocol, 256 << 20);
        let mut client = connect(&gateway).stream.into_inner();
        // Who is not read from fails here.
        let patience = Some(Duration::from_secs(60));
        client.set_write_timeout(patience).unwrap();
        client.set_read_timeout(patience).unwrap();
        let ten: Vec<u8> = (0..10).flat_map(|n| request(protocol, n)).collect();
        client.write_all(&ten.repeat(COUNT / 10)).unwrap();
        let expected: Vec<u8> = (0..10).flat_map(|n| answer(protocol, n)).collect();
        let mut answers = vec![0; expected.len()];
        for ten in 0..COUNT / 10 {
            client.read_exact(&mut answers).unwrap();
            assert!(answers == expected, "{protocol:?}, from {ten}0 on");
        }
        // And it goes on as before.
        client.write_all(&request(protocol, 7)).unwrap();
        let expected = answer(protocol, 7);
        client.read_exact(&mut answers[..expected.len()]).unwrap();
        assert!(answers[..expected.len()] == expected);
    }
}

/// Beyond the bound it is not read from, as before, and lives on: once it reads, all that it
/// has written is answered.
#[test]
fn what_is_kept_of_a_pipeline_is_bounded_and_closes_nobody() {
    let gateway = open(Protocol::Redis, 4 << 20);
    let piece: Vec<u8> = (0..10)
        .flat_map(|n| request(Protocol::Redis, n))
        .collect::<Vec<u8>>()
        .repeat(100);
    let mut others: Vec<_> = (0..3)
        .map(|_| {
            let mut stream = connect(&gateway).stream.into_inner();
            stream
                .set_write_timeout(Some(Duration::from_millis(500)))
                .unwrap();
            let mut written = 0;
            // Until nobody takes more of it.
            loop {
                match stream.write(&piece[written % piece.len()..]) {
                    Ok(len) => written += len,
                    Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                    Err(e) => panic!("{e} after {written} bytes"),
                }
                assert!(written < 200 << 20, "it is read for ever");
            }
            (stream, written)
        })
        .collect();
    let mut beside = connect(&gateway);
    assert_eq!(beside.ask("PING\r"), "+PONG\r");
    assert_eq!(gateway.connection_count(), others.len() + 1);
    for (stream, written) in &mut others {
        // What is left of the last request ends first.
        let rest = piece.len() - *written % piece.len();
        let end = piece[piece.len() - rest..].to_vec();
        let mut writer = stream.try_clone().unwrap();
        writer.set_write_timeout(None).unwrap();
        let writer = std::thread::spawn(move || writer.write_all(&end).unwrap());
        let count = (*written + rest) / request(Protocol::Redis, 0).len();
        let mut buffer = vec![0; answer(Protocol::Redis, 0).len()];
        for number in 0..count {
            stream.read_exact(&mut buffer).unwrap();
            assert!(
                buffer == answer(Protocol::Redis, number),
                "{number} of {count}"
            );
        }
        writer.join().unwrap();
    }
}
