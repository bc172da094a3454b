//! The threads that serve a mount.

use super::device::{BUFFER, Device};
use super::gate::Gate;
use super::ring::Rings;
use super::route::Route;
use crate::abi;
use crate::session::Session;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

/// The threads that serve a mount.
pub struct Threads {
    threads: Vec<JoinHandle<io::Result<()>>>,
    /// Stops those that read `/dev/fuse`.
    gate: Arc<Gate>,
}

impl Threads {
    /// Serves what comes by `/dev/fuse` on `count` threads, once `gate` is open, and by `rings` if
    /// there are any: the kernel then sends little the other way, unless it cannot use them.
    pub fn start(
        session: &Arc<Session>,
        device: &Arc<Device>,
        count: usize,
        rings: Option<Rings>,
        gate: Gate,
    ) -> io::Result<Self> {
        let (mut threads, gate) = (Vec::new(), Arc::new(gate));
        for _ in 0..count.max(1) {
            let (session, device, gate) = (session.clone(), device.clone(), gate.clone());
            let thread = std::thread::Builder::new().name("fuse".into());
            let serve = move || session.guarded("/dev/fuse", || serve(&session, &device, &gate));
            threads.push(thread.spawn(serve)?);
        }
        if let Some(rings) = rings {
            threads.extend(rings.start(session, device));
        }
        Ok(Self { threads, gate })
    }

    pub fn gate(&self) -> &Arc<Gate> {
        &self.gate
    }

    /// Waits until the connection ends. Answers the first failure.
    pub fn join(self) -> io::Result<()> {
        let mut first = Ok(());
        for thread in self.threads {
            let ended = thread.join();
            first = first
                .and(ended.unwrap_or_else(|_| Err(io::Error::other("a FUSE thread panicked"))));
        }
        first
    }
}

/// Serves requests until the connection is over, or another process takes them.
fn serve(session: &Session, device: &Arc<Device>, gate: &Gate) -> io::Result<()> {
    let _inside = session.runtime().enter();
    let passing = gate.enter();
    let mut buffer = vec![0; BUFFER];
    let route = Route::Device(device.clone());
    while let Some(len) = device.read(&mut buffer, || passing.pass())? {
        match abi::decode(&buffer[..len]) {
            Ok(request) => session.serve(&request, route.clone(), &buffer[..len]),
            Err(error) => session.refuse(error, &buffer[..len], &route),
        }
    }
    Ok(())
}
