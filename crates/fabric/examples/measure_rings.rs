//! Measures the message path and the read path of the shared memory fabric.
//!
//! `cargo run --release -p trefoil-fabric --example measure_rings`
//!
//! Client and poller are threads of one process, with an empty service; all
//! rows are of one run.

#[path = "../tests/all/support/mod.rs"]
mod support;

use support::CONFIG;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use support::{Server, set};
use trefoil_client_core::touch::TouchBatch;
use trefoil_client_core::vote::IndexVote;
use trefoil_fabric::shm::{ConnectOptions, Connection, wait_any};
use trefoil_layout::message::Request;
use trefoil_region::WordBuffer;

fn main() {
    // Two processors, one for each side.
    let server = Server::with(|options| options.cpu = Some(1));
    let mut own = rustix::thread::CpuSet::new();
    own.set(0);
    rustix::thread::sched_setaffinity(None, &own).unwrap();
    bare();
    let mut connection = server.connect();
    let value = vec![1; 1024];

    row("ping, both spinning", 200_000, || {
        exchange(&mut connection, &Request::Ping)
    });
    row("set 1 KiB into a hash map, both spinning", 200_000, || {
        exchange(&mut connection, &set(b"key", &value));
    });
    row("lookup 1 KiB, both spinning", 200_000, || {
        exchange(&mut connection, &Request::Lookup { key: b"key" });
    });
    let mut times = Vec::new();
    for _ in 0..500 {
        // The poller has spun its 75 us and sleeps.
        std::thread::sleep(Duration::from_millis(1));
        let start = Instant::now();
        exchange(&mut connection, &Request::Ping);
        times.push(start.elapsed());
    }
    report("ping, poller asleep, client spinning", times);

    let options = ConnectOptions {
        spin: Duration::ZERO,
        ..ConnectOptions::default()
    };
    let mut sleepy = server.try_connect(&options).unwrap();
    let mut times = Vec::new();
    for _ in 0..500 {
        std::thread::sleep(Duration::from_millis(1));
        let start = Instant::now();
        exchange(&mut sleepy, &Request::Ping);
        times.push(start.elapsed());
    }
    report("ping, poller and client asleep", times);

    for (name, request, depth) in [
        ("pings, 64 in flight", Request::Ping, 64),
        ("sets of 1 KiB, 64 in flight", set(b"key", &value), 64),
    ] {
        let count = 1_000_000;
        let start = Instant::now();
        let (mut sent, mut answered) = (0, 0);
        while answered < count {
            while sent < count
                && sent - answered < depth
                && connection.send_next(CONFIG, &request).is_ok()
            {
                sent += 1;
            }
            answered += connection.poll(|_, _| ()).unwrap();
        }
        throughput(name, count, start);
    }

    let slots: Vec<u32> = (0..128).collect();
    let batch = TouchBatch {
        window_id: 2,
        slots: &slots,
        names: &[],
    };
    let count = 100_000;
    let start = Instant::now();
    for _ in 0..count {
        connection.touch(1, batch);
    }
    throughput(
        "touched slots sent, most of them dropped",
        count * 128,
        start,
    );

    let (hash, _) = server.install(b"hot", &value, 0);
    let mut buffer = WordBuffer::default();
    row(
        "index vote and 1 KiB of data, in cache, not checked",
        1_000_000,
        || {
            let IndexVote::Present { entry, .. } = connection.index_vote(0, hash) else {
                panic!();
            };
            connection.read_data(entry.pointer, &mut buffer).unwrap();
        },
    );
    let before = cpu_time();
    std::thread::sleep(Duration::from_secs(1));
    println!(
        "{:<55} {:>9.0} us",
        "processor time of an idle second, two clients",
        (cpu_time() - before).as_secs_f64() * 1e6
    );
    println!("{:?}", server.statistics());
    drop((connection, sleepy, server));
    three();
}

/// The floor: two words on lines of their own, one written by each side.
fn bare() {
    #[repr(align(128))]
    struct Word(AtomicU64);
    static WORDS: [Word; 2] = [Word(AtomicU64::new(0)), Word(AtomicU64::new(0))];
    const COUNT: u64 = 200_000;
    let echo = std::thread::spawn(|| {
        let mut own = rustix::thread::CpuSet::new();
        own.set(1);
        rustix::thread::sched_setaffinity(None, &own).unwrap();
        for round in 1..=COUNT {
            while WORDS[0].0.load(Ordering::Acquire) != round {}
            WORDS[1].0.store(round, Ordering::Release);
        }
    });
    let mut round = 0;
    row("floor: one word each way", COUNT as usize, || {
        round += 1;
        WORDS[0].0.store(round, Ordering::Release);
        while WORDS[1].0.load(Ordering::Acquire) != round {}
    });
    echo.join().unwrap();
}

/// Three pollers and a client share two processors, as three backends on a
/// small machine do.
fn three() {
    let mut all = rustix::thread::CpuSet::new();
    all.set(0);
    all.set(1);
    rustix::thread::sched_setaffinity(None, &all).unwrap();
    let servers = [Server::start(), Server::start(), Server::start()];
    let mut connections = servers.each_ref().map(Server::connect);
    row("ping to three pollers, all answers", 20_000, || {
        let mut left = 0;
        for connection in &mut connections {
            connection.send_next(CONFIG, &Request::Ping).unwrap();
            left += 1;
        }
        while left > 0 {
            let channels: [_; 3] = connections.each_ref().map(|c| c.channel().unwrap());
            wait_any(&channels, Duration::from_secs(10));
            for connection in &mut connections {
                left -= connection.poll(|_, _| ()).unwrap();
            }
        }
    });
}

fn exchange(connection: &mut Connection, request: &Request<'_>) {
    connection.send_next(CONFIG, request).unwrap();
    loop {
        connection.wait(Duration::from_secs(10));
        if connection.poll(|_, _| ()).unwrap() > 0 {
            return;
        }
    }
}

fn row(name: &str, count: usize, mut body: impl FnMut()) {
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        let start = Instant::now();
        body();
        times.push(start.elapsed());
    }
    report(name, times);
}

fn report(name: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_nanos();
    println!(
        "{name:<55} p50 {:>8} p99 {:>8} p99.9 {:>8} ns",
        at(0.5),
        at(0.99),
        at(0.999)
    );
}

fn throughput(name: &str, count: usize, start: Instant) {
    let seconds = start.elapsed().as_secs_f64();
    println!("{name:<55} {:>8.2} M/s", count as f64 / seconds / 1e6);
}

/// Processor time of this process.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
