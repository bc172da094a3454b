//! Tests of service.

use super::*;

#[test]
fn no_request_waits_as_long_as_it_likes() {
    let year = Duration::from_secs(365 * 24 * 3600);
    for op in Op::every() {
        let longest = longest_of(Some(&op));
        let until = deadline_of(Some(Instant::now() + year), longest);
        assert!(until <= Instant::now() + longest, "{op:?}");
        assert!(longest <= MAX_LONG_TIMEOUT, "{op:?}");
    }
    assert_eq!(longest_of(Some(&Op::Recalls(Default::default()))), MAX_TIMEOUT);
    let soon = Instant::now() + Duration::from_millis(1);
    assert_eq!(deadline_of(Some(soon), MAX_TIMEOUT), soon);
}
