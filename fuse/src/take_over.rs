//! A mount goes from the process that serves it to another: what that one does with the kernel's
//! side. See [`crate::hand_over`].

use crate::abi::InitReply;
use crate::adapter::Adapter;
use crate::channel::{Device, Gate, Threads};
use crate::dcache::{Content, Dcache};
use crate::mount::Mounted;
use crate::mount_error::MountError;
use crate::mount_table::Connection;
use crate::notifier::Notifier;
use crate::root::Root;
use crate::session::Session;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use tokio::runtime::Handle;
use weft_client::{ContentCache, Filesystem, NameCache};
use weft_proto::{InodeId, v1};

/// A mount that another process has served until now.
pub struct Inherited {
    device: Arc<Device>,
    notifier: Notifier,
    dcache: Dcache,
}

impl fmt::Debug for Inherited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inherited").finish_non_exhaustive()
    }
}

impl Inherited {
    /// The connection to the kernel, the root that it has, and what it may use of names and
    /// attributes; `None` from a process that gave it none. Must be called inside a runtime.
    pub fn new(device: OwnedFd, root: InodeId, known: Option<v1::KernelCache>) -> Self {
        let root = Root::new(root);
        let device = Device::new(device);
        let notifier = Notifier::new(device.clone(), Handle::current(), root);
        let dcache = Dcache::new(root);
        dcache.adopt(known);
        Self { device, notifier, dcache }
    }

    /// The kernel's names and attributes.
    pub fn name_cache(&self) -> Arc<dyn NameCache> {
        Arc::new(self.dcache.clone())
    }

    /// The kernel's cached pages.
    pub fn content_cache(&self) -> Arc<dyn ContentCache> {
        Arc::new(Content::new(self.dcache.clone(), self.notifier.clone()))
    }

    /// Makes ready to serve the mount at `path`, which is resolved, on `threads` threads, and then
    /// `requests` of the other process first: all that can fail. Must be called inside a runtime;
    /// requests run on that.
    pub fn prepare(
        self,
        fs: Filesystem,
        path: &Path,
        threads: usize,
        requests: Vec<Vec<u8>>,
        agreed: v1::KernelAgreement,
    ) -> Result<Prepared, MountError> {
        let Self { device, notifier, dcache } = self;
        let handler = Arc::new(Adapter::giving(fs, dcache.clone()));
        let session = Session::new(handler, Handle::current(), Connection::at(path));
        session.keep(requests, &device);
        let failed = |error| MountError::Mount { path: path.to_owned(), error };
        let agreed = InitReply::inherited(&agreed).map_err(|e| failed(io::Error::other(e)))?;
        let threads = Threads::start(&session, &device, threads, None, Gate::closed());
        let threads = threads.map_err(failed)?;
        let path = path.to_owned();
        dcache.begin(notifier.clone(), &agreed);
        Ok(Prepared(Mounted { path, session, device, threads, notifier, agreed, dcache }))
    }
}

/// A mount that is ready to be served.
pub struct Prepared(Mounted);

impl fmt::Debug for Prepared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Prepared").field(&self.0).finish()
    }
}

impl Prepared {
    /// Serves it, which the other process does not do any more.
    pub fn serve(self) -> Mounted {
        self.0.handover().resume();
        self.0
    }
}
