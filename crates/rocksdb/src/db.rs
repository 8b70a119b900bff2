//! A database.

use crate::library::{
    Library, RawBatch, RawDb, RawFlushOptions, RawOptions, RawReadOptions, RawWriteOptions,
};
use libc::{c_char, c_uchar};
use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{null_mut, slice_from_raw_parts};

/// Log files of its own that a database keeps.
const LOG_FILES: usize = 4;

/// What RocksDB has to say.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("RocksDB: {0}")]
pub struct DbError(String);

/// What its user chooses.
#[derive(Clone, Copy, Debug)]
pub struct DbOptions {
    /// Bytes in memory until they are written to a sorted file.
    pub write_buffer_len: usize,
    /// Threads that write files and merge them.
    pub background_job_count: i32,
}

impl Default for DbOptions {
    fn default() -> Self {
        DbOptions {
            // A flush that somebody waits for writes no more than this.
            write_buffer_len: 8 << 20,
            background_job_count: 2,
        }
    }
}

/// What becomes of a write beside memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wal {
    /// Nothing, until [`Db::flush`], or the database's own time for it.
    Off,
    /// It is in the write-ahead log, in the system's cache: a killed process loses nothing.
    Written,
    /// It is in the write-ahead log, and flushed: a power cut loses nothing.
    Synced,
}

/// Puts and deletions that take effect as one.
#[derive(Debug)]
pub struct Batch {
    library: &'static Library,
    raw: *mut RawBatch,
}

// SAFETY: a batch is plain memory, which no thread keeps anything of.
unsafe impl Send for Batch {}

impl Batch {
    /// An empty one.
    pub fn new(library: &'static Library) -> Self {
        Batch {
            library,
            // SAFETY: it has no arguments.
            raw: unsafe { (library.writebatch_create)() },
        }
    }

    /// A value for a key, instead of what there was.
    pub fn put(&mut self, key: &[u8], value: &[u8]) {
        let (key, key_len) = (key.as_ptr().cast(), key.len());
        let (value, value_len) = (value.as_ptr().cast(), value.len());
        // SAFETY: the batch is this one's own, and the bytes are copied in the call.
        unsafe { (self.library.writebatch_put)(self.raw, key, key_len, value, value_len) }
    }

    /// Nothing for a key.
    pub fn delete(&mut self, key: &[u8]) {
        // SAFETY: as of `put`.
        unsafe { (self.library.writebatch_delete)(self.raw, key.as_ptr().cast(), key.len()) }
    }

    /// Empties it.
    pub fn clear(&mut self) {
        // SAFETY: the batch is this one's own.
        unsafe { (self.library.writebatch_clear)(self.raw) }
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        // SAFETY: it was made once, and nobody uses it afterwards.
        unsafe { (self.library.writebatch_destroy)(self.raw) }
    }
}

/// An open database. Threads may share it.
#[derive(Debug)]
pub struct Db {
    library: &'static Library,
    raw: *mut RawDb,
    options: *mut RawOptions,
    read: *mut RawReadOptions,
    /// In the order of [`Wal`].
    write: [*mut RawWriteOptions; 3],
    flush: *mut RawFlushOptions,
    begin_flush: *mut RawFlushOptions,
}

// SAFETY: RocksDB's databases are made to be used by many threads at a time, and the
// options are only read after `open`.
unsafe impl Send for Db {}
// SAFETY: as above.
unsafe impl Sync for Db {}

impl Db {
    /// Opens the database in this folder, and makes one where there is none.
    pub fn open(
        library: &'static Library,
        folder: &Path,
        options: DbOptions,
    ) -> Result<Self, DbError> {
        let name = CString::new(folder.as_os_str().as_bytes())
            .map_err(|_| DbError("a zero in the folder's name".into()))?;
        // SAFETY: makers of options have no arguments, or those of their own kind; every one
        // is destroyed by `drop`, also if the database does not open.
        let mut db = unsafe {
            let write = |wal| {
                let options = (library.writeoptions_create)();
                (library.writeoptions_set_sync)(options, c_uchar::from(wal == Wal::Synced));
                (library.writeoptions_disable_WAL)(options, i32::from(wal == Wal::Off));
                options
            };
            let flush = |waits| {
                let options = (library.flushoptions_create)();
                (library.flushoptions_set_wait)(options, c_uchar::from(waits));
                options
            };
            Db {
                library,
                raw: null_mut(),
                options: (library.options_create)(),
                read: (library.readoptions_create)(),
                write: [Wal::Off, Wal::Written, Wal::Synced].map(write),
                flush: flush(true),
                begin_flush: flush(false),
            }
        };
        // SAFETY: the options are alive, and the name ends with a zero.
        db.raw = unsafe {
            (library.options_set_create_if_missing)(db.options, 1);
            (library.options_set_write_buffer_size)(db.options, options.write_buffer_len);
            (library.options_set_keep_log_file_num)(db.options, LOG_FILES);
            (library.options_set_max_background_jobs)(db.options, options.background_job_count);
            let mut error = null_mut();
            let raw = (library.open)(db.options, name.as_ptr(), &mut error);
            db.check(error)?;
            raw
        };
        match db.raw.is_null() {
            true => Err(DbError("no database, and no reason".into())),
            false => Ok(db),
        }
    }

    /// The library that it is of.
    pub fn library(&self) -> &'static Library {
        self.library
    }

    /// Puts a key's value into `into`; whether there is one.
    pub fn get(&self, key: &[u8], into: &mut Vec<u8>) -> Result<bool, DbError> {
        into.clear();
        let (mut len, mut error) = (0, null_mut());
        // SAFETY: the database is open; what is handed out has `len` bytes, is copied and
        // given back.
        unsafe {
            let (key, key_len) = (key.as_ptr().cast(), key.len());
            let get = self.library.get;
            let value = get(self.raw, self.read, key, key_len, &mut len, &mut error);
            self.check(error)?;
            if value.is_null() {
                return Ok(false);
            }
            into.extend_from_slice(&*slice_from_raw_parts(value.cast::<u8>(), len));
            (self.library.free)(value.cast());
        }
        Ok(true)
    }

    /// Executes a batch, which stays as it is.
    pub fn write(&self, batch: &mut Batch, wal: Wal) -> Result<(), DbError> {
        let options = self.write[wal as usize];
        let mut error = null_mut();
        // SAFETY: the database is open and the batch alive.
        unsafe {
            (self.library.write)(self.raw, options, batch.raw, &mut error);
            self.check(error)
        }
    }

    /// Makes everything that was written persistent, whatever its log: the memory's content
    /// becomes a sorted file.
    pub fn flush(&self) -> Result<(), DbError> {
        self.flush_by(self.flush)
    }

    /// Begins to do so, behind the caller's back. It is done when [`Db::flushing_count`] says
    /// that nothing is left. While a part of the memory is being written already, this waits
    /// for that; where RocksDB takes no writes for the moment, it is an error.
    pub fn begin_flush(&self) -> Result<(), DbError> {
        self.flush_by(self.begin_flush)
    }

    fn flush_by(&self, options: *const RawFlushOptions) -> Result<(), DbError> {
        let mut error = null_mut();
        // SAFETY: the database is open.
        unsafe {
            (self.library.flush)(self.raw, options, &mut error);
            self.check(error)
        }
    }

    /// Makes persistent what is in the write-ahead log.
    pub fn sync_wal(&self) -> Result<(), DbError> {
        let mut error = null_mut();
        // SAFETY: the database is open.
        unsafe {
            (self.library.flush_wal)(self.raw, 1, &mut error);
            self.check(error)
        }
    }

    /// Parts of the memory that are full or to be flushed, and not in a file yet.
    pub fn flushing_count(&self) -> Result<u64, DbError> {
        self.property(c"rocksdb.num-immutable-mem-table")
    }

    /// Failures in the background, since it was opened: those that it has got over, too.
    pub fn background_error_count(&self) -> Result<u64, DbError> {
        self.property(c"rocksdb.background-errors")
    }

    fn property(&self, name: &CStr) -> Result<u64, DbError> {
        let mut found = 0;
        // SAFETY: the database is open, and the name ends with a zero.
        match unsafe { (self.library.property_int)(self.raw, name.as_ptr(), &mut found) } {
            0 => Ok(found),
            _ => Err(DbError(format!("no property {}", name.to_string_lossy()))),
        }
    }

    /// # Safety
    /// `error` is null, or words that the library has just handed out.
    unsafe fn check(&self, error: *mut c_char) -> Result<(), DbError> {
        if error.is_null() {
            return Ok(());
        }
        // SAFETY: its words end with a zero, are copied and given back.
        let words = unsafe {
            let words = CStr::from_ptr(error).to_string_lossy().into_owned();
            (self.library.free)(error.cast());
            words
        };
        Err(DbError(words))
    }
}

impl Drop for Db {
    fn drop(&mut self) {
        let library = self.library;
        // SAFETY: each was made once, and nobody uses it afterwards; the database is closed
        // before its options go.
        unsafe {
            if !self.raw.is_null() {
                (library.close)(self.raw);
            }
            for options in self.write {
                (library.writeoptions_destroy)(options);
            }
            (library.readoptions_destroy)(self.read);
            (library.flushoptions_destroy)(self.flush);
            (library.flushoptions_destroy)(self.begin_flush);
            (library.options_destroy)(self.options);
        }
    }
}
