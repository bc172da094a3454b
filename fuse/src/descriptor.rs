//! Descriptors, from one process to another.

use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

/// Sends one descriptor over a Unix socket, with one byte.
pub fn send_descriptor(socket: impl AsFd, descriptor: impl AsFd) -> io::Result<()> {
    let descriptors = [descriptor.as_fd().as_raw_fd()];
    let rights = [ControlMessage::ScmRights(&descriptors)];
    let (socket, byte) = (socket.as_fd().as_raw_fd(), [IoSlice::new(&[0])]);
    loop {
        match sendmsg::<()>(socket, &byte, &rights, MsgFlags::MSG_NOSIGNAL, None) {
            Err(Errno::EINTR) => {}
            sent => return Ok(sent.map(drop)?),
        }
    }
}

/// Receives one descriptor, with one byte. Errors: `UnexpectedEof` if the other end has gone,
/// `InvalidData` if none came.
pub fn receive_descriptor(socket: impl AsFd) -> io::Result<OwnedFd> {
    let (mut byte, mut space) = ([0], cmsg_space!(RawFd));
    let mut parts = [IoSliceMut::new(&mut byte)];
    let message = loop {
        let (socket, flags) = (socket.as_fd().as_raw_fd(), MsgFlags::MSG_CMSG_CLOEXEC);
        match recvmsg::<()>(socket, &mut parts, Some(&mut space), flags) {
            Err(Errno::EINTR) => {}
            received => break received?,
        }
    };
    if message.bytes == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    for part in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(descriptors) = part
            && let Some(&descriptor) = descriptors.first()
        {
            // SAFETY: the kernel has just made it for this process, and nobody else knows it.
            return Ok(unsafe { OwnedFd::from_raw_fd(descriptor) });
        }
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, "no descriptor came"))
}
