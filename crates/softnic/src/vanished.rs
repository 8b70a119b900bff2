//! Hosts that vanish without a word: nothing of them ends a connection, so the system is
//! told how long one may be silent.

use rustix::io::Result;
use rustix::net::sockopt;
use std::os::fd::AsFd;
use std::time::Duration;

/// What was sent to a client may stay unacknowledged for so long: longer than a client may
/// leave answers untaken, which has a counter of its own.
const UNACKNOWLEDGED_MS: u32 = 15_000;
/// A client that says nothing for so long is asked whether it is there.
const SILENT: Duration = Duration::from_secs(30);
/// How often, and how long between, it is asked then before it is given up.
const ASKED_COUNT: u32 = 3;
const ASKED_PAUSE: Duration = Duration::from_secs(5);

/// The same of clients that place requests: their lanes are few, and others want them.
const WRITER_UNACKNOWLEDGED_MS: u32 = 5_000;
const WRITER_SILENT: Duration = Duration::from_secs(4);
const WRITER_ASKED_PAUSE: Duration = Duration::from_secs(1);

/// For an engine's every client.
pub(crate) fn watch(socket: &impl AsFd) -> Result<()> {
    sockopt::set_tcp_user_timeout(socket, UNACKNOWLEDGED_MS)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, SILENT)?;
    sockopt::set_tcp_keepintvl(socket, ASKED_PAUSE)?;
    sockopt::set_tcp_keepcnt(socket, ASKED_COUNT)
}

/// For both ends of a connection over which requests are placed: a host that has vanished
/// is found out within some six seconds.
pub(crate) fn watch_writer(socket: &impl AsFd) -> Result<()> {
    sockopt::set_tcp_user_timeout(socket, WRITER_UNACKNOWLEDGED_MS)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, WRITER_SILENT)?;
    sockopt::set_tcp_keepintvl(socket, WRITER_ASKED_PAUSE)
}
