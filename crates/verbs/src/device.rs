//! Devices, opened by an address of the host.

use crate::error::VerbsError;
use crate::library::Library;
use crate::raw::{
    GID_TYPE_ROCE_V2, PORT_ACTIVE, RawContext, RawDevice, RawDeviceAttr, RawDomain, RawGidEntry,
    RawPortAttr,
};
use std::ffi::CStr;
use std::io;
use std::mem::{MaybeUninit, size_of};
use std::net::{IpAddr, Ipv6Addr};
use std::ptr::NonNull;
use std::sync::Arc;

/// What one packet holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Mtu {
    /// 256 bytes.
    B256 = 1,
    /// 512 bytes.
    B512,
    /// 1024 bytes.
    B1024,
    /// 2048 bytes.
    B2048,
    /// 4096 bytes.
    B4096,
}

impl Mtu {
    /// By the library's number.
    pub fn of_number(number: u8) -> Option<Self> {
        [Mtu::B256, Mtu::B512, Mtu::B1024, Mtu::B2048, Mtu::B4096]
            .into_iter()
            .find(|mtu| *mtu as u8 == number)
    }

    /// Bytes.
    pub fn payload_len(self) -> usize {
        128 << self as u8
    }
}

/// One device's port at one address, opened, with a protection domain. Clones share it.
#[derive(Clone, Debug)]
pub struct Device {
    opened: Arc<Opened>,
}

#[derive(Debug)]
struct Opened {
    context: Context,
    domain: NonNull<RawDomain>,
    name: String,
    port: u8,
    gid: [u8; 16],
    gid_index: u8,
    mtu: Mtu,
    limits: Limits,
}

// SAFETY: the library locks by itself (rule 2), and what is kept of it here does not change.
unsafe impl Send for Opened {}
// SAFETY: as above.
unsafe impl Sync for Opened {}

/// What a device has of some things.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) completions: u64,
    pub(crate) requests: u64,
    pub(crate) shared_receives: u64,
    /// Reads under way of a connection.
    pub(crate) reads: u8,
}

/// An opened device.
#[derive(Debug)]
struct Context {
    library: &'static Library,
    raw: NonNull<RawContext>,
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: it was opened once, and everything made of it held it.
        unsafe { (self.library.close_device)(self.raw.as_ptr()) };
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // SAFETY: everything made in the domain held this.
        unsafe { (self.context.library.dealloc_pd)(self.domain.as_ptr()) };
    }
}

impl Device {
    /// The device whose port has this address of the host, by RoCE v2.
    pub fn open(address: IpAddr) -> Result<Self, VerbsError> {
        let library = Library::load()?;
        let wanted = gid_of(address);
        let mut found = Vec::new();
        let mut is_any = false;
        for_each(library, |name, raw| {
            is_any = true;
            let context = Context::open(library, raw, name)?;
            let attributes = context.attributes(name)?;
            for port in 1..=attributes.phys_port_cnt {
                let state = context.port(name, port)?;
                for index in 0..state.gid_tbl_len.clamp(0, 256) as u32 {
                    let Some(gid) = context.roce_v2(port, index) else {
                        continue;
                    };
                    if gid != wanted {
                        found.push(format!("{name} at {}", address_of(gid)));
                        continue;
                    }
                    return opened(context, name, port, (gid, index as u8), &state, &attributes)
                        .map(Some);
                }
            }
            Ok(None)
        })?
        .ok_or_else(|| match is_any {
            false => VerbsError::NoDevice,
            true => VerbsError::NoAddress {
                address,
                found: match found.is_empty() {
                    true => "none".to_owned(),
                    false => found.join(", "),
                },
            },
        })
    }

    /// Addresses of this host's devices, by RoCE v2, those of links alone left out.
    pub fn addresses() -> Result<Vec<IpAddr>, VerbsError> {
        let library = Library::load()?;
        let mut addresses = Vec::new();
        for_each(library, |name, raw| {
            let context = Context::open(library, raw, name)?;
            for port in 1..=context.attributes(name)?.phys_port_cnt {
                let count = context.port(name, port)?.gid_tbl_len.clamp(0, 256) as u32;
                let gids = (0..count).filter_map(|index| context.roce_v2(port, index));
                addresses.extend(gids.map(address_of).filter(
                    |address| !matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local()),
                ));
            }
            Ok(None::<()>)
        })?;
        Ok(addresses)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.opened.name
    }

    /// Its address, as connections name it.
    pub fn gid(&self) -> [u8; 16] {
        self.opened.gid
    }

    /// What a packet holds on its link.
    pub fn mtu(&self) -> Mtu {
        self.opened.mtu
    }

    pub(crate) fn library(&self) -> &'static Library {
        self.opened.context.library
    }

    pub(crate) fn context(&self) -> *mut RawContext {
        self.opened.context.raw.as_ptr()
    }

    pub(crate) fn domain(&self) -> *mut RawDomain {
        self.opened.domain.as_ptr()
    }

    pub(crate) fn port(&self) -> u8 {
        self.opened.port
    }

    pub(crate) fn gid_index(&self) -> u8 {
        self.opened.gid_index
    }

    pub(crate) fn limits(&self) -> Limits {
        self.opened.limits
    }

    /// The error of a call that says why by the system's last error.
    pub(crate) fn failed(&self, what: &'static str) -> VerbsError {
        failed(self.name(), what, io::Error::last_os_error())
    }

    /// The error of a call that gives its reason back.
    pub(crate) fn done(&self, what: &'static str, code: i32) -> Result<(), VerbsError> {
        done(self.name(), what, code)
    }
}

fn failed(device: &str, what: &'static str, source: io::Error) -> VerbsError {
    VerbsError::System {
        device: device.to_owned(),
        what,
        source,
    }
}

fn done(device: &str, what: &'static str, code: i32) -> Result<(), VerbsError> {
    match code {
        0 => Ok(()),
        // Some calls give -1 back, and the reason by the system's last error.
        -1 => Err(failed(device, what, io::Error::last_os_error())),
        code => Err(failed(
            device,
            what,
            io::Error::from_raw_os_error(code.abs()),
        )),
    }
}

/// Looks at all devices, until one is the one.
fn for_each<T>(
    library: &'static Library,
    mut look: impl FnMut(&str, *mut RawDevice) -> Result<Option<T>, VerbsError>,
) -> Result<Option<T>, VerbsError> {
    let mut count = 0;
    // SAFETY: room for the count is given.
    let list = unsafe { (library.get_device_list)(&raw mut count) };
    if list.is_null() {
        // Without the kernel's module there is no list, either.
        return Ok(None);
    }
    let mut result = Ok(None);
    for at in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the list has so many entries, and lives until it is freed below.
        let (raw, name) = unsafe {
            let raw = *list.add(at);
            (raw, CStr::from_ptr((library.get_device_name)(raw)))
        };
        result = look(&name.to_string_lossy(), raw);
        if !matches!(result, Ok(None)) {
            break;
        }
    }
    // SAFETY: it was made above. Devices that were opened stay open.
    unsafe { (library.free_device_list)(list) };
    result
}

fn opened(
    context: Context,
    name: &str,
    port: u8,
    (gid, gid_index): ([u8; 16], u8),
    state: &RawPortAttr,
    attributes: &RawDeviceAttr,
) -> Result<Device, VerbsError> {
    let mtu = u8::try_from(state.active_mtu).ok().and_then(Mtu::of_number);
    let (PORT_ACTIVE, Some(mtu)) = (state.state, mtu) else {
        let device = name.to_owned();
        return Err(VerbsError::Down { device });
    };
    // SAFETY: the context is open.
    let domain = unsafe { (context.library.alloc_pd)(context.raw.as_ptr()) };
    let domain = NonNull::new(domain)
        .ok_or_else(|| failed(name, "make a protection domain", io::Error::last_os_error()))?;
    let bound = |most: i32| u64::try_from(most).unwrap_or(0);
    Ok(Device {
        opened: Arc::new(Opened {
            context,
            domain,
            name: name.to_owned(),
            port,
            gid,
            gid_index,
            mtu,
            limits: Limits {
                completions: bound(attributes.max_cqe),
                requests: bound(attributes.max_qp_wr),
                shared_receives: bound(attributes.max_srq.min(1) * attributes.max_srq_wr),
                reads: attributes.max_qp_rd_atom.clamp(0, 16) as u8,
            },
        }),
    })
}

impl Context {
    fn open(
        library: &'static Library,
        device: *mut RawDevice,
        name: &str,
    ) -> Result<Self, VerbsError> {
        // SAFETY: a device of a list that is not freed yet.
        let raw = unsafe { (library.open_device)(device) };
        let raw = NonNull::new(raw)
            .ok_or_else(|| failed(name, "be opened", io::Error::last_os_error()))?;
        Ok(Context { library, raw })
    }

    fn attributes(&self, name: &str) -> Result<RawDeviceAttr, VerbsError> {
        let mut attributes = MaybeUninit::<RawDeviceAttr>::zeroed();
        // SAFETY: the context is open, and there is room for the answer.
        let code =
            unsafe { (self.library.query_device)(self.raw.as_ptr(), attributes.as_mut_ptr()) };
        done(name, "say what it has", code)?;
        // SAFETY: numbers, all of them written, or zero.
        Ok(unsafe { attributes.assume_init() })
    }

    fn port(&self, name: &str, port: u8) -> Result<RawPortAttr, VerbsError> {
        let mut state = MaybeUninit::<RawPortAttr>::zeroed();
        // SAFETY: the context is open. The function writes all of the structure but its last
        // field, which came later.
        let code =
            unsafe { (self.library.query_port)(self.raw.as_ptr(), port, state.as_mut_ptr()) };
        done(name, "say how its port is", code)?;
        // SAFETY: numbers, written or zero.
        Ok(unsafe { state.assume_init() })
    }

    /// An address of the port, if it is one of RoCE v2.
    fn roce_v2(&self, port: u8, index: u32) -> Option<[u8; 16]> {
        let mut entry = MaybeUninit::<RawGidEntry>::zeroed();
        let len = size_of::<RawGidEntry>();
        let port = port.into();
        // SAFETY: the context is open, and there is room of that length for the answer.
        let code = unsafe {
            (self.library.query_gid)(self.raw.as_ptr(), port, index, entry.as_mut_ptr(), 0, len)
        };
        // SAFETY: numbers, written or zero.
        let entry = unsafe { entry.assume_init() };
        let is_one = code == 0 && entry.gid_type == GID_TYPE_ROCE_V2 && entry.gid != [0; 2];
        let [high, low] = entry.gid.map(u64::to_ne_bytes);
        is_one.then(|| {
            let mut gid = [0; 16];
            gid[..8].copy_from_slice(&high);
            gid[8..].copy_from_slice(&low);
            gid
        })
    }
}

/// RoCE v2 names ports by their IP addresses.
fn gid_of(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

fn address_of(gid: [u8; 16]) -> IpAddr {
    Ipv6Addr::from(gid).to_canonical()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_gids() {
        for words in ["10.77.0.1", "fd00::7"] {
            let address: IpAddr = words.parse().expect("an address");
            assert_eq!(address_of(gid_of(address)), address);
        }
        assert_eq!(
            gid_of("10.77.0.1".parse().expect("an address"))[10..],
            [255, 255, 10, 77, 0, 1]
        );
    }

    #[test]
    fn packets_have_their_lengths() {
        let lens: Vec<_> = (0..7)
            .map(|n| Mtu::of_number(n).map(Mtu::payload_len))
            .collect();
        assert_eq!(
            lens,
            [
                None,
                Some(256),
                Some(512),
                Some(1024),
                Some(2048),
                Some(4096),
                None
            ]
        );
    }
}
