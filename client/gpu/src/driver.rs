//! CUDA's driver, loaded when it is first asked for.
//!
//! Results are numbers here, not an enumeration: a newer driver may have more of them.

use libc::{c_char, c_int, c_uint, c_void};
use libloading::Library;
use std::ffi::CStr;
use std::mem::ManuallyDrop;
use std::ptr::null;
use std::sync::OnceLock;
use weft_proto::{Error, ErrorKind, Result};

/// Where the driver's library is found, the first that loads.
const NAMES: [&str; 2] = ["libcuda.so.1", "libcuda.so"];

/// An address in the memory of a GPU.
pub(crate) type Address = u64;
/// Handles of the driver.
pub(crate) type RawContext = *mut c_void;
pub(crate) type RawStream = *mut c_void;
pub(crate) type RawEvent = *mut c_void;
/// `CUresult`.
pub(crate) type Code = c_int;

/// What it was asked for is nothing that it knows.
pub(crate) const INVALID_VALUE: Code = 1;
/// The process was forked, or ends.
const NOT_INITIALIZED: Code = 3;
const DEINITIALIZED: Code = 4;
const NO_DEVICE: Code = 100;
/// Not everything that was asked of a stream is over.
const NOT_READY: Code = 600;
/// It, or the GPU, cannot do that.
pub(crate) const NOT_SUPPORTED: Code = 801;
/// Why something cannot be done while a stream is captured into a graph.
const CAPTURED: std::ops::Range<Code> = 900..910;

macro_rules! functions {
    (
        $($name:ident: $symbol:literal($($argument:ty),*);)*
        [$($newer:ident: $newer_symbol:literal($($newer_argument:ty),*);)*]
    ) => {
        /// What is called of it: `cuda.h` says what each does.
        pub(crate) struct Functions {
            $(pub $name: unsafe extern "C" fn($($argument),*) -> Code,)*
            $(pub $newer: Option<unsafe extern "C" fn($($newer_argument),*) -> Code>,)*
        }

        impl Functions {
            fn of(library: &Library) -> std::result::Result<Self, String> {
                Ok(Self {
                    $($name: {
                        // SAFETY: the type is that of cuda.h.
                        let found = unsafe { library.get($symbol) };
                        *found.map_err(|error| format!("the CUDA driver is too old: {error}"))?
                    },)*
                    $($newer: {
                        // SAFETY: the type is that of cuda.h.
                        unsafe { library.get($newer_symbol) }.ok().map(|found| *found)
                    },)*
                })
            }
        }
    };
}

functions! {
    init: b"cuInit\0"(c_uint);
    error_name: b"cuGetErrorName\0"(Code, *mut *const c_char);
    error_string: b"cuGetErrorString\0"(Code, *mut *const c_char);
    device_count: b"cuDeviceGetCount\0"(*mut c_int);
    device_get: b"cuDeviceGet\0"(*mut c_int, c_int);
    device_name: b"cuDeviceGetName\0"(*mut c_char, c_int, c_int);
    device_pci: b"cuDeviceGetPCIBusId\0"(*mut c_char, c_int, c_int);
    device_attribute: b"cuDeviceGetAttribute\0"(*mut c_int, c_int, c_int);
    context_retain: b"cuDevicePrimaryCtxRetain\0"(*mut RawContext, c_int);
    context_push: b"cuCtxPushCurrent_v2\0"(RawContext);
    context_pop: b"cuCtxPopCurrent_v2\0"(*mut RawContext);
    context_current: b"cuCtxGetCurrent\0"(*mut RawContext);
    context_device: b"cuCtxGetDevice\0"(*mut c_int);
    capture_mode: b"cuThreadExchangeStreamCaptureMode\0"(*mut c_int);
    pointer_attribute: b"cuPointerGetAttribute\0"(*mut c_void, c_int, Address);
    host_register: b"cuMemHostRegister_v2\0"(*mut c_void, usize, c_uint);
    alloc: b"cuMemAlloc_v2\0"(*mut Address, usize);
    free: b"cuMemFree_v2\0"(Address);
    copy_in: b"cuMemcpyHtoDAsync_v2\0"(Address, *const c_void, usize, RawStream);
    copy_out: b"cuMemcpyDtoHAsync_v2\0"(*mut c_void, Address, usize, RawStream);
    stream_create: b"cuStreamCreate\0"(*mut RawStream, c_uint);
    stream_destroy: b"cuStreamDestroy_v2\0"(RawStream);
    stream_wait: b"cuStreamSynchronize\0"(RawStream);
    stream_captured: b"cuStreamIsCapturing\0"(RawStream, *mut c_int);
    event_create: b"cuEventCreate\0"(*mut RawEvent, c_uint);
    event_record: b"cuEventRecord\0"(RawEvent, RawStream);
    event_query: b"cuEventQuery\0"(RawEvent);
    event_wait: b"cuEventSynchronize\0"(RawEvent);
    event_destroy: b"cuEventDestroy_v2\0"(RawEvent);
    // Older drivers lack these.
    [
        export: b"cuMemGetHandleForAddressRange\0"(*mut c_void, Address, usize, c_int, u64);
        flush_writes: b"cuFlushGPUDirectRDMAWrites\0"(c_int, c_int);
    ]
}

/// The driver of this process.
pub(crate) struct Driver {
    pub functions: Functions,
}

/// Whether an answer says that nothing goes on in a context any more: it has failed, or ended.
pub(crate) fn is_fatal(code: Code) -> bool {
    const OF_CONTEXTS: [Code; 2] = [201, 709];
    // What a GPU did wrong, from an illegal address to a launch that failed.
    let of_gpu = 700..=720;
    code == DEINITIALIZED || OF_CONTEXTS.contains(&code) || of_gpu.contains(&code)
}

/// Loads it, the first time. Errors: `NotSupported`, if there is none that can be used.
pub(crate) fn driver() -> Result<&'static Driver> {
    static DRIVER: OnceLock<std::result::Result<Driver, String>> = OnceLock::new();
    let driver = DRIVER.get_or_init(Driver::load);
    driver.as_ref().map_err(|why| Error::new(ErrorKind::NotSupported, why.clone()))
}

impl Driver {
    fn load() -> std::result::Result<Self, String> {
        // SAFETY: what loading a library does by itself is the vendor's, whose program may use it.
        let load = |name: &str| unsafe { Library::new(name) };
        let library = load(NAMES[0]).or_else(|first| load(NAMES[1]).map_err(|_| first));
        let library = library
            .map_err(|error| format!("there is no CUDA driver here: install NVIDIA's ({error})"))?;
        // It has threads of its own from now on.
        let library = ManuallyDrop::new(library);
        let driver = Self { functions: Functions::of(&library)? };
        // SAFETY: it takes no memory of ours.
        match unsafe { (driver.functions.init)(0) } {
            0 => Ok(driver),
            NO_DEVICE => Err("the CUDA driver finds no GPU: ask nvidia-smi".into()),
            code => Err(format!("the CUDA driver does not start: {}", driver.name(code))),
        }
    }

    /// What the driver answered to something. Errors: `Io`.
    pub fn check(&self, what: &str, code: Code) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        let advice = match code {
            NOT_INITIALIZED => {
                " (a process that was forked cannot use its parent's GPUs: start \
                                workers by spawn or forkserver)"
            }
            code if CAPTURED.contains(&code) => {
                " (a stream is captured: transfers come after that)"
            }
            _ => "",
        };
        let what = format!("{what}: {}{advice}", self.name(code));
        Err(Error::new(ErrorKind::Io, what))
    }

    /// Whether something is over. Errors: `Io`.
    pub fn is_over(&self, what: &str, code: Code) -> Result<bool> {
        match code {
            NOT_READY => Ok(false),
            code => self.check(what, code).map(|()| true),
        }
    }

    fn name(&self, code: Code) -> String {
        let text = |of: unsafe extern "C" fn(Code, *mut *const c_char) -> Code| {
            let mut text = null();
            // SAFETY: it answers a constant, or none.
            unsafe {
                match of(code, &raw mut text) {
                    0 if !text.is_null() => CStr::from_ptr(text).to_string_lossy().into_owned(),
                    _ => String::new(),
                }
            }
        };
        let (name, says) = (text(self.functions.error_name), text(self.functions.error_string));
        match code {
            DEINITIALIZED => "the process ends".into(),
            code if name.is_empty() => format!("CUDA error {code}"),
            code => format!("{name} ({code}): {says}"),
        }
    }
}
