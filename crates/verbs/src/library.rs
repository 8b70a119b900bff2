//! The functions of the system's library.

use crate::raw::{
    RawChannel, RawContext, RawCq, RawDevice, RawDeviceAttr, RawDomain, RawGidEntry, RawMr,
    RawPortAttr, RawQp, RawQpAttr, RawQpInitAttr, RawSrq, RawSrqInitAttr,
};
use libc::{c_char, c_int, c_uint, c_void, size_t};
use std::ffi::CStr;
use std::sync::OnceLock;

/// The library's name, in which its ABI is.
const NAME: &CStr = c"libibverbs.so.1";

/// Why there is no libibverbs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LibraryError {
    /// It cannot be loaded.
    #[error(
        "libibverbs is not there ({reason}): install it and the drivers of RDMA devices (Debian: \
         `apt-get install libibverbs1 ibverbs-providers`)"
    )]
    Missing {
        /// The loader's words.
        reason: String,
    },
    /// It is too old.
    #[error(
        "the system's libibverbs has no function {function}: install a newer one (rdma-core 33 \
         or later)"
    )]
    Old {
        /// What it lacks.
        function: &'static str,
    },
}

/// Declares the functions as fields, and finds each by its name.
macro_rules! functions {
    ($($field:ident = $name:literal: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The library, loaded for the rest of the process's life.
        #[derive(Debug)]
        pub struct Library {
            $(pub(crate) $field: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Library {
            /// # Safety
            ///
            /// `handle` is that of a libibverbs, which stays loaded.
            unsafe fn find(handle: *mut c_void) -> Result<Self, LibraryError> {
                $(
                    // SAFETY: the handle is open, and the name ends with a zero.
                    let $field = unsafe { libc::dlsym(handle, concat!($name, "\0").as_ptr().cast()) };
                    if $field.is_null() {
                        return Err(LibraryError::Old { function: $name });
                    }
                )*
                Ok(Library {
                    // SAFETY: the functions of these names have these forms (rule 1).
                    $($field: unsafe {
                        std::mem::transmute::<
                            *mut c_void,
                            unsafe extern "C" fn($($argument),*) $(-> $result)?,
                        >($field)
                    },)*
                })
            }
        }
    };
}

functions! {
    get_device_list = "ibv_get_device_list": fn(*mut c_int) -> *mut *mut RawDevice;
    free_device_list = "ibv_free_device_list": fn(*mut *mut RawDevice);
    get_device_name = "ibv_get_device_name": fn(*mut RawDevice) -> *const c_char;
    open_device = "ibv_open_device": fn(*mut RawDevice) -> *mut RawContext;
    close_device = "ibv_close_device": fn(*mut RawContext) -> c_int;
    query_device = "ibv_query_device": fn(*mut RawContext, *mut RawDeviceAttr) -> c_int;
    query_port = "ibv_query_port": fn(*mut RawContext, u8, *mut RawPortAttr) -> c_int;
    query_gid = "_ibv_query_gid_ex": fn(*mut RawContext, u32, u32, *mut RawGidEntry, u32, size_t) -> c_int;
    alloc_pd = "ibv_alloc_pd": fn(*mut RawContext) -> *mut RawDomain;
    dealloc_pd = "ibv_dealloc_pd": fn(*mut RawDomain) -> c_int;
    reg_mr = "ibv_reg_mr": fn(*mut RawDomain, *mut c_void, size_t, c_int) -> *mut RawMr;
    dereg_mr = "ibv_dereg_mr": fn(*mut RawMr) -> c_int;
    create_channel = "ibv_create_comp_channel": fn(*mut RawContext) -> *mut RawChannel;
    destroy_channel = "ibv_destroy_comp_channel": fn(*mut RawChannel) -> c_int;
    create_cq = "ibv_create_cq": fn(*mut RawContext, c_int, *mut c_void, *mut RawChannel, c_int) -> *mut RawCq;
    destroy_cq = "ibv_destroy_cq": fn(*mut RawCq) -> c_int;
    get_cq_event = "ibv_get_cq_event": fn(*mut RawChannel, *mut *mut RawCq, *mut *mut c_void) -> c_int;
    ack_cq_events = "ibv_ack_cq_events": fn(*mut RawCq, c_uint);
    create_srq = "ibv_create_srq": fn(*mut RawDomain, *mut RawSrqInitAttr) -> *mut RawSrq;
    destroy_srq = "ibv_destroy_srq": fn(*mut RawSrq) -> c_int;
    create_qp = "ibv_create_qp": fn(*mut RawDomain, *mut RawQpInitAttr) -> *mut RawQp;
    modify_qp = "ibv_modify_qp": fn(*mut RawQp, *mut RawQpAttr, c_int) -> c_int;
    destroy_qp = "ibv_destroy_qp": fn(*mut RawQp) -> c_int;
}

impl Library {
    /// The system's library, which is loaded by the first call and stays.
    pub fn load() -> Result<&'static Library, LibraryError> {
        static LOADED: OnceLock<Result<Library, LibraryError>> = OnceLock::new();
        LOADED
            .get_or_init(|| load(NAME))
            .as_ref()
            .map_err(Clone::clone)
    }
}

fn load(name: &CStr) -> Result<Library, LibraryError> {
    // SAFETY: the name ends with a zero. Loading runs the library's own initialisation, which
    // is what its users do at every start.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if handle.is_null() {
        // SAFETY: the words are valid until this thread's next call of the loader.
        let words = unsafe {
            let words = libc::dlerror();
            (!words.is_null()).then(|| CStr::from_ptr(words).to_string_lossy().into_owned())
        };
        let reason = words.unwrap_or_else(|| "the loader does not say why".to_owned());
        return Err(LibraryError::Missing { reason });
    }
    // SAFETY: it was opened, is never closed, and each function is looked for.
    unsafe { Library::find(handle) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_there_is_named_with_what_to_do() {
        let error = load(c"libibverbs-of-nobody.so.1").expect_err("no such library");
        let words = error.to_string();
        assert!(words.contains("libibverbs-of-nobody.so.1"), "{words}");
        assert!(words.contains("apt-get install libibverbs1"), "{words}");
    }

    #[test]
    fn another_library_is_not_taken_for_it() {
        let error = load(c"libc.so.6").expect_err("no libibverbs");
        let function = "ibv_get_device_list";
        assert_eq!(error, LibraryError::Old { function });
    }
}
