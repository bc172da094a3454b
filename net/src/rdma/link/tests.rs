//! Tests of link.

use super::super::connection::RECEIVES;
use super::super::script::Script;
use super::super::wire::{FRAGMENT, Kind as Message, PREFIX};
use super::*;
use std::task::Waker;

#[test]
fn a_long_head_leaves_no_memory_behind() {
    const LEN: usize = 2 << 20;
    let script = Script::new(RECEIVES);
    let connection = script.connection(Side::Server).unwrap();
    let mut incoming = Incoming::new(connection.clone());
    let header = Header { head_len: LEN as u32, ..Header::new(Kind::Request, 100, 1) };
    let places = Places { payload: Payload::Follows, sources: 0, landings: 0 };
    let mut frame = [&header.encode()[..], &places.encode()[..]].concat();
    frame.resize(frame.len() + LEN, 1);
    let mut cx = Context::from_waker(Waker::noop());
    assert!(incoming.poll_header(&mut cx).is_pending());
    for (at, part) in frame.chunks(FRAGMENT - PREFIX).enumerate() {
        script.say(Message::Frames, 0, part);
        connection.advance().unwrap();
        if at == 0 {
            assert!(incoming.poll_header(&mut cx).is_ready());
        }
        let head = incoming.poll_head(&mut cx);
        let all = (at + 1) * (FRAGMENT - PREFIX) >= frame.len();
        assert_eq!(all, matches!(head, Poll::Ready(Ok(head)) if head.len() == LEN));
    }
    assert!(incoming.taken.capacity() > KEEP);
    assert!(incoming.poll_header(&mut cx).is_pending());
    assert!(incoming.taken.capacity() <= KEEP);
}
