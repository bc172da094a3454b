//! Pages that are written without a pause while they are taken back.

use super::mapping::share;
use super::*;

/// A program writes one page behind the other, and the next is held before anybody comes past the
/// last: who takes pages back would follow it for as long as it goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_takes_pages_back_does_not_run_behind_who_writes_them() {
    let rig = Arc::new(Rig::start().await);
    let metadata = &rig.cluster.metadata;
    share(&rig).await;
    metadata.grant_maps.store(true, Ordering::Relaxed);
    let handle = rig.open_to_map().await;
    rig.read_all().await;
    let mut told = rig.shown_on_return();
    rig.kernel.pages.lock().insert(1, Page::Locked);
    metadata.recall(rig.ino.0);
    while rig.kernel.shown().contains(&0) {
        yield_now().await;
    }
    let over = Arc::new(AtomicBool::new(false));
    let writes = tokio::spawn({
        let (rig, over) = (rig.clone(), over.clone());
        rig.kernel.pages.lock().insert(PAGES, Page::Locked);
        async move {
            let bytes = [9; PAGE as usize];
            for page in PAGES.. {
                rig.fs.write_via(handle, page * PAGE, &bytes, Via::Cache).await.unwrap();
                let mut pages = rig.kernel.pages.lock();
                pages.insert(page, Page::Good(bytes.to_vec()));
                if over.load(Ordering::SeqCst) {
                    break;
                }
                pages.insert(page + 1, Page::Locked);
                drop(pages);
                rig.kernel.changes.send_replace(());
            }
        }
    });
    rig.set(1, 7);
    let returned = tokio::time::timeout(PATIENCE, told.wait_for(Option::is_some)).await;
    let shown = returned.expect("it is not given back while somebody writes").unwrap().clone();
    assert_eq!(shown, Some(vec![]), "pages are shown after the lease was given back");
    over.store(true, Ordering::SeqCst);
    writes.await.unwrap();
}
