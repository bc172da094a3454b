//! Tells the metadata group of what is in the log and nobody waits for.

use crate::namespace::{ChangeLog, Of};
use std::sync::Arc;
use std::time::Duration;
use tokio::join;
use tokio::time::sleep;
use tracing::debug;

/// Pause before what did not get through is told again.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Runs for ever.
pub(crate) async fn run(log: Arc<ChangeLog>) {
    join!(run_of(&log, Of::This), run_of(&log, Of::Earlier));
}

async fn run_of(log: &Arc<ChangeLog>, of: Of) {
    loop {
        log.is_due(of).await;
        if let Err(error) = log.publish_behind(of).await {
            debug!(%error, "what was done here is not told; trying on");
            sleep(RETRY_INTERVAL).await;
        }
    }
}
