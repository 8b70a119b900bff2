//! Servers and an assigner as processes, and the links between them.

mod links;
mod process;

pub(crate) use links::{End, Link, Links, Relay};
pub(crate) use process::{Output, PATIENCE, Process, line};

use crate::v1::lists_client::ListsClient;
use crate::v1::{Nothing, ServerState};
use crate::{CORPUS, Failure};
use rustix::process::Signal;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::time::{sleep, timeout};
use tonic::transport::Endpoint;
use trefoil_coordination::Watcher;
use trefoil_router::Router;

/// How servers are started.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) replication: String,
    pub(crate) patience: Duration,
    /// Bytes beyond which values are spilled to disk.
    pub(crate) memory: Option<u64>,
}

/// Which forms of values a server writes and reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Form {
    pub(crate) writes: u8,
    pub(crate) reads: &'static str,
}

impl Form {
    pub(crate) const OLD: Form = Form {
        writes: 1,
        reads: "1",
    };
    /// Neither understands the other.
    pub(crate) const NEW: Form = Form {
        writes: 2,
        reads: "2",
    };
    /// Understands both, and is understood by the old one.
    pub(crate) const BOTH: Form = Form {
        writes: 1,
        reads: "1,2",
    };
}

/// What servers have said.
#[derive(Debug, Default)]
pub(crate) struct Said {
    pub(crate) losses: Vec<String>,
    pub(crate) slow: Vec<String>,
    pub(crate) rejoined: u64,
    pub(crate) drained: u64,
}

/// The assigner, behind a relay of its own.
#[derive(Debug)]
pub(crate) struct Assigner {
    process: Option<Process>,
    listen: SocketAddr,
    store: String,
    links: Links,
}

impl Assigner {
    /// Starts it, or starts it again with what it has written, with these flags.
    pub(crate) async fn start(&mut self, flags: &[String]) -> Result<(), Failure> {
        let mut arguments = vec!["assigner".to_owned()];
        let (listen, store) = (self.listen.to_string(), self.store.clone());
        arguments.extend(["--listen".to_owned(), listen, "--store".to_owned(), store]);
        arguments.extend_from_slice(flags);
        let (process, mut output) = Process::start(&arguments)?;
        line(&mut output, "ready ").await?;
        self.links.process(process.pid, Some(End::Assigner));
        tokio::spawn(async move { while let Ok(Some(_)) = output.next_line().await {} });
        self.process = Some(process);
        Ok(())
    }

    pub(crate) async fn kill(&mut self) -> Result<(), Failure> {
        if let Some(process) = self.process.take() {
            self.links.process(process.pid, None);
            process.kill().await?;
        }
        Ok(())
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.listen
    }
}

/// The flags of an assigner with this lease.
pub(crate) fn assigner_flags(lease: Duration) -> Vec<String> {
    vec!["--lease-ms".to_owned(), lease.as_millis().to_string()]
}

/// An assigner that is not started yet.
pub(crate) fn assigner(store: String, links: Links) -> Result<Assigner, Failure> {
    let port = trefoil_ports::free_port(Ipv4Addr::LOCALHOST)?;
    Ok(Assigner {
        process: None,
        listen: SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
        store,
        links,
    })
}

/// One place for a server.
#[derive(Debug)]
struct Place {
    relay: Relay,
    process: Option<Process>,
}

/// Servers that have the lists.
#[derive(Debug)]
pub(crate) struct Fleet {
    options: Options,
    /// What servers are told to join: one relay of an assigner, or several assigners.
    assigners: String,
    places: Vec<Place>,
    pub(crate) links: Links,
    said: Arc<Mutex<Said>>,
}

impl Fleet {
    /// `count` servers that have all joined.
    pub(crate) async fn start(
        options: Options,
        assigners: String,
        links: Links,
        count: usize,
    ) -> Result<Self, Failure> {
        let mut fleet = Fleet {
            options,
            assigners,
            places: Vec::new(),
            links,
            said: Arc::default(),
        };
        for at in 0..count {
            fleet.places.push(Place {
                relay: fleet.links.relay(End::Server(at)).await?,
                process: None,
            });
            fleet.begin(at, Form::OLD, false).await?;
        }
        Ok(fleet)
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    pub(crate) fn said(&self) -> MutexGuard<'_, Said> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new process in this place, at the same address or at a new one.
    pub(crate) async fn begin(
        &mut self,
        at: usize,
        form: Form,
        is_moved: bool,
    ) -> Result<(), Failure> {
        if is_moved {
            self.places[at].relay = self.links.relay(End::Server(at)).await?;
        }
        let place = &mut self.places[at];
        place.relay.lead_to(None);
        let patience = self.options.patience.as_millis().to_string();
        let writes = form.writes.to_string();
        let memory = self.options.memory.map(|bytes| bytes.to_string());
        let arguments = [
            ("server", None),
            ("--assigner", Some(self.assigners.as_str())),
            ("--advertise", Some(&place.relay.address.to_string())),
            ("--replication", Some(&self.options.replication)),
            ("--patience-ms", Some(&patience)),
            ("--writes", Some(&writes)),
            ("--reads", Some(form.reads)),
        ]
        .into_iter()
        .chain(
            memory
                .as_ref()
                .map(|bytes| ("--memory", Some(bytes.as_str()))),
        )
        .flat_map(|(name, value)| [Some(name), value])
        .flatten()
        .map(str::to_owned)
        .collect::<Vec<_>>();
        let (process, mut output) = Process::start(&arguments)?;
        self.links.process(process.pid, Some(End::Server(at)));
        let port: u16 = line(&mut output, "bound ").await?.parse()?;
        place
            .relay
            .lead_to(Some((Ipv4Addr::LOCALHOST, port).into()));
        line(&mut output, "ready ").await?;
        let said = Arc::clone(&self.said);
        tokio::spawn(hear(output, at, said));
        place.process = Some(process);
        Ok(())
    }

    fn process(&mut self, at: usize) -> Result<&mut Process, Failure> {
        let process = self.places[at].process.as_mut();
        process.ok_or_else(|| format!("server {at} is not there").into())
    }

    pub(crate) async fn kill(&mut self, at: usize) -> Result<(), Failure> {
        let process = self.places[at].process.take();
        let process = process.ok_or_else(|| format!("server {at} is not there"))?;
        self.links.process(process.pid, None);
        process.kill().await
    }

    pub(crate) async fn stop(&mut self, at: usize) -> Result<(), Failure> {
        self.process(at)?.stop().await
    }

    pub(crate) fn go_on(&mut self, at: usize) -> Result<(), Failure> {
        self.process(at)?.signal(Signal::CONT)
    }

    /// SIGTERM: it gives everything away.
    pub(crate) fn leave(&mut self, at: usize) -> Result<(), Failure> {
        self.process(at)?.signal(Signal::TERM)
    }

    /// Whether it has, and ended.
    pub(crate) async fn has_left(&mut self, at: usize, limit: Duration) -> Result<bool, Failure> {
        let process = self.process(at)?;
        let pid = process.pid;
        let has_left = process.ends_within(limit).await?;
        if has_left {
            self.links.process(pid, None);
            self.places[at].process = None;
        }
        Ok(has_left)
    }

    /// Servers that have ended though nobody asked them to.
    pub(crate) fn ended(&mut self) -> Vec<usize> {
        let places = self.places.iter_mut().enumerate();
        let ended = places.filter_map(|(at, place)| {
            let has_ended = place.process.as_mut().is_some_and(Process::has_ended);
            has_ended.then_some(at)
        });
        ended.collect()
    }

    /// What a server says of itself.
    pub(crate) async fn state(&self, at: usize) -> Option<ServerState> {
        let address = self.places[at].relay.address;
        let endpoint = Endpoint::from_shared(format!("http://{address}")).ok()?;
        let asked = async {
            let channel = endpoint.connect().await.ok()?;
            let state = ListsClient::new(channel).state(Nothing {}).await;
            state.ok().map(tonic::Response::into_inner)
        };
        timeout(Duration::from_secs(2), asked).await.ok().flatten()
    }

    /// Values that the servers have read back from disk, as far as they are there to say so.
    pub(crate) async fn read_back(&self) -> u64 {
        let mut count = 0;
        for at in 0..self.len() {
            count += self.state(at).await.map_or(0, |state| state.read_back);
        }
        count
    }

    /// Waits until all servers serve, and each slice has as many as it should.
    pub(crate) async fn is_whole(&self, limit: Duration) -> Result<(), Failure> {
        let since = Instant::now();
        loop {
            let mut missing = None;
            for at in 0..self.places.len() {
                match self.state(at).await {
                    None => missing = Some(format!("server {at} does not answer")),
                    Some(state) if !state.not_ready.is_empty() => {
                        missing = Some(format!("server {at}: {}", state.not_ready));
                    }
                    Some(state) if state.short > 0 => {
                        missing = Some(format!("server {at}: {} slices are short", state.short));
                    }
                    Some(_) => {}
                }
                if missing.is_some() {
                    break;
                }
            }
            match missing {
                None => return Ok(()),
                Some(missing) if since.elapsed() > limit => {
                    return Err(format!("not whole after {limit:?}: {missing}").into());
                }
                Some(_) => sleep(Duration::from_millis(100)).await,
            }
        }
    }
}

/// A router that goes by what an assigner at this address says.
pub(crate) async fn router(assigner: &str) -> Result<Router, Failure> {
    Ok(Router::new(Watcher::open(assigner, CORPUS).await?))
}

async fn hear(mut output: Output, at: usize, said: Arc<Mutex<Said>>) {
    while let Ok(Some(line)) = output.next_line().await {
        let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(loss) = line.strip_prefix("loss ") {
            said.losses.push(format!("server {at}: {loss}"));
        } else if let Some(slow) = line.strip_prefix("slow ") {
            said.slow.push(format!("server {at}: {slow}"));
        } else if line.starts_with("ready ") {
            said.rejoined += 1;
        } else if line == "drained" {
            said.drained += 1;
        }
    }
}
