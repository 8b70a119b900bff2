//! What `cell up` can be told while it runs, over a socket in the cell's directory that
//! only its own user can open: a line of JSON, answered by a line for each step.

use crate::args::{CellAddress, ResizeArgs};
use crate::cell::order_error::OrderError;
use crate::failure::{Failure, Outcome, print_line};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use trefoil_backend::UnixSocket;
use trefoil_cell::CellLocation;

const SOCKET: &str = "supervisor.sock";
/// Longest order, in bytes.
const ORDER_LEN_MAX: usize = 64 << 10;
/// Orders and events that wait for somebody.
const QUEUE_LEN: usize = 16;

/// Planned maintenance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Order {
    /// Each backend moves to a new process of the program that it runs.
    Restart {
        /// Which; all if none is named.
        backends: Vec<u32>,
        /// Even where there is no room for it. A `cell up` of the release before never asks.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        without_room: bool,
    },
    /// Each backend moves to a process of this program, unless it is one.
    Upgrade {
        binary: PathBuf,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        without_room: bool,
    },
    /// The backend moves to a spare.
    Drain {
        backend: u32,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        without_room: bool,
    },
    /// The place of a drained one is a spare again.
    Undrain {
        backend: u32,
    },
    /// The cell gets another number of backends.
    Resize {
        backends: u32,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        without_room: bool,
    },
    /// The resize that is under way.
    ResizePause,
    ResizeContinue,
    ResizeAbort,
}

impl Order {
    /// What the command wants.
    pub(super) fn of_resize(args: &ResizeArgs) -> Result<Order, Failure> {
        match (args.backends, args.pause, args.go_on, args.abort) {
            (Some(backends), ..) => Ok(Order::Resize {
                backends,
                without_room: args.without_room,
            }),
            (None, true, ..) => Ok(Order::ResizePause),
            (None, _, true, _) => Ok(Order::ResizeContinue),
            (None, .., true) => Ok(Order::ResizeAbort),
            _ => Err(Failure::Usage(
                "give --backends, --pause, --continue or --abort".into(),
            )),
        }
    }
}

/// What became of it so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Event {
    /// "begins", "moved", "left", "kept", "spare", "progress", "paused", "done" or "failed".
    pub(super) step: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) backend: Option<u32>,
    /// The process that is the backend, or the spare, now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) pid: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) took_ms: Option<u64>,
    /// Of its program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) release: Option<String>,
    /// Of a resize: "copying", "paused", "following" (nearly everything is copied) or
    /// "serving".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) phase: Option<String>,
    /// That the cell is to have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) backends: Option<u32>,
    /// Of what is to be copied, in thousandths.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) permille: Option<u64>,
    /// Copied so far, by all new backends together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) items: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) bytes: Option<u64>,
    /// About what copying takes yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) left_ms: Option<u64>,
    /// Of a failure: what programs tell it by ([`OrderError::code`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) code: Option<String>,
    /// Why it failed, and what to do; or why a backend is left as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) why: Option<String>,
}

impl Event {
    pub(super) fn of(step: &str) -> Self {
        Event {
            step: step.to_owned(),
            ..Event::default()
        }
    }

    pub(super) fn failed(error: &OrderError) -> Self {
        Event {
            code: Some(error.code().name()),
            why: Some(error.to_string()),
            ..Event::of("failed")
        }
    }

    fn text(&self) -> String {
        let backend = self.backend.unwrap_or_default();
        let pid = self.pid.unwrap_or_default();
        let seconds = self.took_ms.unwrap_or_default() as f64 / 1000.0;
        let release = self.release.as_deref().unwrap_or("this release");
        match self.step.as_str() {
            "begins" => format!("backend {backend}: moves to another process"),
            "moved" => {
                format!("backend {backend}: is process {pid} now, {release} ({seconds:.2} s)")
            }
            "left" => {
                let why = self.why.as_deref().unwrap_or("it cannot be moved");
                format!("backend {backend}: is left as it is: {why}")
            }
            "kept" => format!("backend {backend}: is {release} already"),
            "spare" => format!("process {pid} is a spare now"),
            "progress" => self.progress_text(),
            step => step.to_owned(),
        }
    }
}

impl Event {
    fn progress_text(&self) -> String {
        let share = self.permille.unwrap_or_default() as f64 / 10.0;
        let (items, bytes) = (
            self.items.unwrap_or_default(),
            self.bytes.unwrap_or_default(),
        );
        let bytes = bytesize::ByteSize::b(bytes);
        let phase = self.phase.as_deref().unwrap_or("copying");
        let left = match self.left_ms {
            Some(ms) => format!(", {:.0} s left", (ms as f64 / 1000.0).ceil()),
            None => String::new(),
        };
        let backends = self.backends.unwrap_or_default();
        format!("to {backends} backends: {phase}, {share:.1} %, {items} items, {bytes}{left}")
    }
}

/// An order, and where its events go. Whoever gave it has gone if that is closed.
pub(super) type Ordered = (Order, mpsc::Sender<Event>);

/// Where orders are taken.
pub(super) struct Orders {
    _socket: UnixSocket,
    orders: mpsc::Receiver<Ordered>,
}

impl Orders {
    /// Listens in the cell's directory.
    pub(super) fn listen(dir: &Path) -> Result<Self, Failure> {
        let socket = UnixSocket::bind(&dir.join(SOCKET)).map_err(Failure::of)?;
        let listener = socket.listener().try_clone().map_err(Failure::of)?;
        let listener = UnixListener::from_std(listener).map_err(Failure::of)?;
        let (sender, orders) = mpsc::channel(QUEUE_LEN);
        tokio::spawn(async move {
            loop {
                match listener.accept().await {
                    Ok((stream, _)) => drop(tokio::spawn(serve(stream, sender.clone()))),
                    Err(error) => {
                        tracing::warn!(%error, "an order could not be taken");
                        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                    }
                }
            }
        });
        Ok(Orders {
            _socket: socket,
            orders,
        })
    }

    /// The next one.
    pub(super) async fn next(&mut self) -> Option<Ordered> {
        self.orders.recv().await
    }
}

/// One who has come with an order.
async fn serve(mut stream: UnixStream, orders: mpsc::Sender<Ordered>) {
    let own = rustix::process::geteuid().as_raw();
    if !stream.peer_cred().is_ok_and(|peer| peer.uid() == own) {
        return;
    }
    let (read, mut write) = stream.split();
    let mut line = String::new();
    let mut reader = BufReader::new(tokio::io::AsyncReadExt::take(read, ORDER_LEN_MAX as u64));
    if reader.read_line(&mut line).await.is_err() {
        return;
    }
    let (sender, mut events) = mpsc::channel(QUEUE_LEN);
    match serde_json::from_str::<Order>(&line) {
        Ok(order) => {
            if orders.send((order, sender)).await.is_err() {
                return;
            }
        }
        Err(error) => {
            let unknown = OrderError::UnknownOrder(error.to_string());
            let _ = sender.send(Event::failed(&unknown)).await;
            drop(sender);
        }
    }
    loop {
        let event = tokio::select! {
            event = events.recv() => event,
            // Hung up: what is under way ends, and no more begins.
            _ = reader.read_line(&mut line) => return,
        };
        let Some(event) = event else { return };
        let Ok(mut text) = serde_json::to_string(&event) else {
            return;
        };
        text.push('\n');
        if write.write_all(text.as_bytes()).await.is_err() {
            return;
        }
    }
}

/// Gives an order to the `cell up` of a cell on this host, and prints what comes of it.
pub(super) fn give(address: &CellAddress, order: &Order, json: bool) -> Outcome {
    // Whoever reads lines of JSON gets one of a failure here, too.
    let fail = |error: OrderError| {
        if json {
            let _ = crate::failure::print_json(&Event::failed(&error));
        }
        Failure::of(error)
    };
    let dir = directory(address, fail)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Failure::doing("cannot start the runtime", e))?;
    runtime.block_on(async {
        let path = dir.join(SOCKET);
        let stream = UnixStream::connect(&path).await.map_err(|error| {
            fail(OrderError::CellUpUnreachable {
                at: path.display().to_string(),
                why: error.to_string(),
            })
        })?;
        let (read, mut write) = stream.into_split();
        let mut text = serde_json::to_string(order).map_err(Failure::of)?;
        text.push('\n');
        let sent = write.write_all(text.as_bytes()).await;
        sent.map_err(|e| Failure::doing("cannot give the order", e))?;
        let mut lines = BufReader::new(read).lines();
        while let Some(line) = lines.next_line().await.map_err(Failure::of)? {
            let event: Event = serde_json::from_str(&line).map_err(Failure::of)?;
            if json {
                print_line(&line)?;
            }
            match (event.step.as_str(), event.why.as_deref()) {
                ("done", _) => return Ok(ExitCode::SUCCESS),
                ("failed", why) => {
                    return Err(Failure::of(
                        why.unwrap_or("it failed, and does not say why"),
                    ));
                }
                _ if json => {}
                _ => print_line(&event.text())?,
            }
        }
        Err(fail(OrderError::CellUpEnded))
    })
}

fn directory(
    address: &CellAddress,
    fail: impl Fn(OrderError) -> Failure,
) -> Result<PathBuf, Failure> {
    let text = &address.cell;
    let parsed: trefoil_cell::CellAddress = text
        .parse()
        .map_err(|error| Failure::Usage(format!("--cell: {error}")))?;
    match parsed.locate().map_err(Failure::of)? {
        CellLocation::Directory(dir) => Ok(dir),
        _ => Err(fail(OrderError::NoDirectory(text.clone()))),
    }
}
