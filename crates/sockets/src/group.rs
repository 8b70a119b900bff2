//! Which socket of several at one address gets a datagram.

use rustix::fd::{AsFd, AsRawFd as _};
use std::io;

/// Of the sockets that share this one's address (`SO_REUSEPORT`), the `count` that were bound
/// first get all datagrams: each the one that its first four bytes say, as a number with the
/// highest byte first, modulo `count`. Shorter ones go to the first socket. It may be asked
/// for again; what has come to a socket stays there.
///
/// # Errors
/// The system's reason. It chooses by addresses and ports then, among all, as without this.
pub fn spread_by_name(socket: impl AsFd, count: usize) -> io::Result<()> {
    // Classic BPF, whose offsets count from the datagram's payload here.
    const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const MODULO: u16 = (libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K) as u16;
    const RETURN_IT: u16 = (libc::BPF_RET | libc::BPF_A) as u16;
    let instruction = |code, k| libc::sock_filter {
        code,
        jt: 0,
        jf: 0,
        k,
    };
    let count = u32::try_from(count.max(1)).map_err(io::Error::other)?;
    let mut program = [
        instruction(LOAD_WORD, 0),
        instruction(MODULO, count),
        instruction(RETURN_IT, 0),
    ];
    let program = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: the option's value is a `sock_fprog`, which lives across the call, as does the
    // program that it points at; the system copies both.
    let set = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_REUSEPORT_CBPF,
            std::ptr::from_ref(&program).cast(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    };
    match set {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketType, bind, socket, sockopt};
    use std::net::{SocketAddr, UdpSocket};

    fn one_of_several(at: SocketAddr) -> UdpSocket {
        let family = match at {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let one = socket(family, SocketType::DGRAM, None).unwrap();
        sockopt::set_socket_reuseport(&one, true).unwrap();
        bind(&one, &at).unwrap();
        let one = UdpSocket::from(one);
        one.set_nonblocking(true).unwrap();
        one
    }

    #[test]
    fn the_name_decides_and_those_that_are_parked_get_nothing() {
        for any in ["127.0.0.1:0", "[::1]:0"] {
            let first = one_of_several(any.parse().unwrap());
            let at = first.local_addr().unwrap();
            let mut sockets = vec![first];
            sockets.extend([(); 2].map(|()| one_of_several(at)));
            for count in [3, 1, 2] {
                // By whichever of them.
                spread_by_name(&sockets[count % 3], count).unwrap();
                // From many ports, by which the system would choose.
                for name in 0..60_u32 {
                    let sender = UdpSocket::bind(any).unwrap();
                    let datagram = [&name.to_be_bytes()[..], b"and more"].concat();
                    sender.send_to(&datagram, at).unwrap();
                    let mut got = sockets.iter().enumerate().filter_map(|(number, socket)| {
                        let mut bytes = [0; 64];
                        let (len, _) = socket.recv_from(&mut bytes).ok()?;
                        assert_eq!(&bytes[..len], datagram);
                        Some(number)
                    });
                    assert_eq!(got.next(), Some(name as usize % count));
                    assert_eq!(got.next(), None);
                }
                let sender = UdpSocket::bind(any).unwrap();
                sender.send_to(b"ab", at).unwrap();
                assert_eq!(sockets[0].recv_from(&mut [0; 8]).unwrap().0, 2);
            }
        }
    }
}
