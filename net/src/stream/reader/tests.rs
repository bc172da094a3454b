//! Frames come out as they went in, however the stream is cut.

use super::*;
use crate::frame::Kind;
use proptest::prelude::*;
use std::task::Waker;

/// Gives so many bytes at a time, and makes who reads wait in between.
struct Cut {
    bytes: Vec<u8>,
    at: usize,
    cuts: Vec<usize>,
    turn: usize,
}

impl AsyncRead for Cut {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.turn += 1;
        let cut = this.cuts[this.turn % this.cuts.len()];
        if cut == 0 {
            return Poll::Pending;
        }
        let end = this.bytes.len().min(this.at + cut.min(into.remaining()));
        into.put_slice(&this.bytes[this.at..end]);
        this.at = end;
        Poll::Ready(Ok(()))
    }
}

/// Polls until it is ready: nothing is ever waited for in earnest.
fn now<T>(mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> T {
    let mut cx = Context::from_waker(Waker::noop());
    for _ in 0..1_000_000 {
        if let Poll::Ready(done) = poll(&mut cx) {
            return done;
        }
    }
    panic!("it waits for ever")
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + seed * 7 + i / 251) as u8).collect()
}

fn check(frames: &[(usize, Vec<usize>)], cuts: Vec<usize>) {
    let mut bytes = Vec::new();
    for (id, (head, pieces)) in frames.iter().enumerate() {
        let lens = (*head as u32, pieces.iter().sum::<usize>() as u32);
        let header = Header::new(Kind::Answer, 33, id as u64);
        bytes.extend(Header { head_len: lens.0, payload_len: lens.1, ..header }.encode());
        bytes.extend(pattern(*head, id));
        pieces.iter().enumerate().for_each(|(i, len)| bytes.extend(pattern(*len, id + i)));
    }
    let mut reader =
        FrameReader::new(Cut { bytes, at: 0, cuts, turn: 0 }, &[], Progress::default());
    for (id, (head, pieces)) in frames.iter().enumerate() {
        let header = now(|cx| reader.poll_header(cx)).unwrap();
        assert_eq!((header.id, header.head_len as usize), (id as u64, *head));
        assert!(now(|cx| reader.poll_head(cx)).unwrap() == pattern(*head, id));
        for (i, len) in pieces.iter().enumerate() {
            let mut into = vec![0; *len];
            now(|cx| reader.poll_payload(cx, &mut into)).unwrap();
            assert!(into == pattern(*len, id + i), "piece {i} of frame {id}");
        }
    }
    assert!(matches!(now(|cx| reader.poll_header(cx)), Err(Broken::Closed)));
}

#[test]
fn a_head_is_whole_though_the_buffer_grows_while_it_comes() {
    check(&[(10_000, vec![]), (10_000, vec![40_000])], vec![700, 1448, 4096, 0]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn frames_come_whole_however_the_stream_is_cut(
        frames in prop::collection::vec(
            (
                prop_oneof![0..200usize, 3000..20_000usize, 60_000..70_000usize],
                prop::collection::vec(
                    prop_oneof![1..100usize, Just(4096), 10_000..20_000usize, 60_000..140_000usize],
                    0..6,
                ),
            ),
            1..6,
        ),
        mut cuts in prop::collection::vec(
            prop_oneof![Just(0), 1..64usize, Just(1448), Just(4096), 2000..70_000usize],
            1..12,
        ),
    ) {
        cuts.push(1 << 20);
        check(&frames, cuts);
    }
}
