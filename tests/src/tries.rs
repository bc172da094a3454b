//! How often a test repeats what it does.

use std::time::Duration;

/// Of a test that does not say more.
const LIMIT: Duration = Duration::from_secs(600);
/// Of a test that is told how often to try: so long for each, if that is more.
const TRY_LIMIT: Duration = Duration::from_secs(10);

/// As often as `WEFT_TRIES` says, or as the test suite does.
pub fn tries(in_suite: u64) -> u64 {
    told().unwrap_or(in_suite)
}

/// How long a test with a cluster may take.
pub(crate) fn limit() -> Duration {
    let told = u32::try_from(told().unwrap_or(0)).unwrap_or(u32::MAX);
    LIMIT.max(TRY_LIMIT.saturating_mul(told))
}

fn told() -> Option<u64> {
    std::env::var("WEFT_TRIES").ok()?.parse().ok()
}
