//! Datagrams in batches. What waits at a socket is received by one call, and of those that
//! stand in a row of one sender the kernel may have made one (GRO). What is to go leaves
//! together: equal ones to one receiver in a row as one long one that the kernel cuts up, as
//! late as it can (GSO), and all others by one call. A receiver on whose way the kernel or a
//! device refuses GSO is sent them by one call for a minute; others are not, unless it is all
//! of them.
//!
//! Nothing is fragmented on its way: what is too long for the way's first link is not taken,
//! and what is too long for a later one does not arrive.

use crate::refusals::Refusals;
use quinn_udp::{BATCH_SIZE, RecvMeta, Transmit, UdpSockRef, UdpSocketState};
use rustix::io::Errno;
use rustix::net::{
    MMsgHdr, SendAncillaryBuffer, SendFlags, SocketAddrAny, addr::SocketAddrArg as _, sendmmsg,
    sendto,
};
use smallvec::SmallVec;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

/// Receipts of one call, at most; each may be many datagrams in a row.
pub const RECEIPT_COUNT_MAX: usize = BATCH_SIZE;
/// The longest receipt.
const RECEIPT_LEN_MAX: usize = 64 << 10;
/// Bytes that leave as one, at most: what an IP packet holds, its heads apart.
const RUN_LEN_MAX: usize = 65_000;
/// Datagrams of one call, at most.
const SEND_COUNT_MAX: usize = 64;

/// A UDP socket that waits for nothing.
#[derive(Debug)]
pub struct Datagrams {
    socket: UdpSocket,
    /// To whom it is connected.
    peer: Option<SocketAddr>,
    state: UdpSocketState,
    refusals: Refusals,
}

impl AsFd for Datagrams {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// What was sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Datagrams that the system has taken.
    pub count: usize,
    /// Their bytes.
    pub len: usize,
    /// System calls.
    pub calls: usize,
}

impl Datagrams {
    /// Of a socket that is bound, and perhaps connected. From now on it does not wait, nor
    /// lets its datagrams be fragmented.
    pub fn new(socket: UdpSocket) -> io::Result<Self> {
        let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
        let refusals = Refusals::default();
        let peer = socket.peer_addr().ok();
        Ok(Datagrams {
            socket,
            peer,
            state,
            refusals,
        })
    }

    /// Sends what is in the outbox, which is empty then. What the system does not take is
    /// lost, as on the way.
    pub fn send(&mut self, outbox: &mut Outbox) -> Sent {
        let mut sent = Sent::default();
        if let [one] = &outbox.entries[..] {
            self.send_one(one.to, &outbox.bytes, &mut sent);
            outbox.clear();
            return sent;
        }
        let mut singles: SmallVec<[usize; SEND_COUNT_MAX]> = SmallVec::new();
        let mut at = 0;
        while at < outbox.entries.len() {
            let count = match self.state.max_gso_segments() {
                0 | 1 => 1,
                most => outbox.run(at, most),
            };
            let to = outbox.entries[at].to.ip();
            let count = match count > 1 && self.refusals.is_refused(to, Instant::now) {
                true => 1,
                false => count,
            };
            if count == 1 || !self.send_run(outbox, at, count, &mut sent) {
                singles.extend(at..at + count);
            }
            at += count;
        }
        for some in singles.chunks(SEND_COUNT_MAX) {
            self.send_each(outbox, some, &mut sent);
        }
        outbox.clear();
        sent
    }

    /// Sends one that is alone, as is usual where somebody waits for each: by the call that takes
    /// least, and by the way that is known of whom the socket is connected to.
    fn send_one(&self, to: SocketAddr, datagram: &[u8], sent: &mut Sent) {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        // An error may be of one that was sent before, and this one is not sent then.
        let mut attempts = 2;
        while attempts > 0 {
            sent.calls += 1;
            let done = match self.peer == Some(to) {
                true => rustix::net::send(&self.socket, datagram, flags),
                false => sendto(&self.socket, datagram, flags, &to),
            };
            match done {
                Ok(len) => {
                    (sent.count, sent.len) = (1, len);
                    return;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN | Errno::NOBUFS) => return,
                Err(_) => attempts -= 1,
            }
        }
    }

    /// Sends these as one. `false`: try each by itself.
    fn send_run(&mut self, outbox: &Outbox, at: usize, count: usize, sent: &mut Sent) -> bool {
        let first = &outbox.entries[at];
        let contents = &outbox.bytes[first.begin..outbox.entries[at + count - 1].end];
        let transmit = Transmit {
            destination: first.to,
            ecn: None,
            contents,
            segment_size: Some(first.end - first.begin),
            src_ip: None,
        };
        sent.calls += 1;
        let result = self
            .state
            .try_send(UdpSockRef::from(&self.socket), &transmit);
        match result {
            Ok(()) => {
                sent.count += count;
                sent.len += contents.len();
                true
            }
            // There is no room for them, by whatever call.
            Err(error) => {
                self.note_refusal(first.to.ip());
                error.kind() == io::ErrorKind::WouldBlock
            }
        }
    }

    /// If that was one: what the library makes of it is that nobody is sent long ones any more.
    #[cold]
    fn note_refusal(&mut self, to: IpAddr) {
        if self.state.max_gso_segments() > 1 {
            return;
        }
        self.refusals.note(to, Instant::now());
        // If that fails, each goes by itself from now on.
        if let Ok(state) = UdpSocketState::new(UdpSockRef::from(&self.socket)) {
            self.state = state;
        }
    }

    fn send_each(&self, outbox: &Outbox, numbers: &[usize], sent: &mut Sent) {
        const COUNT: usize = SEND_COUNT_MAX;
        let entries = || numbers.iter().map(|number| &outbox.entries[*number]);
        let addresses: SmallVec<[SocketAddrAny; COUNT]> =
            entries().map(|entry| entry.to.as_any()).collect();
        let slices: SmallVec<[[IoSlice<'_>; 1]; COUNT]> = entries()
            .map(|entry| [IoSlice::new(&outbox.bytes[entry.begin..entry.end])])
            .collect();
        let mut controls: SmallVec<[SendAncillaryBuffer<'_, '_, '_>; COUNT]> =
            entries().map(|_| SendAncillaryBuffer::default()).collect();
        let messages = addresses.iter().zip(&slices).zip(&mut controls);
        let mut messages: SmallVec<[MMsgHdr<'_>; COUNT]> = messages
            .map(|((address, slice), control)| MMsgHdr::new_with_addr(address, slice, control))
            .collect();
        let mut rest = &mut messages[..];
        while !rest.is_empty() {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            sent.calls += 1;
            let done = match sendmmsg(&self.socket, rest, flags) {
                Ok(count) => {
                    let taken = &rest[..count];
                    sent.count += count;
                    sent.len += taken.iter().map(MMsgHdr::bytes_sent).sum::<usize>();
                    count
                }
                Err(Errno::INTR) => 0,
                // There is no room for the others, either.
                Err(Errno::AGAIN | Errno::NOBUFS) => return,
                // This one is too long, or its receiver was not there the last time.
                Err(_) => 1,
            };
            rest = &mut rest[done..];
        }
    }

    /// Receives what waits, up to what an inbox has room for; whether that was anything.
    /// What was left in the inbox goes.
    ///
    /// Where one comes at a time, room for one is all that is offered: to offer more is half of
    /// what a look costs that finds nothing, and who spins looks all the time.
    pub fn receive(&self, inbox: &mut Inbox) -> bool {
        let room = inbox.room;
        let Inbox { bytes, metas, .. } = inbox;
        let mut slices: SmallVec<[IoSliceMut<'_>; RECEIPT_COUNT_MAX]> = bytes
            .chunks_mut(RECEIPT_LEN_MAX)
            .take(room)
            .map(IoSliceMut::new)
            .collect();
        let socket = UdpSockRef::from(&self.socket);
        // An error is of something that was sent before; there may be more to receive later.
        let count = self.state.recv(socket, &mut slices, &mut metas[..room]);
        let count = count.unwrap_or(0);
        (inbox.count, inbox.at, inbox.offset) = (count, 0, 0);
        if count == room {
            inbox.room = inbox.metas.len();
        } else if count <= 1 {
            inbox.room = 1;
        }
        count > 0
    }
}

/// Datagrams that leave together.
#[derive(Debug, Default)]
pub struct Outbox {
    bytes: Vec<u8>,
    entries: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    to: SocketAddr,
    begin: usize,
    end: usize,
}

impl Outbox {
    /// Puts one in.
    pub fn push(&mut self, to: SocketAddr, datagram: &[u8]) {
        let begin = self.bytes.len();
        self.bytes.extend_from_slice(datagram);
        let end = self.bytes.len();
        self.entries.push(Entry { to, begin, end });
    }

    /// Whether there is none in it.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.entries.clear();
    }

    /// How many of those from this one on may leave as one: of one length to one receiver,
    /// but for the last, which may be shorter.
    fn run(&self, at: usize, most: usize) -> usize {
        let first = &self.entries[at];
        let len = first.end - first.begin;
        let mut count = 1;
        let rest = &self.entries[at + 1..];
        for entry in rest.iter().take(most - 1) {
            let entry_len = entry.end - entry.begin;
            let fits = entry.end - first.begin <= RUN_LEN_MAX;
            if entry.to != first.to || entry_len > len || entry_len == 0 || !fits {
                break;
            }
            count += 1;
            if entry_len < len {
                break;
            }
        }
        count
    }
}

/// Datagrams that came together.
pub struct Inbox {
    /// Room for each receipt. Pages of it that nothing has come to take no memory.
    bytes: Vec<u8>,
    metas: Vec<RecvMeta>,
    /// Receipts that are offered to the next call.
    room: usize,
    count: usize,
    /// The next datagram: of which receipt, and where in it.
    at: usize,
    offset: usize,
}

impl std::fmt::Debug for Inbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Inbox { count, at, .. } = self;
        write!(f, "Inbox({at} of {count})")
    }
}

impl Inbox {
    /// For so many receipts at a time, at most [`RECEIPT_COUNT_MAX`].
    pub fn new(receipts: usize) -> Self {
        let receipts = receipts.clamp(1, RECEIPT_COUNT_MAX);
        Inbox {
            bytes: vec![0; receipts * RECEIPT_LEN_MAX],
            metas: vec![RecvMeta::default(); receipts],
            room: 1,
            count: 0,
            at: 0,
            offset: 0,
        }
    }

    /// Whether there is one more.
    pub fn has_next(&self) -> bool {
        self.at < self.count
    }

    /// Whether the last call filled all of it, so that more may wait.
    pub fn was_filled(&self) -> bool {
        self.count == self.metas.len()
    }

    /// Takes the next one, and from whom it has come.
    pub fn take_next(&mut self) -> Option<(SocketAddr, &mut [u8])> {
        let meta = self.metas[..self.count].get(self.at)?;
        let begin = self.at * RECEIPT_LEN_MAX + self.offset;
        // An empty one is one, too.
        let len = (meta.len - self.offset).min(meta.stride.max(1));
        self.offset += len;
        if self.offset >= meta.len {
            (self.at, self.offset) = (self.at + 1, 0);
        }
        Some((meta.addr, &mut self.bytes[begin..begin + len]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd as _;

    fn at(address: &str) -> Datagrams {
        Datagrams::new(UdpSocket::bind(address).unwrap()).unwrap()
    }

    fn address(of: &Datagrams) -> SocketAddr {
        of.socket.local_addr().unwrap()
    }

    /// All that comes until nothing does; how many receipts that took.
    fn received(at: &Datagrams, inbox: &mut Inbox, count: usize) -> (Vec<Vec<u8>>, usize) {
        let (mut all, mut receipts) = (Vec::new(), 0);
        while all.len() < count && at.receive(inbox) {
            receipts += inbox.count;
            while let Some((_, datagram)) = inbox.take_next() {
                all.push(datagram.to_vec());
            }
        }
        (all, receipts)
    }

    fn filled(len: usize, number: usize) -> Vec<u8> {
        vec![number as u8; len]
    }

    #[test]
    fn whatever_is_put_in_comes_out_in_its_lengths() {
        for bound in ["127.0.0.1:0", "[::1]:0"] {
            let (mut one, other) = (at(bound), at(bound));
            let lens = [
                1400, 1400, 1400, 7, 1400, 80, 80, 80, 80, 0, 3, 1400, 1400, 8972, 8972, 100,
            ];
            let mut outbox = Outbox::default();
            let all: Vec<_> = lens
                .iter()
                .enumerate()
                .map(|(n, len)| filled(*len, n))
                .collect();
            let to = address(&other);
            all.iter().for_each(|one| outbox.push(to, one));
            let sent = one.send(&mut outbox);
            assert_eq!((sent.count, sent.len), (lens.len(), lens.iter().sum()));
            assert!(outbox.is_empty());
            assert!(sent.calls < lens.len() / 2, "{sent:?}");
            let (mut came, _) = received(&other, &mut Inbox::new(32), lens.len());
            // Those that left one by one may have been behind the others.
            let (mut expected, sort) = (all, |all: &mut Vec<Vec<u8>>| all.sort_unstable());
            sort(&mut came);
            sort(&mut expected);
            assert_eq!(came, expected);
        }
    }

    #[test]
    fn equal_ones_in_a_row_leave_and_arrive_as_one() {
        let (mut one, other) = (at("127.0.0.1:0"), at("127.0.0.1:0"));
        if one.state.max_gso_segments() == 1 || one.state.gro_segments() == 1 {
            println!("skipped: this kernel has no GSO or GRO for UDP");
            return;
        }
        let mut outbox = Outbox::default();
        let all: Vec<_> = (0..12).map(|n| filled(1400, n)).collect();
        all.iter().for_each(|one| outbox.push(address(&other), one));
        outbox.push(address(&other), &[12; 500]);
        let sent = one.send(&mut outbox);
        assert_eq!((sent.count, sent.calls), (13, 1));
        let (came, receipts) = received(&other, &mut Inbox::new(4), 13);
        assert_eq!(came[..12], all[..]);
        assert_eq!((came[12].len(), receipts), (500, 1));
    }

    #[test]
    fn an_error_of_one_that_was_sent_before_loses_no_other() {
        let place = UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = place.local_addr().unwrap();
        drop(place);
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(to).unwrap();
        let mut one = Datagrams::new(socket).unwrap();
        let mut outbox = Outbox::default();
        outbox.push(to, b"nobody is there");
        one.send(&mut outbox);
        // The kernel says so to the next call.
        let other = at(&to.to_string());
        outbox.push(to, b"somebody is");
        assert_eq!(one.send(&mut outbox).count, 1);
        let (came, _) = received(&other, &mut Inbox::new(1), 1);
        assert_eq!(came, [b"somebody is".to_vec()]);
    }

    #[test]
    fn who_gets_one_at_a_time_offers_room_for_one() {
        let (mut one, other) = (at("127.0.0.1:0"), at("127.0.0.1:0"));
        let mut inbox = Inbox::new(4);
        let send = |one: &mut Datagrams, lens: &[usize]| {
            let mut outbox = Outbox::default();
            for len in lens {
                outbox.push(address(&other), &filled(*len, 0));
            }
            assert_eq!(one.send(&mut outbox).count, lens.len());
        };
        // Of different lengths, in ascending order: nothing makes one of them.
        send(&mut one, &[10, 20, 30, 40, 50, 60]);
        let mut counts = Vec::new();
        while other.receive(&mut inbox) {
            counts.push((inbox.count, inbox.was_filled()));
        }
        assert_eq!(counts, [(1, false), (4, true), (1, false)]);
        send(&mut one, &[10]);
        assert!(other.receive(&mut inbox));
        assert_eq!((inbox.count, inbox.room), (1, 4));
        assert!(!other.receive(&mut inbox));
        assert_eq!(inbox.room, 1);
    }

    #[test]
    fn many_receivers_take_one_call() {
        let mut one = at("127.0.0.1:0");
        let others: Vec<_> = (0..40).map(|_| at("127.0.0.1:0")).collect();
        let mut outbox = Outbox::default();
        for (number, other) in others.iter().enumerate() {
            outbox.push(address(other), &filled(100, number));
        }
        let sent = one.send(&mut outbox);
        assert_eq!((sent.count, sent.calls), (40, 1));
        for (number, other) in others.iter().enumerate() {
            let (came, _) = received(other, &mut Inbox::new(1), 1);
            assert_eq!(came, [filled(100, number)]);
        }
    }

    /// The kernel cuts nothing up for a socket that does without checksums.
    #[test]
    fn where_the_kernel_refuses_to_cut_them_up_each_goes_by_itself() {
        let (mut one, other) = (at("127.0.0.1:0"), at("127.0.0.1:0"));
        if one.state.max_gso_segments() == 1 {
            println!("skipped: this kernel has no GSO for UDP");
            return;
        }
        let on = 1i32;
        // SAFETY: the option's value is an int that lives across the call.
        let set = unsafe {
            libc::setsockopt(
                one.socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_NO_CHECK,
                std::ptr::from_ref(&on).cast(),
                size_of::<i32>() as libc::socklen_t,
            )
        };
        assert_eq!(set, 0);
        for round in 0..2 {
            let mut outbox = Outbox::default();
            let all: Vec<_> = (0..6).map(|n| filled(1000, n)).collect();
            all.iter().for_each(|one| outbox.push(address(&other), one));
            let sent = one.send(&mut outbox);
            assert_eq!(sent.count, 6, "round {round}");
            // It is asked once.
            assert_eq!(sent.calls, 2 - round);
            assert_eq!(received(&other, &mut Inbox::new(8), 6).0, all);
        }
    }

    /// Port 0 is nobody's: the kernel refuses what is sent there with the same error.
    #[test]
    fn who_is_refused_keeps_no_other_from_leaving_as_one() {
        let (mut one, other) = (at("127.0.0.1:0"), at("127.0.0.1:0"));
        if one.state.max_gso_segments() == 1 {
            println!("skipped: this kernel has no GSO for UDP");
            return;
        }
        let nobody: SocketAddr = ([127, 0, 0, 9], 0).into();
        for round in 0..3 {
            let mut outbox = Outbox::default();
            (0..3).for_each(|n| outbox.push(nobody, &filled(1000, n)));
            let all: Vec<_> = (0..6).map(|n| filled(1000, n)).collect();
            all.iter().for_each(|one| outbox.push(address(&other), one));
            let sent = one.send(&mut outbox);
            assert_eq!(sent.count, 6, "round {round}");
            // One for those that went as one, one for each of the three; the first time it was
            // tried beforehand.
            assert_eq!(sent.calls, 1 + 3 + usize::from(round == 0));
            assert_eq!(received(&other, &mut Inbox::new(8), 6).0, all);
        }
    }

    #[test]
    fn one_that_no_link_takes_keeps_no_other_back() {
        let (mut one, other) = (at("127.0.0.1:0"), at("127.0.0.1:0"));
        let mut outbox = Outbox::default();
        outbox.push(address(&other), b"before");
        outbox.push(address(&other), &vec![0; 65_530]);
        outbox.push(address(&other), b"behind, and longer");
        let sent = one.send(&mut outbox);
        assert_eq!(sent.count, 2);
        let (came, _) = received(&other, &mut Inbox::new(4), 2);
        assert_eq!(came, [b"before".to_vec(), b"behind, and longer".to_vec()]);
    }
}
