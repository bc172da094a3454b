//! What calls use of a run of a GPU's memory, and copies to and from it.

use crate::context::Context;
use crate::driver::Address;
use crate::lane::{Direction, Run};
use crate::pinned::is_pinned;
use std::sync::Arc;
use tokio::sync::oneshot;
use weft_client::Placed;
use weft_client::sync::{Condvar, Mutex};
use weft_net::Buffer;
use weft_proto::{Error, ErrorKind, Result};

/// A run of memory, and how many copies use it.
pub(crate) struct Shared {
    pub context: Arc<Context>,
    pub start: Address,
    pub len: usize,
    /// The process that it is of.
    process: u32,
    /// Copies that are under way.
    flights: Mutex<usize>,
    landed: Condvar,
}

/// A copy that is under way, until this is dropped.
struct Flight(Arc<Shared>);

impl Drop for Flight {
    fn drop(&mut self) {
        let mut flights = self.0.flights.lock();
        *flights -= 1;
        if *flights == 0 {
            self.0.landed.notify_all();
        }
    }
}

/// What says how copies ended.
pub(crate) struct Copies(oneshot::Receiver<Result<()>>);

/// A copy to this host.
pub(crate) struct CopyOut {
    copies: Copies,
    taken: oneshot::Receiver<Vec<Buffer>>,
}

fn stopped() -> Error {
    Error::new(ErrorKind::Io, "the thread that waits for copies has ended")
}

impl Copies {
    pub async fn over(self) -> Result<()> {
        self.0.await.map_err(|_| stopped())?
    }
}

impl CopyOut {
    /// What it has brought.
    pub async fn filled(self) -> Result<Vec<Buffer>> {
        self.copies.over().await?;
        self.taken.await.map_err(|_| stopped())
    }
}

impl Shared {
    pub fn new(context: Arc<Context>, start: Address, len: usize) -> Arc<Self> {
        let (flights, landed, process) = (Mutex::new(0), Condvar::new(), std::process::id());
        Arc::new(Self { context, start, len, process, flights, landed })
    }

    /// Whether it is of this process, and not of one that this was forked from.
    pub fn is_ours(&self) -> bool {
        self.process == std::process::id()
    }

    /// Waits until no copy is under way, in this thread.
    pub fn landed(&self) {
        let mut flights = self.flights.lock();
        while *flights > 0 {
            flights = self.landed.wait(flights);
        }
    }

    /// Begins to copy to it, from `at` on, what is not there yet of these bytes in a row; what is
    /// beyond `len` is left out.
    pub fn copy_in(
        self: &Arc<Self>,
        at: usize,
        len: usize,
        parts: &[Placed],
        kept: impl Send + 'static,
    ) -> Result<Copies> {
        self.of_this_process()?;
        let (mut runs, mut filled) = (Vec::with_capacity(parts.len()), 0);
        for Placed { bytes, is_there } in parts {
            let (host, len) = (bytes.as_ptr().cast_mut(), bytes.len().min(len - filled));
            if !is_there && len > 0 {
                // Known to the driver from now on, if it can be.
                is_pinned(&self.context, host);
                runs.push(Run { host, gpu: self.start + (at + filled) as u64, len });
            }
            filled += len;
        }
        self.copy(Direction::In, &runs, kept)
    }

    /// Returns when the copies to it are over that were begun before. Errors: `Io`.
    pub async fn copies_in_are_over(self: &Arc<Self>) -> Result<()> {
        if *self.flights.lock() == 0 {
            return Ok(());
        }
        self.of_this_process()?;
        self.copy(Direction::In, &[], ())?.over().await
    }

    /// Begins to fill buffers with what it has at these places.
    pub fn copy_out(self: &Arc<Self>, pieces: Vec<(usize, Buffer)>) -> Result<CopyOut> {
        self.of_this_process()?;
        let (mut runs, mut buffers) = (Vec::new(), Vec::new());
        for (at, buffer) in pieces {
            let host = buffer.memory();
            is_pinned(&self.context, host);
            runs.push(Run { host, gpu: self.start + at as u64, len: buffer.len() });
            buffers.push(buffer);
        }
        let (give, taken) = oneshot::channel();
        let copies = self.copy(Direction::Out, &runs, Handed(Some((buffers, give))))?;
        Ok(CopyOut { copies, taken })
    }

    fn of_this_process(&self) -> Result<()> {
        if self.is_ours() {
            return Ok(());
        }
        let what = "this process was forked from the one whose GPU it is";
        Err(Error::new(ErrorKind::Disconnected, what))
    }

    fn copy(
        self: &Arc<Self>,
        direction: Direction,
        runs: &[Run],
        kept: impl Send + 'static,
    ) -> Result<Copies> {
        let lane = self.context.lane(direction)?;
        *self.flights.lock() += 1;
        let flight = Flight(self.clone());
        // SAFETY: memory of the GPU stays as long as there is a flight, and that of this process is
        // in what is kept. It is nobody else's, as `Memory::new` says.
        Ok(Copies(unsafe { lane.begin(runs, (kept, flight)) }))
    }
}

/// Memory that is filled by a copy, handed on when that is over.
struct Handed(Option<(Vec<Buffer>, oneshot::Sender<Vec<Buffer>>)>);

impl Drop for Handed {
    fn drop(&mut self) {
        if let Some((buffers, to)) = self.0.take() {
            // Nobody may want them any more.
            let _ = to.send(buffers);
        }
    }
}
