//! Snapshots that are not fetched, and leaders that cannot make one.

use super::*;
use crate::backup::Copy;
use crate::store::unheard;
use std::path::Path;

/// Less than the silence after which a server counts as away.
const TICK: Duration = Duration::from_millis(200);

fn files_in(dir: &Path) -> usize {
    std::fs::read_dir(dir).unwrap().count()
}

impl Rig {
    /// What was begun beside the loop has ended, and the loop has heard of it.
    async fn aside(&mut self) {
        let side = self.driver.side.recv().await.unwrap();
        self.driver.on_side(side).unwrap();
        self.settle().await;
    }

    /// A leader whose log begins behind what a server has. The others have all of it.
    async fn leading_past(server: u64) -> Self {
        let mut rig = Self::leading().await;
        for _ in 0..5 {
            let answer = rig.propose(admit(9));
            rig.settle().await;
            rig.acknowledge(&[2, 3]).await;
            answer.await.unwrap().unwrap();
        }
        rig.falls_behind(server);
        rig
    }

    /// A server has nothing any more, and the log neither.
    fn falls_behind(&mut self, server: u64) {
        let applied = self.driver.raw.raft.raft_log.applied;
        self.driver.raw.mut_store().truncate(applied).unwrap();
        self.driver.start_anew(server);
    }

    /// Time passes, in which both others are heard of. Answers to whom snapshots are announced.
    async fn pass(&mut self, time: Duration) -> Vec<u64> {
        advance(time).await;
        self.driver.on_tick().unwrap();
        for _ in 0..10 {
            // Snapshots are made beside the loop.
            tokio::task::yield_now().await;
        }
        self.driver.drain().unwrap();
        self.settle().await;
        let term = self.driver.raw.raft.term;
        let mut announced = Vec::new();
        for server in [2, 3] {
            let kind = MessageType::MsgHeartbeatResponse;
            self.receive(Message { term, ..message(server, kind) }).await;
            let is_snapshot = |m: &Message| m.msg_type == MessageType::MsgSnapshot as i32;
            announced.extend(self.sent_to(server).iter().filter(|m| is_snapshot(m)).map(|m| m.to));
        }
        announced
    }

    /// What every file of the state that exists now has, does not read any more.
    fn damage_state(&self) {
        let state = &self.driver.node.state;
        // Nothing is left in memory only.
        state.checkpoint(&self.dir.path().join("flushed")).unwrap();
        let files = std::fs::read_dir(self.dir.path().join("state/db-0")).unwrap();
        let mut damaged = 0;
        for path in files.map(|file| file.unwrap().path()) {
            if path.extension().is_some_and(|end| end == "sst") {
                let mut bytes = std::fs::read(&path).unwrap();
                bytes[8] ^= 0xff;
                // Under the same name, which the open database has, too.
                std::fs::write(&path, bytes).unwrap();
                damaged += 1;
            }
        }
        assert!(damaged > 0);
        state.set_applied(state.applied()).unwrap();
    }
}

/// The log lies on the same disk.
#[tokio::test(start_paused = true)]
async fn a_snapshot_for_which_there_is_no_room_is_not_begun() {
    let mut rig = Rig::following(3, |config| {
        (config.reserve_percent, config.reserve_bytes) = (100, u64::MAX);
    })
    .await;
    let incoming = rig.dir.path().join("incoming");
    std::fs::write(incoming.join("of one that was broken off"), "").unwrap();
    rig.driver.on_messages(vec![announced(60)]).unwrap();
    rig.aside().await;
    assert_eq!(files_in(&incoming), 0);
    assert!(!rig.driver.fetching && rig.driver.raw.snap().is_none());
    let why = rig.driver.node.behind.why().expect("it is told");
    assert!(why.contains("more room") && why.contains("move the whole data folder away"), "{why}");
    // Then the log has what it needs.
    let entries = (0..57).map(|_| Vec::new()).collect::<Vec<_>>();
    rig.receive(append(3, &entries)).await;
    rig.driver.on_tick().unwrap();
    assert_eq!(rig.driver.node.behind.why(), None);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_left_of_a_snapshot_that_was_not_installed() {
    let mut rig = Rig::following(3, |config| config.reserve_bytes = 0).await;
    let incoming = rig.dir.path().join("incoming");
    // Nobody listens there.
    let mut broken = announced(60);
    let file = v1::snapshot_manifest::File { name: "a".into(), len: 10, crc32: 0 };
    let manifest = v1::SnapshotManifest {
        snapshot: "snapshot-60".into(),
        address: "127.0.0.1:2".into(),
        files: vec![file],
    };
    broken.snapshot.as_mut().unwrap().data = manifest.encode_to_vec();
    rig.driver.on_messages(vec![broken]).unwrap();
    rig.aside().await;
    assert_eq!(files_in(&incoming), 0, "of what was not fetched");
    assert!(rig.driver.node.behind.is());
    let fetched = rig.fetched(3);
    rig.driver.on_side(Side::Fetched(Box::new(fetched), Ok(PathBuf::new()))).unwrap();
    assert!(rig.driver.fetching, "nobody fetches into what is being removed");
    rig.aside().await;
    assert_eq!(files_in(&incoming), 0, "of what the log has by now");
    assert!(!rig.driver.fetching);
    rig.driver.on_messages(vec![announced(70)]).unwrap();
    assert!(rig.driver.fetching, "the next is fetched");
}

#[tokio::test(start_paused = true)]
async fn a_follower_that_does_not_fetch_costs_ever_less_and_holds_up_no_other() {
    const SECOND: Duration = Duration::from_secs(1);
    let mut rig = Rig::leading_past(3).await;
    let mut times = Vec::new();
    for second in 0..120 {
        let announced = rig.pass(SECOND).await;
        assert!(announced.iter().all(|to| *to == 3));
        times.extend(announced.iter().map(|_| second));
    }
    assert!(rig.driver.leads.is_some());
    // Six seconds until it is given up each time, and then the pause.
    let between: Vec<_> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(between.is_sorted() && between[0] >= 10 && between[2] >= 25, "{times:?}");
    // Another needs one, while that rests.
    rig.falls_behind(2);
    let mut to_2 = 0;
    for _ in 0..3 {
        let announced = rig.pass(SECOND).await;
        assert!(!announced.contains(&3), "it rests");
        to_2 += announced.len();
    }
    assert_eq!(to_2, 1);
    // Who says that it can again is sent one at once.
    for cannot_fetch in [true, false] {
        let ack = v1::RaftAck { cannot_fetch, changes_members: true, ..Default::default() };
        rig.driver.on_ack(NodeId(3), ack);
        let announced = rig.pass(SECOND).await;
        let again = rig.pass(SECOND).await;
        assert_eq!(announced.contains(&3) || again.contains(&3), !cannot_fetch);
    }
}

/// The last of it takes longer to sync and to install than anyone is waited for.
#[tokio::test(start_paused = true)]
async fn a_follower_that_has_its_snapshot_late_does_not_rest() {
    const SECOND: Duration = Duration::from_secs(1);
    let mut rig = Rig::leading_past(3).await;
    let mut announced = 0;
    for _ in 0..25 {
        announced += rig.pass(SECOND).await.len();
    }
    let resting = |rig: &Rig| rig.driver.announced.resting(Instant::now());
    assert_eq!((announced, resting(&rig)), (2, [3].into()), "it was given up twice");
    rig.acknowledge(&[3]).await;
    rig.pass(TICK).await;
    assert!(resting(&rig).is_empty());
}

/// As where the log grows by more than it keeps for a snapshot, while that is made.
#[tokio::test(start_paused = true)]
async fn a_leader_whose_snapshots_come_too_late_makes_ever_fewer() {
    const SECOND: Duration = Duration::from_secs(1);
    let mut rig = Rig::leading_past(3).await;
    let too_late = |rig: &mut Rig, pause: u32| {
        let manifest = v1::SnapshotManifest::default();
        let made = NewSnapshot { index: 1, members: None, manifest };
        rig.driver.on_side(Side::Made(Ok(made))).unwrap();
        let (making, now) = (&rig.driver.announced.making, Instant::now());
        assert!(!making.is_over(now + (pause - 1) * SECOND), "not for {pause} s");
        assert!(making.is_over(now + pause * SECOND));
    };
    for pause in [5, 10, 20] {
        too_late(&mut rig, pause);
    }
    // One that is offered is worth what it costs.
    let mut announced = Vec::new();
    for _ in 0..25 {
        announced.extend(rig.pass(SECOND).await);
    }
    assert_eq!(announced, [3]);
    too_late(&mut rig, 5);
}

/// As a state that a drive has damaged would be: who took it over would be damaged as well.
#[tokio::test(start_paused = true)]
async fn a_leader_that_cannot_copy_its_state_leaves_its_lead_to_who_has_it_whole() {
    let mut rig = Rig::leading_past(3).await;
    rig.damage_state();
    let error = rig.driver.wiring.snapshots.make().await.err().expect("it does not read");
    assert!(error.message.contains("damaged"), "{error}");
    assert_eq!(files_in(&rig.dir.path().join("snapshots")), 0);
    // The other says that it is no better.
    let ack = |damaged| v1::RaftAck { damaged, changes_members: true, ..Default::default() };
    rig.driver.on_ack(NodeId(2), ack(true));
    for _ in 0..3 {
        assert!(rig.pass(TICK).await.is_empty());
    }
    assert!(rig.driver.node.damaged().is_some() && rig.driver.leads.is_some());
    rig.driver.on_ack(NodeId(2), ack(false));
    rig.pass(TICK).await;
    assert_eq!(rig.driver.group.hands_over.as_ref().map(|over| over.to), Some(NodeId(2)));
    assert_eq!(rig.driver.leads, None, "it answers nobody meanwhile");
    assert!(rig.driver.node.damaged().is_some_and(|what| what.contains("damaged")));
}

/// It would be found when everything else is lost.
#[tokio::test(start_paused = true)]
async fn no_backup_is_made_of_what_does_not_read() {
    let mut rig = Rig::leading_past(3).await;
    let node = rig.driver.node.clone();
    drop(Copy::make(&node, &mut unheard).unwrap());
    rig.damage_state();
    let error = Copy::make(&node, &mut unheard).err().expect("it does not read");
    assert!(error.message.contains("damaged"), "{error}");
    assert_eq!(files_in(&rig.dir.path().join("snapshots")), 0, "nothing is left of it");
    assert!(node.damaged().is_some_and(|what| what.contains("damaged")));
    // Who has it whole is to lead, and to be asked for the next one.
    let ack = v1::RaftAck { changes_members: true, ..Default::default() };
    rig.driver.on_ack(NodeId(2), ack);
    rig.pass(TICK).await;
    assert_eq!(rig.driver.group.hands_over.as_ref().map(|over| over.to), Some(NodeId(2)));
}

/// As where there is no room for one, or too many files are open.
#[tokio::test(start_paused = true)]
async fn a_leader_that_can_make_no_copy_now_is_not_damaged() {
    const SECOND: Duration = Duration::from_secs(1);
    let mut rig = Rig::leading_past(3).await;
    let folder = rig.dir.path().join("snapshots");
    std::fs::remove_dir_all(&folder).unwrap();
    std::fs::write(&folder, "in the way").unwrap();
    for _ in 0..3 {
        assert!(rig.pass(SECOND).await.is_empty());
    }
    assert!(!rig.driver.announced.making.is_over(Instant::now()), "it has tried, and rests");
    assert_eq!(rig.driver.node.damaged(), None);
    assert!(rig.driver.leads.is_some() && rig.driver.group.hands_over.is_none());
    std::fs::remove_file(&folder).unwrap();
    std::fs::create_dir(&folder).unwrap();
    let mut announced = Vec::new();
    for _ in 0..10 {
        announced.extend(rig.pass(SECOND).await);
    }
    assert_eq!(announced, [3], "then it goes on");
}

/// It goes on with the others, which have it whole.
#[tokio::test(start_paused = true)]
async fn a_leader_that_cannot_read_its_log_leaves_its_lead() {
    let mut rig = Rig::leading().await;
    rig.propose(admit(9));
    rig.settle().await;
    rig.acknowledge(&[2, 3]).await;
    rig.driver.log.damage(1);
    // What is in memory reads.
    rig.driver.raw.mut_store().forget_cached();
    rig.driver.start_anew(3);
    for _ in 0..2 {
        rig.pass(TICK).await;
    }
    assert!(rig.driver.node.damaged().is_some_and(|what| what.contains("log entry 1")));
    assert_eq!(rig.driver.group.hands_over.as_ref().map(|over| over.to), Some(NodeId(2)));
    // Until that is forgotten.
    rig.driver.raw.mut_store().truncate(1).unwrap_err();
    rig.driver.raw.mut_store().truncate(2).unwrap();
    rig.pass(TICK).await;
    assert_eq!(rig.driver.node.damaged(), None);
}
