//! What goes in one request.

use super::entries::{Entry, Of, Published, Stage, Table, What};
use super::log::BATCH;
use std::collections::HashMap;
use tokio::sync::oneshot;
use v1::batch_op::{Step, step::Op as Do};
use weft_net::buggify::{self, Point};
use weft_proto::{InodeId, SessionId, v1};

/// About how many bytes go in one request.
const MAX_BATCH_BYTES: usize = 1 << 20;

/// Content that is waited for, of which the answer is for its file.
pub(super) type Waiter = Option<oneshot::Sender<Published>>;

impl Entry {
    /// Content that its file was asked for.
    pub(super) fn called(&self) -> What {
        match &self.what {
            What::Content(ino, _) => What::Content(*ino, Stage::Called),
            What::Step(step) => What::Step(step.clone()),
        }
    }

    /// Content that was not told goes again.
    pub(super) fn restore(&mut self, waiter: Waiter) {
        if let (What::Content(_, Stage::Ready(_, told)), Some(waiter)) = (&mut self.what, waiter) {
            *told = waiter;
        }
    }

    pub(super) fn is_ready(&self) -> bool {
        match &self.what {
            What::Step(_) => true,
            What::Content(_, stage) => matches!(stage, Stage::Ready(..)),
        }
    }
}

impl Table {
    /// The steps of the next request, who waits for each, and whose numbers they use.
    pub(super) fn batch(
        &mut self,
        of: Of,
        session: SessionId,
    ) -> (Vec<Step>, Vec<Waiter>, SessionId) {
        let queue = self.queue(of);
        let owner = match (of, queue.front()) {
            (Of::Earlier, Some(first)) => first.session,
            _ => session,
        };
        let (mut steps, mut waiters, mut bytes) = (Vec::new(), Vec::new(), 0);
        // When content was written that goes in this request.
        let mut written: HashMap<u64, i64> = HashMap::new();
        for entry in queue.iter_mut() {
            let one = !steps.is_empty() && buggify::fires(Point::OneStep);
            let full = one || steps.len() >= BATCH || bytes >= MAX_BATCH_BYTES;
            if full || entry.session != owner || !entry.is_ready() {
                break;
            }
            entry.sent = true;
            let (step, waiter) = match &mut entry.what {
                What::Step(step) => {
                    let mut step = (**step).clone();
                    let at = xattrs_of(&step).and_then(|ino| written.get(&ino));
                    step.at_ns = step.at_ns.max(at.copied().unwrap_or(step.at_ns));
                    (step, None)
                }
                What::Content(_, Stage::Ready(op, told)) => {
                    written.insert(op.ino, op.changed_ns);
                    let told = std::mem::replace(told, oneshot::channel().0);
                    let op = Some(Do::Commit((**op).clone()));
                    (Step { op, ..Step::default() }, Some(told))
                }
                What::Content(..) => break,
            };
            bytes += prost::Message::encoded_len(&step);
            steps.push(step);
            waiters.push(waiter);
        }
        let owner = if of == Of::This { SessionId(0) } else { owner };
        (steps, waiters, owner)
    }

    /// The content of a file was told that was changed at this time: also by writes that came after
    /// changes of its extended attributes which are told behind it. Those are told as no older, or
    /// they would seem to be overtaken.
    pub(super) fn was_written(&mut self, ino: InodeId, at_ns: i64) {
        // Of an earlier session others may have changed the file since.
        for entry in self.this.iter_mut().filter(|entry| !entry.sent) {
            if let What::Step(step) = &mut entry.what
                && xattrs_of(step) == Some(ino.0)
            {
                step.at_ns = step.at_ns.max(at_ns);
            }
        }
    }

    /// Takes out what was sent.
    pub(super) fn take_sent(&mut self, of: Of) -> Vec<Entry> {
        let queue = self.queue(of);
        let sent = queue.iter().take_while(|entry| entry.sent).count();
        queue.drain(..sent).collect()
    }

    /// These were sent, and stay.
    pub(super) fn put_back(&mut self, of: Of, entries: Vec<Entry>) {
        for mut entry in entries.into_iter().rev() {
            entry.sent = false;
            self.queue(of).push_front(entry);
        }
    }
}

/// The inode whose extended attributes a step changes.
fn xattrs_of(step: &Step) -> Option<u64> {
    match &step.op {
        Some(Do::SetXattr(op)) => Some(op.ino),
        Some(Do::RemoveXattr(op)) => Some(op.ino),
        _ => None,
    }
}
