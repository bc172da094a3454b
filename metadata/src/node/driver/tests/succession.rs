//! A leader whose process has died is followed before an election timeout has passed, and not
//! before its right to answer reads has.

use super::*;

/// Server 1 follows server 2, and has just heard of it.
async fn following() -> Rig {
    let mut rig = Rig::following(3, |_| {}).await;
    rig.hear_of(rig.driver.node.config.least_silence());
    rig
}

impl Rig {
    /// Server 2 says what it counts on.
    fn hear_of(&mut self, least_silence: Duration) {
        let member = Member { id: NodeId(2), address: "127.0.0.1:2".into() };
        self.driver.on_sender(replication::Speaker { member, least_silence });
    }
}

fn asks_for_votes(rig: &mut Rig) -> bool {
    let pre_vote = MessageType::MsgRequestPreVote as i32;
    rig.sent_to(3).iter().any(|m| m.msg_type == pre_vote)
}

async fn stand(rig: &mut Rig) {
    rig.driver.stand();
    rig.settle().await;
}

#[tokio::test(start_paused = true)]
async fn who_loses_the_leader_stands_after_a_short_silence() {
    let mut rig = following().await;
    let silence = rig.driver.node.config.least_silence();
    assert!(silence < rig.driver.node.config.election_timeout() / 2);
    assert_eq!(rig.driver.stands_at(), None, "the leader is there");
    rig.driver.on_ended(NodeId(3));
    assert_eq!(rig.driver.stands_at(), None, "that was not the leader");
    let heard = Instant::now();
    advance(Duration::from_millis(20)).await;
    rig.driver.on_ended(NodeId(2));
    assert_eq!(rig.driver.stands_at(), Some(heard + silence), "it is the first of those left");
    advance(silence - Duration::from_millis(21)).await;
    stand(&mut rig).await;
    assert!(!asks_for_votes(&mut rig));
    advance(Duration::from_millis(1)).await;
    stand(&mut rig).await;
    assert!(asks_for_votes(&mut rig));
    // Server 3 may have heard of the leader later, and answers nothing then.
    for _ in 0..3 {
        stand(&mut rig).await;
        assert!(!asks_for_votes(&mut rig));
        advance(2 * rig.driver.node.config.tick()).await;
        stand(&mut rig).await;
        assert!(asks_for_votes(&mut rig));
    }
    advance(rig.driver.node.config.election_timeout()).await;
    stand(&mut rig).await;
    assert_eq!(rig.driver.stands_at(), None, "an election timeout does the rest");
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_is_heard_of_is_not_followed() {
    let mut rig = following().await;
    let silence = rig.driver.node.config.least_silence();
    rig.driver.on_ended(NodeId(2));
    // Its own connection is whole.
    for _ in 0..5 {
        advance(rig.driver.node.config.tick()).await;
        rig.receive(Message { term: 5, ..message(2, MessageType::MsgHeartbeat) }).await;
        stand(&mut rig).await;
        assert!(!asks_for_votes(&mut rig));
        assert_eq!(rig.votes(5, 3).await, [] as [bool; 0], "nor does anybody else");
    }
    advance(2 * silence).await;
    stand(&mut rig).await;
    assert!(!asks_for_votes(&mut rig), "what ended long ago says nothing of this silence");
}

#[tokio::test(start_paused = true)]
async fn who_loses_the_leader_votes_when_its_lease_is_over() {
    let mut rig = following().await;
    let silence = rig.driver.node.config.least_silence();
    rig.driver.on_ended(NodeId(2));
    advance(silence - Duration::from_millis(1)).await;
    assert_eq!(rig.votes(5, 3).await, [] as [bool; 0]);
    advance(Duration::from_millis(1)).await;
    assert_eq!(rig.votes(5, 3).await, [true]);
}

/// Two at once would split the votes.
#[tokio::test(start_paused = true)]
async fn those_left_stand_one_after_the_other() {
    let mut rig = following().await;
    // Server 1 is second to none; as server 3 would see it, it comes after 1.
    rig.driver.on_ended(NodeId(2));
    let first = rig.driver.stands_at().unwrap();
    rig.driver.raw.raft.id = 3;
    assert_eq!(rig.driver.stands_at().unwrap() - first, rig.driver.node.config.tick());
    rig.driver.raw.raft.id = 1;
}

/// Who lost its disk does not stand, and does not try for ever.
#[tokio::test(start_paused = true)]
async fn who_has_not_caught_up_does_not_stand() {
    let mut rig = Rig::new(Position { term: 5, index: 9 }, |_| {});
    rig.receive(append(0, &[Vec::new()])).await;
    rig.hear_of(Duration::from_millis(1));
    rig.driver.on_ended(NodeId(2));
    advance(rig.driver.node.config.least_silence()).await;
    assert!(rig.driver.stands_at().is_some_and(|at| at <= Instant::now()));
    stand(&mut rig).await;
    assert!(!asks_for_votes(&mut rig));
    assert!(rig.driver.stands_at().is_some_and(|at| at > Instant::now()), "no spinning");
}

/// Who asks meanwhile waits for who will lead, and is not sent to who does not answer.
#[tokio::test(start_paused = true)]
async fn nobody_is_sent_to_a_leader_that_seems_dead() {
    let mut rig = following().await;
    let leader = |rig: &Rig| rig.driver.node.view().leader;
    assert_eq!(leader(&rig), Some(NodeId(2)));
    rig.driver.on_ended(NodeId(2));
    rig.settle().await;
    assert_eq!(leader(&rig), None);
    // What it had sent before.
    rig.receive(Message { term: 5, ..message(2, MessageType::MsgHeartbeat) }).await;
    assert_eq!(leader(&rig), None);
    advance(rig.driver.node.config.tick() + Duration::from_millis(1)).await;
    rig.receive(Message { term: 5, ..message(2, MessageType::MsgHeartbeat) }).await;
    assert_eq!(leader(&rig), Some(NodeId(2)), "it lives");
}

/// Settings differ: the leader counts on who waits least; an older version is not hurried.
#[tokio::test(start_paused = true)]
async fn a_leader_counts_on_who_waits_least() {
    let mut rig = Rig::leading().await;
    let (own, now) = (rig.driver.node.config.least_silence(), Instant::now());
    let lasts = |rig: &Rig, time| {
        rig.driver.node.lease.end();
        rig.driver.node.lease.extend(now);
        rig.driver.node.lease.holds(now + time)
    };
    for other in [2 * own, Duration::ZERO] {
        rig.hear_of(other);
        assert!(lasts(&rig, own.mul_f64(0.79)) && !lasts(&rig, own.mul_f64(0.81)));
    }
    rig.hear_of(own / 2);
    assert!(lasts(&rig, own.mul_f64(0.39)) && !lasts(&rig, own.mul_f64(0.41)));

    let mut rig = following().await;
    rig.hear_of(Duration::ZERO);
    rig.driver.on_ended(NodeId(2));
    assert_eq!(rig.driver.stands_at(), None, "it counts on an election timeout");
    advance(own).await;
    assert_eq!(rig.votes(5, 3).await, [] as [bool; 0]);
}
