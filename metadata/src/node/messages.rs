//! What the event loop sends to other servers, and what it hears of how that got there.
//!
//! Invariant: who has not said on this connection that it knows what all have known once is sent
//! neither log nor state: what it passed over it would lack for ever.

use super::driver::Driver;
use crate::replication::{Lost, Report};
use raft::SnapshotStatus;
use raft::eraftpb::{Message, MessageType};
use weft_proto::NodeId;

impl Driver {
    pub(super) fn send(&mut self, messages: Vec<Message>) {
        for message in messages {
            let is_snapshot = message.msg_type == MessageType::MsgSnapshot as i32;
            let follows = is_snapshot || !message.entries.is_empty();
            if follows && !self.node.may_follow(NodeId(message.to)) {
                self.raw.report_unreachable(message.to);
                self.note_withheld(message.to);
                if is_snapshot {
                    self.raw.report_snapshot(message.to, SnapshotStatus::Failure);
                }
                continue;
            }
            if let Some(link) = self.wiring.links.get(message.to) {
                link.send(message);
            }
        }
    }

    /// A server is sent neither log nor state. One that has not said anything yet may in a moment.
    fn note_withheld(&mut self, server: u64) {
        let is_old = self.group.old_versions.contains(&server);
        if is_old && self.group.withheld.insert(server) {
            tracing::error!(
                server,
                "a server is of an older version than the others know, and is sent nothing: start \
                 the newer version there"
            );
        }
    }

    pub(super) fn on_report(&mut self, report: Report) {
        match report {
            Report::Lost(lost) => self.on_lost(&lost),
            Report::Ended(peer) => self.on_ended(peer),
            Report::Answered { peer, ack } => self.on_ack(peer, ack),
        }
    }

    pub(super) fn on_lost(&mut self, lost: &Lost) {
        self.raw.report_unreachable(lost.peer.0);
        self.wiring.links.lost(lost.peer);
        // The others go on without it, and another version may come in its place.
        self.node.note_low(lost.peer, false);
        self.node.forget_known_entries(lost.peer);
        self.announced.reconnects(lost.peer.0);
        if lost.snapshot {
            self.announced.forget(lost.peer.0);
            self.raw.report_snapshot(lost.peer.0, SnapshotStatus::Failure);
        }
    }
}
