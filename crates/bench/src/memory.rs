//! Memory that an item costs beyond its key and value: what the whole process
//! has grown by, shared regions included, divided by the items.

use std::path::Path;

use serde::Serialize;
use trefoil_client::{Cell, Options};

use crate::compare::CompareError;
use crate::load::{
    RequestSource as _, RunShared, SyntheticOptions, SyntheticSource, ValueLen, preload,
};
use crate::peer::{Memcached, PeerKind, PeerOptions, PeerProcess, Redis, Waiting};
use crate::server::{Server, ServerOptions};
use crate::target::Target;
use crate::target::trefoil::Trefoil;

/// What to store.
#[derive(Debug, Clone, Copy)]
pub struct MemoryOptions {
    /// How many items.
    pub items: u64,
    /// Bytes of a key.
    pub key_len: usize,
    /// Bytes of a value.
    pub value_len: usize,
    /// Beside whom.
    pub peer: PeerKind,
}

/// One system's memory.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct MemoryFigures {
    /// Resident bytes of the empty process.
    pub resident_before_bytes: u64,
    /// Resident bytes with all items.
    pub resident_after_bytes: u64,
    /// Growth per item, less key and value.
    pub overhead_bytes_per_item: f64,
}

/// What `trefoil bench memory --json` prints; `memcached` stands for the peer.
#[derive(Debug, Clone, Serialize)]
pub struct MemoryReport {
    /// How many items.
    pub items: u64,
    /// Bytes of a key.
    pub key_size: usize,
    /// Bytes of a value.
    pub value_size: usize,
    /// One copy.
    pub trefoil: MemoryFigures,
    /// The peer.
    pub memcached: MemoryFigures,
    /// Its name and version.
    pub peer: String,
    /// Trefoil's overhead by the peer's.
    pub ratio: f64,
}

/// Fills both and looks at their processes.
pub fn measure_memory(
    program: &Path,
    options: MemoryOptions,
    progress: &mut dyn FnMut(&str),
) -> Result<MemoryReport, CompareError> {
    if options.items == 0 {
        return Err(CompareError::Options("give at least one item".to_owned()));
    }
    let room =
        options.items * (options.key_len + options.value_len + 200) as u64 * 3 / 2 + (128 << 20);
    progress("filling Trefoil");
    let trefoil = {
        let server = Server::start(&ServerOptions::new(program, "R=1", room))?;
        let cell = Cell::connect(&server.address)?;
        let mut target = Trefoil::new(cell.client(Options::default()));
        let before = server.memory()?.rss;
        fill(&mut target, options)?;
        server.settle()?;
        figures(before, server.memory()?.rss, options)
    };
    progress("filling the peer");
    let (memcached, peer) = {
        let peer = PeerProcess::start(PeerOptions::new(options.peer, room >> 20))?;
        let before = peer.memory()?.rss;
        match options.peer {
            PeerKind::Memcached => {
                fill(
                    &mut Memcached::connect(peer.endpoint(), Waiting::Blocking)?,
                    options,
                )?;
            }
            PeerKind::Redis | PeerKind::Valkey => fill(
                &mut Redis::connect(peer.endpoint(), Waiting::Blocking)?,
                options,
            )?,
        }
        (figures(before, peer.memory()?.rss, options), peer.label())
    };
    Ok(MemoryReport {
        items: options.items,
        key_size: options.key_len,
        value_size: options.value_len,
        ratio: trefoil.overhead_bytes_per_item / memcached.overhead_bytes_per_item,
        trefoil,
        memcached,
        peer,
    })
}

fn fill<T: Target>(target: &mut T, options: MemoryOptions) -> Result<(), CompareError> {
    let source = SyntheticSource::new(SyntheticOptions {
        keys_count: options.items,
        key_len: options.key_len,
        ..SyntheticOptions::default()
    })?;
    let len = ValueLen::Fixed(options.value_len);
    preload(
        target,
        source.codec(),
        0..options.items,
        len,
        &RunShared::reading(),
        &mut |_| {},
    )?;
    Ok(())
}

fn figures(before: u64, after: u64, options: MemoryOptions) -> MemoryFigures {
    let grown = after.saturating_sub(before) as f64 / options.items as f64;
    MemoryFigures {
        resident_before_bytes: before,
        resident_after_bytes: after,
        overhead_bytes_per_item: grown - (options.key_len + options.value_len) as f64,
    }
}
