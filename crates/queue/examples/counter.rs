//! A client to copy: counts events in a queue that is served on this host.
//!
//! ```text
//! trefoil queue serve --socket ./queue.sock &
//! cargo run --release -p trefoil-queue --example counter -- ./queue.sock 1000
//! ```

use std::collections::VecDeque;
use std::error::Error;
use std::path::PathBuf;
use trefoil_queue::{Client, Request};

/// Increments that are sent and not acknowledged. A durable server writes and flushes what
/// is there at a time: the more, the cheaper each of them.
const WINDOW: usize = 64;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let socket: PathBuf = arguments.next().ok_or("counter SOCKET [COUNT]")?.into();
    let count: u64 = arguments.next().map_or(Ok(1000), |count| count.parse())?;

    let mut client = Client::connect(&socket)?;
    let mut window = VecDeque::new();
    for _ in 0..count {
        // Nilext: nobody waits for the sum.
        window.push_back(client.send(&Request::Add(b"events", 1), true)?);
        if window.len() == WINDOW
            && let Some(oldest) = window.pop_front()
        {
            client.committed(oldest)?;
        }
    }
    for sent in window {
        client.committed(sent)?;
    }
    // It stands behind them in the queue, so it sees them all.
    let events = client.get(b"events")?.unwrap_or(b"0");
    println!("{} events", String::from_utf8_lossy(events));
    Ok(())
}
