//! Which writes past the pages Linux may undo: when one beyond the end that it believes in fails,
//! it cuts the file there.
//!
//! Such a cut is known by what came before it: a write of the same thread through the same handle
//! has failed, or may have. It does what Linux means it to where this mount alone has changed the
//! file since it was no longer than that: whatever is behind that is of writes that failed, or
//! Linux would believe in a later end.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::time::Duration;
use tokio::time::Instant;
use weft_client::HandleId;
use weft_proto::InodeId;

/// Threads and handles of which failures are remembered.
const MOST_FAILED: usize = 4096;
/// So long a failure is remembered: Linux cuts at once.
const REMEMBERED: Duration = Duration::from_secs(60);

/// Through which handle something is written, and by which thread; 0 is any that is not seen from
/// here.
pub type By = (HandleId, u32);

/// Writes past the pages that wait, and have failed.
#[derive(Default)]
pub struct Failures(BTreeMap<By, Direct>);

#[derive(Default)]
struct Direct {
    waiting: usize,
    /// One has failed since there was nothing to wait for: the call that it is a piece of may have
    /// others that wait.
    failing: bool,
    /// When the last pieces of one that has failed had ended, if nothing was undone since.
    failed: Option<Instant>,
}

impl Direct {
    fn has_failed(&self) -> bool {
        self.failing || self.failed.is_some_and(|at| at.elapsed() < REMEMBERED)
    }
}

impl Failures {
    pub fn begins(&mut self, by: By) {
        self.0.entry(by).or_default().waiting += 1;
    }

    /// One that has begun has ended.
    pub fn ends(&mut self, by: By, failed: bool) {
        let Some(of) = self.0.get_mut(&by) else { return };
        of.waiting = of.waiting.saturating_sub(1);
        of.failing |= failed;
        if of.waiting == 0 {
            if std::mem::take(&mut of.failing) {
                of.failed = Some(Instant::now());
            }
            if !of.has_failed() {
                self.0.remove(&by);
            }
        }
        if self.0.len() > MOST_FAILED {
            let idle = self.0.iter().filter(|(_, of)| of.waiting == 0);
            let oldest = idle.min_by_key(|(_, of)| of.failed).map(|(by, _)| *by);
            oldest.map(|by| self.0.remove(&by));
        }
    }

    /// Whether a change of the size may be one that Linux makes: one has failed, or waits whose
    /// caller may have been let go, of which there is none that is not seen from here.
    pub fn undo(&mut self, by: By) -> bool {
        let Some(of) = self.0.get_mut(&by) else { return false };
        let may = of.has_failed() || of.waiting > 0 && by.1 != 0;
        (of.failing, of.failed) = (false, None);
        if of.waiting == 0 {
            self.0.remove(&by);
        }
        may
    }

    /// A handle is no more.
    pub fn forget(&mut self, handle: HandleId) {
        self.0.retain(|(of, _), _| *of != handle);
    }
}

/// By file: under which right of this mount alone it was no longer than this when something was
/// written to it, and Linux believed in no earlier end when that had ended.
pub struct Ends<Alone>(HashMap<InodeId, (Alone, u64)>);

impl<Alone> Default for Ends<Alone> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<Alone: PartialEq + Copy> Ends<Alone> {
    /// Something is about to be written that may make the file longer than it is `now`; where it
    /// ends then Linux knows, unless it is appended and not where Linux believes.
    pub fn before(
        &mut self,
        ino: InodeId,
        range: &Range<u64>,
        append: bool,
        now: Option<(Alone, u64)>,
    ) {
        let Some((alone, size)) = now.filter(|(_, size)| !append || range.start >= *size) else {
            self.0.remove(&ino);
            return;
        };
        if range.end > size {
            let known = self.0.entry(ino).or_insert((alone, size));
            *known = (alone, if known.0 == alone { size.min(known.1) } else { size });
        }
    }

    /// Whether all that lies behind `end` by `now` is of writes that failed.
    pub fn is_last(&self, ino: InodeId, end: u64, now: Alone) -> bool {
        self.0.get(&ino).is_some_and(|(alone, size)| *alone == now && *size <= end)
    }

    /// One of its handles is no more, perhaps the last.
    pub fn forget(&mut self, ino: InodeId) {
        self.0.remove(&ino);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const H: HandleId = HandleId(7);
    const F: InodeId = InodeId(7);

    #[tokio::test(start_paused = true)]
    async fn what_failed_is_remembered_for_a_while_and_what_did_not_is_not() {
        let mut failures = Failures::default();
        let write = |failures: &mut Failures, by, failed| {
            failures.begins(by);
            failures.ends(by, failed);
        };
        write(&mut failures, (H, 1), false);
        assert!(!failures.undo((H, 1)));
        write(&mut failures, (H, 1), true);
        write(&mut failures, (H, 1), false);
        assert!(failures.undo((H, 1)) && !failures.undo((H, 1)));
        write(&mut failures, (H, 1), true);
        tokio::time::advance(REMEMBERED).await;
        assert!(!failures.undo((H, 1)));
        // Another piece of the same call takes long.
        failures.begins((H, 1));
        write(&mut failures, (H, 1), true);
        tokio::time::advance(2 * REMEMBERED).await;
        failures.ends((H, 1), false);
        assert!(failures.undo((H, 1)));
        // Who waits may have been let go, but not who is not seen.
        failures.begins((H, 1));
        failures.begins((H, 0));
        assert!(failures.undo((H, 1)) && !failures.undo((H, 0)));
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_failure_is_forgotten_first() {
        let mut failures = Failures::default();
        for thread in 0..2 * MOST_FAILED as u32 {
            failures.begins((H, thread));
            failures.ends((H, thread), true);
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        let last = (HandleId(1), 1);
        failures.begins(last);
        failures.ends(last, true);
        assert_eq!(failures.0.len(), MOST_FAILED);
        assert!(failures.undo(last) && !failures.undo((H, 0)));
        failures.forget(H);
        assert!(failures.0.is_empty());
    }

    #[test]
    fn what_this_mount_alone_has_written_it_may_cut() {
        let mut ends = Ends::default();
        assert!(!ends.is_last(F, 100, 'a'));
        // In pieces, of which some are there already.
        ends.before(F, &(100..200), false, Some(('a', 100)));
        ends.before(F, &(200..300), false, Some(('a', 200)));
        assert!(ends.is_last(F, 100, 'a'));
        // Linux believes in an earlier end, or others may have written since.
        assert!(!ends.is_last(F, 99, 'a'));
        assert!(!ends.is_last(F, 100, 'b'));
        // What begins anew does so from what there is.
        ends.before(F, &(300..400), false, Some(('b', 300)));
        assert!(ends.is_last(F, 300, 'b') && !ends.is_last(F, 100, 'b'));
        // What lies within is nothing new.
        ends.before(F, &(0..100), false, Some(('c', 300)));
        assert!(!ends.is_last(F, 300, 'c'));
        ends.before(F, &(0..100), false, None);
        assert!(!ends.is_last(F, 300, 'b'));
    }

    /// Where it ends Linux does not know then: the next cut would take what was appended.
    #[test]
    fn what_is_appended_elsewhere_than_linux_believes_is_not_cut() {
        let mut ends = Ends::default();
        ends.before(F, &(0..100), true, Some(('a', 100)));
        assert!(!ends.is_last(F, 100, 'a'));
        ends.before(F, &(200..300), true, Some(('a', 200)));
        assert!(ends.is_last(F, 200, 'a'));
        ends.before(F, &(250..350), true, Some(('a', 300)));
        assert!(!ends.is_last(F, 350, 'a'));
    }
}
