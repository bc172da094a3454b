//! Tests of qos.

use super::*;

#[test]
fn rates_are_written_as_people_do_and_none_takes_one_away() {
    assert_eq!(bandwidth("1GiB/s"), Ok(Limit::Of(1 << 30)));
    assert_eq!(bandwidth("512M"), Ok(Limit::Of(512 << 20)));
    assert_eq!((rate("5000/s"), rate("7")), (Ok(Limit::Of(5000)), Ok(Limit::Of(7))));
    assert_eq!((rate("none"), bandwidth("none")), (Ok(Limit::None), Ok(Limit::None)));
    for wrong in ["", "fast", "-1", "1/h", "/s"] {
        assert!(rate(wrong).is_err() && bandwidth(wrong).is_err(), "{wrong}");
    }
    assert_eq!(over(None, Some(1)), Some(1));
    assert_eq!((over(Some(Limit::None), Some(1)), over(Some(Limit::Of(2)), None)), (None, Some(2)));
}

#[test]
fn a_rule_is_said_in_the_words_it_was_set_with() {
    let bandwidth = Some(1 << 30);
    let limits = QosLimits { bandwidth, metadata: Some(5), ..QosLimits::default() };
    assert_eq!(words(false, &limits), "1GiB/s, metadata 5/s");
    let rules = vec![QosRule { tenant: String::new(), limits: Some(limits) }];
    let policy = Some(QosPolicy { version: 1, rules });
    let stat = |tenant: &str| TenantStat {
        tenant: tenant.into(),
        requests: 10,
        shared_us: 1000,
        ..TenantStat::default()
    };
    let (served, metadata) = (vec![stat("a")], vec![stat("b")]);
    let text = text(&Shown::from(ListQosReply { policy, served, metadata }));
    assert!(text.contains("(default)  1GiB/s     -     5/s       -"), "{text}");
    assert!(text.contains("100 us") && text.contains("  b "), "{text}");
}
