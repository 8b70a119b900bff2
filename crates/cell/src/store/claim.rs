//! The right to be one backend of a cell.

use super::ConfigStoreError;
use std::fmt::Debug;

/// The right to be one backend of a cell, for as long as this lives.
#[derive(Debug)]
pub struct BackendLock {
    number: u32,
    claim: Box<dyn Claim>,
}

/// What a store gives to whoever becomes a backend; dropped, it takes that back.
pub(super) trait Claim: Debug + Send + Sync {
    /// See [`BackendLock::begin_incarnation`].
    fn begin_incarnation(&self, number: u32, life: u64) -> Result<u32, ConfigStoreError>;

    /// See [`BackendLock::usurper`].
    fn usurper(&self) -> Option<String> {
        None
    }
}

impl BackendLock {
    pub(super) fn new(number: u32, claim: impl Claim + 'static) -> Self {
        BackendLock {
            number,
            claim: Box::new(claim),
        }
    }

    /// Which backend.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Begins an incarnation of this backend in a life of the cell and returns
    /// its number, from 1. Only the first begins with nothing lost: a later one
    /// has forgotten what its predecessor acknowledged.
    pub fn begin_incarnation(&self, life: u64) -> Result<u32, ConfigStoreError> {
        self.claim.begin_incarnation(self.number, life)
    }

    /// Of a store with leases: that another process is registered as this backend, and what
    /// to do. It may be so when this one could not say for the time of a lease that it lives.
    pub fn usurper(&self) -> Option<String> {
        self.claim.usurper()
    }
}

/// A backend that somebody is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claimed {
    /// Which.
    pub number: u32,
    /// Its process, if that is known. It may be one of another host.
    pub process: Option<u32>,
}
