//! RocksDB behind a queue.
//!
//! Behind a durable queue RocksDB's own log is off: the journal has everything that is not
//! in RocksDB's files. Each request's effect and its position are one batch, and a batch
//! goes to one of RocksDB's parts of memory as a whole; these become files in their order.
//! So whatever files there are after a crash hold the effects up to some position, and that
//! position.
//!
//! Behind a queue without a journal, RocksDB's log is written and not flushed: what was
//! executed survives the process, and not a power cut.
//!
//! Keys: `k` and the client's key; `p` is the position.

use crate::request::{Request, Status};
use crate::table::{self, Table, put_answer};
use std::path::Path;
use trefoil_ordered::{Answer, DurableService, Service};
use trefoil_rocksdb::{Batch, Db, DbError, DbOptions, Library, LibraryError, Wal};

/// Whose journal a file is.
pub const QUEUE: u64 = u64::from_le_bytes(*b"tfqrocks");
const KEY_FIRST: u8 = b'k';
const KEY_POSITION: &[u8] = b"p";

/// Why there is no RocksDB.
#[derive(Debug, thiserror::Error)]
pub enum RocksError {
    /// The library.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// The database.
    #[error(transparent)]
    Db(#[from] DbError),
    /// The database is not a queue's.
    #[error("the database's position is no number: it is not that of a queue")]
    Foreign,
}

#[derive(Debug)]
struct Values {
    db: Db,
    /// What the present request writes.
    batch: Batch,
    has_effect: bool,
    key: Vec<u8>,
}

impl Values {
    fn spell(&mut self, key: &[u8]) {
        self.key.clear();
        self.key.push(KEY_FIRST);
        self.key.extend_from_slice(key);
    }
}

impl Table for Values {
    type Error = DbError;

    fn get(&mut self, key: &[u8], into: &mut Vec<u8>) -> Result<bool, DbError> {
        self.spell(key);
        self.db.get(&self.key, into)
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), DbError> {
        self.spell(key);
        self.batch.put(&self.key, value);
        self.has_effect = true;
        Ok(())
    }

    fn erase(&mut self, key: &[u8]) -> Result<(), DbError> {
        self.spell(key);
        self.batch.delete(&self.key);
        self.has_effect = true;
        Ok(())
    }
}

/// The service.
#[derive(Debug)]
pub struct Rocks {
    values: Values,
    scratch: Vec<u8>,
    is_durable: bool,
    persistent: u64,
    /// Up to where RocksDB writes files meanwhile.
    flushing: Option<u64>,
    /// RocksDB's failures in the background that have been looked after: it only counts up.
    background_errors: u64,
    /// Nothing is executed after it.
    failure: Option<DbError>,
}

impl Rocks {
    /// Opens the database in this folder, and makes one where there is none. `library`: as of
    /// [`Library::load`]. `is_durable`: it is behind a journal.
    pub fn open(
        library: Option<&Path>,
        folder: &Path,
        options: DbOptions,
        is_durable: bool,
    ) -> Result<Self, RocksError> {
        let library = Library::load(library)?;
        let db = Db::open(library, folder, options)?;
        let mut scratch = Vec::new();
        let persistent = match db.get(KEY_POSITION, &mut scratch)? {
            true => {
                let bytes = scratch[..].try_into().map_err(|_| RocksError::Foreign)?;
                u64::from_le_bytes(bytes)
            }
            false => 0,
        };
        Ok(Rocks {
            values: Values {
                db,
                batch: Batch::new(library),
                has_effect: false,
                key: Vec::new(),
            },
            scratch,
            is_durable,
            persistent,
            flushing: None,
            background_errors: 0,
            failure: None,
        })
    }

    /// The first failure, after which nothing is executed: the server is to end.
    pub fn failure(&self) -> Option<&DbError> {
        self.failure.as_ref()
    }

    /// In memory, behind everything that was executed: the last requests may have had no
    /// effect.
    fn put_position(&mut self, position: u64) -> Result<(), DbError> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        let Values { db, batch, .. } = &mut self.values;
        batch.clear();
        batch.put(KEY_POSITION, &position.to_le_bytes());
        db.write(batch, Wal::Off)
    }

    fn try_execute(
        &mut self,
        request: trefoil_ordered::Request<'_>,
        answer: &mut Answer,
    ) -> Result<(), DbError> {
        let values = &mut self.values;
        values.batch.clear();
        values.has_effect = false;
        table::execute(values, request.payload, &mut self.scratch, answer)?;
        if !values.has_effect {
            // Done again, it would have none again.
            return Ok(());
        }
        let wal = match self.is_durable {
            true => {
                let position = request.position.to_le_bytes();
                values.batch.put(KEY_POSITION, &position);
                Wal::Off
            }
            false => Wal::Written,
        };
        values.db.write(&mut values.batch, wal)
    }
}

impl Service for Rocks {
    fn execute(&mut self, request: trefoil_ordered::Request<'_>, answer: &mut Answer) {
        if self.failure.is_none() {
            self.failure = self.try_execute(request, answer).err();
        }
        if self.failure.is_some() {
            put_answer(answer, Status::Failed, &[]);
        }
    }
}

impl DurableService for Rocks {
    type Error = DbError;

    fn persistent_position(&self) -> u64 {
        self.persistent
    }

    fn checkpoint(&mut self, position: u64) -> Result<(), DbError> {
        self.put_position(position)?;
        self.values.db.flush()?;
        self.persistent = position;
        self.flushing = None;
        Ok(())
    }

    fn advance(&mut self, position: u64) -> Result<(), DbError> {
        let Some(flushing) = self.flushing else {
            if self.values.db.flushing_count()? > 0 {
                // RocksDB writes a file for reasons of its own, and would have this thread
                // wait for that before another one.
                return Ok(());
            }
            self.put_position(position)?;
            if self.values.db.begin_flush().is_err() {
                // It takes no writes for the moment, or none any more: to wait tells.
                return self.checkpoint(position);
            }
            self.flushing = Some(position);
            return Ok(());
        };
        // A part that came later keeps it waiting, too: then the end of the room does.
        if self.values.db.flushing_count()? == 0 {
            let errors = self.values.db.background_error_count()?;
            if errors != self.background_errors {
                self.background_errors = errors;
                // To wait for it tells what is wrong.
                return self.checkpoint(position);
            }
            self.persistent = flushing;
            self.flushing = None;
        }
        Ok(())
    }

    fn is_read(&self, payload: &[u8]) -> bool {
        Request::decode(payload).map_or(true, |request| request.is_read())
    }
}
