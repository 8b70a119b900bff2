//! A cell that ends and comes back at the same address, as itself or as
//! something else, under clients that stay: a gateway, a sync and an async one.
//! What they store has to be found soon, and nothing of a former life ever.

use std::time::{Duration, Instant};

use serde::Serialize;
use trefoil_client::{AsyncClient, Cell, Mutated, Options, OwnedLookup, SetOptions};

use super::{Progress, ScenarioError, ScenarioOptions};
use crate::peer::{Endpoint, Memcached, Waiting};
use crate::server::{Door, Server, ServerOptions};
use crate::target::trefoil::Trefoil;
use crate::target::{GetOutcome, SetOutcome, Target};

const MEMORY: u64 = 64 << 20;
/// Keys that each client writes in each life.
const KEYS: u64 = 32;
/// How long a client is waited for before it counts as lost.
const PATIENCE: Duration = Duration::from_secs(10);
/// What must be shown: how long a client may be at a loss, in milliseconds.
const AT_A_LOSS_MS_MAX: f64 = 1_000.0;

/// The lives of `serve`: the same mode, another one, another hash.
const SERVE: [(&str, &[&str]); 4] = [
    ("R=1", &[]),
    ("R=1", &[]),
    ("R=3.2", &[]),
    ("R=3.2", &["--hash", "sip13"]),
];
/// The lives of `cell up`; more and fewer backends among them.
const CELL_UP: [(&str, &[&str]); 5] = [
    ("R=1", &[]),
    ("R=3.2", &[]),
    ("R=3.2", &[]),
    ("R=3.2", &["--backends", "5"]),
    ("R=1", &["--backends", "2", "--hash", "sip13"]),
];

/// What one client that stays went through.
#[derive(Debug, Clone, Default, Serialize)]
pub struct StayingClient {
    /// `gateway`, `sync` or `async`.
    pub client: &'static str,
    /// Lives into which it followed.
    pub followed: u64,
    /// Lives into which it did not follow in ten seconds.
    pub lost: u64,
    /// From the cell's word that it serves until a SET was found by the next
    /// GET, median, in milliseconds.
    pub at_a_loss_p50_ms: f64,
    /// The longest.
    pub at_a_loss_max_ms: f64,
    /// After that: SETs that failed or were not found.
    pub failed: u64,
    /// Values of a former life.
    pub former: u64,
    /// The first trouble, in words.
    pub first_trouble: Option<String>,
    #[serde(skip)]
    at_a_loss_ms: Vec<f64>,
}

/// What all went through.
#[derive(Debug, Clone, Serialize)]
pub struct RestartsReport {
    /// Restarts of `serve`, and as many of `cell up`.
    pub restarts: u64,
    /// Under `serve`, then under `cell up`.
    pub clients: Vec<StayingClient>,
}

impl RestartsReport {
    /// Everything that must be shown is.
    pub fn is_clean(&self) -> bool {
        self.clients.iter().all(|client| {
            client.lost + client.failed + client.former == 0
                && client.at_a_loss_max_ms <= AT_A_LOSS_MS_MAX
        })
    }
}

/// Restarts cells under clients.
pub fn restarts(
    options: &ScenarioOptions,
    progress: Progress<'_>,
) -> Result<RestartsReport, ScenarioError> {
    let count = options.scaled(100, 8);
    let mut clients = Vec::new();
    for processes in [false, true] {
        clients.extend(stay(options, processes, count, progress)?);
    }
    Ok(RestartsReport {
        restarts: count,
        clients,
    })
}

fn stay(
    options: &ScenarioOptions,
    processes: bool,
    count: u64,
    progress: Progress<'_>,
) -> Result<Vec<StayingClient>, ScenarioError> {
    let dir = tempfile::Builder::new()
        .prefix("trefoil-restarts-")
        .tempdir()
        .map_err(ScenarioError::Directory)?;
    let port = trefoil_ports::free_port(std::net::Ipv4Addr::LOCALHOST)
        .map_err(ScenarioError::Directory)?;
    let lives: &[(&'static str, &[&str])] = if processes { &CELL_UP } else { &SERVE };
    let start = |life: u64| {
        let (mode, more) = lives[life as usize % lives.len()];
        Server::start(&ServerOptions {
            processes,
            is_silent: true,
            dir: Some(dir.path().to_owned()),
            port: Some(port),
            more: more.iter().map(|word| (*word).to_owned()).collect(),
            core: None,
            ..options.server(mode, MEMORY)
        })
    };
    let mut server = start(0)?;
    let door = Door::start(&options.program, &server.address, None)?;
    let no_door = || ScenarioError::Course("the gateway has no memcached door".to_owned());
    let endpoint = Endpoint::Tcp(door.memcached.ok_or_else(no_door)?);
    let memcached = Memcached::connect(&endpoint, Waiting::Blocking)
        .map_err(|e| ScenarioError::Course(format!("connecting to the gateway: {e}")))?;
    let cell = Cell::connect(&server.address)?;
    let mut clients: Vec<(Box<dyn Caller>, StayingClient)> = vec![
        (Box::new(memcached), named("gateway")),
        (
            Box::new(Trefoil::new(cell.client(Options::default()))),
            named("sync"),
        ),
        (Box::new(Asynchronous::new(&cell)?), named("async")),
    ];
    for life in 0..=count {
        if life > 0 {
            // One in two is killed, the others are told to stop.
            if life % 2 == 0 {
                (0..server.pids.len()).for_each(|number| server.kill(number));
            }
            drop(server);
            server = start(life)?;
            let what = if processes { "cell up" } else { "serve" };
            progress(&format!("restarts: {what}, {life} of {count}"));
        }
        let ready = Instant::now();
        for (caller, client) in &mut clients {
            follow(&mut **caller, client, life, ready);
        }
    }
    drop(door);
    Ok(clients
        .into_iter()
        .map(|(_, client)| summed(client))
        .collect())
}

fn named(client: &'static str) -> StayingClient {
    StayingClient {
        client,
        ..StayingClient::default()
    }
}

fn summed(mut client: StayingClient) -> StayingClient {
    let mut ms = std::mem::take(&mut client.at_a_loss_ms);
    ms.sort_by(f64::total_cmp);
    client.at_a_loss_p50_ms = ms.get(ms.len() / 2).copied().unwrap_or(0.0);
    client.at_a_loss_max_ms = ms.last().copied().unwrap_or(0.0);
    client
}

/// What must hold once a cell's new life is ready. The clients take turns; the
/// time that others took counts for none but the first.
fn follow(caller: &mut dyn Caller, client: &mut StayingClient, life: u64, ready: Instant) {
    let begin = if client.client == "gateway" {
        ready
    } else {
        Instant::now()
    };
    let key = |number: u64, life: u64| format!("{}-{life}-{number}", client.client);
    let mut tries = 0;
    let trouble = loop {
        tries += 1;
        let (name, value) = (key(KEYS, 0), format!("{life}-{tries}"));
        let found = caller
            .store(&name, &value)
            .and_then(|()| caller.find(&name));
        let trouble = match found {
            Ok(Some(found)) if found == value.as_bytes() => break None,
            Ok(_) => "stored, and not found".to_owned(),
            Err(trouble) => trouble,
        };
        if begin.elapsed() > PATIENCE {
            break Some(trouble);
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    if let Some(trouble) = trouble {
        client.lost += 1;
        client.first_trouble.get_or_insert(trouble);
        return;
    }
    client.followed += 1;
    if life > 0 {
        client
            .at_a_loss_ms
            .push(begin.elapsed().as_secs_f64() * 1e3);
    }
    let (mut failed, mut former, mut first_trouble) = (0, 0, None);
    for number in 0..KEYS {
        if life > 0 && matches!(caller.find(&key(number, life - 1)), Ok(Some(_))) {
            former += 1;
        }
        let name = key(number, life);
        let found = caller.store(&name, &name).and_then(|()| caller.find(&name));
        if !matches!(&found, Ok(Some(value)) if value == name.as_bytes()) {
            failed += 1;
            first_trouble.get_or_insert(match found {
                Ok(_) => "stored, and not found".to_owned(),
                Err(trouble) => trouble,
            });
        }
    }
    client.failed += failed;
    client.former += former;
    if client.first_trouble.is_none() {
        client.first_trouble = first_trouble;
    }
}

/// Somebody who stores and reads, whatever carries it.
trait Caller {
    fn store(&mut self, key: &str, value: &str) -> Result<(), String>;
    fn find(&mut self, key: &str) -> Result<Option<Vec<u8>>, String>;
}

impl<T: Target> Caller for T {
    fn store(&mut self, key: &str, value: &str) -> Result<(), String> {
        match self.set(key.as_bytes(), value.as_bytes(), None) {
            Ok(SetOutcome::Stored) => Ok(()),
            Ok(other) => Err(format!("a SET was {other:?}")),
            Err(error) => Err(error.to_string()),
        }
    }

    fn find(&mut self, key: &str) -> Result<Option<Vec<u8>>, String> {
        match self.get(key.as_bytes()) {
            Ok(GetOutcome::Hit(value)) => Ok(Some(value.to_vec())),
            Ok(GetOutcome::Miss) => Ok(None),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// The async client, with a runtime to wait in.
struct Asynchronous {
    // Before the runtime: it is dropped outside of async code.
    client: AsyncClient,
    runtime: tokio::runtime::Runtime,
}

impl Asynchronous {
    fn new(cell: &Cell) -> Result<Self, ScenarioError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .map_err(ScenarioError::Directory)?;
        let client = cell.async_client(Options::default());
        Ok(Asynchronous { client, runtime })
    }
}

impl Caller for Asynchronous {
    fn store(&mut self, key: &str, value: &str) -> Result<(), String> {
        let options = SetOptions::default();
        let stored = self.client.set(key.as_bytes(), value.as_bytes(), options);
        match self.runtime.block_on(stored) {
            Ok(Mutated::Stored { .. }) => Ok(()),
            Ok(other) => Err(format!("a SET was {other:?}")),
            Err(error) => Err(error.to_string()),
        }
    }

    fn find(&mut self, key: &str) -> Result<Option<Vec<u8>>, String> {
        match self.runtime.block_on(self.client.get(key.as_bytes())) {
            Ok(OwnedLookup::Hit(hit)) => Ok(Some(hit.value)),
            Ok(OwnedLookup::Miss(_)) => Ok(None),
            Err(error) => Err(error.to_string()),
        }
    }
}
