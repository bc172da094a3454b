//! Frames over one stream, and the addresses that streams go to.

use super::queue::SendQueue;
use super::reader::FrameReader;
use super::{BoxStream, WriteHalf};
use crate::address::Address;
use crate::buffer::Buffer;
use crate::frame::Frame;
use crate::transport::{Link, Progress, Pump, Sender, User};
use std::io;
use std::sync::Arc;

/// What streams are called where an address names the network.
const NETWORK: &str = "tcp";

/// Host and port of an address. Error: `Unsupported`, it is on a network of another kind.
pub(super) fn socket(address: &Address) -> io::Result<(&str, u16)> {
    match address.network() {
        None | Some(NETWORK) => Ok((address.host(), address.port())),
        Some(other) => {
            let what = format!("{address}: {NETWORK} cannot reach what is on {other}");
            Err(io::Error::new(io::ErrorKind::Unsupported, what))
        }
    }
}

/// A connection over `stream`, of which the bytes `first` have been read.
pub(crate) fn link(stream: BoxStream, first: &[u8]) -> Link {
    let (heard, sent) = (Progress::default(), Progress::default());
    let subject = stream.subject().cloned();
    let (read, write) = stream.split();
    let queue = Arc::new(SendQueue::default());
    Link {
        sender: queue.clone(),
        receiver: Box::new(FrameReader::new(read, first, heard.clone())),
        pump: Box::new(Writer { queue, write, sent: sent.clone() }),
        heard,
        sent,
        network: if subject.is_some() { "tls" } else { NETWORK },
        subject,
        retry_after: None,
    }
}

impl Sender for SendQueue {
    /// The other side writes nowhere: what comes is read from the stream.
    unsafe fn ask(&self, frame: Frame<'_>, _into: &[Buffer]) -> bool {
        self.push(frame, None)
    }

    fn send(&self, frame: Frame<'_>, cost: Option<usize>) -> bool {
        self.push(frame, cost)
    }

    fn give_up(&self, id: u64) -> bool {
        self.take_back(id);
        false
    }

    fn is_idle(&self) -> bool {
        self.rests()
    }

    fn close(&self) {
        self.end();
    }

    fn sever(&self) {
        self.end();
    }
}

struct Writer {
    queue: Arc<SendQueue>,
    write: WriteHalf,
    sent: Progress,
}

#[async_trait::async_trait]
impl Pump for Writer {
    async fn run(self: Box<Self>, user: &dyn User) -> io::Result<()> {
        self.queue.write_to(self.write, &self.sent, user).await
    }
}
