//! What is told of clusters in trouble.

use super::problem::TOLD;
use super::*;
use weft_proto::v1::{
    ClusterMap, DaemonStat, Fallback, MemberRole, MemberStat, NetworkStat, NodeInfo, RepairStat,
    SessionStat, TargetInfo, TargetLoad, TargetStat, TargetState,
};
use weft_proto::{Error, ErrorKind};

/// Three metadata servers, of which the first leads, and six targets, one a daemon.
pub(super) fn cluster() -> StatusReply {
    let members = (1..=3).map(|id| NodeInfo {
        id,
        address: format!("m{id}:7100"),
        role: MemberRole::Voter.into(),
        ..Default::default()
    });
    let targets = (1..=6).map(|id| TargetInfo {
        id,
        daemon: format!("storage-{id}"),
        address: format!("s{id}:7200"),
        state: TargetState::Up.into(),
        capacity_bytes: 1000,
        path: format!("/dev/d{id}"),
        ..Default::default()
    });
    let stats = (1..=6).map(|target| TargetStat {
        target,
        capacity_bytes: 1000,
        used_bytes: 10,
        load: Some(TargetLoad { reads_per_s: 50, read_us: 1000, ..Default::default() }),
        ..Default::default()
    });
    let stat = |id| MemberStat { id, active: true, ..Default::default() };
    StatusReply {
        id: 1,
        leader: 1,
        clock_ns: 1_700_000_000_000_000_000,
        map: Some(ClusterMap {
            members: members.collect(),
            targets: targets.collect(),
            ..Default::default()
        }),
        targets: stats.collect(),
        members: vec![stat(2), stat(3)],
        repair: Some(RepairStat::default()),
        ..Default::default()
    }
}

pub(super) fn answers(leader: &StatusReply) -> Answers {
    let of = |id: u64| StatusReply { id, leader: 1, ..leader.clone() };
    vec![
        ("m1:7100".into(), Ok(leader.clone())),
        ("m2:7100".into(), Ok(of(2))),
        ("m3:7100".into(), Ok(of(3))),
    ]
}

fn silent() -> weft_proto::Result<StatusReply> {
    Err(Error::new(ErrorKind::TimedOut, "no answer"))
}

pub(super) fn down(reply: &mut StatusReply, ids: &[u32]) {
    for target in reply.map.iter_mut().flat_map(|map| &mut map.targets) {
        if ids.contains(&target.id) {
            target.state = TargetState::Down.into();
        }
    }
    for stat in reply.targets.iter_mut().filter(|s| ids.contains(&s.target)) {
        stat.heard_ms = 30_000;
    }
}

fn kinds(all: &[Problem]) -> Vec<&str> {
    all.iter().map(|p| &p.kind[..]).collect()
}

#[test]
fn a_cluster_that_is_well_has_no_problems() {
    let reply = cluster();
    assert_eq!(problems(Some(&reply), Some(&answers(&reply))), []);
    assert_eq!(problems(Some(&reply), None), []);
}

#[test]
fn a_daemon_that_died_is_named_and_the_last_redundancy_comes_first() {
    let mut reply = cluster();
    down(&mut reply, &[3]);
    let all = problems(Some(&reply), None);
    assert_eq!(kinds(&all), ["target_down"]);
    assert!(all[0].text.contains("storage-3 (s3:7200) is silent for 30 s: target 3"), "{all:?}");
    assert!(all[0].command.contains("weft target out 3"), "{all:?}");
    down(&mut reply, &[3, 4]);
    reply.bare_groups = 1;
    let all = problems(Some(&reply), None);
    assert_eq!(kinds(&all), ["groups_bare", "target_down", "target_down"]);
    assert_eq!(all[0].severity, Severity::Critical);
    down(&mut reply, &[3, 4, 5]);
    (reply.lost_groups, reply.bare_groups) = (1, 0);
    assert_eq!(kinds(&problems(Some(&reply), None))[0], "groups_lost");
    // Its daemon lives, and says so.
    let mut reply = cluster();
    down(&mut reply, &[2]);
    reply.targets[1].refused = true;
    reply.targets[1].heard_ms = 100;
    let all = problems(Some(&reply), None);
    assert!(all[0].text.contains("drive fails or is away (/dev/d2)"), "{all:?}");
}

#[test]
fn servers_that_are_away_or_cut_off_are_told_apart() {
    let mut reply = cluster();
    reply.members[1].active = false;
    let mut asked = answers(&reply);
    let all = problems(Some(&reply), Some(&asked));
    assert_eq!((kinds(&all), all[0].severity), (vec!["metadata_away"], Severity::Critical));
    assert!(all[0].text.contains("cut off") && all[0].command.contains("firewall"), "{all:?}");
    asked[2].1 = silent();
    let all = problems(Some(&reply), Some(&asked));
    assert!(all[0].text.ends_with("metadata server 3 (m3:7100) does not answer"), "{all:?}");
    // The leader reaches it, and we do not.
    let reply = cluster();
    let all = problems(Some(&reply), Some(&asked));
    assert_eq!((kinds(&all), all[0].severity), (vec!["metadata_unreached"], Severity::Warning));
    let none: Answers = vec![("m1:7100".into(), Ok(StatusReply::default())), asked[2].clone()];
    let all = problems(None, Some(&none));
    assert_eq!(kinds(&all), ["no_leader"]);
    assert!(all[0].text.contains("1 of 2 metadata servers answer; silent: m3:7100"), "{all:?}");
}

#[test]
fn who_cannot_take_the_state_over_or_give_it_is_told_once() {
    let reply = StatusReply { damaged: "a block".into(), ..cluster() };
    let mut asked = answers(&reply);
    for (_, answer) in &mut asked[1..] {
        answer.as_mut().unwrap().damaged = String::new();
    }
    asked[2].1.as_mut().unwrap().cannot_fetch = "make 7 MiB more room".into();
    let all = problems(Some(&reply), Some(&asked));
    assert_eq!(kinds(&all), ["metadata_damaged", "metadata_behind"]);
    assert!(all[0].text.starts_with("metadata server 1 ") && all[0].text.ends_with("a block"));
    assert!(all[0].command.contains("weft-metadata@1"), "{all:?}");
    assert!(all[1].text.starts_with("metadata server 3 ") && all[1].text.contains("7 MiB"));
}

#[test]
fn room_clocks_and_slow_drives_are_told() {
    let mut reply = cluster();
    let mut asked = answers(&reply);
    if let Ok(other) = &mut asked[1].1 {
        other.low_on_room = true;
        other.clock_ns += 90_000_000_000;
    }
    let all = problems(Some(&reply), Some(&asked));
    assert_eq!(kinds(&all), ["metadata_full", "clocks_apart"]);
    assert!(all[1].text.contains("metadata server 2 is 90 s ahead of the leader's"), "{all:?}");
    reply.daemons =
        vec![DaemonStat { daemon: "storage-5".into(), ahead_s: -400, ..Default::default() }];
    let all = problems(Some(&reply), None);
    assert_eq!((kinds(&all), all[0].severity), (vec!["clocks_apart"], Severity::Critical));
    assert_eq!(headline("ok", &all), "ok, 1 problem");
    assert_eq!((headline("degraded", &all), headline("ok", &[])), ("degraded".into(), "ok".into()));
    let mut reply = cluster();
    reply.map.as_mut().unwrap().targets[0].full = true;
    reply.targets[1].used_bytes = 900;
    reply.targets[2].load.as_mut().unwrap().read_us = 80_000;
    reply.targets[3].stalled_ms = 5000;
    reply.targets[4].read_errors = 3;
    let all = problems(Some(&reply), None);
    let wanted = ["target_full", "target_nearly_full", "drive_hangs", "drive_errors", "drive_slow"];
    assert_eq!(kinds(&all), wanted);
    assert!(all[4].text.contains("target 3") && all[4].text.contains("80 ms"), "{all:?}");
    reply.targets[0].index_full = true;
    let all = problems(Some(&reply), None);
    assert!(all.iter().any(|p| p.kind == "index_full" && p.text.contains("target 1")), "{all:?}");
}

#[test]
fn a_daemon_that_is_late_is_told_where_others_are_not() {
    let mut reply = cluster();
    let late = |daemon: &str, late_ms: u64| DaemonStat {
        daemon: daemon.into(),
        late_ms: Some(late_ms),
        ..Default::default()
    };
    reply.daemons = vec![late("a", 1), late("b", 150), late("c", 2)];
    let all = problems(Some(&reply), None);
    assert_eq!(kinds(&all), ["daemon_late"]);
    assert!(all[0].text.contains("daemon b is slow") && all[0].text.contains("150 ms"), "{all:?}");
    reply.daemons = vec![late("a", 60), late("b", 150), late("c", 40)];
    assert!(problems(Some(&reply), None).is_empty(), "all of them are");
    reply.daemons = vec![late("a", 1), late("b", 150)];
    let silent = |daemon: &str| DaemonStat { late_ms: None, ..late(daemon, 0) };
    reply.daemons.extend([silent("c"), silent("d")]);
    assert!(problems(Some(&reply), None).is_empty(), "which is usual is not known");
}

#[test]
fn what_goes_over_tcp_against_the_wish_is_told_with_the_reason() {
    let mut reply = cluster();
    let stat = |fallbacks: Vec<_>| {
        let fallback_count = fallbacks.len() as u64 * 100;
        Some(NetworkStat { tcp: 2, fallbacks, fallback_count, ..Default::default() })
    };
    let fallback = |server: &str, why: &str| Fallback { server: server.into(), why: why.into() };
    let daemon = DaemonStat { daemon: "a".into(), network: stat(vec![]), ..Default::default() };
    let session = SessionStat { client: "m1".into(), network: stat(vec![]), ..Default::default() };
    (reply.daemons, reply.sessions) = (vec![daemon], vec![session]);
    assert!(problems(Some(&reply), None).is_empty(), "TCP is what was asked for");
    reply.daemons[0].network = stat(vec![fallback("", "no card")]);
    reply.sessions[0].network = stat(vec![fallback("s1:1", "no way"), fallback("s2:1", "no way")]);
    let all = problems(Some(&reply), None);
    assert_eq!(kinds(&all), ["rdma_not_served", "rdma_fallback"]);
    assert_eq!(all[0].text, "storage daemon a does not use RDMA: no card");
    assert_eq!(all[1].text, "m1 does not reach s1:1 over RDMA: no way, and 199 others too");
    let many = std::iter::repeat_n(reply.sessions[0].clone(), 1000).collect();
    reply.sessions = many;
    let all = problems(Some(&reply), None);
    assert_eq!(all.len(), 1 + 9);
    assert_eq!(all[9].text, "and 992 more clients that go over TCP");
    assert!(all[9].command.contains("deploy/rdma.md"), "{all:?}");
    reply.sessions.iter_mut().for_each(|session| session.owner = "proved".into());
    assert_eq!(problems(Some(&reply), None).len(), 1, "with certificates there is no RDMA");
}

#[test]
fn a_repair_is_a_note_while_it_goes_on_and_critical_when_it_cannot() {
    let mut reply = cluster();
    let going = RepairStat { missing_chunks: 100, chunks_per_s: 10, ..Default::default() };
    reply.repair = Some(going.clone());
    let all = problems(Some(&reply), None);
    assert_eq!((kinds(&all), all[0].severity), (vec!["repair"], Severity::Note));
    assert!(all[0].text.contains("10 s left"), "{all:?}");
    reply.repair = Some(RepairStat { stuck_chunks: 100, chunks_per_s: 0, ..going });
    let all = problems(Some(&reply), None);
    assert_eq!((kinds(&all), all[0].severity), (vec!["repair_stuck"], Severity::Critical));
    // What is last then is another matter.
    let stuck = reply.repair.as_mut().unwrap();
    (stuck.damaged_records, stuck.problems) = (1, vec!["no room".into(), "no sense".into()]);
    let texts = |reply: &_| -> Vec<_> {
        let all = problems(Some(reply), None).into_iter();
        all.filter(|p| p.kind == "repair_stuck").map(|p| p.text).collect()
    };
    assert!(texts(&reply)[0].ends_with(": no room"), "{:?}", texts(&reply));
    reply.repair.as_mut().unwrap().problems.remove(0);
    assert!(!texts(&reply)[0].contains("no sense"), "{:?}", texts(&reply));
    // Nothing is left to be made, and that is not all.
    reply.repair = Some(RepairStat { damaged_records: 2, ..Default::default() });
    let all = problems(Some(&reply), None);
    assert_eq!((kinds(&all), all[0].severity), (vec!["records_damaged"], Severity::Warning));
    assert!(all[0].text.contains("2 segments"), "{all:?}");
}

#[test]
fn of_very_many_only_the_first_are_told() {
    let mut reply = cluster();
    let map = reply.map.as_mut().unwrap();
    map.targets = (0..5000)
        .map(|id| TargetInfo {
            id,
            daemon: format!("d{id}"),
            state: TargetState::Down.into(),
            ..Default::default()
        })
        .collect();
    let all = problems(Some(&reply), None);
    assert_eq!(all.len(), TOLD + 1);
    assert!(all[TOLD].text.contains("4992 more"), "{all:?}");
}

#[test]
fn a_restored_cluster_says_for_how_long_nothing_is_deleted() {
    let mut reply = cluster();
    assert!(problems(Some(&reply), None).is_empty());
    reply.held_until_ns = reply.clock_ns + 90 * 60_000_000_000;
    let told = problems(Some(&reply), None);
    assert_eq!((told.len(), told[0].severity), (1, Severity::Note));
    assert!(told[0].text.contains("for 1 h 30 min"), "{}", told[0].text);
}
