//! What memory the card knows: the regions that [`AlignedBuf`](crate::AlignedBuf) lies in, each
//! made known once, and runs of memory outside of them for as long as they are used.

use super::nic::{Keys, Local, Nic};
use crate::aligned::{REGIONS, regions};
use crate::dma_buf::DmaBuf;
use crate::sync::Mutex;
use std::io;
use std::sync::{Arc, OnceLock};

/// Memory that one card knows, in one of its protection domains.
pub(crate) struct Domain {
    nic: Box<dyn Nic>,
    regions: [OnceLock<Keys>; REGIONS],
    /// Held while a region is made known.
    registering: Mutex<()>,
    /// Why it can know no more memory.
    failed: OnceLock<String>,
}

/// Memory outside of the regions; the card forgets it when this is dropped.
pub(crate) struct Registered {
    domain: Arc<Domain>,
    keys: Keys,
}

/// A run of memory that the card knows, and what keeps it known.
pub(crate) type Known = (Keys, Option<Registered>);

impl Domain {
    /// A card that knows the regions that there are now.
    pub fn new(nic: Box<dyn Nic>) -> io::Result<Arc<Self>> {
        let registering = Mutex::default();
        let regions_ = [const { OnceLock::new() }; REGIONS];
        let domain = Self { nic, regions: regions_, registering, failed: OnceLock::new() };
        for index in 0..regions().count() {
            domain.region(index)?;
        }
        Ok(Arc::new(domain))
    }

    fn region(&self, index: usize) -> io::Result<Keys> {
        if let Some(keys) = self.regions[index].get() {
            return Ok(*keys);
        }
        let _registering = self.registering.lock();
        if let Some(keys) = self.regions[index].get() {
            return Ok(*keys);
        }
        let region = regions().nth(index).ok_or(io::ErrorKind::NotFound)?;
        let keys = self.register(region.start(), crate::Region::LEN)?;
        Ok(*self.regions[index].get_or_init(|| keys))
    }

    fn register(&self, start: *mut u8, len: usize) -> io::Result<Keys> {
        self.nic.register(start, len).inspect_err(|error| {
            self.failed.get_or_init(|| error.to_string());
        })
    }

    /// Why this card is of no use, if it is: memory could not be made known to it once, and would
    /// not be again.
    pub fn failed(&self) -> Option<&str> {
        self.failed.get().map(String::as_str)
    }

    /// The region that this memory lies in.
    pub fn in_region(&self, start: *const u8) -> io::Result<Option<Keys>> {
        regions().position(|region| region.holds(start)).map(|at| self.region(at)).transpose()
    }

    /// Makes memory known, if it is not. A buffer lies in one region, or in none.
    pub fn know(self: &Arc<Self>, start: *mut u8, len: usize) -> io::Result<Known> {
        if let Some(keys) = self.in_region(start)? {
            return Ok((keys, None));
        }
        let keys = self.register(start, len)?;
        Ok((keys, Some(Registered { domain: self.clone(), keys })))
    }

    /// Makes memory of a device known. Error: this card does not reach it; all else goes on.
    pub fn know_device(&self, memory: &DmaBuf) -> io::Result<Keys> {
        self.nic.register_device(memory)
    }

    /// The card forgets memory of a device.
    pub fn forget_device(&self, keys: Keys) {
        self.nic.deregister(keys);
    }

    /// As [`Self::know`], for requests of this side.
    pub fn local(
        self: &Arc<Self>,
        start: *mut u8,
        len: usize,
    ) -> io::Result<(Local, Option<Registered>)> {
        let (keys, registered) = self.know(start, len)?;
        Ok((Local { start, len, key: keys.local }, registered))
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        let known = self.regions.iter().filter_map(OnceLock::get);
        known.for_each(|keys| self.nic.deregister(*keys));
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.domain.nic.deregister(self.keys);
    }
}
