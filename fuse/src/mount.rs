//! Mounting: checks of the mount point, the handshake, the threads that serve, the end.

use crate::abi::{InitReply, Wanted, flag};
use crate::adapter::Adapter;
use crate::attach::attach;
use crate::channel::{Device, Gate, Rings, Threads};
use crate::dcache::{Content, Dcache};
use crate::flags::MountFlags;
use crate::hand_over::Handover;
use crate::handler::Handler;
use crate::mount_error::MountError;
use crate::mount_table::{Connection, SOURCE_PREFIX, mount_at, resolve_mount_point, unmount};
use crate::notifier::{Notifier, page_size};
use crate::root::Root;
use crate::session::Session;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::runtime::Handle;
use weft_client::{ContentCache, Filesystem};

/// The kernel's switch for FUSE over io_uring, of all mounts of the machine.
const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// Whether requests come over io_uring.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum IoUring {
    /// Where the kernel has it switched on.
    #[default]
    Auto,
    /// Always; switches it on, which needs root, and fails if it is not to be had.
    On,
    Off,
}

/// How to mount.
#[derive(Clone, Debug)]
pub struct Options {
    /// What `mount` and `df` show as the device.
    pub source: String,
    /// Threads that take requests from the kernel, unless they come over io_uring.
    pub threads: usize,
    pub io_uring: IoUring,
    /// The handler serves locks; else the kernel keeps those of this mount itself.
    pub locks: bool,
    /// Users other than the one who mounts may use it.
    pub allow_other: bool,
    pub flags: MountFlags,
    /// Mount over a folder that holds something, which is hidden meanwhile.
    pub allow_nonempty: bool,
    /// How far the kernel reads ahead, KiB; raising it needs root. The client reads far ahead
    /// itself; more than 512 KiB gained nothing.
    pub read_ahead_kib: u32,
}

impl Default for Options {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        Self {
            source: String::from(SOURCE_PREFIX),
            threads: cores.clamp(2, 4),
            io_uring: IoUring::Auto,
            locks: false,
            // SAFETY: geteuid only reads the credentials of this process.
            allow_other: unsafe { libc::geteuid() } == 0,
            flags: MountFlags::default(),
            allow_nonempty: false,
            read_ahead_kib: 512,
        }
    }
}

/// A mounted filesystem. Dropping it leaves it mounted until the process ends.
pub struct Mounted {
    pub(crate) path: PathBuf,
    pub(crate) session: Arc<Session>,
    pub(crate) device: Arc<Device>,
    pub(crate) threads: Threads,
    pub(crate) notifier: Notifier,
    pub(crate) agreed: InitReply,
    pub(crate) dcache: Dcache,
}

impl fmt::Debug for Mounted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mounted").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Mounted {
    /// What stops the serving, for another process to go on.
    pub fn handover(&self) -> Handover {
        Handover {
            session: self.session.clone(),
            device: self.device.clone(),
            gate: self.threads.gate().clone(),
            notifier: self.notifier.clone(),
            agreed: self.agreed,
            dcache: self.dcache.clone(),
        }
    }

    /// The resolved mount point.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The kernel's side, where it is known.
    pub fn connection(&self) -> Option<&Connection> {
        self.session.connection()
    }

    /// Invalidates what the kernel has cached of this mount.
    pub fn notifier(&self) -> &Notifier {
        &self.notifier
    }

    /// The kernel's cached pages.
    pub fn content_cache(&self) -> Arc<dyn ContentCache> {
        Arc::new(Content::new(self.dcache.clone(), self.notifier.clone()))
    }

    /// Do requests come over io_uring?
    pub fn over_io_uring(&self) -> bool {
        self.agreed.flags & flag::OVER_IO_URING != 0
    }

    /// Lets go of whoever waits for an answer, at the end: what is called then, and whatever comes
    /// later, is answered `EIO`.
    pub fn abandon(&self) -> impl FnOnce() + Send + 'static {
        let session = self.session.clone();
        move || session.abandon()
    }

    /// Takes the mount away; see [`unmount`].
    pub fn unmount(&self, lazy: bool) -> io::Result<()> {
        unmount(&self.path, lazy)
    }

    /// Waits until the mount has been taken away, by us or by anybody, and its last file is closed;
    /// or another process has taken over ([`Handover::is_over`]).
    pub fn join(self) -> io::Result<()> {
        self.threads.join()
    }
}

/// Refuses a path that cannot become a mount; answers it resolved.
pub fn check_mount_point(path: &Path, allow_nonempty: bool) -> Result<PathBuf, MountError> {
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => MountError::Missing(path.to_owned()),
        io::ErrorKind::NotADirectory => MountError::NotDirectory(path.to_owned()),
        _ => MountError::MountPoint { path: path.to_owned(), error },
    };
    let resolved = resolve_mount_point(path).map_err(failed)?;
    // Before anything asks the filesystem there: a dead mount would answer only errors.
    if let Some(mount) = mount_at(&resolved).map_err(failed)? {
        let (fs_type, source_name) = (mount.fs_type, mount.source);
        return Err(MountError::AlreadyMounted { path: resolved, fs_type, source_name });
    }
    let mut entries = fs::read_dir(&resolved).map_err(failed)?;
    if !allow_nonempty && entries.next().is_some() {
        return Err(MountError::NotEmpty(resolved));
    }
    Ok(resolved)
}

/// Mounts `fs` at `path`. On return the kernel sends requests there and they are answered. Must be
/// called inside a runtime, from a thread that may block; requests run on that runtime.
pub fn mount(fs: Filesystem, path: &Path, options: &Options) -> Result<Mounted, MountError> {
    let options = Options { locks: true, ..options.clone() };
    let dcache = Dcache::new(Root::new(fs.root()));
    let handler = Arc::new(Adapter::giving(fs.clone(), dcache.clone()));
    let mounted = Mounted { dcache, ..mount_handler(handler, path, &options)? };
    fs.set_content_cache(mounted.content_cache());
    fs.set_name_cache(Arc::new(mounted.dcache.clone()));
    mounted.dcache.begin(mounted.notifier.clone(), &mounted.agreed);
    Ok(mounted)
}

/// As [`mount`], with any handler of requests.
pub fn mount_handler(
    handler: Arc<dyn Handler>,
    path: &Path,
    options: &Options,
) -> Result<Mounted, MountError> {
    let path = check_mount_point(path, options.allow_nonempty)?;
    let rings = prepare_rings(options.io_uring)?;
    let device = Device::new(attach(&path, &options.source, options.allow_other, options.flags)?);
    let mounted = serve(handler, &device, rings, &path, options);
    match &mounted {
        Ok(_) => raise_read_ahead(&path, options.read_ahead_kib),
        // Nobody can have used it. That it cannot be served is what counts.
        Err(_) => drop(unmount(&path, true)),
    }
    mounted
}

fn serve(
    handler: Arc<dyn Handler>,
    device: &Arc<Device>,
    rings: Option<Rings>,
    path: &Path,
    options: &Options,
) -> Result<Mounted, MountError> {
    let failed = |error| MountError::Mount { path: path.to_owned(), error };
    let wanted =
        Wanted { io_uring: rings.is_some(), locks: options.locks, page: page_size() as u32 };
    let agreed = device.greet(wanted).map_err(failed)?;
    let over_io_uring = agreed.flags & flag::OVER_IO_URING != 0;
    if options.io_uring == IoUring::On && !over_io_uring {
        return Err(MountError::NoIoUring(io::Error::other("the kernel does not offer it")));
    }
    let rings = rings.filter(|_| over_io_uring);
    let root = handler.root();
    let session = Session::new(handler, Handle::current(), Connection::at(path));
    let threads = Threads::start(&session, device, options.threads, rings, Gate::default())
        .map_err(failed)?;
    let notifier = Notifier::new(device.clone(), Handle::current(), root);
    let channel = if over_io_uring { "io_uring" } else { "/dev/fuse" };
    tracing::info!("FUSE 7.{} over {channel}, flags {:#x}", agreed.minor, agreed.flags);
    let (path, device) = (path.to_owned(), device.clone());
    let dcache = Dcache::default();
    Ok(Mounted { path, session, device, threads, notifier, agreed, dcache })
}

/// Makes what io_uring needs before the kernel is told that it will be used.
fn prepare_rings(wanted: IoUring) -> Result<Option<Rings>, MountError> {
    if wanted == IoUring::Off {
        return Ok(None);
    }
    let prepared = switch_on(wanted == IoUring::On).and_then(|on| match on {
        true => Rings::prepare().map(Some),
        false => Ok(None),
    });
    match prepared {
        Ok(rings) => Ok(rings),
        Err(error) if wanted == IoUring::On => Err(MountError::NoIoUring(error)),
        Err(error) => {
            tracing::info!("FUSE over io_uring cannot be used, /dev/fuse is: {error}");
            Ok(None)
        }
    }
}

/// Is FUSE over io_uring switched on? Switches it on if that is wanted; other mounts that are made
/// later may then use it too.
fn switch_on(wanted: bool) -> io::Result<bool> {
    let named = |e: io::Error| io::Error::new(e.kind(), format!("{SWITCH}: {e}"));
    match fs::read_to_string(SWITCH) {
        Ok(state) if state.trim() == "Y" => Ok(true),
        Ok(_) if wanted => fs::write(SWITCH, "Y").map(|()| true).map_err(named),
        Ok(_) => Ok(false),
        // The kernel is older than Linux 6.14, or built without it.
        Err(e) if e.kind() == io::ErrorKind::NotFound && !wanted => Ok(false),
        Err(e) => Err(named(e)),
    }
}

/// FUSE itself grants at most what the kernel offers (128 KiB); the backing device's knob grants
/// more. Without the right to turn it, reads are only slower.
fn raise_read_ahead(path: &Path, kib: u32) {
    let Ok(Some(mount)) = mount_at(path) else { return };
    let knob = format!("/sys/class/bdi/{}/read_ahead_kb", mount.device);
    if let Err(e) = fs::write(&knob, kib.to_string()) {
        tracing::debug!("the kernel's read-ahead stays as it is: {knob}: {e}");
    }
}

#[cfg(test)]
mod tests;
