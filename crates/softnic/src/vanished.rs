//! Hosts that vanish without a word: nothing of them ends a connection, so the system is
//! told how long one may be silent.
//!
//! With a user timeout the system does not count the questions that nobody answers: it gives
//! a connection up at the first one that is unanswered when the time is over. So several
//! have to fit into it, or one lost packet ends a client that is well. And it ends those,
//! too, who acknowledge and do not read, so it is longer than answers may be untaken, which
//! have a counter of their own (`stuck_max` of the engine's options).

use rustix::io::Result;
use rustix::net::sockopt;
use std::os::fd::AsFd;
use std::time::Duration;

/// How long who may be silent.
struct Patience {
    /// After so long the other end is asked whether it is there.
    silent: Duration,
    /// Between two questions.
    pause: Duration,
    /// Nothing was acknowledged for so long: it is given up.
    unacknowledged: Duration,
}

/// Questions that may get lost one after the other.
const LOST_MAX: u32 = 2;

impl Patience {
    const fn new(silent_s: u64, pause_s: u64, unacknowledged_s: u64) -> Self {
        assert!(silent_s + LOST_MAX as u64 * pause_s < unacknowledged_s);
        Patience {
            silent: Duration::from_secs(silent_s),
            pause: Duration::from_secs(pause_s),
            unacknowledged: Duration::from_secs(unacknowledged_s),
        }
    }

    fn set(&self, socket: &impl AsFd) -> Result<()> {
        sockopt::set_tcp_user_timeout(socket, self.unacknowledged.as_millis() as u32)?;
        sockopt::set_socket_keepalive(socket, true)?;
        sockopt::set_tcp_keepidle(socket, self.silent)?;
        sockopt::set_tcp_keepintvl(socket, self.pause)
    }
}

const READER: Patience = Patience::new(20, 5, 35);
/// Clients that place requests: their lanes are few, and others want them.
const WRITER: Patience = Patience::new(4, 3, 15);

/// For an engine's every client.
pub(crate) fn watch(socket: &impl AsFd) -> Result<()> {
    READER.set(socket)
}

/// For both ends of a connection over which requests are placed: a host that has vanished
/// is found out within some 15 seconds.
pub(crate) fn watch_writer(socket: &impl AsFd) -> Result<()> {
    WRITER.set(socket)
}
