//! Judges a history of appends against reads of it.
//!
//! For every read, with "before" meaning that the answer of one call came before the other began:
//! - no record is seen twice, and none that nobody appended to that file;
//! - every append that was acknowledged before the read began is seen whole;
//! - the records of one client are seen in the order in which it appended them;
//! - an append acknowledged before another one began is seen before it (real-time order);
//! - two reads at the end agree: what one saw is a prefix of what the other saw;
//! - what a client saw of others at any time is there at the end, in the same order. Of its own a
//!   mount may see what is not durable yet, and is lost with it.

use super::calls::{Ended, calls};
use crate::history::{Answer, Call, Event, FileNo, Record};
use std::collections::{BTreeMap, HashMap, HashSet};

/// What is wrong, in a sentence; empty when the history is right.
pub fn check(events: &[Event]) -> Vec<String> {
    let mut problems = Vec::new();
    let mut appends: BTreeMap<FileNo, Vec<Append>> = BTreeMap::new();
    let mut reads: BTreeMap<FileNo, Vec<Read>> = BTreeMap::new();
    for Ended { call, began, answered } in calls(events) {
        match (call, answered) {
            (Call::Append { file, records }, _) => {
                let (records, acknowledged) = (records.clone(), answered.map(|(at, _)| at));
                appends.entry(*file).or_default().push(Append { records, began, acknowledged });
            }
            (Call::Read { client, file, last }, Some((_, Some(Answer::Records(seen))))) => {
                let read = Read { client: *client, began, seen: seen.clone(), last: *last };
                reads.entry(*file).or_default().push(read);
            }
            _ => {}
        }
    }
    for (file, reads) in &reads {
        let appends = appends.get(file).map_or(&[][..], Vec::as_slice);
        for read in reads {
            check_read(*file, appends, read, &mut problems);
        }
        check_agreement(*file, reads, &mut problems);
    }
    problems
}

struct Append {
    records: Vec<Record>,
    began: u64,
    acknowledged: Option<u64>,
}

struct Read {
    client: u32,
    began: u64,
    seen: Vec<Record>,
    last: bool,
}

fn check_read(file: FileNo, appends: &[Append], read: &Read, problems: &mut Vec<String>) {
    let known: HashSet<Record> = appends.iter().flat_map(|a| a.records.iter().copied()).collect();
    let mut place = HashMap::new();
    let mut last: HashMap<u32, u64> = HashMap::new();
    for (at, &record) in read.seen.iter().enumerate() {
        if !known.contains(&record) {
            problems.push(format!("file {}: {record:?} was never appended", file.0));
        }
        if place.insert(record, at).is_some() {
            problems.push(format!("file {}: {record:?} is there twice", file.0));
        }
        match last.insert(record.client, record.seq) {
            Some(before) if before > record.seq => problems.push(format!(
                "file {}: client {} appended {} after {before}, but it is seen before",
                file.0, record.client, record.seq
            )),
            _ => {}
        }
    }
    let acknowledged = |a: &&Append| a.acknowledged.is_some_and(|t| t < read.began);
    for append in appends.iter().filter(acknowledged) {
        for record in append.records.iter().filter(|r| !place.contains_key(r)) {
            problems.push(format!("file {}: acknowledged {record:?} is lost", file.0));
        }
    }
    check_real_time(file, appends, &place, problems);
}

/// Every acknowledged append ends, in the file, before any that began after its acknowledgement.
fn check_real_time(
    file: FileNo,
    appends: &[Append],
    place: &HashMap<Record, usize>,
    problems: &mut Vec<String>,
) {
    let ends = |a: &Append| a.records.iter().filter_map(|r| place.get(r)).max().copied();
    let starts = |a: &Append| a.records.iter().filter_map(|r| place.get(r)).min().copied();
    let mut done: Vec<_> =
        appends.iter().filter_map(|a| Some((a.acknowledged?, ends(a)?))).collect();
    done.sort_unstable();
    let mut begun: Vec<_> = appends.iter().filter_map(|a| Some((a.began, starts(a)?))).collect();
    begun.sort_unstable();
    let (mut next, mut furthest) = (done.iter().peekable(), None);
    for (began, start) in begun {
        while let Some(&&(time, end)) = next.peek().filter(|d| d.0 < began) {
            furthest = furthest.max(Some((end, time)));
            next.next();
        }
        if let Some((end, time)) = furthest.filter(|f| f.0 > start) {
            problems.push(format!(
                "file {}: what was acknowledged at {time} ns lies at {end}, behind what began at \
                 {began} ns and lies at {start}",
                file.0
            ));
        }
    }
}

fn check_agreement(file: FileNo, reads: &[Read], problems: &mut Vec<String>) {
    let last = || reads.iter().filter(|read| read.last);
    let Some(longest) = last().max_by_key(|r| r.seen.len()) else { return };
    for read in last() {
        if !longest.seen.starts_with(&read.seen) {
            problems.push(format!("file {}: two reads disagree on the order of appends", file.0));
        }
    }
    let places: HashMap<_, _> = longest.seen.iter().zip(0usize..).collect();
    for read in reads {
        let of_others = read.seen.iter().filter(|record| record.client != read.client);
        let mut next = 0;
        for record in of_others {
            match places.get(record) {
                Some(place) if *place >= next => next = place + 1,
                Some(_) => problems.push(format!(
                    "file {}: client {} saw {record:?} elsewhere than it is at the end",
                    file.0, read.client
                )),
                None => problems.push(format!(
                    "file {}: client {} saw {record:?}, which is not there at the end",
                    file.0, read.client
                )),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Kind;

    const F: FileNo = FileNo(1);

    fn r(client: u32, seq: u64) -> Record {
        Record { client, seq }
    }

    fn append(client: u32, at: u64, until: Option<u64>, records: &[Record]) -> Vec<Event> {
        let call = Call::Append { file: F, records: records.to_vec() };
        let begin = Event { process: client, time_ns: at, call: call.clone(), kind: Kind::Invoke };
        let (time_ns, kind) = match until {
            Some(t) => (t, Kind::Ok(Answer::Done)),
            None => (at + 1, Kind::Info("EIO".into())),
        };
        vec![begin, Event { process: client, time_ns, call, kind }]
    }

    fn read(at: u64, seen: &[Record]) -> Vec<Event> {
        read_of(9, at, seen, true)
    }

    fn read_of(client: u32, at: u64, seen: &[Record], last: bool) -> Vec<Event> {
        let call = Call::Read { client, file: F, last };
        let kind = Kind::Ok(Answer::Records(seen.to_vec()));
        let process = 100 + client;
        vec![
            Event { process, time_ns: at, call: call.clone(), kind: Kind::Invoke },
            Event { process, time_ns: at + 1, call, kind },
        ]
    }

    fn history() -> Vec<Event> {
        let mut events = [
            append(1, 0, Some(10), &[r(1, 1), r(1, 2)]),
            append(2, 5, Some(15), &[r(2, 1)]),
            append(1, 20, None, &[r(1, 3)]),
            append(2, 30, Some(40), &[r(2, 2)]),
        ]
        .concat();
        events.sort_by_key(|event| event.time_ns);
        events
    }

    fn problems_of(seen: &[Record]) -> Vec<String> {
        check(&[history(), read(50, seen)].concat())
    }

    #[test]
    fn right_histories_pass() {
        for seen in [
            &[r(1, 1), r(1, 2), r(2, 1), r(2, 2)][..],
            &[r(2, 1), r(1, 1), r(1, 2), r(1, 3), r(2, 2)],
            &[r(1, 1), r(2, 1), r(1, 2), r(2, 2), r(1, 3)],
        ] {
            assert_eq!(problems_of(seen), Vec::<String>::new(), "{seen:?}");
        }
    }

    #[test]
    fn wrong_histories_are_caught() {
        for (seen, word) in [
            (&[r(1, 1), r(2, 1), r(2, 2)][..], "lost"),
            (&[r(1, 1), r(1, 2), r(2, 1), r(2, 1), r(2, 2)], "twice"),
            (&[r(1, 2), r(1, 1), r(2, 1), r(2, 2)], "seen before"),
            (&[r(1, 1), r(1, 2), r(2, 1), r(2, 2), r(7, 7)], "never appended"),
            (&[r(2, 2), r(1, 1), r(1, 2), r(2, 1)], "acknowledged at"),
        ] {
            let problems = problems_of(seen);
            assert!(problems.iter().any(|p| p.contains(word)), "{word}: {problems:?}");
        }
        let disagree = [
            history(),
            read(50, &[r(1, 1), r(1, 2), r(2, 1), r(2, 2)]),
            read(60, &[r(2, 1), r(1, 1), r(1, 2), r(2, 2), r(1, 3)]),
        ]
        .concat();
        assert!(check(&disagree).iter().any(|p| p.contains("disagree")));
        let all = [r(1, 1), r(1, 2), r(2, 1), r(2, 2)];
        for (client, seen, word) in [
            (2, &[r(1, 1), r(1, 2), r(1, 3)][..], "not there at the end"),
            (3, &[r(2, 1), r(1, 1), r(1, 2)], "elsewhere"),
            (3, &[r(1, 1), Record::torn(1)], "never appended"),
        ] {
            let early = read_of(client, 25, seen, false);
            let problems = check(&[history(), early, read(50, &all)].concat());
            assert!(problems.iter().any(|p| p.contains(word)), "{word}: {problems:?}");
        }
        // Its own it may have seen, and lost.
        let own = read_of(1, 25, &[r(1, 1), r(1, 2), r(2, 1), r(1, 3)], false);
        assert_eq!(check(&[history(), own, read(50, &all)].concat()), Vec::<String>::new());
    }
}
