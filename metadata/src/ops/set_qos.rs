//! Sets what a tenant may have, or all that are not named.

use crate::operation::{Context, EMPTY, Fault, Operation, Reply, refuse};
use crate::schema;
use crate::store::{Read, StoreResult, Txn};
use crate::tables::{cluster, qos};
use weft_proto::qos::MAX_RULES;
use weft_proto::{ErrorKind, v1};

impl Operation for v1::SetQosEntry {
    type Plan = v1::QosRule;

    fn check(&self, state: &dyn Read, _: &Context) -> Result<v1::QosRule, Fault> {
        cluster::existing(state)?;
        let Some(rule) = &self.rule else {
            return refuse(ErrorKind::Protocol, "a change of the rules without a rule");
        };
        rule.check()?;
        let is_new = state.get(&schema::qos(&rule.tenant))?.is_none();
        match (is_new, rule.limits) {
            (true, Some(_)) if qos::policy(state)?.rules.len() >= MAX_RULES => {
                let what = format!("there are {MAX_RULES} rules already: clear some");
                refuse(ErrorKind::Invalid, what)
            }
            (true, None) => {
                let what = match &rule.tenant[..] {
                    "" => "there is no default rule".to_owned(),
                    tenant => format!("there is no rule for {tenant:?}"),
                };
                refuse(ErrorKind::NotFound, what)
            }
            _ => Ok(rule.clone()),
        }
    }

    fn apply(&self, rule: v1::QosRule, tx: &mut Txn<'_>, _: &Context) -> StoreResult<Reply> {
        qos::set(tx, &rule)?;
        Ok(EMPTY)
    }
}
