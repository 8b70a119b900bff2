//! The wire between a host and the bridge, as bad as one likes: what `tc … netem` and `tbf`
//! do, for kernels without them. Both ends are Ethernet devices (TAP) of this process; a
//! thread carries every frame from one to the other, and loses, doubles, damages, delays or
//! queues it on the way.
//!
//! Frames are as long as on a real network (1500 bytes), with checksums that the kernel has
//! computed and verifies: one that was damaged is lost, as behind a real card.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Setter, ioctl, opcode};
use std::collections::BinaryHeap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const TUN: &str = "/dev/net/tun";
/// More than any frame.
const FRAME_LEN_MAX: usize = 2048;
/// Destination, source and type: not damaged, or a frame would reach nobody.
const ETHERNET_LEN: usize = 14;
/// IPv4 alone is damaged: address resolution has no checksum, and would teach nonsense.
const IPV4: [u8; 2] = [8, 0];
/// Frames taken from one end before the other has its turn.
const TURN_COUNT: usize = 64;
/// So often the thread looks whether the wire is still wanted.
const LOOK: Duration = Duration::from_millis(50);
/// What chances are told in.
const ALL: u64 = 10_000;

/// What a wire does to frames, each way. Chances are of 10,000 frames.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Quality {
    /// On the way for so long.
    pub delay: Duration,
    /// Do not arrive.
    pub lost: u16,
    /// Arrive twice.
    pub doubled: u16,
    /// Arrive with one bit changed.
    pub damaged: u16,
    /// Arrive at once, before all that is on its way.
    pub early: u16,
    /// How fast they go, and how much of them may wait for that.
    pub rate: Option<Rate>,
}

/// A narrow wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Bytes in a second.
    pub bytes_per_s: u64,
    /// Bytes that wait in front of it; what finds more is lost.
    pub queue_len: u64,
}

/// What a wire has done so far, both ways together, in frames.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct WireCounts {
    /// Came to one of its ends.
    pub frames: u64,
    /// Of these, lost on purpose.
    pub lost: u64,
    /// Doubled.
    pub doubled: u64,
    /// Damaged.
    pub damaged: u64,
    /// Arrived before others.
    pub early: u64,
    /// Found the queue full.
    pub overflowed: u64,
}

#[derive(Debug, Default)]
struct Shared {
    quality: Mutex<Quality>,
    is_over: AtomicBool,
    frames: AtomicU64,
    lost: AtomicU64,
    doubled: AtomicU64,
    damaged: AtomicU64,
    early: AtomicU64,
    overflowed: AtomicU64,
}

/// See the module; dropping it cuts it.
#[derive(Debug)]
pub struct Wire {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Wire {
    /// Between two devices.
    pub(super) fn between(one: OwnedFd, other: OwnedFd, seed: u64) -> Self {
        let shared = Arc::<Shared>::default();
        let thread = std::thread::spawn({
            let shared = Arc::clone(&shared);
            move || carry(&[one, other], seed, &shared)
        });
        Wire {
            shared,
            thread: Some(thread),
        }
    }

    /// From now on.
    pub fn set(&self, quality: Quality) {
        let mut of = self.shared.quality.lock();
        *of.as_deref_mut().unwrap_or_else(|error| error.get_mut()) = quality;
    }

    /// What it has done.
    pub fn counts(&self) -> WireCounts {
        let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
        WireCounts {
            frames: count(&self.shared.frames),
            lost: count(&self.shared.lost),
            doubled: count(&self.shared.doubled),
            damaged: count(&self.shared.damaged),
            early: count(&self.shared.early),
            overflowed: count(&self.shared.overflowed),
        }
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A frame on its way.
#[derive(PartialEq, Eq)]
struct Frame {
    at: Instant,
    number: u64,
    to: usize,
    bytes: Vec<u8>,
}

/// The earliest is the greatest.
impl Ord for Frame {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

impl PartialOrd for Frame {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

fn carry(ends: &[OwnedFd; 2], seed: u64, shared: &Shared) {
    let mut way = Way {
        random: seed | 1,
        number: 0,
        under_way: BinaryHeap::new(),
        free_at: [Instant::now(); 2],
        shared,
    };
    let mut room = [0; FRAME_LEN_MAX];
    while !shared.is_over.load(Ordering::Relaxed) {
        let now = Instant::now();
        let next = way.under_way.peek();
        let wait = next.map_or(LOOK, |frame| frame.at.saturating_duration_since(now));
        let wait = wait.min(LOOK);
        let wait = Timespec {
            tv_sec: wait.as_secs() as i64,
            tv_nsec: i64::from(wait.subsec_nanos()),
        };
        let mut fds = [
            PollFd::new(&ends[0], PollFlags::IN),
            PollFd::new(&ends[1], PollFlags::IN),
        ];
        // An interrupted wait is a short one.
        let _ = poll(&mut fds, Some(&wait));
        for (from, end) in ends.iter().enumerate() {
            for _ in 0..TURN_COUNT {
                let Ok(len) = rustix::io::read(end, &mut room) else {
                    break;
                };
                // Looked at behind each frame: one that was sent after a quality was set
                // meets that one.
                let quality = *shared
                    .quality
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner);
                way.take(&room[..len], 1 - from, &quality);
            }
        }
        let now = Instant::now();
        while way.under_way.peek().is_some_and(|frame| frame.at <= now) {
            if let Some(frame) = way.under_way.pop() {
                // What the kernel does not take is lost.
                let _ = rustix::io::write(&ends[frame.to], &frame.bytes);
            }
        }
    }
}

struct Way<'a> {
    random: u64,
    number: u64,
    under_way: BinaryHeap<Frame>,
    /// When the narrow part is free, by direction.
    free_at: [Instant; 2],
    shared: &'a Shared,
}

impl Way<'_> {
    /// Any number.
    fn draw(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    fn happens(&mut self, chance: u16, count: impl Fn(&Shared) -> &AtomicU64) -> bool {
        let happens = self.draw() % ALL < u64::from(chance);
        if happens {
            count(self.shared).fetch_add(1, Ordering::Relaxed);
        }
        happens
    }

    fn take(&mut self, bytes: &[u8], to: usize, quality: &Quality) {
        self.shared.frames.fetch_add(1, Ordering::Relaxed);
        if self.happens(quality.lost, |of| &of.lost) {
            return;
        }
        let mut bytes = bytes.to_vec();
        let is_ipv4 = bytes.len() > ETHERNET_LEN && bytes[ETHERNET_LEN - 2..ETHERNET_LEN] == IPV4;
        if is_ipv4 && self.happens(quality.damaged, |of| &of.damaged) {
            let bits = (bytes.len() - ETHERNET_LEN) * 8;
            let bit = self.draw() as usize % bits;
            bytes[ETHERNET_LEN + bit / 8] ^= 1 << (bit % 8);
        }
        let now = Instant::now();
        let mut begin = now;
        if let Some(rate) = quality.rate {
            let nanos = |len: u64| len.saturating_mul(1_000_000_000) / rate.bytes_per_s.max(1);
            let free_at = self.free_at[to].max(now);
            if free_at - now > Duration::from_nanos(nanos(rate.queue_len)) {
                self.shared.overflowed.fetch_add(1, Ordering::Relaxed);
                return;
            }
            begin = free_at + Duration::from_nanos(nanos(bytes.len() as u64));
            self.free_at[to] = begin;
        }
        let is_early = self.happens(quality.early, |of| &of.early);
        let at = match is_early {
            true => now,
            false => begin + quality.delay,
        };
        let is_doubled = self.happens(quality.doubled, |of| &of.doubled);
        for bytes in is_doubled.then(|| bytes.clone()).into_iter().chain([bytes]) {
            self.number += 1;
            let number = self.number;
            self.under_way.push(Frame {
                at,
                number,
                to,
                bytes,
            });
        }
    }
}

/// What the kernel calls `struct ifreq`, as far as it is used here.
#[repr(C)]
struct Request {
    name: [u8; libc::IFNAMSIZ],
    flags: libc::c_short,
    rest: [u8; 22],
}

const _: () = assert!(size_of::<Request>() == size_of::<libc::ifreq>());

/// TUNSETIFF: its number says `int`, and the kernel reads a `struct ifreq`.
const SET_DEVICE: Opcode = opcode::write::<libc::c_int>(b'T', 202);

/// A new Ethernet device of the calling thread's network namespace, which is gone when this
/// is closed.
pub(super) fn open_device(name: &str) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let device = open(TUN, flags, Mode::empty())?;
    let mut request = Request {
        name: [0; libc::IFNAMSIZ],
        flags: (libc::IFF_TAP | libc::IFF_NO_PI) as libc::c_short,
        rest: [0; 22],
    };
    // The last byte stays zero.
    if name.len() >= request.name.len() {
        return Err(Errno::NAMETOOLONG.into());
    }
    request.name[..name.len()].copy_from_slice(name.as_bytes());
    // SAFETY: TUNSETIFF reads a `struct ifreq`, whose layout and length `Request` has, and
    // writes nothing that is needed afterwards: `Setter` lends it a copy of its own.
    unsafe { ioctl(&device, Setter::<SET_DEVICE, Request>::new(request)) }?;
    Ok(device)
}
