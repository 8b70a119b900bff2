//! The functions of the system's library.

use libc::{c_char, c_int, c_uchar, c_void, size_t};
use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Names that the library has, the newest last: with the development package, Debian 12,
/// Ubuntu 24.04, Debian 13.
const NAMES: [&str; 4] = [
    "librocksdb.so",
    "librocksdb.so.7.8",
    "librocksdb.so.8.9",
    "librocksdb.so.9.10",
];

/// Why there is no RocksDB.
#[derive(Debug, thiserror::Error)]
pub enum LibraryError {
    /// None of its names.
    #[error(
        "RocksDB is not there ({reason}): install its library (Debian 12: \
         `apt-get install librocksdb7.8`), or name it"
    )]
    Missing {
        /// The loader's words about the last name.
        reason: String,
    },
    /// What was named cannot be loaded.
    #[error("cannot load RocksDB from {path}: {reason}")]
    NotLoaded {
        /// Which file.
        path: PathBuf,
        /// The loader's words.
        reason: String,
    },
    /// It is another library, or of a release that is not known.
    #[error("the library {path} has no function {function}: it is no RocksDB that is known here")]
    Foreign {
        /// Which one.
        path: PathBuf,
        /// What it lacks.
        function: &'static str,
    },
}

/// Opaque objects of the library.
macro_rules! opaque {
    ($($name:ident),*) => {$(
        #[repr(C)]
        #[derive(Debug)]
        pub(crate) struct $name {
            _private: [u8; 0],
        }
    )*};
}
opaque!(
    RawDb,
    RawOptions,
    RawReadOptions,
    RawWriteOptions,
    RawFlushOptions,
    RawBatch
);

/// Declares the functions as fields, and finds each by its name.
macro_rules! functions {
    ($($name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The library, loaded for the rest of the process's life.
        #[derive(Debug)]
        #[allow(non_snake_case, reason = "the library's own names")]
        pub struct Library {
            path: PathBuf,
            $(pub(crate) $name: unsafe extern "C-unwind" fn($($argument),*) $(-> $result)?,)*
        }

        impl Library {
            /// # Safety
            ///
            /// `handle` is that of a RocksDB, which stays loaded.
            #[allow(non_snake_case, reason = "the library's own names")]
            unsafe fn find(handle: *mut c_void, path: PathBuf) -> Result<Self, LibraryError> {
                $(
                    // SAFETY: the handle is open, and the name ends with a zero.
                    let $name = unsafe {
                        libc::dlsym(handle, concat!("rocksdb_", stringify!($name), "\0").as_ptr().cast())
                    };
                    if $name.is_null() {
                        let function = concat!("rocksdb_", stringify!($name));
                        return Err(LibraryError::Foreign { path, function });
                    }
                )*
                Ok(Library {
                    path,
                    // SAFETY: the functions of these names have these forms (rule 1).
                    $($name: unsafe {
                        std::mem::transmute::<
                            *mut c_void,
                            unsafe extern "C-unwind" fn($($argument),*) $(-> $result)?,
                        >($name)
                    },)*
                })
            }
        }
    };
}

functions! {
    open: fn(*const RawOptions, *const c_char, *mut *mut c_char) -> *mut RawDb;
    close: fn(*mut RawDb);
    get: fn(*mut RawDb, *const RawReadOptions, *const c_char, size_t, *mut size_t, *mut *mut c_char) -> *mut c_char;
    write: fn(*mut RawDb, *const RawWriteOptions, *mut RawBatch, *mut *mut c_char);
    flush: fn(*mut RawDb, *const RawFlushOptions, *mut *mut c_char);
    flush_wal: fn(*mut RawDb, c_uchar, *mut *mut c_char);
    property_int: fn(*mut RawDb, *const c_char, *mut u64) -> c_int;
    free: fn(*mut c_void);
    options_create: fn() -> *mut RawOptions;
    options_destroy: fn(*mut RawOptions);
    options_set_create_if_missing: fn(*mut RawOptions, c_uchar);
    options_set_write_buffer_size: fn(*mut RawOptions, size_t);
    options_set_keep_log_file_num: fn(*mut RawOptions, size_t);
    options_set_max_background_jobs: fn(*mut RawOptions, c_int);
    readoptions_create: fn() -> *mut RawReadOptions;
    readoptions_destroy: fn(*mut RawReadOptions);
    writeoptions_create: fn() -> *mut RawWriteOptions;
    writeoptions_destroy: fn(*mut RawWriteOptions);
    writeoptions_set_sync: fn(*mut RawWriteOptions, c_uchar);
    writeoptions_disable_WAL: fn(*mut RawWriteOptions, c_int);
    flushoptions_create: fn() -> *mut RawFlushOptions;
    flushoptions_destroy: fn(*mut RawFlushOptions);
    flushoptions_set_wait: fn(*mut RawFlushOptions, c_uchar);
    writebatch_create: fn() -> *mut RawBatch;
    writebatch_destroy: fn(*mut RawBatch);
    writebatch_clear: fn(*mut RawBatch);
    writebatch_put: fn(*mut RawBatch, *const c_char, size_t, *const c_char, size_t);
    writebatch_delete: fn(*mut RawBatch, *const c_char, size_t);
}

impl Library {
    /// Loads the library: `path`, or whichever the system has by its usual names. It stays
    /// loaded; each call is to be made once in a process's life, or seldom.
    pub fn load(path: Option<&Path>) -> Result<&'static Library, LibraryError> {
        let (handle, path) = match path {
            Some(path) => {
                let opened = open(path.as_os_str().as_bytes());
                let path = path.to_owned();
                match opened {
                    Ok(handle) => (handle, path),
                    Err(reason) => return Err(LibraryError::NotLoaded { path, reason }),
                }
            }
            None => {
                let mut reason = String::new();
                let found = NAMES.iter().find_map(|name| match open(name.as_bytes()) {
                    Ok(handle) => Some((handle, PathBuf::from(name))),
                    Err(words) => {
                        reason = words;
                        None
                    }
                });
                found.ok_or(LibraryError::Missing { reason })?
            }
        };
        // SAFETY: it was opened, is never closed, and each function is looked for.
        let library = unsafe { Library::find(handle, path) }?;
        Ok(Box::leak(Box::new(library)))
    }

    /// The name by which it was found.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// A handle, or the loader's words.
fn open(name: &[u8]) -> Result<*mut c_void, String> {
    let name = CString::new(name).map_err(|_| "a zero in its name".to_owned())?;
    // SAFETY: the name ends with a zero. Loading runs the library's own initialisation,
    // which is what its users do at every start.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if !handle.is_null() {
        return Ok(handle);
    }
    // SAFETY: the words are valid until this thread's next call of the loader.
    let words = unsafe {
        let words = libc::dlerror();
        (!words.is_null()).then(|| CStr::from_ptr(words).to_string_lossy().into_owned())
    };
    Err(words.unwrap_or_else(|| "the loader does not say why".to_owned()))
}
