//! The library's structures, as far as they are used, in the layout of its ABI 1.

use libc::{c_char, c_int, c_uint, c_void};

/// Objects of the library of which only the address is known here.
macro_rules! opaque {
    ($($name:ident),*) => {$(
        #[repr(C)]
        #[derive(Debug)]
        pub(crate) struct $name {
            _private: [u8; 0],
        }
    )*};
}
opaque!(RawDevice, RawDomain);

/// A function that is not called here.
type Unused = *const c_void;

/// `struct ibv_context`; what follows the operations is not used.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct RawContext {
    pub(crate) device: *mut RawDevice,
    pub(crate) ops: RawOps,
}

/// `struct ibv_context_ops`: what is called without a function of the library between.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct RawOps {
    _before_poll: [Unused; 11],
    pub(crate) poll_cq: unsafe extern "C" fn(*mut RawCq, c_int, *mut RawWc) -> c_int,
    pub(crate) req_notify_cq: unsafe extern "C" fn(*mut RawCq, c_int) -> c_int,
    _before_srq: [Unused; 7],
    pub(crate) post_srq_recv:
        unsafe extern "C" fn(*mut RawSrq, *mut RawRecvWr, *mut *mut RawRecvWr) -> c_int,
    _before_send: [Unused; 4],
    pub(crate) post_send:
        unsafe extern "C" fn(*mut RawQp, *mut RawSendWr, *mut *mut RawSendWr) -> c_int,
    pub(crate) post_recv:
        unsafe extern "C" fn(*mut RawQp, *mut RawRecvWr, *mut *mut RawRecvWr) -> c_int,
}

/// `struct ibv_comp_channel`, its beginning.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct RawChannel {
    _context: *mut RawContext,
    pub(crate) fd: c_int,
}

/// `struct ibv_cq`, its beginning.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct RawCq {
    pub(crate) context: *mut RawContext,
}

/// `struct ibv_srq`, its beginning.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct RawSrq {
    pub(crate) context: *mut RawContext,
}

/// `struct ibv_qp`, its beginning.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct RawQp {
    pub(crate) context: *mut RawContext,
    _qp_context: *mut c_void,
    _pd: *mut RawDomain,
    _send_cq: *mut RawCq,
    _recv_cq: *mut RawCq,
    _srq: *mut RawSrq,
    _handle: u32,
    pub(crate) qp_num: u32,
}

/// `struct ibv_mr`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct RawMr {
    _context: *mut RawContext,
    _pd: *mut RawDomain,
    _addr: *mut c_void,
    _length: usize,
    _handle: u32,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
}

/// `struct ibv_device_attr`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct RawDeviceAttr {
    _fw_ver: [c_char; 64],
    _guids: [u64; 2],
    _max_mr_size: u64,
    _page_size_cap: u64,
    _vendor: [u32; 3],
    _max_qp: c_int,
    pub(crate) max_qp_wr: c_int,
    _device_cap_flags: c_uint,
    _max_sge: [c_int; 2],
    _max_cq: c_int,
    pub(crate) max_cqe: c_int,
    _max_mr: c_int,
    _max_pd: c_int,
    pub(crate) max_qp_rd_atom: c_int,
    _between: [c_int; 16],
    pub(crate) max_srq: c_int,
    pub(crate) max_srq_wr: c_int,
    _max_srq_sge: c_int,
    _max_pkeys: u16,
    _local_ca_ack_delay: u8,
    pub(crate) phys_port_cnt: u8,
}

/// `struct ibv_port_attr`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct RawPortAttr {
    pub(crate) state: c_uint,
    _max_mtu: c_uint,
    pub(crate) active_mtu: c_uint,
    pub(crate) gid_tbl_len: c_int,
    _between: [u32; 4],
    _lids: [u16; 3],
    _bytes: [u8; 10],
    _port_cap_flags2: u16,
}

/// `struct ibv_gid_entry`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct RawGidEntry {
    pub(crate) gid: [u64; 2],
    pub(crate) gid_index: u32,
    pub(crate) port_num: u32,
    pub(crate) gid_type: u32,
    _ndev_ifindex: u32,
}

/// `struct ibv_sge`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct RawSge {
    pub(crate) addr: u64,
    pub(crate) length: u32,
    pub(crate) lkey: u32,
}

/// `struct ibv_recv_wr`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct RawRecvWr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut RawRecvWr,
    pub(crate) sg_list: *mut RawSge,
    pub(crate) num_sge: c_int,
}

/// `struct ibv_send_wr`, with the memory of the other side that a read names.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct RawSendWr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut RawSendWr,
    pub(crate) sg_list: *mut RawSge,
    pub(crate) num_sge: c_int,
    pub(crate) opcode: c_uint,
    pub(crate) send_flags: c_uint,
    pub(crate) imm_data: u32,
    pub(crate) remote_addr: u64,
    pub(crate) rkey: u32,
    pub(crate) _rest_of_wr: [u32; 5],
    pub(crate) _qp_type: u64,
    pub(crate) _bind: [u64; 6],
}

/// `struct ibv_wc`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawWc {
    pub(crate) wr_id: u64,
    pub(crate) status: c_uint,
    pub(crate) opcode: c_uint,
    pub(crate) vendor_err: u32,
    pub(crate) byte_len: u32,
    _imm_data: u32,
    pub(crate) qp_num: u32,
    _src_qp: u32,
    _wc_flags: c_uint,
    _rest: [u16; 3],
}

/// `struct ibv_srq_init_attr`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct RawSrqInitAttr {
    pub(crate) srq_context: *mut c_void,
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
    pub(crate) srq_limit: u32,
}

/// `struct ibv_qp_cap`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RawQpCap {
    pub(crate) max_send_wr: u32,
    pub(crate) max_recv_wr: u32,
    pub(crate) max_send_sge: u32,
    pub(crate) max_recv_sge: u32,
    pub(crate) max_inline_data: u32,
}

/// `struct ibv_qp_init_attr`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct RawQpInitAttr {
    pub(crate) qp_context: *mut c_void,
    pub(crate) send_cq: *mut RawCq,
    pub(crate) recv_cq: *mut RawCq,
    pub(crate) srq: *mut RawSrq,
    pub(crate) cap: RawQpCap,
    pub(crate) qp_type: c_uint,
    pub(crate) sq_sig_all: c_int,
}

/// `struct ibv_ah_attr`, with the route in it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RawAhAttr {
    pub(crate) dgid: [u64; 2],
    pub(crate) flow_label: u32,
    pub(crate) sgid_index: u8,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
    pub(crate) dlid: u16,
    pub(crate) sl: u8,
    pub(crate) src_path_bits: u8,
    pub(crate) static_rate: u8,
    pub(crate) is_global: u8,
    pub(crate) port_num: u8,
}

/// `struct ibv_qp_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RawQpAttr {
    pub(crate) qp_state: c_uint,
    pub(crate) cur_qp_state: c_uint,
    pub(crate) path_mtu: c_uint,
    pub(crate) path_mig_state: c_uint,
    pub(crate) qkey: u32,
    pub(crate) rq_psn: u32,
    pub(crate) sq_psn: u32,
    pub(crate) dest_qp_num: u32,
    pub(crate) qp_access_flags: c_uint,
    pub(crate) cap: RawQpCap,
    pub(crate) ah_attr: RawAhAttr,
    pub(crate) alt_ah_attr: RawAhAttr,
    pub(crate) pkey_index: u16,
    pub(crate) alt_pkey_index: u16,
    pub(crate) en_sqd_async_notify: u8,
    pub(crate) sq_draining: u8,
    pub(crate) max_rd_atomic: u8,
    pub(crate) max_dest_rd_atomic: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) port_num: u8,
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) alt_port_num: u8,
    pub(crate) alt_timeout: u8,
    pub(crate) rate_limit: u32,
}

pub(crate) const PORT_ACTIVE: c_uint = 4;
pub(crate) const GID_TYPE_ROCE_V2: u32 = 2;
pub(crate) const ACCESS_LOCAL_WRITE: c_int = 1;
pub(crate) const ACCESS_REMOTE_READ: c_int = 1 << 2;
pub(crate) const QPT_RC: c_uint = 2;
pub(crate) const STATE_INIT: c_uint = 1;
pub(crate) const STATE_RTR: c_uint = 2;
pub(crate) const STATE_RTS: c_uint = 3;
pub(crate) const STATE_ERR: c_uint = 6;
pub(crate) const WR_RDMA_WRITE: c_uint = 0;
pub(crate) const WR_RDMA_WRITE_WITH_IMM: c_uint = 1;
pub(crate) const WR_SEND: c_uint = 2;
pub(crate) const WR_SEND_WITH_IMM: c_uint = 3;
pub(crate) const WR_RDMA_READ: c_uint = 4;
pub(crate) const SEND_SIGNALED: c_uint = 1 << 1;
pub(crate) const SEND_SOLICITED: c_uint = 1 << 2;
pub(crate) const WC_SUCCESS: c_uint = 0;
pub(crate) const WC_FLUSHED: c_uint = 5;
pub(crate) const WC_RECV: c_uint = 1 << 7;

/// `enum ibv_qp_attr_mask`.
pub(crate) mod mask {
    use libc::c_int;
    pub(crate) const STATE: c_int = 1;
    pub(crate) const ACCESS_FLAGS: c_int = 1 << 3;
    pub(crate) const PKEY_INDEX: c_int = 1 << 4;
    pub(crate) const PORT: c_int = 1 << 5;
    pub(crate) const AV: c_int = 1 << 7;
    pub(crate) const PATH_MTU: c_int = 1 << 8;
    pub(crate) const TIMEOUT: c_int = 1 << 9;
    pub(crate) const RETRY_CNT: c_int = 1 << 10;
    pub(crate) const RNR_RETRY: c_int = 1 << 11;
    pub(crate) const RQ_PSN: c_int = 1 << 12;
    pub(crate) const MAX_QP_RD_ATOMIC: c_int = 1 << 13;
    pub(crate) const MIN_RNR_TIMER: c_int = 1 << 15;
    pub(crate) const SQ_PSN: c_int = 1 << 16;
    pub(crate) const MAX_DEST_RD_ATOMIC: c_int = 1 << 17;
    pub(crate) const DEST_QPN: c_int = 1 << 20;
}

// As a C compiler lays out Debian's `infiniband/verbs.h` (rdma-core 44).
const _: () = {
    use std::mem::{offset_of, size_of};
    assert!(size_of::<usize>() == 8);
    assert!(offset_of!(RawContext, ops) == 8);
    assert!(offset_of!(RawOps, poll_cq) == 88 && offset_of!(RawOps, req_notify_cq) == 96);
    assert!(offset_of!(RawOps, post_srq_recv) == 160);
    assert!(offset_of!(RawOps, post_send) == 200 && offset_of!(RawOps, post_recv) == 208);
    assert!(offset_of!(RawChannel, fd) == 8);
    assert!(offset_of!(RawQp, qp_num) == 52);
    assert!(offset_of!(RawMr, lkey) == 36 && offset_of!(RawMr, rkey) == 40);
    assert!(size_of::<RawMr>() == 48);
    assert!(size_of::<RawDeviceAttr>() == 232);
    assert!(offset_of!(RawDeviceAttr, max_qp_wr) == 112);
    assert!(offset_of!(RawDeviceAttr, max_cqe) == 132);
    assert!(offset_of!(RawDeviceAttr, max_qp_rd_atom) == 144);
    assert!(offset_of!(RawDeviceAttr, max_srq) == 212);
    assert!(offset_of!(RawDeviceAttr, phys_port_cnt) == 227);
    assert!(size_of::<RawPortAttr>() == 52 && offset_of!(RawPortAttr, active_mtu) == 8);
    assert!(offset_of!(RawPortAttr, gid_tbl_len) == 12);
    assert!(size_of::<RawGidEntry>() == 32 && offset_of!(RawGidEntry, gid_type) == 24);
    assert!(size_of::<RawSge>() == 16);
    assert!(size_of::<RawRecvWr>() == 32);
    assert!(size_of::<RawSendWr>() == 128 && offset_of!(RawSendWr, remote_addr) == 40);
    assert!(offset_of!(RawSendWr, rkey) == 48 && offset_of!(RawSendWr, _qp_type) == 72);
    assert!(size_of::<RawWc>() == 48 && offset_of!(RawWc, qp_num) == 28);
    assert!(size_of::<RawSrqInitAttr>() == 24);
    assert!(size_of::<RawQpInitAttr>() == 64 && offset_of!(RawQpInitAttr, qp_type) == 52);
    assert!(size_of::<RawAhAttr>() == 32 && offset_of!(RawAhAttr, dlid) == 24);
    assert!(size_of::<RawQpAttr>() == 144 && offset_of!(RawQpAttr, ah_attr) == 56);
    assert!(offset_of!(RawQpAttr, pkey_index) == 120 && offset_of!(RawQpAttr, rate_limit) == 136);
};
