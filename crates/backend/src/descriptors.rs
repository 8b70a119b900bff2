//! The soft limit of file descriptors: every client and connection is one or two of
//! them, and the usual limit of 1,024 is far too low.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What a server's own work takes: a thousand clients with message rings, some
/// thousands of connections to the RPC service, memory objects.
pub(crate) const SERVER_DESCRIPTORS: u64 = 16 << 10;

/// Raises the soft limit of this process to `wanted`, or as far as the hard limit
/// allows. The limit that is in force, if that is less.
pub fn raise_descriptor_limit(wanted: u64) -> Result<(), u64> {
    let limit = getrlimit(Resource::Nofile);
    let Some(current) = limit.current.filter(|current| *current < wanted) else {
        return Ok(());
    };
    let raised = limit.maximum.map_or(wanted, |maximum| maximum.min(wanted));
    let new = Rlimit {
        current: Some(raised.max(current)),
        maximum: limit.maximum,
    };
    let in_force = match setrlimit(Resource::Nofile, new) {
        Ok(()) => raised,
        Err(_) => current,
    };
    match in_force < wanted {
        true => Err(in_force),
        false => Ok(()),
    }
}
