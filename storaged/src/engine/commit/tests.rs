//! Tests of `commit`.

use super::super::support::{chunk, engine};
use weft_proto::ErrorKind;

/// Whatever it has died of, nothing would be written any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_target_whose_commit_thread_dies_has_failed() {
    let dir = tempfile::tempdir().unwrap();
    let engine = engine(dir.path());
    let (id, data, sums) = chunk();
    engine.put(id, data, sums).await.unwrap();
    let entry = engine.core.newest(id).await.unwrap().unwrap();
    // When its space is freed once more that thread panics.
    engine.core.allocator.lock().give(&entry.place.extents);
    let failed = engine.delete(vec![id]).await.unwrap_err();
    assert_eq!(failed.kind, ErrorKind::Io, "{failed}");
    assert!(engine.failure().is_some());
    assert_eq!(engine.fence(vec![1..=1]).await.unwrap_err().kind, ErrorKind::Io);
    engine.close().await.unwrap();
}
