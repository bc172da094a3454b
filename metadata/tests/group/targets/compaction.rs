//! Files that are written again.

use super::*;

/// The session that it was written in goes on, in which others are written meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_written_again_in_vain_is_deleted_and_ends_no_session() {
    let group = Group::start(1, |c| c.compact_after_ms = 10).await;
    let mut client = group.client();
    client.open_session().await;
    let address = client.leader.clone();
    let (daemon, Daemon { chunks, orders, deleted, fences, .. }, _stop) =
        Daemon::start_whole().await;
    let (_, beats) = register(&address, &daemon, 6).await;
    let map = map_until(&address, "groups", |m| !active(m).is_empty()).await;
    for (name, seq) in [("f", 1), ("g", 3)] {
        let ino = write_file(&mut client, &chunks, &map, name, seq).await;
        append(&mut client, &chunks, &map, ino, 16384, seq + 1).await;
        let first = SegmentId { session: SessionId(client.session), seq };
        let of = |order: &&v1::CompactRequest| order.segments[0].id == Some(first.into());
        let until = Instant::now() + PATIENCE;
        loop {
            assert!(Instant::now() < until, "{name} is not written again, and deleted");
            let order = orders.lock().unwrap().iter().find(of).cloned();
            if let Some(v1::CompactRequest { session, first_seq, .. }) = order {
                let written = SegmentId { session: SessionId(session), seq: first_seq };
                let fences = fences.lock().unwrap().clone();
                assert!(!fences.iter().any(|(_, ended)| ended.contains(&session)), "{fences:?}");
                if deleted.lock().unwrap().contains(&written) {
                    break;
                }
            }
            sleep(Duration::from_millis(20)).await;
        }
    }
    let writers: BTreeSet<u64> = orders.lock().unwrap().iter().map(|o| o.session).collect();
    assert_eq!(writers.len(), 1);
    beats.abort();
}
