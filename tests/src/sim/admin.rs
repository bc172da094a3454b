//! What an admin has the cluster do in the middle of it.

use super::calls::{RETRY_INTERVAL, is_transient};
use super::history::{Order, Shared};
use super::hosts::{PORT, addresses};
use super::names::{DAEMONS, NEW_SERVER};
use std::time::Duration;
use weft_control::{Group, leader_status};
use weft_net::sim;
use weft_proto::v1::set_member_request::Action as Members;
use weft_proto::v1::set_server_entry::{Add, Change};
use weft_proto::v1::set_target_request::Action;
use weft_proto::v1::{SetMemberRequest, SetServerEntry, SetTargetRequest};
use weft_proto::{Error, ErrorKind, Result};

/// Between two looks for something to do.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// Does what is ordered, one after the other, each until it is noted. The lead is handed over if
/// that can be: there may be nobody to whom.
pub async fn admin(history: Shared) -> turmoil::Result {
    let mut group = Group::new(sim::transport(), all_addresses());
    loop {
        let Some(order) = history.borrow().orders.front().copied() else {
            tokio::time::sleep(LOOK_INTERVAL).await;
            continue;
        };
        match give(&mut group, order).await {
            // It is empty already: nobody wants what it holds.
            Err(error) if error.kind == ErrorKind::Invalid && drains(order) => {}
            Err(error) if may_be_later(&error) && !matches!(order, Order::TransferLeader) => {
                tokio::time::sleep(RETRY_INTERVAL).await;
                continue;
            }
            Err(error) if !may_be_later(&error) => {
                history.borrow_mut().broken.push(format!("{order:?} is refused: {error}"));
            }
            _ => {}
        }
        history.borrow_mut().orders.pop_front();
    }
}

fn drains(order: Order) -> bool {
    matches!(order, Order::Target { action: Action::Drain, .. })
}

async fn give(group: &mut Group, order: Order) -> Result<()> {
    match order {
        Order::Target { daemon, action, weight } => {
            let target = target_of(daemon).await?;
            let weight = if action == Action::Weigh { weight } else { 0 };
            group.call(SetTargetRequest { target, action: action.into(), weight }).await.map(drop)
        }
        Order::TransferLeader => {
            group.call(SetMemberRequest { action: Some(Members::TransferTo(0)) }).await.map(drop)
        }
        Order::Replace { old, new: id } => {
            let address = format!("{NEW_SERVER}:{PORT}");
            let change = Some(Change::Add(Add { id, address, replaces: old }));
            let request =
                SetMemberRequest { action: Some(Members::Set(SetServerEntry { change })) };
            group.call(request).await.map(drop)
        }
    }
}

/// The number of the target that a daemon serves: the last one that came there.
async fn target_of(daemon: usize) -> Result<u32> {
    let status = leader_status(&sim::transport(), &all_addresses()).await?;
    let address = format!("{}:{PORT}", DAEMONS[daemon]);
    let targets = status.map.into_iter().flat_map(|map| map.targets);
    let there = targets.filter(|target| target.address == address).map(|target| target.id);
    let none = || Error::new(ErrorKind::Unavailable, format!("no target is at {address} yet"));
    there.max().ok_or_else(none)
}

/// Where metadata servers are, or may be one day.
fn all_addresses() -> Vec<String> {
    addresses().into_iter().chain([format!("{NEW_SERVER}:{PORT}")]).collect()
}

/// Also when not all servers have said yet what they know.
fn may_be_later(error: &Error) -> bool {
    is_transient(error) || matches!(error.kind, ErrorKind::NotSupported | ErrorKind::Busy)
}
