//! Memory that was given to a call, when the call is over before its answer has come.

use crate::support::*;
use bytes::Bytes;
use weft_net::{Buffer, Outgoing, Peer};

/// A size that no other test uses, so that nobody else takes the memory meanwhile. A block of this
/// size is taken again as soon as it is free.
const LEN: usize = 18 << 20;

/// Makes a call with a buffer of [`LEN`] bytes, and gives it up when the server has the request.
/// Answers where its memory was.
async fn drop_a_call(
    peer: &std::sync::Arc<Peer>,
    held: &mut tokio::sync::mpsc::UnboundedReceiver<Held>,
) -> (*const u8, Held) {
    let into = Buffer::take(LEN);
    let start = into.as_ptr();
    let call = tokio::spawn({
        let peer = peer.clone();
        async move { put(&peer, ECHO, Bytes::new(), vec![into]).await }
    });
    let request = held.recv().await.unwrap();
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    (start, request)
}

/// Whether this memory is free. A transport may have used some of that size itself meanwhile.
fn is_free(start: *const u8) -> bool {
    let next: Vec<Buffer> = (0..3).map(|_| Buffer::take(LEN)).collect();
    next.iter().any(|buffer| buffer.as_ptr() == start)
}

async fn answered(peer: &Peer, held: &mut tokio::sync::mpsc::UnboundedReceiver<Held>) {
    let (answer, ()) = tokio::join!(ask(peer, OTHER, b"next"), async {
        let Held { request, answer } = held.recv().await.unwrap();
        answer.send(Ok(Outgoing { head: request.head, payload: vec![] })).unwrap();
    });
    assert_eq!(answer.unwrap(), "next");
}

#[tokio::test]
async fn memory_of_a_dropped_call_is_nobody_elses_until_the_answer_came() {
    let (service, mut held) = holding();
    let mut server = Server::start(service, options()).await;
    let peer = peer(&server.address);
    let (start, late) = drop_a_call(&peer, &mut held).await;
    let mut others = Buffer::take(LEN);
    let kept = others.as_ptr() != start;
    assert_eq!(kept, super::WRITES_LATE, "whether the other side may still write there");
    others.fill(7);
    let payload = vec![Bytes::from(vec![1; LEN])];
    late.answer.send(Ok(Outgoing { head: Bytes::new(), payload })).unwrap();
    // Answers come in order: when this one is here, the late one was.
    answered(&peer, &mut held).await;
    assert!(others.iter().all(|&b| b == 7), "a late answer was written over others' bytes");
    if kept {
        assert!(is_free(start), "it is free when the answer has come");
    }
    drop(others);

    // So it is when the connection is lost.
    let (start, late) = drop_a_call(&peer, &mut held).await;
    let others = Buffer::take(LEN);
    assert_eq!(others.as_ptr() != start, super::WRITES_LATE);
    server.kill().await;
    assert!(ask(&peer, ECHO, b"").await.is_err());
    if kept {
        assert!(is_free(start), "it is free when the connection is over");
    }
    drop((late, others));
}
