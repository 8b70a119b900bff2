//! Reliable connections.

use crate::completions::Completions;
use crate::device::{Device, Mtu};
use crate::error::VerbsError;
use crate::raw::{
    ACCESS_REMOTE_READ, QPT_RC, RawAhAttr, RawQp, RawQpAttr, RawQpCap, RawQpInitAttr, RawRecvWr,
    RawSendWr, RawSge, SEND_SIGNALED, SEND_SOLICITED, STATE_ERR, STATE_INIT, STATE_RTR, STATE_RTS,
    WR_RDMA_READ, WR_RDMA_WRITE, WR_RDMA_WRITE_WITH_IMM, WR_SEND, WR_SEND_WITH_IMM, mask,
};
use crate::receive::ReceiveQueue;
use crate::region::Region;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

/// Packets are numbered by so many bits.
const SEQUENCE_BITS: u32 = 24;
/// Routers between the two sides, at most.
const HOPS_MAX: u8 = 64;
/// A number of retries that says: without end.
const RNR_RETRIES_WITHOUT_END: u8 = 7;

/// One side of a connection, as the other one has to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The number of its connection.
    pub number: u32,
    /// The first number of its packets.
    pub sequence: u32,
    /// The address of its device.
    pub gid: [u8; 16],
    /// What a packet of its device holds.
    pub mtu: Mtu,
}

/// How long a connection waits, in the units of the standard.
#[derive(Clone, Copy, Debug)]
pub struct Timers {
    /// For an acknowledgement, before a packet is sent again: 4.096 µs times two to the power
    /// of it.
    pub acknowledgement: u8,
    /// So many attempts more, then the connection breaks; 6 at most: Soft-RoCE takes 7 for
    /// *without end*.
    pub retries: u8,
    /// What this side tells senders to wait that find no receive buffer: the standard's table
    /// of 0 to 31; 12 is 0.64 ms.
    pub no_buffer: u8,
}

impl Default for Timers {
    fn default() -> Self {
        // A peer that is gone is noticed after about two seconds.
        Timers {
            acknowledgement: 16,
            retries: 6,
            no_buffer: 12,
        }
    }
}

/// What a send is to do besides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendFlags {
    /// The receiver is to be woken ([`Completions::arm`] with `solicited`).
    pub wakes: bool,
    /// It has a completion also when it is done; one that fails always has.
    pub is_signaled: bool,
    /// A word that is told beside the message. Receivers here do not look at it.
    pub immediate: Option<u32>,
}

/// A reliable connection.
#[derive(Debug)]
pub struct Connection {
    raw: NonNull<RawQp>,
    sequence: u32,
    device: Device,
    _sent: Arc<Completions>,
    _received: Arc<Completions>,
    _shared: Option<Arc<ReceiveQueue>>,
}

// SAFETY: the library locks by itself (rule 2).
unsafe impl Send for Connection {}
// SAFETY: as above.
unsafe impl Sync for Connection {}

impl Connection {
    /// One that is not connected: `sends` requests under way at most, and `receives` buffers of
    /// its own where it has none of `shared`. `sequence` is the first number of its packets:
    /// a random one keeps those of a former connection from being taken for its.
    pub fn new(
        device: &Device,
        (sent, sends): (&Arc<Completions>, u32),
        (received, receives): (&Arc<Completions>, u32),
        shared: Option<&Arc<ReceiveQueue>>,
        sequence: u32,
    ) -> Result<Self, VerbsError> {
        let most = device.limits().requests;
        let wanted = u64::from(sends.max(receives));
        if wanted > most {
            return Err(VerbsError::TooMany {
                device: device.name().to_owned(),
                what: "requests of a connection under way",
                most,
                wanted,
            });
        }
        let mut attributes = RawQpInitAttr {
            qp_context: std::ptr::null_mut(),
            send_cq: sent.raw(),
            recv_cq: received.raw(),
            srq: shared.map_or(std::ptr::null_mut(), |shared| shared.raw()),
            cap: RawQpCap {
                max_send_wr: sends,
                max_recv_wr: receives,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            qp_type: QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: the domain and the queues live, and are held until the connection has ended.
        let raw = unsafe { (device.library().create_qp)(device.domain(), &raw mut attributes) };
        let raw = NonNull::new(raw).ok_or_else(|| device.failed("make a connection"))?;
        let connection = Connection {
            raw,
            sequence: sequence & ((1 << SEQUENCE_BITS) - 1),
            device: device.clone(),
            _sent: Arc::clone(sent),
            _received: Arc::clone(received),
            _shared: shared.map(Arc::clone),
        };
        let set = RawQpAttr {
            qp_state: STATE_INIT,
            port_num: device.port(),
            qp_access_flags: ACCESS_REMOTE_READ as u32,
            ..RawQpAttr::default()
        };
        let which = mask::STATE | mask::PKEY_INDEX | mask::PORT | mask::ACCESS_FLAGS;
        connection.modify(set, which)?;
        Ok(connection)
    }

    /// Its number, unique among the device's.
    pub fn number(&self) -> u32 {
        // SAFETY: it lives until `drop`.
        unsafe { self.raw.as_ref().qp_num }
    }

    /// This side, for the other one.
    pub fn own(&self) -> Peer {
        Peer {
            number: self.number(),
            sequence: self.sequence,
            gid: self.device.gid(),
            mtu: self.device.mtu(),
        }
    }

    /// Connects it. What the other side sends is received from then on, and this one may send.
    /// A receiver without buffers is waited for without end.
    pub fn connect(&self, peer: Peer, timers: Timers) -> Result<(), VerbsError> {
        let reads = self.device.limits().reads.max(1);
        let [high, low] = [0, 8].map(|at| {
            let mut half = [0; 8];
            half.copy_from_slice(&peer.gid[at..at + 8]);
            u64::from_ne_bytes(half)
        });
        let set = RawQpAttr {
            qp_state: STATE_RTR,
            path_mtu: self.device.mtu().min(peer.mtu) as u32,
            dest_qp_num: peer.number,
            rq_psn: peer.sequence & ((1 << SEQUENCE_BITS) - 1),
            max_dest_rd_atomic: reads,
            min_rnr_timer: timers.no_buffer,
            ah_attr: RawAhAttr {
                dgid: [high, low],
                sgid_index: self.device.gid_index(),
                hop_limit: HOPS_MAX,
                is_global: 1,
                port_num: self.device.port(),
                ..RawAhAttr::default()
            },
            ..RawQpAttr::default()
        };
        let which = mask::STATE
            | mask::AV
            | mask::PATH_MTU
            | mask::DEST_QPN
            | mask::RQ_PSN
            | mask::MAX_DEST_RD_ATOMIC
            | mask::MIN_RNR_TIMER;
        self.modify(set, which)?;
        let set = RawQpAttr {
            qp_state: STATE_RTS,
            sq_psn: self.sequence,
            timeout: timers.acknowledgement,
            retry_cnt: timers.retries,
            rnr_retry: RNR_RETRIES_WITHOUT_END,
            max_rd_atomic: reads,
            ..RawQpAttr::default()
        };
        let which = mask::STATE
            | mask::SQ_PSN
            | mask::TIMEOUT
            | mask::RETRY_CNT
            | mask::RNR_RETRY
            | mask::MAX_QP_RD_ATOMIC;
        self.modify(set, which)
    }

    /// Ends it: nothing is received or acknowledged after this, and what is under way is
    /// flushed. What was received before has its completion, if not yet, soon.
    pub fn close(&self) -> Result<(), VerbsError> {
        let set = RawQpAttr {
            qp_state: STATE_ERR,
            ..RawQpAttr::default()
        };
        self.modify(set, mask::STATE)
    }

    fn modify(&self, mut set: RawQpAttr, which: i32) -> Result<(), VerbsError> {
        // SAFETY: the connection lives, and the attributes are whole.
        let code =
            unsafe { (self.device.library().modify_qp)(self.raw.as_ptr(), &raw mut set, which) };
        self.device
            .done("bring a connection into another state", code)
    }

    /// Sends a part of a region, which is not to be changed before that is done.
    #[inline]
    pub fn send(
        &self,
        id: u64,
        region: &Region,
        part: Range<u64>,
        how: SendFlags,
    ) -> Result<(), VerbsError> {
        let mut flags = 0;
        if how.is_signaled {
            flags |= SEND_SIGNALED;
        }
        if how.wakes {
            flags |= SEND_SOLICITED;
        }
        let opcode = match how.immediate {
            Some(_) => WR_SEND_WITH_IMM,
            None => WR_SEND,
        };
        let immediate = how.immediate.unwrap_or(0);
        self.post(id, (opcode, immediate), flags, region.part(part), (0, 0))
    }

    /// Reads memory of the other side, by its address and key, into a part of a region.
    #[inline]
    pub fn read(
        &self,
        id: u64,
        region: &Region,
        part: Range<u64>,
        from: (u64, u32),
    ) -> Result<(), VerbsError> {
        let read = (WR_RDMA_READ, 0);
        self.post(id, read, SEND_SIGNALED, region.part(part), from)
    }

    /// Writes a part of a region into memory of the other side, by its address and key; with
    /// an immediate word it takes a receive buffer there, too. No side of a [`Connection`]
    /// lets the other one do so.
    pub fn write(
        &self,
        id: u64,
        region: &Region,
        part: Range<u64>,
        to: (u64, u32),
        immediate: Option<u32>,
    ) -> Result<(), VerbsError> {
        let write = match immediate {
            Some(word) => (WR_RDMA_WRITE_WITH_IMM, word),
            None => (WR_RDMA_WRITE, 0),
        };
        self.post(id, write, SEND_SIGNALED, region.part(part), to)
    }

    #[inline]
    fn post(
        &self,
        id: u64,
        (opcode, immediate): (u32, u32),
        send_flags: u32,
        mut part: RawSge,
        (remote_addr, rkey): (u64, u32),
    ) -> Result<(), VerbsError> {
        let mut request = RawSendWr {
            wr_id: id,
            next: std::ptr::null_mut(),
            sg_list: &raw mut part,
            num_sge: 1,
            opcode,
            send_flags,
            imm_data: immediate.to_be(),
            remote_addr,
            rkey,
            _rest_of_wr: [0; 5],
            _qp_type: 0,
            _bind: [0; 6],
        };
        let mut bad = std::ptr::null_mut();
        // SAFETY: the connection lives, and the request, which names a part of a region, is
        // read before the call returns. A device that is given memory whose registration has
        // ended meanwhile fails the request.
        let code = unsafe {
            let post = (*self.raw.as_ref().context).ops.post_send;
            post(self.raw.as_ptr(), &raw mut request, &raw mut bad)
        };
        self.device.done("take a request to send", code)
    }

    /// Gives it a receive buffer of its own.
    #[inline]
    pub fn post_receive(
        &self,
        id: u64,
        region: &Region,
        buffer: Range<u64>,
    ) -> Result<(), VerbsError> {
        let mut part = region.part(buffer);
        let mut request = RawRecvWr {
            wr_id: id,
            next: std::ptr::null_mut(),
            sg_list: &raw mut part,
            num_sge: 1,
        };
        let mut bad = std::ptr::null_mut();
        // SAFETY: as of `post`.
        let code = unsafe {
            let post = (*self.raw.as_ref().context).ops.post_recv;
            post(self.raw.as_ptr(), &raw mut request, &raw mut bad)
        };
        self.device.done("take a receive buffer", code)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // SAFETY: it was made once.
        unsafe { (self.device.library().destroy_qp)(self.raw.as_ptr()) };
    }
}
