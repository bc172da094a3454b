//! GPUs, and the contexts that their memory belongs to.

use crate::driver::{Driver, RawContext, RawStream, driver};
use crate::lane::{Direction, Lane};
use crate::scope::Scope;
use libc::{c_char, c_int};
use std::collections::BTreeMap;
use std::ffi::CStr;
use std::ptr::null_mut;
use std::sync::Arc;
use weft_client::sync::Mutex;
use weft_proto::Result;

/// `CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED`, and `..._DMA_BUF_SUPPORTED`.
const PEER_MEMORY: c_int = 116;
const DMA_BUF: c_int = 124;

/// A GPU as the driver describes it.
#[derive(Clone, Debug)]
pub struct Gpu {
    /// Its place among those that this process sees.
    pub ordinal: i32,
    /// What its vendor calls it.
    pub name: String,
    /// Where it is on the bus, as sysfs has it.
    pub pci: String,
    /// Whether its memory can be exported as a dma-buf, for other devices.
    pub dma_buf: bool,
    /// Whether its memory can be reached through a module of the kernel (`nvidia-peermem`).
    pub peer_memory: bool,
}

/// The GPUs that this process sees. Errors: `NotSupported` without a driver.
pub fn gpus() -> Result<Vec<Gpu>> {
    let driver = driver()?;
    let mut count = 0;
    // SAFETY: a number is filled.
    driver.check("counting GPUs", unsafe { (driver.functions.device_count)(&raw mut count) })?;
    (0..count).map(|ordinal| gpu(driver, ordinal)).collect()
}

fn gpu(driver: &Driver, ordinal: c_int) -> Result<Gpu> {
    let what = format!("GPU {ordinal}");
    let functions = &driver.functions;
    let device = device(driver, ordinal)?;
    let text = |of: unsafe extern "C" fn(*mut c_char, c_int, c_int) -> c_int| {
        let mut text = [0; 256];
        // SAFETY: so many bytes are there, the last of which stays zero.
        let code = unsafe { of(text.as_mut_ptr(), text.len() as c_int - 1, device) };
        driver.check(&what, code)?;
        // SAFETY: it ends with a zero at the latest there.
        let text = unsafe { CStr::from_ptr(text.as_ptr()) };
        Ok::<_, weft_proto::Error>(text.to_string_lossy().into_owned())
    };
    let has = |attribute| {
        let mut value = 0;
        // SAFETY: a number is filled; what an older driver does not know, its GPUs have not.
        unsafe {
            (functions.device_attribute)(&raw mut value, attribute, device) == 0 && value != 0
        }
    };
    Ok(Gpu {
        ordinal,
        name: text(functions.device_name)?,
        pci: text(functions.device_pci)?.to_lowercase(),
        dma_buf: has(DMA_BUF),
        peer_memory: has(PEER_MEMORY),
    })
}

fn device(driver: &Driver, ordinal: c_int) -> Result<c_int> {
    let mut device = 0;
    // SAFETY: a number is filled.
    let code = unsafe { (driver.functions.device_get)(&raw mut device, ordinal) };
    driver.check(&format!("GPU {ordinal}"), code).map(|()| device)
}

/// A context, in which copies are made. It goes with the last memory of it, when the program has
/// ended it.
pub(crate) struct Context {
    scope: Scope,
    /// In and out, made when the first copy is.
    lanes: [Mutex<Option<Arc<Lane>>>; 2],
}

/// Those that are used, by their handles, and that of each GPU itself, which is held for ever.
#[derive(Default)]
struct Contexts {
    used: BTreeMap<usize, Arc<Context>>,
    primary: BTreeMap<c_int, usize>,
}

static CONTEXTS: Mutex<Contexts> =
    Mutex::new(Contexts { used: BTreeMap::new(), primary: BTreeMap::new() });

impl Context {
    /// The one with this handle. Memory may belong to none: then the one that this thread works in,
    /// if it is of this GPU, or that of the GPU itself.
    pub fn of(driver: &'static Driver, mut raw: RawContext, ordinal: c_int) -> Result<Arc<Self>> {
        let mut contexts = CONTEXTS.lock();
        if raw.is_null() {
            raw = current(driver, ordinal);
        }
        if raw.is_null() {
            raw = match contexts.primary.get(&ordinal) {
                Some(primary) => std::ptr::with_exposed_provenance_mut(*primary),
                None => {
                    let primary = retain(driver, ordinal)?;
                    contexts.primary.insert(ordinal, primary.expose_provenance());
                    primary
                }
            };
        }
        let raw = raw.expose_provenance();
        let new = || Arc::new(Self { scope: Scope::new(driver, raw), lanes: Default::default() });
        Ok(contexts.used.entry(raw).or_insert_with(new).clone())
    }

    pub fn scope(&self) -> Scope {
        self.scope
    }

    /// [`Scope::within`].
    pub fn within<T>(self: &Arc<Self>, act: impl FnOnce() -> Result<T>) -> Result<T> {
        let entered = self.scope.enter().inspect_err(|_| {
            // The program has ended it, and another may get its handle.
            let used = &mut CONTEXTS.lock().used;
            if used.get(&self.scope.raw()).is_some_and(|context| Arc::ptr_eq(context, self)) {
                used.remove(&self.scope.raw());
            }
        })?;
        let done = act();
        drop(entered);
        done
    }

    /// Where copies in this direction are made.
    pub fn lane(self: &Arc<Self>, direction: Direction) -> Result<Arc<Lane>> {
        let mut lane = self.lanes[direction as usize].lock();
        if let Some(lane) = &*lane {
            return Ok(lane.clone());
        }
        let context = Arc::downgrade(self);
        let forget = move |stream| {
            if let Some(context) = context.upgrade() {
                context.forget(direction, stream);
            }
        };
        Ok(lane.insert(Lane::new(self.scope, direction, forget)?).clone())
    }

    /// A lane with this stream has failed, and is not used again.
    fn forget(&self, direction: Direction, stream: RawStream) {
        let mut lane = self.lanes[direction as usize].lock();
        if lane.as_ref().is_some_and(|lane| lane.is_on(stream)) {
            *lane = None;
        }
    }
}

/// The context that this thread works in, if it is of this GPU.
fn current(driver: &Driver, ordinal: c_int) -> RawContext {
    let (mut context, mut found) = (null_mut(), 0);
    // SAFETY: both are filled.
    let known = unsafe {
        (driver.functions.context_current)(&raw mut context) == 0
            && !context.is_null()
            && (driver.functions.context_device)(&raw mut found) == 0
    };
    match known && device(driver, ordinal).is_ok_and(|device| device == found) {
        true => context,
        false => null_mut(),
    }
}

/// The context of a GPU itself, held.
fn retain(driver: &Driver, ordinal: c_int) -> Result<RawContext> {
    let (mut context, device) = (null_mut(), device(driver, ordinal)?);
    // SAFETY: a handle is filled.
    let code = unsafe { (driver.functions.context_retain)(&raw mut context, device) };
    driver.check(&format!("the context of GPU {ordinal}"), code).map(|()| context)
}
