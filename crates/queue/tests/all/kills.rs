//! Durable queues whose servers are killed at random moments. What clients send is not
//! idempotent: each request adds one to a counter, or appends a number to a list.

use crate::support::{Server, Wanted, eventually};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use trefoil_ordered::{Carrier, Committed, NoAnswer};
use trefoil_queue::{Client, ClientError, Request, ServiceKind, serve};

const CLIENTS: u64 = 2;
/// Requests of a client that are not acknowledged.
pub(crate) const WINDOW: usize = 12;
/// Numbers of a list.
const LIST_LEN: u64 = 200;
/// Every so many an increment waits for its sum.
const SUMS: u64 = 7;

pub(crate) fn kills() -> u64 {
    let count = std::env::var("TREFOIL_TEST_QUEUE_KILLS");
    count.map_or(15, |count| count.parse().expect("a number"))
}

/// What one connection has sent: increments of its counter and, after each, a number.
#[derive(Debug)]
pub(crate) struct Sent {
    pub(crate) name: String,
    /// Increments and appends that were sent.
    pub(crate) sent: u64,
    /// Of these, from the first on, known to be there.
    pub(crate) acknowledged: u64,
}

impl Sent {
    fn counter(&self) -> Vec<u8> {
        format!("{}.count", self.name).into_bytes()
    }

    fn list(&self, number: u64) -> Vec<u8> {
        format!("{}.{}", self.name, number / LIST_LEN).into_bytes()
    }

    /// Sends until the server is gone, or it is to stop.
    pub(crate) fn send<C: Carrier>(
        &mut self,
        client: &mut Client<C>,
        stop: &AtomicBool,
    ) -> Result<(), ClientError> {
        let mut window: VecDeque<(u64, Committed, bool)> = VecDeque::new();
        while !stop.load(Ordering::Relaxed) {
            let (number, is_append) = (self.sent / 2, self.sent % 2 == 1);
            let bytes = (number as u32).to_le_bytes();
            let (counter, list) = (self.counter(), self.list(number));
            let request = match is_append {
                true => Request::Append(&list, &bytes),
                false => Request::Add(&counter, 1),
            };
            let nilext = is_append || number % SUMS != 0;
            // From now on it may be there.
            let sent = client.send(&request, nilext);
            self.sent += 1;
            window.push_back((number, sent?, nilext));
            if window.len() < WINDOW {
                continue;
            }
            let (number, sent, nilext) = window.pop_front().expect("a window");
            client.committed(sent)?;
            if !nilext {
                match client.answer(sent) {
                    Ok(sum) => {
                        let sum = sum.expect("a sum");
                        assert_eq!(sum, (number + 1).to_string().as_bytes(), "its own count");
                    }
                    // It went with a connection; what it was for is done.
                    Err(ClientError::NoAnswer(NoAnswer::Lost)) => {}
                    Err(error) => return Err(error),
                }
            }
            self.acknowledged += 1;
        }
        Ok(())
    }

    /// Looks whether all that was acknowledged is there once and in order, and nothing that
    /// was not sent. How much more is there than was acknowledged.
    pub(crate) fn check<C: Carrier>(&self, client: &mut Client<C>) -> Result<u64, ClientError> {
        let mut number_of = |key: &[u8]| -> Result<u64, ClientError> {
            let value = client.get(key)?.map(<[u8]>::to_vec);
            let text = value.map(|value| String::from_utf8(value).expect("a number"));
            Ok(text.map_or(0, |text| text.parse().expect("a number")))
        };
        let count = number_of(&self.counter())?;
        let mut numbers = Vec::new();
        loop {
            let list = self.list(numbers.len() as u64);
            let Some(value) = client.get(&list)? else {
                break;
            };
            assert_eq!(value.len() % 4, 0, "whole numbers");
            numbers.extend(
                value
                    .chunks_exact(4)
                    .map(|four| u32::from_le_bytes(four.try_into().expect("four bytes"))),
            );
            if !(numbers.len() as u64).is_multiple_of(LIST_LEN) {
                break;
            }
        }
        let expected: Vec<u32> = (0..numbers.len() as u32).collect();
        assert_eq!(numbers, expected, "{self:?}: each once, and in order");
        let appended = numbers.len() as u64;
        assert!(
            count == appended || count == appended + 1,
            "{self:?}: {count} increments, {appended} numbers: in the order of their client"
        );
        let there = count + appended;
        assert!(
            (self.acknowledged..=self.sent).contains(&there),
            "{self:?}: {there} are there"
        );
        Ok(there - self.acknowledged)
    }

    /// So that the state stays small. Nobody looks for it afterwards.
    fn erase<C: Carrier>(&self, client: &mut Client<C>) -> Result<(), ClientError> {
        client.erase(&self.counter())?;
        for list in 0..=self.sent / 2 / LIST_LEN {
            client.erase(&self.list(list * LIST_LEN))?;
        }
        Ok(())
    }
}

#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) acknowledged: u64,
    more: u64,
    pub(crate) checked: u64,
}

/// A client that comes again after each death of the server.
pub(crate) fn client<C: Carrier>(
    connect: impl Fn() -> Option<Client<C>>,
    at: u64,
    stop: &AtomicBool,
) -> Tally {
    let mut tally = Tally::default();
    let mut unchecked: Vec<Sent> = Vec::new();
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        let Some(mut client) = connect() else {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        };
        client.set_within(Duration::from_secs(120));
        let mut live = || -> Result<(), ClientError> {
            check_all(&mut unchecked, &mut client, &mut tally)?;
            number += 1;
            unchecked.push(Sent {
                name: format!("{at}.{number}"),
                sent: 0,
                acknowledged: 0,
            });
            let last = unchecked.last_mut().expect("just pushed");
            last.send(&mut client, stop)
        };
        match live() {
            Ok(()) => {}
            Err(ClientError::NoAnswer(_) | ClientError::Refused(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
    let mut client = eventually("a server", connect);
    check_all(&mut unchecked, &mut client, &mut tally).expect("nobody is killed any more");
    tally
}

fn check_all<C: Carrier>(
    unchecked: &mut Vec<Sent>,
    client: &mut Client<C>,
    tally: &mut Tally,
) -> Result<(), ClientError> {
    while let Some(sent) = unchecked.last() {
        let more = sent.check(client)?;
        tally.checked += 1;
        tally.acknowledged += sent.acknowledged;
        tally.more += more;
        let sent = unchecked.pop().expect("the last one");
        sent.erase(client)?;
    }
    Ok(())
}

fn once_after_kills(service: ServiceKind) {
    let folder = tempfile::tempdir().expect("a folder");
    let wanted = Wanted::new(service, true, folder.path());
    let socket = wanted.socket();
    let stop = AtomicBool::new(false);
    let mut moment = 0x9e37_79b9_7f4a_7c15_u64 ^ u64::from(std::process::id());
    let tallies = std::thread::scope(|scope| {
        let (stop, socket) = (&stop, &socket);
        let clients: Vec<_> = (0..CLIENTS)
            .map(|at| scope.spawn(move || client(|| Client::connect(socket).ok(), at, stop)))
            .collect();
        for life in 0..kills() {
            // Some die before they serve, and amid their recovery.
            let server = match life % 3 {
                0 => Server::start(&wanted),
                _ => Server::ready(&wanted),
            };
            moment ^= moment << 13;
            moment ^= moment >> 7;
            moment ^= moment << 17;
            std::thread::sleep(Duration::from_micros(500 + moment % 80_000));
            server.kill();
        }
        stop.store(true, Ordering::Relaxed);
        let last = Server::ready(&wanted);
        let tallies: Vec<Tally> = clients
            .into_iter()
            .map(|client| client.join().expect("no panic"))
            .collect();
        last.stop();
        tallies
    });
    println!("{}, {} kills: {tallies:?}", service.name(), kills());
    for tally in tallies {
        assert!(tally.acknowledged > kills(), "something was done");
        assert!(tally.checked > kills() / 3, "lives were lived");
    }
    let server = Server::ready(&wanted);
    let mut client = Client::connect(&socket).expect("a server");
    assert_eq!(client.get(b"0.1.count"), Ok(None), "erased");
    assert!(client.is_durable() && client.service() == service);
    server.stop();
}

/// Told when it is dropped, also by a panic.
pub(crate) struct Stop<'a>(pub(crate) &'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Increments that nobody waits for are done when the server is told to stop in the next
/// instruction.
#[test]
fn an_orderly_end_executes_what_was_committed() {
    const ROUNDS: u64 = 8;
    /// More than a lane holds: it is full when the server is told to stop.
    const BURST: u64 = 100;
    for (service, is_durable) in [
        (ServiceKind::Rocksdb, false),
        (ServiceKind::Rocksdb, true),
        (ServiceKind::Cache, true),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let wanted = Wanted::new(service, is_durable, folder.path());
        for _ in 0..ROUNDS {
            let stop = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let (stop, options) = (&stop, wanted.options());
                let server = scope.spawn(move || serve(&options, stop, || ()));
                let told = Stop(stop);
                let mut client = eventually("a server", || Client::connect(&wanted.socket()).ok());
                client.set_within(Duration::from_secs(120));
                let sent = (0..BURST).try_for_each(|_| {
                    let sent = client.send(&Request::Add(b"count", 1), true);
                    sent.map(|_| ())
                });
                drop(told);
                sent.expect("published");
                server.join().expect("no panic").expect("an orderly end");
            });
        }
        let server = Server::ready(&wanted);
        let mut client = Client::connect(&wanted.socket()).expect("a server");
        let sum = (ROUNDS * BURST).to_string();
        let found = client.get(b"count").expect("an answer");
        assert_eq!(found, Some(sum.as_bytes()), "{service:?} {is_durable}");
        server.stop();
    }
}

#[test]
fn a_cache_has_what_was_acknowledged_once_after_kill_9_at_random_moments() {
    once_after_kills(ServiceKind::Cache);
}

#[test]
fn rocksdb_has_what_was_acknowledged_once_after_kill_9_at_random_moments() {
    once_after_kills(ServiceKind::Rocksdb);
}
