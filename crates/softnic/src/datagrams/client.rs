//! A client's datagrams: its socket, and what wakes it.

use super::cipher::{Aes, Keys, Side};
use crate::channel::Channel;
use rustix::event::epoll;
use rustix::net::sockopt;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use trefoil_sockets::datagrams::{self, Inbox, Outbox};
use trefoil_softnic_core::datagram::{
    Courier, DATAGRAM_DATA_LEN_MAX, DATAGRAM_LEN_MAX, Path, Sealed, Window,
};
use trefoil_softnic_core::limits::{ASK_COUNT_MAX, ASKS_LEN_MAX};
use trefoil_softnic_core::wire::{ASK_LEN, Ask, Frame, Head, Kind};
use trefoil_softnic_core::{Initiator, Situation};

/// Looks at the datagrams between two looks at a stream that owes nothing: it says then only
/// that the session has ended. One that was asked for something is looked at each time.
const LOOKS_PER_STREAM: u32 = 64;
/// Receipts of one call; each may be many datagrams.
const RECEIPTS: usize = 8;
/// Heads of IP and UDP.
const HEADS_V4_LEN: usize = 20 + 8;
const HEADS_V6_LEN: usize = 40 + 8;
/// So often in a row before something is asked again: more than a window brings. Who sends
/// rubbish in the engine's name holds nobody up.
const LOOKS_BEFORE_LATE_MAX: usize = 16;

/// See the module.
pub(crate) struct Datagrams {
    socket: datagrams::Datagrams,
    address: SocketAddr,
    inbox: Inbox,
    outbox: Outbox,
    sealed: Sealed<Aes>,
    courier: Courier,
    timer: OwnedFd,
    /// Readable when a datagram has come, or the stream has, or something is to be asked
    /// again.
    waits: Arc<OwnedFd>,
    looks: u32,
    payload: Vec<u8>,
    datagram: Vec<u8>,
}

impl Datagrams {
    /// Beside a session's stream to an engine at `address`, with at most a window of solicited
    /// bytes under way; `None` without TLS.
    pub(crate) fn beside(
        stream: &TcpStream,
        channel: &Channel,
        address: SocketAddr,
        window: Window,
    ) -> io::Result<Option<Self>> {
        let Some(sealed) = Keys::draw(channel).and_then(|keys| keys.into_end(Side::Client)) else {
            return Ok(None);
        };
        let any: SocketAddr = match address {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let socket = UdpSocket::bind(any)?;
        socket.connect(address)?;
        let path = Path::new(len_max(&socket, address));
        let socket = datagrams::Datagrams::new(socket)?;
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        let waits = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let data = epoll::EventData::new_u64(0);
        for fd in [socket.as_fd(), timer.as_fd(), stream.as_fd()] {
            epoll::add(&waits, fd, data, epoll::EventFlags::IN)?;
        }
        Ok(Some(Datagrams {
            socket,
            address,
            inbox: Inbox::new(RECEIPTS),
            outbox: Outbox::default(),
            sealed,
            courier: Courier::on(path, window),
            timer,
            waits: Arc::new(waits),
            looks: 0,
            payload: Vec::new(),
            datagram: Vec::new(),
        }))
    }

    /// What to wait for.
    pub(crate) fn waits(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.waits)
    }

    /// Takes over the requests that an initiator would send by its stream, but for those
    /// that ask for much, or all of them where datagrams do not get through: they are appended to
    /// `stream`, in frames.
    pub(crate) fn take(&mut self, initiator: &mut Initiator, stream: &mut Vec<u8>, now_ns: u64) {
        while let Ok(Some(frame)) = Frame::first(initiator.output(), ASKS_LEN_MAX) {
            if frame.head.kind != Kind::Asks {
                return;
            }
            if self.courier.leaves_all(now_ns) {
                let len = frame.total_len();
                stream.extend_from_slice(&initiator.output()[..len]);
                initiator.sent(len);
                continue;
            }
            let (items, _) = frame.body.as_chunks::<ASK_LEN>();
            // What was encoded here is understood here.
            let asks = items.iter().filter_map(|item| Ask::decode(item).ok());
            for ask in asks {
                match ask.solicited() <= DATAGRAM_DATA_LEN_MAX {
                    true => self.courier.ask(ask),
                    false => append_frame(&[ask], stream),
                }
            }
            let len = frame.total_len();
            initiator.sent(len);
        }
    }

    /// Sends what is due.
    pub(crate) fn send(&mut self, now_ns: u64) {
        while self.courier.next_payload(now_ns, &mut self.payload) {
            self.sealed.seal(&self.payload, &mut self.datagram);
            self.outbox.push(self.address, &self.datagram);
        }
        if !self.outbox.is_empty() {
            self.socket.send(&mut self.outbox);
        }
    }

    /// Appends to `stream` what datagrams do not carry any more.
    pub(crate) fn leave(&mut self, initiator: &mut Initiator, stream: &mut Vec<u8>, now_ns: u64) {
        let mut left = Vec::new();
        let is_any = self.courier.take_left(|ask| left.push(ask));
        left.chunks(ASK_COUNT_MAX)
            .for_each(|asks| append_frame(asks, stream));
        // What was lost while nobody looked, maybe, the engine owes from now on, too.
        if self.courier.take_unwatched() || is_any {
            initiator.asked_anew(now_ns);
        }
    }

    /// Takes in all that has come if something would be asked again now: a pause of this
    /// process is no loss, and a window that takes it for many is as short as can be.
    pub(crate) fn receive_before_late(&mut self, input: &mut Vec<u8>, now_ns: u64) {
        for _ in 0..LOOKS_BEFORE_LATE_MAX {
            if self.courier.due_ns() > now_ns || !self.receive(input, now_ns) {
                return;
            }
        }
    }

    /// Takes in what has come: frames of answers, appended to `input`. Whether there may be
    /// more.
    pub(crate) fn receive(&mut self, input: &mut Vec<u8>, now_ns: u64) -> bool {
        if !self.socket.receive(&mut self.inbox) {
            return false;
        }
        while let Some((_, datagram)) = self.inbox.take_next() {
            let Ok(payload) = self.sealed.open(datagram) else {
                continue;
            };
            // One that is malformed is lost: who has the key says no such thing.
            let _ = self.courier.handle(payload, now_ns, |answer| {
                let head = Head {
                    len: answer.len(),
                    kind: Kind::Answers,
                    count: 1,
                };
                input.extend_from_slice(&head.encode());
                input.extend_from_slice(answer);
            });
        }
        true
    }

    /// Requests that it carries and that are not answered.
    pub(crate) fn asked_count(&self) -> usize {
        self.courier.asked_count()
    }

    /// What is known for whoever is about to look a key up, of what goes this way; `of` is
    /// what the stream knows, and `waiting_len` what the initiator has not handed over yet.
    pub(crate) fn situation(&self, of: Situation, waiting_len: u32) -> Situation {
        let window = self.courier.window();
        let (round_trip_ns, way_ns) = window.round_trips_ns();
        // In a silence the stream carries everything.
        let goes_by_stream =
            self.courier.is_silent() || of.solicited > DATAGRAM_DATA_LEN_MAX as usize;
        match goes_by_stream {
            true => of,
            false => Situation {
                window: window.len(),
                used: self.courier.used() + waiting_len as usize,
                round_trip_ns,
                way_ns,
                ..of
            },
        }
    }

    /// Tells the initiator how much room there is for what it asks.
    pub(crate) fn tell_window(&self, initiator: &mut Initiator) {
        initiator.set_carrier_window(match self.courier.is_silent() {
            true => usize::MAX,
            false => self.courier.window().len(),
        });
    }

    /// Whether it is time to look at the stream.
    pub(crate) fn must_look_at_stream(&mut self) -> bool {
        self.looks = self.looks.wrapping_add(1);
        self.looks.is_multiple_of(LOOKS_PER_STREAM)
    }

    /// Before its owner sleeps: it is woken when something is to be asked again.
    pub(crate) fn arm(&self) {
        let due_ns = self.courier.due_ns();
        let at = match due_ns {
            // Never.
            u64::MAX => Timespec::default(),
            // At 0 it would never be, too.
            0 => Timespec {
                tv_sec: 0,
                tv_nsec: 1,
            },
            due_ns => Timespec {
                tv_sec: (due_ns / 1_000_000_000) as i64,
                tv_nsec: (due_ns % 1_000_000_000) as _,
            },
        };
        let times = Itimerspec {
            it_interval: Timespec::default(),
            it_value: at,
        };
        // Late, if it fails: at the next look.
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &times);
    }
}

/// The longest datagram that leaves by a connected socket, as far as the system says.
fn len_max(socket: &UdpSocket, address: SocketAddr) -> usize {
    let (mtu, heads_len) = match address {
        SocketAddr::V4(_) => (sockopt::ip_mtu(socket), HEADS_V4_LEN),
        SocketAddr::V6(_) => (sockopt::ipv6_mtu(socket), HEADS_V6_LEN),
    };
    let mtu = mtu.map_or(0, |mtu| mtu as usize);
    mtu.saturating_sub(heads_len).min(DATAGRAM_LEN_MAX)
}

fn append_frame(asks: &[Ask], out: &mut Vec<u8>) {
    let head = Head {
        len: asks.len() * ASK_LEN,
        kind: Kind::Asks,
        // At most `ASK_COUNT_MAX`.
        count: asks.len() as u16,
    };
    out.extend_from_slice(&head.encode());
    for ask in asks {
        out.extend_from_slice(&ask.encode());
    }
}
