//! How many sessions one owner may have.

use super::service::{incoming, serving};
use super::*;
use crate::soft::sessions::Client;
use v1::meta_request::Op;
use weft_proto::SessionId;

/// One host that opens them in a loop keeps no other from it, nor what it has opened before.
#[tokio::test(start_paused = true)]
async fn an_owner_has_so_many_sessions_and_no_more() {
    let (mut rig, service) = serving().await;
    let node = rig.driver.node.clone();
    let open = |client: &str, nonce| {
        let nonce = vec![nonce; 16].into();
        let op = v1::OpenSessionOp { client: client.into(), nonce, ..Default::default() };
        v1::MetaRequest { op: Some(Op::OpenSession(op)), ..Default::default() }
    };
    // Answers whether there is an entry for it.
    let mut ask = async |request: v1::MetaRequest| {
        let mut call = service.call(incoming(&request));
        let at_once = timeout(Duration::ZERO, &mut call).await;
        let proposed = rig.pump().await;
        let answer = match at_once {
            Ok(answer) => answer,
            Err(_) => call.await,
        };
        match answer {
            Ok(_) => assert_eq!(proposed, 1),
            Err(e) => {
                assert!(e.kind == ErrorKind::Busy && e.message.contains("\"host\""), "{e}");
                assert_eq!(proposed, 0);
            }
        }
        proposed == 1
    };
    assert!(ask(open("host:/a", 1)).await);
    let most = 2 * node.config.max_connections;
    let client = Client { name: "host:program".into(), ..Client::default() };
    let now = Instant::now();
    for number in 2..most {
        node.soft.with(|s| s.opened(now, SessionId(1000 + number), client.clone()));
    }
    assert!(ask(open("host:/b", 2)).await);
    assert!(!ask(open("host:/c", 3)).await);
    assert!(ask(open("host:/a", 1)).await, "that is there");
    assert!(ask(open("other:/a", 4)).await);
    node.soft.with(|s| s.ended(SessionId(1002)));
    assert!(ask(open("host:/c", 3)).await);
}
