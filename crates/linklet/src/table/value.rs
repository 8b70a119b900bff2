//! Where the value of an entry is: in memory, on disk, or both.

use crate::spill::Record;
use std::sync::Arc;

/// Bytes of memory of a place on disk.
pub(super) const RECORD_BYTES: u64 = (size_of::<Record>() + 16) as u64;

/// See the page of this module. At least one of the two is there.
#[derive(Debug)]
pub(crate) struct Value<V> {
    here: Option<Arc<V>>,
    /// Written before, and not changed since: to be spilled again it needs no writing.
    there: Option<Arc<Record>>,
}

/// A value as it is found.
#[derive(Debug)]
pub(crate) enum Found<V> {
    Here(Arc<V>),
    /// It has to be read from disk.
    There(Arc<Record>),
}

impl<V> Clone for Found<V> {
    fn clone(&self) -> Self {
        match self {
            Found::Here(value) => Found::Here(Arc::clone(value)),
            Found::There(record) => Found::There(Arc::clone(record)),
        }
    }
}

/// A value that was read from disk.
#[derive(Debug)]
pub(crate) struct Brought<V> {
    pub(crate) record: Arc<Record>,
    pub(crate) value: Arc<V>,
}

impl<V> Clone for Brought<V> {
    fn clone(&self) -> Self {
        Brought {
            record: Arc::clone(&self.record),
            value: Arc::clone(&self.value),
        }
    }
}

impl<V> Value<V> {
    pub(super) fn new(value: Arc<V>) -> Self {
        Value {
            here: Some(value),
            there: None,
        }
    }

    /// The value, if it is in memory.
    #[inline]
    pub(crate) fn here(&self) -> Option<&Arc<V>> {
        self.here.as_ref()
    }

    /// Where it is, if that is on disk alone.
    pub(crate) fn away(&self) -> Option<&Arc<Record>> {
        match &self.here {
            None => self.there.as_ref(),
            Some(_) => None,
        }
    }

    /// Where it is on disk, also if it is in memory.
    pub(crate) fn record(&self) -> Option<&Arc<Record>> {
        self.there.as_ref()
    }

    pub(crate) fn found(&self) -> Found<V> {
        match (&self.here, &self.there) {
            (Some(value), _) => Found::Here(Arc::clone(value)),
            (None, Some(record)) => Found::There(Arc::clone(record)),
            (None, None) => unreachable!("a value is somewhere"),
        }
    }

    /// The value in memory, or the one that was brought if it is still this one; otherwise
    /// where it has to be read.
    pub(crate) fn look<'a>(
        &'a self,
        brought: Option<&'a Brought<V>>,
    ) -> Result<&'a Arc<V>, Arc<Record>> {
        match (&self.here, &self.there) {
            (Some(value), _) => Ok(value),
            (None, Some(record)) => brought
                .filter(|brought| Arc::ptr_eq(&brought.record, record))
                .map(|brought| &brought.value)
                .ok_or_else(|| Arc::clone(record)),
            (None, None) => unreachable!("a value is somewhere"),
        }
    }

    /// The value, to be changed: what is on disk of it is that no more.
    pub(crate) fn make_mut(&mut self) -> &mut V
    where
        V: Clone,
    {
        self.there = None;
        // Whoever changes a value has seen to it that it is here.
        Arc::make_mut(self.here.as_mut().expect("the value is in memory"))
    }

    /// From now on it is on disk alone; what was in memory.
    pub(super) fn send_away(&mut self, record: Arc<Record>) -> Option<Arc<V>> {
        record.set_live(true);
        self.there = Some(record);
        self.here.take()
    }

    /// It is in memory again, and on disk.
    pub(super) fn bring_back(&mut self, value: Arc<V>) {
        if let Some(record) = &self.there {
            record.set_live(false);
        }
        self.here = Some(value);
    }

    /// It is elsewhere on disk.
    pub(super) fn relocate(&mut self, record: Arc<Record>) {
        record.set_live(self.here.is_none());
        self.there = Some(record);
    }

    /// Forgets where it is on disk, if it is in memory.
    pub(super) fn strip(&mut self) -> Option<Arc<Record>> {
        match &self.here {
            Some(_) => self.there.take(),
            None => None,
        }
    }
}
