//! What tenants may have: which rules there can be, and how they are read.

use crate::v1::{QosLimits, QosPolicy, QosRule};
use crate::{Error, ErrorKind, Result};
use std::ops::RangeInclusive;

/// The weight of who has no other.
pub const USUAL_WEIGHT: u32 = 100;
/// Weights that there are.
pub const WEIGHTS: RangeInclusive<u32> = 1..=10_000;
/// Most rules of a policy.
pub const MAX_RULES: usize = 1000;
/// Longest name of a tenant, in bytes.
pub const MAX_TENANT: usize = 128;

/// What names of tenants begin with that are daemons at work on their own.
pub const OWN: &str = "weft:";

impl QosPolicy {
    /// What those may have that are not named, but for daemons at work on their own ([`OWN`]).
    pub fn default_limits(&self) -> QosLimits {
        let default = self.rules.iter().find(|rule| rule.tenant.is_empty());
        default.and_then(|rule| rule.limits).unwrap_or_default()
    }

    /// Those that are named, and what they may have: what their rule leaves out, the default says,
    /// but for daemons at work on their own.
    pub fn named(&self) -> impl Iterator<Item = (&str, QosLimits)> {
        let of_clients = self.default_limits();
        let named = self.rules.iter().filter(|rule| !rule.tenant.is_empty());
        named.map(move |rule| {
            let own = rule.limits.unwrap_or_default();
            let default = match rule.tenant.starts_with(OWN) {
                true => QosLimits::default(),
                false => of_clients,
            };
            let limits = QosLimits {
                bandwidth: own.bandwidth.or(default.bandwidth),
                iops: own.iops.or(default.iops),
                metadata: own.metadata.or(default.metadata),
                weight: own.weight.or(default.weight),
            };
            (&rule.tenant[..], limits)
        })
    }
}

impl QosRule {
    /// Whether there can be such a rule. Error: `Invalid`.
    pub fn check(&self) -> Result<()> {
        let invalid = |what: String| Err(Error::new(ErrorKind::Invalid, what));
        let name = &self.tenant;
        if name.len() > MAX_TENANT || name.chars().any(char::is_control) {
            return invalid(format!("a tenant has a name of {MAX_TENANT} plain bytes at most"));
        }
        if name.contains(':') && !name.starts_with(OWN) {
            let host = name.split(':').next().unwrap_or_default();
            let what = format!(
                "{name:?} names no tenant: of a client's name, it is what stands before the first \
                 colon ({host:?})"
            );
            return invalid(what);
        }
        let Some(QosLimits { bandwidth, iops, metadata, weight }) = self.limits else {
            return Ok(());
        };
        if [bandwidth, iops, metadata].contains(&Some(0)) {
            return invalid("a rate of 0 would stop a tenant: the least is 1".into());
        }
        match weight {
            Some(weight) if !WEIGHTS.contains(&weight) => {
                let (least, most) = (WEIGHTS.start(), WEIGHTS.end());
                invalid(format!("a weight is {least} to {most}, and not {weight}"))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_rule_leaves_out_the_default_says() {
        let rule = |tenant: &str, bandwidth, weight| QosRule {
            tenant: tenant.into(),
            limits: Some(QosLimits { bandwidth, weight, ..QosLimits::default() }),
        };
        let rules = vec![
            rule("", Some(9), Some(200)),
            rule("a", None, Some(5)),
            rule("b", Some(7), None),
            rule("weft:rebuild", None, Some(20)),
            rule("weft:other", Some(3), None),
        ];
        let policy = QosPolicy { version: 1, rules };
        let named: Vec<_> = policy.named().map(|(name, l)| (name, l.bandwidth, l.weight)).collect();
        let clients = [("a", Some(9), Some(5)), ("b", Some(7), Some(200))];
        let daemons = [("weft:rebuild", None, Some(20)), ("weft:other", Some(3), None)];
        assert_eq!(named, [clients, daemons].concat());
        assert_eq!(QosPolicy::default().default_limits(), QosLimits::default());
    }

    #[test]
    fn rules_that_make_no_sense_are_refused() {
        let limits = QosLimits { bandwidth: Some(1), weight: Some(100), ..QosLimits::default() };
        let rule = |tenant: &str, limits| QosRule { tenant: tenant.into(), limits };
        for name in ["", "node-1", "team a", "weft:rebuild"] {
            rule(name, Some(limits)).check().unwrap();
            rule(name, None).check().unwrap();
        }
        for name in ["node-1:/mnt", ":", "a\nb", &"x".repeat(129)] {
            assert_eq!(rule(name, None).check().unwrap_err().kind, ErrorKind::Invalid, "{name}");
        }
        for wrong in [
            QosLimits { bandwidth: Some(0), ..limits },
            QosLimits { iops: Some(0), ..limits },
            QosLimits { metadata: Some(0), ..limits },
            QosLimits { weight: Some(0), ..limits },
            QosLimits { weight: Some(10_001), ..limits },
        ] {
            assert!(rule("a", Some(wrong)).check().is_err(), "{wrong:?}");
        }
    }
}
