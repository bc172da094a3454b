//! `weft metadata list`: the servers of the group, as the leader sees them.

use crate::control::{ClusterArgs, leader_status};
use crate::output::{OutputArgs, Table};
use anyhow::Result;
use serde::Serialize;
use weft_proto::v1::{MemberRole, NodeInfo};

#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Serialize)]
struct Report {
    leader: u64,
    members: Vec<Row>,
    /// What a change of the group waits for; empty: nothing.
    waits: String,
}

#[derive(Serialize)]
struct Row {
    id: u64,
    address: String,
    /// voter, learner, waiting, or in the middle of a replacement: incoming, outgoing
    role: &'static str,
    leads: bool,
    /// The one that leaves when this one gets its vote; 0: none.
    replaces: u64,
    leaving: bool,
    /// It has answered the leader within the last election timeout; the leader has.
    answers: bool,
    /// Entries of the log that the leader has and it has not.
    behind: u64,
}

pub async fn run(args: Args) -> Result<()> {
    let reply = leader_status(&args.cluster.cluster).await?;
    let map = reply.map.iter().flat_map(|map| &map.members);
    let row = |m: &NodeInfo| {
        let known = reply.members.iter().find(|known| known.id == m.id);
        let leads = m.id == reply.leader;
        Row {
            id: m.id,
            address: m.address.clone(),
            role: role_name(m.role()),
            leads,
            replaces: m.replaces,
            leaving: m.leaving,
            answers: leads || known.is_some_and(|known| known.active),
            behind: match (leads, known) {
                (true, _) => 0,
                (_, known) => {
                    reply.commit_index.saturating_sub(known.map_or(0, |known| known.matched_index))
                }
            },
        }
    };
    let report = Report {
        leader: reply.leader,
        members: map.map(row).collect(),
        waits: reply.membership.clone(),
    };
    args.output.print(&report, text)
}

fn role_name(role: MemberRole) -> &'static str {
    match role {
        MemberRole::Voter => "voter",
        MemberRole::Waiting => "waiting",
        MemberRole::Learner => "learner",
        MemberRole::Incoming => "incoming",
        MemberRole::Outgoing => "outgoing",
    }
}

fn text(report: &Report) -> String {
    let mut table = Table::new(&["ID", "ADDRESS", "ROLE", "STATE", "BEHIND", "NOTE"]);
    for row in &report.members {
        let state = match (row.leads, row.answers) {
            (true, _) => "leads",
            (_, true) => "answers",
            (_, false) => "silent",
        };
        let note = match (row.leaving, row.replaces) {
            (true, _) => "is to leave".to_owned(),
            (_, 0) => String::new(),
            (_, old) => format!("takes the place of {old}"),
        };
        table.row([
            row.id.to_string(),
            row.address.clone(),
            row.role.into(),
            state.into(),
            row.behind.to_string(),
            note,
        ]);
    }
    let mut out = table.render("");
    if !report.waits.is_empty() {
        out += &format!("\nthe group is to change; waiting: {}\n", report.waits);
    }
    out
}
