//! What tenants may have: a rule of each that is named, and of all others one without a name.

use crate::schema::{self, Tag};
use crate::store::{Read, StoreResult, Txn};
use weft_proto::v1;

/// The version of the policy, by this name.
const VERSION: &str = "qos_version";

/// All rules, in the order of their names.
pub(crate) fn policy(state: &dyn Read) -> StoreResult<v1::QosPolicy> {
    let version = state.number(VERSION)?.unwrap_or(0);
    let mut rules = Vec::new();
    state.records(schema::all(Tag::Qos), |_, rule: v1::QosRule| {
        rules.push(rule);
        Ok(true)
    })?;
    Ok(v1::QosPolicy { version, rules })
}

/// The rule of a tenant from now on; without limits: none. Answers whether that is new.
pub(crate) fn set(tx: &mut Txn<'_>, rule: &v1::QosRule) -> StoreResult<bool> {
    let key = schema::qos(&rule.tenant);
    let had = tx.state().load::<v1::QosRule>(&key)?;
    let wants = rule.limits.is_some().then(|| rule.clone());
    if had == wants {
        return Ok(false);
    }
    match wants {
        Some(rule) => tx.put(key, &rule),
        None => tx.delete(key),
    }
    let version = tx.state().number(VERSION)?.unwrap_or(0);
    tx.put_number(VERSION, version + 1);
    Ok(true)
}
