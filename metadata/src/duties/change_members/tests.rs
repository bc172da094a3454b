//! The next step of a change, given the group and who answers.

use super::*;

fn member(id: u64, role: v1::MemberRole) -> v1::NodeInfo {
    v1::NodeInfo { id, address: format!("h:{id}"), role: role.into(), ..Default::default() }
}

fn group(members: Vec<v1::NodeInfo>) -> Membership {
    Membership { founders: vec![1, 2, 3], members, removed: vec![] }
}

/// The others, each with the end of its log; 0: it is silent.
fn others(logs: &[(u64, u64)]) -> Vec<v1::MemberStat> {
    let stat = |&(id, log)| v1::MemberStat {
        id,
        matched_index: log,
        active: log > 0,
        ..Default::default()
    };
    logs.iter().map(stat).collect()
}

fn change(learn: u64, promote: u64, remove: u64) -> Next {
    Next::Change(v1::ChangeMembersEntry { learn, promote, remove })
}

const WHOLE: u64 = 10_000;

#[test]
fn a_server_is_replaced_step_by_step() {
    let mut fourth = v1::NodeInfo { replaces: 1, ..member(4, Waiting) };
    let voters = || vec![member(1, Voter), member(2, Voter), member(3, Voter)];
    let with = |fourth: &v1::NodeInfo| group([voters(), vec![fourth.clone()]].concat());
    let all = others(&[(1, WHOLE), (3, WHOLE)]);
    assert_eq!(next(&with(&fourth), 2, WHOLE, &all), change(4, 0, 0));
    fourth.set_role(Learner);
    for behind in [0, WHOLE - CAUGHT_UP - 1] {
        let all = others(&[(1, WHOLE), (3, WHOLE), (4, behind)]);
        assert!(matches!(next(&with(&fourth), 2, WHOLE, &all), Next::Wait(_)));
    }
    let all = others(&[(1, WHOLE), (3, WHOLE), (4, WHOLE - CAUGHT_UP)]);
    assert_eq!(next(&with(&fourth), 2, WHOLE, &all), change(0, 4, 1));
    // The one that is replaced leads: it hands over to one that stays.
    let all = others(&[(2, WHOLE), (3, WHOLE - 1), (4, WHOLE)]);
    assert_eq!(next(&with(&fourth), 1, WHOLE, &all), Next::HandOver(NodeId(2)));
    // It is dead, and one of the others, too: the new one is the second that answers of three.
    let all = others(&[(1, 0), (3, 0), (4, WHOLE)]);
    assert_eq!(next(&with(&fourth), 2, WHOLE, &all), change(0, 4, 1));
    let joint = [member(1, Outgoing), member(2, Voter), member(3, Voter), member(4, Incoming)];
    assert_eq!(next(&group(joint.to_vec()), 2, WHOLE, &[]), change(0, 0, 0));
    // The one that is about to leave leads: it must not end what it would be no part of.
    let all = others(&[(2, WHOLE - 2), (3, WHOLE - 2), (4, WHOLE)]);
    assert_eq!(next(&group(joint.to_vec()), 1, WHOLE, &all), Next::HandOver(NodeId(4)));
    assert!(matches!(next(&group(joint.to_vec()), 1, WHOLE, &[]), Next::Wait(_)));
    let done = group(vec![member(2, Voter), member(3, Voter), member(4, Voter)]);
    assert_eq!(next(&done, 2, WHOLE, &[]), Next::Nothing);
}

#[test]
fn nobody_leaves_whom_the_group_needs() {
    let leaving = v1::NodeInfo { leaving: true, ..member(1, Voter) };
    let three = group(vec![leaving, member(2, Voter), member(3, Voter)]);
    let up = others(&[(1, WHOLE), (3, WHOLE)]);
    assert_eq!(next(&three, 2, WHOLE, &up), change(0, 0, 1));
    let down = others(&[(1, WHOLE), (3, 0)]);
    assert!(matches!(next(&three, 2, WHOLE, &down), Next::Wait(_)));
    // It leads: nobody is there to whom the lead could go.
    let down = others(&[(2, 0), (3, 0)]);
    assert!(matches!(next(&three, 1, WHOLE, &down), Next::Wait(_)));
    // A learner has no vote to be missed.
    let learner = v1::NodeInfo { leaving: true, ..member(4, Learner) };
    let four = group(vec![member(1, Voter), member(2, Voter), learner]);
    assert_eq!(next(&four, 2, WHOLE, &others(&[(1, WHOLE)])), change(0, 0, 4));
}

#[test]
fn the_only_server_is_replaced() {
    let second = v1::NodeInfo { replaces: 1, ..member(2, Learner) };
    let alone = group(vec![member(1, Voter), second.clone()]);
    let all = others(&[(2, WHOLE)]);
    assert_eq!(next(&alone, 1, WHOLE, &all), change(0, 2, 0));
    let two = group(vec![member(1, Voter), v1::NodeInfo { role: 0, ..second }]);
    assert_eq!(next(&two, 1, WHOLE, &all), Next::HandOver(NodeId(2)));
    assert_eq!(next(&two, 2, WHOLE, &others(&[(1, WHOLE)])), change(0, 0, 1));
}
