//! A simulated disk behind a cache. A power cut leaves of each sector that was not flushed
//! the old bytes, the new ones, or some of both. A flush that fails leaves the cache as it
//! is, and nobody writes it later: as Linux does. A write that fails has written some of its
//! sectors. The process may die at any access, and any kind of access may fail.

use super::dice::Dice;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::rc::Rc;
use trefoil_journal::JournalError;
use trefoil_journal::disk::{BLOCK_LEN, Disk};

const SECTOR_LEN: usize = 512;
const SECTORS: usize = BLOCK_LEN / SECTOR_LEN;

type Block = Box<[u8; BLOCK_LEN]>;

#[derive(Debug)]
struct Inner {
    count: u64,
    persistent: BTreeMap<u64, Block>,
    cache: BTreeMap<u64, Block>,
    /// Block and sector of what was written and not flushed.
    dirty: BTreeSet<(u64, usize)>,
    dice: Dice,
    /// Accesses until the process dies.
    left: Option<u64>,
    is_dead: bool,
    fails: bool,
    writes: u64,
    reads_failed: u64,
    laps: u64,
    last_block: u64,
}

/// Clones are the same disk.
#[derive(Clone, Debug)]
pub(crate) struct SimDisk(Rc<RefCell<Inner>>);

fn zeroed() -> Block {
    Box::new([0; BLOCK_LEN])
}

impl Inner {
    /// Whether the process dies at this access.
    fn dies(&mut self) -> bool {
        if let Some(left) = &mut self.left {
            *left = left.saturating_sub(1);
            self.is_dead |= *left == 0;
        }
        self.is_dead
    }

    fn write_sectors(&mut self, block: u64, bytes: &[u8], count: usize) {
        for (at, sector) in bytes.chunks_exact(SECTOR_LEN).enumerate().take(count) {
            let (block, sector_at) = (block + (at / SECTORS) as u64, at % SECTORS);
            let old = self.cache.get(&block).or(self.persistent.get(&block));
            let mut new = old.cloned().unwrap_or_else(zeroed);
            new[sector_at * SECTOR_LEN..][..SECTOR_LEN].copy_from_slice(sector);
            self.cache.insert(block, new);
            self.dirty.insert((block, sector_at));
        }
    }

    fn persist(&mut self, (block, sector): (u64, usize), len: usize) {
        let Some(cached) = self.cache.get(&block) else {
            return;
        };
        let first = sector * SECTOR_LEN;
        let new = &cached[first..][..len];
        let into = self.persistent.entry(block).or_insert_with(zeroed);
        into[first..][..len].copy_from_slice(new);
    }
}

fn dead() -> io::Error {
    io::Error::other("the process is dead")
}

impl SimDisk {
    pub(crate) fn new(count: u64, dice: Dice) -> Self {
        SimDisk(Rc::new(RefCell::new(Inner {
            count,
            persistent: BTreeMap::new(),
            cache: BTreeMap::new(),
            dirty: BTreeSet::new(),
            dice,
            left: None,
            is_dead: false,
            fails: false,
            writes: 0,
            reads_failed: 0,
            laps: 0,
            last_block: 0,
        })))
    }

    /// The process dies after so many accesses.
    pub(crate) fn crash_soon(&self, accesses: u64) {
        self.0.borrow_mut().left = Some(accesses);
    }

    /// From now on some accesses fail.
    pub(crate) fn fail_sometimes(&self, fails: bool) {
        self.0.borrow_mut().fails = fails;
    }

    pub(crate) fn is_up(&self) -> bool {
        !self.0.borrow().is_dead
    }

    pub(crate) fn writes(&self) -> u64 {
        self.0.borrow().writes
    }

    /// Reads that failed, or amid which the process died.
    pub(crate) fn reads_failed(&self) -> u64 {
        self.0.borrow().reads_failed
    }

    pub(crate) fn laps(&self) -> u64 {
        self.0.borrow().laps
    }

    /// The process is started again, undisturbed.
    pub(crate) fn calm(&self) {
        let mut inner = self.0.borrow_mut();
        inner.left = None;
        inner.is_dead = false;
        inner.fails = false;
        inner.writes = 0;
    }

    /// What is not flushed is lost, kept, or torn.
    pub(crate) fn cut_power(&self) {
        let mut inner = self.0.borrow_mut();
        for at in std::mem::take(&mut inner.dirty) {
            let len = match inner.dice.below(5) {
                0 | 1 => 0,
                2 => match inner.dice.once_in(2) {
                    true => inner.dice.below(SECTOR_LEN as u64) as usize,
                    false => inner.dice.below(96) as usize,
                },
                _ => SECTOR_LEN,
            };
            inner.persist(at, len);
        }
        inner.cache.clear();
        drop(inner);
        self.calm();
    }

    /// Something else that the process does may be its last, too.
    pub(crate) fn step_of_another(&self) -> Result<(), JournalError> {
        match self.0.borrow_mut().dies() {
            true => Err(JournalError::Failed {
                name: String::new(),
            }),
            false => Ok(()),
        }
    }
}

impl Disk for SimDisk {
    fn name(&self) -> String {
        "simulated".into()
    }

    fn block_count(&mut self) -> io::Result<u64> {
        Ok(self.0.borrow().count)
    }

    fn read(&mut self, block: u64, into: &mut [u8]) -> io::Result<()> {
        let mut inner = self.0.borrow_mut();
        if inner.is_dead || inner.dies() {
            inner.reads_failed += 1;
            return Err(dead());
        }
        if inner.fails && inner.dice.once_in(60) {
            inner.reads_failed += 1;
            return Err(io::Error::from_raw_os_error(5));
        }
        for (at, bytes) in into.chunks_exact_mut(BLOCK_LEN).enumerate() {
            let block = block + at as u64;
            assert!(block < inner.count, "within the disk");
            match inner.cache.get(&block).or(inner.persistent.get(&block)) {
                Some(found) => bytes.copy_from_slice(&found[..]),
                None => bytes.fill(0),
            }
        }
        Ok(())
    }

    fn write(&mut self, block: u64, bytes: &[u8]) -> io::Result<()> {
        let mut inner = self.0.borrow_mut();
        let sectors = bytes.len() / SECTOR_LEN;
        assert!(block + (sectors / SECTORS) as u64 <= inner.count);
        if inner.is_dead {
            return Err(dead());
        }
        if inner.dies() {
            let part = inner.dice.below(sectors as u64 + 1) as usize;
            inner.write_sectors(block, bytes, part);
            return Err(dead());
        }
        if inner.fails && inner.dice.once_in(40) {
            let part = inner.dice.below(sectors as u64) as usize;
            inner.write_sectors(block, bytes, part);
            return Err(io::Error::from_raw_os_error(28));
        }
        inner.write_sectors(block, bytes, sectors);
        inner.writes += 1;
        if block > 1 {
            inner.laps += u64::from(block < inner.last_block);
            inner.last_block = block;
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        let mut inner = self.0.borrow_mut();
        if inner.is_dead || inner.dies() {
            return Err(dead());
        }
        let fails = inner.fails && inner.dice.once_in(20);
        for at in std::mem::take(&mut inner.dirty) {
            if !fails || inner.dice.once_in(2) {
                inner.persist(at, SECTOR_LEN);
            }
        }
        match fails {
            true => Err(io::Error::from_raw_os_error(5)),
            false => Ok(()),
        }
    }
}
