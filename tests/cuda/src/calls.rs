//! The calls, as cuda.h has them.

#![allow(non_snake_case, reason = "these are the driver's names")]

use crate::memory::{self, Used};
use crate::streams::{Event, FAILURE, PAGEABLE, PAUSE, PINNED, Source, Stream, Work};
use libc::{c_char, c_int, c_uint, c_void};
use std::cell::{Cell, RefCell};
use std::ptr::{null_mut, with_exposed_provenance};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

const INVALID_VALUE: c_int = 1;
const OUT_OF_MEMORY: c_int = 2;
const NO_DEVICE: c_int = 100;
const INVALID_DEVICE: c_int = 101;
const INVALID_CONTEXT: c_int = 201;
const NOT_READY: c_int = 600;
const ALREADY_REGISTERED: c_int = 712;
const LAUNCH_FAILED: c_int = 719;
const NOT_SUPPORTED: c_int = 801;
const CAPTURE_UNSUPPORTED: c_int = 900;

/// `CUdevice_attribute`.
const PEER_MEMORY: c_int = 116;
const FLUSH_OPTIONS: c_int = 117;
const DMA_BUF: c_int = 124;

const DEVICES: c_int = 2;

/// What calls to pin memory answer, and those that wait for an event, which do not wait then.
static PIN_ANSWER: AtomicI32 = AtomicI32::new(0);
static WAIT_ANSWER: AtomicI32 = AtomicI32::new(0);

/// Whether memory can be exported; how often cards' writes were waited for.
static DMA_BUFS: AtomicI32 = AtomicI32::new(0);
static FLUSHES: AtomicU64 = AtomicU64::new(0);
/// Copies to memory of GPUs.
static COPIES_IN: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Contexts of this thread, the current one last: devices plus one.
    static CURRENT: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
    /// How this thread takes what others capture: 0 of whoever does not say otherwise.
    static CAPTURE_MODE: Cell<c_int> = const { Cell::new(0) };
    /// The default stream of this thread.
    static OWN: &'static Stream = Stream::new();
}

fn current() -> Option<c_int> {
    CURRENT.with_borrow(|all| all.last().map(|context| *context as c_int - 1))
}

/// The stream of a handle.
fn stream(handle: *mut c_void) -> &'static Stream {
    static LEGACY: OnceLock<&'static Stream> = OnceLock::new();
    match handle.addr() {
        0 | 1 => LEGACY.get_or_init(Stream::new),
        2 => OWN.with(|own| *own),
        // SAFETY: it was made by `cuStreamCreate`, and is never freed.
        _ => unsafe { &*handle.cast::<Stream>() },
    }
}

/// How tests have it fail: what copies end with from now on (0: well), what pinning answers, and
/// what waiting for an event does, at once.
#[unsafe(no_mangle)]
pub extern "C" fn weft_cuda_sim_fail(copies: c_int, pinning: c_int, waits: c_int) {
    FAILURE.store(copies, Ordering::SeqCst);
    PIN_ANSWER.store(pinning, Ordering::SeqCst);
    WAIT_ANSWER.store(waits, Ordering::SeqCst);
}

/// How many microseconds a copy waits before it looks at memory.
#[unsafe(no_mangle)]
pub extern "C" fn weft_cuda_sim_pause(micros: u64) {
    PAUSE.store(micros, Ordering::SeqCst);
}

/// Copies from and to pinned memory so far, others, and those that are under way.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_cuda_sim_copies(counts: *mut [u64; 3]) {
    let now = [
        PINNED.load(Ordering::SeqCst),
        PAGEABLE.load(Ordering::SeqCst),
        memory::under_way() as u64,
    ];
    // SAFETY: the caller's.
    unsafe { *counts = now };
}

#[unsafe(no_mangle)]
pub extern "C" fn cuInit(_flags: c_uint) -> c_int {
    // As a machine with the driver and without a GPU answers.
    if std::env::var_os("WEFT_CUDA_SIM_NO_GPU").is_some() { NO_DEVICE } else { 0 }
}

fn text(of: c_int) -> Option<(&'static core::ffi::CStr, &'static core::ffi::CStr)> {
    Some(match of {
        INVALID_VALUE => (c"CUDA_ERROR_INVALID_VALUE", c"invalid argument"),
        NOT_SUPPORTED => (c"CUDA_ERROR_NOT_SUPPORTED", c"operation not supported"),
        OUT_OF_MEMORY => (c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory"),
        INVALID_CONTEXT => (c"CUDA_ERROR_INVALID_CONTEXT", c"invalid device context"),
        LAUNCH_FAILED => (c"CUDA_ERROR_LAUNCH_FAILED", c"unspecified launch failure"),
        _ => return None,
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorName(code: c_int, out: *mut *const c_char) -> c_int {
    let Some((name, _)) = text(code) else { return INVALID_VALUE };
    // SAFETY: the caller's.
    unsafe { *out = name.as_ptr() };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorString(code: c_int, out: *mut *const c_char) -> c_int {
    let Some((_, says)) = text(code) else { return INVALID_VALUE };
    // SAFETY: the caller's.
    unsafe { *out = says.as_ptr() };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDriverGetVersion(out: *mut c_int) -> c_int {
    // SAFETY: the caller's.
    unsafe { *out = 12_000 };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetCount(out: *mut c_int) -> c_int {
    // SAFETY: the caller's.
    unsafe { *out = DEVICES };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(out: *mut c_int, ordinal: c_int) -> c_int {
    if !(0..DEVICES).contains(&ordinal) {
        return INVALID_DEVICE;
    }
    // SAFETY: the caller's.
    unsafe { *out = ordinal };
    0
}

unsafe fn fill(out: *mut c_char, len: c_int, text: &str) -> c_int {
    let bytes = text.as_bytes();
    let len = bytes.len().min(len.max(1) as usize - 1);
    // SAFETY: the caller has so many bytes there.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), out.cast(), len);
        *out.add(len) = 0;
    }
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetName(out: *mut c_char, len: c_int, device: c_int) -> c_int {
    // SAFETY: the caller's.
    unsafe { fill(out, len, &format!("No GPU {device}")) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetPCIBusId(out: *mut c_char, len: c_int, device: c_int) -> c_int {
    // SAFETY: the caller's.
    unsafe { fill(out, len, &format!("0000:{:02X}:00.0", 0xA0 + device)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetAttribute(out: *mut c_int, what: c_int, _: c_int) -> c_int {
    // SAFETY: the caller's.
    unsafe {
        *out = match what {
            PEER_MEMORY => 1,
            DMA_BUF => DMA_BUFS.load(Ordering::SeqCst),
            // What a card has written is seen after a call for that, and not before.
            FLUSH_OPTIONS => 1,
            _ => 0,
        }
    };
    0
}

/// Whether memory can be exported from now on.
#[unsafe(no_mangle)]
pub extern "C" fn weft_cuda_sim_dma_bufs(exports: c_int) {
    DMA_BUFS.store(exports, Ordering::SeqCst);
}

/// How often what cards have written was waited for.
#[unsafe(no_mangle)]
pub extern "C" fn weft_cuda_sim_flushes() -> u64 {
    FLUSHES.load(Ordering::SeqCst)
}

/// How many copies to memory of GPUs were asked for.
#[unsafe(no_mangle)]
pub extern "C" fn weft_cuda_sim_copies_in() -> u64 {
    COPIES_IN.load(Ordering::SeqCst)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetHandleForAddressRange(
    out: *mut c_void,
    at: u64,
    len: usize,
    kind: c_int,
    flags: u64,
) -> c_int {
    if DMA_BUFS.load(Ordering::SeqCst) == 0 {
        return NOT_SUPPORTED;
    }
    let fd = memory::export(at, len).filter(|_| kind == 1 && flags == 0);
    let Some(fd) = fd else { return INVALID_VALUE };
    // SAFETY: the caller's, of a descriptor.
    unsafe { *out.cast::<c_int>() = fd };
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn cuFlushGPUDirectRDMAWrites(target: c_int, scope: c_int) -> c_int {
    match (current(), target, scope) {
        (None, ..) => INVALID_CONTEXT,
        (Some(_), 0, 100 | 200) => {
            FLUSHES.fetch_add(1, Ordering::SeqCst);
            0
        }
        _ => INVALID_VALUE,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(out: *mut *mut c_void, device: c_int) -> c_int {
    if !(0..DEVICES).contains(&device) {
        return INVALID_DEVICE;
    }
    // SAFETY: the caller's.
    unsafe { *out = std::ptr::without_provenance_mut(device as usize + 1) };
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxPushCurrent_v2(context: *mut c_void) -> c_int {
    if !(1..=DEVICES as usize).contains(&context.addr()) {
        return INVALID_CONTEXT;
    }
    CURRENT.with_borrow_mut(|all| all.push(context.addr()));
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxPopCurrent_v2(out: *mut *mut c_void) -> c_int {
    let Some(popped) = CURRENT.with_borrow_mut(Vec::pop) else { return INVALID_CONTEXT };
    if !out.is_null() {
        // SAFETY: the caller's.
        unsafe { *out = std::ptr::without_provenance_mut(popped) };
    }
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuPointerGetAttribute(out: *mut c_void, what: c_int, at: u64) -> c_int {
    let Some(device) = memory::device_of(at) else { return INVALID_VALUE };
    // SAFETY: the caller's, of the type that the attribute has.
    unsafe {
        match what {
            1 => *out.cast::<*mut c_void>() = std::ptr::without_provenance_mut(device as usize + 1),
            2 => *out.cast::<c_uint>() = 2,
            9 => *out.cast::<c_int>() = device,
            _ => return INVALID_VALUE,
        }
    }
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemHostRegister_v2(start: *mut c_void, len: usize, _flags: c_uint) -> c_int {
    match PIN_ANSWER.load(Ordering::SeqCst) {
        0 if current().is_none() => INVALID_CONTEXT,
        0 if memory::pin(start.expose_provenance(), len) => 0,
        0 => ALREADY_REGISTERED,
        code => code,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAlloc_v2(out: *mut u64, len: usize) -> c_int {
    let Some(device) = current() else { return INVALID_CONTEXT };
    let Some(start) = memory::alloc(device, len) else { return OUT_OF_MEMORY };
    // SAFETY: the caller's.
    unsafe { *out = start };
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFree_v2(start: u64) -> c_int {
    if memory::free(start) { 0 } else { INVALID_VALUE }
}

/// # Safety
/// The memory of this process is there until the stream has done it, if it is pinned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoDAsync_v2(
    to: u64,
    from: *const c_void,
    len: usize,
    on: *mut c_void,
) -> c_int {
    if current().is_none() {
        return INVALID_CONTEXT;
    }
    let Some(to) = Used::new(to, len) else { return INVALID_VALUE };
    COPIES_IN.fetch_add(1, Ordering::SeqCst);
    let from = if memory::is_pinned(from.addr(), len) {
        PINNED.fetch_add(1, Ordering::SeqCst);
        Source::Pinned(from.expose_provenance())
    } else {
        PAGEABLE.fetch_add(1, Ordering::SeqCst);
        // SAFETY: the caller's.
        Source::Staged(unsafe { std::slice::from_raw_parts(from.cast::<u8>(), len) }.to_vec())
    };
    stream(on).ask(Work::In { from, to, len });
    0
}

/// # Safety
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoHAsync_v2(
    to: *mut c_void,
    from: u64,
    len: usize,
    on: *mut c_void,
) -> c_int {
    if current().is_none() {
        return INVALID_CONTEXT;
    }
    let Some(from) = Used::new(from, len) else { return INVALID_VALUE };
    let pinned = memory::is_pinned(to.addr(), len);
    if pinned { &PINNED } else { &PAGEABLE }.fetch_add(1, Ordering::SeqCst);
    stream(on).ask(Work::Out { from, to: to.expose_provenance(), len });
    if pinned { 0 } else { stream(on).wait() }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreate(out: *mut *mut c_void, _flags: c_uint) -> c_int {
    if current().is_none() {
        return INVALID_CONTEXT;
    }
    // SAFETY: the caller's.
    unsafe { *out = std::ptr::from_ref(Stream::new()).cast_mut().cast() };
    0
}

/// It stays: tests may have it still.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamDestroy_v2(on: *mut c_void) -> c_int {
    stream(on).wait()
}

/// No stream of this driver is ever captured.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamIsCapturing(_: *mut c_void, out: *mut c_int) -> c_int {
    // SAFETY: the caller's.
    unsafe { *out = 0 };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuThreadExchangeStreamCaptureMode(mode: *mut c_int) -> c_int {
    // SAFETY: the caller's.
    unsafe { *mode = CAPTURE_MODE.replace(*mode) };
    0
}

/// What is answered to whoever waits, as if a stream were captured all the time.
fn captured() -> c_int {
    const RELAXED: c_int = 2;
    if CAPTURE_MODE.get() == RELAXED { 0 } else { CAPTURE_UNSUPPORTED }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamSynchronize(on: *mut c_void) -> c_int {
    match captured() {
        0 => stream(on).wait(),
        code => code,
    }
}

/// # Safety
/// As cuda.h says: `call` may be called until the stream has done it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchHostFunc(
    on: *mut c_void,
    call: unsafe extern "C" fn(*mut c_void),
    data: *mut c_void,
) -> c_int {
    let data = data.expose_provenance();
    // SAFETY: the caller's.
    let call = move || unsafe { call(with_exposed_provenance::<c_void>(data).cast_mut()) };
    stream(on).ask(Work::Call(Box::new(call)));
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventCreate(out: *mut *mut c_void, _flags: c_uint) -> c_int {
    // SAFETY: the caller's.
    unsafe { *out = Arc::into_raw(Arc::<Event>::default()).cast_mut().cast() };
    0
}

/// # Safety
/// The event is there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventRecord(event: *mut c_void, on: *mut c_void) -> c_int {
    // SAFETY: it came from `cuEventCreate`, and stays.
    let event = unsafe {
        Arc::increment_strong_count(event.cast::<Event>());
        Arc::from_raw(event.cast::<Event>())
    };
    stream(on).ask(Work::Event(event));
    0
}

/// # Safety
/// The event is there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventSynchronize(event: *mut c_void) -> c_int {
    match WAIT_ANSWER.load(Ordering::SeqCst) {
        0 if captured() != 0 => captured(),
        // SAFETY: the caller's.
        0 => unsafe { &*event.cast::<Event>() }.wait(),
        code => code,
    }
}

/// # Safety
/// The event is there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventQuery(event: *mut c_void) -> c_int {
    if captured() != 0 {
        return captured();
    }
    // SAFETY: the caller's.
    unsafe { &*event.cast::<Event>() }.query().unwrap_or(NOT_READY)
}

/// # Safety
/// The event is there, and not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventDestroy_v2(event: *mut c_void) -> c_int {
    // SAFETY: the caller's.
    drop(unsafe { Arc::from_raw(event.cast::<Event>()) });
    0
}

/// # Safety
/// The memory is there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoH_v2(to: *mut c_void, from: u64, len: usize) -> c_int {
    let Some(from) = Used::new(from, len) else { return INVALID_VALUE };
    // SAFETY: the caller's, and ours.
    unsafe { std::ptr::copy_nonoverlapping(from.bytes, to.cast(), len) };
    0
}

/// # Safety
/// The memory is there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoD_v2(to: u64, from: *const c_void, len: usize) -> c_int {
    let Some(to) = Used::new(to, len) else { return INVALID_VALUE };
    // SAFETY: the caller's, and ours.
    unsafe { std::ptr::copy_nonoverlapping(from.cast(), to.bytes, len) };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetDevice(out: *mut c_int) -> c_int {
    let Some(device) = current() else { return INVALID_CONTEXT };
    // SAFETY: the caller's.
    unsafe { *out = device };
    0
}

/// The current context, for programs that ask.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetCurrent(out: *mut *mut c_void) -> c_int {
    let now = CURRENT.with_borrow(|all| all.last().copied());
    // SAFETY: the caller's.
    unsafe { *out = now.map_or(null_mut(), std::ptr::without_provenance_mut) };
    0
}
