//! The threads that serve a mount.

use super::device::{BUFFER, Device};
use super::ring::Rings;
use super::route::Route;
use crate::abi;
use crate::session::Session;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

/// The threads that serve a mount.
#[derive(Debug)]
pub struct Threads(Vec<JoinHandle<io::Result<()>>>);

impl Threads {
    /// Serves what comes by `/dev/fuse` on `count` threads, and by `rings` if there are any: the
    /// kernel then sends little the other way, unless it cannot use them.
    pub fn start(
        session: &Arc<Session>,
        device: &Arc<Device>,
        count: usize,
        rings: Option<Rings>,
    ) -> io::Result<Self> {
        let mut threads = Vec::new();
        for _ in 0..count.max(1) {
            let (session, device) = (session.clone(), device.clone());
            let thread = std::thread::Builder::new().name("fuse".into());
            let serve = move || session.guarded("/dev/fuse", || serve(&session, &device));
            threads.push(thread.spawn(serve)?);
        }
        if let Some(rings) = rings {
            threads.extend(rings.start(session, device));
        }
        Ok(Self(threads))
    }

    /// Waits until the connection ends. Answers the first failure.
    pub fn join(self) -> io::Result<()> {
        let mut first = Ok(());
        for thread in self.0 {
            let ended = thread.join();
            first = first
                .and(ended.unwrap_or_else(|_| Err(io::Error::other("a FUSE thread panicked"))));
        }
        first
    }
}

/// Serves requests until the connection is over.
fn serve(session: &Session, device: &Arc<Device>) -> io::Result<()> {
    let _inside = session.runtime().enter();
    let mut buffer = vec![0; BUFFER];
    let route = Route::Device(device.clone());
    while let Some(len) = device.read(&mut buffer)? {
        match abi::decode(&buffer[..len]) {
            Ok(request) => session.serve(&request, route.clone()),
            Err(error) => session.refuse(error, &buffer[..len], &route),
        }
    }
    Ok(())
}
