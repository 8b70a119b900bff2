//! As many bytes there and back by a server that does nothing but receive and send, and
//! sleeps while nothing comes: what an operation costs a server's CPU at least, by ordinary
//! sockets.

use std::collections::HashMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::sync::mpsc;
use std::time::Duration;

use rustix::event::epoll;

use super::echo::EchoLens;
use crate::hosts::Host;
use crate::load::pin_current_thread;
use crate::peer::procfs;

const EVENT_COUNT_MAX: usize = 64;
const RECEIVE_LEN: usize = 64 << 10;

/// A server for so many connections, on its host and core. It ends when they have.
#[derive(Debug)]
pub(super) struct Floor {
    /// Where it listens.
    pub(super) address: SocketAddr,
    thread: i32,
}

impl Floor {
    pub(super) fn start(
        host: &Host,
        core: usize,
        lens: EchoLens,
        connections: usize,
    ) -> io::Result<Self> {
        let (send, receive) = mpsc::channel();
        let there = host.clone();
        std::thread::spawn(move || {
            // Its clients see their connections end.
            let _ = there.enter(|| {
                pin_current_thread(core)?;
                let listener = TcpListener::bind((there.address, 0))?;
                let thread = rustix::thread::gettid().as_raw_nonzero().get();
                let told = send.send((listener.local_addr()?, thread));
                told.map_err(|_| ErrorKind::BrokenPipe)?;
                serve(&listener, lens, connections)
            });
        });
        let (address, thread) = receive
            .recv()
            .map_err(|_| io::Error::other("the bare echo did not come up"))?;
        Ok(Floor { address, thread })
    }

    /// CPU that it has used.
    pub(super) fn cpu(&self) -> io::Result<Duration> {
        procfs::thread_cpu_time(self.thread)
    }
}

fn serve(listener: &TcpListener, lens: EchoLens, connections: usize) -> io::Result<()> {
    let events = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let mut streams = HashMap::new();
    for _ in 0..connections {
        let (stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        let name = stream.as_raw_fd() as u64;
        let data = epoll::EventData::new_u64(name);
        epoll::add(&events, stream.as_fd(), data, epoll::EventFlags::IN)?;
        streams.insert(name, (stream, 0));
    }
    let (mut received, answer) = (vec![0; RECEIVE_LEN], vec![7; lens.answer]);
    let mut ready = Vec::with_capacity(EVENT_COUNT_MAX);
    while !streams.is_empty() {
        ready.clear();
        let room = rustix::buffer::spare_capacity(&mut ready);
        if epoll::wait(&events, room, None) == Err(rustix::io::Errno::INTR) {
            continue;
        }
        for event in &ready {
            let name = { event.data }.u64();
            let Some((stream, asked)) = streams.get_mut(&name) else {
                continue;
            };
            if turn(stream, asked, &mut received, lens.ask, &answer).is_err() {
                streams.remove(&name);
            }
        }
    }
    Ok(())
}

/// Receives once, and answers what is whole.
fn turn(
    stream: &mut TcpStream,
    asked: &mut usize,
    received: &mut [u8],
    ask_len: usize,
    answer: &[u8],
) -> io::Result<()> {
    match stream.read(received)? {
        0 => return Err(ErrorKind::UnexpectedEof.into()),
        count => *asked += count,
    }
    while *asked >= ask_len {
        *asked -= ask_len;
        stream.write_all(answer)?;
    }
    Ok(())
}
