//! What admins decide about targets.

use super::{ControlService, REQUEST_TIMEOUT};
use crate::events;
use crate::node::{Effect, Known};
use tokio::time::Instant;
use v1::set_target_request::Action;
use v1::set_target_state_entry::Change;
use weft_proto::{Error, ErrorKind, Result, TargetId, v1};

impl ControlService {
    /// An admin gives a target up, has it emptied, or wants it after all.
    pub(super) async fn decide(&self, request: v1::SetTargetRequest) -> Result<v1::SetTargetReply> {
        let term = self.node.lead(Instant::now() + REQUEST_TIMEOUT).await?;
        let target = match self.find(request.target) {
            Err(none) if request.action() == Action::Forget => {
                return self.forgotten_before(request.target, none).await;
            }
            found => found?,
        };
        let change = Change {
            target: target.id,
            state: target.state,
            full: target.full,
            ..Default::default()
        };
        if request.action() == Action::Look {
            self.targets.suspect(TargetId(target.id));
            return Ok(v1::SetTargetReply { target: Some(target) });
        }
        if request.action() == Action::Forget {
            return self.forget(term, target, &request).await;
        }
        let change = match request.action() {
            Action::GiveUp => Change {
                state: v1::TargetState::Out.into(),
                held_out: Some(true),
                draining: Some(false),
                ..change
            },
            Action::Drain if target.state() == v1::TargetState::Out => {
                let what = format!("target {} is out already", target.id);
                return Err(Error::new(ErrorKind::Invalid, what));
            }
            Action::Drain => Change { draining: Some(true), ..change },
            // One that is out comes back when all that it holds was looked at.
            Action::TakeBack => Change { held_out: Some(false), draining: Some(false), ..change },
            Action::Weigh if !self.node.all_know(Known::Weights) => {
                let what = "there are metadata servers of a version that knows no weights, or that \
                            have not answered yet: upgrade them, or try again";
                return Err(Error::new(ErrorKind::NotSupported, what));
            }
            Action::Weigh => Change { weight: Some(request.weight), ..change },
            Action::Unknown | Action::Look | Action::Forget => {
                return Err(Error::new(ErrorKind::Invalid, "an action of an unknown kind"));
            }
        };
        tracing::info!(target = target.id, action = ?request.action(), "an admin decided");
        let events = vec![events::of_decision(&target, &request)];
        let entry = v1::SetTargetStateEntry { changes: vec![change] };
        let body = v1::log_entry::Body::SetTargetState(entry);
        self.node.propose_telling(body, Effect::Nothing, events).await?;
        Ok(v1::SetTargetReply { target: Some(self.find(target.id)?) })
    }

    /// An admin says that nobody will see a target again.
    async fn forget(
        &self,
        term: u64,
        target: v1::TargetInfo,
        request: &v1::SetTargetRequest,
    ) -> Result<v1::SetTargetReply> {
        if !self.node.all_know(Known::Forgetting) {
            let what = "there are metadata servers of a version that forgets no target, or that \
                        have not answered yet: upgrade them, or try again";
            return Err(Error::new(ErrorKind::NotSupported, what));
        }
        let (id, daemon, patience) =
            (target.id, &target.daemon, self.node.config.target_down_after());
        let busy = |what: String| Err(Error::new(ErrorKind::Busy, what));
        if target.state() == v1::TargetState::Out {
            match self.targets.serves(Instant::now(), term, TargetId(id), patience) {
                Some(false) => {}
                Some(true) => {
                    return busy(format!(
                        "storage daemon {daemon} still serves target {id}: weft target remove \
                         takes it from that; then wait for some seconds"
                    ));
                }
                None => {
                    return busy(format!(
                        "this metadata server has just begun to lead, and it is not known yet \
                         whether storage daemon {daemon} still serves target {id}: try again in \
                         {} s",
                        patience.as_secs() + 1
                    ));
                }
            }
        }
        tracing::info!(target = id, "an admin has it forgotten");
        let events = vec![events::of_decision(&target, request)];
        let body = v1::log_entry::Body::ForgetTarget(v1::ForgetTargetEntry { target: id });
        match self.node.propose_telling(body, Effect::Nothing, events).await {
            // Another admin was quicker.
            Err(none) if none.kind == ErrorKind::NotFound => self.forgotten_before(id, none).await,
            done => done.map(|_| v1::SetTargetReply { target: Some(target) }),
        }
    }

    /// The answer to who was not answered, or asks again, when there is no such target (`none`) any
    /// more. Of one that was forgotten only the number is known.
    async fn forgotten_before(&self, id: u32, none: Error) -> Result<v1::SetTargetReply> {
        let state = self.node.state.clone();
        if !self.node.env.blocking(move || state.is_forgotten(TargetId(id))).await? {
            return Err(none);
        }
        let state = v1::TargetState::Out.into();
        let target = v1::TargetInfo { id, state, ..Default::default() };
        Ok(v1::SetTargetReply { target: Some(target) })
    }

    /// Error: `NotFound`.
    fn find(&self, id: u32) -> Result<v1::TargetInfo> {
        let map = self.node.map();
        map.targets.iter().find(|t| t.id == id).cloned().ok_or_else(|| {
            let id = TargetId(id);
            Error::new(ErrorKind::NotFound, format!("there is no target {id}"))
        })
    }
}
