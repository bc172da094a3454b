//! What became of a batch: what was done is forgotten, what was refused is told (I8), and the rest
//! goes again.

use super::batch::Waiter;
use super::entries::{Entry, Of, Published, Table, What, describe};
use super::log::ChangeLog;
use crate::meta::Failed;
use tracing::warn;
use v1::batch_op::step::Op as Do;
use weft_proto::{Error, ErrorKind, InodeId, v1};

impl ChangeLog {
    pub(super) fn were_told(&self, of: Of, reply: v1::BatchReply, waiters: Vec<Waiter>) {
        let (mut table, leases) = (self.table.lock(), &self.group.leases);
        let v1::BatchReply { done, error, message, .. } = reply;
        let refused = (error != 0).then(|| Error::new(ErrorKind::from_code(error), message));
        let sent = table.take_sent(of);
        let mut done = done.into_iter();
        let mut refused = refused.filter(|_| done.len() < waiters.len());
        let (mut stay, mut written) = (Vec::new(), Vec::new());
        for (mut entry, waiter) in sent.into_iter().zip(waiters) {
            let result = match done.next() {
                Some(done) => Ok(done),
                None => match refused.take() {
                    Some(error) => Err(error),
                    None => {
                        entry.restore(waiter);
                        stay.push(entry);
                        continue;
                    }
                },
            };
            match (&entry.what, result) {
                (What::Content(..), result) => {
                    let answer = result.and_then(|done| {
                        let what = "content was committed without attributes";
                        let attr = done.attr.ok_or_else(|| Error::new(ErrorKind::Protocol, what));
                        attr?.try_into()
                    });
                    let answer: Published =
                        answer.map_err(|error| Failed { error, ambiguous: false });
                    let attr = answer.as_ref().ok();
                    written.extend(attr.filter(|a| leases.has_xattr_steps(a.ino)).copied());
                    // It is its file's to say that there is no more.
                    entry.what = entry.called();
                    stay.push(entry);
                    if let Some(waiter) = waiter {
                        let _ = waiter.send(answer);
                    }
                }
                (What::Step(_), Ok(_)) => {
                    table.forget(&entry);
                    self.was_done(&mut table, &entry);
                }
                (What::Step(_), Err(error)) => {
                    table.forget(&entry);
                    self.failed(&mut table, entry, &error);
                }
            }
        }
        table.put_back(of, stay);
        written.into_iter().for_each(|attr| table.was_written(attr.ino, attr.ctime_ns));
    }

    pub(super) fn were_not_told(&self, of: Of, failed: &Failed, waiters: Vec<Waiter>) {
        let mut table = self.table.lock();
        let over = failed.error.kind == ErrorKind::SessionExpired;
        // They may have been done, and undone by others since; or have been refused for what they
        // are, which is for ever.
        let lost = match (over, failed.ambiguous) {
            (true, true) => Some(Error::new(ErrorKind::Io, UNKNOWN)),
            (true, false) => None,
            (false, _) if self.group.sessions.have_ended() => None,
            (false, _) => Some(failed.error.clone()),
        };
        let (sent, mut stay) = (table.take_sent(of), Vec::new());
        for (mut entry, waiter) in sent.into_iter().zip(waiters) {
            match (&entry.what, &lost) {
                (What::Content(..), _) => {
                    let (error, ambiguous) = (failed.error.clone(), failed.ambiguous);
                    entry.what = entry.called();
                    stay.push(entry);
                    if let Some(waiter) = waiter {
                        let _ = waiter.send(Err(Failed { error, ambiguous }));
                    }
                }
                (What::Step(_), Some(error)) => {
                    table.forget(&entry);
                    self.failed(&mut table, entry, error);
                }
                (What::Step(_), None) => stay.push(entry),
            }
        }
        table.put_back(of, stay);
    }

    /// The group has heard of a step.
    fn was_done(&self, table: &mut Table, entry: &Entry) {
        if let What::Step(step) = &entry.what
            && let Some(Do::Make(op)) = &step.op
        {
            table.made.remove(&InodeId(op.ino));
        }
    }

    /// A step could not be taken: who syncs is told, and of a file that could not be made its
    /// handles are, too.
    fn failed(&self, table: &mut Table, entry: Entry, error: &Error) {
        let concerns = entry.concerns();
        let What::Step(step) = entry.what else { return };
        self.group.leases.not_done(&step, &concerns);
        let what = describe(&step);
        warn!(%error, "what was done here is lost: {what}");
        table.lose(&step, error);
        let Some(Do::Make(op)) = &step.op else { return };
        match table.made.get_mut(&InodeId(op.ino)) {
            Some(made) if !made.left => made.failed = Some(error.clone()),
            _ => drop(table.made.remove(&InodeId(op.ino))),
        }
    }
}

/// Why it is not known what became of a batch.
const UNKNOWN: &str = "the cluster declared this mount dead while it was told what was done here; \
                       whether that took effect is not known: check and repeat it";
