//! The regions that payloads lie in, made known to the driver.

use crate::context::Context;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use weft_client::sync::Mutex;
use weft_net::{Region, regions};
use weft_proto::{Error, ErrorKind, Result};

/// As many as there can be.
const REGIONS: usize = 8;
/// `CU_MEMHOSTREGISTER_PORTABLE`: for all contexts.
const PORTABLE: u32 = 1;
/// `CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED`.
const ALREADY: i32 = 712;

/// Where memory could not be pinned, that is tried again after this.
const AGAIN: Duration = Duration::from_secs(10);

/// What is known of each; what is pinned stays so to the end of the process.
static PINNED: Mutex<[Pinned; REGIONS]> = Mutex::new([Pinned::Unknown; REGIONS]);

#[derive(Clone, Copy)]
enum Pinned {
    Unknown,
    Yes,
    /// It was tried then.
    No(Instant),
}

/// Whether the driver copies from this memory by itself; its region is made known before.
pub(crate) fn is_pinned(context: &Arc<Context>, start: *const u8) -> bool {
    let Some((index, region)) = regions().enumerate().find(|(_, region)| region.holds(start))
    else {
        return false;
    };
    let mut all = PINNED.lock();
    let Some(pinned) = all.get_mut(index) else { return false };
    match *pinned {
        Pinned::Yes => return true,
        Pinned::No(tried) if tried.elapsed() < AGAIN => return false,
        Pinned::No(_) | Pinned::Unknown => {}
    }
    let first = matches!(*pinned, Pinned::Unknown);
    match pin(context, region) {
        Ok(()) => {
            *pinned = Pinned::Yes;
            true
        }
        Err(error) => {
            *pinned = Pinned::No(Instant::now());
            if first {
                let why = format!("{error}; is there a limit on locked memory (ulimit -l)?");
                tracing::warn!(why, "memory cannot be pinned: copies to GPUs take longer");
            }
            false
        }
    }
}

fn pin(context: &Arc<Context>, region: &Region) -> Result<()> {
    if !keeps_pinned_pages() {
        let what = "programs that fork need Linux 5.12: before that the parent's pages move";
        return Err(Error::new(ErrorKind::NotSupported, what));
    }
    let driver = context.scope().driver;
    context.within(|| {
        let start = region.start().cast();
        // SAFETY: the region stays as it is to the end of the process.
        match unsafe { (driver.functions.host_register)(start, Region::LEN, PORTABLE) } {
            ALREADY => Ok(()),
            code => driver.check("pinning memory", code),
        }
    })
}

/// Whether a parent that forks keeps the pages that a device knows: since Linux 5.12 the child gets
/// copies of them.
fn keeps_pinned_pages() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    let (major, minor) = (numbers.next(), numbers.next());
    matches!((major, minor), (Some(Ok(major)), Some(Ok(minor))) if (major, minor) >= (5, 12))
}
