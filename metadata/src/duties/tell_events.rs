//! Tells admins of what comes about by no entry of its own: who leads, what is repaired, whether
//! there is room, whether chunks are damaged, and that a scrub is through.

use crate::events::{event, warning};
use crate::node::Node;
use crate::soft::repair::DAMAGED_INTERVAL;
use crate::soft::targets::Targets;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use weft_proto::v1;

const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// A repair is over when nothing was left for so many looks, and damage, or want of room, when
/// there was none: a daemon that is restarted tells of none meanwhile.
const REPAIR_LOOKS: u32 = 3;
const QUIET_LOOKS: u32 = 60;
/// Records that were told of by a leader before are over if none was met by then.
const RECORDS_INTERVAL: Duration = DAMAGED_INTERVAL;
/// Events of the leader before that are looked at for what was not over yet.
const LOOKED_AT: u64 = 1000;

/// Looks what has changed, for as long as this server leads.
pub async fn tell_events(node: &Arc<Node>, targets: &Targets, term: u64) {
    let me = node.config.id;
    let mut leads = Some(event("leader", format!("metadata server {me} leads, in term {term}")));
    let state = node.state.clone();
    let kept = move || state.events(0, LOOKED_AT as usize, LOOKED_AT);
    let kept = node.env.blocking(kept).await.map(|(kept, _)| kept).unwrap_or_default();
    let mut watch = Watch::go_on(&kept, Instant::now());
    loop {
        // The first leader of a group has to hear of the others first that they keep events.
        if let Some(leads) = leads.take_if(|_| node.tells_events()) {
            node.tell(leads).await;
        }
        sleep(LOOK_INTERVAL).await;
        let repair = watch.repair(Instant::now(), node.repair.under_way());
        let mut events: Vec<_> = repair.into_iter().collect();
        events.extend(watch.room(node.has_room().err().map(|e| e.message)));
        events.extend(watch.damage(targets.count_damaged()));
        let now = Instant::now();
        events.extend(watch.records(now, node.repair.count_damaged(now)));
        events.extend(watch.scrubs(&targets.stats()));
        for event in events {
            node.tell(event).await;
        }
    }
}

/// What was told last.
#[derive(Default)]
struct Watch {
    repair: Option<Repair>,
    /// For how many looks there was room, or no damage, after there was none, or some.
    no_room: Option<u32>,
    damaged: Option<u32>,
    /// It was told that records of segments make no sense, and may be so until then although none
    /// is counted.
    records: Option<Instant>,
    /// When each target was last scrubbed.
    scrubbed: BTreeMap<u32, u64>,
}

/// A repair that is under way: since when, what was made before, and for how many looks nothing was
/// left.
struct Repair {
    since: Instant,
    made: u64,
    still: u32,
}

impl Watch {
    /// Goes on where the leader before has ended.
    fn go_on(kept: &[v1::Event], now: Instant) -> Self {
        let begun = |begin, end| {
            let of_it = |e: &&v1::Event| e.kind == begin || e.kind == end;
            kept.iter().rev().find(of_it).is_some_and(|last| last.kind == begin)
        };
        Self {
            repair: begun("repair-begins", "repair-ends").then_some(Repair {
                since: now,
                made: 0,
                still: 0,
            }),
            no_room: begun("metadata-full", "metadata-room").then_some(0),
            damaged: begun("damage", "damage-ends").then_some(0),
            records: begun("records-damaged", "records-whole").then_some(now + RECORDS_INTERVAL),
            scrubbed: BTreeMap::new(),
        }
    }

    fn repair(&mut self, now: Instant, under_way: (u64, u64, u64)) -> Option<v1::Event> {
        let (missing, moving, all_made) = under_way;
        let Some(repair) = &mut self.repair else {
            if missing + moving == 0 {
                return None;
            }
            self.repair = Some(Repair { since: now, made: all_made, still: 0 });
            let what = format!("{missing} chunks are missing and {moving} are to move");
            let told = if missing > 0 { warning } else { event };
            return Some(told("repair-begins", what));
        };
        repair.still = if missing + moving > 0 { 0 } else { repair.still + 1 };
        if repair.still < REPAIR_LOOKS {
            return None;
        }
        let made = all_made.saturating_sub(repair.made);
        let took = now.duration_since(repair.since).as_secs();
        self.repair = None;
        let what = format!("nothing is left to be made: {made} chunks in {took} s, by this leader");
        Some(event("repair-ends", what))
    }

    fn room(&mut self, why: Option<String>) -> Option<v1::Event> {
        if is_over(&mut self.no_room, why.is_some()) {
            let what = "the metadata servers have had room again for a minute";
            return Some(event("metadata-room", what.into()));
        }
        let why = why.filter(|_| self.no_room.is_none())?;
        self.no_room = Some(0);
        Some(warning("metadata-full", why))
    }

    fn damage(&mut self, damaged: usize) -> Option<v1::Event> {
        if is_over(&mut self.damaged, damaged > 0) {
            let what = "no daemon has told of a damaged chunk for a minute";
            return Some(event("damage-ends", what.into()));
        }
        if damaged == 0 || self.damaged.is_some() {
            return None;
        }
        self.damaged = Some(0);
        let what = format!("at least {damaged} chunks are damaged, or not where they should be");
        Some(warning("damage", what))
    }

    fn records(&mut self, now: Instant, damaged: usize) -> Option<v1::Event> {
        if damaged == 0 {
            self.records.take_if(|until| now >= *until)?;
            // Which does not say that they were mended: nothing may have come to them.
            let what = "no segment was passed over for a day since its record makes no sense; run \
                        `weft fsck` to see whether all are whole";
            return Some(event("records-whole", what.into()));
        }
        // Those that are met are counted for a day.
        if self.records.replace(now).is_some() {
            return None;
        }
        let what = format!(
            "the records of {damaged} segments, or more, make no sense: they are neither repaired \
             nor moved; run `weft fsck`"
        );
        Some(warning("records-damaged", what))
    }

    fn scrubs(&mut self, stats: &[v1::TargetStat]) -> Vec<v1::Event> {
        let mut events = Vec::new();
        for stat in stats {
            // Where nothing lies, it is through at once.
            let Some(scrub) = stat.scrub.filter(|_| stat.chunks > 0) else { continue };
            let known = self.scrubbed.insert(stat.target, scrub.last_s);
            if known.is_some_and(|known| known < scrub.last_s) {
                let what = format!("all of target {} was read and compared", stat.target);
                events.push(event("scrubbed", what));
            }
        }
        events
    }
}

/// Counts how long something that was told is over; answers whether that is long enough.
fn is_over(quiet: &mut Option<u32>, goes_on: bool) -> bool {
    let Some(looks) = quiet else { return false };
    *looks = if goes_on { 0 } else { *looks + 1 };
    let over = *looks >= QUIET_LOOKS;
    if over {
        *quiet = None;
    }
    over
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repair_is_told_once_when_it_begins_and_once_when_it_is_over() {
        let (mut watch, now) = (Watch::default(), Instant::now());
        let looks = [(0, 5), (7, 5), (3, 9), (0, 12), (2, 12), (0, 14), (0, 14), (0, 14), (0, 14)];
        let told: Vec<_> = looks
            .iter()
            .filter_map(|&(missing, made)| watch.repair(now, (missing, 0, made)))
            .collect();
        let told: Vec<_> = told.iter().map(|e| (e.kind.as_str(), e.warning)).collect();
        assert_eq!(told, [("repair-begins", true), ("repair-ends", false)]);
    }

    #[test]
    fn what_was_so_before_is_not_told_again_by_the_next_leader() {
        let mut watch = Watch::default();
        let full = || Some("no room".to_owned());
        let mut kept = Vec::new();
        assert!(watch.room(None).is_none() && watch.damage(0).is_none());
        kept.extend(watch.room(full()));
        kept.extend(watch.damage(2));
        kept.extend(watch.repair(Instant::now(), (4, 0, 0)));
        assert_eq!(kept.len(), 3);
        let mut watch = Watch::go_on(&kept, Instant::now());
        assert!(watch.room(full()).is_none() && watch.damage(3).is_none());
        assert!(watch.repair(Instant::now(), (4, 0, 0)).is_none());
        // A moment without is no end.
        let mut ends = Vec::new();
        for look in 0..200 {
            ends.extend(watch.damage(usize::from(look == 30)).map(|e| (look, e.kind)));
        }
        assert_eq!(ends, [(90, "damage-ends".to_owned())]);
        for _ in 0..QUIET_LOOKS {
            kept.extend(watch.room(None));
        }
        assert_eq!(kept.last().unwrap().kind, "metadata-room");
    }

    #[test]
    fn that_records_make_no_sense_is_told_once_and_so_is_the_end_of_it() {
        let start = Instant::now();
        let told = |watch: &mut Watch, looks: &[(u64, usize)]| {
            let at = |after| start + Duration::from_secs(after);
            let told = looks.iter().filter_map(|&(after, n)| watch.records(at(after), n));
            told.map(|e| (e.kind.clone(), e)).unzip::<_, _, Vec<_>, Vec<_>>()
        };
        let mut watch = Watch::default();
        let (kinds, mut kept) = told(&mut watch, &[(0, 0), (1, 2), (2, 5), (3, 3)]);
        assert_eq!(kinds, ["records-damaged"]);
        assert!(kept[0].warning && kept[0].text.contains(" 2 segments"));
        // The next leader has not met them yet.
        let mut watch = Watch::go_on(&kept, start);
        assert!(told(&mut watch, &[(4, 0), (5, 2), (6, 2)]).0.is_empty());
        let mut watch = Watch::go_on(&kept, start);
        let mended = RECORDS_INTERVAL.as_secs();
        let (kinds, ended) = told(&mut watch, &[(4, 0), (mended - 1, 0), (mended, 0), (mended, 0)]);
        assert_eq!(kinds, ["records-whole"]);
        kept.extend(ended);
        // Others are told again, by this one and the next.
        for mut watch in [watch, Watch::go_on(&kept, start)] {
            let looks = [(mended + 1, 0), (mended + 2, 1), (mended + 3, 1), (mended + 4, 0)];
            assert_eq!(told(&mut watch, &looks).0, ["records-damaged", "records-whole"]);
        }
    }

    #[test]
    fn a_scrub_is_told_when_it_is_through_where_something_lies() {
        let mut watch = Watch::default();
        let mut scrub = |last_s, chunks| {
            let scrub = Some(v1::TargetScrub { last_s, ..Default::default() });
            watch.scrubs(&[v1::TargetStat { target: 3, scrub, chunks, ..Default::default() }]).len()
        };
        // The first is by the time of a leader before.
        assert_eq!([scrub(100, 5), scrub(100, 5), scrub(200, 5)], [0, 0, 1]);
        assert_eq!([scrub(300, 0), scrub(400, 0)], [0, 0]);
    }
}
