//! Hosts that vanish without a word. Nothing is under way between two cards most of the time,
//! and a card that waits for nobody notices nothing. So the TCP connection beside them is
//! watched: the system asks whether the other end is there, and ends it.

use rustix::io::Result;
use rustix::net::sockopt;
use std::os::fd::AsFd;
use std::time::Duration;

/// After so long without a word the other end is asked, and again in between.
const SILENT: Duration = Duration::from_secs(4);
const PAUSE: Duration = Duration::from_secs(3);
/// Nothing came for so long: it has gone. Two questions may get lost one after the other.
const GONE: Duration = Duration::from_secs(15);

const _: () = assert!(SILENT.as_secs() + 2 * PAUSE.as_secs() < GONE.as_secs());

/// For both ends.
pub(crate) fn watch(socket: &impl AsFd) -> Result<()> {
    sockopt::set_tcp_user_timeout(socket, GONE.as_millis() as u32)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, SILENT)?;
    sockopt::set_tcp_keepintvl(socket, PAUSE)
}
