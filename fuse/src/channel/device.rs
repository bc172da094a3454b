//! The plain channel: one read a request, one write an answer.

use crate::abi::{self, Encoded, InitReply, MAX_REQUEST, Notice, Op, Reply, Wanted};
use bytes::Bytes;
use std::fs::File;
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

/// The longest request: a write, with its header.
pub(super) const BUFFER: usize = MAX_REQUEST as usize + 4096;
/// Parts of one write; Linux takes 1024.
const MOST_PARTS: usize = 1000;

/// An open `/dev/fuse` that is connected to a mount.
#[derive(Debug)]
pub struct Device(File);

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Device {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl Device {
    pub fn new(fd: OwnedFd) -> Arc<Self> {
        Arc::new(Self(fd.into()))
    }

    /// Reads one request; `None` when the connection is over, or `goes_on` says no. Blocks.
    pub(super) fn read(
        &self,
        buffer: &mut [u8],
        goes_on: impl Fn() -> bool,
    ) -> io::Result<Option<usize>> {
        loop {
            if !goes_on() {
                return Ok(None);
            }
            return match (&self.0).read(buffer) {
                // What the kernel took back before it was read.
                Err(e) if matches!(e.raw_os_error(), Some(libc::ENOENT | libc::EAGAIN)) => continue,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                // Aborted connections are told so by some kernels.
                Err(e) if matches!(e.raw_os_error(), Some(libc::ENODEV | libc::ECONNABORTED)) => {
                    Ok(None)
                }
                Err(e) => Err(e),
                Ok(len) => Ok(Some(len)),
            };
        }
    }

    /// Shakes hands: must be the first that is done with a device.
    pub fn greet(&self, wanted: Wanted) -> io::Result<InitReply> {
        let mut buffer = vec![0; BUFFER];
        let len = self
            .read(&mut buffer, || true)?
            .ok_or_else(|| io::Error::other("the mount is gone"))?;
        let request = abi::decode(&buffer[..len])
            .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
        let unique = request.header.unique;
        let Op::Init(offer) = request.op else {
            return Err(io::Error::other("the kernel did not begin with a handshake"));
        };
        match abi::negotiate(&offer, wanted) {
            Ok(agreed) => {
                self.write(&Encoded::new(unique, &Ok(Reply::Init(agreed))))?;
                Ok(agreed)
            }
            Err(errno) => {
                self.write(&Encoded::new(unique, &Err(errno)))?;
                let (major, minor) = (offer.major, offer.minor);
                Err(io::Error::other(format!(
                    "the kernel speaks FUSE {major}.{minor}, which this program does not"
                )))
            }
        }
    }

    fn write(&self, reply: &Encoded<'_>) -> io::Result<()> {
        let joined;
        let mut data = reply.data();
        if data.len() > MOST_PARTS {
            joined = [Bytes::from(data.concat())];
            data = &joined;
        }
        match data {
            [] => (&self.0).write(reply.head()).map(drop),
            [one] => {
                (&self.0).write_vectored(&[IoSlice::new(reply.head()), IoSlice::new(one)]).map(drop)
            }
            many => {
                let mut parts = vec![IoSlice::new(reply.head())];
                parts.extend(many.iter().map(|part| IoSlice::new(part)));
                (&self.0).write_vectored(&parts).map(drop)
            }
        }
    }

    pub fn answer(&self, reply: &Encoded<'_>) {
        match self.write(reply) {
            Ok(()) => {}
            // The request was interrupted and forgotten, or the mount is gone.
            Err(e) if matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ENODEV)) => {}
            Err(e) => tracing::error!("the kernel refused an answer: {e}"),
        }
    }

    /// Tells the kernel something. Errors: `NotFound` if it does not know the inode or the name.
    pub fn notify(&self, notice: &Notice) -> io::Result<()> {
        (&self.0).write(&notice.encode()).map(drop)
    }
}
