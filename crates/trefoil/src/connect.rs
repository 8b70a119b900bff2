//! How commands find a cell: one that is starting is waited for.

use crate::args::CellAddress;
use crate::failure::Failure;
use std::path::Path;
use std::time::{Duration, Instant};
use trefoil_client::{
    Cell, CertFiles, CertUse, Client, ConnectError, Options, Presence, Tls, tls_for,
};

/// How long a server that is starting may take to leave its token.
const TOKEN_PATIENCE: Duration = Duration::from_millis(800);
/// How long a command waits for a cell that is starting.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a cell that was waited for may take to be complete.
const STARTING: Duration = Duration::from_secs(2);
/// After so long it says what it is waiting for.
const SILENCE: Duration = Duration::from_millis(300);
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(50);

/// One wait, and what was said of it.
struct Waiting {
    begin: Instant,
    has_waited: bool,
    has_spoken: bool,
}

impl Waiting {
    fn new() -> Self {
        Waiting {
            begin: Instant::now(),
            has_waited: false,
            has_spoken: false,
        }
    }

    /// Pauses; `false` if it has been long enough.
    fn goes_on(&mut self, what: impl FnOnce() -> String) -> bool {
        let waited = self.begin.elapsed();
        if waited >= PATIENCE {
            return false;
        }
        if waited >= SILENCE && !self.has_spoken {
            self.has_spoken = true;
            let seconds = PATIENCE.as_secs();
            eprintln!("trefoil: {} (up to {seconds} s)", what());
        }
        self.has_waited = true;
        std::thread::sleep(PAUSE);
        true
    }
}

/// The certificates in a directory, for a client of servers over TCP.
pub(crate) fn tls(certs: Option<&Path>) -> Result<Option<Tls>, Failure> {
    let read = |directory| Tls::read(&CertFiles::in_directory(directory), CertUse::Client);
    certs.map(read).transpose().map_err(Failure::of)
}

/// The cell at `address`, whose configuration somebody has.
pub(crate) fn cell(address: &CellAddress) -> Result<Cell, Failure> {
    wait_for(address, &mut Waiting::new())
}

fn wait_for(address: &CellAddress, waiting: &mut Waiting) -> Result<Cell, Failure> {
    let tls = tls_for(&address.cell, address.certs.as_deref()).map_err(Failure::of)?;
    loop {
        let error = match Cell::connect_with(&address.cell, tls.clone()) {
            Ok(cell) => return Ok(cell),
            Err(error @ ConnectError::Address { .. }) if is_malformed(&error) => {
                return Err(Failure::Usage(format!("--cell: {error}")));
            }
            Err(error) => error,
        };
        // A server that is starting takes its sockets before it leaves its token.
        let is_early = matches!(
            error,
            ConnectError::Unreachable {
                is_refusal: true,
                ..
            }
        ) && waiting.begin.elapsed() < TOKEN_PATIENCE;
        if is_early {
            waiting.has_waited = true;
            std::thread::sleep(PAUSE);
            continue;
        }
        if !error.is_absence() || !waiting.goes_on(|| format!("{error}; waiting for it")) {
            return Err(Failure::of(error));
        }
    }
}

fn is_malformed(error: &ConnectError) -> bool {
    matches!(error, ConnectError::Address { source, .. } if source.is_malformed())
}

/// A client of it, once enough backends answer for an operation. Where the command
/// had to wait for the cell, the cell is being started, and all of its backends are
/// waited for: what is written before that lacks a copy.
pub(crate) fn client(address: &CellAddress, options: Options) -> Result<Client, Failure> {
    let mut waiting = Waiting::new();
    let cell = wait_for(address, &mut waiting)?;
    loop {
        let config = cell.config();
        let (all, enough) = (config.backends.len(), config.mode.quorum());
        let is_starting = waiting.has_waited && waiting.begin.elapsed() < STARTING;
        let needed = if is_starting { all } else { enough };
        let presence = cell.presence(needed);
        let answers = |(_, presence): &&(u32, Presence)| *presence == Presence::Answers;
        let up = presence.iter().filter(answers).count();
        let what =
            || format!("{up} of {all} backends answer; waiting for all, {enough} are enough");
        if up >= needed || !waiting.goes_on(what) {
            return Ok(cell.client(options));
        }
    }
}
