//! Looks after the mounts of this machine: what has died is put back, whether it died with the
//! process before this one or while this one was there.
//!
//! Each volume has a look of its own: one that cannot be mounted, which takes long, keeps no other
//! waiting.

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
/// Mounts that are made at a time.
const AT_A_TIME: usize = 8;

static MOUNTS: LazyLock<IntGaugeVec> = LazyLock::new(|| {
    let help = "Volumes that are mounted here, by what their mounts do.";
    registered(IntGaugeVec::new(Opts::new("weft_csi_mounts", help), &["state"]))
});

/// What is known of a volume from looks before.
#[derive(Clone, Copy)]
struct Seen {
    /// What its mount does.
    state: &'static str,
    /// It is being looked at.
    looking: bool,
    /// If it could not be mounted: when it is tried again, and the pause after that.
    again: Option<(Instant, Duration)>,
}

type AllSeen = Arc<Mutex<HashMap<String, Seen>>>;

/// For as long as this process lives.
pub async fn watch(node: Context) {
    let (seen, places) = (AllSeen::default(), Arc::new(Semaphore::new(AT_A_TIME)));
    sweep(&node).await;
    // What is in here ends with this.
    let mut looks = JoinSet::new();
    loop {
        node.volumes.weft.reap();
        let all = node.volumes.state.list().unwrap_or_else(|e| {
            tracing::error!("what is mounted here cannot be read: {e}");
            Vec::new()
        });
        // Whoever takes one away looks after it.
        let all: Vec<_> = all.into_iter().filter(|staged| !staged.leaving).collect();
        seen.lock().retain(|volume, seen| {
            seen.looking || all.iter().any(|staged| staged.volume == *volume)
        });
        for staged in all {
            if begin(&seen, &staged.volume) {
                let (node, seen, places) = (node.clone(), seen.clone(), places.clone());
                looks.spawn(async move {
                    let found = look_after(&node, &seen, &places, &staged).await;
                    if let Some(seen) = seen.lock().get_mut(&staged.volume) {
                        (seen.state, seen.looking) = (found, false);
                    }
                });
            }
        }
        sleep(INTERVAL).await;
        while let Some(ended) = looks.try_join_next() {
            if let Err(error) = ended {
                tracing::error!("a look at a mount broke off: {error}");
            }
        }
        tell(&seen);
    }
}

/// Forgets what a process before this one has left, and nobody asks for.
async fn sweep(node: &Context) {
    for staged in node.volumes.state.list().unwrap_or_default() {
        let Some(_taken) = node.busy.try_take(&staged.volume) else { continue };
        let now = node.volumes.state.find(&staged.volume);
        if let Ok(Some(now)) = now
            && let Err(e) = node.volumes.forget_if_gone(&now).await
        {
            tracing::error!("volume {:?} cannot be forgotten: {e}", staged.volume);
        }
    }
}

/// Whether a volume is to be looked at: nobody does so now.
fn begin(seen: &AllSeen, volume: &str) -> bool {
    let mut seen = seen.lock();
    // It was mounted just now by a call that has looked.
    let new = Seen { state: "alive", looking: false, again: None };
    let seen = seen.entry(volume.to_owned()).or_insert(new);
    !std::mem::replace(&mut seen.looking, true)
}

fn tell(seen: &AllSeen) {
    let seen = seen.lock();
    for state in ["alive", "silent", "dead"] {
        let count = seen.values().filter(|seen| seen.state == state).count();
        MOUNTS.with_label_values(&[state]).set(i64::try_from(count).unwrap_or(i64::MAX));
    }
}

/// Answers what the mount does.
async fn look_after(
    node: &Context,
    seen: &AllSeen,
    places: &Semaphore,
    staged: &Staged,
) -> &'static str {
    let volume = &staged.volume;
    let note = |again| {
        if let Some(seen) = seen.lock().get_mut(volume) {
            seen.again = again;
        }
    };
    if node.volumes.is_fine(staged).await {
        note(None);
        return "alive";
    }
    let again = seen.lock().get(volume).and_then(|seen| seen.again);
    if again.is_some_and(|(at, _)| at > Instant::now()) {
        return "dead";
    }
    let _place = places.acquire().await;
    // Whoever is at work on it looks after it.
    let Some(_taken) = node.busy.try_take(volume) else { return "alive" };
    let found = node.volumes.state.find(volume);
    let Ok(Some(mut staged)) = found else { return "alive" };
    if staged.leaving {
        return "alive";
    }
    match node.volumes.restore(&mut staged).await {
        Ok(condition) => {
            note(None);
            match condition {
                Condition::Alive => "alive",
                Condition::Silent => "silent",
            }
        }
        Err(refused) => {
            let pause = again.map_or(INTERVAL, |(_, pause)| pause);
            note(Some((Instant::now() + pause, (2 * pause).min(MAX_PAUSE))));
            tracing::error!("{}; the next try is in {pause:?}", refused.message());
            "dead"
        }
    }
}
