//! What is cached above of what a change is about is forgotten before others may see that.

use crate::create;
use crate::fixture::{Cluster, small_layout};
use bytes::Bytes;
use std::future::ready;
use std::sync::Arc;
use std::time::Duration;
use weft_client::{Forgotten, NameCache};
use weft_net::sync::Mutex;
use weft_proto::InodeId;

/// Takes its time to forget.
struct Slow {
    cluster: Arc<Cluster>,
    forgotten: Arc<Mutex<Vec<Forgot>>>,
}

struct Forgot {
    inos: Vec<InodeId>,
    names: Vec<(InodeId, Bytes)>,
    /// How many names were removed by then.
    removed: usize,
}

impl NameCache for Slow {
    fn forget(&self, _: InodeId) -> Forgotten {
        Box::pin(ready(()))
    }

    fn forget_attrs(&self, inos: &[InodeId], names: &[(InodeId, Bytes)]) -> Forgotten {
        let (cluster, forgotten) = (self.cluster.clone(), self.forgotten.clone());
        let (inos, names) = (inos.to_vec(), names.to_vec());
        Box::pin(async move {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let removed = cluster.metadata.count("unlink");
            forgotten.lock().push(Forgot { inos, names, removed });
        })
    }

    fn forget_all(&self) -> Forgotten {
        Box::pin(ready(()))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attributes_of_what_a_change_is_about_are_forgotten_above_before_it_is_sent() {
    let cluster = Arc::new(Cluster::start(3, small_layout("2+1")).await);
    let fs = cluster.client().await;
    let (handle, _) = create(&fs, "f").await;
    fs.release(handle).await.unwrap();
    let forgotten = Arc::<Mutex<Vec<Forgot>>>::default();
    fs.set_name_cache(Arc::new(Slow { cluster: cluster.clone(), forgotten: forgotten.clone() }));
    fs.unlink(InodeId::ROOT, b"f").await.unwrap();
    let forgotten = forgotten.lock();
    // What the mount tells of the file besides is about no name.
    let of_name: Vec<_> = forgotten.iter().filter(|forgot| !forgot.names.is_empty()).collect();
    let [forgot] = of_name[..] else { panic!("one change of a name, and not {}", of_name.len()) };
    assert_eq!(forgot.removed, 0, "it was sent before");
    assert_eq!(forgot.names, [(InodeId::ROOT, Bytes::from_static(b"f"))]);
    assert!(forgot.inos.contains(&InodeId::ROOT));
    cluster.assert_no_violations();
}
