//! How a TCP connection gets on, as the system knows it.

use rustix::fd::{AsFd, AsRawFd as _};

/// See the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamState {
    /// Bytes that the socket has taken and the other end has not acknowledged.
    pub in_flight_bytes: u64,
    /// Bytes that may be under way: the congestion window.
    pub window_bytes: u64,
    /// Segments that were sent again since it began.
    pub retransmitted: u32,
}

impl StreamState {
    /// As of now; `None` if it is no TCP connection, or not any more.
    pub fn of(socket: impl AsFd) -> Option<StreamState> {
        let socket = socket.as_fd().as_raw_fd();
        let mut info = std::mem::MaybeUninit::<libc::tcp_info>::zeroed();
        let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
        // SAFETY: `info` has room for `len` bytes, and both live across the call.
        let got = unsafe {
            libc::getsockopt(
                socket,
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                info.as_mut_ptr().cast(),
                &raw mut len,
            )
        };
        let mut untaken: libc::c_int = 0;
        // SAFETY: the request (SIOCOUTQ) writes an int, which lives across the call.
        let asked = unsafe { libc::ioctl(socket, libc::TIOCOUTQ, &raw mut untaken) };
        if got != 0 || asked != 0 {
            return None;
        }
        // SAFETY: it was zeroed, and all its fields are integers: an old system fills less.
        let info = unsafe { info.assume_init() };
        Some(StreamState {
            in_flight_bytes: u64::try_from(untaken).unwrap_or(0),
            window_bytes: u64::from(info.tcpi_snd_cwnd) * u64::from(info.tcpi_snd_mss),
            retransmitted: info.tcpi_total_retrans,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::net::{TcpListener, TcpStream, UdpSocket};

    #[test]
    fn what_nobody_takes_is_under_way() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (_receiver, _) = listener.accept().unwrap();
        let fresh = StreamState::of(&sender).unwrap();
        assert_eq!((fresh.in_flight_bytes, fresh.retransmitted), (0, 0));
        assert!(fresh.window_bytes >= 536, "{fresh:?}");
        sender.set_nonblocking(true).unwrap();
        while sender.write(&[7; 64 << 10]).is_ok() {}
        assert!(StreamState::of(&sender).unwrap().in_flight_bytes > 0);
        let datagrams = UdpSocket::bind("127.0.0.1:0").unwrap();
        assert_eq!(StreamState::of(&datagrams), None);
    }
}
