//! Tests of `index`.

use super::super::support::{chunk, engine};

/// A lookup that was under way meanwhile has put it into the cache, and not taken it out yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chunk_that_was_just_deleted_is_stored_again() {
    let dir = tempfile::tempdir().unwrap();
    let engine = engine(dir.path());
    let (id, data, sums) = chunk();
    engine.put(id, data.clone(), sums.clone()).await.unwrap();
    for restores in [false, true] {
        let old = engine.core.newest(id).await.unwrap().unwrap();
        assert_eq!(engine.delete(vec![id]).await.unwrap(), 1);
        engine.core.index.cache.insert(id, old);
        assert!(!engine.has(id).await.unwrap(), "who makes chunks would leave it out");
        assert_eq!(engine.length(id).await.unwrap(), None);
        match restores {
            false => engine.put(id, data.clone(), sums.clone()).await.unwrap(),
            true => engine.restore(id, data.clone(), sums.clone()).await.unwrap(),
        }
        assert!(engine.core.newest(id).await.unwrap().is_some(), "it was acknowledged");
    }
    engine.close().await.unwrap();
}
