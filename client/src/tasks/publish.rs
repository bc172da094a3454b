//! Publishes pending creates that nobody waits for.

use crate::namespace::{Of, Publisher};
use std::sync::Arc;
use std::time::Duration;
use tokio::join;
use tokio::time::sleep;
use tracing::debug;

/// What nobody waits for is gathered for this long: one burst wakes everyone on its way once.
const GATHER_INTERVAL: Duration = Duration::from_millis(5);
/// Pause before what did not get through is told again.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Runs for ever.
pub(crate) async fn run(publisher: Arc<Publisher>) {
    join!(run_of(&publisher, Of::This), run_of(&publisher, Of::Earlier));
}

async fn run_of(publisher: &Arc<Publisher>, of: Of) {
    loop {
        publisher.wanted_behind(of).await;
        sleep(GATHER_INTERVAL).await;
        if let Err(error) = publisher.publish_behind(of).await {
            debug!(%error, "new files are not told; trying on");
        }
        if publisher.again(of) {
            sleep(RETRY_INTERVAL).await;
        }
    }
}
