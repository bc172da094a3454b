//! Looks after the mounts of this machine: what has died is put back, whether it died with the
//! process before this one or while this one was there.

use super::context::Context;
use super::state::Staged;
use super::volumes::Condition;
use parking_lot::Mutex;
use prometheus::{IntGaugeVec, Opts};
use std::collections::HashMap;
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use weft_net::metrics::registered;

/// Between two looks.
const INTERVAL: Duration = Duration::from_secs(2);
/// Between tries of what cannot be mounted, at most.
const MAX_PAUSE: Duration = Duration::from_secs(60);
/// Mounts that are looked after at a time.
const AT_A_TIME: usize = 4;

static MOUNTS: LazyLock<IntGaugeVec> = LazyLock::new(|| {
    let help = "Volumes that are mounted here, by what their mounts do.";
    registered(IntGaugeVec::new(Opts::new("weft_csi_mounts", help), &["state"]))
});

/// What could not be mounted: when it is tried again, and the pause after that.
type Pauses = Arc<Mutex<HashMap<String, (Instant, Duration)>>>;

/// For as long as this process lives.
pub async fn watch(node: Context) {
    let pauses = Pauses::default();
    let places = Arc::new(Semaphore::new(AT_A_TIME));
    loop {
        node.volumes.weft.reap();
        let all = node.volumes.state.list().unwrap_or_else(|e| {
            tracing::error!("what is mounted here cannot be read: {e}");
            Vec::new()
        });
        pauses.lock().retain(|volume, _| all.iter().any(|staged| staged.volume == *volume));
        let mut looks = JoinSet::new();
        for staged in all {
            let (node, pauses, places) = (node.clone(), pauses.clone(), places.clone());
            looks.spawn(async move {
                let _place = places.acquire().await;
                look_after(&node, &pauses, &staged).await
            });
        }
        let found = looks.join_all().await;
        for state in ["alive", "silent", "dead"] {
            let count = found.iter().filter(|found| **found == state).count();
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            MOUNTS.with_label_values(&[state]).set(count);
        }
        sleep(INTERVAL).await;
    }
}

/// Answers what the mount does.
async fn look_after(node: &Context, pauses: &Pauses, staged: &Staged) -> &'static str {
    let volume = &staged.volume;
    if node.volumes.is_fine(staged).await {
        pauses.lock().remove(volume);
        return "alive";
    }
    let due = pauses.lock().get(volume).is_none_or(|(at, _)| *at <= Instant::now());
    if !due {
        return "dead";
    }
    // Whoever is at work on it looks after it.
    let Some(_taken) = node.busy.try_take(volume) else { return "alive" };
    let Ok(Some(mut staged)) = node.volumes.state.find(volume) else { return "alive" };
    match node.volumes.restore(&mut staged).await {
        Ok(condition) => {
            pauses.lock().remove(volume);
            match condition {
                Condition::Alive => "alive",
                Condition::Silent => "silent",
            }
        }
        Err(refused) => {
            let mut pauses = pauses.lock();
            let pause = pauses.get(volume).map_or(INTERVAL, |(_, pause)| *pause);
            let next = (2 * pause).min(MAX_PAUSE);
            pauses.insert(volume.clone(), (Instant::now() + pause, next));
            tracing::error!("{}; the next try is in {pause:?}", refused.message());
            "dead"
        }
    }
}
