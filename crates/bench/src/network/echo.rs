//! As many bytes there and back over the same kind of socket, and nothing done in
//! between: what a round trip over the network costs at least.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use crate::hosts::Host;
use crate::load::pin_current_thread;

/// Bytes of a question and of its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EchoLens {
    /// There.
    pub ask: usize,
    /// And back.
    pub answer: usize,
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
    pub fn start(host: &Host, core: usize, lens: EchoLens) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let (send, receive) = mpsc::channel();
        let (stopped, there) = (Arc::clone(&stop), host.clone());
        let thread = std::thread::spawn(move || {
            let listen = || {
                pin_current_thread(core)?;
                let listener = TcpListener::bind((there.address, 0))?;
                send.send(listener.local_addr()?)
                    .map_err(|_| ErrorKind::BrokenPipe)?;
                serve(&listener, lens, &stopped)
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
    stream: TcpStream,
    ask: Vec<u8>,
    answer: Vec<u8>,
}

impl EchoClient {
    /// Connects.
    pub fn connect(address: SocketAddr, lens: EchoLens) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(EchoClient {
            stream,
            ask: vec![5; lens.ask],
            answer: vec![0; lens.answer],
        })
    }

    /// There and back.
    pub fn round(&mut self) -> io::Result<()> {
        send(&mut self.stream, &self.ask)?;
        let goes_on = AtomicBool::new(false);
        match receive(&mut self.stream, &mut self.answer, &goes_on)? {
            true => Ok(()),
            false => Err(ErrorKind::UnexpectedEof.into()),
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
