//! A hold that begins while garbage is collected.

use super::*;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::time::timeout;
use weft_proto::SessionId;

/// A list of garbage, and what was deleted of it and forgotten.
#[derive(Default)]
struct Fake {
    held: AtomicBool,
    /// It is held as soon as something is deleted.
    is_held_then: AtomicBool,
    put: AtomicU64,
    list: Mutex<BTreeSet<u64>>,
    deleted: Mutex<Vec<u64>>,
}

impl World for &Fake {
    fn holds(&self) -> bool {
        self.held.load(Ordering::Relaxed)
    }

    fn put(&self) -> u64 {
        self.put.load(Ordering::Relaxed)
    }

    fn garbage(&self, after: Option<SegmentId>) -> Result<Vec<v1::SegmentInfo>> {
        let after = after.map_or(0, |id| id.seq);
        let info = |&seq: &u64| {
            let id = SegmentId { session: SessionId(1), seq };
            v1::SegmentInfo { id: Some(id.into()), ..Default::default() }
        };
        Ok(self.list.lock().range(after + 1..).take(BATCH).map(info).collect())
    }

    async fn delete(&mut self, garbage: &[v1::SegmentInfo]) -> Vec<SegmentId> {
        assert!(!self.holds(), "a hold that was set before this is kept");
        let ids: Vec<_> = garbage.iter().map(|info| info.segment_id().unwrap()).collect();
        self.deleted.lock().extend(ids.iter().map(|id| id.seq));
        self.held.fetch_or(self.is_held_then.load(Ordering::Relaxed), Ordering::Relaxed);
        ids
    }

    async fn forget(&self, freed: Vec<SegmentId>) -> Result<()> {
        let freed: BTreeSet<u64> = freed.iter().map(|id| id.seq).collect();
        self.list.lock().retain(|seq| !freed.contains(seq));
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn a_hold_that_begins_meanwhile_is_kept_from_the_next_turn_on() {
    let fake = Fake::default();
    let all = 3 * BATCH as u64;
    fake.list.lock().extend(1..=all);
    fake.is_held_then.store(true, Ordering::Relaxed);
    let collecting = collect(&fake);
    tokio::pin!(collecting);
    assert!(timeout(Duration::from_secs(3600), &mut collecting).await.is_err());
    assert_eq!(fake.deleted.lock().len(), BATCH, "the turn that was under way");
    assert_eq!(fake.list.lock().len(), all as usize, "none is forgotten either");
    // It is over, and all goes.
    fake.is_held_then.store(false, Ordering::Relaxed);
    fake.held.store(false, Ordering::Relaxed);
    assert!(timeout(Duration::from_secs(60), &mut collecting).await.is_err());
    assert!(fake.list.lock().is_empty());
    // What is put on the list under another waits for its end.
    fake.held.store(true, Ordering::Relaxed);
    fake.list.lock().insert(all + 1);
    fake.put.fetch_add(1, Ordering::Relaxed);
    assert!(timeout(Duration::from_secs(3600), &mut collecting).await.is_err());
    assert!(fake.list.lock().contains(&(all + 1)));
    fake.held.store(false, Ordering::Relaxed);
    assert!(timeout(Duration::from_secs(60), &mut collecting).await.is_err());
    assert!(fake.list.lock().is_empty());
}
