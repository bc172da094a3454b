//! Tests of `call`.

use super::*;
use crate::abi::{self, Reply, Request};
use crate::channel::Device;
use crate::handler::Outcome;
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::process::Command;
use tokio::sync::oneshot;

/// Is asked for nothing.
struct Idle;

impl Handler for Idle {
    fn handle(&self, _: &Request<'_>) -> Outcome {
        Outcome::Done(Err(Errno(libc::ENOSYS)))
    }

    fn unwanted(&self, _: &Header, _: &Reply) {}
}

/// Of a request of a process.
fn header(pid: u32) -> Header {
    let head = [48, opcode::OPENDIR].map(u32::to_ne_bytes).concat();
    let of = [7u64, 1].map(u64::to_ne_bytes).concat();
    let by = [0, 0, pid].map(u32::to_ne_bytes).concat();
    abi::decode(&[head, of, by, vec![0; 12]].concat()).unwrap().header
}

/// What it had open is closed from then on, and no lock may be taken for it that this misses.
#[tokio::test]
async fn who_takes_a_lock_is_told_of_a_killed_caller_before_the_kernel_is() {
    let (ours, mut kernel) = UnixStream::pair().unwrap();
    let route = Route::Device(Device::new(ours.into()));
    let waiting = Arc::new(Waiting::new(Arc::new(Idle), Box::new(|_| {})));
    let mut program = Command::new("sleep").arg("600").spawn().unwrap();
    let (header, caller) = (header(program.id()), Arc::new(Waiter::new(true)));
    let (_go, gate) = oneshot::channel::<()>();
    let work: Work = Box::pin(async move {
        let _ = gate.await;
        Ok(Reply::Empty)
    });
    let heard = Some(Heard::new(caller.clone(), &[]));
    waiting.start(&header, route, work, heard, &Handle::current());
    // Of a signal that it lives through.
    waiting.interrupt(header.unique);
    assert!(caller.waits());
    program.kill().unwrap();
    program.wait().unwrap();
    let answered = tokio::task::spawn_blocking(move || {
        let mut answer = [0; 16];
        kernel.read_exact(&mut answer).map(|()| answer)
    });
    let answer = answered.await.unwrap().unwrap();
    assert_eq!(answer[4..8], (-libc::EINTR).to_ne_bytes());
    assert!(!caller.waits());
}
