//! The driver as tests use it: this one, or that of a machine with GPUs.

use libc::{c_int, c_void};
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use std::fs::File;
use std::os::fd::FromRawFd;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

/// Where `libweft_cuda_sim.so` is: beside the program that runs, or above it.
pub fn library() -> PathBuf {
    let program = std::env::current_exe().expect("a program has a place");
    let folders = program.ancestors().skip(1).take(2);
    let mut places = folders.map(|folder| folder.join("libweft_cuda_sim.so"));
    places.find(|place| place.exists()).expect("libweft_cuda_sim.so is built with the tests")
}

/// What tests call of a driver, in the context of its first GPU.
pub struct Cuda(Library);

impl Cuda {
    /// What memory holds that was freed.
    pub const POISON: u8 = crate::memory::POISON;

    /// Has this process take this one for the driver; the first time, before anybody asks for it.
    pub fn simulated() -> &'static Self {
        static CUDA: OnceLock<Cuda> = OnceLock::new();
        CUDA.get_or_init(|| {
            // SAFETY: it is ours, and is found by its name from now on.
            let library = unsafe { Library::open(Some(library()), RTLD_NOW | RTLD_GLOBAL) };
            let cuda = Self(library.expect("it can be loaded"));
            cuda.call::<unsafe extern "C" fn(u32) -> c_int>(b"cuInit\0", |init| {
                // SAFETY: it takes a number.
                unsafe { init(0) }
            });
            cuda
        })
    }

    fn call<F>(&self, name: &[u8], act: impl FnOnce(&F) -> c_int) {
        // SAFETY: the callers give the type that it has.
        let function = unsafe { self.0.get::<F>(name) }.expect("the driver has it");
        let code = act(&function);
        assert_eq!(code, 0, "{}", String::from_utf8_lossy(name));
    }

    /// Has the context of a GPU be the current one of this thread.
    pub fn enter(&self, gpu: i32) {
        type Retain = unsafe extern "C" fn(*mut *mut c_void, c_int) -> c_int;
        let mut context = std::ptr::null_mut();
        // SAFETY: handles and numbers.
        unsafe {
            self.call::<Retain>(b"cuDevicePrimaryCtxRetain\0", |f| f(&raw mut context, gpu));
            self.call::<unsafe extern "C" fn(*mut c_void) -> c_int>(
                b"cuCtxPushCurrent_v2\0",
                |f| f(context),
            );
        }
    }

    /// Memory of the GPU whose context is current.
    pub fn alloc(&self, len: usize) -> u64 {
        type Alloc = unsafe extern "C" fn(*mut u64, usize) -> c_int;
        let mut start = 0;
        // SAFETY: a number is filled.
        self.call::<Alloc>(b"cuMemAlloc_v2\0", |f| unsafe { f(&raw mut start, len) });
        start
    }

    /// Frees memory; ends the process if it is used.
    pub fn free(&self, start: u64) {
        type Free = unsafe extern "C" fn(u64) -> c_int;
        // SAFETY: it takes a number.
        self.call::<Free>(b"cuMemFree_v2\0", |f| unsafe { f(start) });
    }

    /// What memory of a GPU holds.
    pub fn get(&self, start: u64, len: usize) -> Vec<u8> {
        type Get = unsafe extern "C" fn(*mut c_void, u64, usize) -> c_int;
        let mut bytes = vec![0_u8; len];
        let to = bytes.as_mut_ptr().cast();
        // SAFETY: there are so many bytes.
        self.call::<Get>(b"cuMemcpyDtoH_v2\0", |f| unsafe { f(to, start, len) });
        bytes
    }

    /// Fills memory of a GPU.
    pub fn put(&self, start: u64, bytes: &[u8]) {
        type Put = unsafe extern "C" fn(u64, *const c_void, usize) -> c_int;
        let from = bytes.as_ptr().cast();
        // SAFETY: there are so many bytes.
        self.call::<Put>(b"cuMemcpyHtoD_v2\0", |f| unsafe { f(start, from, bytes.len()) });
    }

    /// A stream of the program.
    pub fn stream(&self) -> usize {
        type Create = unsafe extern "C" fn(*mut *mut c_void, u32) -> c_int;
        let mut stream = std::ptr::null_mut();
        // SAFETY: a handle is filled.
        self.call::<Create>(b"cuStreamCreate\0", |f| unsafe { f(&raw mut stream, 0) });
        stream.expose_provenance()
    }

    /// Has a stream call something when its turn comes.
    pub fn ask(&self, stream: usize, act: impl FnOnce() + Send + 'static) {
        type Call = unsafe extern "C" fn(*mut c_void);
        type Launch = unsafe extern "C" fn(*mut c_void, Call, *mut c_void) -> c_int;
        unsafe extern "C" fn run(act: *mut c_void) {
            // SAFETY: it was made below, and is called once.
            let act = unsafe { Box::from_raw(act.cast::<Box<dyn FnOnce() + Send>>()) };
            act();
        }
        let act: Box<Box<dyn FnOnce() + Send>> = Box::new(Box::new(act));
        let act = Box::into_raw(act).cast();
        let stream = std::ptr::with_exposed_provenance_mut(stream);
        // SAFETY: the stream is one, and calls it once.
        self.call::<Launch>(b"cuLaunchHostFunc\0", |f| unsafe { f(stream, run, act) });
    }

    /// What copies end with from now on (0: well), what pinning answers, and what waiting for an
    /// event does, at once.
    pub fn fail(&self, copies: i32, pinning: i32, waits: i32) {
        type Fail = unsafe extern "C" fn(c_int, c_int, c_int);
        let act = |f: &Fail| {
            // SAFETY: it takes numbers.
            unsafe { f(copies, pinning, waits) };
            0
        };
        self.call(b"weft_cuda_sim_fail\0", act);
    }

    /// Whether memory can be exported to other devices from now on; it cannot at first.
    pub fn exports(&self, exports: bool) {
        type Exports = unsafe extern "C" fn(c_int);
        let act = |f: &Exports| {
            // SAFETY: it takes a number.
            unsafe { f(exports.into()) };
            0
        };
        self.call(b"weft_cuda_sim_dma_bufs\0", act);
    }

    fn count(&self, name: &[u8]) -> u64 {
        let mut count = 0;
        self.call::<unsafe extern "C" fn() -> u64>(name, |f| {
            // SAFETY: it answers a number.
            count = unsafe { f() };
            0
        });
        count
    }

    /// How often what cards have written was waited for.
    pub fn flushes(&self) -> u64 {
        self.count(b"weft_cuda_sim_flushes\0")
    }

    /// How many copies to memory of GPUs were asked for.
    pub fn copies_in(&self) -> u64 {
        self.count(b"weft_cuda_sim_copies_in\0")
    }

    /// The bytes of an allocation, whatever becomes of it: freed memory holds [`Self::POISON`].
    pub fn export(&self, start: u64, len: usize) -> File {
        type Export = unsafe extern "C" fn(*mut c_void, u64, usize, c_int, u64) -> c_int;
        let mut fd: c_int = -1;
        let (to, len) = ((&raw mut fd).cast(), len.next_multiple_of(4096));
        // SAFETY: a descriptor is filled, which is ours.
        unsafe {
            let name = b"cuMemGetHandleForAddressRange\0";
            self.call::<Export>(name, |f| f(to, start, len, 1, 0));
            File::from_raw_fd(fd)
        }
    }

    /// How long a copy waits before it looks at memory.
    pub fn pause(&self, pause: Duration) {
        type Pause = unsafe extern "C" fn(u64);
        let act = |f: &Pause| {
            // SAFETY: it takes a number.
            unsafe { f(pause.as_micros() as u64) };
            0
        };
        self.call(b"weft_cuda_sim_pause\0", act);
    }

    /// Copies from and to pinned memory so far, others, and those that are under way.
    pub fn copies(&self) -> [u64; 3] {
        type Count = unsafe extern "C" fn(*mut [u64; 3]);
        let mut counts = [0; 3];
        let act = |f: &Count| {
            // SAFETY: numbers are filled.
            unsafe { f(&raw mut counts) };
            0
        };
        self.call(b"weft_cuda_sim_copies\0", act);
        counts
    }
}
