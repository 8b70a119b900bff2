//! What it costs to read, update and insert an object that this server owns:
//! nanoseconds of CPU time per operation on one thread, beside a plain `HashMap` behind a
//! mutex, measured in the same run.
//!
//! `cargo run --release -p trefoil-linklet --example read-cost`

use rustix::time::{ClockId, clock_gettime};
use std::collections::HashMap;
use std::future::Future;
use std::hint::black_box;
use std::pin::pin;
use std::sync::Mutex;
use std::task::{Context, Poll, Waker};
use trefoil_coordination::LocalCoordinator;
use trefoil_linklet::{Linklet, PlainMarshal};

const KEYS: usize = 100_000;
const ROUNDS: usize = 2_000_000;

/// Polls a future that is ready at once, as it is for keys that are here.
fn now<T>(future: impl Future<Output = T>) -> T {
    let mut context = Context::from_waker(Waker::noop());
    match pin!(future).poll(&mut context) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("the key is not here"),
    }
}

/// CPU time of this thread: what other processes take does not count.
fn cpu_ns() -> i64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

fn measure(name: &str, keys: usize, mut act: impl FnMut(usize)) {
    let mut best = f64::MAX;
    for _ in 0..5 {
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        let began_ns = cpu_ns();
        for _ in 0..ROUNDS / 5 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            act(random as usize % keys);
        }
        let each = (cpu_ns() - began_ns) as f64 / (ROUNDS / 5) as f64;
        best = best.min(each);
    }
    println!("{name:<44} {best:>7.1} ns");
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let linklet = Linklet::builder("read-cost", PlainMarshal)
        .memory(1 << 30)
        .listen(LocalCoordinator::new(), "127.0.0.1:0".parse()?)
        .await?;
    linklet.settled().await;
    let names: Vec<Vec<u8>> = (0..KEYS)
        .map(|n| format!("user:{n:08}").into_bytes())
        .collect();
    let plain: Mutex<HashMap<Vec<u8>, Vec<u8>>> = Mutex::default();
    for name in &names {
        linklet.insert(name, vec![7u8; 1024]).await?;
        plain
            .lock()
            .expect("one thread")
            .insert(name.clone(), vec![7u8; 1024]);
    }
    println!("1 KiB objects, one thread, best of five rounds");
    for keys in [1_000, KEYS] {
        println!("-- {keys} keys");
        measure("HashMap behind a mutex: read", keys, |n| {
            let map = plain.lock().expect("one thread");
            black_box(map.get(&names[n]).map(|value| value[512]));
        });
        measure("Linklet::read", keys, |n| {
            black_box(now(linklet.read(&names[n], |value| value[512])).ok());
        });
        measure("Linklet::get", keys, |n| {
            black_box(now(linklet.get(&names[n])).ok());
        });
        measure("Linklet::update", keys, |n| {
            black_box(now(linklet.update(&names[n], |value| value[512] += 1)).ok());
        });
        measure("Linklet::insert", keys, |n| {
            black_box(now(linklet.insert(&names[n], vec![7u8; 1024])).ok());
        });
    }
    Ok(())
}
