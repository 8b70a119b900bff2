//! Many large values at once: none is refused while something can be evicted,
//! and the process stays within its limit all the time. A program of its own,
//! because the limit is measured on the whole process; the clients are another
//! process, because their memory is not the server's.

#[path = "all/support/mod.rs"]
mod support;

use crate::support::{Setup, request};
use std::process::{Command, Stdio};
use std::time::Duration;
use trefoil_cell::Mode;
use trefoil_layout::op::{Action, Outcome};
use trefoil_rpc::Credentials;

const MIB: usize = 1 << 20;
const CLIENTS: u32 = 6;
const SETS_OF_CLIENT: u32 = 12;
/// Names the socket and the number of backends to the process of the clients.
const CLIENTS_OF: &str = "TREFOIL_TEST_LARGE_VALUES";

/// Resident bytes of this process.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kib = line.unwrap().split_ascii_whitespace().nth(1).unwrap();
    kib.parse::<u64>().unwrap() * 1024
}

#[test]
fn large_values_are_stored_within_the_limit() {
    if let Ok(of) = std::env::var(CLIENTS_OF) {
        return be_the_clients(&of);
    }
    for (mode, backends, limit) in [
        (Mode::R1, 1, 64 << 20),
        (Mode::R32, 3, 64 << 20),
        (Mode::R32, 3, 256 << 20),
    ] {
        let mut setup = Setup::new(mode, backends);
        setup.options.memory_limit = limit;
        let cell = setup.start();
        let socket = cell.home.path().join("rpc").display().to_string();
        let mut clients = Command::new(std::env::current_exe().unwrap())
            .args([
                "large_values_are_stored_within_the_limit",
                "--exact",
                "--nocapture",
            ])
            .env(CLIENTS_OF, format!("{backends} {socket}"))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut peak = 0;
        let status = loop {
            peak = peak.max(resident());
            if let Some(status) = clients.try_wait().unwrap() {
                break status;
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        println!("{mode}: at most {} KiB resident", peak >> 10);
        assert!(status.success(), "{mode}: the clients say why");
        assert!(peak <= limit, "{mode}: {peak} bytes resident");
    }
}

/// Sets values of 1 to 15 MiB at every backend from several connections.
fn be_the_clients(of: &str) {
    let (backends, socket) = of.split_once(' ').unwrap();
    let backends: u32 = backends.parse().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let one = |client: u32| {
        let socket = socket.to_owned();
        async move {
            let endpoint = trefoil_rpc::endpoint_unix(socket.as_ref()).unwrap();
            let channel = endpoint.connect().await.unwrap();
            for number in 0..SETS_OF_CLIENT {
                let len = (1 + (client * 7 + number * 11) as usize % 15) * MIB;
                let value = vec![client as u8; len];
                let key = format!("{client}-{number}");
                let mut calls = tokio::task::JoinSet::new();
                for backend in 0..backends {
                    let mut caller = trefoil_rpc::client(channel.clone(), Credentials::none());
                    let (key, value) = (key.clone(), value.clone());
                    calls.spawn(async move {
                        // What the others evict meanwhile raises the bound.
                        loop {
                            let request = request(backend, Action::Set, key.as_bytes(), &value);
                            let answer = caller.mutate(request).await.unwrap();
                            let ack = trefoil_rpc::decode_ack(answer.get_ref()).unwrap();
                            if !matches!(ack.outcome, Outcome::Superseded { .. }) {
                                return ack.outcome;
                            }
                        }
                    });
                }
                while let Some(outcome) = calls.join_next().await {
                    assert_eq!(outcome.unwrap(), Outcome::Applied, "{key}: {len} bytes");
                }
            }
        }
    };
    runtime.block_on(async {
        let mut clients = tokio::task::JoinSet::new();
        (0..CLIENTS).for_each(|client| {
            clients.spawn(one(client));
        });
        while let Some(ended) = clients.join_next().await {
            ended.unwrap();
        }
    });
}
