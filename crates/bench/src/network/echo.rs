//! As many bytes there and back over the same kind of socket, and nothing done in
//! between: what a round trip over the network costs at least.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::hosts::Host;
use crate::load::pin_current_thread;

/// A wire between namespaces loses nothing; a datagram that has not come by then will not.
const LOST_AFTER: Duration = Duration::from_secs(2);

/// Bytes of a question and of its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EchoLens {
    /// There.
    pub ask: usize,
    /// And back.
    pub answer: usize,
}

/// By what they go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EchoBy {
    /// A stream.
    Tcp,
    /// Datagrams.
    Udp {
        /// Longest datagram of an answer.
        len_max: usize,
    },
}

/// An echo on its host and core, for one client; it spins while it waits.
#[derive(Debug)]
pub struct Echo {
    /// Where it listens.
    pub address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Echo {
    /// Starts one.
    pub fn start(host: &Host, core: usize, lens: EchoLens, by: EchoBy) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let (send, receive) = mpsc::channel();
        let (stopped, there) = (Arc::clone(&stop), host.clone());
        let thread = std::thread::spawn(move || {
            let listen = || {
                pin_current_thread(core)?;
                let tell = |at: SocketAddr| send.send(at).map_err(|_| ErrorKind::BrokenPipe);
                match by {
                    EchoBy::Tcp => {
                        let listener = TcpListener::bind((there.address, 0))?;
                        tell(listener.local_addr()?)?;
                        serve(&listener, lens, &stopped)
                    }
                    EchoBy::Udp { len_max } => {
                        let socket = UdpSocket::bind((there.address, 0))?;
                        tell(socket.local_addr()?)?;
                        serve_datagrams(&socket, lens, len_max, &stopped)
                    }
                }
            };
            // Its client sees the connection end.
            let _ = there.enter(listen);
        });
        let address = receive.recv();
        let address = address.map_err(|_| io::Error::other("the echo did not come up"))?;
        Ok(Echo {
            address,
            stop,
            thread: Some(thread),
        })
    }
}

fn serve(listener: &TcpListener, lens: EchoLens, stop: &AtomicBool) -> io::Result<()> {
    let (mut stream, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    let (mut ask, answer) = (vec![0; lens.ask], vec![7; lens.answer]);
    while receive(&mut stream, &mut ask, stop)? {
        send(&mut stream, &answer)?;
    }
    Ok(())
}

fn serve_datagrams(
    socket: &UdpSocket,
    lens: EchoLens,
    len_max: usize,
    stop: &AtomicBool,
) -> io::Result<()> {
    socket.set_nonblocking(true)?;
    let (mut ask, answer) = (vec![0; lens.ask + 1], vec![7; lens.answer]);
    while !stop.load(Ordering::Relaxed) {
        match socket.recv_from(&mut ask) {
            Ok((_, from)) => {
                for piece in answer.chunks(len_max) {
                    // What the system does not take is lost, as on the way.
                    let _ = socket.send_to(piece, from);
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // It may be waiting for its client.
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.address.port()));
        if let Some(thread) = self.thread.take()
            && thread.is_finished()
        {
            let _ = thread.join();
        }
    }
}

/// The other side of an echo; it spins while it waits.
#[derive(Debug)]
pub struct EchoClient {
    socket: Socket,
    ask: Vec<u8>,
    answer: Vec<u8>,
}

#[derive(Debug)]
enum Socket {
    Stream(TcpStream),
    Datagrams(UdpSocket),
}

impl EchoClient {
    /// Connects.
    pub fn connect(address: SocketAddr, lens: EchoLens, by: EchoBy) -> io::Result<Self> {
        let socket = match by {
            EchoBy::Tcp => {
                let stream = TcpStream::connect(address)?;
                stream.set_nodelay(true)?;
                stream.set_nonblocking(true)?;
                Socket::Stream(stream)
            }
            EchoBy::Udp { .. } => {
                let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
                socket.connect(address)?;
                socket.set_nonblocking(true)?;
                Socket::Datagrams(socket)
            }
        };
        Ok(EchoClient {
            socket,
            ask: vec![5; lens.ask],
            answer: vec![0; lens.answer],
        })
    }

    /// There and back.
    pub fn round(&mut self) -> io::Result<()> {
        let goes_on = AtomicBool::new(false);
        match &mut self.socket {
            Socket::Stream(stream) => {
                send(stream, &self.ask)?;
                match receive(stream, &mut self.answer, &goes_on)? {
                    true => Ok(()),
                    false => Err(ErrorKind::UnexpectedEof.into()),
                }
            }
            Socket::Datagrams(socket) => {
                let _ = socket.send(&self.ask);
                let (mut count, begin) = (0, Instant::now());
                while count < self.answer.len() {
                    match socket.recv(&mut self.answer) {
                        Ok(len) => count += len,
                        Err(error) if error.kind() == ErrorKind::WouldBlock => {
                            if begin.elapsed() > LOST_AFTER {
                                return Err(ErrorKind::TimedOut.into());
                            }
                            std::hint::spin_loop();
                        }
                        Err(error) => return Err(error),
                    }
                }
                Ok(())
            }
        }
    }
}

fn send(stream: &mut TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// `false` at the end.
fn receive(stream: &mut TcpStream, into: &mut [u8], stop: &AtomicBool) -> io::Result<bool> {
    let mut count = 0;
    while count < into.len() {
        match stream.read(&mut into[count..]) {
            Ok(0) => return Ok(false),
            Ok(more) => count += more,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                if stop.load(Ordering::Relaxed) {
                    return Ok(false);
                }
                std::hint::spin_loop();
            }
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}
